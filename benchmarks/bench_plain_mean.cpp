// The correctly rounded mean against the plain kernel that it is allowed to cost 1.6 times as much
// as: one that adds up products in float64 and divides, whatever that rounds to. `make bench-plain`
// compiles it for this machine and runs it.
//
// Both take turns; the figure is the median of the ratios of neighbours, with the middle half. A
// third side only reads the updates: no mean can be faster than the machine's memory.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
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
                for (std::size_t i = 0; i < count; ++i) {
                    sums[i] = std::fma(weights[k], double{row[i]}, sums[i]);
                }
            }
            for (std::size_t i = 0; i < count; ++i) {
                out[at + i] = static_cast<float>(sums[i] / divisor);
            }
        }
    });
}

// Reads every value of every row once, and nothing else; what it returns depends on all of them.
std::uint32_t read_all(const std::vector<const void*>& rows, std::size_t size) {
    std::atomic<std::uint32_t> all = 0;
    const std::size_t bytes = rows.size() * size * sizeof(float);
    fedbench::parallel_for(size, kTile, bytes, [&](std::size_t begin, std::size_t end) {
        std::uint32_t bits = 0;
        for (const void* row : rows) {
            const auto* words = static_cast<const std::byte*>(row);
            for (std::size_t i = begin; i < end; ++i) {
                std::uint32_t word = 0;
                std::memcpy(&word, words + i * sizeof word, sizeof word);
                bits |= word;
            }
        }
        all |= bits;
    });
    return all;
}

double median(std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
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
    std::vector<double> reading_seconds;
    std::uint32_t bits = 0;
    for (int repeat = -1; repeat < kRepeats; ++repeat) {  // the first warms up
        const double ours = seconds([&] { fedbench::mean(plan, {&segment, 1}); });
        const double theirs = seconds([&] { plain_mean(rows, weights, size, plain.data()); });
        const double reading = seconds([&] { bits |= read_all(rows, size); });
        if (repeat < 0) continue;
        ratios.push_back(ours / theirs);
        exact_seconds.push_back(ours);
        reading_seconds.push_back(reading);
    }
    const double middle = median(ratios);
    std::printf("%9zu x %2zu, %d thread(s): %8.3f ms, %.2f of the plain kernel (%.2f to %.2f)\n",
                size, clients, threads, 1e3 * median(exact_seconds), middle, ratios[kRepeats / 4],
                ratios[3 * kRepeats / 4]);
    std::printf(
        "%36s %8.3f ms, %.1f GB/s%s\n", "reading the updates alone:", 1e3 * median(reading_seconds),
        1e-9 * static_cast<double>(clients * size * sizeof(float)) / median(reading_seconds),
        bits == 0 ? " (all zero)" : "");
}

}  // namespace

int main() {
    for (const int threads : {1, 2}) {
        compare(11'689'512, 10, threads);
        compare(1'000'000, 32, threads);
    }
    return 0;
}
