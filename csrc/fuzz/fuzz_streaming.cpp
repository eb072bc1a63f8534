// Any bytes as a stored state are refused or loaded, and any updates give the bits of the mean.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "fedbench/streaming_state.hpp"
#include "input.hpp"

using namespace fedbench;

namespace {

constexpr std::size_t kSize = 21;

void load(fuzz::Input& input) {
    StreamingSum sum({{kSize, DType::float32}});
    try {
        sum.deserialize({reinterpret_cast<const std::byte*>(input.data()), input.left()});
    } catch (const std::invalid_argument&) {
        return;
    }
    const auto bytes = sum.serialize();
    StreamingSum again({{kSize, DType::float32}});
    again.deserialize(bytes);
    if (again.serialize() != bytes) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    if (input.take<std::uint8_t>() % 2 == 0) {
        load(input);
        return 0;
    }
    StreamingSum first({{kSize, DType::float32}});
    StreamingSum second({{kSize, DType::float32}});
    std::vector<std::vector<float>> rows;
    std::vector<double> weights;
    while (input.left() > 0 && rows.size() < 30) {
        const auto choice = input.take<std::uint8_t>();
        const double real = std::abs(input.take<double>());
        const double weight = choice % 2 == 0 ? choice + 1.0 : real;
        std::vector<float> row(kSize);
        for (float& x : row) x = input.take<float>();
        if (!std::isfinite(weight) || weight == 0.0) continue;
        if (!(choice % 3 == 0 ? first : second).add({row.data()}, {weight}, false).empty())
            continue;
        rows.push_back(row);
        weights.push_back(weight);
    }
    if (rows.empty()) return 0;
    first.merge(second);
    std::vector<float> streamed(kSize);
    first.result(first.weight(), {streamed.data()}, {DType::float32});
    std::vector<const void*> addresses;
    for (const auto& row : rows) addresses.push_back(row.data());
    std::vector<float> batch(kSize);
    const MeanSegment segment = {addresses.data(), kSize, DType::float32, batch.data(),
                                 DType::float32};
    mean(plan_weights(weights, std::nullopt), {&segment, 1});
    if (std::memcmp(batch.data(), streamed.data(), sizeof(float) * kSize) != 0) {
        std::fprintf(stderr, "streaming differs from the mean\n");
        std::abort();
    }
    return 0;
}
