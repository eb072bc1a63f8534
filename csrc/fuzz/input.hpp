// Numbers from a fuzzer's bytes; zeros once they run out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fedbench::fuzz {

class Input {
  public:
    Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

    template <class T>
    T take() {
        T value{};
        const std::size_t size = std::min(sizeof(T), left_);
        if (size > 0) std::memcpy(&value, data_, size);
        data_ += size;
        left_ -= size;
        return value;
    }

    [[nodiscard]] const std::uint8_t* data() const { return data_; }
    [[nodiscard]] std::size_t left() const { return left_; }

  private:
    const std::uint8_t* data_;
    std::size_t left_;
};

}  // namespace fedbench::fuzz
