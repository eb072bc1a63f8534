// Rows of plain arrays, inspected in one pass: with small updates, looking at each array through
// Python attributes takes longer than averaging them.
//
// Only what is plain and alike passes; for everything else there is no result, and Python's slower
// inspection copies, or says what is wrong.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "fedbench/dtype.hpp"

namespace fedbench::bindings {

// What rows that agree have in common, and where they are.
struct PlainRows {
    std::vector<const void*> addresses;
    DType dtype = DType::float32;
    std::vector<std::int64_t> shape;
    std::int64_t count = 0;  // elements of each
};

// numpy arrays (not of a subclass) of one native floating dtype and shape, C-contiguous, aligned.
std::optional<PlainRows> inspect_numpy(const pybind11::list& rows);

// Tensors of one type, on the CPU, of one floating dtype and shape, contiguous. `exchange_api` is
// the capsule that their type has as __dlpack_c_exchange_api__.
std::optional<PlainRows> inspect_torch(const pybind11::list& rows,
                                       const pybind11::capsule& exchange_api);

}  // namespace fedbench::bindings
