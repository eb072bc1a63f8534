// Coordinate-wise median, trimmed mean and mean around the median.
//
// Values are compared as integer keys in a total order (-0 below +0), so ties and zeros have one
// answer and NaN cannot get lost in a minimum. Every statistic is a function of the multiset of
// the values at a coordinate, rounded once: the order of the clients, the instruction set and the
// split into ranges cannot change a bit.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "fedbench/exact.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/parallel.hpp"

namespace fedbench {

enum class Statistic { median, trimmed_mean, mean_around_median };

// Which ranks of the sorted values matter.
struct OrderStatistic {
    Statistic kind;
    int clients;
    int first;  // first kept rank (trimmed mean), 0 for the mean around the median
    int size;   // number of kept values; unused for the median
    DType dtype;

    static OrderStatistic median(int clients, DType dtype) {
        return {Statistic::median, clients, 0, 0, dtype};
    }
    static OrderStatistic trimmed_mean(int clients, int trimmed, DType dtype) {
        return {Statistic::trimmed_mean, clients, trimmed, clients - 2 * trimmed, dtype};
    }
    static OrderStatistic mean_around_median(int clients, int kept, DType dtype) {
        return {Statistic::mean_around_median, clients, 0, kept, dtype};
    }

    [[nodiscard]] int first_middle() const noexcept { return (clients - 1) / 2; }

    // The ranks that sorting has to bring into place, both ends included.
    [[nodiscard]] std::pair<int, int> ranks() const noexcept {
        if (kind == Statistic::median) return {first_middle(), clients / 2};
        if (kind == Statistic::trimmed_mean) return {first, first + size - 1};
        return {0, clients - 1};
    }
};

// Batcher's merge exchange (Knuth, The Art of Computer Programming 3, algorithm 5.2.2M).
template <int K>
struct MergeExchange {
    unsigned char low[K < 2 ? 1 : K * K] = {};
    unsigned char high[K < 2 ? 1 : K * K] = {};
    std::size_t size = 0;
};

template <int K>
constexpr MergeExchange<K> merge_exchange_network() {
    MergeExchange<K> network;
    int bits = 0;
    while ((1 << bits) < K) ++bits;
    for (int p = bits != 0 ? 1 << (bits - 1) : 0; p > 0; p >>= 1) {
        int q = 1 << (bits - 1);
        int r = 0;
        for (int d = p;;) {
            for (int i = 0; i < K - d; ++i) {
                if ((i & p) != r) continue;
                network.low[network.size] = static_cast<unsigned char>(i);
                network.high[network.size] = static_cast<unsigned char>(i + d);
                ++network.size;
            }
            if (q == p) break;
            d = q - p;
            q >>= 1;
            r = p;
        }
    }
    return network;
}

// Separates the lowest and highest of K values from the rest, which stays in no order: in turn, the
// least of the lower halves of pairs and the largest of the upper halves.
template <int K, int kTrimmed>
constexpr MergeExchange<K> separating_network() {
    MergeExchange<K> network;
    const auto exchange = [&network](int low, int high) {
        network.low[network.size] = static_cast<unsigned char>(low);
        network.high[network.size] = static_cast<unsigned char>(high);
        ++network.size;
    };
    for (int first = 0; first < kTrimmed; ++first) {
        const int last = K - 1 - first;
        for (int i = first; i < K - 1 - i; ++i) exchange(i, K - 1 - i);
        for (int i = first + 1; i <= K - 1 - i; ++i) exchange(first, i);
        for (int i = last - 1; i >= K - 1 - i; --i) exchange(i, last);
    }
    return network;
}

// Up to this many clients one network sorts in registers.
template <class T>
inline constexpr int kMaxClientsInRegisters = 64 / static_cast<int>(sizeof(T));

// One piece of a sorting network on the rows of a tile.
struct NetworkStep {
    enum Kind : std::uint8_t { exchange, keep_low, keep_high, sort_eight, merge_eight };
    Kind kind;
    std::uint16_t low;
    std::uint16_t high;
    std::uint16_t stride;
};

// Batcher's odd-even merge sort of a power of two of rows, without the steps that no wanted rank
// depends on and those that only touch the rows past the clients.
struct NetworkPlan {
    static constexpr int max_clients = 2048;

    int rows = 0;
    std::vector<NetworkStep> steps;

    static NetworkPlan make(const OrderStatistic& statistic) {
        NetworkPlan plan;
        plan.rows = 8;
        while (plan.rows < statistic.clients) plan.rows *= 2;
        std::vector<NetworkStep> all;
        sort(all, 0, plan.rows);
        std::vector<char> needed(static_cast<std::size_t>(plan.rows), 0);
        const auto [first, last] = statistic.ranks();
        std::fill(needed.begin() + first, needed.begin() + last + 1, char{1});
        for (auto step = all.rbegin(); step != all.rend(); ++step)
            if (keep(*step, statistic.clients, needed)) plan.steps.push_back(*step);
        std::reverse(plan.steps.begin(), plan.steps.end());
        return plan;
    }

