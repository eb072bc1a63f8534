// Included by streaming.hpp once per instruction set. streaming.hpp explains what is done here.

namespace fedbench::FEDBENCH_ISA {

// ---- scan ----

template <class Type>
inline BlockRange scan_narrow(const std::byte* from, std::size_t size) {
    constexpr std::size_t item = item_size(Type::dtype);
    u32h largest = {};
    u32h smallest = ~u32h{};
    for (std::size_t i = 0; i < size; i += kLanes) {
        u32h bits;
        if (size - i >= kLanes) {
            __builtin_prefetch(from + i * item + 1024);
            bits = bits_as<u32h>(Type::load_floats(from + i * item));
        } else {
            std::byte padded[kLanes * item] = {};
            std::memcpy(padded, from + i * item, (size - i) * item);
            bits = bits_as<u32h>(Type::load_floats(padded));
        }
        bits &= 0x7fffffffU;
        largest = largest > bits ? largest : bits;
        bits -= 1U;
        smallest = smallest < bits ? smallest : bits;
    }
    std::uint32_t most = 0;
    std::uint32_t least = ~0U;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        most = std::max(most, static_cast<std::uint32_t>(largest[lane]));
        least = std::min(least, static_cast<std::uint32_t>(smallest[lane]));
    }
    BlockRange range;
    range.finite = most < 0x7f800000U;
    range.zero = most == 0;
    // Subnormals have field 0 and the exponents of field 1.
    range.highest = std::max(static_cast<int>(most >> 23), 1) - 126;
    range.lowest =
        std::max(static_cast<int>((least + 1) >> 23), 1) - 126 - significand_bits(Type::dtype);
    return range;
}

inline BlockRange scan_doubles(const std::byte* from, std::size_t size) {
    const f64v infinite = splat(std::numeric_limits<double>::infinity());
    f64v largest = {};
    f64v smallest = infinite;
    i64v special = {};
    for (std::size_t i = 0; i < size; i += kLanes) {
        f64v x = {};
        std::memcpy(&x, from + i * 8, std::min(kLanes, size - i) * 8);
        special |= (x - x) != 0.0;
        x = abs(x);
        const f64v nonzero = x == 0.0 ? infinite : x;
        largest = largest > x ? largest : x;
        smallest = smallest < nonzero ? smallest : nonzero;
    }
    double most = 0.0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        most = std::max(most, static_cast<double>(largest[lane]));
        least = std::min(least, static_cast<double>(smallest[lane]));
    }
    BlockRange range;
    range.finite = mask_bits(special) == 0;
    range.zero = most == 0.0;
    if (range.zero || !range.finite) return range;
    std::frexp(most, &range.highest);
    const exact::Dyadic part = exact::split(least);
    range.lowest = part.exponent;
    return range;
}

inline BlockRange scan_block(DType dtype, const void* row, std::size_t offset, std::size_t size) {
    const std::byte* from = static_cast<const std::byte*>(row) + offset * item_size(dtype);
    switch (dtype) {
        case DType::float32:
            return scan_narrow<Float32>(from, size);
        case DType::float16:
            return scan_narrow<Float16>(from, size);
        case DType::bfloat16:
            return scan_narrow<BFloat16>(from, size);
        case DType::int8:
            return scan_narrow<Int8>(from, size);
        case DType::float64:
            return scan_doubles(from, size);
    }
    return {};
}

// ---- deposit ----

// Adds one exact product to kBins bins held in registers, modulo 2^64.
template <int kBins>
FEDBENCH_INLINE void add_product(f64v p, const f64v* magic, u64v* bins) {
    for (int f = kBins - 1; f >= 0; --f) {
        const f64v t = p + magic[f];
        bins[f] += bits_as<u64v>(t);
        if (f > 0) p -= t - magic[f];
    }
}

template <class Type, int kBins>
FEDBENCH_INLINE void add_value(const std::byte* from, f64v weight, const f64v* magic, u64v* bins) {
    const f64v x = load_doubles<Type>(from);
    if constexpr (Type::dtype == DType::float64) {
        // Veltkamp's halves: 26 bits each.
        const f64v c = x * 0x1.0000002p27;
        const f64v high = c - (c - x);
        add_product<kBins>(weight * high, magic, bins);
        add_product<kBins>(weight * (x - high), magic, bins);
    } else {
        add_product<kBins>(weight * x, magic, bins);
    }
}

