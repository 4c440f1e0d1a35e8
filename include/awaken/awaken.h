/* SPDX-License-Identifier: Apache-2.0 */
/* Awaken's public C interface.
 *
 * No program needs it: preloading the library is enough. It is there for programs and libraries that want to ask what
 * the layer does. Each function may be called at any time from any thread, before MPI_Init and after MPI_Finalize
 * included.
 */
#ifndef AWAKEN_AWAKEN_H
#define AWAKEN_AWAKEN_H

#ifdef __cplusplus
extern "C" {
#endif

#define AWAKEN_VERSION_MAJOR 0
#define AWAKEN_VERSION_MINOR 1
#define AWAKEN_VERSION_PATCH 0

/* "0.1.0" */
const char* awaken_version(void);

/* 1 once the layer serves the MPI of this process, else 0. */
int awaken_is_active(void);

/* Where a pointer's memory lies, as the layer sees it. */
enum awaken_memory {
    AWAKEN_MEMORY_HOST = 0,   /* ordinary host memory, or no GPU runtime is in use */
    AWAKEN_MEMORY_PINNED = 1, /* host memory known to the GPU runtime */
    AWAKEN_MEMORY_DEVICE = 2,
    AWAKEN_MEMORY_MANAGED = 3
};
enum awaken_memory awaken_memory_of(const void* pointer);

/* How the data of a call travelled. */
enum awaken_path {
    AWAKEN_PATH_NATIVE = 0,       /* all buffers were host memory: the MPI did it alone */
    AWAKEN_PATH_DIRECT = 1,       /* read from the other process's own memory */
    AWAKEN_PATH_CCL = 2,          /* by NCCL or RCCL */
    AWAKEN_PATH_COPIED = 3,       /* through a copy that waited for its receiver, on the GPU or in shared memory */
    AWAKEN_PATH_RING = 4,         /* through chunks of host memory that both processes share */
    AWAKEN_PATH_PIPELINED = 5,    /* through the MPI in chunks, copied on both sides meanwhile */
    AWAKEN_PATH_STAGED = 6,       /* through pinned host memory */
    AWAKEN_PATH_STAGED_LARGE = 7, /* through ordinary host memory, the pinned pool being full */
    AWAKEN_PATH_REFUSED = 8       /* ended with an error of the layer's */
};
/* Of the last MPI call that this thread made through the layer. */
enum awaken_path awaken_last_path(void);

/* Totals of this process since its start, for one path. */
struct awaken_statistics {
    unsigned long long calls;
    unsigned long long bytes; /* of the buffers that travelled this way */
};
/* Fills `statistics` and returns 0, or returns -1 for a path that does not exist. AWAKEN_PATH_NATIVE is counted only
 * when AWAKEN_REPORT or AWAKEN_TRACE is set: a call that needs no service is not looked at otherwise. */
int awaken_get_statistics(enum awaken_path path, struct awaken_statistics* statistics);

/* A named stretch of the calling thread's time in the trace (AWAKEN_TRACE), from push to pop. Ranges lie in one
 * another; a pop without a push does nothing, and a range that is not popped ends with the trace. `name` is copied;
 * null counts as
 * "". Both cost next to nothing where nothing is traced. */
void awaken_range_push(const char* name);
void awaken_range_pop(void);

#ifdef __cplusplus
}
#endif

#endif
