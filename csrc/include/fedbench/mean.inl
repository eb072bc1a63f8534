// Included by mean.hpp once per instruction set. mean.hpp explains and proves what is done here.

#include "fedbench/mean_of_two.inl"

namespace fedbench::FEDBENCH_ISA {

// Coordinates per step of the narrow path: several vectors, because the additions to one sum wait
// for each other.
inline constexpr std::size_t kStep = 4 * kLanes;
static_assert(kMeanTile % kStep == 0);

// How far ahead of their use as many rows are fetched, in bytes: so far that it is still in the
// first-level cache then. More than 8 are mostly all rows: what follows their tile is used next.
constexpr std::size_t bytes_ahead(std::size_t rows) { return rows > 8 ? 1024 : 512; }

struct NarrowTile {
    alignas(64) double sum[kMeanTile];
    // Of all elements: the max of the bits of |x| as a float, to which NaN may not count, and, if
    // tracked, the min of (bits - 1), so that zeros do not count.
    std::uint32_t largest;
    std::uint32_t smallest;
};

// The sums of kStep coordinates, and what is tracked of all coordinates, in words of the elements'
// size: positive floats are ordered like their bits.
template <class Type>
struct Sums {
    typedef typename Type::Doubles Doubles;
    typedef typename Full<typename Type::Word>::type Words;
    typedef typename Full<std::make_unsigned_t<typename Type::Word>>::type Unsigned;
    static constexpr std::size_t item = item_size(Type::dtype);
    static constexpr std::size_t lanes = sizeof(Doubles) / sizeof(double);
    static constexpr std::size_t parts = kStep / lanes;
    static constexpr std::size_t words = std::max<std::size_t>(1, kStep * item / kVectorBytes);

    Doubles sum[parts];
    Words largest[words];
    Unsigned smallest[words];
};

// The larger of magnitudes and those of elements, as bits. One instruction where the level has it
// and NaN need not count: a NaN's sum is one too.
template <class Type, bool kCountNan, class Words>
FEDBENCH_INLINE Words larger_magnitude(Words magnitudes, Words elements) {
#if FEDBENCH_ISA_LEVEL == 2
    if constexpr (Type::dtype == DType::float32 && !kCountNan) {
        constexpr int of_magnitudes = 0b1011;  // the maximum of the absolute values
        return bits_as<Words>(_mm512_range_ps(bits_as<__m512>(magnitudes),
                                              bits_as<__m512>(elements), of_magnitudes));
    }
#endif
    const Words bits = elements & std::numeric_limits<typename Type::Word>::max();
    return magnitudes > bits ? magnitudes : bits;
}

// Folds kStep coordinates of kRows clients, `at` bytes after the starts of the rows.
template <class Type, int kRows, bool kTrack>
FEDBENCH_INLINE void fold_step(const std::byte* const* from, std::size_t at,
                               const typename Type::Doubles* weights, Sums<Type>& sums) {
    typedef Sums<Type> S;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
        const std::byte* row = from[r] + at;
#pragma GCC unroll 8
        for (std::size_t p = 0; p < S::parts; ++p) {
            const auto x = load_summands<Type>(row + p * S::lanes * S::item);
            sums.sum[p] = multiply_add(weights[r], x, sums.sum[p]);
        }
        if constexpr (Type::dtype != DType::int8) {  // whose range is known
            constexpr auto magnitude = std::numeric_limits<typename Type::Word>::max();
#pragma GCC unroll 2
            for (std::size_t q = 0; q < S::words; ++q) {
                const auto bits = load<typename S::Words>(row + q * kVectorBytes);
                sums.largest[q] = larger_magnitude<Type, kTrack>(sums.largest[q], bits);
                if constexpr (kTrack) {
                    const auto less = bits_as<typename S::Unsigned>((bits & magnitude) - 1);
                    sums.smallest[q] = sums.smallest[q] < less ? sums.smallest[q] : less;
                }
            }
        }
    }
}

