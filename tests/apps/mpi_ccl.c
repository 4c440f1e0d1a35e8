// SPDX-License-Identifier: Apache-2.0
// Stands in for NCCL or RCCL where "device" memory is host memory (host_memory_gpu.c): the part of their API that the
// programs under apps/ use, carried out by the MPI of the process, at once.
//
// CCL_FAULT spoils it, on rank CCL_FAULT_RANK (1):
//   init    ncclCommInitRank fails      call    ncclAllReduce fails      async   the operation fails after its start
//   flip    call number CCL_FAULT_CALL leaves one bit of the last element wrong
// WITHOUT_DESTROY leaves ncclCommDestroy out.
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { success = 0, internal_error = 3, invalid_argument = 4, remote_error = 6, float64 = 8, sum = 0 };

typedef struct {
    char bytes[128];
} UniqueId;

static long number(const char* variable, long otherwise) {
    const char* const value = getenv(variable);
    return value != NULL ? atol(value) : otherwise;
}

static int fails(const char* kind) {
    int rank = -1;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char* const fault = getenv("CCL_FAULT");
    return fault != NULL && strcmp(fault, kind) == 0 && rank == number("CCL_FAULT_RANK", 1);
}

int ncclGetVersion(int* version) {
    *version = (int)number("CCL_VERSION", 22703);
    return success;
}

int ncclGetUniqueId(UniqueId* id) {
    memset(id, 0x5A, sizeof *id);
    return success;
}

int ncclCommInitRank(void** communicator, int ranks, UniqueId id, int rank) {
    int own_rank = -1;
    int own_ranks = -1;
    PMPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &own_ranks);
    if (fails("init") || ranks != own_ranks || rank != own_rank || id.bytes[127] != 0x5A) {
        return invalid_argument;
    }
    *communicator = malloc(1);
    return success;
}

int ncclCommGetAsyncError(void* communicator, int* error) {
    *error = communicator == NULL || fails("async") ? remote_error : success;
    return success;
}

#ifndef WITHOUT_DESTROY
int ncclCommDestroy(void* communicator) {
    free(communicator);
    return success;
}
#endif

int ncclAllReduce(const void* send, void* receive, size_t count, int type, int op, void* communicator, void* stream) {
    static long calls = 0;
    if (fails("call") || communicator == NULL || stream == NULL || type != float64 || op != sum) {
        return internal_error;
    }
    if (send != receive) {
        return invalid_argument;
    }
    PMPI_Allreduce(MPI_IN_PLACE, receive, (int)count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    if (fails("flip") && calls == number("CCL_FAULT_CALL", 0)) {
        ((unsigned char*)receive)[count * sizeof(double) - 1] ^= 1;
    }
    ++calls;
    return success;
}

// Sends and receives of a group are under way together, and over when it ends.
enum { most_requests = 64 };
static MPI_Request requests[most_requests];
static int under_way;

int ncclGroupStart(void) {
    under_way = 0;
    return success;
}

int ncclSend(const void* buffer, size_t count, int type, int peer, void* communicator, void* stream) {
    if (communicator == NULL || stream == NULL || type != float64 || under_way == most_requests) {
        return internal_error;
    }
    return PMPI_Isend(buffer, (int)count, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD, &requests[under_way++]);
}

int ncclRecv(void* buffer, size_t count, int type, int peer, void* communicator, void* stream) {
    if (communicator == NULL || stream == NULL || type != float64 || under_way == most_requests) {
        return internal_error;
    }
    return PMPI_Irecv(buffer, (int)count, MPI_DOUBLE, peer, 0, MPI_COMM_WORLD, &requests[under_way++]);
}

int ncclGroupEnd(void) {
    return PMPI_Waitall(under_way, requests, MPI_STATUSES_IGNORE);
}

const char* ncclGetErrorString(int result) {
    return result == invalid_argument ? "invalid argument" : result == remote_error ? "remote error" : "internal error";
}
