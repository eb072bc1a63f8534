// Copies and differences of large vectors that are written past the caches.
//
// What is larger than the caches gains nothing from them, and has every line that it is going to
// overwrite read first. Stores past the caches do not. Four pages are written side by side: one
// page after the other leaves the memory waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "fedbench/fpenv.hpp"
#include "fedbench/memory.hpp"
#include "fedbench/parallel.hpp"

namespace fedbench {

namespace detail {

inline constexpr std::size_t kLine = 64;
inline constexpr std::size_t kPage = 4096;
inline constexpr std::size_t kPagesSideBySide = 4;
inline constexpr std::size_t kSplitBytes = kPagesSideBySide * kPage;

// Calls line(at) for every whole line of [0, size) and bytes(begin, end) for the rest, where `to`
// says how lines lie. In vectors of floating-point numbers both begin at a multiple of their size.
template <class Line, class Bytes>
void by_lines(const std::byte* to, std::size_t size, Line line, Bytes bytes) {
    constexpr std::size_t step = kSplitBytes;
    const std::size_t lead = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
    if (size < lead + step) {
        bytes(0, size);
        return;
    }
    bytes(0, lead);
    std::size_t done = lead;
    for (; size - done >= step; done += step) {
        for (std::size_t at = done; at < done + kPage; at += kLine) {
            for (std::size_t page = 0; page < step; page += kPage) line(at + page);
        }
    }
    bytes(done, size);
}

#if defined(__SSE2__)

inline __m128i load(const std::byte* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
}

inline void stream(std::byte* to, __m128i value) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), value);
}

template <class T>
__m128i minus(__m128i a, __m128i b) {
    if constexpr (sizeof(T) == sizeof(float)) {
        return _mm_castps_si128(_mm_sub_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b)));
    } else {
        return _mm_castpd_si128(_mm_sub_pd(_mm_castsi128_pd(a), _mm_castsi128_pd(b)));
    }
}

#endif

}  // namespace detail

// memcpy with stores past the caches where the processor has them.
inline void stream_copy(std::byte* to, const std::byte* from, std::size_t size) {
    const auto plain = [&](std::size_t begin, std::size_t end) {
        if (begin < end) std::memcpy(to + begin, from + begin, end - begin);
    };
#if defined(__SSE2__)
    const auto line = [&](std::size_t at) {
        const __m128i a = detail::load(from + at);
        const __m128i b = detail::load(from + at + 16);
        const __m128i c = detail::load(from + at + 32);
        const __m128i d = detail::load(from + at + 48);
        detail::stream(to + at, a);
        detail::stream(to + at + 16, b);
        detail::stream(to + at + 32, c);
        detail::stream(to + at + 48, d);
    };
    detail::by_lines(to, size, line, plain);
    _mm_sfence();
#else
    plain(0, size);
#endif
}

// Copies `size` bytes, past the caches if a copy of `total` bytes, of which these are a part, would
// not stay in them.
inline void copy_part(std::byte* to, const std::byte* from, std::size_t size, std::size_t total) {
    if (total >= kStreamBytes) {
        stream_copy(to, from, size);
    } else if (size > 0) {
        std::memcpy(to, from, size);
    }
}

// to[i] = a[i] - b[i], with the calling thread's rounding and treatment of subnormal numbers. All
// three are aligned to their elements.
template <class T>
void stream_difference(T* to, const T* a, const T* b, std::size_t count) {
    const auto plain = [&](std::size_t begin, std::size_t end) {
        for (std::size_t i = begin / sizeof(T); i < end / sizeof(T); ++i) to[i] = a[i] - b[i];
    };
#if defined(__SSE2__)
    auto* const target = reinterpret_cast<std::byte*>(to);
    const auto* const left = reinterpret_cast<const std::byte*>(a);
    const auto* const right = reinterpret_cast<const std::byte*>(b);
    const auto line = [&](std::size_t at) {
        for (std::size_t part = at; part < at + detail::kLine; part += sizeof(__m128i)) {
            detail::stream(target + part,
                           detail::minus<T>(detail::load(left + part), detail::load(right + part)));
        }
    };
    detail::by_lines(target, count * sizeof(T), line, plain);
    _mm_sfence();
#else
    plain(0, count * sizeof(T));
#endif
}

// copy_part of everything, split over threads.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t size) {
    parallel_for(size, detail::kSplitBytes, 2 * size, [&](std::size_t begin, std::size_t end) {
        copy_part(to + begin, from + begin, end - begin, size);
    });
}

// stream_difference of everything, split over threads that round and flush as the calling one does.
template <class T>
void difference(T* to, const T* a, const T* b, std::size_t count) {
    const FpEnv as_the_caller = FpEnv::of_this_thread();
    parallel_for(count, detail::kSplitBytes / sizeof(T), 3 * count * sizeof(T),
                 [&](std::size_t begin, std::size_t end) {
                     const FpEnvGuard fp_environment(as_the_caller);
                     stream_difference(to + begin, a + begin, b + begin, end - begin);
                 });
}

}  // namespace fedbench
