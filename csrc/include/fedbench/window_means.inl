// Means of windows of sorted ranks, the part of order_statistics.inl behind trimmed means; see
// foreach_isa.inl.

namespace fedbench::FEDBENCH_ISA::ranks {

FEDBENCH_INLINE void load_quad(const std::int64_t* keys, Quad& values) {
    QuadBits bits;
    load(bits, keys);
    swap_order(bits);
    std::memcpy(&values, &bits, sizeof values);
}

FEDBENCH_INLINE void load_quad(const std::int32_t* keys, Quad& values) {
    QuadFloatBits bits;
    QuadFloat narrow;
    load(bits, keys);
    swap_order(bits);
    std::memcpy(&narrow, &bits, sizeof narrow);
    widen(narrow, values);
}

// sum + (the errors' sum) is exact at every step.
FEDBENCH_INLINE void two_sum(const Quad& a, const Quad& b, Quad& sum, Quad& error) {
    sum = a + b;
    const Quad z = sum - a;
    error = (a - (sum - z)) + (b - z);
}

FEDBENCH_INLINE void absolute(Quad& v) {
    QuadBits bits;
    std::memcpy(&bits, &v, sizeof bits);
    bits &= std::numeric_limits<std::int64_t>::max();
    std::memcpy(&v, &bits, sizeof v);
}

// value - quotient * count without an error, for a quotient that was rounded from
// value / count: both halves of the quotient times a count below 2^26 are exact.
FEDBENCH_INLINE void exact_remainder(const Quad& value, const Quad& quotient, double count,
                                     Quad& remainder) {
    QuadBits bits;
    std::memcpy(&bits, &quotient, sizeof bits);
    bits &= ~std::int64_t{(1 << 27) - 1};
    Quad high;
    std::memcpy(&high, &bits, sizeof high);
    remainder = (value - high * count) - (quotient - high) * count;
}

struct WindowSum {
    Quad sum = {};
    Quad error = {};
    Quad error_bound = {};
};

FEDBENCH_INLINE void add_to_window(WindowSum& w, const Quad& value) {
    Quad sum, error;
    two_sum(w.sum, value, sum, error);
    w.sum = sum;
    w.error += error;
    absolute(error);
    w.error_bound += error;
}

template <class Bits>
FEDBENCH_INLINE bool all_set(const Bits& mask) {
    std::uint64_t words[sizeof mask / 8];
    std::memcpy(words, &mask, sizeof mask);
    std::uint64_t all = words[0];
    for (const std::uint64_t word : words) all &= word;
    return ~all == 0;
}

// The lanes that are not trusted or where the two results differ, in the sign of zero too, or
// are NaN (which infinities make).
template <class Bits, class V>
FEDBENCH_INLINE unsigned undecided_lanes(const V& a, const V& b, const Bits& trusted) {
    Bits x, y;
    std::memcpy(&x, &a, sizeof x);
    std::memcpy(&y, &b, sizeof y);
    const Bits decided = (x == y) & (a == b) & trusted;
    if (all_set(decided)) return 0;
    std::remove_cvref_t<decltype(decided[0])> lanes[4];
    std::memcpy(lanes, &decided, sizeof lanes);
    unsigned undecided = 0;
    for (unsigned lane = 0; lane < 4; ++lane) undecided |= (lanes[lane] == 0 ? 1U : 0U) << lane;
    return undecided;
}

// Moves inexact results to the neighbour with an odd last bit on the side of what was lost, which
// is where rounding to odd ends: rounding that to a type at least two bits narrower is as good as
// rounding the true value.
template <class Bits, class V>
FEDBENCH_INLINE void round_to_odd(V& value, const V& lost) {
    Bits bits;
    std::memcpy(&bits, &value, sizeof bits);
    const Bits one = Bits{} + 1;
    const Bits away = (lost > 0) == (value > 0) ? one : -one;
    bits = (lost != 0) & ((bits & 1) == 0) ? bits + away : bits;
    std::memcpy(&value, &bits, sizeof value);
}

// Rounds four float means; returns the lanes that the bound could not decide.
// The quotient of an exactly represented sum is rounded to odd in float64 and then once to
// float32. Otherwise the true sum lies within `spread` of the float64 sum, and where both ends
// round alike the result is proved. For 16-bit types the result is rounded to odd in float32, for
// the caller to round it once more, and inexact sums are left undecided.
FEDBENCH_INLINE unsigned round_window(const WindowSum& w, double count, bool narrow, float* out) {
    Quad quotient = w.sum / count;
    Quad remainder;
    exact_remainder(w.sum, quotient, count, remainder);
    round_to_odd<QuadBits>(quotient, remainder);
    const QuadBits exact = w.error_bound == 0;
    const QuadFloat rounded = __builtin_convertvector(quotient, QuadFloat);
    if (narrow) {
        Quad widened;
        widen(rounded, widened);
        const QuadFloat lost = __builtin_convertvector(quotient - widened, QuadFloat);
        QuadFloat odd = rounded;
        round_to_odd<QuadFloatBits>(odd, lost);
        store(out, odd);
        return undecided_lanes<QuadBits>(quotient, quotient, exact);
    }
    if (all_set(exact)) {
        store(out, rounded);
        return 0;
    }
    Quad magnitude = w.sum;
    absolute(magnitude);
    const Quad spread = 2 * w.error_bound + magnitude * 0x1p-50;
    const Quad low = exact ? quotient : (w.sum - spread) / count;
    const Quad high = exact ? quotient : (w.sum + spread) / count;
    const QuadFloat a = __builtin_convertvector(low, QuadFloat);
    const QuadFloat b = __builtin_convertvector(high, QuadFloat);
    store(out, a);
    return undecided_lanes<QuadFloatBits>(a, b, QuadFloatBits{} - 1);
}

// The same for double: sum + error is the true sum within (count + 2) 2^-52 error_bound, and
// the quotient is held in two doubles.
FEDBENCH_INLINE unsigned round_window(const WindowSum& w, double count, bool, double* out) {
    Quad high, low, magnitude;
    two_sum(w.sum, w.error, high, low);
    const Quad quotient = high / count;
    Quad remainder;
    exact_remainder(high, quotient, count, remainder);
    const Quad correction = (remainder + low) / count;
    magnitude = correction;
    absolute(magnitude);
    const Quad spread = magnitude * 0x1p-50 + w.error_bound * ((count + 2) * 0x1p-51);
    const QuadBits exact = w.error_bound == 0;
    const Quad a = exact ? quotient : quotient + (correction - spread);
    const Quad b = exact ? quotient : quotient + (correction + spread);
    store(out, a);
    magnitude = high;
    absolute(magnitude);
    // The remainder is exact only while nothing underflows.
    const QuadBits trusted = ((magnitude > 0x1p-900) | exact) & (magnitude < 0x1p1000);
    return undecided_lanes<QuadBits>(a, b, trusted);
}

// First rank of the window of `size` ranks that lies closest to the median, per lane: the
// window moves up while the rank that would enter is strictly closer than the one that would
// leave, which is x[r + size] - median < median - x[r], compared without rounding.
template <class Key>
FEDBENCH_INLINE void closest_window(const Key* sorted, std::size_t stride, int clients, int size,
                                    QuadBits& start) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    Quad a, b, median, median_error;
    load_quad(sorted + static_cast<std::size_t>((clients - 1) / 2) * stride, a);
    load_quad(sorted + static_cast<std::size_t>(clients / 2) * stride, b);
    // Where the sum of the middle values overflows, all sums are halved; what that loses is far
    // below such a median. Other sums may overflow: infinity compares as the true sum does.
    median = a + b;
    const QuadBits overflows =
        ((median == infinity) | (median == -infinity)) & (a - a == 0) & (b - b == 0);
    const Quad scale = overflows ? Quad{0.5, 0.5, 0.5, 0.5} : Quad{1, 1, 1, 1};
    two_sum(a * scale, b * scale, median, median_error);
    start = QuadBits{};
    for (int rank = 0; rank + size < clients; ++rank) {
        Quad leaving, entering, sum, error;
        load_quad(sorted + static_cast<std::size_t>(rank) * stride, leaving);
        load_quad(sorted + static_cast<std::size_t>(rank + size) * stride, entering);
        two_sum(leaving * scale, entering * scale, sum, error);
        start -= (sum < median) | ((sum == median) & (error < median_error)) |
                 ((median == infinity) & (entering == infinity) & (leaving < infinity));
    }
}

