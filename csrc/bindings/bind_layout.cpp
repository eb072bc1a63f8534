// Packing state dicts into flat buffers and back.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <stdexcept>
#include <vector>

#include "array_args.hpp"
#include "fedbench/pack.hpp"

namespace py = pybind11;

namespace fedbench::bindings {

namespace {

template <class Address>
std::vector<Piece> pieces_of(const std::vector<Address>& addresses,
                             const std::vector<std::size_t>& offsets,
                             const std::vector<std::size_t>& sizes, std::size_t flat_size) {
    require_count("offsets", offsets.size(), addresses.size());
    require_count("sizes", sizes.size(), addresses.size());
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
        if (offsets[i] > flat_size || sizes[i] > flat_size - offsets[i]) {
            throw std::invalid_argument("offsets must lie inside the flat buffer of " +
                                        std::to_string(flat_size) + " bytes.");
        }
        auto* address = const_cast<void*>(static_cast<const void*>(addresses[i]));
        pieces.push_back({static_cast<std::byte*>(address), offsets[i], sizes[i]});
    }
    return pieces;
}

void gather(const py::object& flat, std::size_t flat_size, const py::list& pieces,
            const std::vector<std::size_t>& offsets, const std::vector<std::size_t>& sizes) {
    auto* target = static_cast<std::byte*>(address_of(flat, true));
    const auto parts = pieces_of(input_addresses(pieces), offsets, sizes, flat_size);
    const py::gil_scoped_release no_gil;
    zero_gaps(target, flat_size, parts);
    copy_pieces(target, parts, CopyDirection::gather);
}

void scatter(const py::object& flat, std::size_t flat_size, const py::list& pieces,
             const std::vector<std::size_t>& offsets, const std::vector<std::size_t>& sizes) {
    auto* source = static_cast<std::byte*>(address_of(flat, false));
    const auto parts = pieces_of(output_addresses(pieces), offsets, sizes, flat_size);
    const py::gil_scoped_release no_gil;
    copy_pieces(source, parts, CopyDirection::scatter);
}

}  // namespace

void bind_layout(py::module_& m) {
    m.def("gather", &gather, py::arg("flat"), py::arg("flat_size"), py::arg("pieces"),
          py::arg("offsets"), py::arg("sizes"),
          "Copy pieces to their byte offsets in a flat buffer; gaps become zero.");
    m.def("scatter", &scatter, py::arg("flat"), py::arg("flat_size"), py::arg("pieces"),
          py::arg("offsets"), py::arg("sizes"),
          "Copy parts of a flat buffer at byte offsets to pieces.");
}

}  // namespace fedbench::bindings
