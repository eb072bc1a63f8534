// Included by quantized_mean.hpp once per instruction set.

namespace fedbench::FEDBENCH_ISA {

// Coordinates per step.
inline constexpr std::size_t kByteStep = 4 * kLanes;

FEDBENCH_INLINE f64v bytes_to_doubles(const std::byte* from) {
#if FEDBENCH_ISA_LEVEL == 2
    const __m128i bytes = _mm_cvtsi64_si128(load<std::int64_t>(from));
    return _mm512_maskz_cvtepi32_pd(0xff, _mm256_cvtepi8_epi32(bytes));
#elif FEDBENCH_ISA_LEVEL == 1
    return _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(load<std::int32_t>(from))));
#else
    typedef std::int8_t i8h __attribute__((vector_size(kLanes)));
    const i32h wide = __builtin_convertvector(load<i8h>(from), i32h);
    return __builtin_convertvector(wide, f64v);
#endif
}

// kByteStep coordinates of all rows; returns the lanes that the bound could not decide.
FEDBENCH_INLINE unsigned quantized_step(const WeightPlan& plan, const void* const* rows,
                                        std::size_t at, const QuantizedBounds& bounds, float* out) {
    typedef std::uint8_t bytes __attribute__((vector_size(kByteStep)));
    bytes any = {};
    // Four variables: an array would be stored in every turn.
    f64v a = {}, b = {}, c = {}, d = {};
    for (std::size_t k = 0; k < plan.scaled.size(); ++k) {
        const auto* from = static_cast<const std::byte*>(rows[k]) + at;
        const f64v coefficient = splat(plan.scaled[k]);
        any |= load<bytes>(from);
        a = multiply_add(coefficient, bytes_to_doubles(from), a);
        b = multiply_add(coefficient, bytes_to_doubles(from + kLanes), b);
        c = multiply_add(coefficient, bytes_to_doubles(from + 2 * kLanes), c);
        d = multiply_add(coefficient, bytes_to_doubles(from + 3 * kLanes), d);
    }
    const f64v sums[4] = {a, b, c, d};
    const f64v reciprocal = splat(bounds.reciprocal);
    const f64v delta = splat(bounds.delta * bounds.reciprocal);
    unsigned undecided = 0;
#pragma GCC unroll 4
    for (std::size_t part = 0; part < 4; ++part) {
        const f32h low = narrow(multiply_add(sums[part], reciprocal, -delta));
        const f32h high = narrow(multiply_add(sums[part], reciprocal, delta));
        store(out + part * kLanes, low);
        const i32h differ = bits_as<u32h>(low) != bits_as<u32h>(high);
        undecided |= mask_bits(widen_mask(differ)) << part * kLanes;
    }
    if (undecided == 0) return 0;
    std::uint8_t nonzero[kByteStep];
    store(nonzero, any);
    for (unsigned rest = undecided; rest != 0; rest &= rest - 1) {
        const auto i = static_cast<std::size_t>(std::countr_zero(rest));
        if (nonzero[i] != 0) continue;
        out[i] = 0.0F;
        undecided &= ~(1U << i);
    }
    return undecided;
}

// `stream`: past the caches; the results start at a cache line then.
inline void quantized_range(const WeightPlan& plan, const MeanSegment& segment,
                            const QuantizedBounds& bounds, std::size_t begin, std::size_t end,
                            [[maybe_unused]] bool stream) {
    constexpr std::size_t ahead = 512;
    std::vector<std::byte> padded(plan.scaled.size() * kByteStep);
    std::vector<const void*> copies;
    for (std::size_t k = 0; k < plan.scaled.size(); ++k) {
        copies.push_back(padded.data() + k * kByteStep);
    }
    float result[kByteStep];
    for (std::size_t i = begin; i < end; i += kByteStep) {
        const std::size_t count = std::min(kByteStep, end - i);
        unsigned undecided = 0;
        if (count == kByteStep) {
            if (i % 64 < kByteStep) {
                for (std::size_t k = 0; k < plan.scaled.size(); ++k) {
                    __builtin_prefetch(static_cast<const std::byte*>(segment.rows[k]) + i + ahead);
                }
            }
            undecided = quantized_step(plan, segment.rows, i, bounds, result);
        } else {
            for (std::size_t k = 0; k < plan.scaled.size(); ++k) {
                std::memcpy(padded.data() + k * kByteStep,
                            static_cast<const std::byte*>(segment.rows[k]) + i, count);
            }
            undecided = quantized_step(plan, copies.data(), 0, bounds, result);
        }
        std::byte* out = static_cast<std::byte*>(segment.out) + i * sizeof(float);
        std::size_t streamed = 0;
#if FEDBENCH_ISA_LEVEL > 0
        if (stream && count == kByteStep) {
            for (; streamed < kByteStep; streamed += kLanes) {
                stream_store(out + streamed * sizeof(float), load<u32h>(result + streamed));
            }
        }
#endif
        std::memcpy(out + streamed * sizeof(float), result + streamed,
                    (count - streamed) * sizeof(float));
        if (plan.exact_only) undecided = ~0U;
        for (std::size_t lane = 0; undecided != 0 && lane < count; ++lane) {
            if ((undecided >> lane & 1U) != 0) {
                fedbench::detail::exact_mean_at(plan, segment, i + lane);
            }
        }
    }
#if FEDBENCH_ISA_LEVEL > 0
    _mm_sfence();  // streamed results are visible to whoever reads them next
#endif
}

}  // namespace fedbench::FEDBENCH_ISA