// The bits of an element, given by its own, as a float.
template <class Type, class Word>
inline std::uint32_t float_bits(Word word) {
    std::byte element[kLanes * sizeof word] = {};
    std::memcpy(element, &word, sizeof word);
    return bits_as<u32h>(Type::load_floats(element))[0];
}

// Joins what was tracked in a visit with what the tile knows from those before.
template <class Type, bool kTrack>
inline void join_range(const Sums<Type>& sums, bool first, NarrowTile& tile) {
    std::uint32_t largest = std::bit_cast<std::uint32_t>(128.0F);
    std::uint32_t smallest = std::bit_cast<std::uint32_t>(1.0F) - 1U;
    if constexpr (Type::dtype != DType::int8) {
        typedef typename Type::Word Word;
        typedef std::make_unsigned_t<Word> Unsigned;
        Word most = 0;
        Unsigned least = std::numeric_limits<Unsigned>::max();
        for (std::size_t q = 0; q < Sums<Type>::words; ++q) {
            for (std::size_t i = 0; i < kVectorBytes / sizeof most; ++i) {
                most = std::max<Word>(most, sums.largest[q][i]);
                if (kTrack) least = std::min<Unsigned>(least, sums.smallest[q][i]);
            }
        }
        largest = float_bits<Type>(most);
        smallest = float_bits<Type>(static_cast<Unsigned>(least + 1U)) - 1U;  // of none: the most
    }
    tile.largest = first ? largest : std::max(tile.largest, largest);
    tile.smallest = first ? smallest : std::min(tile.smallest, smallest);
}

// Coordinates [offset, offset + size) of some rows and the rows' weights; whether it is the first
// visit to a tile.
struct Visit {
    const void* const* rows;
    const double* weights;
    std::size_t offset;
    std::size_t size;
    bool first;
};

// Folds kRows clients into the tile.
template <class Type, int kRows, bool kTrack>
inline void fold_rows(const Visit& visit, NarrowTile& tile) {
    typedef Sums<Type> S;
    typedef typename S::Doubles Doubles;
    constexpr std::size_t item = item_size(Type::dtype);
    const std::byte* from[kRows];
    Doubles weights[kRows];
    for (int r = 0; r < kRows; ++r) {
        from[r] = static_cast<const std::byte*>(visit.rows[r]) + visit.offset * item;
        weights[r] = Doubles{} + visit.weights[r];
    }
    S sums;
    const std::size_t whole = visit.size / kStep * kStep;
    for (std::size_t q = 0; q < S::words; ++q) {
        sums.largest[q] = typename S::Words{};
        sums.smallest[q] = ~typename S::Unsigned{};
    }
    for (std::size_t i = 0; i < visit.size; i += kStep) {
#pragma GCC unroll 8
        for (std::size_t p = 0; p < S::parts; ++p) {
            sums.sum[p] = visit.first ? Doubles{} : load<Doubles>(tile.sum + i + p * S::lanes);
        }
        if (i < whole) {
            for (std::size_t at = 0; at < kStep * item; at += 64) {
                for (int r = 0; r < kRows; ++r) {
                    __builtin_prefetch(from[r] + i * item + at + bytes_ahead(kRows));
                }
            }
            fold_step<Type, kRows, kTrack>(from, i * item, weights, sums);
        } else {
            // The last, partial step works on zero-padded copies: nothing is read past the end.
            std::byte padded[kRows][kStep * item] = {};
            const std::byte* copies[kRows];
            for (int r = 0; r < kRows; ++r) {
                std::memcpy(padded[r], from[r] + i * item, (visit.size - i) * item);
                copies[r] = padded[r];
            }
            fold_step<Type, kRows, kTrack>(copies, 0, weights, sums);
        }
#pragma GCC unroll 8
        for (std::size_t p = 0; p < S::parts; ++p) store(tile.sum + i + p * S::lanes, sums.sum[p]);
    }
    join_range<Type, kTrack>(sums, visit.first, tile);
}

