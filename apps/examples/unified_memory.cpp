// SPDX-License-Identifier: Apache-2.0
// Unified (managed) memory: the same pointer serves the CPU, the GPU and MPI, without a copy in the program.
//
// Rank 0 writes its buffer on the CPU and sends it; rank 1 checks it on the CPU, negates it there and sends it back,
// into plain device memory of rank 0. One exchange so covers managed to managed and managed to device.
#include <vector>

#include "example.h"

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const int count = example::count_option(
        argc, argv, "unified_memory: sends managed memory from rank 0 to rank 1 and back into device memory.");
    apps::require_ranks("unified_memory", 2);
    apps::select_device("unified_memory");
    const int rank = apps::rank_of_world();
    const std::size_t bytes = count * sizeof(int);

    int* sendbuf = nullptr;
    int* recvbuf = nullptr;
    int* d_reply = nullptr;
    HIP_CHECK(hipMallocManaged(&sendbuf, bytes));
    HIP_CHECK(hipMallocManaged(&recvbuf, bytes));
    HIP_CHECK(hipMalloc(&d_reply, bytes));
    for (int i = 0; i < count; ++i) {
        sendbuf[i] = i + 1;
        recvbuf[i] = 0;
    }
    HIP_CHECK(hipMemset(d_reply, 0, bytes));

    const int tag = 123;
    long long wrong_elements = 0;
    if (rank == 0) {
        MPI_Send(sendbuf, count, MPI_INT, 1, tag, MPI_COMM_WORLD);
        MPI_Recv(d_reply, count, MPI_INT, 1, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);

        std::vector<int> h_reply(count);
        HIP_CHECK(hipMemcpy(h_reply.data(), d_reply, bytes, hipMemcpyDeviceToHost));
        for (int i = 0; i < count; ++i) {
            wrong_elements += h_reply[i] != -(i + 1) ? 1 : 0;
        }
    }
    if (rank == 1) {
        MPI_Recv(recvbuf, count, MPI_INT, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < count; ++i) {
            wrong_elements += recvbuf[i] != i + 1 ? 1 : 0;
            recvbuf[i] = -recvbuf[i];
        }
        MPI_Send(recvbuf, count, MPI_INT, 0, tag, MPI_COMM_WORLD);
    }

    HIP_CHECK(hipFree(sendbuf));
    HIP_CHECK(hipFree(recvbuf));
    HIP_CHECK(hipFree(d_reply));
    return example::finish("unified_memory",
                           std::to_string(count) + " ints from managed to managed memory, and back to device memory",
                           wrong_elements);
}
