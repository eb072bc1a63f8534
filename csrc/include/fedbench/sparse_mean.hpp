// The correctly rounded weighted mean of sparse updates, into a dense result.
//
// The same number as the mean of the dense updates (mean.hpp): an index that a client does not list
// counts as zero, one that it lists several times counts as the exact sum of its values. Memory is
// the result, a tile per thread and, for indices that are not sorted, one sorted copy of the pairs.
//
// Per coordinate s is the float64 sum of the products and E the sum of the magnitudes of all
// rounding errors, found by error-free transformations or bounded, so |S - s| <= E (1 + tiny) for
// the true sum S. Where E is zero and the divisor is a double, the quotient is rounded to odd and
// then once. Elsewhere s -+ (2 E + 2^-48 |s|), divided by the nearest double to the divisor, are
// true bounds of the quotient with room for the three roundings; where both round alike the result
// is proved, and what remains is summed in integers.
//
// Tiles of float32 values with integer weights, whose products are exact, are first tried as if all
// E were zero; one in which some is not is done again in the way above.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "fedbench/dtype.hpp"
#include "fedbench/exact.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/memory.hpp"
#include "fedbench/parallel.hpp"
#include "fedbench/weights.hpp"

#if FEDBENCH_X86
#include <immintrin.h>
#endif

namespace fedbench {

// The pairs of one client: `count` indices in [0, size) and their values.
struct SparseRow {
    const void* indices;
    bool wide_indices;  // int64 instead of int32
    const void* values;
    std::size_t count;
    std::size_t index_step = 1;  // places from one index to the next
    std::size_t value_step = 1;

