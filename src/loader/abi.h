// SPDX-License-Identifier: Apache-2.0
// Which ABI an MPI library has. The benchmarks' runner asks the same questions as the loader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace awaken::loader {

enum class Abi : std::uint8_t { mpich, openmpi, mpi5 };
[[nodiscard]] const char* to_string(Abi abi) noexcept;

/// The first line of MPI_Get_library_version, with single spaces, of the library behind a handle of dlopen.
[[nodiscard]] std::string library_version(void* handle);

/// The ABI of the library by its symbols, its file's name and its version; nothing when it has no known one.
[[nodiscard]] std::optional<Abi> recognise_abi(void* handle, const std::string& path, const std::string& version);

/// True when the object behind the handle, or one that it depends on, is an MPI library and not a tool: a tool defines
/// MPI_Send but leaves PMPI_Send to the MPI.
[[nodiscard]] bool is_mpi_library(void* handle) noexcept;

}  // namespace awaken::loader