// Rows per visit at most; they are shared out evenly: 32 clients are 8, 8, 8 and 8.
inline constexpr std::size_t kGroup = 10;

// How many of the rows that are left the next visit takes.
inline std::size_t rows_of_visit(std::size_t left) {
    const std::size_t visits = (left + kGroup - 1) / kGroup;
    return (left + visits - 1) / visits;
}

template <class Type, bool kTrack, std::size_t kRows>
inline void fold_group(std::size_t group, const Visit& visit, NarrowTile& tile) {
    if (group == kRows) {
        fold_rows<Type, static_cast<int>(kRows), kTrack>(visit, tile);
    } else if constexpr (kRows > 1) {
        fold_group<Type, kTrack, kRows - 1>(group, visit, tile);
    }
}

template <class Type, bool kTrack>
inline void fold_clients(const MeanSegment& segment, const double* weights, std::size_t clients,
                         std::size_t offset, std::size_t size, NarrowTile& tile) {
    const void* const* rows = segment.rows;
    std::size_t group = 0;
    for (std::size_t k = 0; k < clients; k += group) {
        group = rows_of_visit(clients - k);
        const Visit visit = {rows + k, weights + k, offset, size, k == 0};
        fold_group<Type, kTrack, kGroup>(group, visit, tile);
    }
}

template <class Type>
inline void fold_type(const WeightPlan& plan, const MeanSegment& segment, std::size_t offset,
                      std::size_t size, bool track, NarrowTile& tile) {
    const auto fold = track ? fold_clients<Type, true> : fold_clients<Type, false>;
    fold(segment, plan.scaled.data(), plan.scaled.size(), offset, size, tile);
}

