// SPDX-License-Identifier: Apache-2.0
// A library that calls MPI from two places, for lifecycle.cpp: the loader remembers verdicts on call sites by their
// page, modulo 256, and these two are a multiple of that apart.
#include <mpi.h>

#include <cstddef>

namespace {

constexpr std::size_t kApart = std::size_t{256} * 4096;

}  // namespace

extern "C" {

/// False of both: nobody sends such a message.
__attribute__((visibility("default"), aligned(kApart))) int probe_here() {
    int found = 0;
    const int error = MPI_Iprobe(MPI_ANY_SOURCE, 77, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
    return error != MPI_SUCCESS || found != 0 ? 1 : 0;
}

__attribute__((visibility("default"), aligned(kApart))) int probe_there() {
    int found = 0;
    const int error = MPI_Iprobe(MPI_ANY_SOURCE, 78, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
    return error != MPI_SUCCESS || found != 0 ? 1 : 0;
}
}