  private:
    static NetworkStep step(NetworkStep::Kind kind, int low, int high, int stride) {
        return {kind, static_cast<std::uint16_t>(low), static_cast<std::uint16_t>(high),
                static_cast<std::uint16_t>(stride)};
    }

    static void sort(std::vector<NetworkStep>& steps, int low, int count) {
        if (count == 8) {
            steps.push_back(step(NetworkStep::sort_eight, low, low, 1));
            return;
        }
        sort(steps, low, count / 2);
        sort(steps, low + count / 2, count / 2);
        merge(steps, low, count, 1);
    }

    static void merge(std::vector<NetworkStep>& steps, int low, int count, int stride) {
        if (count / stride == 8) {
            steps.push_back(step(NetworkStep::merge_eight, low, low, stride));
            return;
        }
        merge(steps, low, count, 2 * stride);
        merge(steps, low + stride, count, 2 * stride);
        for (int i = low + stride; i + stride < low + count; i += 2 * stride)
            steps.push_back(step(NetworkStep::exchange, i, i + stride, 0));
    }

    static bool keep(NetworkStep& s, int clients, std::vector<char>& needed) {
        if (s.kind == NetworkStep::exchange) {
            if (s.high >= clients || (!needed[s.low] && !needed[s.high])) return false;
            if (!needed[s.high]) s.kind = NetworkStep::keep_low;
            if (!needed[s.low]) s.kind = NetworkStep::keep_high;
            needed[s.low] = needed[s.high] = 1;
            return true;
        }
        const int second_run = s.low + (s.kind == NetworkStep::merge_eight ? 4 * s.stride : 0);
        bool any = false;
        for (int j = 0; j < 8; ++j)
            any |= needed[static_cast<std::size_t>(s.low + j * s.stride)] != 0;
        if (second_run >= clients || !any) return false;
        for (int j = 0; j < 8; ++j) needed[static_cast<std::size_t>(s.low + j * s.stride)] = 1;
        return true;
    }
};

// The value behind a sortable key.
template <class T, class Key>
T value_of(Key key) noexcept {
    constexpr int sign = 8 * sizeof(Key) - 1;
    return std::bit_cast<T>(
        static_cast<Key>(key ^ ((key >> sign) & std::numeric_limits<Key>::max())));
}

// The number behind the bits that exact::round_quotient gives.
inline double load_bits(DType dtype, std::uint64_t bits) noexcept {
    return load_element(dtype, &bits, 0);
}

// The exact mean of `size` keys that lie `stride` apart, rounded once to `dtype`. An infinity makes
// it infinite, infinities of both signs make it NaN.
template <class T, class Key>
T exact_window_mean(const Key* keys, std::size_t stride, int size, DType dtype) noexcept {
    constexpr bool is_double = sizeof(T) == 8;
    exact::Sum sum(is_double ? -1074 : -149, (is_double ? 1024 : 128) + 32);
    T special = 0;
    for (int i = 0; i < size; ++i) {
        const T value = value_of<T>(keys[static_cast<std::size_t>(i) * stride]);
        if (value - value != 0) {
            special += value;
            continue;
        }
        const exact::Dyadic part = exact::split(static_cast<double>(value));
        if (part.mantissa == 0) continue;
        // A float has at least 29 zeros at the end of its mantissa as a double.
        constexpr int zeros = is_double ? 0 : 29;
        sum.add(part.mantissa >> zeros, part.exponent + zeros, part.negative);
    }
    if (special != special) return std::numeric_limits<T>::quiet_NaN();
    if (special != 0) return special;
    const exact::Positive divisor{{static_cast<std::uint64_t>(size)}, 0};
    return static_cast<T>(load_bits(dtype, exact::round_quotient(sum, divisor, dtype)));
}

// Brings the wanted ranks of one column into place.
template <class Key>
void partition_column(Key* column, const OrderStatistic& statistic) noexcept {
    Key* end = column + statistic.clients;
    if (statistic.kind == Statistic::mean_around_median) {
        std::sort(column, end);
        return;
    }
    const auto [first, last] = statistic.ranks();
    std::nth_element(column, column + first, end);
    if (last != first) std::nth_element(column + first + 1, column + last, end);
}

}  // namespace fedbench

#define FEDBENCH_KERNEL_FILE "fedbench/order_statistics.inl"
#include "fedbench/foreach_isa.inl"

