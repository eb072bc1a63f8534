// The correctly rounded mean against the plain kernel that it is allowed to cost 1.6 times as much
// as: one that adds up products in float64 and divides, whatever that rounds to. From the root:
//
//     g++ -O3 -march=native -std=c++20 -Icsrc/include -o plain benchmarks/bench_plain_mean.cpp
//     ./plain
//
// Both take turns; the figure is the median of the ratios of neighbours, with the middle half.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <random>
#include <vector>

#include "fedbench/mean.hpp"

namespace {

constexpr std::size_t kTile = 2048;
constexpr int kRepeats = 15;

void plain_mean(const std::vector<const void*>& rows, const std::vector<double>& weights,
                std::size_t size, float* out) {
    double divisor = 0.0;
    for (const double weight : weights) divisor += weight;
    const std::size_t bytes = (rows.size() + 1) * size * sizeof(float);
    fedbench::parallel_for(size, kTile, bytes, [&](std::size_t begin, std::size_t end) {
        alignas(64) double sums[kTile];
        for (std::size_t at = begin; at < end; at += kTile) {
            const std::size_t count = std::min(kTile, end - at);
            std::fill(sums, sums + count, 0.0);
            for (std::size_t k = 0; k < rows.size(); ++k) {
                const float* row = static_cast<const float*>(rows[k]) + at;
                for (std::size_t i = 0; i < count; ++i) sums[i] += weights[k] * double{row[i]};
            }
            for (std::size_t i = 0; i < count; ++i) {
                out[at + i] = static_cast<float>(sums[i] / divisor);
            }
        }
    });
}

template <class Work>
double seconds(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void compare(std::size_t size, std::size_t clients, int threads) {
    fedbench::set_num_threads(threads);
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0F, 0.05F);
    std::vector<std::vector<float>> values(clients, std::vector<float>(size));
    std::vector<const void*> rows;
    std::vector<double> weights;
    for (auto& row : values) {
        for (float& x : row) x = normal(random);
        rows.push_back(row.data());
        weights.push_back(50.0 + static_cast<double>(random() % 950));
    }
    std::vector<float> exact(size);
    std::vector<float> plain(size);
    const auto plan = fedbench::plan_weights(weights, std::nullopt);
    const fedbench::MeanSegment segment = {rows.data(), size, fedbench::DType::float32,
                                           exact.data(), fedbench::DType::float32};
    std::vector<double> ratios;
    std::vector<double> exact_seconds;
    for (int repeat = -1; repeat < kRepeats; ++repeat) {  // the first warms up
        const double ours = seconds([&] { fedbench::mean(plan, {&segment, 1}); });
        const double theirs = seconds([&] { plain_mean(rows, weights, size, plain.data()); });
        if (repeat < 0) continue;
        ratios.push_back(ours / theirs);
        exact_seconds.push_back(ours);
    }
    std::sort(ratios.begin(), ratios.end());
    std::sort(exact_seconds.begin(), exact_seconds.end());
    std::printf("%9zu x %2zu, %d thread(s): %8.3f ms, %.2f of the plain kernel (%.2f to %.2f)\n",
                size, clients, threads, 1e3 * exact_seconds[kRepeats / 2], ratios[kRepeats / 2],
                ratios[kRepeats / 4], ratios[3 * kRepeats / 4]);
}

}  // namespace

int main() {
    for (const int threads : {1, 2}) {
        compare(11'689'512, 10, threads);
        compare(1'000'000, 32, threads);
    }
    return 0;
}
