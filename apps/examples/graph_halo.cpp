// SPDX-License-Identifier: Apache-2.0
// A halo in a graph: each step is one launch, its messages included.
//
// A ring of cells lies on the GPUs of all ranks, and in each step every value moves on by one cell. For that a rank
// needs the last cell of the rank before it: that is its halo. MPI's stream API queues the messages between the copies,
// and a graph replays all of it. docs/tutorial/9-graph.md goes through the program.
#include <awaken/mpix_stream.h>

#include <vector>

#include "device.h"

/// A communicator of all ranks whose operations the stream orders. Collective.
MPI_Comm ordered_by(hipStream_t stream) {
    MPI_Info info = MPI_INFO_NULL;
    MPI_Info_create(&info);
    MPI_Info_set(info, "type", apps::runtime_is_amd() ? "hipStream_t" : "cudaStream_t");
    MPIX_Info_set_hex(info, "value", &stream, sizeof stream);
    MPIX_Stream queue = MPIX_STREAM_NULL;
    MPIX_Stream_create(info, &queue);
    MPI_Comm comm = MPI_COMM_NULL;
    MPIX_Stream_comm_create(MPI_COMM_WORLD, queue, &comm);
    MPIX_Stream_free(&queue);  // the communicator keeps it
    MPI_Info_free(&info);
    return comm;
}

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    apps::select_device("graph_halo");
    const int rank = apps::rank_of_world();
    const int size = apps::size_of_world();
    const int left = (rank + size - 1) % size;
    const int right = (rank + 1) % size;
    constexpr int cells = 100'000;
    constexpr int steps = 50;
    constexpr std::size_t bytes = cells * sizeof(int);

    // Cells 1 to `cells`, and before them the halo.
    std::vector<int> u(cells + 1);
    for (int i = 1; i <= cells; ++i) {
        u[i] = rank * cells + i - 1;
    }
    int* d_u = nullptr;
    int* d_next = nullptr;
    HIP_CHECK(hipMalloc(&d_u, bytes + sizeof(int)));
    HIP_CHECK(hipMalloc(&d_next, bytes));
    HIP_CHECK(hipMemcpy(d_u + 1, u.data() + 1, bytes, hipMemcpyHostToDevice));

    hipStream_t stream = nullptr;
    HIP_CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    MPI_Comm comm = ordered_by(stream);

    hipGraph_t graph = nullptr;
    hipGraphExec_t step = nullptr;
    MPI_Request requests[2];
    HIP_CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    MPIX_Irecv_enqueue(d_u, 1, MPI_INT, left, 0, comm, &requests[0]);
    MPIX_Isend_enqueue(d_u + cells, 1, MPI_INT, right, 0, comm, &requests[1]);
    MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE);
    HIP_CHECK(hipMemcpyAsync(d_next, d_u, bytes, hipMemcpyDeviceToDevice, stream));
    HIP_CHECK(hipMemcpyAsync(d_u + 1, d_next, bytes, hipMemcpyDeviceToDevice, stream));
    HIP_CHECK(hipStreamEndCapture(stream, &graph));
    HIP_CHECK(hipGraphInstantiateWithFlags(&step, graph, 0));

    for (int i = 0; i < steps; ++i) {
        HIP_CHECK(hipGraphLaunch(step, stream));
    }
    HIP_CHECK(hipStreamSynchronize(stream));

    HIP_CHECK(hipMemcpy(u.data() + 1, d_u + 1, bytes, hipMemcpyDeviceToHost));
    const int all_cells = size * cells;
    long long wrong = 0;
    for (int i = 1; i <= cells; ++i) {
        wrong += u[i] != (rank * cells + i - 1 - steps + all_cells) % all_cells ? 1 : 0;
    }
    wrong = apps::sum_over_ranks(wrong);
    if (rank == 0) {
        std::printf("%s graph_halo: %d steps of %d cells, %lld wrong\n", wrong == 0 ? "PASS" : "FAIL", steps, all_cells,
                    wrong);
    }

    HIP_CHECK(hipGraphExecDestroy(step));
    HIP_CHECK(hipGraphDestroy(graph));
    MPI_Comm_free(&comm);
    HIP_CHECK(hipStreamDestroy(stream));
    HIP_CHECK(hipFree(d_u));
    HIP_CHECK(hipFree(d_next));
    MPI_Finalize();
    return wrong == 0 ? EXIT_SUCCESS : apps::exit_wrong_data;
}
