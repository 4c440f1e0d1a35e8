// SPDX-License-Identifier: Apache-2.0
// A buffer that kernels have written goes round a ring of ranks: what a program with kernels of its own must wait for.
//
// MPI takes no stream. A GPU-aware one sees to it that work in the default stream is over before it reads a buffer, but
// knows nothing of a program's non-blocking streams: the program waits for those itself. Between streams an event keeps
// the order, and the CPU does not wait.
//
// The kernels are in own_kernel.hip and are compiled when the program runs, see common/kernels.h.
#include "kernels.h"

#include <vector>

#include "example.h"

extern const char* const own_kernel_text;

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const int count = example::count_option(argc, argv, "own_kernel: sends what kernels have written round a ring.");
    apps::select_device("own_kernel");
    const int rank = apps::rank_of_world();
    const int size = apps::size_of_world();
    const std::size_t bytes = count * sizeof(int);

    apps::Kernels kernels("own_kernel", own_kernel_text);
    int* d_counted = nullptr;
    int* d_doubled = nullptr;
    int* d_received = nullptr;
    for (int** d_buffer : {&d_counted, &d_doubled, &d_received}) {
        HIP_CHECK(hipMalloc(d_buffer, bytes));
    }
    hipStream_t counting = nullptr;
    hipStream_t doubling = nullptr;
    for (hipStream_t* stream : {&counting, &doubling}) {
        HIP_CHECK(hipStreamCreateWithFlags(stream, hipStreamNonBlocking));
    }
    hipEvent_t counted = nullptr;
    HIP_CHECK(hipEventCreateWithFlags(&counted, hipEventDisableTiming));

    const dim3 block(256);
    const dim3 grid((count + block.x - 1) / block.x);
    kernels.launch("own_kernel_count", grid, block, counting, d_counted, count, rank);
    HIP_CHECK(hipEventRecord(counted, counting));
    HIP_CHECK(hipStreamWaitEvent(doubling, counted, 0));
    kernels.launch("own_kernel_double", grid, block, doubling, d_doubled, static_cast<const int*>(d_counted), count);
    HIP_CHECK(hipStreamSynchronize(doubling));

    const int right = (rank + 1) % size;
    const int left = (rank + size - 1) % size;
    const int tag = 123;
    MPI_Sendrecv(d_doubled, count, MPI_INT, right, tag, d_received, count, MPI_INT, left, tag, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);

    std::vector<int> h_buffer(count);
    HIP_CHECK(hipMemcpy(h_buffer.data(), d_received, bytes, hipMemcpyDeviceToHost));
    long long wrong_elements = 0;
    for (int i = 0; i < count; ++i) {
        wrong_elements += h_buffer[i] != 2 * (left + i) ? 1 : 0;
    }

    HIP_CHECK(hipEventDestroy(counted));
    HIP_CHECK(hipStreamDestroy(counting));
    HIP_CHECK(hipStreamDestroy(doubling));
    for (int* d_buffer : {d_counted, d_doubled, d_received}) {
        HIP_CHECK(hipFree(d_buffer));
    }
    return example::finish("own_kernel",
                           std::to_string(count) + " ints from kernels, round " + std::to_string(size) + " ranks",
                           wrong_elements);
}
