// Copies between scattered pieces and one flat buffer, split over threads by bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "fedbench/copy.hpp"
#include "fedbench/parallel.hpp"

namespace fedbench {

// `size` bytes at `piece`, which belong at `offset` of the flat buffer.
struct Piece {
    std::byte* piece;
    std::size_t offset;
    std::size_t size;
};

enum class CopyDirection { gather, scatter };

// Copies between the pieces and the flat buffer. Pieces must not overlap it, and where they are
// written (scatter) not each other; several may name the same part of the flat buffer.
inline void copy_pieces(std::byte* flat, std::span<const Piece> pieces, CopyDirection direction) {
    constexpr std::size_t block = std::size_t{1} << 18;
    std::vector<std::size_t> ends;
    std::size_t total = 0;
    for (const Piece& piece : pieces) {
        total += piece.size;
        ends.push_back(total);
    }
    parallel_for(total, block, 2 * total, [&](std::size_t begin, std::size_t end) {
        auto at = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), begin) -
                                           ends.begin());
        for (; begin < end; ++at) {
            const Piece& piece = pieces[at];
            const std::size_t skip = begin - (ends[at] - piece.size);
            const std::size_t size = std::min(end, ends[at]) - begin;
            std::byte* const there = flat + piece.offset + skip;
            if (direction == CopyDirection::gather) {
                copy_part(there, piece.piece + skip, size, total);
            } else {
                copy_part(piece.piece + skip, there, size, total);
            }
            begin += size;
        }
    });
}

// Zeroes what the pieces, in ascending order of their offsets, leave of the flat buffer.
inline void zero_gaps(std::byte* flat, std::size_t size, std::span<const Piece> pieces) {
    std::size_t reached = 0;
    for (const Piece& piece : pieces) {
        if (piece.offset > reached) std::memset(flat + reached, 0, piece.offset - reached);
        reached = std::max(reached, piece.offset + piece.size);
    }
    if (size > reached) std::memset(flat + reached, 0, size - reached);
}

}  // namespace fedbench
