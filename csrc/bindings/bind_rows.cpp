// The inspection of plain rows, and of the memory that rows and results take.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "array_args.hpp"
#include "dlpack.hpp"
#include "fedbench/dtype.hpp"
#include "plain_rows.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

py::object handle_of(const void* address) {
    return py::reinterpret_steal<py::object>(PyLong_FromVoidPtr(const_cast<void*>(address)));
}

// Addresses, dtype code, shape and number of elements, for Python.
std::optional<py::tuple> as_tuple(const std::optional<PlainRows>& rows) {
    if (!rows) return std::nullopt;
    py::list handles(rows->addresses.size());
    for (std::size_t k = 0; k < rows->addresses.size(); ++k)
        handles[k] = handle_of(rows->addresses[k]);
    return py::make_tuple(std::move(handles), static_cast<int>(rows->dtype), shape_of(*rows),
                          rows->count);
}

std::optional<DType> numpy_dtype(const py::dtype& dtype) {
    if (dtype.byteorder() != '=') return std::nullopt;
    if (dtype.kind() != 'f') return std::nullopt;
    switch (dtype.itemsize()) {
        case 2:
            return DType::float16;
        case 4:
            return DType::float32;
        case 8:
            return DType::float64;
        default:
            return std::nullopt;
    }
}

std::optional<DType> torch_dtype(const dlpack::Tensor& tensor) {
    if (tensor.dtype.lanes != 1) return std::nullopt;
    if (tensor.dtype.code == dlpack::kBFloat && tensor.dtype.bits == 16) return DType::bfloat16;
    if (tensor.dtype.code != dlpack::kFloat) return std::nullopt;
    switch (tensor.dtype.bits) {
        case 16:
            return DType::float16;
        case 32:
            return DType::float32;
        case 64:
            return DType::float64;
        default:
            return std::nullopt;
    }
}

bool is_contiguous(const dlpack::Tensor& tensor) {
    if (tensor.strides == nullptr) return true;
    const std::int64_t* const shape = tensor.shape;
    if (std::find(shape, shape + tensor.ndim, 0) != shape + tensor.ndim) return true;
    std::int64_t expected = 1;
    for (std::int32_t d = tensor.ndim; d-- > 0;) {
        if (tensor.shape[d] != 1 && tensor.strides[d] != expected) return false;
        expected *= tensor.shape[d];
    }
    return true;
}

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) count *= extent;
    return count;
}

// Takes over the type and shape of the first row; whether another one's are the same.
bool agrees(PlainRows& rows, DType dtype, const std::int64_t* extents, std::size_t ndim) {
    if (rows.addresses.empty()) {
        rows.dtype = dtype;
        rows.shape.assign(extents, extents + ndim);
        rows.count = count_of(rows.shape);
        return true;
    }
    return dtype == rows.dtype && ndim == rows.shape.size() &&
           std::equal(rows.shape.begin(), rows.shape.end(), extents);
}

}  // namespace

Method::Method(py::handle type, const char* name) : method_(type.attr(name)) {
    if (Py_TYPE(method_.ptr()) != &PyMethodDescr_Type) return;
    const PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(method_.ptr())->d_method;
    if (definition->ml_flags == METH_NOARGS) function_ = definition->ml_meth;
}

