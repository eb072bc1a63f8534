// Test buffers that are misaligned on purpose and notice writes outside.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace fedbench::testing {

// `size` elements that start `misalignment` bytes past a 64-byte boundary, between guard bytes.
template <class T>
class GuardedBuffer {
  public:
    explicit GuardedBuffer(std::size_t size, std::size_t misalignment = 0)
        : size_(size), storage_(size * sizeof(T) + 2 * kGuard + 64 + misalignment, kFill) {
        const auto start = reinterpret_cast<std::size_t>(storage_.data()) + kGuard;
        const std::size_t aligned = (start + 63) / 64 * 64 + misalignment;
        first_ = aligned - reinterpret_cast<std::size_t>(storage_.data());
    }

    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] void* address() { return storage_.data() + first_; }
    [[nodiscard]] const void* address() const { return storage_.data() + first_; }

    // Element access by copying: the elements may be misaligned for T.
    [[nodiscard]] T get(std::size_t i) const {
        T value;
        std::memcpy(&value, storage_.data() + first_ + i * sizeof(T), sizeof(T));
        return value;
    }
    void set(std::size_t i, T value) {
        std::memcpy(storage_.data() + first_ + i * sizeof(T), &value, sizeof(T));
    }

    // True while nothing outside the elements was written.
    [[nodiscard]] bool intact() const {
        for (std::size_t i = 0; i < first_; ++i) {
            if (storage_[i] != kFill) return false;
        }
        for (std::size_t i = first_ + size_ * sizeof(T); i < storage_.size(); ++i) {
            if (storage_[i] != kFill) return false;
        }
        return true;
    }

  private:
    static constexpr std::size_t kGuard = 128;
    static constexpr unsigned char kFill = 0xa5;
    std::size_t size_;
    std::vector<unsigned char> storage_;
    std::size_t first_ = 0;
};

}  // namespace fedbench::testing
