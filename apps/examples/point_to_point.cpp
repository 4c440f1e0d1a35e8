// SPDX-License-Identifier: Apache-2.0
// A device buffer is sent from rank 0 and received into a device buffer of rank 1: the smallest GPU-aware program.
//
// The buffers hold whole numbers, the element's own index, so that the receiver knows each one. Ranks from 2 on only
// take part in the check.
#include <vector>

#include "example.h"

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const int count = example::count_option(argc, argv, "point_to_point: sends a device buffer from rank 0 to rank 1.");
    apps::require_ranks("point_to_point", 2);
    apps::select_device("point_to_point");
    const int rank = apps::rank_of_world();
    const std::size_t bytes = count * sizeof(int);

    // Rank 0 holds the data; the others start with a value that cannot be right.
    std::vector<int> h_buffer(count, -1);
    if (rank == 0) {
        for (int i = 0; i < count; ++i) {
            h_buffer[i] = i;
        }
    }
    int* d_buffer = nullptr;
    HIP_CHECK(hipMalloc(&d_buffer, bytes));
    HIP_CHECK(hipMemcpy(d_buffer, h_buffer.data(), bytes, hipMemcpyHostToDevice));

    const int tag = 123;
    if (rank == 0) {
        MPI_Send(d_buffer, count, MPI_INT, 1, tag, MPI_COMM_WORLD);
    }
    if (rank == 1) {
        MPI_Recv(d_buffer, count, MPI_INT, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }

    long long wrong_elements = 0;
    if (rank == 1) {
        HIP_CHECK(hipMemcpy(h_buffer.data(), d_buffer, bytes, hipMemcpyDeviceToHost));
        for (int i = 0; i < count; ++i) {
            wrong_elements += h_buffer[i] != i ? 1 : 0;
        }
    }
    HIP_CHECK(hipFree(d_buffer));
    return example::finish("point_to_point", std::to_string(count) + " ints from device to device", wrong_elements);
}
