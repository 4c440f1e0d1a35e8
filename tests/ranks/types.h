// SPDX-License-Identifier: Apache-2.0
// Derived datatypes in the tests: ownership, and the room that they take.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace ranks {

/// A datatype that is freed at the end of its scope.
class Type {
  public:
    Type() = default;
    explicit Type(MPI_Datatype type) : _type(type) { MPI_Type_commit(&_type); }
    Type(Type&& other) noexcept : _type(std::exchange(other._type, MPI_DATATYPE_NULL)) {}
    Type(const Type&) = delete;
    Type& operator=(const Type&) = delete;
    Type& operator=(Type&&) = delete;
    ~Type() {
        if (_type != MPI_DATATYPE_NULL) {
            MPI_Type_free(&_type);
        }
    }
    operator MPI_Datatype() const { return _type; }  // NOLINT: stands for the handle

  private:
    MPI_Datatype _type = MPI_DATATYPE_NULL;
};

template <class Make>
Type make(Make create) {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    create(&type);
    return Type(type);
}

/// Bytes of memory that `count` elements of a type need, and where the buffer's address lies in them.
struct Room {
    Room(MPI_Datatype type, int count) {
        MPI_Aint lower, extent, true_lower, true_extent;
        MPI_Type_get_extent(type, &lower, &extent);
        MPI_Type_get_true_extent(type, &true_lower, &true_extent);
        const MPI_Aint last = static_cast<MPI_Aint>(std::max(count - 1, 0)) * extent;
        const MPI_Aint begin = std::min<MPI_Aint>({0, true_lower, true_lower + last});
        const MPI_Aint end = std::max(true_lower + true_extent, true_lower + true_extent + last);
        origin = -begin;
        bytes = static_cast<std::size_t>(end - begin) + 24;
    }
    std::size_t bytes;
    MPI_Aint origin;
};

}  // namespace ranks
