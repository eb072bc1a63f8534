// Included by simd.hpp once per instruction set. The compilers' vector extension does most of it;
// what it lacks (fused multiply-add, float16, masks) is spelled out per level.

namespace fedbench::FEDBENCH_ISA {

#if FEDBENCH_ISA_LEVEL == 2
inline constexpr std::size_t kLanes = 8;
#elif FEDBENCH_ISA_LEVEL == 1
inline constexpr std::size_t kLanes = 4;
#else
inline constexpr std::size_t kLanes = 2;
#endif

// kLanes elements each.
typedef double f64v __attribute__((vector_size(kLanes * 8)));
typedef std::int64_t i64v __attribute__((vector_size(kLanes * 8)));
typedef std::uint64_t u64v __attribute__((vector_size(kLanes * 8)));
typedef float f32h __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t i32h __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t u32h __attribute__((vector_size(kLanes * 4)));
typedef std::uint16_t u16h __attribute__((vector_size(kLanes * 2)));

#if FEDBENCH_ISA_LEVEL == 2
// Half of the doubles that a register holds, for processors that widens_in_parts() tells.
typedef double f64s __attribute__((vector_size(32)));
#endif

// As many elements as a register of the level holds.
inline constexpr std::size_t kVectorBytes = kLanes * 8;
template <class Element>
struct Full {
    typedef Element type __attribute__((vector_size(kVectorBytes)));
};

template <class To, class From>
FEDBENCH_INLINE To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

template <class Vector>
FEDBENCH_INLINE Vector load(const void* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class Vector>
FEDBENCH_INLINE void store(void* to, Vector value) {
    std::memcpy(to, &value, sizeof value);
}

FEDBENCH_INLINE f64v splat(double value) {
    return f64v{} + value;
}
FEDBENCH_INLINE i64v splat(std::int64_t value) {
    return i64v{} + value;
}

// a * b + c: fused where the level has it, two roundings in portable code.
FEDBENCH_INLINE f64v multiply_add(f64v a, f64v b, f64v c) {
#if FEDBENCH_ISA_LEVEL == 2
    return _mm512_fmadd_pd(a, b, c);
#elif FEDBENCH_ISA_LEVEL == 1
    return _mm256_fmadd_pd(a, b, c);
#else
    return a * b + c;
#endif
}

#if FEDBENCH_ISA_LEVEL == 2
FEDBENCH_INLINE f64s multiply_add(f64s a, f64s b, f64s c) {
    return _mm256_fmadd_pd(a, b, c);
}
#endif

// The rounding error of p = a * b, exactly, if neither p nor the error is out of range.
FEDBENCH_INLINE f64v product_error(f64v a, f64v b, f64v p) {
#if FEDBENCH_ISA_LEVEL == 2
    return _mm512_fmsub_pd(a, b, p);
#elif FEDBENCH_ISA_LEVEL == 1
    return _mm256_fmsub_pd(a, b, p);
#else
    // Dekker's product on Veltkamp's halves.
    const f64v ca = a * 0x1.0000002p27;
    const f64v cb = b * 0x1.0000002p27;
    const f64v ah = ca - (ca - a);
    const f64v bh = cb - (cb - b);
    const f64v al = a - ah;
    const f64v bl = b - bh;
    return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
}

FEDBENCH_INLINE f64v abs(f64v a) {
    return bits_as<f64v>(bits_as<u64v>(a) & (u64v{} + 0x7fffffffffffffffULL));
}

// One bit per lane of a comparison's result.
FEDBENCH_INLINE unsigned mask_bits(i64v comparison) {
#if FEDBENCH_ISA_LEVEL == 2
    return static_cast<unsigned>(_mm512_movepi64_mask(bits_as<__m512i>(comparison)));
#elif FEDBENCH_ISA_LEVEL == 1
    return static_cast<unsigned>(_mm256_movemask_pd(bits_as<__m256d>(comparison)));
#else
    return (comparison[0] != 0 ? 1U : 0U) | (comparison[1] != 0 ? 2U : 0U);
#endif
}

inline constexpr unsigned kAllLanes = (1U << kLanes) - 1;

// Conversions between the widths. GCC 12 splits __builtin_convertvector into pieces of 128 bits and
// carries them through memory, so each level names its instruction.
#if FEDBENCH_ISA_LEVEL == 2
FEDBENCH_INLINE f64v widen(f32h value) {
    return _mm512_cvtps_pd(value);
}
FEDBENCH_INLINE f32h narrow(f64v value) {
    return _mm512_cvtpd_ps(value);
}
FEDBENCH_INLINE i64v widen_mask(i32h value) {
    return bits_as<i64v>(_mm512_cvtepi32_epi64(bits_as<__m256i>(value)));
}
FEDBENCH_INLINE i32h narrow_mask(i64v value) {
    return bits_as<i32h>(_mm512_cvtepi64_epi32(bits_as<__m512i>(value)));
}
FEDBENCH_INLINE u32h load_u16(const void* from) {
    return bits_as<u32h>(_mm256_cvtepu16_epi32(load<__m128i>(from)));
}
FEDBENCH_INLINE i32h load_i8(const void* from) {
    return bits_as<i32h>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
}
FEDBENCH_INLINE f32h to_floats(i32h value) {
    return _mm256_cvtepi32_ps(bits_as<__m256i>(value));
}
FEDBENCH_INLINE void store_u16(void* to, u32h value) {
    store(to, _mm256_cvtepi32_epi16(bits_as<__m256i>(value)));
}
FEDBENCH_INLINE void stream_store(void* to, u32h value) {
    _mm256_stream_si256(static_cast<__m256i*>(to), bits_as<__m256i>(value));
}
FEDBENCH_INLINE void stream_store(void* to, Full<std::uint32_t>::type value) {
    _mm512_stream_si512(static_cast<__m512i*>(to), bits_as<__m512i>(value));
}
#elif FEDBENCH_ISA_LEVEL == 1
FEDBENCH_INLINE f64v widen(f32h value) {
    return _mm256_cvtps_pd(value);
}
FEDBENCH_INLINE f32h narrow(f64v value) {
    return _mm256_cvtpd_ps(value);
}
FEDBENCH_INLINE i64v widen_mask(i32h value) {
    return bits_as<i64v>(_mm256_cvtepi32_epi64(bits_as<__m128i>(value)));
}
FEDBENCH_INLINE i32h narrow_mask(i64v value) {
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    return bits_as<i32h>(
        _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bits_as<__m256i>(value), even)));
}
FEDBENCH_INLINE u32h load_u16(const void* from) {
    return bits_as<u32h>(_mm_cvtepu16_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(from))));
}
FEDBENCH_INLINE i32h load_i8(const void* from) {
    return bits_as<i32h>(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(load<int>(from))));
}
FEDBENCH_INLINE f32h to_floats(i32h value) {
    return _mm_cvtepi32_ps(bits_as<__m128i>(value));
}
FEDBENCH_INLINE void store_u16(void* to, u32h value) {
    const __m128i bits = bits_as<__m128i>(value);
    _mm_storel_epi64(static_cast<__m128i*>(to), _mm_packus_epi32(bits, bits));
}
FEDBENCH_INLINE void stream_store(void* to, u32h value) {
    _mm_stream_si128(static_cast<__m128i*>(to), bits_as<__m128i>(value));
}
FEDBENCH_INLINE void stream_store(void* to, Full<std::uint32_t>::type value) {
    _mm256_stream_si256(static_cast<__m256i*>(to), bits_as<__m256i>(value));
}
#else
FEDBENCH_INLINE f64v widen(f32h value) {
    return __builtin_convertvector(value, f64v);
}
FEDBENCH_INLINE f32h narrow(f64v value) {
    return __builtin_convertvector(value, f32h);
}
FEDBENCH_INLINE i64v widen_mask(i32h value) {
    return __builtin_convertvector(value, i64v);
}
FEDBENCH_INLINE i32h narrow_mask(i64v value) {
    return __builtin_convertvector(value, i32h);
}
FEDBENCH_INLINE u32h load_u16(const void* from) {
    return __builtin_convertvector(load<u16h>(from), u32h);
}
FEDBENCH_INLINE i32h load_i8(const void* from) {
    return i32h{load_unaligned<std::int8_t>(from, 0), load_unaligned<std::int8_t>(from, 1)};
}
FEDBENCH_INLINE f32h to_floats(i32h value) {
    return __builtin_convertvector(value, f32h);
}
FEDBENCH_INLINE void store_u16(void* to, u32h value) {
    store(to, __builtin_convertvector(value, u16h));
}
#endif

