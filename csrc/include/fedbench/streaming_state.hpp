// The state of a streaming mean: owns the bins, adds updates, merges, rounds. Part of
// streaming.hpp, which explains the representation.
#pragma once

#include "fedbench/streaming.hpp"

namespace fedbench {

// Functions of the instruction-set level in force, chosen once per object.
struct StreamingKernels {
    decltype(&portable::scan_block) scan;
    decltype(&portable::deposit) deposit;
};

inline StreamingKernels streaming_kernels(IsaLevel level) {
    return {FEDBENCH_DISPATCH(level, scan_block), FEDBENCH_DISPATCH(level, deposit)};
}

// Not thread-safe by itself: the binding holds a lock around every call.
class StreamingSum {
  public:
    struct Segment {
        std::size_t size;
        DType dtype;
    };

    explicit StreamingSum(std::vector<Segment> segments)
        : segments_(std::move(segments)), kernels_(streaming_kernels(active_isa())) {
        std::size_t words = 0;
        for (std::size_t s = 0; s < segments_.size(); ++s) {
            for (std::size_t at = 0; at < segments_[s].size; at += kBlock) {
                Block block;
                block.segment = s;
                block.offset = at;
                block.size = std::min(kBlock, segments_[s].size - at);
                block.window.stride = (block.size + 7) / 8 * 8;
                block.home = words;
                words += 2 * block.window.stride;
                blocks_.push_back(std::move(block));
            }
            coordinates_ += segments_[s].size;
        }
        arena_bytes_ = words * sizeof(std::int64_t);
        if (arena_bytes_ > 0) {
            arena_ = static_cast<std::int64_t*>(BufferPool::instance().allocate(arena_bytes_));
        }
    }

    ~StreamingSum() {
        if (arena_ != nullptr) BufferPool::instance().release(arena_, arena_bytes_);
    }
    StreamingSum(const StreamingSum&) = delete;
    StreamingSum& operator=(const StreamingSum&) = delete;

    [[nodiscard]] const std::vector<Segment>& segments() const { return segments_; }
    [[nodiscard]] std::uint64_t count() const { return count_; }
    [[nodiscard]] exact::Positive weight() const { return exact::positive_of(weight_sum_); }

    // Bytes of the bins in use.
    [[nodiscard]] std::size_t state_bytes() const {
        std::size_t bytes = arena_bytes_;
        for (const Block& block : blocks_) {
            if (block.wide) bytes += bin_words(block) * sizeof(std::int64_t);
            if (block.special) bytes += block.size;
        }
        return bytes;
    }

    // Adds weights[k] * update k for every k; rows[s * clients + k] is segment s of update k.
    // Returns the clients whose update is not finite. Unless `propagate`, nothing of such an
    // update is added: exact arithmetic takes it back.
    std::vector<std::size_t> add(const std::vector<const void*>& rows,
                                 const std::vector<double>& weights, bool propagate) {
        const std::size_t clients = weights.size();
        std::vector<std::size_t> rejected;
        if (clients > kMaxPending / 4) throw std::length_error("too many updates in one call");
        reserve(2 * clients);
        std::vector<std::atomic<bool>> nonfinite(clients);
        for (auto& flag : nonfinite) flag.store(false, std::memory_order_relaxed);
        modify([&] { deposit_all(rows, weights, propagate, nonfinite); });
        for (std::size_t k = 0; k < clients; ++k) {
            if (nonfinite[k].load()) rejected.push_back(k);
        }
        if (!propagate && !rejected.empty()) take_back(rows, weights, rejected);
        for (std::size_t k = 0; k < clients; ++k) {
            if (!propagate && nonfinite[k].load()) continue;
            const exact::Dyadic part = exact::split(weights[k]);
            if (part.mantissa != 0) weight_sum_.add(part.mantissa, part.exponent, false);
            ++count_;
        }
        return rejected;
    }

