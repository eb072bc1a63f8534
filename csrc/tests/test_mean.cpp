// The mean on every level against the exact path: all small sizes, misalignments, guard bytes.
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "../fuzz/fuzz_mean.cpp"  // here, not alone: the kernels are compiled once for both
#include "../fuzz/replay.hpp"
#include "buffers.hpp"
#include "check.hpp"
#include "fedbench/finite.hpp"
#include "fedbench/mean.hpp"

using namespace fedbench;
using fedbench::testing::GuardedBuffer;

namespace {

constexpr std::array kFloats = {DType::float32, DType::float64, DType::float16, DType::bfloat16};

using Bytes = GuardedBuffer<std::uint8_t>;

// Random finite elements: some zero; the others alike in magnitude, or some of them with any bits.
void fill(Bytes& buffer, DType dtype, std::mt19937_64& random, bool alike = false) {
    const std::size_t item = item_size(dtype);
    const std::uint64_t sign = std::uint64_t{1} << (8 * item - 1);
    const std::uint64_t infinity = exact::infinity_bits(dtype, false);
    const int fraction = exact::format_of(dtype).precision - 1;
    for (std::size_t i = 0; i < buffer.size() / item; ++i) {
        std::uint64_t bits = random() % infinity;
        if (alike || random() % 4 != 0) {  // an exponent near that of one
            const std::uint64_t field = (infinity >> fraction) / 2 - random() % 6;
            bits = (field << fraction) | (random() & ((std::uint64_t{1} << fraction) - 1));
        }
        if (random() % 8 == 0) bits = 0;
        if (random() % 2 == 0) bits |= sign;
        std::memcpy(static_cast<std::byte*>(buffer.address()) + i * item, &bits, item);
    }
}

std::vector<double> some_weights(int kind, std::size_t clients, std::mt19937_64& random) {
    std::vector<double> weights;
    for (std::size_t k = 0; k < clients; ++k) {
        switch (kind) {
            case 0:
                weights.push_back(3.0);
                break;
            case 1:
                weights.push_back(static_cast<double>(random() % 1000 + 1));
                break;
            case 2:
                weights.push_back(static_cast<double>(random() >> 11) * 0x1p-53 + 1e-3);
                break;
            default:
                weights.push_back(std::ldexp(1.0, static_cast<int>(random() % 1200) - 600));
        }
    }
    return weights;
}

void compare(std::size_t size, std::size_t clients, DType in, DType out, int weight_kind,
             std::size_t misalignment, std::mt19937_64& random) {
    std::vector<Bytes> rows;
    std::vector<const void*> addresses;
    rows.reserve(clients);
    for (std::size_t k = 0; k < clients; ++k) {
        rows.emplace_back(size * item_size(in), (misalignment + k) % 8);
        fill(rows.back(), in, random, (size + clients) % 2 == 0);
        addresses.push_back(rows.back().address());
    }
    const auto plan = plan_weights(some_weights(weight_kind, clients, random), std::nullopt);
    Bytes expected(size * item_size(out));
    const MeanSegment reference = {addresses.data(), size, in, expected.address(), out};
    for (std::size_t i = 0; i < size; ++i)
        CHECK(fedbench::detail::exact_mean_at(plan, reference, i));
    for (const IsaLevel level : available_isas()) {
        fedbench::testing::trying("size", size, "clients", clients, "in", static_cast<int>(in),
                                  "out", static_cast<int>(out), "weights", weight_kind, "level",
                                  isa_name(level));
        Bytes result(size * item_size(out), misalignment);
        const MeanSegment segment = {addresses.data(), size, in, result.address(), out};
        CHECK(mean(plan, {&segment, 1}, level));
        CHECK(result.intact());
        for (std::size_t b = 0; b < result.size(); ++b) {
            CHECK_EQUAL(int{result.get(b)}, int{expected.get(b)});
        }
    }
    for (const Bytes& row : rows) CHECK(row.intact());
}

}  // namespace

TEST(every_small_size_and_misalignment) {
    std::mt19937_64 random(1);
    set_num_threads(1);
    for (std::size_t size = 0; size <= 67; ++size) {
        for (const DType dtype : kFloats) {
            compare(size, 1 + size % 9, dtype, dtype, static_cast<int>(size % 4), size % 8, random);
        }
    }
}

TEST(every_number_of_clients) {
    std::mt19937_64 random(2);
    for (std::size_t clients = 1; clients <= 40; ++clients) {
        for (const DType dtype : kFloats) {
            for (int weights = 0; weights < 4; ++weights) {
                compare(19, clients, dtype, dtype, weights, 0, random);
            }
        }
    }
}

