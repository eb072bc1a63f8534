// Buffers for large results, and copies between buffers.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "fedbench/copy.hpp"
#include "fedbench/memory.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

struct PooledBlock {
    void* address;
    std::size_t bytes;
    explicit PooledBlock(std::size_t size)
        : address(BufferPool::instance().allocate(size)), bytes(size) {}
    ~PooledBlock() { BufferPool::instance().release(address, bytes); }
    PooledBlock(const PooledBlock&) = delete;
    PooledBlock& operator=(const PooledBlock&) = delete;
};

py::array_t<std::uint8_t> allocate(std::size_t bytes) {
    auto block = std::make_unique<PooledBlock>(bytes);
    auto* data = static_cast<std::uint8_t*>(block->address);
    const py::capsule owner(block.get(),
                            [](void* pointer) { delete static_cast<PooledBlock*>(pointer); });
    block.release();  // NOLINT: the capsule owns it now
    return py::array_t<std::uint8_t>({static_cast<py::ssize_t>(bytes)}, {1}, data, owner);
}

void copy(const py::buffer& to, const py::buffer& from) {
    const py::buffer_info target = to.request(true);
    const py::buffer_info source = from.request();
    if (PyBuffer_IsContiguous(target.view(), 'C') == 0 ||
        PyBuffer_IsContiguous(source.view(), 'C') == 0) {
        throw std::invalid_argument("both buffers must be C-contiguous.");
    }
    const auto size = static_cast<std::size_t>(source.size * source.itemsize);
    if (target.size * target.itemsize != source.size * source.itemsize) {
        throw std::invalid_argument("both buffers must have as many bytes, got " +
                                    std::to_string(target.size * target.itemsize) + " and " +
                                    std::to_string(size) + ".");
    }
    const py::gil_scoped_release no_gil;
    copy_bytes(static_cast<std::byte*>(target.ptr), static_cast<const std::byte*>(source.ptr),
               size);
}

template <class T>
void subtract(py::array_t<T, py::array::c_style> to, const py::array_t<T, py::array::c_style>& a,
              const py::array_t<T, py::array::c_style>& b) {
    if (to.size() != a.size() || to.size() != b.size()) {
        throw std::invalid_argument("to, a and b must be of one size, got " +
                                    std::to_string(to.size()) + ", " + std::to_string(a.size()) +
                                    " and " + std::to_string(b.size()) + ".");
    }
    T* const target = to.mutable_data();
    for (const T* address : {static_cast<const T*>(target), a.data(), b.data()}) {
        if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T) != 0) {
            throw std::invalid_argument("to, a and b must be aligned to their elements.");
        }
    }
    const auto count = static_cast<std::size_t>(to.size());
    const py::gil_scoped_release no_gil;
    difference(target, a.data(), b.data(), count);
}

}  // namespace

void bind_memory(py::module_& m) {
    m.def("allocate", &allocate, py::arg("bytes"),
          "An uninitialised uint8 array on pooled memory, aligned to 2 MiB.");
    m.def("copy", &copy, py::arg("to"), py::arg("from_"),
          "Copy the bytes of a buffer to another one; they must not overlap.");
    m.def("subtract", &subtract<float>, py::arg("to").noconvert(), py::arg("a").noconvert(),
          py::arg("b").noconvert(), "Write a - b; for large vectors.");
    m.def("subtract", &subtract<double>, py::arg("to").noconvert(), py::arg("a").noconvert(),
          py::arg("b").noconvert(), "Write a - b; for large vectors.");
    m.def(
        "keep_buffers",
        [](std::optional<std::size_t> bytes) {
            BufferPool::instance().keep(bytes.value_or(BufferPool::kKept));
        },
        py::arg("bytes") = py::none(),
        "Set how many bytes of unused pooled memory to keep from the system; default: 512 MiB.");
}

}  // namespace fedbench::bindings
