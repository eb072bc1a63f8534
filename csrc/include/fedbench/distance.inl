// Included by distance.hpp once per instruction set. Eight lanes on every level, and no fused
// operations, so that all levels round alike.

namespace fedbench::FEDBENCH_ISA {

typedef double distance_v __attribute__((vector_size(64)));
typedef float distance_f __attribute__((vector_size(32)));

FEDBENCH_INLINE void load_eight(DType dtype, const std::byte* from, distance_v& value) {
    if (dtype == DType::float64) {
        std::memcpy(&value, from, sizeof value);
    } else if (dtype == DType::float32) {
        distance_f narrow;
        std::memcpy(&narrow, from, sizeof narrow);
        value = __builtin_convertvector(narrow, distance_v);
    } else {
        double lanes[8];
        for (std::size_t lane = 0; lane < 8; ++lane) lanes[lane] = load_element(dtype, from, lane);
        std::memcpy(&value, lanes, sizeof value);
    }
}

// The coordinates [offset, offset + size) of one segment.
inline double squared_distance_block(const PairSegment& segment, std::size_t offset,
                                     std::size_t size) {
    const std::size_t item = item_size(segment.dtype);
    const auto* a = static_cast<const std::byte*>(segment.a) + offset * item;
    const auto* b =
        segment.b == nullptr ? nullptr : static_cast<const std::byte*>(segment.b) + offset * item;
    distance_v sums = {};
    for (std::size_t i = 0; i < size; i += 8) {
        distance_v x = {};
        distance_v y = {};
        if (size - i >= 8) {
            load_eight(segment.dtype, a + i * item, x);
            if (b != nullptr) load_eight(segment.dtype, b + i * item, y);
        } else {
            std::byte padded[2][8 * sizeof(double)] = {};
            std::memcpy(padded[0], a + i * item, (size - i) * item);
            load_eight(segment.dtype, padded[0], x);
            if (b != nullptr) {
                std::memcpy(padded[1], b + i * item, (size - i) * item);
                load_eight(segment.dtype, padded[1], y);
            }
        }
        const distance_v d = x - y;
        sums += d * d;
    }
    double lanes[8];
    std::memcpy(lanes, &sums, sizeof lanes);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace fedbench::FEDBENCH_ISA
