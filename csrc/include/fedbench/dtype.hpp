// The element types that kernels read and write, and their exact conversion, one element at a time.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fedbench {

// The numbers are part of the interface to Python (fedbench/aggregation/_arrays.py).
enum class DType : int { float32 = 0, float64 = 1, float16 = 2, bfloat16 = 3, int8 = 4 };

inline constexpr int kFloatingDTypes = 4;

constexpr std::size_t item_size(DType dtype) noexcept {
    switch (dtype) {
        case DType::float32:
            return 4;
        case DType::float64:
            return 8;
        case DType::float16:
        case DType::bfloat16:
            return 2;
        case DType::int8:
            return 1;
    }
    return 0;
}

// Significant bits, the hidden one included.
constexpr int significand_bits(DType dtype) noexcept {
    switch (dtype) {
        case DType::float32:
            return 24;
        case DType::float64:
            return 53;
        case DType::float16:
            return 11;
        case DType::bfloat16:
            return 8;
        case DType::int8:
            return 8;
    }
    return 0;
}

// The value of a float16, exactly.
inline float float16_to_float(std::uint16_t half) noexcept {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
    const std::uint32_t magnitude = half & 0x7fffU;
    if (magnitude >= 0x7c00U) {
        return std::bit_cast<float>(sign | 0x7f800000U | ((magnitude & 0x3ffU) << 13));
    }
    // As a float's bits, the magnitude is 2^-112 times the value: also for subnormals.
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

// The float16 nearest to a float given by its bits, ties to even.
inline std::uint16_t float_bits_to_float16(std::uint32_t bits) noexcept {
    const std::uint32_t sign = (bits >> 16) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7fffffffU;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000U) {
        half = 0x7e00U;
    } else if (magnitude >= 0x47800000U) {  // 2^16 and more
        half = 0x7c00U;
    } else if (magnitude >= 0x38800000U) {  // normal in float16: rebias, round at bit 13
        half = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    } else {  // adding 0.5 leaves the multiple of 2^-24 in the last bits
        const float rounded = std::bit_cast<float>(magnitude) + 0.5F;
        half = std::bit_cast<std::uint32_t>(rounded) - 0x3f000000U;
    }
    return static_cast<std::uint16_t>(sign | half);
}

inline float bfloat16_to_float(std::uint16_t bits) noexcept {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <class T>
T load_unaligned(const void* base, std::size_t index) noexcept {
    T value;
    std::memcpy(&value, static_cast<const std::byte*>(base) + index * sizeof(T), sizeof(T));
    return value;
}

template <class T>
void store_unaligned(void* base, std::size_t index, T value) noexcept {
    std::memcpy(static_cast<std::byte*>(base) + index * sizeof(T), &value, sizeof(T));
}

// Element `index` of a buffer, exactly.
inline double load_element(DType dtype, const void* base, std::size_t index) noexcept {
    switch (dtype) {
        case DType::float32:
            return static_cast<double>(load_unaligned<float>(base, index));
        case DType::float64:
            return load_unaligned<double>(base, index);
        case DType::float16:
            return static_cast<double>(
                float16_to_float(load_unaligned<std::uint16_t>(base, index)));
        case DType::bfloat16:
            return static_cast<double>(
                bfloat16_to_float(load_unaligned<std::uint16_t>(base, index)));
        case DType::int8:
            return static_cast<double>(load_unaligned<std::int8_t>(base, index));
    }
    return 0.0;
}

}  // namespace fedbench