// Means of the kept ranks of four sorted columns.
template <class T>
void four_window_means(const typename Lanes<T>::Key* sorted, std::size_t stride,
                       const OrderStatistic& statistic, T* out) {
    const int size = statistic.size;
    WindowSum window;
    QuadBits start = QuadBits{} + statistic.first;
    Quad value;
    if (statistic.kind == Statistic::mean_around_median) {
        closest_window(sorted, stride, statistic.clients, size, start);
        for (int rank = 0; rank < statistic.clients; ++rank) {
            load_quad(sorted + static_cast<std::size_t>(rank) * stride, value);
            const QuadBits kept = (start <= rank) & (start + size > rank);
            value = kept ? value : Quad{};
            add_to_window(window, value);
        }
    } else {
        for (int rank = statistic.first; rank < statistic.first + size; ++rank) {
            load_quad(sorted + static_cast<std::size_t>(rank) * stride, value);
            add_to_window(window, value);
        }
    }
    unsigned undecided = round_window(window, size, item_size(statistic.dtype) == 2, out);
    for (; undecided != 0; undecided &= undecided - 1) {
        const int q = std::countr_zero(undecided);
        const auto* column = sorted + static_cast<std::size_t>(start[q]) * stride + q;
        store(out + q, exact_window_mean<T>(column, stride, size, statistic.dtype));
    }
}