// `halves`: float32 is summed in halves of registers where the level has them, to the same bits.
inline void fold_narrow(const WeightPlan& plan, const MeanSegment& segment, std::size_t offset,
                        std::size_t size, bool track, [[maybe_unused]] bool halves,
                        NarrowTile& tile) {
    switch (segment.dtype) {
        case DType::float32:
#if FEDBENCH_ISA_LEVEL == 2
            if (halves) return fold_type<Float32Halves>(plan, segment, offset, size, track, tile);
#endif
            return fold_type<Float32>(plan, segment, offset, size, track, tile);
        case DType::float16:
            return fold_type<Float16>(plan, segment, offset, size, track, tile);
        case DType::bfloat16:
            return fold_type<BFloat16>(plan, segment, offset, size, track, tile);
        case DType::int8:
            return fold_type<Int8>(plan, segment, offset, size, track, tile);
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
    static FEDBENCH_INLINE u32h round(f64v value) { return from_float(round_to_odd_float(value)); }
    static FEDBENCH_INLINE u32h from_float(u32h bits) {
        return (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    }
    static FEDBENCH_INLINE void put(std::byte* to, u32h bits) { put_low_half(to, bits); }
};

struct ToFloat16 {
    static constexpr DType dtype = DType::float16;
    static FEDBENCH_INLINE u32h round(f64v value) { return from_float(round_to_odd_float(value)); }
    static FEDBENCH_INLINE u32h from_float(u32h bits) {
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

// `stream`: past the caches, for results that no cache would hold anyway.
template <class Out>
FEDBENCH_INLINE void put_lanes(std::byte* out, std::size_t i, std::size_t size, u32h bits,
                               [[maybe_unused]] bool stream = false) {
    constexpr std::size_t item = item_size(Out::dtype);
    if (size - i >= kLanes) {
#if FEDBENCH_ISA_LEVEL > 0
        if (Out::dtype == DType::float32 && stream) return stream_store(out + i * item, bits);
#endif
        Out::put(out + i * item, bits);
    } else {
        std::byte padded[kLanes * item];
        Out::put(padded, bits);
        std::memcpy(out + i * item, padded, (size - i) * item);
    }
}

// The constants of the narrow path's quotients.
struct NarrowBounds {
    f64v divisor;
    f64v reciprocal;
    f64v error;  // times m: delta of case (b)
    int spread_limit;
    bool power_of_two;

    NarrowBounds(const WeightPlan& plan, const MeanSegment& segment) {
        divisor = splat(plan.scaled_divisor);
        reciprocal = splat(1.0 / plan.scaled_divisor);
        error = splat((static_cast<double>(plan.scaled.size()) + 12.0) * 0x1p-53 * plan.scaled_sum);
        power_of_two = plan.power_of_two;
        // B m < 2^53 g: with m < 2^(e + 1), B <= 2^b and g >= 2^(e' - p + 1), e - e' <= 53 - p - b.
        int sum_bits = 0;
        while (std::ldexp(1.0, sum_bits) < plan.scaled_sum) ++sum_bits;
        spread_limit = plan.integers ? 53 - significand_bits(segment.dtype) - sum_bits : -1000;
    }
};

// The bits of kLanes quotients of exact sums.
template <class Out>
FEDBENCH_INLINE u32h exact_quotients(const NarrowBounds& bounds, f64v sum) {
    if (bounds.power_of_two) return Out::round(sum * bounds.reciprocal);
    const f64v q = sum / bounds.divisor;
    return Out::round(to_odd(q, division_remainder(sum, q, bounds.divisor)));
}

// The bits of kLanes quotients from their sums, m and n; returns the lanes that are proved.
template <class Out>
FEDBENCH_INLINE unsigned decide(const NarrowBounds& bounds, f64v sum, u32h largest, u32h smallest,
                                u32h& bits) {
    const i32h spread = bits_as<i32h>((largest >> 23) - (smallest >> 23));
    const i32h finite = bits_as<i32h>(largest < 0x7f800000U);
    const i32h exact = (spread <= bounds.spread_limit) & finite;
    const unsigned exact_lanes = mask_bits(widen_mask(exact));
    if (exact_lanes != 0) bits = exact_quotients<Out>(bounds, sum);
    if (exact_lanes == kAllLanes) return kAllLanes;
    const f64v delta = bounds.error * widen(bits_as<f32h>(largest));
    const u32h low = Out::round((sum - delta) * bounds.reciprocal);
    const u32h high = Out::round((sum + delta) * bounds.reciprocal);
    const i32h proved = (bits_as<i32h>(low == high) & finite) | exact;
    bits = bits_as<u32h>((exact & bits_as<i32h>(bits)) | (~exact & bits_as<i32h>(low)));
    return mask_bits(widen_mask(proved));
}

// m and n of kLanes coordinates, from the rows, which the fold has left in the cache.
template <class Type>
inline void range_of(const void* const* rows, std::size_t clients, std::size_t at,
                     std::size_t count, u32h& largest, u32h& smallest) {
    constexpr std::size_t item = item_size(Type::dtype);
    largest = u32h{};
    smallest = ~u32h{};
    for (std::size_t k = 0; k < clients; ++k) {
        std::byte padded[kLanes * item] = {};
        std::memcpy(padded, static_cast<const std::byte*>(rows[k]) + at * item, count * item);
        const u32h bits = bits_as<u32h>(Type::load_floats(padded)) & 0x7fffffffU;
        largest = largest > bits ? largest : bits;
        smallest = smallest < bits - 1U ? smallest : bits - 1U;
    }
}

inline void narrow_range(const MeanSegment& segment, std::size_t clients, std::size_t at,
                         std::size_t count, u32h& largest, u32h& smallest) {
    switch (segment.dtype) {
        case DType::float16:
            return range_of<Float16>(segment.rows, clients, at, count, largest, smallest);
        case DType::bfloat16:
            return range_of<BFloat16>(segment.rows, clients, at, count, largest, smallest);
        case DType::int8:
            return range_of<Int8>(segment.rows, clients, at, count, largest, smallest);
        default:
            return range_of<Float32>(segment.rows, clients, at, count, largest, smallest);
    }
}

// Where both ends of a bound round alike: the bits that they round to, and those of the other end.
// `delta` bounds the error of the sum. Ends of 16-bit results are rounded to float first, which
// moves them by 2^-24 of themselves or by 2^-150; a wider bound pays for that, if `delta` is not
// too small for the latter.
template <class Out>
FEDBENCH_INLINE void round_ends(const NarrowBounds& bounds, f64v sum, f64v delta, u32h& low,
                                u32h& high) {
    if constexpr (Out::dtype == DType::float32) {
        low = Out::round((sum - delta) * bounds.reciprocal);
        high = Out::round((sum + delta) * bounds.reciprocal);
    } else {
        const f64v wider = delta + delta + abs(sum) * 0x1p-22;
        low = Out::from_float(bits_as<u32h>(narrow((sum - wider) * bounds.reciprocal)));
        high = Out::from_float(bits_as<u32h>(narrow((sum + wider) * bounds.reciprocal)));
    }
}

// Nothing is read while a tile is rounded: meanwhile the next one's first visit is prepared, if
// updates come `from_memory` rather than from a cache.
struct NextTile {
    const void* const* rows;
    std::size_t group;
    std::size_t at;
    std::size_t end;
    std::size_t row = 0;

    NextTile(const MeanSegment& segment, std::size_t clients, std::size_t begin, bool from_memory)
        : rows(segment.rows),
          group(rows_of_visit(clients)),
          at(begin * item_size(segment.dtype) + bytes_ahead(group)),
          end(from_memory ? segment.size * item_size(segment.dtype) : 0) {}

    void fetch_line() {
        if (at >= end) return;
        __builtin_prefetch(static_cast<const std::byte*>(rows[row]) + at, 0, 2);
        if (++row < group) return;
        row = 0;
        at += 64;
    }
};

// Rounds a tile by the largest and smallest |x| of all of it: bounds that are wide for most
// coordinates, but nearly always narrow enough. Where they are not, m and n are looked up.
template <class Out>
inline void finish_narrow(const NarrowBounds& bounds, const MeanSegment& segment,
                          std::size_t clients, std::size_t offset, std::byte* out, std::size_t size,
                          bool stream, NarrowTile& tile, bool tracked, Unproved& unproved) {
    const bool finite = tile.largest < 0x7f800000U;
    const int spread = static_cast<int>(tile.largest >> 23) - static_cast<int>(tile.smallest >> 23);
    const bool exact = tracked && finite && spread <= bounds.spread_limit;
    NextTile next(segment, clients, offset + size, stream);
    if (exact && bounds.power_of_two) {
        for (std::size_t i = 0; i < size; i += kLanes) {
            next.fetch_line();
            const u32h bits = exact_quotients<Out>(bounds, load<f64v>(tile.sum + i));
            put_lanes<Out>(out, i, size, bits, stream);
        }
        return;
    }
    const auto largest = static_cast<double>(std::bit_cast<float>(finite ? tile.largest : 0U));
    const f64v delta = bounds.error * splat(largest);
    const bool bounded = finite && (Out::dtype == DType::float32 || largest == 0.0 ||
                                    delta[0] * bounds.reciprocal[0] >= 0x1p-149);
    for (std::size_t i = 0; i < size; i += kLanes) {
        next.fetch_line();
        const f64v sum = load<f64v>(tile.sum + i);
        u32h bits;
        u32h high;
        round_ends<Out>(bounds, sum, delta, bits, high);
        const i64v proved = widen_mask(bits_as<i32h>(bits == high)) & (sum == sum);
        if (!bounded || mask_bits(proved) != kAllLanes) {
            if (bounded && mask_bits(sum == sum) != kAllLanes) {
                // A signalling NaN may have replaced the largest: begin anew without that.
                tile.largest = 0x7f800000U;
                unproved.count = 0;
                return finish_narrow<Out>(bounds, segment, clients, offset, out, size, stream, tile,
                                          tracked, unproved);
            }
            if (exact) {
                bits = exact_quotients<Out>(bounds, sum);
            } else {
                u32h most;
                u32h least;
                narrow_range(segment, clients, offset + i, std::min(kLanes, size - i), most, least);
                const unsigned decided = decide<Out>(bounds, sum, most, least, bits);
                if (decided != kAllLanes) unproved.add(~decided & kAllLanes, i, size);
            }
        }
        put_lanes<Out>(out, i, size, bits, stream);
    }
}

// One tile of the narrow path.
template <class Out>
inline void narrow_tile(const WeightPlan& plan, const NarrowBounds& bounds,
                        const MeanSegment& segment, std::size_t offset, std::size_t size,
                        bool stream, Unproved& unproved) {
    // Small divisors make ties common; only exact sums decide them.
    const bool track = plan.integers && plan.scaled_divisor <= 128.0;
    std::byte* out = static_cast<std::byte*>(segment.out) + offset * item_size(Out::dtype);
    NarrowTile tile;
    fold_narrow(plan, segment, offset, size, track, widens_in_parts(), tile);
    finish_narrow<Out>(bounds, segment, plan.scaled.size(), offset, out, size, stream, tile, track,
                       unproved);
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
// `past_caches`: no cache would hold the results of the call.
inline bool mean_range(const WeightPlan& plan, const MeanSegment& segment, std::size_t begin,
                       std::size_t end, bool past_caches) {
    bool finite = true;
    Unproved unproved;
    const NarrowBounds bounds(plan, segment);
    const bool two = is_mean_of_two(plan, segment);
    const std::size_t item = item_size(segment.out_dtype);
    const bool wide = segment.dtype == DType::float64 || segment.out_dtype == DType::float64;
    std::size_t size = 0;
    for (std::size_t offset = begin; offset < end; offset += size) {
        auto* out = static_cast<std::byte*>(segment.out) + offset * item;
        // Results may start anywhere; the first tile ends at a cache line, where the others start.
        const std::size_t past_line = reinterpret_cast<std::size_t>(out) % 64;
        size = std::min(kMeanTile - past_line / item, end - offset);
        const bool stream = past_caches && past_line == 0;
        unproved.count = 0;
        if (two && mean_of_two_tile(segment, offset, size, stream)) continue;
        if (plan.exact_only) {
            for (std::size_t i = 0; i < size; ++i) unproved.add(1, i, size);
        } else if (wide) {
            WideTile sums;
            fold_wide(plan, segment, offset, size, sums);
            switch (segment.out_dtype) {
                case DType::float16:
                    finish_wide<ToFloat16>(plan, out, size, sums, unproved);
                    break;
                case DType::bfloat16:
                    finish_wide<ToBFloat16>(plan, out, size, sums, unproved);
                    break;
                case DType::float64:
                    finish_wide<ToFloat64>(plan, out, size, sums, unproved);
                    break;
                default:
                    finish_wide<ToFloat32>(plan, out, size, sums, unproved);
                    break;
            }
        } else {
            switch (segment.out_dtype) {
                case DType::float16:
                    narrow_tile<ToFloat16>(plan, bounds, segment, offset, size, stream, unproved);
                    break;
                case DType::bfloat16:
                    narrow_tile<ToBFloat16>(plan, bounds, segment, offset, size, stream, unproved);
                    break;
                default:
                    narrow_tile<ToFloat32>(plan, bounds, segment, offset, size, stream, unproved);
                    break;
            }
        }
        for (std::size_t u = 0; u < unproved.count; ++u) {
            finite &= fedbench::detail::exact_mean_at(plan, segment, offset + unproved.index[u]);
        }
    }
#if FEDBENCH_ISA_LEVEL > 0
    _mm_sfence();  // streamed results are visible to whoever reads them next
#endif
    return finite;
}

}  // namespace fedbench::FEDBENCH_ISA