    void merge(const StreamingSum& other) {
        require_usable();
        other.require_usable();
        if (pending_ + other.pending_ > kMaxPending) resolve();
        modify([&] {
            parallel_for(blocks_.size(), 4, 4 * coordinates_ * sizeof(std::int64_t),
                         [&](std::size_t begin, std::size_t end) {
                             for (std::size_t b = begin; b < end; ++b) {
                                 merge_block(blocks_[b], other.blocks_[b]);
                             }
                         });
        });
        pending_ += other.pending_;
        weight_sum_.add(other.weight_sum_);
        count_ += other.count_;
        if (pending_ > kMaxPending) resolve();
    }

    // Rounds the quotients by `divisor` to outs[s]. Const: the state stays what it is.
    void result(const exact::Positive& divisor, const std::vector<void*>& outs,
                const std::vector<DType>& dtypes) const;

    // The value as bytes, the same for every history that leads to it.
    [[nodiscard]] std::vector<std::byte> serialize();
    void deserialize(std::span<const std::byte> bytes);

  private:
    static constexpr std::size_t kMaxPending = std::size_t{1} << 17;

    enum Special : std::uint8_t { kNan = 1, kPositive = 2, kNegative = 4 };

    struct Block {
        std::size_t segment = 0;
        std::size_t offset = 0;
        std::size_t size = 0;
        std::size_t home = 0;  // the place in the arena, in words
        BinBlock window;
        std::unique_ptr<std::int64_t[]> wide;     // the bins, if more than two
        std::unique_ptr<std::uint8_t[]> special;  // flags per coordinate, if any
    };

    static std::size_t bin_words(const Block& block) {
        return static_cast<std::size_t>(block.window.count) * block.window.stride;
    }

    void require_usable() const {
        if (broken_) {
            throw std::runtime_error(
                "this streaming mean lost an update when memory ran out; start a new one");
        }
    }

    // Runs a change of the bins; if it fails half-way (out of memory) the state is unusable.
    template <class Change>
    void modify(const Change& change) {
        require_usable();
        broken_ = true;
        change();
        broken_ = false;
    }

    void reserve(std::size_t deposits) {
        require_usable();
        if (pending_ + deposits > kMaxPending) resolve();
        pending_ += deposits;
    }

    // Makes the window of a block reach from `lowest` to `highest`.
    void widen(Block& block, int lowest, int highest) {
        BinBlock& window = block.window;
        if (window.count > 0) {
            lowest = std::min(lowest, window.lowest);
            highest = std::max(highest, window.lowest + window.count - 1);
        }
        const int count = highest - lowest + 1;
        if (count == window.count) return;
        const std::size_t words = static_cast<std::size_t>(count) * window.stride;
        const std::size_t shift =
            window.count > 0 ? static_cast<std::size_t>(window.lowest - lowest) * window.stride : 0;
        if (count <= 2) {
            std::int64_t* bins = arena_ + block.home;
            if (window.count == 0) {
                std::memset(bins, 0, words * sizeof *bins);
            } else {  // one bin becomes two
                std::memmove(bins + shift, bins, window.stride * sizeof *bins);
                std::memset(bins + (window.stride - shift), 0, window.stride * sizeof *bins);
            }
            window.bins = bins;
        } else {
            auto bins = std::make_unique<std::int64_t[]>(words);
            if (window.count > 0) {
                std::memcpy(bins.get() + shift, window.bins, bin_words(block) * sizeof bins[0]);
            }
            block.wide = std::move(bins);
            window.bins = block.wide.get();
        }
        window.lowest = lowest;
        window.count = count;
    }

    void mark_special(Block& block, DType dtype, const void* row, bool negative_weight) {
        if (!block.special) block.special = std::make_unique<std::uint8_t[]>(block.size);
        for (std::size_t i = 0; i < block.size; ++i) {
            const double x = load_element(dtype, row, block.offset + i);
            if (std::isnan(x)) {
                block.special[i] |= kNan;
            } else if (std::isinf(x)) {
                block.special[i] |= (std::signbit(x) != negative_weight) ? kNegative : kPositive;
            }
        }
    }

