// A small persistent pool that splits coordinates over threads.
//
// Kernels split coordinates and never clients, so no result depends on the number of threads.
// Small jobs run on the calling thread alone; several callers may be inside at once; after fork()
// the child starts its own pool. No OpenMP: a second OpenMP runtime beside torch's is a known harm.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "fedbench/fpenv.hpp"

namespace fedbench {

// A thread is worth waking only for at least this much memory traffic.
inline constexpr std::size_t kBytesPerThread = std::size_t{1} << 20;
inline constexpr int kMaxThreads = 1024;

namespace detail {

class ThreadPool {
  public:
    using Body = void (*)(void* context, std::size_t begin, std::size_t end);

    // Runs body over [0, size) in chunks of `grain` on the caller and up to threads - 1 helpers.
    void run(std::size_t size, std::size_t grain, int threads, Body body, void* context) {
        Job job{body, context, size, grain, threads - 1};
        {
            const std::lock_guard lock(mutex_);
            grow(threads - 1);
            jobs_.push_back(&job);
        }
        for (int i = 1; i < threads; ++i) work_.notify_one();
        job.work();
        std::unique_lock lock(mutex_);
        const auto at = std::find(jobs_.begin(), jobs_.end(), &job);
        if (at != jobs_.end()) jobs_.erase(at);
        done_.wait(lock, [&] { return job.active == 0; });
        if (job.error) std::rethrow_exception(job.error);
    }

    static ThreadPool& instance() {
        ThreadPool* pool = current().load(std::memory_order_acquire);
        if (pool != nullptr) return *pool;
        static std::once_flag once;
        std::call_once(once, [] {
            // The child of a fork has none of the threads, and a mutex that another thread held
            // stays locked there: it forgets the old pool and starts a new one when needed.
            ::pthread_atfork(nullptr, nullptr,
                             [] { current().store(nullptr, std::memory_order_release); });
        });
        auto* fresh = new ThreadPool;
        ThreadPool* expected = nullptr;
        if (current().compare_exchange_strong(expected, fresh, std::memory_order_acq_rel)) {
            return *fresh;
        }
        delete fresh;
        return *expected;
    }

  private:
    struct Job {
        Body body;
        void* context;
        std::size_t size;
        std::size_t grain;
        int helpers_wanted;  // guarded by the pool's mutex, like the two below
        int active = 0;
        std::exception_ptr error = nullptr;
        std::atomic<std::size_t> next = 0;

        void work() noexcept {
            const FpEnvGuard fp_environment;
            try {
                for (;;) {
                    const std::size_t begin = next.fetch_add(grain, std::memory_order_relaxed);
                    if (begin >= size) return;
                    body(context, begin, std::min(begin + grain, size));
                }
            } catch (...) {
                next.store(size, std::memory_order_relaxed);
                const std::lock_guard lock(error_mutex());
                if (!error) error = std::current_exception();
            }
        }

        static std::mutex& error_mutex() {
            static std::mutex mutex;
            return mutex;
        }
    };

    static std::atomic<ThreadPool*>& current() {
        static std::atomic<ThreadPool*> pool{nullptr};
        return pool;
    }

    // Threads are detached and the pool is never destroyed: at exit there is nothing to join.
    // Helpers block all signals, so that those meant for the program reach its own threads. Where
    // the system refuses a thread the job runs on fewer: its result is the same.
    void grow(int helpers) {
        if (threads_ >= helpers) return;
        sigset_t all;
        sigset_t saved;
        sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &saved);
        try {
            for (; threads_ < helpers; ++threads_) {
                std::thread([this] { serve(); }).detach();
            }
        } catch (const std::system_error&) {
        }
        ::pthread_sigmask(SIG_SETMASK, &saved, nullptr);
    }

    void serve() {
        std::unique_lock lock(mutex_);
        for (;;) {
            work_.wait(lock, [&] { return !jobs_.empty(); });
            Job* job = jobs_.front();
            if (--job->helpers_wanted <= 0) jobs_.pop_front();
            ++job->active;
            lock.unlock();
            job->work();
            lock.lock();
            if (--job->active == 0) done_.notify_all();
        }
    }

    std::mutex mutex_;
    std::condition_variable work_;
    std::condition_variable done_;
    std::deque<Job*> jobs_;
    int threads_ = 0;
};

// What the affinity mask allows, or FEDBENCH_NUM_THREADS.
inline int default_threads() {
    if (const char* text = std::getenv("FEDBENCH_NUM_THREADS"); text != nullptr && *text != '\0') {
        char* end = nullptr;
        const long value = std::strtol(text, &end, 10);
        if (*end != '\0' || value < 1 || value > kMaxThreads) {
            throw std::invalid_argument("FEDBENCH_NUM_THREADS must be an integer from 1 to " +
                                        std::to_string(kMaxThreads) + ", got '" + text + "'.");
        }
        return static_cast<int>(value);
    }
#if defined(__linux__)
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

inline std::atomic<int>& thread_setting() {
    static std::atomic<int> threads{default_threads()};
    return threads;
}

}  // namespace detail

// The most threads for kernel calls from the calling thread, which may be one of several that share
// the processors.
inline int& thread_limit() {
    static thread_local int limit = kMaxThreads;
    return limit;
}

// How many threads one kernel call may use (the caller included).
inline int num_threads() {
    return std::min(thread_limit(), detail::thread_setting().load(std::memory_order_relaxed));
}

inline void set_num_threads(int threads) {
    if (threads < 1 || threads > kMaxThreads) {
        throw std::invalid_argument("num_threads must be an integer from 1 to " +
                                    std::to_string(kMaxThreads) + ", got " +
                                    std::to_string(threads) + ".");
    }
    detail::thread_setting().store(threads, std::memory_order_relaxed);
}

// Calls body(begin, end) over disjoint parts that cover [0, size), each a multiple of `grain` long
// except the last. `bytes` is the job's memory traffic, which decides how many threads it is worth.
// The floating-point environment is the default one inside. An exception in body ends the job and
// is rethrown here. body must not call parallel_for.
template <class Body>
void parallel_for(std::size_t size, std::size_t grain, std::size_t bytes, const Body& body) {
    if (size == 0) return;
    grain = std::max<std::size_t>(grain, 1);
    const std::size_t worth = bytes / kBytesPerThread;
    const std::size_t most = std::min(worth, (size + grain - 1) / grain);
    const int threads =
        static_cast<int>(std::min<std::size_t>(most, static_cast<std::size_t>(num_threads())));
    if (threads <= 1) {
        const FpEnvGuard fp_environment;
        body(std::size_t{0}, size);
        return;
    }
    // About eight chunks per thread: even work without much traffic on the shared counter.
    const std::size_t parts = static_cast<std::size_t>(threads) * 8;
    const std::size_t chunk = (size / parts + grain) / grain * grain;
    detail::ThreadPool::instance().run(
        size, chunk, threads,
        [](void* context, std::size_t begin, std::size_t end) {
            (*static_cast<const Body*>(context))(begin, end);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace fedbench
