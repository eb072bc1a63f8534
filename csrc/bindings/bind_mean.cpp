// The weighted mean and the checks around it.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "array_args.hpp"
#include "fedbench/finite.hpp"
#include "fedbench/mean.hpp"

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
    m.def("first_nonfinite", &first_nonfinite_of, py::arg("rows"), py::arg("sizes"),
          py::arg("dtypes"), "(segment, index) of a client's first non-finite element, or None.");
}

}  // namespace fedbench::bindings
