// The weights of a mean, prepared once for all coordinates.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "fedbench/exact.hpp"

namespace fedbench {

// Scaling all weights and the divisor by one number does not change the mean. Where that can turn
// them into small integers (sample counts, equal weights, quarters) products with float32 are
// exact and most sums are, which the kernels use; elsewhere they are scaled to a sum below one.
struct WeightPlan {
    std::vector<std::size_t> clients;    // those with a positive weight
    std::vector<exact::Dyadic> weights;  // of these clients, as given
    exact::Positive divisor;             // as given, or the exact sum of the weights

    std::vector<double> scaled;       // of these clients
    double scaled_divisor = 1.0;      // nearest double; exact if `integers`
    double scaled_divisor_low = 0.0;  // what the nearest double lacks, itself rounded
    double scaled_sum = 0.0;          // at least the sum of `scaled`
    bool integers = false;            // scaled: integers below 2^29, divisor: one below 2^50
    bool power_of_two = false;        // the scaled divisor is one
    bool exact_only = false;          // too wide a range for a filter
};

namespace detail {

// All weights and the divisor as integers over a common power of two, divided by their common
// divisor; the last element is the divisor. Nothing if they do not fit into 62 bits.
inline std::optional<std::vector<std::uint64_t>> common_integers(
    const std::vector<exact::Dyadic>& weights, const exact::Positive& divisor) {
    if (divisor.limbs.size() != 1) return std::nullopt;
    std::vector<exact::Dyadic> all;
    all.reserve(weights.size() + 1);
    all.assign(weights.begin(), weights.end());
    all.push_back({divisor.limbs[0], divisor.exponent, false});
    int lowest = all[0].exponent + std::countr_zero(all[0].mantissa);
    for (const auto& a : all) {
        lowest = std::min(lowest, a.exponent + std::countr_zero(a.mantissa));
    }
    std::vector<std::uint64_t> integers;
    integers.reserve(all.size());
    std::uint64_t common = 0;
    for (const auto& a : all) {
        const int zeros = std::countr_zero(a.mantissa);
        const std::uint64_t odd = a.mantissa >> zeros;
        const int shift = a.exponent + zeros - lowest;
        if (shift + 64 - std::countl_zero(odd) > 62) return std::nullopt;
        integers.push_back(odd << shift);
        if (common != 1) common = std::gcd(common, integers.back());
    }
    if (common != 1) {
        for (std::uint64_t& value : integers) value /= common;
    }
    return integers;
}

// divisor * 2^-scale - near, computed exactly and rounded; near is about 2^-200 to 2^200.
inline double scaled_rest(const exact::Positive& divisor, int scale, double near) {
    exact::Sum rest(std::min(divisor.exponent - scale, -300), 264);
    for (std::size_t i = 0; i < divisor.limbs.size(); ++i) {
        rest.add(divisor.limbs[i], divisor.exponent - scale + static_cast<int>(64 * i), false);
    }
    const exact::Dyadic part = exact::split(near);
    rest.add(part.mantissa, part.exponent, true);
    const bool negative = rest.take_sign();
    return (negative ? -1.0 : 1.0) * exact::positive_of(rest).scaled(0);
}

}  // namespace detail

// `weights` are finite and non-negative with a positive sum, `total` is finite and positive:
// the caller has checked that.
inline WeightPlan plan_weights(std::span<const double> weights, std::optional<double> total) {
    WeightPlan plan;
    plan.clients.reserve(weights.size());
    plan.weights.reserve(weights.size());
    plan.scaled.reserve(weights.size());
    double largest = 0.0;
    for (std::size_t k = 0; k < weights.size(); ++k) {
        if (weights[k] == 0.0) continue;
        plan.clients.push_back(k);
        plan.weights.push_back(exact::split(weights[k]));
        largest = std::max(largest, weights[k]);
    }
    const double given = total.value_or(0.0);
    plan.divisor = total ? exact::sum_of({&given, 1}) : exact::sum_of(weights);

    constexpr std::uint64_t max_weight = std::uint64_t{1} << 29;
    constexpr std::uint64_t max_divisor = std::uint64_t{1} << 50;
    if (const auto integers = detail::common_integers(plan.weights, plan.divisor)) {
        plan.integers = integers->back() < max_divisor;
        double sum = 0.0;
        for (std::size_t k = 0; k + 1 < integers->size(); ++k) {
            plan.integers = plan.integers && (*integers)[k] < max_weight;
            plan.scaled.push_back(static_cast<double>((*integers)[k]));
            sum += plan.scaled.back();
        }
        plan.integers = plan.integers && sum < static_cast<double>(max_divisor);
        if (plan.integers) {
            plan.scaled_divisor = static_cast<double>(integers->back());
            plan.scaled_sum = sum;
            plan.power_of_two = std::has_single_bit(integers->back());
            return plan;
        }
        plan.scaled.clear();
    }

    int exponent = 0;
    std::frexp(largest, &exponent);
    int doublings = 0;
    while ((std::size_t{1} << doublings) < plan.clients.size()) ++doublings;
    const int scale = exponent + doublings;
    for (const std::size_t k : plan.clients) {
        plan.scaled.push_back(std::ldexp(weights[k], -scale));
        plan.exact_only = plan.exact_only || plan.scaled.back() < 0x1p-200;
        plan.scaled_sum += plan.scaled.back();
    }
    plan.scaled_sum *= 1.0 + 0x1p-20;
    plan.scaled_divisor = plan.divisor.scaled(scale);
    plan.exact_only = plan.exact_only || !(plan.scaled_divisor >= 0x1p-200) ||
                      !(plan.scaled_divisor <= 0x1p200) || plan.clients.size() >= (1U << 26);
    if (!plan.exact_only) {
        plan.scaled_divisor_low = detail::scaled_rest(plan.divisor, scale, plan.scaled_divisor);
    }
    return plan;
}

}  // namespace fedbench