// kLanes elements of a buffer as floats, exactly. Tags say the element type; `Doubles` is the
// vector in which its elements are best summed, `Word` a signed integer of its size.
struct Float32 {
    static constexpr DType dtype = DType::float32;
    typedef f64v Doubles;
    typedef std::int32_t Word;
    static FEDBENCH_INLINE f32h load_floats(const std::byte* from) { return load<f32h>(from); }
};

#if FEDBENCH_ISA_LEVEL == 2
struct Float32Halves : Float32 {
    typedef f64s Doubles;
};
#endif

struct BFloat16 {
    static constexpr DType dtype = DType::bfloat16;
    typedef f64v Doubles;
    typedef std::int16_t Word;
    static FEDBENCH_INLINE f32h load_floats(const std::byte* from) {
        return bits_as<f32h>(load_u16(from) << 16);
    }
};

struct Float16 {
    static constexpr DType dtype = DType::float16;
    typedef f64v Doubles;
    typedef std::int16_t Word;
    static FEDBENCH_INLINE f32h load_floats(const std::byte* from) {
#if FEDBENCH_ISA_LEVEL == 2
        return _mm256_cvtph_ps(load<__m128i>(from));
#elif FEDBENCH_ISA_LEVEL == 1
        return _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
        const u32h half = load_u16(from);
        const u32h magnitude = half & 0x7fffU;
        const u32h finite = bits_as<u32h>(bits_as<f32h>(magnitude << 13) * 0x1p112F);
        const u32h special = 0x7f800000U | ((magnitude & 0x3ffU) << 13);
        const u32h is_special = bits_as<u32h>(magnitude >= 0x7c00U);
        return bits_as<f32h>((is_special & special) | (~is_special & finite) |
                             ((half & 0x8000U) << 16));
#endif
    }
};

struct Int8 {
    static constexpr DType dtype = DType::int8;
    typedef f64v Doubles;
    typedef std::int8_t Word;
    static FEDBENCH_INLINE f32h load_floats(const std::byte* from) {
        return to_floats(load_i8(from));
    }
};

struct Float64 {
    static constexpr DType dtype = DType::float64;
};

// kLanes elements of a buffer as doubles, exactly.
template <class Type>
FEDBENCH_INLINE f64v load_doubles(const std::byte* from) {
    if constexpr (Type::dtype == DType::float64) {
        return load<f64v>(from);
    } else {
        return widen(Type::load_floats(from));
    }
}

// A `Doubles` of elements, exactly.
template <class Type>
FEDBENCH_INLINE typename Type::Doubles load_summands(const std::byte* from) {
#if FEDBENCH_ISA_LEVEL == 2
    if constexpr (std::is_same_v<Type, Float32Halves>) {
        return _mm256_cvtps_pd(load<__m128>(from));
    } else
#endif
        return load_doubles<Type>(from);
}

}  // namespace fedbench::FEDBENCH_ISA
