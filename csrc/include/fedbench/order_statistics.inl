// Order statistics over vectors of coordinates; see foreach_isa.inl.
//
// Coordinates are the lanes: client k contributes one vector per group of coordinates, and a
// sorting network of element-wise minima and maxima sorts all lanes at once, without branches.

namespace fedbench::FEDBENCH_ISA::ranks {

template <class T>
struct Lanes;

template <>
struct Lanes<float> {
    using Key = std::int32_t;
    typedef Key Keys __attribute__((vector_size(32)));
    typedef float Values __attribute__((vector_size(32)));
    static constexpr int count = 8;
};

template <>
struct Lanes<double> {
    using Key = std::int64_t;
    typedef Key Keys __attribute__((vector_size(32)));
    typedef double Values __attribute__((vector_size(32)));
    static constexpr int count = 4;
};

typedef double Quad __attribute__((vector_size(32)));
typedef std::int64_t QuadBits __attribute__((vector_size(32)));
typedef float QuadFloat __attribute__((vector_size(16)));
typedef std::int32_t QuadFloatBits __attribute__((vector_size(16)));

// The compilers' own conversion takes four instructions where the processor has one.
FEDBENCH_INLINE void widen(const QuadFloat& narrow, Quad& wide) {
#if FEDBENCH_ISA_LEVEL >= 1
    const __m256d converted = _mm256_cvtps_pd(narrow);
    std::memcpy(&wide, &converted, sizeof wide);
#else
    wide = __builtin_convertvector(narrow, Quad);
#endif
}

FEDBENCH_INLINE void narrow(const Quad& wide, QuadFloat& narrowed) {
#if FEDBENCH_ISA_LEVEL >= 1
    const __m128 converted = _mm256_cvtpd_ps(wide);
    std::memcpy(&narrowed, &converted, sizeof narrowed);
#else
    narrowed = __builtin_convertvector(wide, QuadFloat);
#endif
}

// The doubles of eight floats, in as few registers as the level has for them.
#if FEDBENCH_ISA_LEVEL == 2
typedef double Wide __attribute__((vector_size(64)));
typedef float WideFloat __attribute__((vector_size(32)));
typedef std::int32_t WideFloatBits __attribute__((vector_size(32)));

FEDBENCH_INLINE void narrow(const Wide& wide, WideFloat& narrowed) {
    const __m256 converted = _mm512_cvtpd_ps(wide);
    std::memcpy(&narrowed, &converted, sizeof narrowed);
}
#else
typedef Quad Wide;
typedef QuadFloat WideFloat;
typedef QuadFloatBits WideFloatBits;
#endif
inline constexpr int kWides = 8 * sizeof(double) / sizeof(Wide);

FEDBENCH_INLINE void widen_all(const Lanes<float>::Values& values, Wide* wide) {
#if FEDBENCH_ISA_LEVEL == 2
    wide[0] = _mm512_cvtps_pd(values);
#elif FEDBENCH_ISA_LEVEL == 1
    wide[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(values));
    wide[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1));
#else
    QuadFloat halves[2];
    std::memcpy(halves, &values, sizeof halves);
    widen(halves[0], wide[0]);
    widen(halves[1], wide[1]);
#endif
}

// Maps the bits of a floating-point number to an integer that sorts like it, -0 below +0 and
// NaN outside the infinities; its own inverse.
template <class Keys>
FEDBENCH_INLINE void swap_order(Keys& keys) {
    using Key = std::remove_reference_t<decltype(keys[0])>;
    constexpr int sign = 8 * sizeof(Key) - 1;
    keys ^= (keys >> sign) & std::numeric_limits<Key>::max();
}

template <class Keys>
FEDBENCH_INLINE void compare_exchange(Keys& a, Keys& b) {
    const Keys low = a < b ? a : b;
    b = a < b ? b : a;
    a = low;
}

template <class V, class Pointer>
FEDBENCH_INLINE void load(V& vector, Pointer source) {
    std::memcpy(&vector, source, sizeof vector);
}

template <class V, class Pointer>
FEDBENCH_INLINE void store(Pointer target, const V& vector) {
    std::memcpy(target, &vector, sizeof vector);
}

