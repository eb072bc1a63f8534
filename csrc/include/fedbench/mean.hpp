// The correctly rounded weighted mean: per coordinate the real number (sum w_k x_k) / divisor,
// rounded once to the output type (nearest, ties to even).
//
// There is only one right answer, so it depends on no order, partition, thread count or
// instruction set. What follows is how it is found at about the cost of a plain loop.
//
// Notation: u = 2^-53, K clients with positive weights, W the divisor, S = sum w_k x_k exactly,
// B >= sum w_k, and per coordinate m = max |x_k| and n = min |x_k| over the x_k that are not zero.
//
// 1. Types of at most 24 bits (float32, float16, bfloat16) are folded in double: s ~ S. Two cases.
//
//    (a) Weights that can be scaled to integers below 2^29 (WeightPlan::integers). Each product is
//    exact, since 29 + 24 <= 53. Every product, so every partial sum, is a multiple of g, the last
//    place of n as a number of p bits (p = 24, 11 or 8): g >= 2^(floor(log2 n) - p + 1). Every
//    partial sum is at most B m. So if B m < 2^53 g, every partial sum fits a double and s = S, in
//    any order, fused or not. Then q = RN(s / W), and the remainder r = s - q W is a double (the
//    remainder of a correctly rounded division is), so its sign says on which side of q the true
//    quotient lies. q is made "rounded to odd": towards zero, last bit set if inexact. Rounding
//    that to p <= 51 bits is rounding S / W itself, ties and subnormals included. m and n of a
//    whole tile are tried first; for most data they are near enough to each other.
//
//    (b) Otherwise: each of the K steps s += w x errs by at most u |result| for the sum and, if not
//    fused, u |w x| for the product; every partial result is at most (1 + u)^2K B m, so
//    |s - S| <= (2K + 1) u (1 + u)^2K B m unfused and K u (1 + u)^K B m fused. More sharply for the
//    products: sum |w x| <= B m, so they add only u B m, and |s - S| <= (K + 1) u (1 + u)^2K B m.
//    Multiplying s -+ delta by an estimate of 1 / W costs a relative 4u for W, u each for the
//    reciprocal, s -+ delta and the product: at most 8 u B m (1 + tiny) / W. With
//    delta = (K + 12) u B m both rounded ends lie outside the true quotient, for K < 2^26 (then
//    (1 + u)^2K < 1 + 2^-25, and the slack of 3 u B m pays for it). Nothing underflows: scaled
//    weights are at least 2^-200 and inputs at least 2^-149. Rounding is monotone, so where both
//    ends round to the same bits these are the bits of the mean. No assumption on the weights.
//
//    (c) Two float32 rows of equal weights: half of a float of at least 2^-125 is a float, and so
//    is half of zero, so the float addition of the halves is the one rounding of the mean. No mean
//    of finite floats overflows, and sums of multiples of 2^-149 do not underflow. The addition
//    starts from +0, which makes an exact zero +0. One such tile in float takes a third of the
//    arithmetic.
//
// 2. float64, in or out: S is folded as an unevaluated sum h + l (error-free products and sums).
//    The terms of l, rounding errors of h's sums and of the products, are at most u (1 + tiny) B m
//    per step of the sum plus u B m for all products, (K + 1) u B m together; l's own sums err by
//    at most 2 K u times that. So |S - (h + l)| <= 2 (K + 1)^2 u^2 B m (1 + tiny). After
//    renormalising, q1 = RN(h / W), the remainder of h is exact, l joins it, q2 = remainder / W;
//    each further step errs by at most 3 u^2 |S / W|, 16 u^2 B m / W together. With epsilon = (2 (K
//    + 2)^2 + 32) u^2 B m / W the ends q1 + (q2 -+ epsilon), each rounded once, prove float64 bits
//    as above; for narrower outputs epsilon grows by 2 u |q1| so that the ends are true bounds
//    before the second rounding. Ranges in which an error term could underflow or overflow (n <
//    2^-700, m > 2^900) go to 3. Ties are common for equal weights and undecidable by any filter.
//    Where W is a power of two and n >= (K + 2) u B m, all terms of l are multiples of the last
//    place of n (at least n u) and their sums stay below 2^53 of it, so h + l = S exactly and its
//    rounding is the answer.
//
// 3. What remains, non-finite inputs included, is computed in exact integers (exact.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "fedbench/dtype.hpp"
#include "fedbench/exact.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/memory.hpp"
#include "fedbench/parallel.hpp"
#include "fedbench/simd.hpp"
#include "fedbench/weights.hpp"

