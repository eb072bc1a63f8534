// Copies between pieces and a flat buffer, and the pooled memory.
#include <cstring>
#include <numeric>
#include <vector>

#include "buffers.hpp"
#include "check.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/memory.hpp"
#include "fedbench/pack.hpp"

using namespace fedbench;
using fedbench::testing::GuardedBuffer;

TEST(pieces_of_every_small_size_go_where_they_belong) {
    for (std::size_t size = 0; size < 40; ++size) {
        GuardedBuffer<unsigned char> a(size, size % 7);
        GuardedBuffer<unsigned char> b(2 * size + 1, 3);
        for (std::size_t i = 0; i < a.size(); ++i) a.set(i, static_cast<unsigned char>(i + 1));
        for (std::size_t i = 0; i < b.size(); ++i) b.set(i, static_cast<unsigned char>(100 + i));
        const std::size_t gap = 5;
        GuardedBuffer<unsigned char> flat(a.size() + gap + b.size() + gap, 1);
        for (std::size_t i = 0; i < flat.size(); ++i) flat.set(i, 0xee);
        auto* start = static_cast<std::byte*>(flat.address());
        const std::vector<Piece> pieces = {
            {static_cast<std::byte*>(a.address()), 0, a.size()},
            {static_cast<std::byte*>(b.address()), a.size() + gap, b.size()}};
        zero_gaps(start, flat.size(), pieces);
        copy_pieces(start, pieces, CopyDirection::gather);
        for (std::size_t i = 0; i < gap; ++i) {
            CHECK_EQUAL(int{flat.get(a.size() + i)}, 0);
            CHECK_EQUAL(int{flat.get(flat.size() - 1 - i)}, 0);
        }
        for (std::size_t i = 0; i < a.size(); ++i) CHECK_EQUAL(flat.get(i), a.get(i));
        for (std::size_t i = 0; i < b.size(); ++i) {
            CHECK_EQUAL(flat.get(a.size() + gap + i), b.get(i));
            b.set(i, 0);
        }
        copy_pieces(start, pieces, CopyDirection::scatter);
        for (std::size_t i = 0; i < b.size(); ++i) CHECK_EQUAL(int{b.get(i)}, int(100 + i) & 0xff);
        CHECK(a.intact() && b.intact() && flat.intact());
    }
}