    [[nodiscard]] std::int64_t index(std::size_t i) const noexcept {
        return wide_indices ? load_unaligned<std::int64_t>(indices, i * index_step)
                            : load_unaligned<std::int32_t>(indices, i * index_step);
    }
};

inline constexpr std::size_t kSparseTile = 4096;

namespace detail {

// The pairs of one client grouped by tile: those of tile t are [starts[t], starts[t + 1]).
struct TiledRow {
    SparseRow row;
    double weight;
    exact::Dyadic exact_weight;
    std::vector<std::size_t> starts;
    Scratch sorted;  // the pairs of the row, if they came in another order
};

// Finds where each tile starts if the pairs are grouped by tile. Returns the position of the first
// index outside [0, size) or of the first one that jumps back, or the number of pairs.
template <class Index>
std::size_t scan_pairs(const SparseRow& row, std::size_t size, std::vector<std::size_t>& starts) {
    std::size_t tile = 0;
    std::size_t tile_end = kSparseTile;
    for (std::size_t i = 0; i < row.count; ++i) {
        // A negative index is huge as an unsigned one.
        const auto index = static_cast<std::size_t>(load_unaligned<Index>(row.indices, i));
        if (index >= size || index + kSparseTile < tile_end) return i;
        if (index < tile_end) continue;
        const std::size_t next = index / kSparseTile;
        std::fill(starts.begin() + static_cast<std::ptrdiff_t>(tile) + 1,
                  starts.begin() + static_cast<std::ptrdiff_t>(next) + 1, i);
        tile = next;
        tile_end = (next + 1) * kSparseTile;
    }
    std::fill(starts.begin() + static_cast<std::ptrdiff_t>(tile) + 1, starts.end(), row.count);
    return row.count;
}

// Counts the pairs of each tile. Returns the position of the first index outside [0, size), or the
// number of pairs.
template <class Index>
std::size_t count_pairs(const SparseRow& row, std::size_t size, std::vector<std::size_t>& starts) {
    std::fill(starts.begin(), starts.end(), std::size_t{0});
    for (std::size_t i = 0; i < row.count; ++i) {
        const auto index = static_cast<std::size_t>(load_unaligned<Index>(row.indices, i));
        if (index >= size) return i;
        ++starts[index / kSparseTile + 1];
    }
    for (std::size_t t = 1; t < starts.size(); ++t) starts[t] += starts[t - 1];
    return row.count;
}

// Copies the pairs in the order of their tiles. So many tiles are written to in turns that none is
// in the first-level cache: index and value are stored at once, and places are fetched ahead.
// `Value` stands for any of its size.
template <class Index, class Sorted, class Value>
void sort_pairs(TiledRow& tiled) {
    struct Pair {
        Sorted index;
        Value value;
    };
    const SparseRow row = tiled.row;
    tiled.sorted = make_scratch(row.count * sizeof(Pair));
    std::byte* const pairs = tiled.sorted.get();
    std::vector<std::size_t> next(tiled.starts.begin(), tiled.starts.end() - 1);
    const auto tile_of = [&](std::size_t i) {
        return static_cast<std::size_t>(load_unaligned<Index>(row.indices, i)) / kSparseTile;
    };
    constexpr std::size_t ahead = 32;
    for (std::size_t i = 0; i < row.count; ++i) {
        if (i + ahead < row.count) {
            __builtin_prefetch(pairs + next[tile_of(i + ahead)] * sizeof(Pair), 1);
        }
        const auto index = load_unaligned<Index>(row.indices, i);
        const Pair pair = {static_cast<Sorted>(index), load_unaligned<Value>(row.values, i)};
        const std::size_t at = next[tile_of(i)]++;
        std::memcpy(pairs + at * sizeof pair, &pair, sizeof pair);
    }
    tiled.row = {pairs,     sizeof(Sorted) == 8,           pairs + offsetof(Pair, value),
                 row.count, sizeof(Pair) / sizeof(Sorted), sizeof(Pair) / sizeof(Value)};
}

template <class Index, class Sorted>
void sort_pairs_of(TiledRow& tiled, std::size_t item) {
    if (item == 2) return sort_pairs<Index, Sorted, std::uint16_t>(tiled);
    if (item == 4) return sort_pairs<Index, Sorted, std::uint32_t>(tiled);
    sort_pairs<Index, Sorted, std::uint64_t>(tiled);
}

// Fills `starts`, and copies the pairs in the order of their tiles where they are not in it.
// Returns the position of the first index outside [0, size), or the number of pairs.
template <class Index>
std::size_t group_by_tile(TiledRow& tiled, std::size_t size, std::size_t item) {
    const SparseRow row = tiled.row;
    tiled.starts.assign((size + kSparseTile - 1) / kSparseTile + 1, 0);
    if (scan_pairs<Index>(row, size, tiled.starts) == row.count) return row.count;
    const std::size_t good = count_pairs<Index>(row, size, tiled.starts);
    if (good < row.count) return good;
    if (size <= std::size_t{std::numeric_limits<std::int32_t>::max()}) {
        sort_pairs_of<Index, std::int32_t>(tiled, item);
    } else {
        sort_pairs_of<Index, std::int64_t>(tiled, item);
    }
    return good;
}

struct SparseTile {
    alignas(64) std::array<double, kSparseTile> sum;  // zero between tiles, like `result`
    std::array<double, kSparseTile> error;
    std::array<std::uint64_t, kSparseTile / 64> touched;
    alignas(64) std::array<float, kSparseTile> result;
    std::array<std::uint16_t, kSparseTile> listed;
};

template <class Index, class Value>
void scatter(const TiledRow& tiled, std::size_t tile_index, DType dtype, bool exact_products,
             SparseTile& tile) noexcept {
    const std::size_t base = tile_index * kSparseTile;
    const double weight = tiled.weight;
    for (std::size_t i = tiled.starts[tile_index]; i < tiled.starts[tile_index + 1]; ++i) {
        const auto index = load_unaligned<Index>(tiled.row.indices, i * tiled.row.index_step);
        const auto at = static_cast<std::size_t>(index) - base;
        const std::size_t place = i * tiled.row.value_step;
        double value;
        if constexpr (std::is_void_v<Value>)
            value = load_element(dtype, tiled.row.values, place);
        else
            value = static_cast<double>(load_unaligned<Value>(tiled.row.values, place));
        const double product = weight * value;
        double error = 0;
        if (!exact_products)
            error = std::is_same_v<Value, float> ? std::abs(product) * 0x1p-53
                                                 : std::abs(std::fma(weight, value, -product));
        std::uint64_t& word = tile.touched[at / 64];
        const std::uint64_t bit = std::uint64_t{1} << (at % 64);
        if ((word & bit) == 0) {
            word |= bit;
            tile.sum[at] = product;
            tile.error[at] = error;
            continue;
        }
        const double old = tile.sum[at];
        const double sum = old + product;
        const double z = sum - old;
        tile.sum[at] = sum;
        tile.error[at] += error + std::abs((old - (sum - z)) + (product - z));
    }
}

// Tries to round sum / divisor to the type without the exact path.
inline bool round_filtered(double sum, double error, const WeightPlan& plan, DType dtype,
                           std::uint64_t& bits) noexcept {
    const double divisor = plan.scaled_divisor;
    bits = 0;
    if (sum == 0 && error == 0 && dtype != DType::float64) return true;
    if (error == 0 && plan.integers) {
        const double quotient = sum / divisor;
        if (dtype == DType::float64) {
            bits = std::bit_cast<std::uint64_t>(quotient + 0.0);
            return std::abs(sum) > 0x1p-900 && std::abs(sum) < 0x1p1000;
        }
        // Away from the middle between two floats, rounding twice is rounding once.
        const auto plain = std::bit_cast<std::uint64_t>(quotient);
        if (dtype == DType::float32 && (plain & 0x1fffffffU) != 0x10000000U &&
            std::abs(quotient) > 0x1p-120) {
            bits = std::bit_cast<std::uint32_t>(static_cast<float>(quotient));
            return true;
        }
        const double remainder = std::fma(-quotient, divisor, sum);
        auto odd = std::bit_cast<std::uint64_t>(quotient);
        if (remainder != 0 && (odd & 1) == 0) odd += (remainder > 0) == (quotient > 0) ? 1 : -1ULL;
        const exact::Dyadic part = exact::split(std::bit_cast<double>(odd));
        if (part.mantissa < (std::uint64_t{1} << 52)) return false;
        if (dtype == DType::float32) {
            bits = std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(odd)));
            return true;
        }
        bits = exact::round_bits(part.mantissa << 11, part.exponent - 11, false, part.negative,
                                 exact::format_of(dtype));
        return true;
    }
    if (dtype != DType::float32) return false;
    const double spread = 2 * error + std::abs(sum) * 0x1p-48;
    const auto low = std::bit_cast<std::uint32_t>(static_cast<float>((sum - spread) / divisor));
    const auto high = std::bit_cast<std::uint32_t>(static_cast<float>((sum + spread) / divisor));
    bits = low;
    return low == high && spread < 0x1p900 && std::abs(sum) > 0x1p-400;
}