    // Any weight, any range, skipping what is not finite: coordinate by coordinate.
    void deposit_slowly(Block& block, DType dtype, const void* row, double weight) {
        const exact::Dyadic w = exact::split(weight);
        int lowest = std::numeric_limits<int>::max();
        int highest = std::numeric_limits<int>::min();
        for (std::size_t i = 0; i < block.size; ++i) {
            const double x = load_element(dtype, row, block.offset + i);
            if (x == 0.0 || !std::isfinite(x)) continue;
            const exact::Dyadic part = exact::split(x);
            const int zeros = std::countr_zero(part.mantissa) + std::countr_zero(w.mantissa);
            lowest = std::min(lowest, part.exponent + w.exponent + zeros);
            highest = std::max(highest, part.exponent + w.exponent + 128 -
                                            std::countl_zero(part.mantissa) -
                                            std::countl_zero(w.mantissa));
        }
        if (lowest > highest) return;
        widen(block, bin_of(lowest), top_bin_of(highest));
        for (std::size_t i = 0; i < block.size; ++i) {
            const double x = load_element(dtype, row, block.offset + i);
            if (x == 0.0 || !std::isfinite(x)) continue;
            const exact::Dyadic part = exact::split(x);
            exact::uint128 product = static_cast<exact::uint128>(part.mantissa) * w.mantissa;
            const int zeros = std::countr_zero(part.mantissa) + std::countr_zero(w.mantissa);
            product >>= zeros;
            detail::deposit_integer(block.window, i, product, part.exponent + w.exponent + zeros,
                                    part.negative != w.negative);
        }
    }

    // Adds up to four updates to one block.
    void deposit_group(Block& block, const void* const* rows, const SplitWeight* weights,
                       const double* whole, std::size_t count, bool propagate,
                       std::atomic<bool>* nonfinite) {
        const DType dtype = segments_[block.segment].dtype;
        const void* fast_rows[4];
        double fast_weights[2][4] = {};
        std::size_t fast = 0;
        bool two_parts = false;
        int lowest = std::numeric_limits<int>::max();
        int highest = std::numeric_limits<int>::min();
        for (std::size_t r = 0; r < count; ++r) {
            const BlockRange range = kernels_.scan(dtype, rows[r], block.offset, block.size);
            if (!range.finite) {
                nonfinite[r].store(true, std::memory_order_relaxed);
                if (!propagate || whole[r] == 0.0) continue;
                mark_special(block, dtype, rows[r], whole[r] < 0.0);
                deposit_slowly(block, dtype, rows[r], whole[r]);
                continue;
            }
            if (range.zero || whole[r] == 0.0) continue;
            // One bit of margin: halves of inputs and weights may round up to a power of two.
            const int top = top_bin_of(range.highest + weights[r].highest + 1);
            const int bottom = bin_of(range.lowest + weights[r].lowest);
            if (!weights[r].fast || bottom < kMinFastBin || top > kMaxFastBin ||
                range.lowest < -960 || range.highest > 900) {
                deposit_slowly(block, dtype, rows[r], whole[r]);
                continue;
            }
            lowest = std::min(lowest, bottom);
            highest = std::max(highest, top);
            fast_rows[fast] = rows[r];
            fast_weights[0][fast] = weights[r].part[0];
            fast_weights[1][fast] = weights[r].part[1];
            two_parts = two_parts || weights[r].parts == 2;
            ++fast;
        }
        if (fast == 0) return;
        widen(block, lowest, highest);
        const BinBlock& window = block.window;
        const bool in_range =
            window.lowest >= kMinFastBin && window.lowest + window.count - 1 <= kMaxFastBin;
        for (int part = 0; part < (two_parts ? 2 : 1); ++part) {
            if (in_range && kernels_.deposit(window, dtype, fast_rows, fast_weights[part], fast,
                                             block.offset, block.size)) {
                continue;
            }
            for (std::size_t r = 0; r < fast; ++r) {
                if (fast_weights[part][r] != 0.0) {
                    deposit_slowly(block, dtype, fast_rows[r], fast_weights[part][r]);
                }
            }
        }
    }