TEST(large_copies_use_several_threads_and_reach_everything) {
    set_num_threads(3);
    std::vector<int> source(kStreamBytes / 4 + 70'077);
    std::iota(source.begin(), source.end(), 0);
    std::vector<int> flat(source.size());
    const std::size_t half = source.size() / 2;
    auto* bytes = reinterpret_cast<std::byte*>(source.data());
    const std::vector<Piece> pieces = {{bytes, 0, half * 4},
                                       {bytes + half * 4, half * 4, (source.size() - half) * 4}};
    copy_pieces(reinterpret_cast<std::byte*>(flat.data()), pieces, CopyDirection::gather);
    CHECK(flat == source);
    set_num_threads(1);
}

TEST(copies_past_the_caches_write_every_byte_and_none_beside) {
    for (const std::size_t size : {0UL, 1UL, 63UL, 4096UL, 16383UL, 16384UL, 16448UL, 70'001UL}) {
        for (const std::size_t shift : {0UL, 1UL, 16UL, 63UL}) {
            GuardedBuffer<unsigned char> source(size, 64 - shift);
            GuardedBuffer<unsigned char> target(size, shift);
            for (std::size_t i = 0; i < size; ++i) {
                source.set(i, static_cast<unsigned char>(i * 7 + i / 251));
                target.set(i, 0xee);
            }
            stream_copy(static_cast<std::byte*>(target.address()),
                        static_cast<const std::byte*>(source.address()), size);
            bool same = true;
            for (std::size_t i = 0; i < size; ++i) same = same && target.get(i) == source.get(i);
            CHECK(same);
            CHECK(source.intact() && target.intact());
        }
    }
}

template <class T>
void check_differences() {
    for (const std::size_t count : {0UL, 1UL, 15UL, 2048UL, 4096UL, 5000UL, 20'011UL}) {
        for (const std::size_t shift : {0UL, 1UL, 5UL}) {
            GuardedBuffer<T> a(count, shift * sizeof(T));
            GuardedBuffer<T> b(count, 0);
            GuardedBuffer<T> to(count, 2 * shift * sizeof(T));
            for (std::size_t i = 0; i < count; ++i) {
                a.set(i, static_cast<T>(1) / static_cast<T>(i + 3));
                b.set(i, static_cast<T>(i % 17) - static_cast<T>(8.1));
            }
            stream_difference(static_cast<T*>(to.address()), static_cast<const T*>(a.address()),
                              static_cast<const T*>(b.address()), count);
            bool same = true;
            for (std::size_t i = 0; i < count; ++i) same = same && to.get(i) == a.get(i) - b.get(i);
            CHECK(same);
            CHECK(a.intact() && b.intact() && to.intact());
        }
    }
}

TEST(differences_are_those_of_the_elements) {
    check_differences<float>();
    check_differences<double>();
}

TEST(large_copies_and_differences_are_split_and_reach_everything) {
    set_num_threads(3);
    for (const std::size_t count : {1UL << 20, (1UL << 21) + 4099}) {
        std::vector<float> a(count);
        std::vector<float> b(count, 0.5F);
        std::iota(a.begin(), a.end(), 1.0F);
        GuardedBuffer<float> to(count, 20);
        auto* const target = static_cast<float*>(to.address());
        difference(target, a.data(), b.data(), count);
        bool same = true;
        for (std::size_t i = 0; i < count; ++i) same = same && to.get(i) == a[i] - b[i];
        CHECK(same);
        copy_bytes(reinterpret_cast<std::byte*>(target),
                   reinterpret_cast<const std::byte*>(a.data()), count * sizeof(float));
        CHECK(std::memcmp(target, a.data(), count * sizeof(float)) == 0);
        CHECK(to.intact());
    }
    set_num_threads(1);
}

#if FEDBENCH_X86
TEST(differences_flush_subnormal_numbers_as_the_calling_thread_does) {
    set_num_threads(3);
    const std::vector<float> a(std::size_t{1} << 21, 1.5e-38F);
    const std::vector<float> b(a.size(), 1.4e-38F);
    std::vector<float> to(a.size());
    const unsigned before = _mm_getcsr();
    for (const bool flush : {true, false}) {
        if (flush) _mm_setcsr(before | 0x8040);  // FTZ and DAZ
        difference(to.data(), a.data(), b.data(), a.size());
        _mm_setcsr(before);
        std::size_t zeros = 0;
        for (const float value : to) zeros += value == 0 ? 1 : 0;
        CHECK_EQUAL(zeros, flush ? to.size() : 0U);
    }
    set_num_threads(1);
}
#endif

TEST(pooled_blocks_are_aligned_reused_and_bounded) {
    BufferPool& pool = BufferPool::instance();
    void* first = pool.allocate(5'000'000);
    CHECK_EQUAL(reinterpret_cast<std::size_t>(first) % BufferPool::kHugePage, 0U);
    std::memset(first, 1, 5'000'000);
    pool.release(first, 5'000'000);
    CHECK(pool.allocate(4'999'999) == first);
    pool.release(first, 4'999'999);
    const std::size_t huge = BufferPool::kKept + 1;
    pool.release(pool.allocate(huge), huge);
    pool.keep(8 << 20);  // a block of 6 MiB, not two
    void* older = pool.allocate(6 << 20);
    void* newer = pool.allocate(6 << 20);
    pool.release(older, 6 << 20);
    pool.release(newer, 6 << 20);
    CHECK(pool.allocate(6 << 20) == newer);
    pool.release(newer, 6 << 20);
    pool.keep(0);
    pool.keep(BufferPool::kKept);
    void* again = pool.allocate(5'000'000);
    std::memset(again, 2, 5'000'000);
    pool.release(again, 5'000'000);
}

TEST_MAIN()
