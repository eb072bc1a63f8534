// The weighted mean and the checks around it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "array_args.hpp"
#include "fedbench/finite.hpp"
#include "fedbench/mean.hpp"
#include "plain_rows.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

// rows[s * clients + k] is segment s of client k.
bool mean_into(const py::list& rows, const std::vector<std::size_t>& sizes,
               const std::vector<int>& dtype_codes, const py::list& outs,
               const std::vector<int>& out_codes, const std::vector<double>& weights,
               std::optional<double> total_weight) {
    const std::size_t clients = weights.size();
    const std::vector<const void*> inputs = input_addresses(rows);
    const std::vector<void*> outputs = output_addresses(outs);
    const std::vector<DType> dtypes = dtypes_of(dtype_codes);
    const std::vector<DType> out_dtypes = dtypes_of(out_codes);
    require_count("rows", inputs.size(), sizes.size() * clients);
    require_count("dtypes", dtypes.size(), sizes.size());
    require_count("outs", outputs.size(), sizes.size());
    require_count("out_dtypes", out_dtypes.size(), sizes.size());
    const py::gil_scoped_release no_gil;
    const WeightPlan plan = plan_weights(weights, total_weight);
    const std::size_t used = plan.clients.size();
    std::vector<const void*> used_rows(sizes.size() * used);
    std::vector<MeanSegment> segments;
    for (std::size_t s = 0; s < sizes.size(); ++s) {
        for (std::size_t u = 0; u < used; ++u) {
            used_rows[s * used + u] = inputs[s * clients + plan.clients[u]];
        }
        segments.push_back(
            {used_rows.data() + s * used, sizes[s], dtypes[s], outputs[s], out_dtypes[s]});
    }
    return mean(plan, segments);
}

// Positive, finite weights, one for each of `count` clients, from a list of floats and ints.
std::optional<std::vector<double>> plain_weights(const py::object& weights, std::size_t count) {
    if (weights.is_none()) return std::vector<double>(count, 1.0);
    if (!PyList_CheckExact(weights.ptr())) return std::nullopt;
    const auto given = py::reinterpret_borrow<py::list>(weights);
    if (given.size() != count) return std::nullopt;
    std::vector<double> values;
    values.reserve(count);
    for (const py::handle weight : given) {
        if (PyFloat_CheckExact(weight.ptr()) != 0) {
            values.push_back(PyFloat_AS_DOUBLE(weight.ptr()));
        } else if (PyLong_CheckExact(weight.ptr()) != 0) {
            values.push_back(PyLong_AsDouble(weight.ptr()));
            if (PyErr_Occurred() != nullptr) PyErr_Clear();  // -1 then, refused below
        } else {
            return std::nullopt;
        }
        if (!(values.back() > 0.0 && std::isfinite(values.back()))) return std::nullopt;
    }
    return values;
}

// Whether one of the rows shares memory with `out`, an array like them.
bool overlaps(const PlainRows& rows, const void* out) {
    const auto bytes = static_cast<std::uintptr_t>(rows.count) * item_size(rows.dtype);
    const auto target = reinterpret_cast<std::uintptr_t>(out);
    return std::any_of(rows.addresses.begin(), rows.addresses.end(), [&](const void* row) {
        const auto start = reinterpret_cast<std::uintptr_t>(row);
        return start < target + bytes && target < start + bytes;
    });
}

// The mean of plain rows into a plain array like them, with positive weights: whether all was
// finite, or nothing where any of that is not so and nothing was written.
std::optional<bool> mean_of_plain(const py::list& rows, const py::object& out,
                                  const py::object& weights, const py::object& exchange_api) {
    py::list outs(1);
    outs[0] = out;
    const bool torch = !exchange_api.is_none();
    const auto inspect = [&](const py::list& arrays) {
        return torch ? inspect_torch(arrays, exchange_api) : inspect_numpy(arrays);
    };
    const auto inputs = inspect(rows);
    if (!inputs) return std::nullopt;
    const auto target = inspect(outs);
    if (!target || target->dtype != inputs->dtype || target->shape != inputs->shape ||
        (!torch && !py::array(out).writeable()) || overlaps(*inputs, target->addresses[0])) {
        return std::nullopt;
    }
    const auto values = plain_weights(weights, inputs->addresses.size());
    if (!values) return std::nullopt;
    const py::gil_scoped_release no_gil;
    const MeanSegment segment{inputs->addresses.data(), static_cast<std::size_t>(inputs->count),
                              inputs->dtype, const_cast<void*>(target->addresses[0]),
                              inputs->dtype};
    return mean(plan_weights(*values, std::nullopt), {&segment, 1});
}

// (segment, index) of the first non-finite element of one client, or nothing.
std::optional<std::pair<std::size_t, std::size_t>> first_nonfinite_of(
    const py::list& rows, const std::vector<std::size_t>& sizes,
    const std::vector<int>& dtype_codes) {
    const std::vector<const void*> inputs = input_addresses(rows);
    const std::vector<DType> dtypes = dtypes_of(dtype_codes);
    require_count("rows", inputs.size(), sizes.size());
    require_count("dtypes", dtypes.size(), sizes.size());
    const py::gil_scoped_release no_gil;
    for (std::size_t s = 0; s < sizes.size(); ++s) {
        if (const auto index = first_nonfinite(dtypes[s], inputs[s], sizes[s])) {
            return std::make_pair(s, *index);
        }
    }
    return std::nullopt;
}

}  // namespace

void bind_mean(py::module_& m) {
    m.def("mean", &mean_into, py::arg("rows"), py::arg("sizes"), py::arg("dtypes"), py::arg("outs"),
          py::arg("out_dtypes"), py::arg("weights"), py::arg("total_weight"),
          "Correctly rounded weighted mean of every segment; returns whether all was finite.");
    m.def("mean_of_plain", &mean_of_plain, py::arg("rows"), py::arg("out"), py::arg("weights"),
          py::arg("exchange_api"),
          "Mean of plain rows, torch tensors if there is an exchange API; returns whether all was "
          "finite, or None for arguments that need Python's inspection.");
    m.def("first_nonfinite", &first_nonfinite_of, py::arg("rows"), py::arg("sizes"),
          py::arg("dtypes"), "(segment, index) of a client's first non-finite element, or None.");
}

}  // namespace fedbench::bindings
