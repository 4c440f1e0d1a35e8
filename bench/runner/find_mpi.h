// SPDX-License-Identifier: Apache-2.0
// Finding the MPI that this process is to run on.
#pragma once

#include <string>

#include "runner/mpi_library.h"

namespace awaken::bench {

struct FoundMpi {
    void* handle = nullptr;
    std::string path;
    std::string version;
    std::string abi;

    [[nodiscard]] MpiLibrary view() const noexcept { return {handle, path.c_str(), version.c_str(), abi.c_str()}; }
};

/// Opens the MPI library into the global scope: AWAKEN_MPI, else the MPI of the launcher that started this process,
/// else the one installed in `own_prefix`, else what the dynamic loader finds. Throws Error, naming all that was tried.
[[nodiscard]] FoundMpi find_mpi(const std::string& own_prefix);

/// Number of ranks that the launcher's variables promise; 1 when there are none.
[[nodiscard]] int launched_ranks() noexcept;

/// Whether a launcher started this process, be it as the only rank. Slurm's srun does not count: its variables are in
/// an interactive allocation too.
[[nodiscard]] bool is_launched() noexcept;

}  // namespace awaken::bench