TEST(every_pair_of_types) {
    std::mt19937_64 random(3);
    for (const DType in : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
        for (const DType out : kFloats) {
            for (int weights = 0; weights < 4; ++weights) {
                compare(203, 5, in, out, weights, 1, random);
            }
        }
    }
}

TEST(sizes_around_the_tile_and_several_threads) {
    std::mt19937_64 random(4);
    set_num_threads(3);
    for (const std::size_t tile : {kMeanTile, kMeanGrain}) {
        for (const std::size_t size : {tile - 1, tile, tile + 1, 3 * tile + 5}) {
            compare(size, 4, DType::float32, DType::float32, 1, 4, random);
            compare(size, 3, DType::bfloat16, DType::bfloat16, 0, 2, random);
            compare(size, 17, DType::float32, DType::float32, 0, 4, random);
        }
    }
    set_num_threads(1);
}

TEST(streamed_results_are_complete) {
    const std::size_t size = kStreamBytes / 4 + 1031;
    std::vector<float> a(size, 1.0F);
    std::vector<float> b(size, 3.0F);
    a[size - 1] = 5.0F;
    const std::array<const void*, 2> rows = {a.data(), b.data()};
    const std::vector<double> weights = {1.0, 1.0};
    const auto plan = plan_weights(weights, std::nullopt);
    GuardedBuffer<float> out(size);
    const MeanSegment segment = {rows.data(), size, DType::float32, out.address(), DType::float32};
    set_num_threads(3);
    for (const IsaLevel level : available_isas()) {
        std::memset(out.address(), 0, size * 4);
        CHECK(mean(plan, {&segment, 1}, level));
        for (std::size_t i = 0; i + 1 < size; ++i) CHECK(out.get(i) == 2.0F);
        CHECK_EQUAL(out.get(size - 1), 4.0F);
        CHECK(out.intact());
    }
    set_num_threads(1);
}

#if FEDBENCH_X86
// Which of the two a processor runs depends on its maker; both are tested on each.
TEST(whole_registers_and_halves_make_the_same_sums) {
    if (detect_isa() < IsaLevel::avx512) return;
    std::mt19937_64 random(11);
    for (const std::size_t size : {std::size_t{1}, std::size_t{37}, kMeanTile}) {
        for (const bool track : {false, true}) {
            std::vector<Bytes> rows;
            std::vector<const void*> addresses;
            for (int k = 0; k < 11; ++k) {
                rows.emplace_back(size * sizeof(float), 0);
                fill(rows.back(), DType::float32, random);
                addresses.push_back(rows.back().address());
            }
            const WeightPlan plan = plan_weights(some_weights(2, rows.size(), random), {});
            const MeanSegment segment{addresses.data(), size, DType::float32, nullptr,
                                      DType::float32};
            avx512::NarrowTile whole;
            avx512::NarrowTile halves;
            avx512::fold_narrow(plan, segment, 0, size, track, false, whole);
            avx512::fold_narrow(plan, segment, 0, size, track, true, halves);
            for (std::size_t i = 0; i < size; ++i) {
                CHECK_EQUAL(std::bit_cast<std::uint64_t>(whole.sum[i]),
                            std::bit_cast<std::uint64_t>(halves.sum[i]));
            }
            CHECK(whole.largest > 0 || size == 1);
            CHECK_EQUAL(whole.largest, halves.largest);
            if (track) CHECK_EQUAL(whole.smallest, halves.smallest);
        }
    }
}
#endif

TEST(known_roundings) {
    const auto mean_of = [](std::vector<float> values, std::vector<double> weights) {
        std::vector<const void*> rows;
        for (const float& value : values) rows.push_back(&value);
        float out = -1.0F;
        const MeanSegment segment = {rows.data(), 1, DType::float32, &out, DType::float32};
        mean(plan_weights(weights, std::nullopt), {&segment, 1});
        return out;
    };
    // Ties go to even; the smallest excess above a tie goes up.
    CHECK_EQUAL(mean_of({1.0F, 1.0F + 0x1p-23F}, {1, 1}), 1.0F);
    CHECK_EQUAL(mean_of({1.0F + 0x1p-23F, 1.0F + 0x1p-22F}, {1, 1}), 1.0F + 0x1p-22F);
    CHECK_EQUAL(mean_of({1.0F, 1.0F + 0x1p-23F, 0x1p-149F}, {0x1p52, 0x1p52, 0x1p-300}), 1.0F);
    CHECK_EQUAL(mean_of({3e38F, 3e38F, 3e38F}, {1, 1, 1}), 3e38F);
    CHECK_EQUAL(mean_of({0x1p-149F, 0.0F}, {1, 1}), 0.0F);
    CHECK_EQUAL(mean_of({0x1p-149F, 0x1p-148F}, {1, 1}), 0x1p-148F);
}

