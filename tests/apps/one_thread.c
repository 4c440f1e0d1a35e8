// SPDX-License-Identifier: Apache-2.0
// Preloaded above an MPI: makes it one that lets a single thread call it.
#include <mpi.h>

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
    (void)required;
    return PMPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, provided);
}