// All values of one coordinate, in integers.
inline std::uint64_t exact_sparse_mean(const std::vector<TiledRow>& rows, std::size_t tile,
                                       std::int64_t index, const WeightPlan& plan, DType dtype,
                                       bool& finite) noexcept {
    exact::Sum sum(-2148, 2048 + 64);
    double special = 0;
    for (const TiledRow& tiled : rows) {
        for (std::size_t i = tiled.starts[tile]; i < tiled.starts[tile + 1]; ++i) {
            if (tiled.row.index(i) != index) continue;
            const double value = load_element(dtype, tiled.row.values, i * tiled.row.value_step);
            if (value - value != 0) {
                special += value;
                continue;
            }
            const exact::Dyadic part = exact::split(value);
            if (part.mantissa != 0) sum.add_product(tiled.exact_weight, part);
        }
    }
    if (special == 0) return exact::round_quotient(sum, plan.divisor, dtype);
    finite = false;
    return special != special ? exact::nan_bits(dtype) : exact::infinity_bits(dtype, special < 0);
}

inline void scatter_row(const TiledRow& tiled, std::size_t tile_index, DType dtype,
                        bool exact_products, SparseTile& tile) noexcept {
    if (dtype == DType::float32 && tiled.row.wide_indices)
        scatter<std::int64_t, float>(tiled, tile_index, dtype, exact_products, tile);
    else if (dtype == DType::float32)
        scatter<std::int32_t, float>(tiled, tile_index, dtype, exact_products, tile);
    else if (tiled.row.wide_indices)
        scatter<std::int64_t, void>(tiled, tile_index, dtype, exact_products, tile);
    else
        scatter<std::int32_t, void>(tiled, tile_index, dtype, exact_products, tile);
}

