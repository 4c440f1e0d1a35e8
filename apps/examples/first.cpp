// SPDX-License-Identifier: Apache-2.0
// The first program of one's own: MPI adds up numbers that lie in GPU memory.
#include <hip/hip_runtime.h>
#include <mpi.h>

#include <cstdio>

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int number = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &number);
    int* d_number = nullptr;
    if (hipMalloc(&d_number, sizeof number) != hipSuccess) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    hipMemcpy(d_number, &number, sizeof number, hipMemcpyHostToDevice);
    MPI_Allreduce(MPI_IN_PLACE, d_number, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    hipMemcpy(&number, d_number, sizeof number, hipMemcpyDeviceToHost);
    std::printf("the ranks' sum is %d\n", number);
    MPI_Finalize();
}
