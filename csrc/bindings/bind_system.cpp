// What the machine offers to the kernels.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "fedbench/cpu.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

void bind_system(py::module_& m) {
    m.def("cpu_features", [] { return cpu_features(); },
          "Names of the instruction sets this processor offers that a kernel may use.");
}

}  // namespace fedbench::bindings
