// SPDX-License-Identifier: Apache-2.0
// Preloaded above an MPI: makes one chosen receive or reduction of a chosen rank wrong, to see whether a program
// notices.
//
// FAULT_RANK, FAULT_CALL (counted from 0 over MPI_Recv; apart from those over MPI_Reduce; and over MPI_Allreduce and
// MPI_Iallreduce of doubles together) and FAULT_KIND:
//   flip   one bit of the last byte that arrived is inverted
//   drop   nothing arrives: the buffer keeps what it held
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

static int is_faulty_call(long call) {
    int rank = -1;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char* const faulty_rank = getenv("FAULT_RANK");
    const char* const faulty_call = getenv("FAULT_CALL");
    return faulty_rank != NULL && faulty_call != NULL && atoi(faulty_rank) == rank && atol(faulty_call) == call;
}

static unsigned char* save(const void* buffer, size_t bytes) {
    unsigned char* const copy = malloc(bytes);
    if (copy == NULL) {
        abort();
    }
    memcpy(copy, buffer, bytes);
    return copy;
}

static void spoil(unsigned char* buffer, size_t bytes, unsigned char* before) {
    const char* const kind = getenv("FAULT_KIND");
    if (kind != NULL && strcmp(kind, "drop") == 0) {
        memcpy(buffer, before, bytes);
    } else {
        buffer[bytes - 1] ^= 1;
    }
    free(before);
}

int MPI_Recv(void* buffer, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status* status) {
    static long calls = 0;
    if (!is_faulty_call(calls++)) {
        return PMPI_Recv(buffer, count, type, source, tag, comm, status);
    }
    int type_bytes = 0;
    PMPI_Type_size(type, &type_bytes);
    const size_t bytes = (size_t)count * (size_t)type_bytes;
    unsigned char* const before = save(buffer, bytes);
    const int result = PMPI_Recv(buffer, count, type, source, tag, comm, status);
    spoil(buffer, bytes, before);
    return result;
}

int MPI_Reduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, int root, MPI_Comm comm) {
    static long calls = 0;
    if (!is_faulty_call(calls++)) {
        return PMPI_Reduce(send, receive, count, type, op, root, comm);
    }
    int type_bytes = 0;
    PMPI_Type_size(type, &type_bytes);
    const size_t bytes = (size_t)count * (size_t)type_bytes;
    unsigned char* const before = save(receive, bytes);
    const int result = PMPI_Reduce(send, receive, count, type, op, root, comm);
    spoil(receive, bytes, before);
    return result;
}

// Doubles only: programs sum up their own book-keeping, in whole numbers, as well.
static int is_faulty_sum(MPI_Datatype type) {
    static long calls = 0;
    return type == MPI_DOUBLE && is_faulty_call(calls++);
}

static int faulty_sum(const void* send, void* receive, int count, MPI_Op op, MPI_Comm comm) {
    const size_t bytes = (size_t)count * sizeof(double);
    unsigned char* const before = save(receive, bytes);
    const int result = PMPI_Allreduce(send, receive, count, MPI_DOUBLE, op, comm);
    spoil(receive, bytes, before);
    return result;
}

int MPI_Allreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    if (!is_faulty_sum(type)) {
        return PMPI_Allreduce(send, receive, count, type, op, comm);
    }
    return faulty_sum(send, receive, count, op, comm);
}

int MPI_Iallreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
    const int result = PMPI_Iallreduce(send, receive, count, type, op, comm, request);
    if (result != MPI_SUCCESS || !is_faulty_sum(type)) {
        return result;
    }
    // In place, so what the buffer held is the input: kept before the operation, it would be needed only for "drop".
    PMPI_Wait(request, MPI_STATUS_IGNORE);
    ((unsigned char*)receive)[(size_t)count * sizeof(double) - 1] ^= 1;
    return result;
}
