// Any values and weights: every level's mean has the bits of the exact path.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fedbench/mean.hpp"
#include "input.hpp"

using namespace fedbench;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const std::size_t clients = input.take<std::uint8_t>() % 12 + 1;
    const auto in = static_cast<DType>(input.take<std::uint8_t>() % 4);
    const auto out = static_cast<DType>(input.take<std::uint8_t>() % 4);
    const bool counts = input.take<std::uint8_t>() % 2 == 0;
    std::vector<double> weights;
    for (std::size_t k = 0; k < clients; ++k) {
        const auto bits = input.take<std::uint64_t>();
        const double real = std::abs(std::bit_cast<double>(bits));
        weights.push_back(counts ? static_cast<double>(bits % 1000 + 1)
                                 : (std::isfinite(real) && real > 0 ? real : 1.0));
    }
    const std::size_t item = item_size(in);
    const std::size_t length = input.left() / (clients * item);
    if (length == 0) return 0;
    std::vector<const void*> rows;
    for (std::size_t k = 0; k < clients; ++k) rows.push_back(input.data() + k * length * item);
    const WeightPlan plan = plan_weights(weights, std::nullopt);
    std::vector<std::byte> expected(length * item_size(out));
    const MeanSegment reference = {rows.data(), length, in, expected.data(), out};
    bool finite = true;
    for (std::size_t i = 0; i < length; ++i) finite &= detail::exact_mean_at(plan, reference, i);
    for (const IsaLevel level : available_isas()) {
        std::vector<std::byte> result(expected.size());
        const MeanSegment segment = {rows.data(), length, in, result.data(), out};
        if (mean(plan, {&segment, 1}, level) != finite || result != expected) {
            std::fprintf(stderr, "level %s differs from the exact mean\n", isa_name(level).c_str());
            std::abort();
        }
    }
    return 0;
}
