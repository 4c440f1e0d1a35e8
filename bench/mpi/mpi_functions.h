// The MPI's functions as a table: the library's own, or those that the process reaches by name, which are the layer's
// where it is loaded.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <string>
#include <type_traits>

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

/// Throws Error with the MPI's own words when `code` is no success. `function`: "MPI_Send".
void check_mpi(int code, const char* function);

}  // namespace awaken::bench
