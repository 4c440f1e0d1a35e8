// SPDX-License-Identifier: Apache-2.0
#include "mpi/collective_type.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <string>

#include "base/error.h"
#include "engine/catalogue.h"
#include "mpi/large_counts.h"

namespace awaken::bench {
namespace {

/// MPI's type constructors take int.
int to_int(std::size_t value, const char* what) {
    if (value > INT_MAX) {
        throw Error("the derived type would have " + std::to_string(value) + ' ' + what,
                    "choose a larger stride or block, or smaller sizes (-m)");
    }
    return static_cast<int>(value);
}

}  // namespace

MPI_Datatype mpi_type(ElementType type) {
    switch (type) {
        case ElementType::char_:
            return MPI_CHAR;
        case ElementType::int_:
            return MPI_INT;
        case ElementType::float_:
            return MPI_FLOAT;
        case ElementType::double_:
            return MPI_DOUBLE;
    }
    return MPI_DATATYPE_NULL;
}

MessageType::MessageType(ElementType element, const std::optional<DerivedType>& derived, std::size_t elements)
    : _handle(mpi_type(element)), _derived(derived.has_value()) {
    if (!derived) {
        _span = _transmitted = _period = elements;
        _runs = {{0, elements}};
        return;
    }
    switch (derived->form) {
        case DerivedType::Form::contiguous:
            build_contiguous(_handle, elements);
            break;
        case DerivedType::Form::vector:
            build_vector(_handle, *derived, elements);
            break;
        case DerivedType::Form::indexed:
            build_indexed(_handle, *derived);
            break;
    }
    check_mpi(MPI_Type_commit(&_handle), "MPI_Type_commit");
}

MessageType::~MessageType() {
    if (_derived) {
        MPI_Type_free(&_handle);
    }
}

void MessageType::build_contiguous(MPI_Datatype element, std::size_t elements) {
    _handle = contiguous_type(reached_functions(), static_cast<Count>(elements), element);
    _span = _transmitted = _period = elements;
    _runs = {{0, elements}};
}

void MessageType::build_vector(MPI_Datatype element, const DerivedType& derived, std::size_t elements) {
    if (derived.stride == 0 || derived.block_length == 0 || derived.block_length > derived.stride) {
        throw Error("a vector type with blocks of " + std::to_string(derived.block_length) + " elements every " +
                        std::to_string(derived.stride) + " has blocks that overlap or are empty",
                    "make BLOCK at least 1 and at most STRIDE: -D vect:STRIDE:BLOCK");
    }
    const std::size_t blocks = elements / derived.stride;
    check_mpi(MPI_Type_vector(to_int(blocks, "blocks"), to_int(derived.block_length, "elements in a block"),
                              to_int(derived.stride, "elements from block to block"), element, &_handle),
              "MPI_Type_vector");
    _span = blocks == 0 ? 0 : (blocks - 1) * derived.stride + derived.block_length;
    _transmitted = blocks * derived.block_length;
    _runs = {{0, derived.block_length}};
    _period = derived.stride;
}

void MessageType::build_indexed(MPI_Datatype element, const DerivedType& derived) {
    std::vector<int> lengths, displacements;
    for (const DerivedType::Block& block : derived.blocks) {
        if (block.displacement < 0) {
            throw Error("a block of the indexed type begins at " + std::to_string(block.displacement),
                        "give displacements from 0 on: -D indx:FILE");
        }
        lengths.push_back(to_int(block.length, "elements in a block"));
        displacements.push_back(to_int(static_cast<std::size_t>(block.displacement), "elements before a block"));
        _runs.push_back({static_cast<std::size_t>(block.displacement), block.length});
        _transmitted += block.length;
    }
    std::sort(_runs.begin(), _runs.end(), [](const Run& a, const Run& b) { return a.first < b.first; });
    for (const Run& run : _runs) {
        if (run.first < _span) {
            throw Error("blocks of the indexed type overlap at element " + std::to_string(run.first),
                        "give blocks that lie apart: -D indx:FILE");
        }
        _span = run.first + run.length;
    }
    _period = _span;
    // A message begins where the buffer does, even when the first block does not.
    MPI_Aint lower = 0, extent = 0;
    check_mpi(MPI_Type_get_extent(element, &lower, &extent), "MPI_Type_get_extent");
    MPI_Datatype blocks = MPI_DATATYPE_NULL;
    check_mpi(
        MPI_Type_indexed(to_int(lengths.size(), "blocks"), lengths.data(), displacements.data(), element, &blocks),
        "MPI_Type_indexed");
    check_mpi(MPI_Type_create_resized(blocks, 0, static_cast<MPI_Aint>(_span) * extent, &_handle),
              "MPI_Type_create_resized");
    check_mpi(MPI_Type_free(&blocks), "MPI_Type_free");
}

void MessageType::copy_transmitted(std::span<const std::byte> from, std::span<std::byte> to, std::size_t first,
                                   std::size_t element_bytes) const {
    if (_period == 0) {
        return;
    }
    const std::size_t end = first + to.size() / element_bytes;
    for (std::size_t start = first / _period * _period; start < end; start += _period) {
        for (const Run& run : _runs) {
            const std::size_t low = std::max(start + run.first, first);
            const std::size_t high = std::min(start + run.first + run.length, end);
            if (low >= high) {
                continue;
            }
            std::memcpy(to.data() + (low - first) * element_bytes, from.data() + (low - first) * element_bytes,
                        (high - low) * element_bytes);
        }
    }
}

}  // namespace awaken::bench