    void deposit_all(const std::vector<const void*>& rows, const std::vector<double>& weights,
                     bool propagate, std::vector<std::atomic<bool>>& nonfinite) {
        const std::size_t clients = weights.size();
        std::vector<std::vector<SplitWeight>> split(kDTypes);
        for (const DType dtype : {DType::float32, DType::float64}) {
            for (const double weight : weights) {
                split[static_cast<std::size_t>(dtype)].push_back(split_weight(weight, dtype));
            }
        }
        parallel_for(blocks_.size(), 4, coordinates_ * (32 + 4 * clients),
                     [&](std::size_t begin, std::size_t end) {
                         for (std::size_t b = begin; b < end; ++b) {
                             Block& block = blocks_[b];
                             const bool wide = segments_[block.segment].dtype == DType::float64;
                             const auto& parts = split[wide ? 1 : 0];
                             const void* const* from = rows.data() + block.segment * clients;
                             for (std::size_t k = 0; k < clients; k += 4) {
                                 deposit_group(block, from + k, parts.data() + k,
                                               weights.data() + k,
                                               std::min<std::size_t>(4, clients - k), propagate,
                                               nonfinite.data() + k);
                             }
                         }
                     });
    }

    // Subtracts updates that turned out not to be finite. Their blocks with NaN or infinities
    // were skipped by deposit_group and are skipped again.
    void take_back(const std::vector<const void*>& rows, const std::vector<double>& weights,
                   const std::vector<std::size_t>& rejected) {
        const std::size_t clients = weights.size();
        std::vector<const void*> back;
        std::vector<double> negative;
        for (std::size_t s = 0; s < segments_.size(); ++s) {
            for (const std::size_t k : rejected) back.push_back(rows[s * clients + k]);
        }
        for (const std::size_t k : rejected) negative.push_back(-weights[k]);
        reserve(2 * rejected.size());
        std::vector<std::atomic<bool>> ignored(rejected.size());
        modify([&] { deposit_all(back, negative, false, ignored); });
    }

    void merge_block(Block& into, const Block& from) {
        if (from.special) {
            if (!into.special) into.special = std::make_unique<std::uint8_t[]>(into.size);
            for (std::size_t i = 0; i < into.size; ++i) into.special[i] |= from.special[i];
        }
        if (from.window.count == 0) return;
        widen(into, from.window.lowest, from.window.lowest + from.window.count - 1);
        const auto skip = static_cast<std::size_t>(from.window.lowest - into.window.lowest);
        std::int64_t* target = into.window.bins + skip * into.window.stride;
        const std::size_t words = bin_words(from);
        for (std::size_t i = 0; i < words; ++i) target[i] += from.window.bins[i];
    }

    // Carries between bins: afterwards all but the top bin lie in [-2^43, 2^43), and so does the
    // top one, after widening the window by one bin if it has to.
    void resolve_block(Block& block) {
        constexpr std::int64_t half = std::int64_t{1} << (kBinBits - 1);
        for (int f = 0; f < block.window.count; ++f) {
            std::int64_t* bins =
                block.window.bins + static_cast<std::size_t>(f) * block.window.stride;
            bool carries = false;
            for (std::size_t i = 0; i < block.size; ++i) {
                carries = carries || bins[i] >= half || bins[i] < -half;
            }
            if (!carries) continue;
            if (f + 1 == block.window.count) {
                widen(block, block.window.lowest, block.window.lowest + block.window.count);
                bins = block.window.bins + static_cast<std::size_t>(f) * block.window.stride;
            }
            for (std::size_t i = 0; i < block.size; ++i) {
                const std::int64_t carry = (bins[i] + half) >> kBinBits;
                bins[i] -= carry * (half * 2);
                bins[i + block.window.stride] += carry;
            }
        }
    }