namespace fedbench {

// The coordinates of one tile.
template <class T>
inline constexpr std::size_t kTileLanes = 128 / sizeof(T);

// Memory that the widest vectors may be stored to.
class Scratch {
  public:
    explicit Scratch(std::size_t bytes) : data_(::operator new(bytes, std::align_val_t{64})) {}
    ~Scratch() { ::operator delete(data_, std::align_val_t{64}); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    [[nodiscard]] void* data() const noexcept { return data_; }

  private:
    void* data_;
};

// The bfloat16 nearest to a float given by its bits, ties to even.
inline std::uint16_t float_bits_to_bfloat16(std::uint32_t bits) noexcept {
    if ((bits & 0x7fffffffU) > 0x7f800000U) return 0x7fc0;
    return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

// One statistic with its plan and kernel, for ranges of coordinates.
template <class T>
class OrderStatisticJob {
  public:
    OrderStatisticJob(const OrderStatistic& statistic, IsaLevel isa)
        : statistic_(statistic), kernel_(FEDBENCH_DISPATCH(isa, ranks::order_statistic_range<T>)) {
        const int clients = statistic.clients;
        if (clients > kMaxClientsInRegisters<T> && clients <= NetworkPlan::max_clients)
            plan_ = NetworkPlan::make(statistic);
    }

    [[nodiscard]] std::size_t scratch_bytes() const {
        // Without a network, one column is copied out behind the tile.
        const int rows = plan_.steps.empty() ? 2 * statistic_.clients : plan_.rows;
        return static_cast<std::size_t>(rows) * kTileLanes<T> * sizeof(T);
    }

    [[nodiscard]] bool run(const T* const* rows, std::size_t begin, std::size_t end, T* out,
                           void* scratch) const {
        return kernel_(rows, statistic_, plan_, begin, end, out, scratch);
    }

  private:
    using Kernel = bool (*)(const T* const*, const OrderStatistic&, const NetworkPlan&, std::size_t,
                            std::size_t, T*, void*);
    OrderStatistic statistic_;
    Kernel kernel_;
    NetworkPlan plan_;
};

// The statistic of each coordinate of float or double rows.
template <class T>
bool order_statistic_wide(const void* const* rows, const OrderStatistic& statistic,
                          std::size_t size, void* out, IsaLevel isa) {
    const OrderStatisticJob<T> job(statistic, isa);
    const auto traffic = static_cast<std::size_t>(statistic.clients + 1) * size * sizeof(T);
    std::vector<const T*> typed;
    for (int k = 0; k < statistic.clients; ++k) typed.push_back(static_cast<const T*>(rows[k]));
    std::atomic<bool> finite = true;
    parallel_for(size, 1024, traffic, [&](std::size_t begin, std::size_t end) {
        const Scratch scratch(job.scratch_bytes());
        if (!job.run(typed.data(), begin, end, static_cast<T*>(out), scratch.data()))
            finite.store(false, std::memory_order_relaxed);
    });
    return finite.load();
}

// The same for float16 and bfloat16: a strip of every row is widened, exactly, to float.
inline bool order_statistic_narrow(const void* const* rows, OrderStatistic statistic,
                                   std::size_t size, void* out, IsaLevel isa) {
    constexpr std::size_t strip = 256;
    const DType dtype = statistic.dtype;
    const auto clients = static_cast<std::size_t>(statistic.clients);
    if (statistic.kind == Statistic::median && clients % 2 == 0)
        statistic = {Statistic::trimmed_mean, statistic.clients, statistic.first_middle(), 2,
                     dtype};
    const OrderStatisticJob<float> job(statistic, isa);
    std::atomic<bool> finite = true;
    parallel_for(size, strip, (clients + 1) * size * 2, [&](std::size_t begin, std::size_t end) {
        const Scratch scratch(job.scratch_bytes());
        std::vector<float> widened(clients * strip);
        std::vector<const float*> pointers;
        for (std::size_t k = 0; k < clients; ++k) pointers.push_back(widened.data() + k * strip);
        float result[strip];
        for (std::size_t i = begin; i < end; i += strip) {
            const std::size_t count = std::min(strip, end - i);
            for (std::size_t k = 0; k < clients; ++k)
                for (std::size_t j = 0; j < count; ++j)
                    widened[k * strip + j] =
                        static_cast<float>(load_element(dtype, rows[k], i + j));
            if (!job.run(pointers.data(), 0, count, result, scratch.data()))
                finite.store(false, std::memory_order_relaxed);
            for (std::size_t j = 0; j < count; ++j) {
                const auto bits = std::bit_cast<std::uint32_t>(result[j]);
                store_unaligned(out, i + j,
                                dtype == DType::float16 ? float_bits_to_float16(bits)
                                                        : float_bits_to_bfloat16(bits));
            }
        }
    });
    return finite.load();
}

// The statistic of each coordinate of `rows` (one address per client, elements of
// `statistic.dtype`, any alignment), split over threads. 1 <= clients < 2^24; `out` may not
// overlap the rows. Returns whether all values were finite.
inline bool order_statistic(const void* const* rows, const OrderStatistic& statistic,
                            std::size_t size, void* out, IsaLevel isa = active_isa()) {
    if (statistic.dtype == DType::float64)
        return order_statistic_wide<double>(rows, statistic, size, out, isa);
    if (statistic.dtype == DType::float32)
        return order_statistic_wide<float>(rows, statistic, size, out, isa);
    return order_statistic_narrow(rows, statistic, size, out, isa);
}

}  // namespace fedbench
