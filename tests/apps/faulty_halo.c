// SPDX-License-Identifier: Apache-2.0
// Preloaded above an MPI: makes one chosen message of a chosen rank wrong, to see whether a program notices.
//
// FAULT_RANK, and FAULT_CALL counted from 0 over that rank's MPI_Isend: what is sent is a copy whose last byte has one
// bit inverted. Host memory only.
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static int is_faulty_call(void) {
    static long calls = 0;
    int rank = -1;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char* const faulty_rank = getenv("FAULT_RANK");
    const char* const faulty_call = getenv("FAULT_CALL");
    const long call = calls++;
    return faulty_rank != NULL && faulty_call != NULL && atoi(faulty_rank) == rank && atol(faulty_call) == call;
}

int MPI_Isend(const void* buffer, int count, MPI_Datatype type, int target, int tag, MPI_Comm comm,
              MPI_Request* request) {
    if (!is_faulty_call()) {
        return PMPI_Isend(buffer, count, type, target, tag, comm, request);
    }
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;
    PMPI_Type_get_extent(type, &lower, &extent);
    const size_t bytes = (size_t)extent * (size_t)count;
    // Never freed: the message may be under way until the end.
    unsigned char* const copy = malloc(bytes);
    if (copy == NULL) {
        abort();
    }
    memcpy(copy, buffer, bytes);
    copy[bytes - 1] ^= 1;
    return PMPI_Isend(copy, count, type, target, tag, comm, request);
}
