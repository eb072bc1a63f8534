// Exact sums of products of doubles and their correctly rounded quotient: the slow, certain path
// behind every filter, and the oracle of the tests.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fedbench/dtype.hpp"

namespace fedbench::exact {

__extension__ typedef unsigned __int128 uint128;

// (-1)^negative * mantissa * 2^exponent; a zero has mantissa 0.
struct Dyadic {
    std::uint64_t mantissa = 0;
    int exponent = 0;
    bool negative = false;
};

// A finite double, exactly.
inline Dyadic split(double value) noexcept {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const int field = static_cast<int>((bits >> 52) & 0x7ff);
    const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
    if (field == 0) return {fraction, -1074, (bits >> 63) != 0};
    return {fraction | (std::uint64_t{1} << 52), field - 1075, (bits >> 63) != 0};
}

inline int bit_length(std::span<const std::uint64_t> limbs) noexcept {
    for (std::size_t i = limbs.size(); i-- > 0;) {
        if (limbs[i] != 0) return static_cast<int>(64 * i) + 64 - std::countl_zero(limbs[i]);
    }
    return 0;
}

// A sum of integers times powers of two in two's complement: 64-bit limbs over the range of
// exponents that the terms need, which is asked for at the start.
class Sum {
  public:
    // Products of two doubles span 2^-2148 ... 2^2048; the bins of a streaming sum, which are wider
    // than what they hold, reach a little further, and 64 bits more hold the carries.
    static constexpr std::size_t kMaxLimbs = 72;

    // Terms are multiples of 2^lowest and smaller than 2^highest; fewer than 2^62 are added.
    Sum(int lowest, int highest) noexcept
        : exponent_(lowest), size_(static_cast<std::size_t>((highest - lowest + 63) / 64 + 1)) {
        std::fill_n(limbs_.begin(), size_, 0);
    }

    void add(uint128 magnitude, int exponent, bool negative) noexcept {
        const auto position = static_cast<std::size_t>(exponent - exponent_);
        const std::size_t first = position / 64;
        const auto shift = static_cast<unsigned>(position % 64);
        const auto low = static_cast<std::uint64_t>(magnitude);
        const auto high = static_cast<std::uint64_t>(magnitude >> 64);
        const std::array<std::uint64_t, 3> part = {
            low << shift, (high << shift) | (shift == 0 ? 0 : low >> (64 - shift)),
            shift == 0 ? 0 : high >> (64 - shift)};
        if (negative) {
            subtract(part, first);
        } else {
            add(part, first);
        }
    }

    // Adds another sum of the same range.
    void add(const Sum& other) noexcept {
        std::uint64_t carry = 0;
        for (std::size_t i = 0; i < size_; ++i) {
            const uint128 sum = static_cast<uint128>(limbs_[i]) + other.limbs_[i] + carry;
            limbs_[i] = static_cast<std::uint64_t>(sum);
            carry = static_cast<std::uint64_t>(sum >> 64);
        }
    }

    void add_product(const Dyadic& a, const Dyadic& b) noexcept {
        add(static_cast<uint128>(a.mantissa) * b.mantissa, a.exponent + b.exponent,
            a.negative != b.negative);
    }

    // Turns the value into its magnitude and returns whether it was negative.
    bool take_sign() noexcept {
        if ((limbs_[size_ - 1] >> 63) == 0) return false;
        std::uint64_t carry = 1;
        for (std::size_t i = 0; i < size_; ++i) {
            limbs_[i] = ~limbs_[i] + carry;
            carry = carry != 0 && limbs_[i] == 0 ? 1 : 0;
        }
        return true;
    }

    [[nodiscard]] std::span<const std::uint64_t> limbs() const noexcept {
        return {limbs_.data(), size_};
    }
    [[nodiscard]] int exponent() const noexcept { return exponent_; }

  private:
    void add(const std::array<std::uint64_t, 3>& part, std::size_t first) noexcept {
        std::uint64_t carry = 0;
        for (std::size_t i = first; i < size_ && (i < first + 3 || carry != 0); ++i) {
            const std::uint64_t term = i < first + 3 ? part[i - first] : 0;
            const uint128 sum = static_cast<uint128>(limbs_[i]) + term + carry;
            limbs_[i] = static_cast<std::uint64_t>(sum);
            carry = static_cast<std::uint64_t>(sum >> 64);
        }
    }

