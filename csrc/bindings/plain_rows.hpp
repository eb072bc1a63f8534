// Rows of plain arrays, inspected in one pass: with small updates, looking at each array through
// Python attributes takes longer than averaging them.
//
// Only what is plain and alike passes; for everything else there is no result, and Python's slower
// inspection copies, or says what is wrong.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
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

// A method of a type that takes no arguments. Where the type keeps it as a C function, that is
// called directly: for small tensors, the interpreter's way to it is a good part of the inspection.
class Method {
  public:
    Method() = default;
    Method(pybind11::handle type, const char* name);

    pybind11::object of(pybind11::handle object) const;

  private:
    pybind11::object method_;
    PyCFunction function_ = nullptr;
};

// What DLPack does not tell of a tensor: a storage that was made smaller, and values that are to be
// negated. The methods of a type are looked up once for all of its tensors.
class TorchMethods {
  public:
    void look_up(pybind11::handle type);

    // Whether the tensor's storage holds as many bytes from its first element on, as they are.
    bool elements_are_plain(pybind11::handle tensor, std::int64_t bytes, std::int64_t item) const;

  private:
    pybind11::object type_;
    Method is_neg_;
    Method untyped_storage_;
    Method storage_offset_;
};

// Tensors of one type, on the CPU, of one floating dtype and shape, contiguous. `exchange_api` is
// the capsule that their type has as __dlpack_c_exchange_api__.
std::optional<PlainRows> inspect_torch(const pybind11::list& rows,
                                       const pybind11::capsule& exchange_api,
                                       TorchMethods& methods);

// How the arrays of one library are inspected: torch tensors if there is an exchange API.
class Inspection {
  public:
    explicit Inspection(pybind11::object exchange_api) : exchange_api_(std::move(exchange_api)) {}
    bool torch() const { return !exchange_api_.is_none(); }
    std::optional<PlainRows> of(const pybind11::list& arrays);

  private:
    pybind11::object exchange_api_;
    TorchMethods methods_;
};

pybind11::tuple shape_of(const PlainRows& rows);

// For each of the names the arrays of all rows; nothing if a row is no dict of just these names.
std::optional<std::vector<pybind11::list>> arrays_by_name(const pybind11::list& rows,
                                                          const pybind11::list& names);

// Memory that holds at least a byte.
struct Extent {
    std::uintptr_t start;
    std::uintptr_t stop;
};

// The position of the first of `targets` that overlaps one of `others`, in any order.
std::optional<std::size_t> first_overlap(const std::vector<Extent>& targets,
                                         std::vector<Extent> others);

// Whether two of the extents overlap each other.
bool any_overlap(std::vector<Extent> extents);

}  // namespace fedbench::bindings
