// SPDX-License-Identifier: Apache-2.0
/* An MPI with a fault, preloaded: what the benchmarks must notice, and survive. TEST_FAULT names the fault. Only calls
 * of LARGE elements and more have it, so that what ranks tell each other is left alone. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* SOUND_WINDOWS: receives of windows of 1 to 64 messages, each received four times (cold, checked, timed, checked), and
 * less than two windows of 128. */
enum { LARGE = 1000, SOUND_CALLS = 30, SOUND_WINDOWS = 4 * 127 + 64 };

static int has(const char* fault, MPI_Count count) {
    const char* chosen = getenv("TEST_FAULT");
    return chosen != NULL && strcmp(chosen, fault) == 0 && count >= LARGE;
}

static int is_rank_1(MPI_Comm communicator) {
    int rank = 0;
    PMPI_Comm_rank(communicator, &rank);
    return rank == 1;
}

/* The last byte, behind all that was looked at before. */
static void damage(void* data, int count, MPI_Datatype type) {
    int size = 0;
    PMPI_Type_size(type, &size);
    ((unsigned char*)data)[(size_t)count * (size_t)size - 1] ^= 0xff;
}

/* Busily, as a slow MPI is. */
static void take_long(void) {
    const double end = PMPI_Wtime() + 2e-3;
    while (PMPI_Wtime() < end) {
    }
}

static int receives;

int MPI_Recv(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm communicator, MPI_Status* status) {
    const int code = PMPI_Recv(data, count, type, source, tag, communicator, status);
    receives += count >= LARGE;
    if (has("receive", count)) {
        damage(data, count, type);
    }
    if (has("first receive", count) && receives == 1) {
        damage(data, count, type);
    }
    if (has("later receives", count) && receives > SOUND_CALLS) {
        damage(data, count, type);
    }
    if (has("error", count) && is_rank_1(communicator)) {
        return MPI_ERR_OTHER;
    }
    if (has("later error", count) && receives > SOUND_CALLS && is_rank_1(communicator)) {
        return MPI_ERR_OTHER;
    }
    if (has("slow receive", count)) {
        take_long();
    }
    return code;
}

int MPI_Finalize(void) {
    if (has("none, but count", LARGE) && is_rank_1(MPI_COMM_WORLD)) {
        printf("receives: %d\n", receives);
    }
    return PMPI_Finalize();
}

/* Every other call takes long, at a rank that the others do not wait for. */
int MPI_Allreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op operation,
                  MPI_Comm communicator) {
    static int calls;
    const int code = PMPI_Allreduce(send, receive, count, type, operation, communicator);
    calls += count >= LARGE;
    if (has("uneven reduction", count) && is_rank_1(communicator) && calls % 2 == 1) {
        take_long();
    }
    if (has("later reduction error", count) && calls > SOUND_CALLS) {
        return MPI_ERR_OTHER;
    }
    return code;
}

/* What a partitioned receive delivers goes elsewhere. */
int MPI_Precv_init(void* data, int partitions, MPI_Count count, MPI_Datatype type, int source, int tag,
                   MPI_Comm communicator, MPI_Info info, MPI_Request* request) {
    static char elsewhere[1 << 16];
    const int astray = has("partitioned receive", (int)count * partitions);
    return PMPI_Precv_init(astray ? elsewhere : data, partitions, count, type, source, tag, communicator, info,
                           request);
}

/* What a persistent receive delivers goes elsewhere. */
int MPI_Recv_init(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm communicator,
                  MPI_Request* request) {
    static char elsewhere[1 << 16];
    return PMPI_Recv_init(has("persistent receive", count) ? elsewhere : data, count, type, source, tag, communicator,
                          request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm communicator,
              MPI_Request* request) {
    static char elsewhere[1 << 16];
    static int calls;
    calls += count >= LARGE;
    if (has("last window error", count) && calls > SOUND_WINDOWS) {
        return MPI_ERR_OTHER;
    }
    const int astray = has("last window", count) && calls > SOUND_WINDOWS;
    return PMPI_Irecv(astray ? elsewhere : data, count, type, source, tag, communicator, request);
}

/* A session that grants less than it is asked for. */
int MPI_Session_get_info(MPI_Session session, MPI_Info* info) {
    const int code = PMPI_Session_get_info(session, info);
    if (has("session without threads", LARGE)) {
        PMPI_Info_set(*info, "thread_level", "MPI_THREAD_SERIALIZED");
    }
    return code;
}

int MPI_Iallreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op operation,
                   MPI_Comm communicator, MPI_Request* request) {
    if (!has("nonblocking reduction", count)) {
        return PMPI_Iallreduce(send, receive, count, type, operation, communicator, request);
    }
    const int code = PMPI_Allreduce(send, receive, count, type, operation, communicator);
    damage(receive, count, type);
    *request = MPI_REQUEST_NULL;
    return code;
}