// Pairs of all kinds of floats, each where a vector holds it, and where the last, partial one does.
TEST(the_mean_of_two_is_that_of_the_exact_path) {
    const std::uint32_t ordinary = std::bit_cast<std::uint32_t>(1.0F);
    std::vector<std::uint32_t> kinds = {0, 1, 2, 3, ordinary, ordinary + 1, ordinary + 2};
    for (const std::uint32_t near : {0x00800000U, kLeastHalved, 0x7f000000U, 0x7f800000U}) {
        for (std::uint32_t i = 0; i < 5; ++i) kinds.push_back(near + i - 3);
    }
    for (std::size_t i = kinds.size(); i-- > 0;) kinds.push_back(kinds[i] | 0x80000000U);
    const auto plan = plan_weights(std::vector<double>{7.0, 7.0}, std::nullopt);
    constexpr std::size_t size = 19;
    for (const std::uint32_t a : kinds) {
        for (const std::uint32_t b : kinds) {
            for (const std::size_t at : {0U, 7U, 18U}) {
                GuardedBuffer<std::uint32_t> one(size, 4);
                GuardedBuffer<std::uint32_t> other(size, 2);
                for (std::size_t i = 0; i < size; ++i) one.set(i, i == at ? a : ordinary);
                for (std::size_t i = 0; i < size; ++i) other.set(i, i == at ? b : ordinary + 3);
                const std::array<const void*, 2> rows = {one.address(), other.address()};
                GuardedBuffer<std::uint32_t> expected(size);
                GuardedBuffer<std::uint32_t> result(size, 4);
                MeanSegment segment = {rows.data(), size, DType::float32, expected.address(),
                                       DType::float32};
                bool finite = true;
                for (std::size_t i = 0; i < size; ++i)
                    finite &= fedbench::detail::exact_mean_at(plan, segment, i);
                segment.out = result.address();
                for (const IsaLevel level : available_isas()) {
                    fedbench::testing::trying("a", a, "b", b, "at", at, "level", isa_name(level));
                    CHECK(mean(plan, {&segment, 1}, level) == finite);
                    CHECK(result.intact());
                    for (std::size_t i = 0; i < size; ++i)
                        CHECK_EQUAL(result.get(i), expected.get(i));
                }
            }
        }
    }
}

TEST(many_segments_with_large_results_are_the_means_of_each) {
    std::mt19937_64 random(6);
    const std::vector<std::size_t> sizes = {64, 3, kStreamBytes / 8 + 21, 0, 777, kStreamBytes / 8};
    for (const std::size_t clients : {2U, 5U}) {
        std::vector<Bytes> buffers;
        std::vector<std::vector<const void*>> rows(sizes.size());
        std::vector<MeanSegment> segments;
        std::vector<MeanSegment> references;
        buffers.reserve(sizes.size() * (clients + 2));
        for (std::size_t s = 0; s < sizes.size(); ++s) {
            for (std::size_t k = 0; k < clients; ++k) {
                buffers.emplace_back(4 * sizes[s], k);
                fill(buffers.back(), DType::float32, random, true);
                rows[s].push_back(buffers.back().address());
            }
            buffers.emplace_back(4 * sizes[s], s == 4 ? 4 : 0);
            segments.push_back({rows[s].data(), sizes[s], DType::float32, buffers.back().address(),
                                DType::float32});
            buffers.emplace_back(4 * sizes[s]);
            references.push_back(segments.back());
            references.back().out = buffers.back().address();
        }
        const auto plan = plan_weights(some_weights(0, clients, random), std::nullopt);
        for (const MeanSegment& reference : references)
            CHECK(mean(plan, {&reference, 1}, IsaLevel::portable));
        set_num_threads(3);
        for (const IsaLevel level : available_isas()) {
            CHECK(mean(plan, segments, level));
            for (std::size_t s = 0; s < sizes.size(); ++s) {
                CHECK(std::memcmp(segments[s].out, references[s].out, 4 * sizes[s]) == 0);
                std::memset(segments[s].out, 0, 4 * sizes[s]);
            }
        }
        set_num_threads(1);
        for (const Bytes& buffer : buffers) CHECK(buffer.intact());
    }
}

