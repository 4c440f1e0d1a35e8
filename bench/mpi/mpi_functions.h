// SPDX-License-Identifier: Apache-2.0
// The MPI's functions as a table: the library's own, or those that the process reaches by name, which are the layer's
// where it is loaded.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <string>
#include <type_traits>
#include <vector>

#include "runner/mpi_library.h"

namespace awaken::bench {

/// Stands for a function that this ABI's header does not declare.
struct Absent {};

struct MpiFunctions {
#define AWAKEN_NATIVE(name) decltype(&::PMPI_##name) name = nullptr;
#define AWAKEN_ABSENT(name) Absent name;
#include AWAKEN_NATIVE_TABLE
#undef AWAKEN_NATIVE
#undef AWAKEN_ABSENT
};

template <typename Function>
inline constexpr bool kDeclared = !std::is_same_v<std::remove_cvref_t<Function>, Absent>;

/// Those of the library at hand. Functions that it lacks are null.
[[nodiscard]] const MpiFunctions& library_functions();

/// Those that the name MPI_X reaches in this process. Functions that the library lacks are null here too, although the
/// layer has an entry for them.
[[nodiscard]] const MpiFunctions& reached_functions();

/// Fills the two tables; once, before anything else here.
void load_functions(const MpiLibrary& library);

/// Version, path and ABI of the MPI in use.
[[nodiscard]] const MpiLibrary& library_in_use();

/// True when the name MPI_Send reaches Awaken's library.
[[nodiscard]] bool layer_is_loaded();

/// "MPICH 5.0.2": the library's version string without its ornaments.
[[nodiscard]] std::string short_version();

/// The MPI's own words for an error, in one line.
[[nodiscard]] std::string error_text(int code);

/// Throws Error with the MPI's own words when `code` is no success. `function`: "MPI_Send".
void check_mpi(int code, const char* function);

// ---- between the ranks, all collective ------------------------------------------------------------------------------

template <typename Value>
[[nodiscard]] MPI_Datatype type_of_value() {
    if constexpr (std::is_same_v<Value, double>) {
        return MPI_DOUBLE;
    } else if constexpr (std::is_same_v<Value, unsigned long long>) {
        return MPI_UNSIGNED_LONG_LONG;
    } else {
        static_assert(std::is_same_v<Value, int>);
        return MPI_INT;
    }
}

/// What the ranks' values come to, at all ranks.
template <typename Value>
[[nodiscard]] Value over_ranks(Value value, const MPI_Op operation, MPI_Comm communicator) {
    check_mpi(MPI_Allreduce(MPI_IN_PLACE, &value, 1, type_of_value<Value>(), operation, communicator), "MPI_Allreduce");
    return value;
}

/// What the ranks' values come to, at rank 0.
[[nodiscard]] double over_ranks_at_root(double value, MPI_Op operation, MPI_Comm communicator);

/// The text of rank `root`, at all ranks.
[[nodiscard]] std::string broadcast_text(std::string text, int root, MPI_Comm communicator);

/// The texts of all ranks in their order, at rank 0; nothing at others.
[[nodiscard]] std::vector<std::string> gather_texts(const std::string& text, MPI_Comm communicator);

}  // namespace awaken::bench
