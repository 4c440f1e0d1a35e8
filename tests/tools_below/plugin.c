// SPDX-License-Identifier: Apache-2.0
/* An MPI program in a shared object, as language bindings are: rank 0 sends seven messages of device memory. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

int run(void) {
    void* runtime = dlopen("libcudart.so.12", RTLD_NOW);
    if (runtime == NULL) {
        return 3;
    }
    int (*allocate)(void**, size_t);
    int (*copy)(void*, const void*, size_t, int);
    *(void**)&allocate = dlsym(runtime, "cudaMalloc");
    *(void**)&copy = dlsym(runtime, "cudaMemcpy");
    if (allocate == NULL || copy == NULL) {
        return 3;
    }
    int rank = 0, wrong = 0, values[1000], received[1000];
    void* device = NULL;
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (allocate(&device, sizeof values) != 0) {
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    for (int message = 0; message < 7; ++message) {
        for (int at = 0; at < 1000; ++at) {
            values[at] = at * 7 + message;
        }
        if (rank == 0) {
            if (copy(device, values, sizeof values, 1) != 0) {
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
            MPI_Send(device, 1000, MPI_INT, 1, message, comm);
        } else if (rank == 1) {
            MPI_Recv(device, 1000, MPI_INT, 0, message, comm, MPI_STATUS_IGNORE);
            if (copy(received, device, sizeof values, 2) != 0) {
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
            wrong |= memcmp(values, received, sizeof values) != 0;
        }
    }
    MPI_Comm_free(&comm);
    MPI_Finalize();
    if (rank == 1) {
        puts(wrong ? "FAIL plugin" : "ok plugin");
    }
    return wrong;
}

#ifdef PLUGIN_MAIN
int main(void) {
    return run();
}
#endif