// Adds weight[u] * rows[u] for kRows rows to a block of kBins bins.
template <class Type, int kBins, int kRows>
inline void deposit_rows(const BinBlock& block, const std::byte* const* rows, const double* weight,
                         std::size_t size) {
    constexpr std::size_t item = item_size(Type::dtype);
    constexpr int products = Type::dtype == DType::float64 ? 2 : 1;
    f64v magic[kBins];
    u64v correction[kBins];
    for (int f = 0; f < kBins; ++f) {
        magic[f] = splat(std::ldexp(1.5, 52 + bin_exponent(block.lowest + f)));
        correction[f] =
            bits_as<u64v>(magic[f]) * (u64v{} + static_cast<std::uint64_t>(kRows * products));
    }
    f64v weights[kRows];
    for (int r = 0; r < kRows; ++r) weights[r] = splat(weight[r]);
    for (std::size_t i = 0; i < size; i += kLanes) {
        u64v bins[kBins];
        std::int64_t* at = block.bins + i;
        for (int f = 0; f < kBins; ++f) {
            bins[f] = load<u64v>(at + static_cast<std::size_t>(f) * block.stride) - correction[f];
        }
        if (size - i >= kLanes) {
            for (int r = 0; r < kRows; ++r) {
                add_value<Type, kBins>(rows[r] + i * item, weights[r], magic, bins);
            }
        } else {
            std::byte padded[kLanes * item];
            for (int r = 0; r < kRows; ++r) {
                std::memset(padded, 0, sizeof padded);
                std::memcpy(padded, rows[r] + i * item, (size - i) * item);
                add_value<Type, kBins>(padded, weights[r], magic, bins);
            }
        }
        for (int f = 0; f < kBins; ++f) {
            store(at + static_cast<std::size_t>(f) * block.stride, bins[f]);
        }
    }
}

template <class Type, int kRows>
inline bool deposit_fast(const BinBlock& block, const std::byte* const* rows, const double* weight,
                         std::size_t size) {
    switch (block.count) {
        case 1:
            deposit_rows<Type, 1, kRows>(block, rows, weight, size);
            return true;
        case 2:
            deposit_rows<Type, 2, kRows>(block, rows, weight, size);
            return true;
        case 3:
            deposit_rows<Type, 3, kRows>(block, rows, weight, size);
            return true;
        case 4:
            deposit_rows<Type, 4, kRows>(block, rows, weight, size);
            return true;
        default:
            return false;
    }
}

template <class Type>
inline bool deposit_type(const BinBlock& block, const void* const* rows, const double* weight,
                         std::size_t count, std::size_t offset, std::size_t size) {
    const std::byte* from[4];
    for (std::size_t r = 0; r < count; ++r) {
        from[r] = static_cast<const std::byte*>(rows[r]) + offset * item_size(Type::dtype);
    }
    switch (count) {
        case 1:
            return deposit_fast<Type, 1>(block, from, weight, size);
        case 2:
            return deposit_fast<Type, 2>(block, from, weight, size);
        case 3:
            return deposit_fast<Type, 3>(block, from, weight, size);
        default:
            return deposit_fast<Type, 4>(block, from, weight, size);
    }
}

// Adds up to four rows with weights of 26 (29) bits. False if the window is too wide for it.
inline bool deposit(const BinBlock& block, DType dtype, const void* const* rows,
                    const double* weight, std::size_t count, std::size_t offset, std::size_t size) {
    switch (dtype) {
        case DType::float32:
            return deposit_type<Float32>(block, rows, weight, count, offset, size);
        case DType::float64:
            return deposit_type<Float64>(block, rows, weight, count, offset, size);
        case DType::float16:
            return deposit_type<Float16>(block, rows, weight, count, offset, size);
        case DType::bfloat16:
            return deposit_type<BFloat16>(block, rows, weight, count, offset, size);
        case DType::int8:
            return deposit_type<Int8>(block, rows, weight, count, offset, size);
    }
    return false;
}

// ---- quotient ----

// What the quotient needs to know about the divisor W.
struct Divisor {
    f64v value;
    f64v low;
    bool short_integer;  // W is an integer below 2^50, times a power of two: `low` is zero
};

