// What is needed of DLPack 1.x's C exchange interface: how a library hands out a tensor's fields
// without making Python objects. Layouts as in https://dmlc.github.io/dlpack/latest/c_api.html.
#pragma once

#include <cstdint>

namespace fedbench::bindings::dlpack {

inline constexpr std::uint32_t kMajorVersion = 1;
inline constexpr std::int32_t kCpu = 1;
inline constexpr std::uint8_t kFloat = 2;
inline constexpr std::uint8_t kBFloat = 4;

struct Tensor {
    void* data;
    struct {
        std::int32_t type;
        std::int32_t id;
    } device;
    std::int32_t ndim;
    struct {
        std::uint8_t code;
        std::uint8_t bits;
        std::uint16_t lanes;
    } dtype;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements; null: contiguous
    std::uint64_t byte_offset;
};

struct ExchangeApi {
    struct {
        std::uint32_t major;
        std::uint32_t minor;
    } version;
    ExchangeApi* previous;
    void* allocate;
    void* managed_tensor_from_object;
    void* managed_tensor_to_object;
    // Fills a tensor that lives as long as the object; -1 with a Python error set if it cannot.
    int (*tensor_from_object)(void* object, Tensor* tensor);
    void* current_stream;
};

}  // namespace fedbench::bindings::dlpack