// Loads one vector of values as keys and marks the lanes that hold NaN or an infinity.
template <class T>
FEDBENCH_INLINE void load_keys(const T* source, typename Lanes<T>::Keys& keys,
                               typename Lanes<T>::Keys& special) {
    typename Lanes<T>::Values values;
    load(values, source);
    const typename Lanes<T>::Values nothing = values - values;
    special |= nothing != nothing;
    std::memcpy(&keys, &values, sizeof keys);
    swap_order(keys);
}

template <class Bits>
FEDBENCH_INLINE bool any_set(const Bits& mask) {
#if FEDBENCH_ISA_LEVEL >= 1
    if constexpr (sizeof mask == 32) {
        __m256i bits;
        std::memcpy(&bits, &mask, sizeof bits);
        return _mm256_testz_si256(bits, bits) == 0;
    }
#endif
    std::uint64_t words[sizeof mask / 8];
    std::memcpy(words, &mask, sizeof mask);
    std::uint64_t any = 0;
    for (const std::uint64_t word : words) any |= word;
    return any != 0;
}

// Turns the mark of lanes that are not finite into that of lanes with NaN, by a second look at the
// keys; returns whether there is anything to mark.
template <class T>
FEDBENCH_INLINE bool mark_nan(const typename Lanes<T>::Keys* keys, int clients, std::size_t stride,
                              typename Lanes<T>::Keys& special) {
    using Keys = typename Lanes<T>::Keys;
    if (!any_set(special)) return false;
    special = Keys{};
    for (int k = 0; k < clients; ++k) {
        Keys bits = keys[static_cast<std::size_t>(k) * stride];
        swap_order(bits);
        typename Lanes<T>::Values values;
        std::memcpy(&values, &bits, sizeof values);
        special |= values != values;
    }
    return true;
}

// The mean of the two middle values, rounded once; an exact zero is +0 as in every mean, and with
// an odd number of values both are the same and their mean is the value itself. The sum of two
// values is exact where halving it could round (below twice the least normal number); where it
// overflows, halving is exact.
template <class T>
FEDBENCH_INLINE void middle(typename Lanes<T>::Keys& low, typename Lanes<T>::Keys& high,
                            const typename Lanes<T>::Keys& nan, bool even, T* out) {
    using Values = typename Lanes<T>::Values;
    constexpr T infinity = std::numeric_limits<T>::infinity();
    Values a, b;
    swap_order(low);
    swap_order(high);
    std::memcpy(&a, &low, sizeof a);
    std::memcpy(&b, &high, sizeof b);
    // Adding +0 turns the sum of two -0 into +0.
    const Values sum = even ? a + b + T(0) : a + b;
    const Values halves = T(0.5) * a + T(0.5) * b;
    Values result = (sum == infinity) | (sum == -infinity) ? halves : sum * T(0.5);
    result =
        (nan != 0) | (result != result) ? Values{} + std::numeric_limits<T>::quiet_NaN() : result;
    store(out, result);
}

// ---- networks in registers -------------------------------------------------------------------

template <const auto& kNetwork, class Keys, std::size_t... I>
FEDBENCH_INLINE void run_network([[maybe_unused]] Keys* v, std::index_sequence<I...>) {
    (compare_exchange(v[kNetwork.low[I]], v[kNetwork.high[I]]), ...);
}

template <int K, class Keys>
FEDBENCH_INLINE void sort_in_registers(Keys* v) {
    static constexpr auto network = merge_exchange_network<K>();
    run_network<network>(v, std::make_index_sequence<network.size>{});
}

// Merges two sorted runs of four.
template <class Keys>
FEDBENCH_INLINE void merge_fours(Keys* v) {
    compare_exchange(v[0], v[4]);
    compare_exchange(v[2], v[6]);
    compare_exchange(v[2], v[4]);
    compare_exchange(v[1], v[5]);
    compare_exchange(v[3], v[7]);
    compare_exchange(v[3], v[5]);
    compare_exchange(v[1], v[2]);
    compare_exchange(v[3], v[4]);
    compare_exchange(v[5], v[6]);
}

}  // namespace fedbench::FEDBENCH_ISA::ranks

#include "fedbench/window_means.inl"