// Adds one client's float32 pairs of the tile as if all sums were exact, and lists their places
// from `count` on. Returns zero if they were.
template <class Index>
std::uint64_t add_pairs(const TiledRow& tiled, std::size_t tile_index, SparseTile& tile,
                        std::size_t& count) noexcept {
    const std::size_t base = tile_index * kSparseTile;
    const double weight = tiled.weight;
    const SparseRow row = tiled.row;
    const std::size_t end = tiled.starts[tile_index + 1];
    std::uint64_t errors = 0;
    for (std::size_t i = tiled.starts[tile_index]; i < end; ++i) {
        const auto index = load_unaligned<Index>(row.indices, i * row.index_step);
        const auto at = static_cast<std::size_t>(index) - base;
        const float value = load_unaligned<float>(row.values, i * row.value_step);
        const double product = weight * static_cast<double>(value);
        const double old = tile.sum[at];
        const double sum = old + product;
        const double z = sum - old;
        errors |= std::bit_cast<std::uint64_t>((old - (sum - z)) + (product - z));
        tile.sum[at] = sum;
        tile.listed[count++ % kSparseTile] = static_cast<std::uint16_t>(at);
    }
    return errors << 1;  // an error of -0 is none
}

// Fetches the float32 pairs of a tile ahead: each client's are too few for the hardware to follow.
inline void prefetch_pairs(const TiledRow& tiled, std::size_t tile_index) noexcept {
    const std::size_t begin = tiled.starts[tile_index];
    const std::size_t end = tiled.starts[tile_index + 1];
    const std::size_t index_bytes = (tiled.row.wide_indices ? 8 : 4) * tiled.row.index_step;
    const auto* indices = static_cast<const std::byte*>(tiled.row.indices);
    const auto* values = static_cast<const std::byte*>(tiled.row.values);
    for (std::size_t at = begin * index_bytes; at < end * index_bytes; at += 64) {
        __builtin_prefetch(indices + at);
    }
    if (tiled.row.value_step > 1) return;  // they lie beside the indices
    for (std::size_t at = begin * 4; at < end * 4; at += 64) __builtin_prefetch(values + at);
}

// Moves `size` results of the tile to `out` and leaves zeros. `stream`: past the caches.
inline void move_results(SparseTile& tile, std::byte* out, std::size_t size, bool stream) noexcept {
    std::size_t i = 0;
#if FEDBENCH_X86
    if (stream) {
        for (; i + 16 <= size; i += 16) {
            for (std::size_t part = i; part < i + 16; part += 4) {
                _mm_stream_ps(reinterpret_cast<float*>(out) + part,
                              _mm_load_ps(&tile.result[part]));
                _mm_store_ps(&tile.result[part], _mm_setzero_ps());
            }
        }
    }
#endif
    std::memcpy(out + i * sizeof(float), tile.result.data() + i, (size - i) * sizeof(float));
    std::memset(tile.result.data() + i, 0, (size - i) * sizeof(float));
}

// One tile by the short way. Returns false, with nothing written, if it is not enough.
inline bool exact_tile(const std::vector<TiledRow>& rows, std::size_t tile_index, std::size_t size,
                       const WeightPlan& plan, std::byte* out, bool stream,
                       SparseTile& tile) noexcept {
    std::size_t count = 0;
    std::uint64_t errors = 0;
    for (const TiledRow& tiled : rows) {
        if (tile_index + 2 < tiled.starts.size()) prefetch_pairs(tiled, tile_index + 1);
        errors |= tiled.row.wide_indices ? add_pairs<std::int64_t>(tiled, tile_index, tile, count)
                                         : add_pairs<std::int32_t>(tiled, tile_index, tile, count);
    }
    if (count > kSparseTile) {
        count = kSparseTile;
        for (std::size_t at = 0; at < count; ++at) tile.listed[at] = static_cast<std::uint16_t>(at);
    }
    if (errors != 0) {
        for (std::size_t j = 0; j < count; ++j) tile.sum[tile.listed[j]] = 0;
        return false;
    }
    bool proved = true;
    const double reciprocal = 1.0 / plan.scaled_divisor;
    constexpr std::uint64_t least = std::bit_cast<std::uint64_t>(0x1p-120) << 1;
    for (std::size_t j = 0; j < count; ++j) {
        const std::size_t at = tile.listed[j];
        const double quotient = tile.sum[at] * reciprocal;
        tile.result[at] = static_cast<float>(quotient);
        // Within three last places of the true quotient, and so on the same side of the middle
        // between two floats unless as near to that.
        const auto plain = std::bit_cast<std::uint64_t>(quotient);
        if ((plain & 0x1fffffffU) - 0x0ffffffcU <= 8 || (plain << 1) - 1 < least) {
            std::uint64_t bits = 0;
            proved &= round_filtered(tile.sum[at], 0, plan, DType::float32, bits);
            tile.result[at] = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        }
    }
    for (std::size_t j = 0; j < count; ++j) tile.sum[tile.listed[j]] = 0;
    if (!proved) {
        tile.result.fill(0);
        return false;
    }
    move_results(tile, out, size, stream);
    return true;
}

