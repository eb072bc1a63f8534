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

// The extents of arrays that hold anything.
void add_extents(const PlainRows& rows, std::vector<Extent>& extents) {
    const std::size_t bytes = static_cast<std::size_t>(rows.count) * item_size(rows.dtype);
    if (bytes == 0) return;
    for (const void* address : rows.addresses) {
        const auto start = reinterpret_cast<std::uintptr_t>(address);
        extents.push_back({start, start + bytes});
    }
}

// Plain updates entry by entry: an unnamed one of arrays, or those of mappings.
struct PlainUpdates {
    std::vector<py::list> arrays;  // of each entry, one per client
    std::vector<PlainRows> entries;
};

// The arrays of each entry: one of each row, itself or by name.
std::optional<std::vector<py::list>> arrays_of(const py::list& rows, const py::object& names) {
    if (names.is_none()) return std::vector<py::list>{rows};
    return arrays_by_name(rows, names);
}

std::optional<PlainUpdates> inspect_updates(const py::list& rows, const py::object& names,
                                            Inspection& inspection) {
    auto arrays = arrays_of(rows, names);
    if (!arrays) return std::nullopt;
    PlainUpdates updates{std::move(*arrays), {}};
    std::vector<const void*> starts;
    for (const py::list& entry : updates.arrays) {
        auto inspected = inspection.of(entry);
        if (!inspected) return std::nullopt;
        if (inspected->count > 0) starts.push_back(inspected->addresses[0]);
        updates.entries.push_back(std::move(*inspected));
    }
    std::sort(starts.begin(), starts.end());
    const bool tied = std::adjacent_find(starts.begin(), starts.end()) != starts.end();
    return tied ? std::nullopt : std::optional(std::move(updates));
}

// Where the means of the entries go: the arrays of `out`, or what `make` returns for an array of
// the entry. Nothing if they do not fit or share memory.
std::optional<std::vector<PlainRows>> inspect_targets(const PlainUpdates& updates,
                                                      const py::list& targets,
                                                      Inspection& inspection) {
    std::vector<PlainRows> result;
    std::vector<Extent> written;
    std::vector<Extent> read;
    for (std::size_t i = 0; i < updates.entries.size(); ++i) {
        const PlainRows& entry = updates.entries[i];
        py::list one(1);
        one[0] = targets[i];
        auto target = inspection.of(one);
        if (!target || target->dtype != entry.dtype || target->shape != entry.shape) return {};
        if (!inspection.torch() && !py::reinterpret_borrow<py::array>(targets[i]).writeable())
            return {};
        add_extents(*target, written);
        add_extents(entry, read);
        result.push_back(std::move(*target));
    }
    if (first_overlap(written, std::move(read)) || any_overlap(std::move(written))) return {};
    return result;
}

py::list made_targets(const PlainUpdates& updates, const py::function& make) {
    py::list targets;
    for (const py::list& entry : updates.arrays) targets.append(make(entry[0]));
    return targets;
}

// The mean of plain updates, arrays or mappings of `names`, with positive weights: whether all was
// finite and the targets entry by entry, or nothing where any of that is not so and nothing was
// written. Targets are `out`, like an update, or what `make` returns for an array like which to be.
std::optional<std::pair<bool, py::list>> mean_of_plain(
    const py::list& rows, const py::object& names, const py::object& out, const py::object& weights,
    const py::object& exchange_api, const py::function& make) {
    if (rows.empty()) return std::nullopt;
    Inspection inspection(exchange_api);
    const auto values = plain_weights(weights, rows.size());
    if (!values) return std::nullopt;
    const auto updates = inspect_updates(rows, names, inspection);
    if (!updates) return std::nullopt;
    py::list targets;
    if (out.is_none()) {
        targets = made_targets(*updates, make);
    } else {
        py::list outs(1);
        outs[0] = out;
        const auto given = arrays_of(outs, names);
        if (!given) return std::nullopt;
        for (const py::list& one : *given) targets.append(one[0]);
    }
    const auto results = inspect_targets(*updates, targets, inspection);
    if (!results) return std::nullopt;
    std::vector<MeanSegment> segments;
    segments.reserve(results->size());
    for (std::size_t i = 0; i < results->size(); ++i) {
        const PlainRows& entry = updates->entries[i];
        segments.push_back({entry.addresses.data(), static_cast<std::size_t>(entry.count),
                            entry.dtype, const_cast<void*>((*results)[i].addresses[0]),
                            entry.dtype});
    }
    bool finite = false;
    {
        const py::gil_scoped_release no_gil;
        finite = mean(plan_weights(*values, std::nullopt), segments);
    }
    return std::make_pair(finite, std::move(targets));
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
    m.def("mean_of_plain", &mean_of_plain, py::arg("rows"), py::arg("names"), py::arg("out"),
          py::arg("weights"), py::arg("exchange_api"), py::arg("make"),
          "(whether all was finite, targets) of the mean of plain arrays or mappings of names to "
          "them, or None for arguments that need Python's inspection; see the source.");
    m.def("first_nonfinite", &first_nonfinite_of, py::arg("rows"), py::arg("sizes"),
          py::arg("dtypes"), "(segment, index) of a client's first non-finite element, or None.");
}

}  // namespace fedbench::bindings
