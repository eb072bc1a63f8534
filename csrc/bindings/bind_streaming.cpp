// The streaming mean: one object that several threads may use at once.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "array_args.hpp"
#include "fedbench/streaming_state.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

// Locks are taken without the GIL, so that a thread that waits for one never holds the other.
class LockedStreamingSum {
  public:
    explicit LockedStreamingSum(const std::vector<std::size_t>& sizes,
                                const std::vector<int>& dtype_codes) {
        require_count("dtypes", dtype_codes.size(), sizes.size());
        std::vector<StreamingSum::Segment> segments;
        for (std::size_t s = 0; s < sizes.size(); ++s) {
            segments.push_back({sizes[s], static_cast<DType>(dtype_codes[s])});
        }
        sum_ = std::make_unique<StreamingSum>(std::move(segments));
    }

    std::vector<std::size_t> add(const py::list& rows, const std::vector<double>& weights,
                                 bool propagate) {
        const std::vector<const void*> inputs = input_addresses(rows);
        require_count("rows", inputs.size(), weights.size() * sum_->segments().size());
        const py::gil_scoped_release no_gil;
        const std::lock_guard lock(mutex_);
        return sum_->add(inputs, weights, propagate);
    }

    void merge(LockedStreamingSum& other) {
        if (&other == this) {
            throw std::invalid_argument("other must be another streaming mean, got the same one.");
        }
        const py::gil_scoped_release no_gil;
        const std::scoped_lock lock(mutex_, other.mutex_);
        sum_->merge(*other.sum_);
    }

    void result(const py::list& outs, const std::vector<int>& dtype_codes,
                std::optional<double> total_weight) {
        const std::vector<void*> outputs = output_addresses(outs);
        require_count("outs", outputs.size(), sum_->segments().size());
        require_count("dtypes", dtype_codes.size(), outputs.size());
        std::vector<DType> dtypes;
        for (const int code : dtype_codes) dtypes.push_back(static_cast<DType>(code));
        const py::gil_scoped_release no_gil;
        const std::lock_guard lock(mutex_);
        const exact::Positive divisor =
            total_weight ? exact::sum_of({&*total_weight, 1}) : sum_->weight();
        if (divisor.limbs.empty()) throw std::logic_error("the sum of the weights is zero");
        sum_->result(divisor, outputs, dtypes);
    }

    py::bytes serialize() {
        std::vector<std::byte> bytes;
        {
            const py::gil_scoped_release no_gil;
            const std::lock_guard lock(mutex_);
            bytes = sum_->serialize();
        }
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

    void deserialize(const py::bytes& state) {
        char* data = nullptr;
        Py_ssize_t size = 0;
        if (PyBytes_AsStringAndSize(state.ptr(), &data, &size) != 0) throw py::error_already_set();
        const std::lock_guard lock(mutex_);
        sum_->deserialize(
            {reinterpret_cast<const std::byte*>(data), static_cast<std::size_t>(size)});
    }

    std::uint64_t count() {
        const py::gil_scoped_release no_gil;
        const std::lock_guard lock(mutex_);
        return sum_->count();
    }

    double total_weight() {
        const py::gil_scoped_release no_gil;
        const std::lock_guard lock(mutex_);
        exact::Sum whole(-1074, 1088);
        const exact::Positive weight = sum_->weight();
        for (std::size_t i = 0; i < weight.limbs.size(); ++i) {
            whole.add(weight.limbs[i], weight.exponent + static_cast<int>(64 * i), false);
        }
        const double one = 1.0;
        return std::bit_cast<double>(
            exact::round_quotient(whole, exact::sum_of({&one, 1}), DType::float64));
    }

    std::size_t state_bytes() {
        const py::gil_scoped_release no_gil;
        const std::lock_guard lock(mutex_);
        return sum_->state_bytes();
    }

  private:
    std::mutex mutex_;
    std::unique_ptr<StreamingSum> sum_;
};

}  // namespace

void bind_streaming(py::module_& m) {
    py::class_<LockedStreamingSum>(m, "StreamingSum",
                                   "Exact weighted sums of segments of coordinates.")
        .def(py::init<const std::vector<std::size_t>&, const std::vector<int>&>(), py::arg("sizes"),
             py::arg("dtypes"))
        .def("add", &LockedStreamingSum::add, py::arg("rows"), py::arg("weights"),
             py::arg("propagate"), "Add updates; returns those refused for not being finite.")
        .def("merge", &LockedStreamingSum::merge, py::arg("other"), "Add another sum's updates.")
        .def("result", &LockedStreamingSum::result, py::arg("outs"), py::arg("dtypes"),
             py::arg("total_weight"), "Write the quotients, rounded once.")
        .def("serialize", &LockedStreamingSum::serialize, "The value as canonical bytes.")
        .def("deserialize", &LockedStreamingSum::deserialize, py::arg("state"),
             "Take the value from bytes; only for a fresh object.")
        .def("count", &LockedStreamingSum::count, "Number of updates added.")
        .def("total_weight", &LockedStreamingSum::total_weight, "Sum of the weights, rounded once.")
        .def("state_bytes", &LockedStreamingSum::state_bytes, "Bytes of the bins.");
}

}  // namespace fedbench::bindings
