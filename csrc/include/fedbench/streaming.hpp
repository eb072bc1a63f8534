// The exact weighted sum of a stream of updates, and its correctly rounded quotient.
//
// The state is the exact real number sum w_k x_k per coordinate, so it depends on no order,
// partition, merge tree or thread count, and rounds to the same bits as mean.hpp.
//
// Representation: a fixed global grid of bins, bin i counting multiples of 2^(44 i - 12) in an
// int64. Coordinates are grouped in blocks of 512; a block keeps a contiguous window of bins that
// a scan of the incoming data widens when needed: 2 bins, 16 bytes per coordinate, on ordinary
// float32 data with integer weights; more only where the data's range asks for it.
//
// Deposit: products are made exact by splitting. A weight is the sum of two parts of at most 26
// bits (one part below 2^29 if it is such an integer), a float64 input likewise, so every partial
// product has at most 53 bits. With the constant M = 1.5 * 2^52 g, t = p + M rounds p to a multiple
// of g = 2^(44 i - 12), and bits(t) - bits(M) is that multiple as an integer: at most 2^43, because
// the window starts high enough. p - (t - M) is exact and goes to the next bin. Integer additions
// commute, and nothing is ever rounded away: the window ends below the last bit of every product.
//
// Capacity: a deposit adds at most 2^44 to a bin, so 2^17 deposits are safe before carries are
// resolved, and merging two states stays below 2^62. Resolving keeps the value; the number of
// updates is limited by nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

#include "fedbench/exact.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/mean.hpp"
#include "fedbench/memory.hpp"
#include "fedbench/parallel.hpp"
#include "fedbench/simd.hpp"
#include "fedbench/weights.hpp"

namespace fedbench {

inline constexpr std::size_t kBlock = 512;
inline constexpr int kBinBits = 44;
inline constexpr int kBinOffset = 12;
// Bins whose constants and products are far from overflow and underflow in double arithmetic.
inline constexpr int kMinFastBin = -20;
inline constexpr int kMaxFastBin = 20;

constexpr int bin_exponent(int bin) noexcept {
    return kBinBits * bin - kBinOffset;
}

constexpr int floor_div(int a, int b) noexcept {
    return a >= 0 ? a / b : -((b - 1 - a) / b);
}

// The bin that holds bits of weight 2^exponent.
constexpr int bin_of(int exponent) noexcept {
    return floor_div(exponent + kBinOffset, kBinBits);
}

// The lowest top bin in which a number below 2^exponent is at most 2^43 units.
constexpr int top_bin_of(int exponent) noexcept {
    return floor_div(exponent + kBinOffset - (kBinBits - 1) + kBinBits - 1, kBinBits);
}

// One block's bins, lowest first, each `stride` coordinates long.
struct BinBlock {
    std::int64_t* bins = nullptr;
    int lowest = 0;
    int count = 0;
    std::size_t stride = 0;
};

// A weight in parts whose products with 26 significant bits are exact in double.
struct SplitWeight {
    double part[2] = {0.0, 0.0};
    int parts = 0;
    int highest = 0;  // |weight| < 2^highest
    int lowest = 0;   // a multiple of 2^lowest
    bool fast = false;
};

inline SplitWeight split_weight(double weight, DType dtype) noexcept {
    SplitWeight result;
    const exact::Dyadic whole = exact::split(weight);
    const int zeros = std::countr_zero(whole.mantissa);
    result.lowest = whole.exponent + zeros;
    result.highest = whole.exponent + 64 - std::countl_zero(whole.mantissa);
    const int room = dtype == DType::float64 ? 26 : 29;
    if (result.highest - result.lowest <= room) {
        result.part[0] = weight;
        result.parts = 1;
    } else {
        const int cut = whole.exponent + 27;
        result.part[0] = std::ldexp(std::floor(std::ldexp(weight, -cut)), cut);
        result.part[1] = weight - result.part[0];
        result.parts = 2;
        // The upper part has 26 bits; so has the lower one after rounding the cut to nearest.
        if (result.part[1] >= std::ldexp(1.0, cut - 1)) {
            result.part[0] += std::ldexp(1.0, cut);
            result.part[1] = weight - result.part[0];
        }
    }
    result.fast = result.lowest > -800 && result.highest < 800;
    return result;
}

// What a scan of one block of one update finds.
struct BlockRange {
    int highest = 0;  // |x| < 2^highest
    int lowest = 0;   // all x are multiples of 2^lowest
    bool zero = true;
    bool finite = true;
};

namespace detail {

// Adds mantissa * 2^exponent to coordinate `at` of a block whose window is wide enough.
inline void deposit_integer(const BinBlock& block, std::size_t at, exact::uint128 mantissa,
                            int exponent, bool negative) noexcept {
    int bin = bin_of(exponent);
    auto shift = static_cast<unsigned>(exponent - bin_exponent(bin));
    while (mantissa != 0) {
        // The bits of the mantissa that fall into this bin, above `shift` empty ones.
        const unsigned take = static_cast<unsigned>(kBinBits) - shift;
        const auto low = static_cast<std::int64_t>(
            (static_cast<std::uint64_t>(mantissa) & ((std::uint64_t{1} << take) - 1)) << shift);
        std::int64_t& target =
            block.bins[static_cast<std::size_t>(bin - block.lowest) * block.stride + at];
        target += negative ? -low : low;
        mantissa >>= take;
        shift = 0;
        ++bin;
    }
}

}  // namespace detail
}  // namespace fedbench

#define FEDBENCH_KERNEL_FILE "fedbench/streaming.inl"
#include "fedbench/foreach_isa.inl"