py::object Method::of(py::handle object) const {
    PyObject* result = function_ != nullptr ? function_(object.ptr(), nullptr)
                                            : PyObject_CallOneArg(method_.ptr(), object.ptr());
    if (result == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(result);
}

void TorchMethods::look_up(py::handle type) {
    if (type.is(type_)) return;
    is_neg_ = Method(type, "is_neg");
    untyped_storage_ = Method(type, "untyped_storage");
    storage_offset_ = Method(type, "storage_offset");
    type_ = py::reinterpret_borrow<py::object>(type);
}

bool TorchMethods::elements_are_plain(py::handle tensor, std::int64_t bytes,
                                      std::int64_t item) const {
    if (is_neg_.of(tensor).ptr() != Py_False) return false;
    const Py_ssize_t stored = PyObject_Size(untyped_storage_.of(tensor).ptr());  // in bytes
    const long long offset = PyLong_AsLongLong(storage_offset_.of(tensor).ptr());
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return stored - offset * item >= bytes;
}

std::optional<PlainRows> inspect_numpy(const py::list& rows) {
    const PyTypeObject* type = py::detail::npy_api::get().PyArray_Type_;
    PlainRows result;
    result.addresses.reserve(rows.size());
    for (const py::handle row : rows) {
        if (Py_TYPE(row.ptr()) != type) return std::nullopt;
        const auto array = py::reinterpret_borrow<py::array>(row);
        constexpr int wanted =
            int{py::array::c_style} | int{py::detail::npy_api::NPY_ARRAY_ALIGNED_};
        if ((array.flags() & wanted) != wanted) return std::nullopt;
        const auto dtype = numpy_dtype(array.dtype());
        if (!dtype ||
            !agrees(result, *dtype, array.shape(), static_cast<std::size_t>(array.ndim())))
            return std::nullopt;
        result.addresses.push_back(array.data());
    }
    if (result.addresses.empty()) return std::nullopt;
    return result;
}

std::optional<PlainRows> inspect_torch(const py::list& rows, const py::capsule& exchange_api,
                                       TorchMethods& methods) {
    auto* api = static_cast<dlpack::ExchangeApi*>(exchange_api.get_pointer());
    if (api->version.major != dlpack::kMajorVersion || api->tensor_from_object == nullptr) {
        return std::nullopt;
    }
    if (rows.empty()) return std::nullopt;
    const py::handle type = py::type::handle_of(rows[0]);
    PlainRows result;
    result.addresses.reserve(rows.size());
    try {
        methods.look_up(type);
        for (const py::handle row : rows) {
            if (!py::type::handle_of(row).is(type)) return std::nullopt;
            dlpack::Tensor tensor{};
            if (api->tensor_from_object(row.ptr(), &tensor) != 0) throw py::error_already_set();
            const auto dtype = torch_dtype(tensor);
            if (!dtype || tensor.device.type != dlpack::kCpu || !is_contiguous(tensor) ||
                !agrees(result, *dtype, tensor.shape, static_cast<std::size_t>(tensor.ndim))) {
                return std::nullopt;
            }
            const auto item = static_cast<std::int64_t>(item_size(*dtype));
            const bool plain = methods.elements_are_plain(row, result.count * item, item);
            if (!plain || (result.count > 0 && tensor.data == nullptr)) return std::nullopt;
            result.addresses.push_back(static_cast<const std::byte*>(tensor.data) +
                                       tensor.byte_offset);
        }
    } catch (const py::error_already_set& error) {
        // Tensors that only stand for others refuse; Python's inspection says which and why.
        if (!error.matches(PyExc_Exception)) throw;
        return std::nullopt;
    }
    return result;
}

std::optional<PlainRows> Inspection::of(const py::list& arrays) {
    if (exchange_api_.is_none()) return inspect_numpy(arrays);
    return inspect_torch(arrays, exchange_api_, methods_);
}

py::tuple shape_of(const PlainRows& rows) {
    py::tuple shape(rows.shape.size());
    for (std::size_t d = 0; d < rows.shape.size(); ++d) shape[d] = py::int_(rows.shape[d]);
    return shape;
}

std::optional<std::vector<py::list>> arrays_by_name(const py::list& rows, const py::list& names) {
    for (const py::handle row : rows) {
        if (PyDict_Check(row.ptr()) == 0 || py::len(row) != names.size()) return std::nullopt;
    }
    std::vector<py::list> result;
    result.reserve(names.size());
    for (const py::handle name : names) {
        py::list arrays(rows.size());
        for (std::size_t k = 0; k < rows.size(); ++k) {
            PyObject* array = PyObject_GetItem(rows[k].ptr(), name.ptr());
            if (array == nullptr) {
                if (PyErr_ExceptionMatches(PyExc_KeyError) == 0) throw py::error_already_set();
                PyErr_Clear();
                return std::nullopt;
            }
            arrays[k] = py::reinterpret_steal<py::object>(array);
        }
        result.push_back(std::move(arrays));
    }
    return result;
}

std::optional<std::size_t> first_overlap(const std::vector<Extent>& targets,
                                         std::vector<Extent> others) {
    std::sort(others.begin(), others.end(),
              [](const Extent& a, const Extent& b) { return a.start < b.start; });
    // Among those that start before a target ends, the one that reaches farthest decides.
    std::vector<std::uintptr_t> reach;
    reach.reserve(others.size());
    for (const Extent& other : others) {
        reach.push_back(reach.empty() ? other.stop : std::max(reach.back(), other.stop));
    }
    for (std::size_t t = 0; t < targets.size(); ++t) {
        const auto before = std::partition_point(
            others.begin(), others.end(),
            [&](const Extent& other) { return other.start < targets[t].stop; });
        const auto count = static_cast<std::size_t>(before - others.begin());
        if (count > 0 && reach[count - 1] > targets[t].start) return t;
    }
    return std::nullopt;
}

bool any_overlap(std::vector<Extent> extents) {
    std::sort(extents.begin(), extents.end(),
              [](const Extent& a, const Extent& b) { return a.start < b.start; });
    return std::adjacent_find(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
               return b.start < a.stop;
           }) != extents.end();
}