// An int64 below 2^51 in magnitude as a double.
FEDBENCH_INLINE f64v to_double(i64v value) {
    const f64v magic = splat(0x1.8p52);
    return bits_as<f64v>(value + bits_as<i64v>(magic)) - magic;
}

// Rounds S / W for S = h + l exactly, |l| <= ulp(h) / 2, to `bits`; returns the proved lanes.
//
// Short W: with q near the quotient, S - q W is h - q W, exact because it is a multiple of
// ulp(q) ulp(W) and below 2^53 of them, plus l, and the sign of that rounded sum is exact. So q
// can be rounded to odd, and narrow outputs follow without doubt; float64 outputs are proved
// unless the remainder is within a hair of half a last place. Any other W: the filter of mean.hpp.
template <class Out>
FEDBENCH_INLINE i64v quotient(f64v h, f64v l, const Divisor& divisor, f64v& value) {
    constexpr bool narrow_out = Out::dtype != DType::float64;
    const f64v w = divisor.value;
    f64v q = h / w;
    const f64v r = division_remainder(h, q, w) + (l - q * divisor.low);
    const f64v more = r / w;
    if (divisor.short_integer) {
        q += more;
        const f64v rest = division_remainder(h, q, w) + l;
        if constexpr (narrow_out) {
            value = to_odd(q, rest);
            return splat(std::int64_t{-1});
        } else {
            value = q;
            const f64v scale = bits_as<f64v>(bits_as<i64v>(q) & 0x7ff0000000000000LL);
            const f64v distance = abs(rest / w) - scale * 0x1p-53;
            const i64v clear = abs(distance) > scale * 0x1p-90;
            const i64v power = (bits_as<i64v>(q) & 0x000fffffffffffffLL) == 0;
            return (clear & ~power & (distance < 0.0)) | (rest == 0.0);
        }
    }
    const f64v epsilon = abs(q) * (narrow_out ? 0x1p-51 : 0x1p-100);
    const f64v low = q + (more - epsilon);
    const f64v high = q + (more + epsilon);
    value = low;
    return same_rounding<Out>(low, high);
}

// Rounds the quotients of a block of one or two bins to `out`; lists what it could not prove.
template <class Out>
inline void finish_block(const BinBlock& block, const Divisor& divisor, std::byte* out,
                         std::size_t size, Unproved& unproved) {
    const f64v unit_low = splat(std::ldexp(1.0, bin_exponent(block.lowest)));
    const f64v unit_high = splat(std::ldexp(1.0, bin_exponent(block.lowest + 1)));
    const i64v half = splat(std::int64_t{1} << (kBinBits - 1));
    for (std::size_t i = 0; i < size; i += kLanes) {
        const i64v low_bin = load<i64v>(block.bins + i);
        const i64v high_bin = block.count > 1 ? load<i64v>(block.bins + block.stride + i) : i64v{};
        const i64v carry = (low_bin + half) >> kBinBits;
        const i64v digit = low_bin - (carry << kBinBits);
        const i64v upper = high_bin + carry;
        const i64v limit = splat(std::int64_t{1} << 50);
        const i64v fits = (upper < limit) & (upper > -limit);
        f64v h = to_double(upper) * unit_high;
        f64v l = {};
        add_exactly(h, l, to_double(digit) * unit_low);
        f64v value;
        const i64v proved = fits & quotient<Out>(h, l, divisor, value);
        put_doubles<Out>(out, i, size, value);
        const unsigned doubtful = ~mask_bits(proved) & kAllLanes;
        if (doubtful != 0) unproved.add(doubtful, i, size);
    }
}

inline void finish(const BinBlock& block, double divisor, double divisor_low, bool short_integer,
                   DType out_dtype, std::byte* out, std::size_t size, Unproved& unproved) {
    const Divisor by = {splat(divisor), splat(divisor_low), short_integer};
    switch (out_dtype) {
        case DType::float64:
            finish_block<ToFloat64>(block, by, out, size, unproved);
            break;
        case DType::float16:
            finish_block<ToFloat16>(block, by, out, size, unproved);
            break;
        case DType::bfloat16:
            finish_block<ToBFloat16>(block, by, out, size, unproved);
            break;
        default:
            finish_block<ToFloat32>(block, by, out, size, unproved);
            break;
    }
}

}  // namespace fedbench::FEDBENCH_ISA
