// SPDX-License-Identifier: Apache-2.0
// What the runner hands to a module: the MPI library that it has opened.
#pragma once

namespace awaken::bench {

/// Lives in the runner for as long as the process.
struct MpiLibrary {
    void* handle;         ///< of the library itself, never of a layer above it
    const char* path;     ///< of the file
    const char* version;  ///< first line of MPI_Get_library_version: "MPICH Version: 5.0.2"
    const char* abi;      ///< "mpich", "openmpi" or "mpi5"
};

/// The one function that a module exports, "awaken_bench_main". `words` are those after `awaken bench`. Runs what they
/// ask for, finalises MPI, and returns the exit status of the process.
using ModuleMain = int (*)(int count, char** words, const MpiLibrary* library);

}  // namespace awaken::bench
