// Distances: the same on every level, symmetric, close to and decided by the exact one.
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "buffers.hpp"
#include "check.hpp"
#include "fedbench/distance.hpp"

using namespace fedbench;
using fedbench::testing::GuardedBuffer;
using fedbench::testing::trying;

namespace {

double to_double(const std::vector<std::uint64_t>& limbs) {
    double value = 0;
    for (std::size_t i = 0; i < limbs.size(); ++i)
        value += std::ldexp(static_cast<double>(limbs[i]), static_cast<int>(64 * i) + kExactUnit);
    return value;
}

template <class T>
double exactly(const std::vector<T>& a, const std::vector<T>& b, DType dtype) {
    const PairSegment segment{a.data(), b.data(), a.size(), dtype};
    return to_double(exact_squared_distance({&segment, 1}));
}

}  // namespace

TEST(levels_sizes_and_misalignment) {
    std::mt19937_64 random(1);
    for (std::size_t size = 0; size < 60; ++size) {
        for (const std::size_t shift : {0, 1, 6}) {
            trying("size", size, "shift", shift);
            GuardedBuffer<float> a(size, shift), b(size, shift + 3);
            for (std::size_t i = 0; i < size; ++i) {
                a.set(i, static_cast<float>(static_cast<int>(random() % 200) - 100) / 8);
                b.set(i, static_cast<float>(static_cast<int>(random() % 200) - 100) / 8);
            }
            double sum = 0;
            for (std::size_t i = 0; i < size; ++i) sum += std::pow(a.get(i) - b.get(i), 2);
            const PairSegment forth{a.address(), b.address(), size, DType::float32};
            const PairSegment back{b.address(), a.address(), size, DType::float32};
            const PairSegment same{a.address(), a.address(), size, DType::float32};
            for (const IsaLevel level : available_isas()) {
                CHECK_EQUAL(squared_distance({&forth, 1}, level), sum);
                CHECK_EQUAL(squared_distance({&back, 1}, level), sum);
                CHECK_EQUAL(squared_distance({&same, 1}, level), 0.0);
            }
            CHECK_EQUAL(to_double(exact_squared_distance({&forth, 1})), sum);
        }
    }
}

TEST(every_level_rounds_alike) {
    std::mt19937_64 random(2);
    std::normal_distribution<double> normal;
    for (const std::size_t size : {7UL, 4096UL, 4097UL, 200'003UL}) {
        std::vector<double> a(size), b(size);
        for (std::size_t i = 0; i < size; ++i) a[i] = normal(random), b[i] = normal(random) * 1e3;
        const PairSegment segment{a.data(), b.data(), size, DType::float64};
        const PairSegment origin{a.data(), nullptr, size, DType::float64};
        const double expected = squared_distance({&segment, 1}, IsaLevel::portable);
        const double norm = squared_distance({&origin, 1}, IsaLevel::portable);
        for (const IsaLevel level : available_isas()) {
            trying("size", size, isa_name(level));
            CHECK_EQUAL(squared_distance({&segment, 1}, level), expected);
            CHECK_EQUAL(squared_distance({&origin, 1}, level), norm);
        }
        CHECK(std::abs(exactly(a, b, DType::float64) / expected - 1) < 1e-12);
    }
}

TEST(sixteen_bit_types) {
    const std::vector<std::uint16_t> a = {0x3c00, 0xc000, 0x0001}, b = {0x0000, 0x3c00, 0x0000};
    CHECK_EQUAL(exactly(a, b, DType::float16), 10.0 + 0x1p-48);
    const PairSegment segment{a.data(), b.data(), a.size(), DType::float16};
    for (const IsaLevel level : available_isas())
        CHECK_EQUAL(squared_distance({&segment, 1}, level), 10.0 + 0x1p-48);
}

TEST(exact_where_doubles_round) {
    const double largest = std::numeric_limits<double>::max();
    CHECK_EQUAL(exactly<double>({1.0, 1e200}, {1.0, 1e200}, DType::float64), 0.0);
    // (1 - 2^-60)^2 differs from 1 beyond a double: compare the integers.
    const std::vector<double> one = {1.0}, tiny = {0x1p-60}, zero = {0.0};
    const PairSegment p{one.data(), tiny.data(), 1, DType::float64};
    const PairSegment q{one.data(), zero.data(), 1, DType::float64};
    const auto x = exact_squared_distance({&p, 1}), y = exact_squared_distance({&q, 1});
    CHECK(x != y);
    // 1 - 2^-59 + 2^-120 in units of 2^-2148.
    const auto bit = [&x](int i) {
        const auto at = static_cast<std::size_t>(i - kExactUnit);
        return (x[at / 64] >> (at % 64)) & 1;
    };
    CHECK_EQUAL(bit(0), 0U);
    CHECK_EQUAL(bit(-1), 1U);
    CHECK_EQUAL(bit(-59), 1U);
    CHECK_EQUAL(bit(-60), 0U);
    CHECK_EQUAL(bit(-120), 1U);
    CHECK_EQUAL(bit(-121), 0U);
    const std::vector<double> huge = {largest}, negative = {-largest};
    const PairSegment far{huge.data(), negative.data(), 1, DType::float64};
    const auto limbs = exact_squared_distance({&far, 1});
    // (2 largest)^2 = 2^2050 - 2^1998 + 2^1944
    CHECK_EQUAL(
        (limbs[static_cast<std::size_t>((1944 - kExactUnit) / 64)] >> ((1944 - kExactUnit) % 64)) &
            1,
        1U);
}

TEST_MAIN()
