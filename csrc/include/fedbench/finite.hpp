// Is everything finite?
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "fedbench/dtype.hpp"
#include "fedbench/exact.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/parallel.hpp"

#define FEDBENCH_KERNEL_FILE "fedbench/finite.inl"
#include "fedbench/foreach_isa.inl"

namespace fedbench {

// Index of the first element that is NaN or infinite. Integers always are finite.
inline std::optional<std::size_t> first_nonfinite(DType dtype, const void* values, std::size_t size,
                                                  IsaLevel level = active_isa()) {
    constexpr std::size_t block = 4096;
    const auto has_nonfinite = FEDBENCH_DISPATCH(level, has_nonfinite);
    std::atomic<std::size_t> first = size;
    parallel_for(size, block, size * item_size(dtype), [&](std::size_t begin, std::size_t end) {
        for (std::size_t b = begin; b < end && b < first.load(std::memory_order_relaxed);
             b += block) {
            const std::size_t stop = std::min(end, b + block);
            if (!has_nonfinite(dtype, values, b, stop)) continue;
            std::size_t at = b;
            while (!has_nonfinite(dtype, values, at, at + 1)) ++at;
            std::size_t seen = first.load(std::memory_order_relaxed);
            while (at < seen && !first.compare_exchange_weak(seen, at)) {
            }
            return;
        }
    });
    if (first.load() == size) return std::nullopt;
    return first.load();
}

}  // namespace fedbench