// One tile of the result. Returns whether all values were finite.
inline bool sparse_mean_tile(const std::vector<TiledRow>& rows, std::size_t tile_index,
                             std::size_t size, const WeightPlan& plan, DType dtype, void* out,
                             SparseTile& tile) noexcept {
    const std::size_t item = item_size(dtype);
    const std::size_t base = tile_index * kSparseTile;
    std::memset(static_cast<std::byte*>(out) + base * item, 0,
                std::min(kSparseTile, size - base) * item);
    const bool exact_products = plan.integers && dtype != DType::float64;
    tile.touched.fill(0);
    for (const TiledRow& tiled : rows) scatter_row(tiled, tile_index, dtype, exact_products, tile);
    bool finite = true;
    for (std::size_t word = 0; word < tile.touched.size(); ++word) {
        for (std::uint64_t rest = tile.touched[word]; rest != 0; rest &= rest - 1) {
            const std::size_t at = word * 64 + static_cast<std::size_t>(std::countr_zero(rest));
            std::uint64_t bits = 0;
            if (plan.exact_only ||
                !round_filtered(tile.sum[at], tile.error[at], plan, dtype, bits)) {
                bits = exact_sparse_mean(rows, tile_index, static_cast<std::int64_t>(base + at),
                                         plan, dtype, finite);
            }
            exact::store_bits(dtype, out, base + at, bits);
            tile.sum[at] = 0;
        }
    }
    return finite;
}

}  // namespace detail

struct SparseOutcome {
    bool finite = true;        // all values of clients with a positive weight were
    std::size_t bad_row = 0;   // the row with an index outside [0, size), or the number of rows
    std::size_t bad_pair = 0;  // its position there
};

// The mean of `rows`, one per weight, over `size` coordinates. Writes nothing if an index is bad.
inline SparseOutcome sparse_mean(const WeightPlan& plan, std::span<const SparseRow> rows,
                                 std::size_t size, DType dtype, void* out) {
    const std::size_t item = item_size(dtype);
    std::vector<detail::TiledRow> all(rows.size());
    std::vector<std::size_t> good(rows.size());
    std::size_t pairs = 0;
    for (const SparseRow& row : rows) pairs += row.count;
    parallel_for(rows.size(), 1, pairs * (8 + item), [&](std::size_t begin, std::size_t end) {
        for (std::size_t k = begin; k < end; ++k) {
            all[k].row = rows[k];
            good[k] = rows[k].wide_indices
                          ? detail::group_by_tile<std::int64_t>(all[k], size, item)
                          : detail::group_by_tile<std::int32_t>(all[k], size, item);
        }
    });
    for (std::size_t k = 0; k < rows.size(); ++k)
        if (good[k] < rows[k].count) return {true, k, good[k]};
    std::vector<detail::TiledRow> tiled;
    for (std::size_t u = 0; u < plan.clients.size(); ++u) {
        tiled.push_back(std::move(all[plan.clients[u]]));
        tiled.back().weight = plan.scaled[u];
        tiled.back().exact_weight = plan.weights[u];
    }
    std::atomic<bool> finite = true;
    const std::size_t tiles = (size + kSparseTile - 1) / kSparseTile;
    const std::size_t traffic = size * item + pairs * (8 + item);
    const bool exact = plan.integers && dtype == DType::float32;
    const bool stream = reinterpret_cast<std::size_t>(out) % 64 == 0 && size * item >= kStreamBytes;
    parallel_for(tiles, 4, traffic, [&](std::size_t begin, std::size_t end) {
        const auto tile = std::make_unique<detail::SparseTile>();
        for (std::size_t t = begin; t < end; ++t) {
            const std::size_t at = t * kSparseTile;
            const std::size_t count = std::min(kSparseTile, size - at);
            if (exact &&
                detail::exact_tile(tiled, t, count, plan, static_cast<std::byte*>(out) + at * item,
                                   stream, *tile))
                continue;
            if (!detail::sparse_mean_tile(tiled, t, size, plan, dtype, out, *tile))
                finite.store(false, std::memory_order_relaxed);
        }
#if FEDBENCH_X86
        _mm_sfence();  // streamed results are visible to whoever reads them next
#endif
    });
    return {finite.load(), rows.size(), 0};
}

}  // namespace fedbench
