// The extension module: one bind_<topic>.cpp per topic, listed here.
#include <pybind11/pybind11.h>

namespace fedbench::bindings {
void bind_layout(pybind11::module_& m);
void bind_compressed(pybind11::module_& m);
void bind_mean(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_robust(pybind11::module_& m);
void bind_rows(pybind11::module_& m);
void bind_steps(pybind11::module_& m);
void bind_streaming(pybind11::module_& m);
void bind_system(pybind11::module_& m);
}  // namespace fedbench::bindings

PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
    m.doc() = "C++ core of fedbench: flat-buffer aggregation and copying with the GIL released.";
    fedbench::bindings::bind_layout(m);
    fedbench::bindings::bind_compressed(m);
    fedbench::bindings::bind_mean(m);
    fedbench::bindings::bind_memory(m);
    fedbench::bindings::bind_robust(m);
    fedbench::bindings::bind_rows(m);
    fedbench::bindings::bind_steps(m);
    fedbench::bindings::bind_streaming(m);
    fedbench::bindings::bind_system(m);
}
