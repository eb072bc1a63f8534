// Instruction-set choice, the floating-point guard and the thread pool.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "fedbench/fpenv.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/parallel.hpp"

using namespace fedbench;

namespace {

constexpr std::size_t kManyBytes = std::size_t{1} << 30;

// Each index must be visited exactly once.
bool covers_once(std::size_t size, std::size_t grain) {
    std::vector<std::atomic<int>> visits(size);
    parallel_for(size, grain, kManyBytes, [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) visits[i].fetch_add(1);
    });
    for (const auto& count : visits) {
        if (count.load() != 1) return false;
    }
    return true;
}

}  // namespace

TEST(isa_names_choose_a_level) {
    CHECK(choose_isa("", IsaLevel::avx2) == IsaLevel::avx2);
    CHECK(choose_isa("portable", IsaLevel::avx512) == IsaLevel::portable);
    CHECK_THROWS(choose_isa("sse9", IsaLevel::avx2), std::invalid_argument,
                 "must be one of 'portable', 'avx2', 'avx512', got 'sse9'");
    CHECK_THROWS(choose_isa("avx512", IsaLevel::avx2), std::invalid_argument, "at most 'avx2'");
}

TEST(fp_guard_clears_and_restores_flush_to_zero) {
#if FEDBENCH_X86
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // FTZ and DAZ
    volatile double tiny = 0x1p-1030;
    {
        const FpEnvGuard guard;
        CHECK(tiny * 0.5 == 0x1p-1031);
    }
    CHECK_EQUAL(tiny * 0.5, 0.0);
    _mm_setcsr(before);
#endif
}

TEST(parallel_for_visits_every_index_once) {
    set_num_threads(4);
    for (const std::size_t size : {0UL, 1UL, 7UL, 64UL, 1000UL, 4097UL}) {
        for (const std::size_t grain : {1UL, 3UL, 64UL, 5000UL}) {
            fedbench::testing::trying("size", size, "grain", grain);
            CHECK(covers_once(size, grain));
        }
    }
}

TEST(small_jobs_stay_on_the_calling_thread) {
    set_num_threads(4);
    const std::thread::id caller = std::this_thread::get_id();
    bool same = true;
    parallel_for(10000, 1, kBytesPerThread, [&](std::size_t, std::size_t) {
        same = same && std::this_thread::get_id() == caller;
    });
    CHECK(same);
}

TEST(a_thread_may_be_held_to_fewer_threads) {
    set_num_threads(4);
    std::thread([] {
        thread_limit() = 1;
        CHECK_EQUAL(num_threads(), 1);
        const std::thread::id caller = std::this_thread::get_id();
        std::atomic<bool> same = true;
        parallel_for(10000, 1, kManyBytes, [&](std::size_t, std::size_t) {
            if (std::this_thread::get_id() != caller) same = false;
        });
        CHECK(same.load());
        thread_limit() = 3;
        CHECK_EQUAL(num_threads(), 3);
    }).join();
    CHECK_EQUAL(num_threads(), 4);
}

TEST(an_exception_in_a_part_reaches_the_caller) {
    set_num_threads(3);
    const auto failing = [](std::size_t begin, std::size_t end) {
        if (begin <= 500 && 500 < end) throw std::runtime_error("part 500");
    };
    for (int repeat = 0; repeat < 50; ++repeat) {
        CHECK_THROWS(parallel_for(1000, 1, kManyBytes, failing), std::runtime_error, "part 500");
    }
    CHECK(covers_once(1000, 1));
}

TEST(several_callers_at_once) {
    set_num_threads(3);
    std::atomic<int> good = 0;
    std::vector<std::thread> callers;
    for (int c = 0; c < 6; ++c) {
        callers.emplace_back([&] {
            for (int repeat = 0; repeat < 50; ++repeat) good += covers_once(777, 5) ? 1 : 0;
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK_EQUAL(good.load(), 300);
}

TEST(the_thread_count_is_checked) {
    CHECK_THROWS(set_num_threads(0), std::invalid_argument, "got 0");
    CHECK_THROWS(set_num_threads(kMaxThreads + 1), std::invalid_argument, "from 1 to 1024");
}

#if defined(__SANITIZE_THREAD__)
#define FEDBENCH_TSAN 1
#else
#define FEDBENCH_TSAN 0
#endif

#if !FEDBENCH_TSAN  // ThreadSanitizer does not support threads in the child of a threaded process
TEST(the_pool_works_after_fork) {
    set_num_threads(3);
    CHECK(covers_once(1000, 1));
    const pid_t child = ::fork();
    if (child == 0) ::_exit(covers_once(1000, 1) ? 0 : 1);
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 0);
    CHECK(covers_once(1000, 1));
}
#endif

TEST_MAIN()
