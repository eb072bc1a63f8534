// Optimiser steps in place on flat vectors.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "array_args.hpp"
#include "fedbench/steps.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

template <class T>
T* vector_or_null(py::handle buffer, bool writable) {
    if (buffer.is_none()) return nullptr;
    void* address = address_of(buffer, writable);
    if (reinterpret_cast<std::uintptr_t>(address) % alignof(T) != 0)
        throw std::invalid_argument("buffer must be aligned to its element type.");
    return static_cast<T*>(address);
}

template <class T>
void sgd_step_of(std::size_t size, py::handle parameters, py::handle gradient, py::handle anchor,
                 py::handle correction, py::handle velocity, double lr, double weight_decay,
                 double proximal, double momentum, bool nesterov, bool first) {
    const SgdStep<T> step{vector_or_null<T>(parameters, true),
                          vector_or_null<T>(gradient, false),
                          vector_or_null<T>(anchor, false),
                          vector_or_null<T>(correction, false),
                          vector_or_null<T>(velocity, true),
                          static_cast<T>(lr),
                          static_cast<T>(weight_decay),
                          static_cast<T>(proximal),
                          static_cast<T>(momentum),
                          nesterov,
                          first};
    const py::gil_scoped_release no_gil;
    apply_step(step, size);
}

template <class T>
void fedavgm_step_of(std::size_t size, py::handle parameters, py::handle update,
                     py::handle velocity, double server_lr, double momentum, bool nesterov) {
    const FedAvgMStep<T> step{vector_or_null<T>(parameters, true),
                              vector_or_null<T>(update, false),
                              vector_or_null<T>(velocity, true),
                              static_cast<T>(server_lr),
                              static_cast<T>(momentum),
                              nesterov};
    const py::gil_scoped_release no_gil;
    apply_step(step, size);
}

Adaptive adaptive_named(const std::string& name) {
    if (name == "adagrad") return Adaptive::adagrad;
    if (name == "yogi") return Adaptive::yogi;
    if (name == "adam") return Adaptive::adam;
    throw std::invalid_argument("kind must be 'adagrad', 'yogi' or 'adam', got '" + name + "'.");
}

template <class T>
void adaptive_step_of(const std::string& kind, std::size_t size, py::handle parameters,
                      py::handle update, py::handle first_moment, py::handle second_moment,
                      double server_lr, double beta1, double beta2, double tau) {
    const AdaptiveStep<T> step{adaptive_named(kind),
                               vector_or_null<T>(parameters, true),
                               vector_or_null<T>(update, false),
                               vector_or_null<T>(first_moment, true),
                               vector_or_null<T>(second_moment, true),
                               static_cast<T>(server_lr),
                               static_cast<T>(beta1),
                               static_cast<T>(1.0 - beta1),
                               static_cast<T>(beta2),
                               static_cast<T>(1.0 - beta2),
                               static_cast<T>(tau)};
    const py::gil_scoped_release no_gil;
    apply_step(step, size);
}

template <class T>
void bind_steps_of(py::module_& m, const std::string& suffix) {
    m.def(("sgd_step_" + suffix).c_str(), &sgd_step_of<T>, py::arg("size"), py::arg("parameters"),
          py::arg("gradient"), py::arg("anchor"), py::arg("correction"), py::arg("velocity"),
          py::arg("lr"), py::arg("weight_decay"), py::arg("proximal"), py::arg("momentum"),
          py::arg("nesterov"), py::arg("first"), "One SGD step in place.");
    m.def(("fedavgm_step_" + suffix).c_str(), &fedavgm_step_of<T>, py::arg("size"),
          py::arg("parameters"), py::arg("update"), py::arg("velocity"), py::arg("server_lr"),
          py::arg("momentum"), py::arg("nesterov"), "One FedAvgM server step in place.");
    m.def(("adaptive_step_" + suffix).c_str(), &adaptive_step_of<T>, py::arg("kind"),
          py::arg("size"), py::arg("parameters"), py::arg("update"), py::arg("first_moment"),
          py::arg("second_moment"), py::arg("server_lr"), py::arg("beta1"), py::arg("beta2"),
          py::arg("tau"), "One adaptive server step in place.");
}

}  // namespace

void bind_steps(py::module_& m) {
    bind_steps_of<float>(m, "float32");
    bind_steps_of<double>(m, "float64");
}

}  // namespace fedbench::bindings