namespace {

// Addresses, dtype codes and shapes of the entries of one mapping, or nothing.
std::optional<py::tuple> plain_entries(const py::object& row, const py::list& names,
                                       const py::object& exchange_api) {
    Inspection inspection(exchange_api);
    py::list rows(1);
    rows[0] = row;
    const auto arrays = arrays_by_name(rows, names);
    if (!arrays) return std::nullopt;
    py::list addresses(names.size());
    py::tuple codes(names.size());
    py::tuple shapes(names.size());
    for (std::size_t i = 0; i < arrays->size(); ++i) {
        const auto entry = inspection.of((*arrays)[i]);
        if (!entry) return std::nullopt;
        addresses[i] = handle_of(entry->addresses[0]);
        codes[i] = py::int_(static_cast<int>(entry->dtype));
        shapes[i] = shape_of(*entry);
    }
    return py::make_tuple(std::move(addresses), std::move(codes), std::move(shapes));
}

// The position of the first output whose memory overlaps that of a row. All are given as handles
// and sizes in bytes; rows[s * clients + k] has sizes[s].
std::optional<std::size_t> first_overlap_of(const py::list& outs,
                                            const std::vector<std::size_t>& out_bytes,
                                            const py::list& rows,
                                            const std::vector<std::size_t>& bytes) {
    const std::vector<const void*> targets = input_addresses(outs);
    const std::vector<const void*> inputs = input_addresses(rows);
    require_count("out_bytes", out_bytes.size(), targets.size());
    if (bytes.empty()) return std::nullopt;
    const std::size_t clients = inputs.size() / bytes.size();
    require_count("rows", inputs.size(), clients * bytes.size());
    const auto extent = [](const void* address, std::size_t size) {
        const auto start = reinterpret_cast<std::uintptr_t>(address);
        return Extent{start, start + size};
    };
    std::vector<Extent> others;
    others.reserve(inputs.size());
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (bytes[i / clients] > 0) others.push_back(extent(inputs[i], bytes[i / clients]));
    }
    std::vector<Extent> written;
    std::vector<std::size_t> positions;
    for (std::size_t o = 0; o < targets.size(); ++o) {
        if (out_bytes[o] == 0) continue;
        written.push_back(extent(targets[o], out_bytes[o]));
        positions.push_back(o);
    }
    const auto at = first_overlap(written, std::move(others));
    return at ? std::optional(positions[*at]) : std::nullopt;
}

}  // namespace

void bind_rows(py::module_& m) {
    m.def(
        "plain_numpy_rows", [](const py::list& rows) { return as_tuple(inspect_numpy(rows)); },
        py::arg("rows"),
        "(addresses, dtype code, shape, size) of numpy arrays that agree, or None.");
    m.def(
        "plain_torch_rows",
        [](const py::list& rows, const py::capsule& api) {
            TorchMethods methods;
            return as_tuple(inspect_torch(rows, api, methods));
        },
        py::arg("rows"), py::arg("exchange_api"),
        "(addresses, dtype code, shape, size) of torch tensors that agree, or None.");
    m.def("plain_entries", &plain_entries, py::arg("row"), py::arg("names"),
          py::arg("exchange_api"),
          "(addresses, dtype codes, shapes) of a dict's plain arrays by name, or None.");
    m.def("first_overlap", &first_overlap_of, py::arg("outs"), py::arg("out_bytes"),
          py::arg("rows"), py::arg("bytes"),
          "Position of the first output that overlaps a row, or None.");
}

}  // namespace fedbench::bindings