typedef std::uint32_t OctetMagnitudes __attribute__((vector_size(32)));

// Plain sums of the kept ranks of eight columns of floats, and the largest |x| among them, which in
// sorted columns is the first or the last.
struct PlainSums {
    Wide sums[kWides] = {};
    OctetMagnitudes largest;
};

template <bool kSorted>
FEDBENCH_INLINE void sum_plainly(const std::int32_t* row, std::size_t stride, int size,
                                 PlainSums& plain) {
    OctetMagnitudes largest = {};
    for (int i = 0; i < size; ++i, row += stride) {
        Lanes<float>::Keys keys;
        Lanes<float>::Values values;
        load(keys, row);
        swap_order(keys);
        std::memcpy(&values, &keys, sizeof values);
        if (!kSorted || i == 0 || i == size - 1) {
            OctetMagnitudes bits;
            std::memcpy(&bits, &keys, sizeof bits);
            bits &= 0x7fffffffU;
            largest = largest > bits ? largest : bits;
        }
        Wide wide[kWides];
        widen_all(values, wide);
        for (int part = 0; part < kWides; ++part) plain.sums[part] += wide[part];
    }
    plain.largest = largest;
}

// Rounds the means of n values of at most m each, where their plain sums s decide all of them. Each
// step of s errs by at most u n m, so the true sum is within (n - 1) n u m of s. Multiplying by the
// reciprocal of n adds 4 n u m at most. Where the ends of twice that and more round alike, the mean
// is proved; m must be finite.
FEDBENCH_INLINE bool round_by_bound(const PlainSums& plain, double count, float* out) {
    Lanes<float>::Values most;
    std::memcpy(&most, &plain.largest, sizeof most);
    Wide delta[kWides];
    widen_all(most, delta);
    const double reciprocal = 1.0 / count;
    WideFloatBits differ = {};
    for (int part = 0; part < kWides; ++part) {
        delta[part] *= count * (count + 8) * 0x1p-52;
        WideFloat low, high;
        narrow((plain.sums[part] - delta[part]) * reciprocal, low);
        narrow((plain.sums[part] + delta[part]) * reciprocal, high);
        store(out + 8 / kWides * part, low);
        WideFloatBits low_bits, high_bits;
        std::memcpy(&low_bits, &low, sizeof low);
        std::memcpy(&high_bits, &high, sizeof high);
        differ |= low_bits ^ high_bits;
    }
    return !any_set(differ) && !any_set(plain.largest >= 0x7f800000U);
}

