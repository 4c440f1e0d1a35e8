// SPDX-License-Identifier: Apache-2.0
// The transfer of point_to_point.cpp for an MPI that knows nothing of GPUs: the program copies through the host.
//
// It runs on any MPI, with Awaken or without. The host buffer is pinned, so the GPU reaches it directly.
#include <vector>

#include "example.h"

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const int count = example::count_option(
        argc, argv, "host_staged: sends a device buffer from rank 0 to rank 1 through host memory.");
    apps::require_ranks("host_staged", 2);
    apps::select_device("host_staged");
    const int rank = apps::rank_of_world();
    const std::size_t bytes = count * sizeof(int);

    std::vector<int> h_check(count, -1);
    if (rank == 0) {
        for (int i = 0; i < count; ++i) {
            h_check[i] = i;
        }
    }
    int* d_buffer = nullptr;
    int* h_buffer = nullptr;
    HIP_CHECK(hipMalloc(&d_buffer, bytes));
    HIP_CHECK(hipHostMalloc(&h_buffer, bytes));
    HIP_CHECK(hipMemcpy(d_buffer, h_check.data(), bytes, hipMemcpyHostToDevice));

    const int tag = 123;
    if (rank == 0) {
        HIP_CHECK(hipMemcpy(h_buffer, d_buffer, bytes, hipMemcpyDeviceToHost));
        MPI_Send(h_buffer, count, MPI_INT, 1, tag, MPI_COMM_WORLD);
    }
    if (rank == 1) {
        MPI_Recv(h_buffer, count, MPI_INT, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        HIP_CHECK(hipMemcpy(d_buffer, h_buffer, bytes, hipMemcpyHostToDevice));
    }

    long long wrong_elements = 0;
    if (rank == 1) {
        HIP_CHECK(hipMemcpy(h_check.data(), d_buffer, bytes, hipMemcpyDeviceToHost));
        for (int i = 0; i < count; ++i) {
            wrong_elements += h_check[i] != i ? 1 : 0;
        }
    }
    HIP_CHECK(hipHostFree(h_buffer));
    HIP_CHECK(hipFree(d_buffer));
    return example::finish("host_staged", std::to_string(count) + " ints from device to device through the host",
                           wrong_elements);
}
