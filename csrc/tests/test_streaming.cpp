// The streaming sum against the mean: bits, growth of windows, carries, bytes, taking back.
#include <bit>
#include <limits>
#include <random>
#include <vector>

#include "../fuzz/fuzz_streaming.cpp"  // here, not alone: the kernels are compiled once for both
#include "../fuzz/replay.hpp"
#include "check.hpp"
#include "fedbench/streaming_state.hpp"

using namespace fedbench;

namespace {

using Rows = std::vector<std::vector<float>>;

Rows random_rows(std::size_t clients, std::size_t size, int spread, std::mt19937_64& random) {
    Rows rows(clients, std::vector<float>(size));
    for (auto& row : rows) {
        for (float& x : row) {
            const auto bits = static_cast<std::int64_t>(random() >> 40) - (1 << 23);
            const int exponent =
                spread == 0 ? 0 : static_cast<int>(random() % (2 * spread)) - spread;
            x = std::ldexp(static_cast<float>(bits), exponent - 20);
        }
    }
    return rows;
}

std::vector<float> batch_mean(const Rows& rows, const std::vector<double>& weights) {
    std::vector<const void*> addresses;
    for (const auto& row : rows) addresses.push_back(row.data());
    std::vector<float> out(rows[0].size());
    const MeanSegment segment = {addresses.data(), out.size(), DType::float32, out.data(),
                                 DType::float32};
    mean(plan_weights(weights, std::nullopt), {&segment, 1});
    return out;
}

StreamingSum fresh(std::size_t size) {
    return StreamingSum({{size, DType::float32}});
}

std::vector<float> quotient(const StreamingSum& sum, std::size_t size) {
    std::vector<float> out(size, -7.0F);
    sum.result(sum.weight(), {out.data()}, {DType::float32});
    return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

TEST(every_size_and_spread_has_the_bits_of_the_mean) {
    std::mt19937_64 random(1);
    for (const int spread : {0, 10, 120}) {
        for (const std::size_t size : {1UL, 7UL, 8UL, 9UL, 511UL, 512UL, 513UL, 1300UL}) {
            fedbench::testing::trying("spread", spread, "size", size);
            const Rows rows = random_rows(7, size, spread, random);
            std::vector<double> weights;
            for (int k = 0; k < 7; ++k) weights.push_back(static_cast<double>(random() % 997 + 1));
            if (size % 2 == 1) weights[3] = 0.1;
            StreamingSum one = fresh(size);
            for (std::size_t k = 0; k < 7; ++k) one.add({rows[k].data()}, {weights[k]}, false);
            CHECK(same_bits(quotient(one, size), batch_mean(rows, weights)));
            StreamingSum first = fresh(size);
            StreamingSum second = fresh(size);
            first.add({rows[6].data(), rows[2].data()}, {weights[6], weights[2]}, false);
            second.add(
                {rows[0].data(), rows[5].data(), rows[1].data(), rows[4].data(), rows[3].data()},
                {weights[0], weights[5], weights[1], weights[4], weights[3]}, false);
            second.merge(first);
            CHECK(same_bits(quotient(second, size), batch_mean(rows, weights)));
            CHECK(one.serialize() == second.serialize());
        }
    }
}

TEST(bytes_round_trip_and_reject_nonsense) {
    std::mt19937_64 random(2);
    const Rows rows = random_rows(3, 700, 60, random);
    StreamingSum sum = fresh(700);
    for (const auto& row : rows) sum.add({row.data()}, {2.5}, false);
    const auto bytes = sum.serialize();
    StreamingSum copy = fresh(700);
    copy.deserialize(bytes);
    CHECK(copy.serialize() == bytes);
    CHECK(same_bits(quotient(copy, 700), quotient(sum, 700)));
    CHECK_EQUAL(copy.count(), 3U);
    for (const std::size_t cut : {0UL, 3UL, 40UL, bytes.size() - 1}) {
        StreamingSum target = fresh(700);
        CHECK_THROWS(target.deserialize(std::span(bytes).first(cut)), std::invalid_argument,
                     "state is");
    }
}

TEST(refused_updates_are_taken_back) {
    std::mt19937_64 random(3);
    Rows rows = random_rows(3, 2000, 30, random);
    rows[1][1999] = std::numeric_limits<float>::infinity();
    StreamingSum sum = fresh(2000);
    const auto refused =
        sum.add({rows[0].data(), rows[1].data(), rows[2].data()}, {1, 0.3, 5}, false);
    CHECK(refused == std::vector<std::size_t>{1});
    StreamingSum expected = fresh(2000);
    expected.add({rows[0].data(), rows[2].data()}, {1, 5}, false);
    CHECK(sum.serialize() == expected.serialize());
}

TEST(carries_are_resolved_before_a_bin_overflows) {
    const std::vector<float> row = {3.4e38F, -3.4e38F, 1e-45F, 0.1F};
    StreamingSum sum = fresh(4);
    const std::vector<const void*> rows(2000, row.data());
    const std::vector<double> weights(2000, 536870911.0);
    for (int repeat = 0; repeat < 100; ++repeat) sum.add(rows, weights, false);
    CHECK_EQUAL(sum.count(), 200'000U);
    CHECK(same_bits(quotient(sum, 4), row));
}

TEST(several_threads_give_the_same_state) {
    std::mt19937_64 random(4);
    const Rows rows = random_rows(5, 400'000, 3, random);
    std::vector<std::vector<std::byte>> states;
    for (const int threads : {1, 2, 4}) {
        set_num_threads(threads);
        StreamingSum sum = fresh(400'000);
        for (const auto& row : rows) sum.add({row.data()}, {7.0}, false);
        states.push_back(sum.serialize());
    }
    set_num_threads(1);
    CHECK(states[0] == states[1]);
    CHECK(states[0] == states[2]);
}

TEST(stored_inputs_of_the_fuzzer_are_no_harm) {
    CHECK(fuzz::replay("streaming") > 0);
}

TEST_MAIN()
