// The sparse mean against the dense one.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "buffers.hpp"
#include "check.hpp"
#include "fedbench/mean.hpp"
#include "fedbench/sparse_mean.hpp"

using namespace fedbench;
using fedbench::testing::GuardedBuffer;
using fedbench::testing::trying;

namespace {

template <class T>
T draw(std::mt19937_64& random, int kind) {
    std::normal_distribution<double> normal;
    switch (kind) {
        case 0:
            return static_cast<T>(normal(random));
        case 1:  // few bits: ties of the rounding
            return static_cast<T>(1 +
                                  std::numeric_limits<T>::epsilon() * static_cast<T>(random() % 4));
        default: {  // any magnitude
            T value;
            do {
                const std::uint64_t bits = random();
                std::memcpy(&value, &bits, sizeof value);
            } while (!std::isfinite(value));
            return value;
        }
    }
}

template <class T, class Index>
void check(std::size_t size, std::size_t clients, bool shuffled, int kind,
           const std::vector<double>& weights, std::mt19937_64& random, unsigned one_in = 5,
           std::size_t misalignment = 1) {
    constexpr DType dtype = sizeof(T) == 4 ? DType::float32 : DType::float64;
    std::vector<std::vector<T>> dense(clients, std::vector<T>(size, T(0)));
    std::vector<GuardedBuffer<Index>> indices;
    std::vector<GuardedBuffer<T>> values;
    for (std::size_t k = 0; k < clients; ++k) {
        std::vector<Index> listed;
        for (std::size_t i = 0; i < size; ++i)
            if (random() % one_in == 0) listed.push_back(static_cast<Index>(i));
        if (shuffled) std::shuffle(listed.begin(), listed.end(), random);
        indices.emplace_back(listed.size(), k % 3);
        values.emplace_back(listed.size(), (k + 1) % 3);
        for (std::size_t i = 0; i < listed.size(); ++i) {
            const T value = draw<T>(random, kind);
            indices.back().set(i, listed[i]);
            values.back().set(i, value);
            dense[k][static_cast<std::size_t>(listed[i])] = value;
        }
    }
    std::vector<SparseRow> rows;
    std::vector<const void*> dense_rows;
    const WeightPlan plan = plan_weights(weights, std::nullopt);
    for (std::size_t k = 0; k < clients; ++k)
        rows.push_back(
            {indices[k].address(), sizeof(Index) == 8, values[k].address(), indices[k].size()});
    for (const std::size_t k : plan.clients) dense_rows.push_back(dense[k].data());
    std::vector<T> expected(size);
    const MeanSegment segment{dense_rows.data(), size, dtype, expected.data(), dtype};
    mean(plan, {&segment, 1});
    GuardedBuffer<T> out(size, misalignment);
    const SparseOutcome outcome = sparse_mean(plan, rows, size, dtype, out.address());
    CHECK_EQUAL(outcome.bad_row, rows.size());
    CHECK(outcome.finite);
    CHECK(out.intact());
    CHECK(size == 0 || std::memcmp(out.address(), expected.data(), size * sizeof(T)) == 0);
}

const std::vector<std::vector<double>> kWeights = {
    {1, 1, 1, 1}, {3, 0, 5, 700}, {0.1, 0.2, 0.3, 0.4}, {1, 2, 1e-300, 4}, {1, 1, 0, 0}};

}  // namespace

TEST(the_bits_of_the_dense_mean) {
    std::mt19937_64 random(1);
    for (const std::size_t size : {0UL, 1UL, 17UL, 4095UL, 4096UL, 4097UL, 9000UL}) {
        for (const auto& weights : kWeights) {
            for (int kind = 0; kind < 3; ++kind) {
                trying("size", size, "kind", kind, "weights", weights[0], weights[1]);
                for (const bool shuffled : {false, true}) {
                    check<float, std::int32_t>(size, 4, shuffled, kind, weights, random);
                    check<float, std::int64_t>(size, 4, shuffled, kind, weights, random);
                    check<double, std::int64_t>(size, 4, shuffled, kind, weights, random);
                }
            }
        }
    }
}

