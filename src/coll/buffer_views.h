// SPDX-License-Identifier: Apache-2.0
// The buffers of a collective that moves data, as MPI functions describe them. Each strategy asks a view for what it
// needs, so that no strategy has to know in which of these ways a function describes a buffer.
//
// All views have the same members:
//   kPerMember         holds data for each member, or from each; else for all of them together
//   kVarying           the members' data differ in size, so that only this member knows its own
//   check(call, n)     throws ClassedError when an argument is wrong by itself; `n` members
//   is_same_as(view)   as MPICH compares the arguments beside the address; only where kPerMember
//   elements_before(p) where a member's part begins; only where kPerMember and all parts are of one type
//   parts()            a function that gives what goes to a member or along an edge, by its place
//   given()            the arguments as the program passed them, as a tuple
//   placed(stage, access, n)  the same arguments, with staging buffers where needed
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "call/call.h"
#include "call/stage.h"
#include "coll/arguments.h"

namespace awaken::AWAKEN_ABI {

/// `count` elements that lie one extent apart.
struct BufferView {
    std::byte* address = nullptr;
    std::int64_t count = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
};

/// In bytes; 0 for MPI_DATATYPE_NULL, which goes with no elements.
[[nodiscard]] inline std::int64_t extent_of(const MPI_Datatype type) {
    MPI_Aint lower_bound = 0, extent = 0;
    if (type != MPI_DATATYPE_NULL) {
        layer().real.Type_get_extent(type, &lower_bound, &extent);
    }
    return extent;
}

[[nodiscard]] inline std::byte* bytes_from(const void* const buffer, const std::int64_t offset) {
    return static_cast<std::byte*>(const_cast<void*>(buffer)) + offset;
}

/// `count` elements, for all members together.
template <class Count>
struct WholeView {
    static constexpr bool kPerMember = false, kVarying = false;
    const void* address;
    Count count;
    MPI_Datatype type;

    void check(const Call& call, int /*members*/) const { check_buffer(call, address, count, type); }
    /// Elements in memory.
    [[nodiscard]] std::int64_t total(int /*members*/) const { return static_cast<std::int64_t>(count); }
    [[nodiscard]] auto parts() const {
        return
            [*this](std::size_t) { return BufferView{bytes_from(address, 0), static_cast<std::int64_t>(count), type}; };
    }
    [[nodiscard]] auto given() const { return std::tuple{const_cast<void*>(address), count, type}; }
    [[nodiscard]] auto placed(Stage& stage, const Access access, int /*members*/) const {
        const Argument<Count> made = stage.buffer(access, address, count, type);
        return std::tuple{made.address, made.count, made.type};
    }
};

/// `count` elements for each member, one block after another.
template <class Count>
struct BlocksView {
    static constexpr bool kPerMember = true, kVarying = false;
    const void* address;
    Count count;
    MPI_Datatype type;

    void check(const Call& call, int /*members*/) const { check_buffer(call, address, count, type); }
    [[nodiscard]] std::int64_t elements_before(const int place) const {
        return static_cast<std::int64_t>(count) * place;
    }
    [[nodiscard]] bool is_same_as(const BlocksView& other) const {
        return type == other.type && count == other.count && count != 0;
    }
    [[nodiscard]] std::int64_t total(const int members) const { return static_cast<std::int64_t>(count) * members; }
    [[nodiscard]] auto parts() const {
        return [*this, block = static_cast<std::int64_t>(count) * extent_of(type)](const std::size_t place) {
            return BufferView{bytes_from(address, static_cast<std::int64_t>(place) * block),
                              static_cast<std::int64_t>(count), type};
        };
    }
    [[nodiscard]] auto given() const { return std::tuple{const_cast<void*>(address), count, type}; }
    [[nodiscard]] auto placed(Stage& stage, const Access access, const int members) const {
        const Argument<Count> made = stage.buffer(access, address, count, type, total(members));
        return std::tuple{made.address, made.count, made.type};
    }
};

/// `counts` elements for each member, `displacements` extents of the type from the buffer's start.
template <class Counts, class Displacements>
struct PartsView {
    static constexpr bool kPerMember = true, kVarying = true, kTyped = false;
    const void* address;
    Counts counts;
    Displacements displacements;
    MPI_Datatype type;

    void check(const Call& call, const int members) const { check_parts(call, address, counts, type, members); }
    [[nodiscard]] std::int64_t elements_before(const int place) const {
        return static_cast<std::int64_t>(displacements[place]);
    }
    [[nodiscard]] bool is_same_as(const PartsView& other) const { return type == other.type && counts == other.counts; }
    [[nodiscard]] auto parts() const {
        return [*this, extent = extent_of(type)](const std::size_t place) {
            return BufferView{bytes_from(address, displacements[place] * extent),
                              static_cast<std::int64_t>(counts[place]), type};
        };
    }
    [[nodiscard]] auto given() const { return std::tuple{const_cast<void*>(address), counts, displacements, type}; }
    [[nodiscard]] auto placed(Stage& stage, const Access access, const int members) const {
        const auto made = stage.blocks(access, address, counts, displacements, type, members);
        return std::tuple{made.address, counts, made.displacements, made.type};
    }
};

/// The same with a type for each part, and displacements in bytes.
template <class Counts, class Displacements, class Types>
struct TypedPartsView {
    static constexpr bool kPerMember = true, kVarying = true, kTyped = true;
    const void* address;
    Counts counts;
    Displacements displacements;
    Types types;

    void check(const Call& call, const int members) const { check_parts(call, address, counts, types, members); }
    [[nodiscard]] bool is_same_as(const TypedPartsView& other) const {
        return types == other.types && counts == other.counts;
    }
    [[nodiscard]] auto parts() const {
        return [*this](const std::size_t place) {
            return BufferView{bytes_from(address, displacements[place]), static_cast<std::int64_t>(counts[place]),
                              types[place]};
        };
    }
    [[nodiscard]] auto given() const { return std::tuple{const_cast<void*>(address), counts, displacements, types}; }
    [[nodiscard]] auto placed(Stage& stage, const Access access, const int members) const {
        const auto made = stage.typed_blocks(access, address, counts, displacements, types, members);
        return std::tuple{made.address, counts, made.displacements, made.types};
    }
};

/// The parts of all members, in the order of their ranks.
template <class View>
[[nodiscard]] std::vector<BufferView> parts_of(const View& view, const int members) {
    std::vector<BufferView> parts;
    parts.reserve(static_cast<std::size_t>(members));
    const auto part = view.parts();
    for (std::size_t place = 0; place < static_cast<std::size_t>(members); ++place) {
        parts.push_back(part(place));
    }
    return parts;
}

}  // namespace awaken::AWAKEN_ABI
