// From Python arguments to plain pointers, without conversions and without copies.
//
// The Python face checks kinds, dtypes, shapes and contiguity, because that is where the argument
// names for the errors are. What arrives here is one handle per buffer:
//   - an int: the address of a torch tensor's first element (torch is neither linked nor imported),
//   - or a C-contiguous numpy array.
// The list that holds the handles, and the tensors behind the ints, are kept alive by the caller's
// frame for the length of the call; nothing here outlives it.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "fedbench/dtype.hpp"

namespace fedbench::bindings {

namespace py = pybind11;

inline void require_count(const char* what, std::size_t got, std::size_t expected) {
    if (got != expected) {
        throw std::invalid_argument(std::string(what) + " must have " + std::to_string(expected) +
                                    " elements, got " + std::to_string(got) + ".");
    }
}

inline void* address_of(py::handle object, bool writable) {
    if (PyLong_Check(object.ptr()) != 0) {
        void* address = PyLong_AsVoidPtr(object.ptr());
        if (address == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
        return address;
    }
    if (!py::isinstance<py::array>(object)) {
        throw py::type_error("buffer must be a numpy array or an address, got " +
                             std::string(py::str(py::type::handle_of(object))) + ".");
    }
    const auto array = py::reinterpret_borrow<py::array>(object);
    if ((array.flags() & py::array::c_style) == 0) {
        throw std::invalid_argument("buffer must be C-contiguous, got a strided numpy array.");
    }
    if (writable) return const_cast<py::array&>(array).mutable_data();
    return const_cast<void*>(array.data());
}

// The addresses of buffers that are only read.
inline std::vector<const void*> input_addresses(const py::list& buffers) {
    std::vector<const void*> addresses;
    addresses.reserve(buffers.size());
    for (const py::handle buffer : buffers) addresses.push_back(address_of(buffer, false));
    return addresses;
}

// The addresses of buffers that are written; a read-only numpy array is refused.
inline std::vector<void*> output_addresses(const py::list& buffers) {
    std::vector<void*> addresses;
    addresses.reserve(buffers.size());
    for (const py::handle buffer : buffers) addresses.push_back(address_of(buffer, true));
    return addresses;
}

// The element types behind the codes of fedbench/aggregation/_arrays.py.
inline std::vector<DType> dtypes_of(const std::vector<int>& codes) {
    std::vector<DType> dtypes;
    for (const int code : codes) {
        if (code < 0 || code > static_cast<int>(DType::int8)) {
            throw std::invalid_argument("dtype code must be 0 to 4, got " + std::to_string(code) +
                                        ".");
        }
        dtypes.push_back(static_cast<DType>(code));
    }
    return dtypes;
}

}  // namespace fedbench::bindings
