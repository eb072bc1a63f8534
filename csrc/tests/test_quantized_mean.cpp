// The mean of 8-bit rows against the general mean, which has exact references of its own.
#include <cstring>
#include <random>
#include <vector>

#include "buffers.hpp"
#include "check.hpp"
#include "fedbench/quantized_mean.hpp"

using namespace fedbench;
using fedbench::testing::GuardedBuffer;
using fedbench::testing::trying;

namespace {

void check(std::size_t size, std::size_t clients, const std::vector<double>& coefficients,
           double total, int kind, std::mt19937_64& random) {
    std::vector<GuardedBuffer<std::int8_t>> rows;
    for (std::size_t k = 0; k < clients; ++k) {
        rows.emplace_back(size, (k * 3 + size) % 5);
        for (std::size_t i = 0; i < size; ++i) {
            const auto value = static_cast<std::int8_t>(random());
            const bool keep = kind == 0 || (kind == 1 && random() % 3 == 0);
            rows.back().set(i, keep ? value : std::int8_t{0});
        }
    }
    const WeightPlan plan = plan_weights(coefficients, total);
    std::vector<const void*> used;
    for (const std::size_t k : plan.clients) used.push_back(rows[k].address());
    std::vector<float> expected(size);
    const MeanSegment segment{used.data(), size, DType::int8, expected.data(), DType::float32};
    mean(plan, {&segment, 1});
    for (const IsaLevel level : available_isas()) {
        trying("size", size, "clients", clients, "kind", kind, isa_name(level));
        GuardedBuffer<float> out(size, size % 4);
        quantized_mean(plan, used.data(), size, out.address(), level);
        CHECK(out.intact());
        CHECK(size == 0 || std::memcmp(out.address(), expected.data(), size * sizeof(float)) == 0);
    }
}

}  // namespace

TEST(the_bits_of_the_mean) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform;
    for (std::size_t size = 0; size < 140; ++size) {
        for (const std::size_t clients : {1UL, 2UL, 5UL, 33UL}) {
            std::vector<double> coefficients(clients);
            for (double& c : coefficients) c = uniform(random) * 100;
            for (int kind = 0; kind < 3; ++kind)
                check(size, clients, coefficients, 321.5, kind, random);
            check(size, clients, std::vector<double>(clients, 1.0), 4.0, 0, random);
        }
    }
}

TEST(hard_coefficients) {
    std::mt19937_64 random(2);
    check(3000, 3, {1.0, 1e-300, 2.0}, 3.0, 0, random);
    check(3000, 3, {1e300, 1e-10, 0.0}, 1e300, 0, random);
    // Sums near the middle of two floats.
    check(3000, 3, {1.0, 0x1p-25, 0x1p-60}, 1.0, 0, random);
    check(3000, 2, {0x1p-140, 0x1p-147}, 8.0, 0, random);
}

TEST(results_that_are_written_past_the_caches) {
    std::mt19937_64 random(4);
    for (const std::size_t extra : {0UL, 36UL, 1UL}) {  // the last starts at no cache line
        for (const int kind : {0, 2}) {
            check(kStreamBytes / sizeof(float) + extra, 2, {1.5, 0.3}, 7.0, kind, random);
        }
    }
}

TEST(threads) {
    std::mt19937_64 random(3);
    check(700'003, 4, {1.5, 0.1, 0.3, 2.2}, 7.0, 1, random);
}

TEST_MAIN()
