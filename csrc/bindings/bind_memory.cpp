// Buffers for large results.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>

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

}  // namespace

void bind_memory(py::module_& m) {
    m.def("allocate", &allocate, py::arg("bytes"),
          "An uninitialised uint8 array on pooled memory, aligned to 2 MiB.");
    m.def(
        "trim_buffers", [] { BufferPool::instance().trim(); },
        "Return the memory of unused pooled buffers to the system.");
}

}  // namespace fedbench::bindings