TEST(weights_become_small_integers_where_possible) {
    const std::vector<double> quarters = {0.25, 0.5, 1.25};
    const auto plan = plan_weights(quarters, std::nullopt);
    CHECK(plan.integers && plan.power_of_two);
    CHECK_EQUAL(plan.scaled[2], 5.0);
    CHECK_EQUAL(plan.scaled_divisor, 8.0);
    const std::vector<double> equal = {0.1, 0.1, 0.1};
    CHECK_EQUAL(plan_weights(equal, std::nullopt).scaled_divisor, 3.0);
    const std::vector<double> real = {0.1, 0.3};
    CHECK(!plan_weights(real, std::nullopt).integers);
    const std::vector<double> wide = {1e-300, 1e300};
    CHECK(plan_weights(wide, std::nullopt).exact_only);
    const std::vector<double> zero = {0.0, 2.0, 0.0};
    CHECK_EQUAL(plan_weights(zero, 4.0).clients.size(), 1U);
}

TEST(special_values_depend_on_the_set_alone) {
    const float inf = std::numeric_limits<float>::infinity();
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> a = {inf, inf, nan, -inf, 1.0F};
    const std::vector<float> b = {1.0F, -inf, inf, 2.0F, 3.0F};
    for (const IsaLevel level : available_isas()) {
        for (const bool swapped : {false, true}) {
            const std::array<const void*, 2> rows = {swapped ? b.data() : a.data(),
                                                     swapped ? a.data() : b.data()};
            std::vector<float> out(5);
            const std::vector<double> weights = {2.0, 2.0};
            const MeanSegment segment = {rows.data(), 5, DType::float32, out.data(),
                                         DType::float32};
            CHECK(!mean(plan_weights(weights, std::nullopt), {&segment, 1}, level));
            CHECK_EQUAL(out[0], inf);
            CHECK_EQUAL(std::bit_cast<std::uint32_t>(out[1]), 0x7fc00000U);
            CHECK_EQUAL(std::bit_cast<std::uint32_t>(out[2]), 0x7fc00000U);
            CHECK_EQUAL(out[3], -inf);
            CHECK_EQUAL(out[4], 2.0F);
        }
    }
}

TEST(a_nan_among_ordinary_values_is_found) {
    std::mt19937 random(11);
    std::normal_distribution<float> normal;
    const std::size_t size = 3 * kMeanTile + 5;
    std::vector<std::vector<float>> rows(9, std::vector<float>(size));
    std::vector<const void*> addresses;
    std::vector<double> weights;
    for (auto& row : rows) {
        for (float& x : row) x = normal(random);
        addresses.push_back(row.data());
        weights.push_back(100.0 + static_cast<double>(weights.size()));
    }
    std::vector<float> out(size);
    const auto plan = plan_weights(weights, std::nullopt);
    const MeanSegment segment = {addresses.data(), size, DType::float32, out.data(),
                                 DType::float32};
    for (const IsaLevel level : available_isas()) {
        for (const std::uint32_t nan : {0x7fc00000U, 0xffc00001U, 0x7f800001U}) {
            for (const std::size_t at : {std::size_t{0}, kMeanTile + 33, size - 1}) {
                for (const std::size_t k : {0U, 4U, 8U}) {
                    const float kept = std::exchange(rows[k][at], std::bit_cast<float>(nan));
                    CHECK(!mean(plan, {&segment, 1}, level));
                    CHECK_EQUAL(std::bit_cast<std::uint32_t>(out[at]), 0x7fc00000U);
                    rows[k][at] = kept;
                    CHECK(mean(plan, {&segment, 1}, level));
                }
            }
        }
    }
}

TEST(a_nan_changes_no_other_coordinate) {
    std::mt19937 random(13);
    std::normal_distribution<float> normal;
    const std::vector<double> weights = {0.37, 0.91, 0.22, 0.55};
    const auto plan = plan_weights(weights, std::nullopt);
    std::vector<std::vector<float>> rows(4, std::vector<float>(300, 1e-20F));
    std::vector<const void*> addresses;
    for (const auto& row : rows) addresses.push_back(row.data());
    std::vector<float> out(300);
    const MeanSegment segment = {addresses.data(), out.size(), DType::float32, out.data(),
                                 DType::float32};
    for (int trial = 0; trial < 200; ++trial) {
        // Large values that cancel: a filter that does not know of them proves a wrong rounding.
        double sum = 0.0;
        for (std::size_t k = 0; k < 3; ++k) {
            rows[k][0] = 1e6F * normal(random);
            sum += weights[k] * double{rows[k][0]};
        }
        rows[3][0] = static_cast<float>(-sum / weights[3]);
        CHECK(fedbench::detail::exact_mean_at(plan, segment, 0));
        const float expected = out[0];
        for (const std::uint32_t nan : {0x7fc00000U, 0x7f800001U, 0xff800001U}) {
            for (const std::size_t at : {std::size_t{32}, std::size_t{256}, std::size_t{299}}) {
                const float kept = std::exchange(rows[0][at], std::bit_cast<float>(nan));
                for (const IsaLevel level : available_isas()) {
                    CHECK(!mean(plan, {&segment, 1}, level));
                    CHECK_EQUAL(out[0], expected);
                    CHECK(std::isnan(out[at]) && out[1] == 1e-20F);
                }
                rows[0][at] = kept;
            }
        }
    }
}