    void subtract(const std::array<std::uint64_t, 3>& part, std::size_t first) noexcept {
        std::uint64_t borrow = 0;
        for (std::size_t i = first; i < size_ && (i < first + 3 || borrow != 0); ++i) {
            const std::uint64_t term = i < first + 3 ? part[i - first] : 0;
            const uint128 difference = static_cast<uint128>(limbs_[i]) - term - borrow;
            limbs_[i] = static_cast<std::uint64_t>(difference);
            borrow = static_cast<std::uint64_t>(difference >> 64) & 1;
        }
    }

    int exponent_;
    std::size_t size_;
    std::array<std::uint64_t, kMaxLimbs> limbs_;
};

// A positive number: limbs * 2^exponent.
struct Positive {
    std::vector<std::uint64_t> limbs;
    int exponent = 0;

    // The nearest double to value * 2^-scale, for estimates; at least as exact as two ulps.
    [[nodiscard]] double scaled(int scale) const noexcept {
        double value = 0.0;
        for (std::size_t i = limbs.size(); i-- > 0;) {
            value += std::ldexp(static_cast<double>(limbs[i]),
                                static_cast<int>(64 * i) + exponent - scale);
        }
        return value;
    }
};

// A non-negative sum, without trailing zero bits.
inline Positive positive_of(const Sum& sum) {
    const auto limbs = sum.limbs();
    Positive result;
    std::size_t zeros = 0;
    while (zeros < limbs.size() && limbs[zeros] == 0) ++zeros;
    if (zeros == limbs.size()) return result;
    const auto shift = static_cast<unsigned>(std::countr_zero(limbs[zeros]));
    for (std::size_t i = zeros; i < limbs.size(); ++i) {
        const bool more = i + 1 < limbs.size() && shift != 0;
        result.limbs.push_back((limbs[i] >> shift) | (more ? limbs[i + 1] << (64 - shift) : 0));
    }
    while (result.limbs.back() == 0) result.limbs.pop_back();
    result.exponent = sum.exponent() + static_cast<int>(64 * zeros + shift);
    return result;
}

// The sum of non-negative finite doubles, exactly. Integers like sample counts, whose sum is below
// 2^53, need no wide one.
inline Positive sum_of(std::span<const double> values) {
    double plain = 0.0;
    bool integers = true;
    for (const double value : values) {
        plain += value;
        integers = integers && value == std::trunc(value);
    }
    if (integers && plain > 0.0 && plain < 0x1p53) {
        const Dyadic part = split(plain);
        const int zeros = std::countr_zero(part.mantissa);
        return {{part.mantissa >> zeros}, part.exponent + zeros};
    }
    Sum sum(-1074, 1024);
    for (const double value : values) {
        const Dyadic part = split(value);
        if (part.mantissa != 0) sum.add(part.mantissa, part.exponent, false);
    }
    return positive_of(sum);
}

// A binary format of IEEE 754: bits = (field << (precision - 1)) + fraction.
struct Format {
    int precision;  // significant bits
    int least;      // exponent of the smallest subnormal
    int special;    // the exponent field of infinities
    int sign_position;
};

constexpr Format format_of(DType dtype) noexcept {
    switch (dtype) {
        case DType::float64:
            return {53, -1074, 0x7ff, 63};
        case DType::float16:
            return {11, -24, 0x1f, 15};
        case DType::bfloat16:
            return {8, -133, 0xff, 15};
        default:
            return {24, -149, 0xff, 31};
    }
}

// Bits of quotient * 2^exponent (and a little more, if `sticky`), rounded to nearest, ties to even.
// The quotient has at least 62 significant bits.
inline std::uint64_t round_bits(std::uint64_t quotient, int exponent, bool sticky, bool negative,
                                const Format& format) noexcept {
    const int length = 64 - std::countl_zero(quotient);
    const int target = std::max(exponent + length - format.precision, format.least);
    const int drop = target - exponent;
    std::uint64_t mantissa = 0;
    if (drop <= 64) {
        const uint128 wide = quotient;
        mantissa = static_cast<std::uint64_t>(wide >> drop);
        const uint128 rest = wide - (static_cast<uint128>(mantissa) << drop);
        const uint128 half = static_cast<uint128>(1) << (drop - 1);
        if (rest > half || (rest == half && (sticky || (mantissa & 1) != 0))) ++mantissa;
    }
    const std::uint64_t infinity = static_cast<std::uint64_t>(format.special)
                                   << (format.precision - 1);
    const auto field = static_cast<std::uint64_t>(target - format.least);
    std::uint64_t bits = infinity;
    if (field < static_cast<std::uint64_t>(format.special)) {
        bits = std::min(infinity, (field << (format.precision - 1)) + mantissa);
    }
    return bits | (static_cast<std::uint64_t>(negative) << format.sign_position);
}

namespace detail {

// Enough for a divisor of 35 limbs, 63 bits more and one shift.
using Wide = std::array<std::uint64_t, Sum::kMaxLimbs + 4>;

// out = in * 2^shift for a shift of either sign; returns whether bits were lost.
inline bool shifted(std::span<const std::uint64_t> in, int shift, Wide& out) noexcept {
    out.fill(0);
    bool lost = false;
    for (std::size_t i = 0; i < in.size(); ++i) {
        if (in[i] == 0) continue;
        const int position = static_cast<int>(64 * i) + shift;
        const int limb = position >= 0 ? position / 64 : -((63 - position) / 64);
        const auto offset = static_cast<unsigned>(position - 64 * limb);
        const std::uint64_t low = in[i] << offset;
        const std::uint64_t high = offset == 0 ? 0 : in[i] >> (64 - offset);
        if (limb >= 0) {
            out[static_cast<std::size_t>(limb)] |= low;
        } else {
            lost = lost || low != 0;
        }
        if (limb + 1 >= 0) {
            if (high != 0) out[static_cast<std::size_t>(limb + 1)] |= high;
        } else {
            lost = lost || high != 0;
        }
    }
    return lost;
}

// Restoring division, 64 quotient bits: numerator < divisor * 2^64. Leaves the remainder.
inline std::uint64_t divide(Wide& numerator, std::span<const std::uint64_t> divisor) noexcept {
    Wide large;
    shifted(divisor, 63, large);
    const std::size_t size = divisor.size() + 2;
    std::uint64_t quotient = 0;
    for (int i = 63;; --i) {
        std::size_t top = size;
        while (top > 0 && numerator[top - 1] == large[top - 1]) --top;
        if (top == 0 || numerator[top - 1] > large[top - 1]) {
            quotient |= std::uint64_t{1} << i;
            std::uint64_t borrow = 0;
            for (std::size_t j = 0; j < size; ++j) {
                const uint128 difference = static_cast<uint128>(numerator[j]) - large[j] - borrow;
                numerator[j] = static_cast<std::uint64_t>(difference);
                borrow = static_cast<std::uint64_t>(difference >> 64) & 1;
            }
        }
        if (i == 0) return quotient;
        for (std::size_t j = size; j-- > 0;) {
            numerator[j] = (numerator[j] << 1) | (j > 0 ? numerator[j - 1] >> 63 : 0);
        }
    }
}

}  // namespace detail

// The bits of sum / divisor, rounded once to nearest, ties to even. An exact zero is +0; a
// negative quotient that underflows is -0. Consumes the sum.
inline std::uint64_t round_quotient(Sum& sum, const Positive& divisor, DType dtype) noexcept {
    const bool negative = sum.take_sign();
    const int numerator_bits = bit_length(sum.limbs());
    if (numerator_bits == 0) return 0;
    // A shift that gives the quotient 63 or 64 bits.
    const int shift = bit_length(divisor.limbs) + 63 - numerator_bits;
    detail::Wide numerator;
    bool sticky = detail::shifted(sum.limbs(), shift, numerator);
    std::uint64_t quotient = 0;
    if (divisor.limbs.size() == 1) {
        const uint128 wide = (static_cast<uint128>(numerator[1]) << 64) | numerator[0];
        quotient = static_cast<std::uint64_t>(wide / divisor.limbs[0]);
        sticky = sticky || wide % divisor.limbs[0] != 0;
    } else {
        quotient = detail::divide(numerator, divisor.limbs);
        sticky = sticky || bit_length(numerator) != 0;
    }
    return round_bits(quotient, sum.exponent() - shift - divisor.exponent, sticky, negative,
                      format_of(dtype));
}

// The canonical quiet NaN and the infinities of a format.
constexpr std::uint64_t infinity_bits(DType dtype, bool negative) noexcept {
    const Format format = format_of(dtype);
    return (static_cast<std::uint64_t>(format.special) << (format.precision - 1)) |
           (static_cast<std::uint64_t>(negative) << format.sign_position);
}
constexpr std::uint64_t nan_bits(DType dtype) noexcept {
    return infinity_bits(dtype, false) | (std::uint64_t{1} << (format_of(dtype).precision - 2));
}

inline void store_bits(DType dtype, void* out, std::size_t index, std::uint64_t bits) noexcept {
    switch (item_size(dtype)) {
        case 8:
            store_unaligned(out, index, bits);
            break;
        case 4:
            store_unaligned(out, index, static_cast<std::uint32_t>(bits));
            break;
        default:
            store_unaligned(out, index, static_cast<std::uint16_t>(bits));
            break;
    }
}

}  // namespace fedbench::exact
