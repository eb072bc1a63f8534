// Compressed updates into a dense result.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "array_args.hpp"
#include "fedbench/quantized_mean.hpp"
#include "fedbench/sparse_mean.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

// (all finite, client with a bad index or None, position of the bad index).
std::tuple<bool, std::optional<std::size_t>, std::size_t> sparse_mean_into(
    const py::list& indices, const py::list& values, const std::vector<std::size_t>& counts,
    bool wide_indices, std::size_t size, int dtype_code, py::handle out,
    const std::vector<double>& weights, std::optional<double> total_weight) {
    const std::vector<const void*> index_addresses = input_addresses(indices);
    const std::vector<const void*> value_addresses = input_addresses(values);
    require_count("indices", index_addresses.size(), weights.size());
    require_count("values", value_addresses.size(), weights.size());
    require_count("counts", counts.size(), weights.size());
    const DType dtype = dtypes_of({dtype_code})[0];
    if (dtype == DType::int8) throw std::invalid_argument("dtype must be a floating type.");
    void* result = address_of(out, true);
    std::vector<SparseRow> rows;
    for (std::size_t k = 0; k < weights.size(); ++k)
        rows.push_back({index_addresses[k], wide_indices, value_addresses[k], counts[k]});
    const py::gil_scoped_release no_gil;
    const WeightPlan plan = plan_weights(weights, total_weight);
    const SparseOutcome outcome = sparse_mean(plan, rows, size, dtype, result);
    std::optional<std::size_t> client;
    if (outcome.bad_row < rows.size()) client = outcome.bad_row;
    return {outcome.finite, client, outcome.bad_pair};
}

void quantized_mean_into(const py::list& rows, std::size_t size, py::handle out,
                         const std::vector<double>& coefficients, double total_weight) {
    const std::vector<const void*> addresses = input_addresses(rows);
    require_count("rows", addresses.size(), coefficients.size());
    void* result = address_of(out, true);
    const py::gil_scoped_release no_gil;
    const WeightPlan plan = plan_weights(coefficients, total_weight);
    std::vector<const void*> used;
    for (const std::size_t client : plan.clients) used.push_back(addresses[client]);
    quantized_mean(plan, used.data(), size, result);
}

}  // namespace

void bind_compressed(py::module_& m) {
    m.def("sparse_mean", &sparse_mean_into, py::arg("indices"), py::arg("values"),
          py::arg("counts"), py::arg("wide_indices"), py::arg("size"), py::arg("dtype"),
          py::arg("out"), py::arg("weights"), py::arg("total_weight"),
          "Correctly rounded weighted mean of sparse updates; see the source for the result.");
    m.def("quantized_mean", &quantized_mean_into, py::arg("rows"), py::arg("size"), py::arg("out"),
          py::arg("coefficients"), py::arg("total_weight"),
          "Correctly rounded mean of int8 rows with real coefficients, in float32.");
}

}  // namespace fedbench::bindings
