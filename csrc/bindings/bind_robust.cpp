// Order statistics and distances: what the robust rules are made of.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <string>
#include <vector>

#include "array_args.hpp"
#include "fedbench/distance.hpp"
#include "fedbench/order_statistics.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

OrderStatistic statistic_named(const std::string& name, int clients, int parameter, DType dtype) {
    if (name == "median") return OrderStatistic::median(clients, dtype);
    if (name == "trimmed_mean") {
        if (parameter < 0 || 2 * parameter >= clients)
            throw std::invalid_argument("num_trimmed must leave a client, got " +
                                        std::to_string(parameter) + ".");
        return OrderStatistic::trimmed_mean(clients, parameter, dtype);
    }
    if (name == "mean_around_median") {
        if (parameter < 1 || parameter > clients)
            throw std::invalid_argument("num_kept must be 1 to " + std::to_string(clients) +
                                        ", got " + std::to_string(parameter) + ".");
        return OrderStatistic::mean_around_median(clients, parameter, dtype);
    }
    throw std::invalid_argument("statistic must be a known name, got '" + name + "'.");
}

// rows[s * clients + k] is segment s of client k.
bool order_statistic_into(const std::string& statistic, int parameter, int clients,
                          const py::list& rows, const std::vector<std::size_t>& sizes,
                          const std::vector<int>& dtype_codes, const py::list& outs) {
    const std::vector<const void*> inputs = input_addresses(rows);
    const std::vector<void*> outputs = output_addresses(outs);
    const std::vector<DType> dtypes = dtypes_of(dtype_codes);
    if (clients < 1 || clients >= (1 << 24))
        throw std::invalid_argument("clients must be 1 to 2^24 - 1, got " +
                                    std::to_string(clients) + ".");
    require_count("rows", inputs.size(), sizes.size() * static_cast<std::size_t>(clients));
    require_count("dtypes", dtypes.size(), sizes.size());
    require_count("outs", outputs.size(), sizes.size());
    const py::gil_scoped_release no_gil;
    bool finite = true;
    for (std::size_t s = 0; s < sizes.size(); ++s) {
        finite &= order_statistic(inputs.data() + s * static_cast<std::size_t>(clients),
                                  statistic_named(statistic, clients, parameter, dtypes[s]),
                                  sizes[s], outputs[s]);
    }
    return finite;
}

std::vector<PairSegment> pair_segments(const py::list& a, const py::list& b,
                                       const std::vector<std::size_t>& sizes,
                                       const std::vector<int>& dtype_codes) {
    const std::vector<const void*> left = input_addresses(a);
    const std::vector<const void*> right = input_addresses(b);
    const std::vector<DType> dtypes = dtypes_of(dtype_codes);
    require_count("a", left.size(), sizes.size());
    if (!right.empty()) require_count("b", right.size(), sizes.size());
    require_count("dtypes", dtypes.size(), sizes.size());
    std::vector<PairSegment> segments;
    for (std::size_t s = 0; s < sizes.size(); ++s)
        segments.push_back({left[s], right.empty() ? nullptr : right[s], sizes[s], dtypes[s]});
    return segments;
}

double squared_distance_of(const py::list& a, const py::list& b,
                           const std::vector<std::size_t>& sizes, const std::vector<int>& dtypes) {
    const std::vector<PairSegment> segments = pair_segments(a, b, sizes, dtypes);
    const py::gil_scoped_release no_gil;
    return squared_distance(segments);
}

py::bytes exact_squared_distance_of(const py::list& a, const py::list& b,
                                    const std::vector<std::size_t>& sizes,
                                    const std::vector<int>& dtypes) {
    if (b.empty() && !sizes.empty())
        throw std::invalid_argument("b must have a buffer per segment.");
    const std::vector<PairSegment> segments = pair_segments(a, b, sizes, dtypes);
    std::string bytes;
    {
        const py::gil_scoped_release no_gil;
        for (const std::uint64_t limb : exact_squared_distance(segments))
            for (int i = 0; i < 64; i += 8) bytes.push_back(static_cast<char>((limb >> i) & 0xff));
    }
    return bytes;
}

}  // namespace

void bind_robust(py::module_& m) {
    m.def("order_statistic", &order_statistic_into, py::arg("statistic"), py::arg("parameter"),
          py::arg("clients"), py::arg("rows"), py::arg("sizes"), py::arg("dtypes"), py::arg("outs"),
          "Coordinate-wise statistic of every segment; returns whether all was finite.");
    m.def("squared_distance", &squared_distance_of, py::arg("a"), py::arg("b"), py::arg("sizes"),
          py::arg("dtypes"),
          "Squared distance in float64, to the origin where `b` is empty; the same everywhere.");
    m.def("exact_squared_distance", &exact_squared_distance_of, py::arg("a"), py::arg("b"),
          py::arg("sizes"), py::arg("dtypes"),
          "Squared distance without rounding: little-endian bytes of an integer in 2^-2148.");
}

}  // namespace fedbench::bindings