namespace fedbench::FEDBENCH_ISA::ranks {

// ---- results ----------------------------------------------------------------------------------

// Writes the statistic of `lanes` sorted columns to `out`; NaN where a value was NaN.
template <class T, class Keys>
FEDBENCH_INLINE void finish(const typename Lanes<T>::Key* sorted, std::size_t stride, int vectors,
                            const OrderStatistic& statistic, const Keys* nan, T* out) {
    constexpr int count = Lanes<T>::count;
    if (statistic.kind == Statistic::median) {
        for (int c = 0; c < vectors; ++c) {
            Keys low, high;
            load(low, sorted + static_cast<std::size_t>((statistic.clients - 1) / 2) * stride +
                          c * count);
            load(high,
                 sorted + static_cast<std::size_t>(statistic.clients / 2) * stride + c * count);
            middle<T>(low, high, nan[c], statistic.clients % 2 == 0, out + c * count);
        }
        return;
    }
    for (int c = 0; c < vectors; ++c) {
        window_means<T>(sorted + c * count, stride, statistic, out + c * count);
        if (!any_set(nan[c])) continue;
        typename Lanes<T>::Values values;
        load(values, out + c * count);
        values = nan[c] != 0 ? decltype(values){} + std::numeric_limits<T>::quiet_NaN() : values;
        store(out + c * count, values);
    }
}

// ---- few clients: one network, all in registers ----------------------------------------------

// Compiled for the median by itself, the ranks that it does not need are not computed.
template <class T, int K, bool kMedian>
FEDBENCH_INLINE bool small_group(const T* const* rows, std::size_t at,
                                 const OrderStatistic& statistic, T* out) {
    using Keys = typename Lanes<T>::Keys;
    Keys v[K];
    for (int k = 0; k < K; ++k) {
        load(v[k], rows[k] + at);
        swap_order(v[k]);
    }
    sort_in_registers<K>(v);
    // What is not finite has gone to the ends, NaN beyond the infinities.
    constexpr auto high = std::bit_cast<typename Lanes<T>::Key>(std::numeric_limits<T>::infinity());
    constexpr auto low = static_cast<typename Lanes<T>::Key>(~high);  // negation flips all bits
    const bool finite = !any_set((v[0] <= low) | (v[K - 1] >= high));
    const Keys nan = (v[0] < low) | (v[K - 1] > high);
    if constexpr (kMedian) {
        if constexpr (K % 2 == 1) {
            swap_order(v[K / 2]);
            typename Lanes<T>::Values result;
            std::memcpy(&result, &v[K / 2], sizeof result);
            store(out,
                  nan != 0 ? decltype(result){} + std::numeric_limits<T>::quiet_NaN() : result);
        } else {
            middle<T>(v[K / 2 - 1], v[K / 2], nan, true, out);
        }
    } else {
        alignas(32) typename Lanes<T>::Key sorted[K * Lanes<T>::count];
        for (int k = 0; k < K; ++k) store(sorted + k * Lanes<T>::count, v[k]);
        finish<T>(sorted, Lanes<T>::count, 1, statistic, &nan, out);
    }
    return finite;
}

// The trimmed means of eight columns of finite floats without sorting what is kept, if plain sums
// prove them. Written and true, or to be computed by small_group.
template <int K, int kTrimmed>
FEDBENCH_INLINE bool separated_group(const float* const* rows, std::size_t at, float* out) {
    using Keys = Lanes<float>::Keys;
    Keys v[K];
    for (int k = 0; k < K; ++k) {
        load(v[k], rows[k] + at);
        swap_order(v[k]);
    }
    static constexpr auto network = separating_network<K, kTrimmed>();
    run_network<network>(v, std::make_index_sequence<network.size>{});
    constexpr auto high = std::bit_cast<std::int32_t>(std::numeric_limits<float>::infinity());
    if (any_set((v[0] <= ~high) | (v[K - 1] >= high))) return false;
    alignas(32) std::int32_t separated[K * Lanes<float>::count];
    for (int k = 0; k < K; ++k) store(separated + k * Lanes<float>::count, v[k]);
    const auto statistic = OrderStatistic::trimmed_mean(K, kTrimmed, DType::float32);
    return plain_trimmed_means<false>(separated, Lanes<float>::count, statistic, out);
}

// `kTrimmed`: of a trimmed mean of float32, compiled for that number by itself; 0 for all others.
template <class T, int K, bool kMedian, int kTrimmed>
bool few_clients(const T* const* rows, const OrderStatistic& statistic, std::size_t begin,
                 std::size_t end, T* out) {
    constexpr std::size_t count = Lanes<T>::count;
    bool finite = true;
    std::size_t i = begin;
    for (; i + count <= end; i += count) {
        if (i % 16 < count)
            for (int k = 0; k < K; ++k) __builtin_prefetch(rows[k] + i + 512 / sizeof(T));
        if constexpr (kTrimmed > 0) {
            if (separated_group<K, kTrimmed>(rows, i, out + i)) continue;
        }
        finite &= small_group<T, K, kMedian>(rows, i, statistic, out + i);
    }
    if (i == end) return finite;
    T padded[K][count] = {};
    const T* tail[K];
    for (int k = 0; k < K; ++k) {
        std::memcpy(padded[k], rows[k] + i, (end - i) * sizeof(T));
        tail[k] = padded[k];
    }
    T result[count];
    finite &= small_group<T, K, kMedian>(tail, 0, statistic, result);
    std::memcpy(out + i, result, (end - i) * sizeof(T));
    return finite;
}

// ---- more clients: a plan of network pieces over a tile in the cache --------------------------

template <class T>
struct Tile {
    static constexpr int vectors = 4;
    static constexpr int lanes = vectors * Lanes<T>::count;
};

template <class T>
void run_plan(const NetworkPlan& plan, typename Lanes<T>::Keys* tile) {
    constexpr int C = Tile<T>::vectors;
    using Keys = typename Lanes<T>::Keys;
    for (const NetworkStep& step : plan.steps) {
        Keys* a = tile + static_cast<std::size_t>(step.low) * C;
        Keys* b = tile + static_cast<std::size_t>(step.high) * C;
        const std::size_t stride = static_cast<std::size_t>(step.stride) * C;
        switch (step.kind) {
            case NetworkStep::exchange:
                for (int c = 0; c < C; ++c) {
                    Keys low = a[c], high = b[c];
                    compare_exchange(low, high);
                    a[c] = low, b[c] = high;
                }
                break;
            case NetworkStep::keep_low:
                for (int c = 0; c < C; ++c) a[c] = a[c] < b[c] ? a[c] : b[c];
                break;
            case NetworkStep::keep_high:
                for (int c = 0; c < C; ++c) b[c] = a[c] < b[c] ? b[c] : a[c];
                break;
            case NetworkStep::sort_eight:
            case NetworkStep::merge_eight:
                for (int c = 0; c < C; ++c) {
                    Keys v[8];
                    for (std::size_t j = 0; j < 8; ++j)
                        v[j] = a[j * stride + static_cast<std::size_t>(c)];
                    if (step.kind == NetworkStep::sort_eight)
                        sort_in_registers<8>(v);
                    else
                        merge_fours(v);
                    for (std::size_t j = 0; j < 8; ++j)
                        a[j * stride + static_cast<std::size_t>(c)] = v[j];
                }
                break;
        }
    }
}

// Loads up to one tile of columns; lanes past `count` are zero.
template <class T>
FEDBENCH_INLINE bool load_tile(const T* const* rows, int clients, std::size_t at, std::size_t count,
                               typename Lanes<T>::Keys* tile, typename Lanes<T>::Keys* nan) {
    constexpr int C = Tile<T>::vectors;
    constexpr int lanes = Lanes<T>::count;
    for (int c = 0; c < C; ++c) nan[c] = typename Lanes<T>::Keys{};
    T padded[Tile<T>::lanes] = {};
    for (int k = 0; k < clients; ++k) {
        const T* source = rows[k] + at;
        if (count < Tile<T>::lanes) {
            std::memcpy(padded, source, count * sizeof(T));
            source = padded;
        } else {
            __builtin_prefetch(source + Tile<T>::lanes * 2);
            __builtin_prefetch(source + Tile<T>::lanes * 2 + 64 / sizeof(T));
        }
        for (int c = 0; c < C; ++c) load_keys(source + c * lanes, tile[k * C + c], nan[c]);
    }
    bool finite = true;
    for (int c = 0; c < C; ++c) finite &= !mark_nan<T>(tile + c, clients, C, nan[c]);
    return finite;
}

template <class T>
bool many_clients(const T* const* rows, const NetworkPlan& plan, const OrderStatistic& statistic,
                  std::size_t begin, std::size_t end, T* out, void* scratch) {
    using Keys = typename Lanes<T>::Keys;
    using Key = typename Lanes<T>::Key;
    constexpr int C = Tile<T>::vectors;
    auto* tile = static_cast<Keys*>(scratch);
    Keys nan[C];
    alignas(32) T result[Tile<T>::lanes];
    bool finite = true;
    // The rows past the clients sort behind every value, so no step ever changes them.
    for (int k = statistic.clients * C; k < plan.rows * C; ++k)
        tile[k] = Keys{} + std::numeric_limits<Key>::max();
    for (std::size_t i = begin; i < end; i += Tile<T>::lanes) {
        const std::size_t count = end - i < Tile<T>::lanes ? end - i : Tile<T>::lanes;
        finite &= load_tile<T>(rows, statistic.clients, i, count, tile, nan);
        run_plan<T>(plan, tile);
        finish<T>(reinterpret_cast<const Key*>(tile), Tile<T>::lanes, C, statistic, nan, result);
        std::memcpy(out + i, result, count * sizeof(T));
    }
    return finite;
}

// ---- any number of clients: partition one column at a time -----------------------------------

template <class T>
bool any_clients(const T* const* rows, const OrderStatistic& statistic, std::size_t begin,
                 std::size_t end, T* out, void* scratch) {
    using Keys = typename Lanes<T>::Keys;
    using Key = typename Lanes<T>::Key;
    constexpr int C = Tile<T>::vectors;
    constexpr std::size_t lanes = Tile<T>::lanes;
    const auto clients = static_cast<std::size_t>(statistic.clients);
    auto* tile = static_cast<Keys*>(scratch);
    auto* keys = static_cast<Key*>(scratch);
    Key* column = keys + clients * lanes;
    Keys nan[C];
    alignas(32) T result[lanes];
    bool finite = true;
    for (std::size_t i = begin; i < end; i += lanes) {
        const std::size_t count = end - i < lanes ? end - i : lanes;
        finite &= load_tile<T>(rows, statistic.clients, i, count, tile, nan);
        for (std::size_t lane = 0; lane < count; ++lane) {
            for (std::size_t k = 0; k < clients; ++k) column[k] = keys[k * lanes + lane];
            partition_column(column, statistic);
            for (std::size_t k = 0; k < clients; ++k) keys[k * lanes + lane] = column[k];
        }
        finish<T>(keys, lanes, C, statistic, nan, result);
        std::memcpy(out + i, result, count * sizeof(T));
    }
    return finite;
}

template <class T>
using FewClients = bool (*)(const T* const*, const OrderStatistic&, std::size_t, std::size_t, T*);

template <class T, bool kMedian, int kTrimmed, int... I>
FewClients<T> few_clients_kernel(int clients, std::integer_sequence<int, I...>) {
    static constexpr FewClients<T> kernels[] = {
        &few_clients<T, I + 1, kMedian, (I + 1 > 2 * kTrimmed ? kTrimmed : 0)>...};
    return kernels[clients - 1];
}

template <class T>
FewClients<T> few_clients_kernel(const OrderStatistic& statistic) {
    constexpr std::make_integer_sequence<int, kMaxClientsInRegisters<T>> counts;
    if (statistic.kind == Statistic::median)
        return few_clients_kernel<T, true, 0>(statistic.clients, counts);
    if constexpr (std::is_same_v<T, float>) {
        if (statistic.kind == Statistic::trimmed_mean && statistic.dtype == DType::float32) {
            if (statistic.first == 1)
                return few_clients_kernel<T, false, 1>(statistic.clients, counts);
            if (statistic.first == 2)
                return few_clients_kernel<T, false, 2>(statistic.clients, counts);
        }
    }
    return few_clients_kernel<T, false, 0>(statistic.clients, counts);
}

// The statistic of [begin, end); returns whether all values there were finite.
template <class T>
bool order_statistic_range(const T* const* rows, const OrderStatistic& statistic,
                           const NetworkPlan& plan, std::size_t begin, std::size_t end, T* out,
                           void* scratch) {
    if (statistic.clients <= kMaxClientsInRegisters<T>)
        return few_clients_kernel<T>(statistic)(rows, statistic, begin, end, out);
    if (!plan.steps.empty())
        return many_clients<T>(rows, plan, statistic, begin, end, out, scratch);
    return any_clients<T>(rows, statistic, begin, end, out, scratch);
}

}  // namespace fedbench::FEDBENCH_ISA::ranks
