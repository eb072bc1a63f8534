// Included by mean.hpp once per instruction set. mean.hpp explains and proves what is done here.

namespace fedbench::FEDBENCH_ISA {

// Coordinates per step of the narrow path.
inline constexpr std::size_t kStep = 2 * kLanes;

typedef std::uint32_t u32v __attribute__((vector_size(kStep * 4)));

struct NarrowTile {
    alignas(64) double sum[kMeanTile];
    alignas(64) std::uint32_t largest[kMeanTile];   // max of the bits of |x| as a float
    alignas(64) std::uint32_t smallest[kMeanTile];  // min of (bits - 1), so that zeros do not count
};

FEDBENCH_INLINE u32h join_half(u32v both, bool high) {
    u32h half;
    std::memcpy(&half, reinterpret_cast<const char*>(&both) + (high ? sizeof half : 0),
                sizeof half);
    return half;
}

FEDBENCH_INLINE u32v join(u32h low, u32h high) {
    u32v both;
    std::memcpy(&both, &low, sizeof low);
    std::memcpy(reinterpret_cast<char*>(&both) + sizeof low, &high, sizeof high);
    return both;
}

// Folds kRows clients into kStep coordinates. `kSmallest`: keep track of n, for case (a).
template <class Type, int kRows, bool kSmallest>
FEDBENCH_INLINE void fold_step(const std::byte* const* from, const f64v* weights, f64v& low,
                               f64v& high, u32v& largest, u32v& smallest) {
    constexpr std::size_t item = item_size(Type::dtype);
    for (int r = 0; r < kRows; ++r) {
        const f32h a = Type::load_floats(from[r]);
        const f32h b = Type::load_floats(from[r] + kLanes * item);
        low = multiply_add(weights[r], widen(a), low);
        high = multiply_add(weights[r], widen(b), high);
        u32v bits;
        if constexpr (Type::dtype == DType::float32) {
            bits = load<u32v>(from[r]);
        } else {
            bits = join(bits_as<u32h>(a), bits_as<u32h>(b));
        }
        bits &= 0x7fffffffU;
        largest = largest > bits ? largest : bits;
        if constexpr (kSmallest) {
            bits -= 1U;
            smallest = smallest < bits ? smallest : bits;
        }
    }
}

// Folds kRows clients into the tile: coordinates [offset, offset + size) of the rows. Meanwhile the
// rows of the next visit, `next` (as many, at `next_offset`), are fetched into the second-level
// cache: a visit is too short for the hardware to notice the stream before it ends.
template <class Type, int kRows, bool kSmallest>
inline void fold_rows(const void* const* rows, const double* weight, std::size_t offset,
                      std::size_t size, const void* const* next, std::size_t next_offset,
                      bool first, NarrowTile& tile) {
    constexpr std::size_t item = item_size(Type::dtype);
    constexpr std::size_t line = 64 / item;
    const std::byte* from[kRows];
    const std::byte* ahead[kRows];
    f64v weights[kRows];
    for (int r = 0; r < kRows; ++r) {
        from[r] = static_cast<const std::byte*>(rows[r]) + offset * item;
        ahead[r] = static_cast<const std::byte*>(next[r]) + next_offset * item;
        weights[r] = splat(weight[r]);
    }
    for (std::size_t i = 0; i < size; i += kStep) {
        f64v low = {};
        f64v high = {};
        u32v largest = {};
        u32v smallest = ~u32v{};
        if (!first) {
            low = load<f64v>(tile.sum + i);
            high = load<f64v>(tile.sum + i + kLanes);
            largest = load<u32v>(tile.largest + i);
            smallest = load<u32v>(tile.smallest + i);
        }
        if (size - i >= kStep) {
            if (i % line == 0) {
                for (int r = 0; r < kRows; ++r) __builtin_prefetch(ahead[r] + i * item, 0, 2);
            }
            fold_step<Type, kRows, kSmallest>(from, weights, low, high, largest, smallest);
            for (int r = 0; r < kRows; ++r) from[r] += kStep * item;
        } else {
            // The last, partial step works on zero-padded copies: nothing is read past the end.
            std::byte padded[kRows][kStep * item] = {};
            const std::byte* copies[kRows];
            for (int r = 0; r < kRows; ++r) {
                std::memcpy(padded[r], from[r], (size - i) * item);
                copies[r] = padded[r];
            }
            fold_step<Type, kRows, kSmallest>(copies, weights, low, high, largest, smallest);
        }
        store(tile.sum + i, low);
        store(tile.sum + i + kLanes, high);
        store(tile.largest + i, largest);
        store(tile.smallest + i, smallest);
    }
}

// Rows are folded in groups of kGroup; what is left over takes one smaller group.
inline constexpr std::size_t kGroup = 4;

template <class Type, bool kSmallest>
inline void fold_clients(const void* const* rows, const double* weights, std::size_t clients,
                         std::size_t offset, std::size_t size, NarrowTile& tile) {
    for (std::size_t k = 0; k < clients; k += kGroup) {
        const std::size_t group = std::min(kGroup, clients - k);
        // The last group of a tile fetches the first rows of the next tile.
        const bool last = k + group == clients;
        const void* const* next = last ? rows : rows + std::min(k + kGroup, clients - group);
        const std::size_t next_offset = last ? offset + size : offset;
        const void* const* from = rows + k;
        const double* w = weights + k;
        switch (group) {
            case 1:
                fold_rows<Type, 1, kSmallest>(from, w, offset, size, next, next_offset, k == 0,
                                              tile);
                break;
            case 2:
                fold_rows<Type, 2, kSmallest>(from, w, offset, size, next, next_offset, k == 0,
                                              tile);
                break;
            case 3:
                fold_rows<Type, 3, kSmallest>(from, w, offset, size, next, next_offset, k == 0,
                                              tile);
                break;
            default:
                fold_rows<Type, 4, kSmallest>(from, w, offset, size, next, next_offset, k == 0,
                                              tile);
                break;
        }
    }
}

inline void fold_narrow(const WeightPlan& plan, const MeanSegment& segment, std::size_t offset,
                        std::size_t size, NarrowTile& tile) {
    const double* weights = plan.scaled.data();
    const std::size_t clients = plan.scaled.size();
    switch (segment.dtype) {
        case DType::float32:
            return plan.integers ? fold_clients<Float32, true>(segment.rows, weights, clients,
                                                               offset, size, tile)
                                 : fold_clients<Float32, false>(segment.rows, weights, clients,
                                                                offset, size, tile);
        case DType::float16:
            return plan.integers ? fold_clients<Float16, true>(segment.rows, weights, clients,
                                                               offset, size, tile)
                                 : fold_clients<Float16, false>(segment.rows, weights, clients,
                                                                offset, size, tile);
        case DType::bfloat16:
            return plan.integers ? fold_clients<BFloat16, true>(segment.rows, weights, clients,
                                                                offset, size, tile)
                                 : fold_clients<BFloat16, false>(segment.rows, weights, clients,
                                                                 offset, size, tile);
        case DType::int8:
            return plan.integers ? fold_clients<Int8, true>(segment.rows, weights, clients, offset,
                                                            size, tile)
                                 : fold_clients<Int8, false>(segment.rows, weights, clients, offset,
                                                             size, tile);
        case DType::float64:
            return;
    }
}

// value, rounded to nearest, as the bits of an element of the type (zero-extended).
struct ToFloat32 {
    static constexpr DType dtype = DType::float32;
    static FEDBENCH_INLINE u32h round(f64v value) { return bits_as<u32h>(narrow(value)); }
    static FEDBENCH_INLINE void put(std::byte* to, u32h bits) { store(to, bits); }
};

// Bits of the float that `value` rounds to under round-to-odd: safe to round once more.
FEDBENCH_INLINE u32h round_to_odd_float(f64v value) {
    const f32h near = narrow(value);
    const f64v back = widen(near);
    const u32h inexact = bits_as<u32h>(narrow_mask(back != value));
    const u32h too_large = bits_as<u32h>(narrow_mask(abs(back) > abs(value)));
    return (bits_as<u32h>(near) + too_large) | (inexact & 1U);
}

FEDBENCH_INLINE void put_low_half(std::byte* to, u32h bits) {
    store_u16(to, bits);
}

struct ToBFloat16 {
    static constexpr DType dtype = DType::bfloat16;
    static FEDBENCH_INLINE u32h round(f64v value) {
        const u32h bits = round_to_odd_float(value);
        return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    }
    static FEDBENCH_INLINE void put(std::byte* to, u32h bits) { put_low_half(to, bits); }
};

struct ToFloat16 {
    static constexpr DType dtype = DType::float16;
    static FEDBENCH_INLINE u32h round(f64v value) {
        const u32h bits = round_to_odd_float(value);
#if FEDBENCH_ISA_LEVEL == 2
        const __m128i half = _mm256_cvtps_ph(bits_as<__m256>(bits), _MM_FROUND_TO_NEAREST_INT);
        return bits_as<u32h>(_mm256_cvtepu16_epi32(half));
#elif FEDBENCH_ISA_LEVEL == 1
        const __m128i half = _mm_cvtps_ph(bits_as<__m128>(bits), _MM_FROUND_TO_NEAREST_INT);
        return bits_as<u32h>(_mm_cvtepu16_epi32(half));
#else
        u32h half = {};
        for (std::size_t i = 0; i < kLanes; ++i) half[i] = float_bits_to_float16(bits[i]);
        return half;
#endif
    }
    static FEDBENCH_INLINE void put(std::byte* to, u32h bits) { put_low_half(to, bits); }
};

// Makes q = RN(quotient), whose remainder has the sign of r, the quotient rounded to odd.
FEDBENCH_INLINE f64v to_odd(f64v q, f64v r) {
    const i64v inexact = r != 0.0;
    const i64v opposite = (bits_as<i64v>(r) ^ bits_as<i64v>(q)) < 0;
    return bits_as<f64v>((bits_as<i64v>(q) + (opposite & inexact)) | (inexact & 1));
}

// s - q * w where q = RN(s / w): exact.
FEDBENCH_INLINE f64v division_remainder(f64v s, f64v q, f64v w) {
#if FEDBENCH_ISA_LEVEL > 0
    return multiply_add(-q, w, s);
#else
    const f64v p = q * w;
    return (s - p) - product_error(q, w, p);
#endif
}

template <class Out>
FEDBENCH_INLINE void put_lanes(std::byte* out, std::size_t i, std::size_t size, u32h bits) {
    constexpr std::size_t item = item_size(Out::dtype);
    if (size - i >= kLanes) {
        Out::put(out + i * item, bits);
    } else {
        std::byte padded[kLanes * item];
        Out::put(padded, bits);
        std::memcpy(out + i * item, padded, (size - i) * item);
    }
}

// Rounds the tile's quotients to `out`; lists what it could not prove.
template <class Out>
inline void finish_narrow(const WeightPlan& plan, DType in, std::byte* out, std::size_t size,
                          const NarrowTile& tile, Unproved& unproved) {
    const f64v divisor = splat(plan.scaled_divisor);
    const f64v reciprocal = splat(1.0 / plan.scaled_divisor);
    const double clients = static_cast<double>(plan.scaled.size());
    const f64v error = splat((clients + 12.0) * 0x1p-53 * plan.scaled_sum);
    // B m < 2^53 g: with m < 2^(e + 1), B <= 2^b and g >= 2^(e' - p + 1), e - e' <= 53 - p - b.
    int sum_bits = 0;
    while (std::ldexp(1.0, sum_bits) < plan.scaled_sum) ++sum_bits;
    const int spread_limit = plan.integers ? 53 - significand_bits(in) - sum_bits : -1000;
    for (std::size_t i = 0; i < size; i += kLanes) {
        const f64v sum = load<f64v>(tile.sum + i);
        const u32h largest = load<u32h>(tile.largest + i);
        const u32h smallest = load<u32h>(tile.smallest + i);
        const i32h spread = bits_as<i32h>((largest >> 23) - (smallest >> 23));
        const i32h exact = (spread <= spread_limit) & bits_as<i32h>(largest < 0x7f800000U);
        const unsigned exact_lanes = mask_bits(widen_mask(exact));
        u32h bits = {};
        if (exact_lanes != 0) {
            if (plan.power_of_two) {
                bits = Out::round(sum * reciprocal);
            } else {
                const f64v q = sum / divisor;
                bits = Out::round(to_odd(q, division_remainder(sum, q, divisor)));
            }
        }
        if (exact_lanes != kAllLanes) {
            const f64v delta = error * widen(bits_as<f32h>(largest));
            const u32h low = Out::round((sum - delta) * reciprocal);
            const u32h high = Out::round((sum + delta) * reciprocal);
            const i32h proved = bits_as<i32h>(low == high) & bits_as<i32h>(largest < 0x7f800000U);
            bits = bits_as<u32h>((exact & bits_as<i32h>(bits)) | (~exact & bits_as<i32h>(low)));
            unproved.add(~mask_bits(widen_mask(proved | exact)) & kAllLanes, i, size);
        }
        put_lanes<Out>(out, i, size, bits);
    }
}

struct WideTile {
    alignas(64) double high[kMeanTile];
    alignas(64) double low[kMeanTile];
    alignas(64) double largest[kMeanTile];
    alignas(64) double smallest[kMeanTile];  // of what is not zero; infinity if all is
};

FEDBENCH_INLINE void add_exactly(f64v& high, f64v& low, f64v term) {
    const f64v sum = high + term;
    const f64v back = sum - high;
    low += (high - (sum - back)) + (term - back);
    high = sum;
}

template <class Type>
inline void fold_wide_row(const void* row, double weight, std::size_t offset, std::size_t size,
                          bool first, WideTile& tile) {
    constexpr std::size_t item = item_size(Type::dtype);
    const std::byte* from = static_cast<const std::byte*>(row) + offset * item;
    const f64v w = splat(weight);
    const f64v infinite = splat(std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < size; i += kLanes, from += kLanes * item) {
        f64v x;
        if (size - i >= kLanes) {
            __builtin_prefetch(from + 512);
            x = load_doubles<Type>(from);
        } else {
            std::byte padded[kLanes * item] = {};
            std::memcpy(padded, from, (size - i) * item);
            x = load_doubles<Type>(padded);
        }
        f64v high = {};
        f64v low = {};
        f64v largest = {};
        f64v smallest = infinite;
        if (!first) {
            high = load<f64v>(tile.high + i);
            low = load<f64v>(tile.low + i);
            largest = load<f64v>(tile.largest + i);
            smallest = load<f64v>(tile.smallest + i);
        }
        const f64v p = w * x;
        low += product_error(w, x, p);
        add_exactly(high, low, p);
        const f64v magnitude = abs(x);
        const f64v nonzero = magnitude == 0.0 ? infinite : magnitude;
        largest = largest > magnitude ? largest : magnitude;
        smallest = smallest < nonzero ? smallest : nonzero;
        store(tile.high + i, high);
        store(tile.low + i, low);
        store(tile.largest + i, largest);
        store(tile.smallest + i, smallest);
    }
}

inline void fold_wide(const WeightPlan& plan, const MeanSegment& segment, std::size_t offset,
                      std::size_t size, WideTile& tile) {
    for (std::size_t k = 0; k < plan.scaled.size(); ++k) {
        const void* row = segment.rows[k];
        const double weight = plan.scaled[k];
        switch (segment.dtype) {
            case DType::float32:
                fold_wide_row<Float32>(row, weight, offset, size, k == 0, tile);
                break;
            case DType::float64:
                fold_wide_row<Float64>(row, weight, offset, size, k == 0, tile);
                break;
            case DType::float16:
                fold_wide_row<Float16>(row, weight, offset, size, k == 0, tile);
                break;
            case DType::bfloat16:
                fold_wide_row<BFloat16>(row, weight, offset, size, k == 0, tile);
                break;
            case DType::int8:
                fold_wide_row<Int8>(row, weight, offset, size, k == 0, tile);
                break;
        }
    }
}

// Stores doubles, or what they round to.
template <class Out>
FEDBENCH_INLINE void put_doubles(std::byte* out, std::size_t i, std::size_t size, f64v value) {
    if constexpr (Out::dtype == DType::float64) {
        std::memcpy(out + i * 8, &value, std::min(size - i, kLanes) * 8);
    } else {
        put_lanes<Out>(out, i, size, Out::round(value));
    }
}

template <class Out>
FEDBENCH_INLINE i64v same_rounding(f64v a, f64v b) {
    if constexpr (Out::dtype == DType::float64) {
        return bits_as<i64v>(a) == bits_as<i64v>(b);
    } else {
        return widen_mask(bits_as<i32h>(Out::round(a) == Out::round(b)));
    }
}

template <class Out>
inline void finish_wide(const WeightPlan& plan, std::byte* out, std::size_t size,
                        const WideTile& tile, Unproved& unproved) {
    constexpr bool narrow = Out::dtype != DType::float64;
    const double clients = static_cast<double>(plan.scaled.size());
    const f64v divisor = splat(plan.scaled_divisor);
    const f64v divisor_low = splat(plan.scaled_divisor_low);
    const f64v reciprocal = splat(1.0 / plan.scaled_divisor);
    const f64v exact_spread = splat((clients + 2.0) * 0x1p-53 * plan.scaled_sum);
    const f64v error = splat((2.0 * (clients + 2.0) * (clients + 2.0) + 32.0) * 0x1p-106 *
                             plan.scaled_sum / plan.scaled_divisor);
    for (std::size_t i = 0; i < size; i += kLanes) {
        const f64v largest = load<f64v>(tile.largest + i);
        const f64v smallest = load<f64v>(tile.smallest + i);
        f64v h = load<f64v>(tile.high + i);
        f64v l = {};
        add_exactly(h, l, load<f64v>(tile.low + i));
        // h - h is not zero for NaN and infinities.
        const i64v in_range = (smallest >= 0x1p-700) & (largest <= 0x1p900) & (h - h == 0.0);
        i64v proved = i64v{};
        f64v value = {};
        if (plan.power_of_two) {
            proved = in_range & (smallest >= largest * exact_spread);
            value = (narrow ? to_odd(h, l) : h) * reciprocal;
        }
        if (mask_bits(proved) != kAllLanes) {
            const f64v q1 = h / divisor;
            const f64v p = q1 * divisor;
            const f64v r = ((h - p) - product_error(q1, divisor, p)) + (l - q1 * divisor_low);
            const f64v q2 = r / divisor;
            f64v epsilon = error * largest;
            if constexpr (narrow) epsilon += abs(q1) * 0x1p-51;
            const f64v low = q1 + (q2 - epsilon);
            const f64v high = q1 + (q2 + epsilon);
            const i64v filtered = in_range & same_rounding<Out>(low, high);
            value = proved ? value : low;
            proved |= filtered;
            unproved.add(~mask_bits(proved) & kAllLanes, i, size);
        }
        put_doubles<Out>(out, i, size, value);
    }
}

struct ToFloat64 {
    static constexpr DType dtype = DType::float64;
};

// Coordinates [begin, end) of a segment. Returns whether all inputs were finite.
inline bool mean_range(const WeightPlan& plan, const MeanSegment& segment, std::size_t begin,
                       std::size_t end) {
    bool finite = true;
    Unproved unproved;
    const bool wide = segment.dtype == DType::float64 || segment.out_dtype == DType::float64;
    for (std::size_t offset = begin; offset < end; offset += kMeanTile) {
        const std::size_t size = std::min(kMeanTile, end - offset);
        auto* out = static_cast<std::byte*>(segment.out) + offset * item_size(segment.out_dtype);
        unproved.count = 0;
        if (plan.exact_only) {
            for (std::size_t i = 0; i < size; ++i) unproved.add(1, i, size);
        } else if (wide) {
            WideTile tile;
            fold_wide(plan, segment, offset, size, tile);
            switch (segment.out_dtype) {
                case DType::float16:
                    finish_wide<ToFloat16>(plan, out, size, tile, unproved);
                    break;
                case DType::bfloat16:
                    finish_wide<ToBFloat16>(plan, out, size, tile, unproved);
                    break;
                case DType::float64:
                    finish_wide<ToFloat64>(plan, out, size, tile, unproved);
                    break;
                default:
                    finish_wide<ToFloat32>(plan, out, size, tile, unproved);
                    break;
            }
        } else {
            NarrowTile tile;
            fold_narrow(plan, segment, offset, size, tile);
            const DType in = segment.dtype;
            switch (segment.out_dtype) {
                case DType::float16:
                    finish_narrow<ToFloat16>(plan, in, out, size, tile, unproved);
                    break;
                case DType::bfloat16:
                    finish_narrow<ToBFloat16>(plan, in, out, size, tile, unproved);
                    break;
                default:
                    finish_narrow<ToFloat32>(plan, in, out, size, tile, unproved);
                    break;
            }
        }
        for (std::size_t u = 0; u < unproved.count; ++u) {
            finite &= fedbench::detail::exact_mean_at(plan, segment, offset + unproved.index[u]);
        }
    }
    return finite;
}

}  // namespace fedbench::FEDBENCH_ISA
