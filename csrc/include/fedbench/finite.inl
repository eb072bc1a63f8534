// Included by finite.hpp once per instruction set. Plain loops that the compiler vectorises.

namespace fedbench::FEDBENCH_ISA {

template <class Bits>
inline bool any_special(const void* values, std::size_t begin, std::size_t end, Bits exponent) {
    Bits special = 0;
    for (std::size_t i = begin; i < end; ++i) {
        const Bits bits = load_unaligned<Bits>(values, i);
        special = static_cast<Bits>(special | ((bits & exponent) == exponent ? 1 : 0));
    }
    return special != 0;
}

inline bool has_nonfinite(DType dtype, const void* values, std::size_t begin, std::size_t end) {
    const auto exponent = exact::infinity_bits(dtype, false);
    switch (dtype) {
        case DType::float32:
            return any_special(values, begin, end, static_cast<std::uint32_t>(exponent));
        case DType::float64:
            return any_special(values, begin, end, static_cast<std::uint64_t>(exponent));
        case DType::float16:
        case DType::bfloat16:
            return any_special(values, begin, end, static_cast<std::uint16_t>(exponent));
        case DType::int8:
            return false;
    }
    return false;
}

}  // namespace fedbench::FEDBENCH_ISA