TEST(sums_of_weights_are_exact_around_the_integers_of_a_double) {
    const auto is = [](const exact::Positive& sum, std::uint64_t odd, int exponent) {
        return sum.limbs == std::vector{odd} && sum.exponent == exponent;
    };
    CHECK(is(exact::sum_of(std::vector{50.0, 0.0, 14.0}), 1, 6));
    CHECK(is(exact::sum_of(std::vector{0x1p53 - 1.0, 1.0}), 1, 53));
    CHECK(is(exact::sum_of(std::vector{0x1p53, 1.0}), (std::uint64_t{1} << 53) + 1, 0));
    CHECK(is(exact::sum_of(std::vector{1.0, 0x1p53}), (std::uint64_t{1} << 53) + 1, 0));
    CHECK(is(exact::sum_of(std::vector{0.5, 1.0}), 3, -1));
    CHECK(exact::sum_of(std::vector{0.0}).limbs.empty());
}

TEST(special_values_of_every_type_and_path) {
    std::mt19937_64 random(5);
    const std::vector<std::vector<double>> weights = {{3, 3, 3}, {1000, 777, 3}, {0.1, 0.7, 0.3}};
    for (const DType dtype : kFloats) {
        const std::size_t item = item_size(dtype);
        const std::array<std::uint64_t, 3> specials = {exact::infinity_bits(dtype, false),
                                                       exact::infinity_bits(dtype, true),
                                                       exact::nan_bits(dtype)};
        for (const std::size_t at : {0U, 30U, 36U}) {
            for (const std::uint64_t special : specials) {
                std::vector<Bytes> rows;
                std::vector<const void*> addresses;
                for (std::size_t k = 0; k < 3; ++k) {
                    rows.emplace_back(37 * item, k);
                    fill(rows.back(), dtype, random);
                    addresses.push_back(rows.back().address());
                }
                std::memcpy(static_cast<std::byte*>(rows[1].address()) + at * item, &special, item);
                for (const auto& given : weights) {
                    const auto plan = plan_weights(given, std::nullopt);
                    Bytes expected(37 * item);
                    Bytes result(37 * item);
                    MeanSegment segment = {addresses.data(), 37, dtype, expected.address(), dtype};
                    for (std::size_t i = 0; i < 37; ++i) {
                        CHECK(fedbench::detail::exact_mean_at(plan, segment, i) == (i != at));
                    }
                    segment.out = result.address();
                    for (const IsaLevel level : available_isas()) {
                        CHECK(!mean(plan, {&segment, 1}, level));
                        CHECK(std::memcmp(result.address(), expected.address(), 37 * item) == 0);
                    }
                }
            }
        }
    }
}

TEST(the_first_nonfinite_element_is_found) {
    set_num_threads(3);
    for (const IsaLevel level : available_isas()) {
        std::vector<float> values(3 << 20, 1.0F);
        CHECK(!first_nonfinite(DType::float32, values.data(), values.size(), level));
        values[2'000'003] = std::numeric_limits<float>::infinity();
        values[900'001] = std::numeric_limits<float>::quiet_NaN();
        CHECK_EQUAL(*first_nonfinite(DType::float32, values.data(), values.size(), level),
                    900'001U);
        std::vector<std::uint16_t> halves(100, 0x7bff);
        CHECK(!first_nonfinite(DType::float16, halves.data(), halves.size(), level));
        halves[99] = 0xfc00;
        CHECK_EQUAL(*first_nonfinite(DType::float16, halves.data(), halves.size(), level), 99U);
    }
    set_num_threads(1);
}

TEST(stored_inputs_of_the_fuzzer_are_no_harm) {
    CHECK(fuzz::replay("mean") > 0);
}

TEST_MAIN()