namespace fedbench {

// Coordinates per tile: their sums (16 KiB) stay in the first-level cache, and the rows are visited
// for long enough that fetching ahead hides the turns from some of them to the next.
inline constexpr std::size_t kMeanTile = 2048;

// The bits of 2^-125, from which on the halves of floats are floats.
inline constexpr std::uint32_t kLeastHalved = 0x01000000U;

// Threads take multiples of this many coordinates.
inline constexpr std::size_t kMeanGrain = 4 * kMeanTile;

// The coordinates of a tile that a filter could not prove.
struct Unproved {
    std::uint16_t index[kMeanTile];
    std::size_t count = 0;

    // Adds `first` plus the number of every set bit of `lanes`, if below `size`.
    void add(unsigned lanes, std::size_t first, std::size_t size) noexcept {
        for (; lanes != 0; lanes &= lanes - 1) {
            const std::size_t at = first + static_cast<std::size_t>(std::countr_zero(lanes));
            if (at < size) index[count++] = static_cast<std::uint16_t>(at);
        }
    }
};

// One entry of a state, or one flat vector: rows[k] are the coordinates of the k-th client of the
// plan (WeightPlan::clients), any alignment. `out` must not overlap them.
struct MeanSegment {
    const void* const* rows;
    std::size_t size;
    DType dtype;
    void* out;
    DType out_dtype;
};

namespace detail {

// The exact path for one coordinate. Returns whether all inputs were finite; if not, the result
// depends on the set of special values only: NaN for a NaN or for both infinities.
inline bool exact_mean_at(const WeightPlan& plan, const MeanSegment& segment,
                          std::size_t index) noexcept {
    const std::size_t clients = plan.weights.size();
    bool nan = false;
    bool infinite[2] = {false, false};
    int lowest = std::numeric_limits<int>::max();
    int highest = std::numeric_limits<int>::min();
    for (std::size_t k = 0; k < clients; ++k) {
        const double x = load_element(segment.dtype, segment.rows[k], index);
        if (!std::isfinite(x)) {
            nan = nan || std::isnan(x);
            infinite[std::signbit(x) ? 1 : 0] = true;
            continue;
        }
        const exact::Dyadic part = exact::split(x);
        if (part.mantissa == 0) continue;
        const int exponent = part.exponent + plan.weights[k].exponent;
        lowest = std::min(lowest, exponent);
        highest = std::max(highest, exponent + 106);
    }
    std::uint64_t bits = 0;
    const bool finite = !nan && !infinite[0] && !infinite[1];
    if (!finite) {
        bits = nan || (infinite[0] && infinite[1])
                   ? exact::nan_bits(segment.out_dtype)
                   : exact::infinity_bits(segment.out_dtype, infinite[1]);
    } else if (lowest <= highest) {
        exact::Sum sum(lowest, highest + 32);
        for (std::size_t k = 0; k < clients; ++k) {
            const exact::Dyadic part =
                exact::split(load_element(segment.dtype, segment.rows[k], index));
            if (part.mantissa != 0) sum.add_product(plan.weights[k], part);
        }
        bits = exact::round_quotient(sum, plan.divisor, segment.out_dtype);
    }
    exact::store_bits(segment.out_dtype, segment.out, index, bits);
    return finite;
}

}  // namespace detail
}  // namespace fedbench

#define FEDBENCH_KERNEL_FILE "fedbench/mean.inl"
#include "fedbench/foreach_isa.inl"

namespace fedbench {

// The mean of every segment. Returns whether all inputs of clients with positive weight were
// finite; otherwise the coordinates concerned hold NaN or an infinity.
inline bool mean(const WeightPlan& plan, std::span<const MeanSegment> segments,
                 IsaLevel level = active_isa()) {
    std::vector<std::size_t> ends;
    std::size_t total = 0;
    std::size_t bytes = 0;
    std::size_t out_bytes = 0;
    for (const MeanSegment& segment : segments) {
        total += segment.size;
        ends.push_back(total);
        out_bytes += segment.size * item_size(segment.out_dtype);
        bytes += segment.size *
                 (plan.clients.size() * item_size(segment.dtype) + item_size(segment.out_dtype));
    }
    const auto range = FEDBENCH_DISPATCH(level, mean_range);
    const bool past_caches = out_bytes >= kStreamBytes;
    std::atomic<bool> finite = true;
    parallel_for(total, kMeanGrain, bytes, [&](std::size_t begin, std::size_t end) {
        auto at = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), begin) -
                                           ends.begin());
        while (begin < end) {
            const MeanSegment& segment = segments[at];
            const std::size_t start = ends[at] - segment.size;
            const std::size_t stop = std::min(end, ends[at]);
            if (!range(plan, segment, begin - start, stop - start, past_caches)) {
                finite.store(false, std::memory_order_relaxed);
            }
            begin = stop;
            ++at;
        }
    });
    return finite.load();
}

}  // namespace fedbench