// Whether plain sums are exact. All values are multiples of the last place of the smallest one that
// is not zero, at least 2^-24 of it. Where count * max |x| is below 2^53 of that, with a bit to
// spare for rounding the test, every partial sum is a double.
FEDBENCH_INLINE bool sums_are_exact(const std::int32_t* row, std::size_t stride, int size,
                                    const PlainSums& plain) {
    OctetMagnitudes smallest = ~OctetMagnitudes{};
    for (int i = 0; i < size; ++i, row += stride) {
        Lanes<float>::Keys keys;
        load(keys, row);
        swap_order(keys);
        OctetMagnitudes magnitudes;
        std::memcpy(&magnitudes, &keys, sizeof magnitudes);
        magnitudes = (magnitudes & 0x7fffffffU) - 1U;  // zero, less one, is the largest of all
        smallest = smallest < magnitudes ? smallest : magnitudes;
    }
    smallest += 1U;
    Lanes<float>::Values most, least;
    std::memcpy(&most, &plain.largest, sizeof most);
    std::memcpy(&least, &smallest, sizeof least);
    const Lanes<float>::Values reach = most * static_cast<float>(size);
    return !any_set((reach > least * 0x1p28F) | (reach == std::numeric_limits<float>::infinity()) |
                    (reach != reach));
}

// The trimmed means of eight columns of floats, sorted or only separated into what is trimmed and
// what is kept, if plain sums prove them: by a bound or, as ties need, because they are exact;
// their quotients are then rounded to odd and once more.
template <bool kSorted>
FEDBENCH_INLINE bool plain_trimmed_means(const std::int32_t* sorted, std::size_t stride,
                                         const OrderStatistic& statistic, float* out) {
    const std::int32_t* row = sorted + static_cast<std::size_t>(statistic.first) * stride;
    const double count = statistic.size;
    PlainSums plain;
    sum_plainly<kSorted>(row, stride, statistic.size, plain);
    if (round_by_bound(plain, count, out)) return true;
    if (!sums_are_exact(row, stride, statistic.size, plain)) return false;
    Quad sums[2];
    static_assert(sizeof sums == sizeof plain.sums);
    std::memcpy(sums, plain.sums, sizeof sums);
    for (int half = 0; half < 2; ++half) {
        Quad quotient = sums[half] / count;
        Quad remainder;
        exact_remainder(sums[half], quotient, count, remainder);
        round_to_odd<QuadBits>(quotient, remainder);
        QuadFloat rounded;
        narrow(quotient, rounded);
        store(out + 4 * half, rounded);
    }
    return true;
}

template <bool kSorted>
FEDBENCH_INLINE bool plain_trimmed_means(const std::int64_t*, std::size_t, const OrderStatistic&,
                                         double*) {
    return false;
}

// Means of the kept ranks of one vector of sorted columns.
template <class T>
void window_means(const typename Lanes<T>::Key* sorted, std::size_t stride,
                  const OrderStatistic& statistic, T* out) {
    const bool may_be_plain = statistic.dtype == DType::float32 &&
                              statistic.kind == Statistic::trimmed_mean &&
                              statistic.size < (1 << 20);
    if (may_be_plain && plain_trimmed_means<true>(sorted, stride, statistic, out)) return;
    for (int lane = 0; lane < Lanes<T>::count; lane += 4)
        four_window_means<T>(sorted + lane, stride, statistic, out + lane);
}

}  // namespace fedbench::FEDBENCH_ISA::ranks
