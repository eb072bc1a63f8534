// Large result buffers: on huge pages where the system grants them, and kept for the next result.
//
// A fresh buffer of tens of megabytes costs more in page faults than the mean that fills it.
#pragma once

#include <pthread.h>
#include <sys/mman.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

namespace fedbench {

// Results of at least this size are written past the caches, which would not hold them.
inline constexpr std::size_t kStreamBytes = std::size_t{8} << 20;

class BufferPool {
  public:
    static constexpr std::size_t kHugePage = std::size_t{1} << 21;
    // What unused blocks may keep from the system, all together, unless `keep` says otherwise.
    static constexpr std::size_t kKept = std::size_t{512} << 20;

    // At least `bytes` bytes, aligned to a huge page, with unspecified content.
    void* allocate(std::size_t bytes) {
        const std::size_t size = rounded(bytes);
        {
            const std::lock_guard lock(mutex_);
            for (std::size_t i = kept_.size(); i-- > 0;) {
                if (kept_[i].size != size) continue;
                void* address = kept_[i].address;
                kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(i));
                kept_bytes_ -= size;
                return address;
            }
        }
        return map(size);
    }

    void release(void* address, std::size_t bytes) noexcept {
        const std::size_t size = rounded(bytes);
        const std::lock_guard lock(mutex_);
        if (size > max_kept_) {
            ::munmap(address, size);
            return;
        }
        kept_.push_back({address, size});
        kept_bytes_ += size;
        drop_what_is_too_much();
    }

    // Sets how many bytes unused blocks may keep from now on.
    void keep(std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        kept_.reserve(bytes / kHugePage + 1);
        max_kept_ = bytes;
        drop_what_is_too_much();
    }

    // Never destroyed: results may outlive the module's statics.
    static BufferPool& instance() {
        static BufferPool* const pool = [] {
            auto* fresh = new BufferPool;
            fresh->keep(kKept);
            // A fork while another thread is inside must not leave the child's mutex locked.
            ::pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                             [] { instance().mutex_.unlock(); });
            return fresh;
        }();
        return *pool;
    }

  private:
    struct Block {
        void* address;
        std::size_t size;
    };

    // The blocks that have lain unused for longest.
    void drop_what_is_too_much() noexcept {
        while (kept_bytes_ > max_kept_) {
            ::munmap(kept_.front().address, kept_.front().size);
            kept_bytes_ -= kept_.front().size;
            kept_.erase(kept_.begin());
        }
    }

    static std::size_t rounded(std::size_t bytes) {
        return (bytes + kHugePage - 1) / kHugePage * kHugePage;
    }

    static void* map(std::size_t size) {
        // Ask for one huge page more and give back what lies outside the alignment.
        void* raw = ::mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (raw == MAP_FAILED) throw std::bad_alloc();
        auto* start = static_cast<char*>(raw);
        const std::size_t lead =
            (kHugePage - reinterpret_cast<std::size_t>(raw) % kHugePage) % kHugePage;
        if (lead > 0) ::munmap(start, lead);
        ::munmap(start + lead + size, kHugePage - lead);
#if defined(MADV_HUGEPAGE)
        ::madvise(start + lead, size, MADV_HUGEPAGE);
#endif
        return start + lead;
    }

    std::mutex mutex_;
    std::vector<Block> kept_;
    std::size_t kept_bytes_ = 0;
    std::size_t max_kept_ = 0;
};

// Memory for the time of a call, with unspecified content; from the pool where the system's
// allocator would map it anew, page by page.
struct ScratchDeleter {
    std::size_t pooled_bytes = 0;

    void operator()(std::byte* scratch) const noexcept {
        if (pooled_bytes == 0) return std::default_delete<std::byte[]>{}(scratch);
        BufferPool::instance().release(scratch, pooled_bytes);
    }
};

typedef std::unique_ptr<std::byte[], ScratchDeleter> Scratch;

inline Scratch make_scratch(std::size_t bytes) {
    constexpr std::size_t mapped = std::size_t{128} << 10;
    if (bytes < mapped) {
        return Scratch(std::make_unique_for_overwrite<std::byte[]>(bytes).release());
    }
    return {static_cast<std::byte*>(BufferPool::instance().allocate(bytes)), {bytes}};
}

}  // namespace fedbench
