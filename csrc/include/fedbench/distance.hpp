// Squared Euclidean distances between clients: one in float64 that is the same everywhere, and one
// that is exact.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fedbench/dtype.hpp"
#include "fedbench/exact.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/parallel.hpp"

namespace fedbench {

// The same entry of two clients, any alignment. Without `b` the distance is to the origin.
struct PairSegment {
    const void* a;
    const void* b;
    std::size_t size;
    DType dtype;
};

// Coordinates that are summed in one fixed way, whatever the thread and the instruction set.
inline constexpr std::size_t kDistanceBlock = 4096;

}  // namespace fedbench

#define FEDBENCH_KERNEL_FILE "fedbench/distance.inl"
#include "fedbench/foreach_isa.inl"

namespace fedbench {

// sum (a - b)^2 in float64: in blocks of kDistanceBlock coordinates, each over eight interleaved
// partial sums, the blocks in order. Depends on the two operands and their layout only, and is
// symmetric. Its relative error is below (kDistanceBlock / 8 + number of blocks + 8) 2^-53 unless
// the sum overflows or consists of subnormal squares.
inline double squared_distance(std::span<const PairSegment> segments,
                               IsaLevel level = active_isa()) {
    std::vector<double> sums;
    const auto block_sum = FEDBENCH_DISPATCH(level, squared_distance_block);
    for (const PairSegment& segment : segments) {
        const std::size_t blocks = (segment.size + kDistanceBlock - 1) / kDistanceBlock;
        const std::size_t first = sums.size();
        sums.resize(first + blocks);
        const std::size_t traffic = 2 * segment.size * item_size(segment.dtype);
        parallel_for(blocks, 8, traffic, [&](std::size_t begin, std::size_t end) {
            for (std::size_t block = begin; block < end; ++block) {
                const std::size_t offset = block * kDistanceBlock;
                sums[first + block] =
                    block_sum(segment, offset, std::min(kDistanceBlock, segment.size - offset));
            }
        });
    }
    const FpEnvGuard fp_environment;
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
}

// A non-negative integer times 2^kExactUnit, little-endian.
inline constexpr int kExactUnit = -2148;

// sum (a - b)^2 without any rounding. All values must be finite.
inline std::vector<std::uint64_t> exact_squared_distance(std::span<const PairSegment> segments) {
    const FpEnvGuard fp_environment;
    exact::Sum sum(kExactUnit, 2 * 1025 + 64);
    for (const PairSegment& segment : segments) {
        for (std::size_t i = 0; i < segment.size; ++i) {
            const double a = load_element(segment.dtype, segment.a, i);
            const double b = load_element(segment.dtype, segment.b, i);
            if (a == b) continue;
            const double d = a - b;
            const double z = a - d;
            if (d - d == 0 && (a - (d + z)) + (z - b) == 0) {
                const exact::Dyadic difference = exact::split(d);
                sum.add_product(difference, difference);
                continue;
            }
            const exact::Dyadic x = exact::split(a);
            exact::Dyadic y = exact::split(b);
            sum.add_product(x, x);
            sum.add_product(y, y);
            y.exponent += 1;
            y.negative = !y.negative;
            sum.add_product(x, y);
        }
    }
    return {sum.limbs().begin(), sum.limbs().end()};
}

}  // namespace fedbench
