// SPDX-License-Identifier: Apache-2.0
// What a call costs on host memory: medians of an 8-byte ping-pong and an 8-byte Allreduce on two ranks.
//
//     host_probe [--batches=N] [--calls=N] [--load-gpu]
//
// Prints one line, `pingpong_ns X allreduce_ns Y`: nanoseconds per one-way message and per Allreduce, the medians of
// the batches' means. --load-gpu loads the GPU runtime first and makes a device current, as a GPU program does.
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "gpu_memory.h"

namespace {

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

double median_ns(int batches, int calls, const std::function<void()>& call) {
    std::vector<double> means;
    for (int batch = 0; batch < batches; ++batch) {
        MPI_Barrier(MPI_COMM_WORLD);
        const auto start = std::chrono::steady_clock::now();
        for (int at = 0; at < calls; ++at) {
            call();
        }
        const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
        means.push_back(elapsed.count() / calls);
    }
    return median(means);
}

}  // namespace

int main(int argc, char** argv) {
    int batches = 200, calls = 500;
    bool load_gpu = false;
    for (int at = 1; at < argc; ++at) {
        if (std::sscanf(argv[at], "--batches=%d", &batches) == 1 || std::sscanf(argv[at], "--calls=%d", &calls) == 1) {
            continue;
        }
        if (std::strcmp(argv[at], "--load-gpu") == 0) {
            load_gpu = true;
            continue;
        }
        std::fprintf(stderr, "unknown argument %s\n", argv[at]);
        return 2;
    }
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 2 || batches < 1 || calls < 1) {
        if (rank == 0) {
            std::fprintf(stderr, "host_probe needs two ranks, and at least one batch and one call\n");
        }
        MPI_Finalize();
        return 2;
    }
    const std::unique_ptr<ranks::Gpu> gpu = ranks::Gpu::open(load_gpu ? "auto" : "none");
    if (load_gpu) {
        if (!gpu->present()) {
            std::fprintf(stderr, "host_probe: --load-gpu found no GPU runtime\n");
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        gpu->use_device(rank % gpu->device_count());
    }
    double value = rank, sum = 0;
    const int peer = 1 - rank;
    const double round_trip = median_ns(batches, calls, [&] {
        if (rank == 0) {
            MPI_Send(&value, 1, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD);
            MPI_Recv(&value, 1, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(&value, 1, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(&value, 1, MPI_DOUBLE, peer, 1, MPI_COMM_WORLD);
        }
    });
    const double reduction =
        median_ns(batches, calls, [&] { MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); });
    if (rank == 0) {
        std::printf("pingpong_ns %.1f allreduce_ns %.1f\n", round_trip / 2, reduction);
    }
    MPI_Finalize();
    return 0;
}
