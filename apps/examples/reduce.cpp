// SPDX-License-Identifier: Apache-2.0
// Device buffers are reduced over all ranks, in two reductions that show how much programs expect of MPI and the GPU's
// order.
//
// hipMemset on device memory may return before it is done, MPI takes no stream, and programs call one straight after
// the other all the same. So a GPU-aware MPI must let the GPU finish first:
//   sum       the receive buffer is cleared just before; a late hipMemset would clear the result;
//   minimum   the send buffer is set just before; a late hipMemset would let what was there before be reduced.
#include <vector>

#include "example.h"

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const int count = example::count_option(argc, argv, "reduce: sum and minimum of device buffers over all ranks.");
    const int device = apps::select_device("reduce");
    const int rank = apps::rank_of_world();
    const int size = apps::size_of_world();
    const int root = 0;
    const std::size_t bytes = count * sizeof(int);

    int current_device = -1;
    HIP_CHECK(hipGetDevice(&current_device));
    long long wrong_elements = current_device != device ? 1 : 0;

    // Values below 1000, so that the sum does not overflow with as many as two million ranks.
    std::vector<int> h_buffer(count);
    for (int i = 0; i < count; ++i) {
        h_buffer[i] = 1 + i % 999;
    }
    int* d_sendbuf = nullptr;
    int* d_recvbuf = nullptr;
    HIP_CHECK(hipMalloc(&d_sendbuf, bytes));
    HIP_CHECK(hipMalloc(&d_recvbuf, bytes));
    HIP_CHECK(hipMemcpy(d_sendbuf, h_buffer.data(), bytes, hipMemcpyHostToDevice));

    HIP_CHECK(hipMemset(d_recvbuf, 0, bytes));
    MPI_Reduce(d_sendbuf, d_recvbuf, count, MPI_INT, MPI_SUM, root, MPI_COMM_WORLD);
    if (rank == root) {
        HIP_CHECK(hipMemcpy(h_buffer.data(), d_recvbuf, bytes, hipMemcpyDeviceToHost));
        for (int i = 0; i < count; ++i) {
            wrong_elements += h_buffer[i] != size * (1 + i % 999) ? 1 : 0;
        }
    }

    // 0x01 in each byte is greater than every value of the sum's input: one stale element on any rank is the minimum.
    HIP_CHECK(hipMemset(d_sendbuf, 0x01, bytes));
    MPI_Reduce(d_sendbuf, d_recvbuf, count, MPI_INT, MPI_MIN, root, MPI_COMM_WORLD);
    if (rank == root) {
        HIP_CHECK(hipMemcpy(h_buffer.data(), d_recvbuf, bytes, hipMemcpyDeviceToHost));
        for (int i = 0; i < count; ++i) {
            wrong_elements += h_buffer[i] != 0x01010101 ? 1 : 0;
        }
    }

    HIP_CHECK(hipFree(d_sendbuf));
    HIP_CHECK(hipFree(d_recvbuf));
    return example::finish(
        "reduce",
        "sum and minimum of " + std::to_string(count) + " ints on the device, " + std::to_string(size) + " ranks",
        wrong_elements);
}
