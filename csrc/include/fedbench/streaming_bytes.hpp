// The state of a streaming mean as bytes, and back. Part of streaming_state.hpp.
#pragma once

#include <span>
#include <stdexcept>
#include <vector>

#include "fedbench/streaming_state.hpp"

namespace fedbench {

namespace detail {

inline void append_bytes(std::vector<std::byte>& bytes, const void* from, std::size_t size) {
    const std::size_t end = bytes.size();
    bytes.resize(end + size);
    std::memcpy(bytes.data() + end, from, size);
}

template <class T>
void append(std::vector<std::byte>& bytes, const T& value) {
    append_bytes(bytes, &value, sizeof value);
}

// Reads from the front and throws at the end of the bytes.
template <class T>
T take(std::span<const std::byte>& bytes) {
    if (bytes.size() < sizeof(T)) throw std::invalid_argument("state is truncated");
    T value;
    std::memcpy(&value, bytes.data(), sizeof value);
    bytes = bytes.subspan(sizeof value);
    return value;
}

}  // namespace detail

// Layout (native byte order): version, count, limbs of the weight sum; per block the lowest bin,
// the number of bins, a byte that says whether flags follow, the bins, the flags.
inline std::vector<std::byte> StreamingSum::serialize() {
    resolve();
    std::vector<std::byte> bytes;
    detail::append(bytes, std::uint32_t{1});
    detail::append(bytes, count_);
    for (const std::uint64_t limb : weight_sum_.limbs()) detail::append(bytes, limb);
    for (const Block& block : blocks_) {
        const auto empty = [&](int f) {
            const std::int64_t* bins =
                block.window.bins + static_cast<std::size_t>(f) * block.window.stride;
            return std::all_of(bins, bins + block.size, [](std::int64_t v) { return v == 0; });
        };
        int first = 0;
        int last = block.window.count;
        while (last > first && empty(last - 1)) --last;
        while (first < last && empty(first)) ++first;
        const bool special = block.special != nullptr;
        detail::append(bytes, std::int32_t{first < last ? block.window.lowest + first : 0});
        detail::append(bytes, std::int32_t{last - first});
        detail::append(bytes, static_cast<std::uint8_t>(special ? 1 : 0));
        for (int f = first; f < last; ++f) {
            detail::append_bytes(
                bytes, block.window.bins + static_cast<std::size_t>(f) * block.window.stride,
                block.size * sizeof(std::int64_t));
        }
        if (special) {
            detail::append_bytes(bytes, block.special.get(), block.size);
        }
    }
    return bytes;
}

// Only for a fresh object of the same segments.
inline void StreamingSum::deserialize(std::span<const std::byte> bytes) {
    if (detail::take<std::uint32_t>(bytes) != 1) {
        throw std::invalid_argument("state is of another version");
    }
    count_ = detail::take<std::uint64_t>(bytes);
    for (std::size_t i = 0; i < weight_sum_.limbs().size(); ++i) {
        weight_sum_.add(detail::take<std::uint64_t>(bytes),
                        weight_sum_.exponent() + static_cast<int>(64 * i), false);
    }
    if ((weight_sum_.limbs().back() >> 63) != 0) throw std::invalid_argument("state is corrupt");
    // Beyond these lies no bin of a product of two doubles.
    constexpr int lowest_bin = -50;
    constexpr int highest_bin = 48;
    constexpr std::int64_t largest = std::int64_t{1} << (kBinBits - 1);
    for (Block& block : blocks_) {
        const auto lowest = detail::take<std::int32_t>(bytes);
        const auto bins = detail::take<std::int32_t>(bytes);
        const bool special = detail::take<std::uint8_t>(bytes) != 0;
        if (bins < 0 || lowest < lowest_bin || lowest > highest_bin ||
            bins > highest_bin + 1 - lowest) {
            throw std::invalid_argument("state is corrupt");
        }
        if (bins > 0) widen(block, lowest, lowest + bins - 1);
        for (int f = 0; f < bins; ++f) {
            for (std::size_t i = 0; i < block.size; ++i) {
                const auto bin = detail::take<std::int64_t>(bytes);
                if (bin < -largest || bin > largest) {
                    throw std::invalid_argument("state is corrupt");
                }
                block.window.bins[static_cast<std::size_t>(f) * block.window.stride + i] = bin;
            }
        }
        if (special) {
            block.special = std::make_unique<std::uint8_t[]>(block.size);
            for (std::size_t i = 0; i < block.size; ++i) {
                block.special[i] = detail::take<std::uint8_t>(bytes) &
                                   static_cast<std::uint8_t>(kNan | kPositive | kNegative);
            }
        }
    }
    if (!bytes.empty()) throw std::invalid_argument("state is too long");
    pending_ = 1;
}

}  // namespace fedbench
