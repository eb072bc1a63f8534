// The mean of two float32 rows of equal weights, the part of mean.inl that computes in float; see
// foreach_isa.inl. Case (c) in mean.hpp proves it.

namespace fedbench::FEDBENCH_ISA {

// How far ahead of its use a row is fetched, in bytes, into the second-level cache: the hardware
// follows so many streams only part of the way.
inline constexpr std::size_t kPrefetch = 2048;

// Whether a segment is the mean of two float32 rows of equal weights.
inline bool is_mean_of_two(const WeightPlan& plan, const MeanSegment& segment) {
    return plan.integers && plan.scaled.size() == 2 && plan.scaled[0] == plan.scaled[1] &&
           plan.scaled_divisor == plan.scaled_sum && segment.dtype == DType::float32 &&
           segment.out_dtype == DType::float32;
}

typedef Full<float>::type Floats;
typedef Full<std::uint32_t>::type Words;

// Half of `x`; takes note of the bits of |x|, and of those less 1, so that zeros do not count.
FEDBENCH_INLINE Floats half_of(Floats x, Words& largest, Words& smallest) {
    const Words bits = bits_as<Words>(x) & 0x7fffffffU;
    largest = largest > bits ? largest : bits;
    smallest = smallest < bits - 1U ? smallest : bits - 1U;
    return x * 0.5F;
}

// One tile of the mean of two. Returns whether it is proved; if not, it is to be written anew.
inline bool mean_of_two_tile(const MeanSegment& segment, std::size_t offset, std::size_t size,
                             [[maybe_unused]] bool stream) {
    const std::byte* rows[2];
    for (int r = 0; r < 2; ++r)
        rows[r] = static_cast<const std::byte*>(segment.rows[r]) + offset * sizeof(float);
    std::byte* out = static_cast<std::byte*>(segment.out) + offset * sizeof(float);
    const std::size_t bytes = size * sizeof(float);
    Words largest = {};
    Words smallest = ~Words{};
    std::size_t at = 0;
    for (; at + kVectorBytes <= bytes; at += kVectorBytes) {
        __builtin_prefetch(rows[0] + at + kPrefetch, 0, 2);
        __builtin_prefetch(rows[1] + at + kPrefetch, 0, 2);
        const Floats a = half_of(load<Floats>(rows[0] + at), largest, smallest);
        const Floats b = half_of(load<Floats>(rows[1] + at), largest, smallest);
        const Floats sum = a + b + Floats{};
#if FEDBENCH_ISA_LEVEL > 0
        if (stream) {
            stream_store(out + at, bits_as<Words>(sum));
            continue;
        }
#endif
        store(out + at, sum);
    }
    if (at < bytes) {
        Floats x[2] = {};
        for (int r = 0; r < 2; ++r) std::memcpy(&x[r], rows[r] + at, bytes - at);
        const Floats a = half_of(x[0], largest, smallest);
        const Floats sum = a + half_of(x[1], largest, smallest) + Floats{};
        std::memcpy(out + at, &sum, bytes - at);
    }
    bool proved = true;
    for (std::size_t l = 0; l < kVectorBytes / sizeof(float); ++l) {
        proved &= largest[l] < 0x7f800000U && smallest[l] >= kLeastHalved - 1U;
    }
    return proved;
}

}  // namespace fedbench::FEDBENCH_ISA