    void resolve() {
        modify([&] {
            parallel_for(blocks_.size(), 4, 4 * coordinates_ * sizeof(std::int64_t),
                         [&](std::size_t begin, std::size_t end) {
                             for (std::size_t b = begin; b < end; ++b) resolve_block(blocks_[b]);
                         });
        });
        pending_ = 1;
    }

    // One coordinate, exactly.
    static std::uint64_t exact_bits(const Block& block, std::size_t at,
                                    const exact::Positive& divisor, DType dtype) {
        const std::uint8_t flags = block.special ? block.special[at] : std::uint8_t{0};
        if (flags != 0) {
            if ((flags & kNan) != 0 || flags == (kPositive | kNegative)) {
                return exact::nan_bits(dtype);
            }
            return exact::infinity_bits(dtype, flags == kNegative);
        }
        if (block.window.count == 0) return 0;
        exact::Sum sum(bin_exponent(block.window.lowest),
                       bin_exponent(block.window.lowest + block.window.count) + 64);
        for (int f = 0; f < block.window.count; ++f) {
            const std::int64_t bin =
                block.window.bins[static_cast<std::size_t>(f) * block.window.stride + at];
            const auto magnitude = static_cast<std::uint64_t>(bin < 0 ? -bin : bin);
            sum.add(magnitude, bin_exponent(block.window.lowest + f), bin < 0);
        }
        return exact::round_quotient(sum, divisor, dtype);
    }

    static constexpr std::size_t kDTypes = 2;

    std::vector<Segment> segments_;
    StreamingKernels kernels_;
    std::vector<Block> blocks_;
    std::size_t coordinates_ = 0;
    std::size_t arena_bytes_ = 0;
    std::int64_t* arena_ = nullptr;
    exact::Sum weight_sum_{-1074, 1088};
    std::uint64_t count_ = 0;
    std::size_t pending_ = 0;
    bool broken_ = false;
};

inline void StreamingSum::result(const exact::Positive& divisor, const std::vector<void*>& outs,
                                 const std::vector<DType>& dtypes) const {
    require_usable();
    const double value = divisor.scaled(0);
    const bool usable = value >= 0x1p-200 && value <= 0x1p200;
    const double low = usable ? detail::scaled_rest(divisor, 0, value) : 0.0;
    const bool short_integer = exact::bit_length(divisor.limbs) <= 50;
    const auto finish = FEDBENCH_DISPATCH(active_isa(), finish);
    parallel_for(blocks_.size(), 4, coordinates_ * 24, [&](std::size_t begin, std::size_t end) {
        Unproved unproved;
        for (std::size_t b = begin; b < end; ++b) {
            const Block& block = blocks_[b];
            const DType dtype = dtypes[block.segment];
            auto* out =
                static_cast<std::byte*>(outs[block.segment]) + block.offset * item_size(dtype);
            const BinBlock& window = block.window;
            if (window.count == 0 && !block.special) {
                std::memset(out, 0, block.size * item_size(dtype));
                continue;
            }
            unproved.count = 0;
            const bool fast = usable && !block.special && window.count >= 1 && window.count <= 2 &&
                              window.lowest >= kMinFastBin && window.lowest < kMaxFastBin;
            if (fast) {
                finish(window, value, low, short_integer, dtype, out, block.size, unproved);
            } else {
                for (std::size_t i = 0; i < block.size; ++i) unproved.add(1, i, block.size);
            }
            for (std::size_t u = 0; u < unproved.count; ++u) {
                const std::size_t at = unproved.index[u];
                exact::store_bits(dtype, out, at, exact_bits(block, at, divisor, dtype));
            }
        }
    });
}

}  // namespace fedbench

#include "fedbench/streaming_bytes.hpp"