TEST(many_pairs_in_no_order) {
    std::mt19937_64 random(8);
    for (int kind = 0; kind < 3; ++kind) {
        check<float, std::int32_t>(100'000, 2, true, kind, {3, 5}, random);
        check<float, std::int64_t>(100'000, 2, true, kind, {0.3, 5}, random);
        check<double, std::int64_t>(100'000, 2, true, kind, {3, 5}, random);
    }
}

TEST(tiles_with_more_pairs_than_coordinates) {
    std::mt19937_64 random(5);
    for (const unsigned one_in : {1U, 2U}) {
        for (int kind = 0; kind < 3; ++kind) {
            trying("one in", one_in, "kind", kind);
            check<float, std::int32_t>(9000, 4, one_in == 2, kind, {3, 1, 5, 700}, random, one_in);
        }
    }
}

TEST(one_wide_tile_among_narrow_ones) {
    // The sums of the second of three tiles are not exact in double.
    const std::size_t size = 3 * kSparseTile - 5;
    std::vector<std::int32_t> indices(size);
    std::vector<float> a(size), b(size), expected(size), out(size);
    std::mt19937_64 random(6);
    for (std::size_t i = 0; i < size; ++i) {
        indices[i] = static_cast<std::int32_t>(i);
        a[i] = draw<float>(random, 0);
        b[i] = draw<float>(random, 0) * (i / kSparseTile == 1 && i % 7 == 0 ? 1e-20F : 1.0F);
    }
    const WeightPlan plan = plan_weights(std::vector<double>{3, 4}, std::nullopt);
    const void* dense[2] = {a.data(), b.data()};
    const MeanSegment segment{dense, size, DType::float32, expected.data(), DType::float32};
    mean(plan, {&segment, 1});
    const SparseRow rows[2] = {{indices.data(), false, a.data(), size},
                               {indices.data(), false, b.data(), size}};
    sparse_mean(plan, rows, size, DType::float32, out.data());
    CHECK(std::memcmp(out.data(), expected.data(), size * sizeof(float)) == 0);
}

TEST(results_that_are_written_past_the_caches) {
    std::mt19937_64 random(7);
    const std::size_t size = kStreamBytes / sizeof(float) + 1031;
    for (const std::size_t misalignment : {0UL, 4UL}) {
        trying("misalignment", misalignment);
        check<float, std::int64_t>(size, 2, false, 0, {3, 4}, random, 50, misalignment);
    }
}

TEST(ties_that_a_reciprocal_misses) {
    // The quotients 49 j w 2^scale / divisor are ties between two floats, or between two subnormal
    // ones, and RN(1 / 49) is below 1 / 49 by nearly half a last place.
    struct Ties {
        int first_j;
        int scale;
        double divisor;
    };
    for (const auto& [first_j, scale, divisor] :
         {Ties{320'001, 0, 49}, Ties{80'001, -149, 98}, Ties{20'001, -149, 98}}) {
        trying("scale", scale, "divisor", divisor);
        std::vector<std::int32_t> indices;
        std::vector<float> values;
        for (int i = 0; i < 3000; ++i) {
            indices.push_back(i);
            values.push_back(std::ldexp(static_cast<float>(49 * (first_j + 2 * i)), scale));
        }
        const std::size_t size = values.size();
        std::vector<float> expected(size), out(size);
        const WeightPlan plan = plan_weights(std::vector<double>{101}, divisor);
        const void* dense = values.data();
        const MeanSegment segment{&dense, size, DType::float32, expected.data(), DType::float32};
        mean(plan, {&segment, 1});
        const SparseRow row{indices.data(), false, values.data(), size};
        sparse_mean(plan, {&row, 1}, size, DType::float32, out.data());
        CHECK(out == expected);
    }
}

TEST(threads) {
    std::mt19937_64 random(2);
    check<float, std::int32_t>(600'000, 4, true, 0, {1, 2, 3, 4}, random);
}

TEST(sixteen_bits_round_once) {
    // (1 + 2^-10 + 2^-24 + ...) in thirds: compare with the dense mean over all patterns.
    std::vector<std::uint16_t> values(1 << 14), expected(values.size()), out(values.size());
    std::vector<std::int32_t> indices(values.size());
    std::mt19937_64 random(3);
    for (const DType dtype : {DType::float16, DType::bfloat16}) {
        std::vector<std::uint16_t> a(values.size()), b(values.size());
        for (std::size_t i = 0; i < a.size(); ++i) {
            a[i] = static_cast<std::uint16_t>(random() % 0x7800);
            b[i] = static_cast<std::uint16_t>(random() % 0x7800 + 0x8000 * (random() % 2));
            indices[i] = static_cast<std::int32_t>(i);
        }
        const WeightPlan plan = plan_weights(std::vector<double>{1, 2}, std::nullopt);
        const void* dense[2] = {a.data(), b.data()};
        const MeanSegment segment{dense, a.size(), dtype, expected.data(), dtype};
        mean(plan, {&segment, 1});
        const std::vector<SparseRow> rows = {{indices.data(), false, a.data(), a.size()},
                                             {indices.data(), false, b.data(), b.size()}};
        sparse_mean(plan, rows, a.size(), dtype, out.data());
        CHECK(out == expected);
    }
}

TEST(duplicates_add_exactly) {
    const std::vector<std::int32_t> indices = {2, 0, 2, 2};
    const std::vector<float> values = {1e30F, 5.0F, 1.0F, -1e30F};
    const WeightPlan plan = plan_weights(std::vector<double>{2}, std::nullopt);
    const SparseRow row{indices.data(), false, values.data(), indices.size()};
    float out[4] = {9, 9, 9, 9};
    sparse_mean(plan, {&row, 1}, 4, DType::float32, out);
    CHECK_EQUAL(out[0], 5.0F);
    CHECK_EQUAL(out[1], 0.0F);
    CHECK_EQUAL(out[2], 1.0F);
    CHECK_EQUAL(out[3], 0.0F);
}

TEST(bad_indices_are_reported_and_nothing_is_written) {
    const WeightPlan plan = plan_weights(std::vector<double>{1, 1}, std::nullopt);
    const std::vector<std::int32_t> good = {0, 1}, large = {0, 4}, negative = {-1, 0};
    const float values[2] = {1, 2};
    for (const auto* bad : {&large, &negative}) {
        const SparseRow rows[2] = {{good.data(), false, values, 2},
                                   {bad->data(), false, values, 2}};
        float out[4] = {9, 9, 9, 9};
        const SparseOutcome outcome = sparse_mean(plan, rows, 4, DType::float32, out);
        CHECK_EQUAL(outcome.bad_row, 1U);
        CHECK_EQUAL(outcome.bad_pair, bad == &large ? 1U : 0U);
        CHECK_EQUAL(out[0], 9.0F);
    }
}

TEST(special_values) {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<std::int32_t> indices = {0, 1, 2};
    const float a[3] = {infinity, infinity, 1}, b[3] = {1, -infinity, 1};
    const SparseRow rows[2] = {{indices.data(), false, a, 3}, {indices.data(), false, b, 3}};
    float out[4];
    const WeightPlan plan = plan_weights(std::vector<double>{1, 1}, std::nullopt);
    CHECK(!sparse_mean(plan, rows, 4, DType::float32, out).finite);
    CHECK_EQUAL(out[0], infinity);
    CHECK(std::isnan(out[1]));
    CHECK_EQUAL(out[2], 1.0F);
    CHECK_EQUAL(out[3], 0.0F);
}

TEST_MAIN()
