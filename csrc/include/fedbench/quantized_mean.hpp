// The correctly rounded mean of 8-bit rows with real coefficients, in float32.
//
// The rows of mean.hpp with a bound that needs no look at the values: |q_k| <= 128. With the
// notation and the proof of its case (b), m = 128 everywhere, so delta = (K + 12) u B 128 is one
// number, and sums that both of (s -+ delta) / W round alike are proved. A coordinate where every
// q_k is zero is +0. What remains is summed in integers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "fedbench/mean.hpp"

namespace fedbench {

// What every coordinate shares.
struct QuantizedBounds {
    double delta;
    double reciprocal;
};

}  // namespace fedbench

#define FEDBENCH_KERNEL_FILE "fedbench/quantized_mean.inl"
#include "fedbench/foreach_isa.inl"

namespace fedbench {

// The mean of int8 rows (rows[k] belongs to the k-th client of the plan), any alignment, into
// `size` floats.
inline void quantized_mean(const WeightPlan& plan, const void* const* rows, std::size_t size,
                           void* out, IsaLevel level = active_isa()) {
    const MeanSegment segment{rows, size, DType::int8, out, DType::float32};
    const QuantizedBounds bounds{
        (static_cast<double>(plan.scaled.size()) + 12.0) * 0x1p-53 * plan.scaled_sum * 128.0,
        1.0 / plan.scaled_divisor};
    const auto range = FEDBENCH_DISPATCH(level, quantized_range);
    const std::size_t traffic = size * (plan.clients.size() + 4);
    const bool stream =
        reinterpret_cast<std::size_t>(out) % 64 == 0 && size * sizeof(float) >= kStreamBytes;
    parallel_for(size, kMeanGrain, traffic, [&](std::size_t begin, std::size_t end) {
        range(plan, segment, bounds, begin, end, stream);
    });
}

}  // namespace fedbench
