// SPDX-License-Identifier: Apache-2.0
// The modules of this folder's programs, one per MPI ABI.
#pragma once

#include <filesystem>
#include <string>

#include "runner/find_mpi.h"
#include "runner/mpi_library.h"

namespace awaken::bench {

/// <prefix>/lib/awaken/bench, where the running program and its modules lie. Throws Error where /proc is not mounted.
[[nodiscard]] std::filesystem::path own_folder();

/// Opens libawaken_<program>_<abi>.so of `folder` and finds its function awaken_<program>_main. `program`: "bench".
/// Throws Error.
[[nodiscard]] ModuleMain open_module(const std::filesystem::path& folder, const std::string& program,
                                     const FoundMpi& mpi);

}  // namespace awaken::bench
