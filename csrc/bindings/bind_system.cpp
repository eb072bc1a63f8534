// What the machine offers to the kernels, and how much of it they may use.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fedbench/cpu.hpp"
#include "fedbench/isa.hpp"
#include "fedbench/parallel.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "gcc " __VERSION__;
#else
constexpr const char* kCompiler = "an unknown compiler";
#endif

}  // namespace

void bind_system(py::module_& m) {
    m.def(
        "compiler", [] { return kCompiler; }, "Name and version of the compiler that built this.");
    m.def(
        "cpu_features", [] { return cpu_features(); },
        "Names of the instruction sets this processor offers that a kernel may use.");
    m.def(
        "isa_level", [] { return isa_name(active_isa()); },
        "The instruction-set level in force: the best one, or what FEDBENCH_ISA names.");
    m.def(
        "isa_levels",
        [] {
            std::vector<std::string> names;
            for (const IsaLevel level : available_isas()) names.push_back(isa_name(level));
            return names;
        },
        "The instruction-set levels that this machine can run, lowest first.");
    m.def("num_threads", &num_threads, "How many threads one kernel call may use.");
    m.def("set_num_threads", &set_num_threads, py::arg("threads"),
          "Set how many threads one kernel call may use, the caller included.");
    m.def(
        "limit_threads", [](int threads) { thread_limit() = std::clamp(threads, 1, kMaxThreads); },
        py::arg("threads"), "Set the most threads for kernel calls from the calling thread.");
}

}  // namespace fedbench::bindings
