// SPDX-License-Identifier: Apache-2.0
// Counts beyond what an int holds: the functions of MPI-4 that take them, and derived types where an MPI has none.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <array>
#include <climits>

#include "mpi/communication.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {

/// Whether this MPI has the function.
template <typename Function>
[[nodiscard]] bool exists(const Function function) noexcept {
    if constexpr (kDeclared<Function>) {
        return function != nullptr;
    } else {
        return false;
    }
}

/// Calls a function that this MPI may lack.
template <typename Function, typename... Arguments>
void call_or_refuse(const char* const name, const Function function, const Arguments... arguments) {
    if constexpr (kDeclared<Function>) {
        if (function != nullptr) {
            check_mpi(function(arguments...), name);
            return;
        }
    }
    throw Unavailable(short_version() + " has no " + name + " for this count", "use a newer release of this MPI");
}

[[nodiscard]] constexpr bool fits(const Count count) noexcept {
    return count <= INT_MAX;
}

/// `count` elements, which may be more than an int holds, as one element, which is to be committed and freed.
[[nodiscard]] inline MPI_Datatype contiguous_type(const MpiFunctions& mpi, const Count count,
                                                  const MPI_Datatype element) {
    constexpr Count kChunk = Count{1} << 30;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    if (count <= kChunk) {
        check_mpi(mpi.Type_contiguous(static_cast<int>(count), element, &type), "MPI_Type_contiguous");
        return type;
    }
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;
    check_mpi(mpi.Type_get_extent(element, &lower, &extent), "MPI_Type_get_extent");
    MPI_Datatype chunk = contiguous_type(mpi, kChunk, element);
    MPI_Datatype body = contiguous_type(mpi, count / kChunk, chunk);
    const std::array<int, 2> lengths{1, static_cast<int>(count % kChunk)};
    const std::array<MPI_Aint, 2> displacements{0, static_cast<MPI_Aint>(count / kChunk * kChunk) * extent};
    const std::array<MPI_Datatype, 2> types{body, element};
    check_mpi(mpi.Type_create_struct(2, lengths.data(), displacements.data(), types.data(), &type),
              "MPI_Type_create_struct");
    check_mpi(mpi.Type_free(&chunk), "MPI_Type_free");
    check_mpi(mpi.Type_free(&body), "MPI_Type_free");
    return type;
}

/// `count` elements of a type as one element, for MPIs whose counts are int.
class LargeType {
  public:
    LargeType(const MpiFunctions& mpi, const Count count, const MPI_Datatype element)
        : _mpi(mpi), _type(contiguous_type(mpi, count, element)) {
        check_mpi(_mpi.Type_commit(&_type), "MPI_Type_commit");
    }
    /// Operations under way keep the type alive inside the MPI.
    ~LargeType() { _mpi.Type_free(&_type); }
    LargeType(const LargeType&) = delete;
    LargeType& operator=(const LargeType&) = delete;

    [[nodiscard]] MPI_Datatype get() const noexcept { return _type; }

  private:
    const MpiFunctions& _mpi;
    MPI_Datatype _type;
};

}  // namespace awaken::bench
