// Median, trimmed mean and mean around the median against exact arithmetic on sorted values.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "buffers.hpp"
#include "check.hpp"
#include "fedbench/order_statistics.hpp"

using namespace fedbench;
using fedbench::testing::GuardedBuffer;
using fedbench::testing::trying;

namespace {

bool same_bits(double a, double b) {
    return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

bool below(double a, double b) {
    return a < b || (a == b && std::signbit(a) && !std::signbit(b));
}

// The mean rounded once to the type: the accumulator has a test of its own.
double mean_of(const std::vector<double>& values, DType dtype) {
    double special = 0;
    exact::Sum sum(-1074, 1024 + 32);
    for (const double v : values) {
        if (v - v != 0) {
            special += v;
            continue;
        }
        const exact::Dyadic part = exact::split(v);
        if (part.mantissa != 0) sum.add(part.mantissa, part.exponent, part.negative);
    }
    if (std::isnan(special) || std::isinf(special)) return special;
    const exact::Positive count{{values.size()}, 0};
    const std::uint64_t bits = exact::round_quotient(sum, count, dtype);
    return load_element(dtype, &bits, 0);
}

double reference(std::vector<double> column, const OrderStatistic& statistic) {
    for (const double v : column)
        if (std::isnan(v)) return v;
    std::sort(column.begin(), column.end(), below);
    const auto [first, last] = statistic.ranks();
    if (statistic.kind == Statistic::median && first == last)
        return column[static_cast<std::size_t>(first)];
    if (statistic.kind != Statistic::mean_around_median)
        return mean_of({column.begin() + first, column.begin() + last + 1}, statistic.dtype);
    // Leave out, one by one, the end that lies farther from the median; exact for small integers.
    const double twice = column[(column.size() - 1) / 2] + column[column.size() / 2];
    while (column.size() > static_cast<std::size_t>(statistic.size)) {
        const double lower = twice - 2 * column.front(), upper = 2 * column.back() - twice;
        column.erase(upper < lower ? column.begin() : column.end() - 1);
    }
    return mean_of(column, statistic.dtype);
}

std::vector<OrderStatistic> statistics(int clients, DType dtype, bool with_distances) {
    std::vector<OrderStatistic> all{OrderStatistic::median(clients, dtype)};
    for (const int trimmed : {0, 1, 2, clients / 4, (clients - 1) / 2})
        if (2 * trimmed < clients)
            all.push_back(OrderStatistic::trimmed_mean(clients, trimmed, dtype));
    for (const int left_out : {0, 1, clients / 3})
        if (left_out < clients && with_distances)
            all.push_back(OrderStatistic::mean_around_median(clients, clients - left_out, dtype));
    return all;
}

// The bits of one element, in the low bytes.
using Draw = std::uint64_t (*)(std::mt19937_64&, DType);

std::uint64_t bits_of(double value, DType dtype) {
    if (dtype == DType::float64) return std::bit_cast<std::uint64_t>(value);
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    if (dtype == DType::float32) return bits;
    return dtype == DType::float16 ? float_bits_to_float16(bits) : float_bits_to_bfloat16(bits);
}

// Many ties, distances that doubles hold exactly, means that need rounding.
std::uint64_t small_integer(std::mt19937_64& random, DType dtype) {
    const double value = static_cast<double>(random() % 41) - 20;
    return bits_of(value == 0 && random() % 2 == 0 ? -value : value, dtype);
}

std::uint64_t any_bits(std::mt19937_64& random, DType) {
    return random();
}

std::uint64_t any_finite(std::mt19937_64& random, DType dtype) {
    for (;;) {
        const std::uint64_t bits = random();
        if (std::isfinite(load_element(dtype, &bits, 0))) return bits;
    }
}

// Close magnitudes, so that ties of the rounding are common.
std::uint64_t near_ties(std::mt19937_64& random, DType dtype) {
    const double unit = std::ldexp(1.0, 1 - significand_bits(dtype));
    const double value =
        (1 + unit * static_cast<double>(random() % 4)) * static_cast<double>(1 << (random() % 3));
    return bits_of(random() % 2 == 0 ? value : -value, dtype);
}

void check_all(int clients, std::size_t size, std::size_t misalignment, DType dtype, IsaLevel level,
               std::mt19937_64& random, Draw draw) {
    const std::size_t item = item_size(dtype);
    std::vector<GuardedBuffer<unsigned char>> rows;
    std::vector<const void*> addresses;
    for (int k = 0; k < clients; ++k) {
        rows.emplace_back(size * item, (misalignment + static_cast<std::size_t>(k)) % 5);
        for (std::size_t i = 0; i < size; ++i) {
            const std::uint64_t bits = draw(random, dtype);
            std::memcpy(static_cast<unsigned char*>(rows.back().address()) + i * item, &bits, item);
        }
    }
    for (auto& row : rows) addresses.push_back(row.address());
    for (const OrderStatistic& statistic : statistics(clients, dtype, draw == &small_integer)) {
        trying("clients", clients, "size", size, "kind", static_cast<int>(statistic.kind), "first",
               statistic.first, "kept", statistic.size, isa_name(level), "dtype",
               static_cast<int>(dtype));
        GuardedBuffer<unsigned char> out(size * item, misalignment);
        const bool finite =
            order_statistic(addresses.data(), statistic, size, out.address(), level);
        CHECK(out.intact());
        bool expect_finite = true;
        for (std::size_t i = 0; i < size; ++i) {
            std::vector<double> column;
            for (const void* row : addresses) column.push_back(load_element(dtype, row, i));
            for (const double value : column) expect_finite = expect_finite && std::isfinite(value);
            CHECK(same_bits(load_element(dtype, out.address(), i), reference(column, statistic)));
        }
        CHECK_EQUAL(finite, expect_finite);
    }
}

constexpr DType kDTypes[] = {DType::float32, DType::float64, DType::float16, DType::bfloat16};

void check_levels(int clients, std::size_t size, std::size_t misalignment,
                  std::mt19937_64& random) {
    for (const IsaLevel level : available_isas())
        for (const DType dtype : kDTypes)
            for (const Draw draw : {&small_integer, &any_bits, &any_finite, &near_ties})
                check_all(clients, size, misalignment, dtype, level, random, draw);
}

// The statistic of one coordinate.
template <class T>
T one(const std::vector<T>& column, const OrderStatistic& statistic, IsaLevel level) {
    std::vector<const void*> addresses;
    for (const T& value : column) addresses.push_back(&value);
    T out = 0;
    order_statistic(addresses.data(), statistic, 1, &out, level);
    return out;
}

}  // namespace

TEST(every_client_count_and_size) {
    std::mt19937_64 random(1);
    for (int clients = 1; clients <= 40; ++clients)
        check_levels(clients, 1 + random() % 70, random() % 5, random);
}

TEST(every_small_size_and_misalignment) {
    std::mt19937_64 random(2);
    for (std::size_t size = 0; size <= 40; ++size)
        for (const int clients : {3, 10, 19}) check_levels(clients, size, size % 7, random);
}

TEST(many_clients) {
    std::mt19937_64 random(3);
    for (const int clients : {63, 64, 65, 100, 127, 128, 129, 300})
        check_levels(clients, 3, 1, random);
    for (const int clients : {NetworkPlan::max_clients, NetworkPlan::max_clients + 1})
        check_levels(clients, 1, 1, random);
}

TEST(sizes_that_use_threads) {
    std::mt19937_64 random(4);
    for (const IsaLevel level : available_isas())
        check_all(3, 300'001, 3, DType::float32, level, random, &near_ties);
    check_all(3, 300'001, 3, DType::bfloat16, active_isa(), random, &near_ties);
}

TEST(no_overflow_between_the_largest_values) {
    const double largest = std::numeric_limits<double>::max();
    const std::vector<double> column = {largest, largest, 1.0, largest};
    for (const IsaLevel level : available_isas()) {
        CHECK_EQUAL(one(column, OrderStatistic::median(4, DType::float64), level), largest);
        CHECK_EQUAL(one(column, OrderStatistic::trimmed_mean(4, 1, DType::float64), level),
                    largest);
        CHECK_EQUAL(one(column, OrderStatistic::mean_around_median(4, 3, DType::float64), level),
                    largest);
    }
}

TEST(the_closest_values_are_found_without_rounding) {
    // The largest value is farther from 0 than -1 by one last place.
    const std::vector<double> column = {-1.0, -0x1p-60, 0.0, 0x1p-60, std::nextafter(1.0, 2.0)};
    // Beside a huge value, the distances of subnormal ones still count.
    const std::vector<double> tiny = {0.0, 0.0, 0x1p-1074, 0x1p-1074, 0x1p1010};
    for (const IsaLevel level : available_isas()) {
        CHECK_EQUAL(one(column, OrderStatistic::mean_around_median(5, 4, DType::float64), level),
                    -0.25);
        CHECK_EQUAL(one(tiny, OrderStatistic::mean_around_median(5, 2, DType::float64), level),
                    0x1p-1074);
    }
}

TEST(infinite_median) {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> column = {-1.0F, 2.0F, infinity, infinity, infinity};
    for (const IsaLevel level : available_isas()) {
        CHECK_EQUAL(one(column, OrderStatistic::mean_around_median(5, 2, DType::float32), level),
                    infinity);
        CHECK_EQUAL(one(column, OrderStatistic::median(5, DType::float32), level), infinity);
    }
}

TEST_MAIN()
