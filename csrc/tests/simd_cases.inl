// Included by test_simd.cpp once per instruction set.

namespace fedbench::FEDBENCH_ISA {

inline bool same_float(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
           (std::isnan(a) && std::isnan(b));
}

// All 65,536 patterns of both 16-bit types, at an odd address.
inline bool sixteen_bit_loads_agree() {
    for (std::uint32_t first = 0; first < 65536; first += kLanes) {
        std::array<std::byte, 2 * kLanes + 1> bytes{};
        for (std::size_t i = 0; i < kLanes; ++i) {
            const auto bits = static_cast<std::uint16_t>(first + i);
            store_unaligned(bytes.data() + 1, i, bits);
        }
        const f32h half = Float16::load_floats(bytes.data() + 1);
        const f32h brain = BFloat16::load_floats(bytes.data() + 1);
        for (std::size_t i = 0; i < kLanes; ++i) {
            const auto bits = static_cast<std::uint16_t>(first + i);
            if (!same_float(half[i], float16_to_float(bits))) return false;
            if (!same_float(brain[i], bfloat16_to_float(bits))) return false;
        }
    }
    return true;
}

inline bool byte_loads_agree() {
    for (int value = -128; value < 128; ++value) {
        std::array<std::byte, kLanes> bytes{};
        bytes.fill(static_cast<std::byte>(value));
        const f32h floats = Int8::load_floats(bytes.data());
        for (std::size_t i = 0; i < kLanes; ++i) {
            if (!same_float(floats[i], static_cast<float>(value))) return false;
        }
    }
    return true;
}

inline bool product_errors_agree() {
    std::uint64_t state = 1;
    for (int repeat = 0; repeat < 20000; ++repeat) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const double a = static_cast<double>(state >> 11) * 0x1p-40 - 1000.0;
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        const double b = static_cast<double>(state >> 11) * 0x1p-50 - 7.0;
        const f64v error = product_error(splat(a), splat(b), splat(a * b));
        if (error[kLanes - 1] != std::fma(a, b, -(a * b))) return false;
    }
    return true;
}

inline bool masks_agree() {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        f64v value = splat(0.0);
        value[lane] = 1.0;
        if (mask_bits(value > 0.5) != 1U << lane) return false;
    }
    return mask_bits(splat(1.0) > splat(0.5)) == kAllLanes;
}

}  // namespace fedbench::FEDBENCH_ISA
