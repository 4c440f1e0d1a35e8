// SPDX-License-Identifier: Apache-2.0
// Ping-pong between two ranks, device memory to device memory, staged by the program.
//
// The data lives on the GPU, and MPI cannot reach it: each transfer is copied to the host, sent from there, received
// there, and copied to the GPU. This runs on any MPI.
//
// Compare: diff ping_pong_cpu.cpp ping_pong_staged.cpp; diff ping_pong_staged.cpp ping_pong_gpu_aware.cpp
#include <vector>

#include "device_values.h"

using ping_pong::ping_tag;
using ping_pong::pong_tag;
using ping_pong::Values;

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const auto options = ping_pong::start(argc, argv, "ping_pong_staged",
                                          "bandwidth between two GPUs, copied through host memory by the program.");
    const int rank = apps::rank_of_world();
    const int peer = 1 - rank;
    apps::select_device("ping_pong_staged", rank);
    bool right = true;

    for (long N = 1; right && 8 * N <= options.max_bytes; N *= 2) {
        std::vector<double> A(static_cast<std::size_t>(N));
        double* d_A = nullptr;
        HIP_CHECK(hipMalloc(&d_A, N * sizeof(double)));

        const int count = static_cast<int>(N);
        const auto send = [&](int tag) {
            HIP_CHECK(hipMemcpy(A.data(), d_A, N * sizeof(double), hipMemcpyDeviceToHost));
            MPI_Send(A.data(), count, MPI_DOUBLE, peer, tag, MPI_COMM_WORLD);
        };
        const auto receive = [&](int tag) {
            MPI_Recv(A.data(), count, MPI_DOUBLE, peer, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            HIP_CHECK(hipMemcpy(d_A, A.data(), N * sizeof(double), hipMemcpyHostToDevice));
        };
        const auto round_trip = [&] {
            if (rank == 0) {
                send(ping_tag);
                receive(pong_tag);
            } else {
                receive(ping_tag);
                send(pong_tag);
            }
        };
        const auto fill = [&](Values values) { ping_pong::fill_device(d_A, N, values); };
        const auto wrong = [&](Values values) { return ping_pong::wrong_device(d_A, N, values); };

        // Rank 1 starts with other values, so that what never arrives is noticed.
        fill(rank == 0 ? Values::bounce : Values::stale);
        for (long long i = 0; i < options.warm_up; ++i) {
            round_trip();
        }

        const double start_time = MPI_Wtime();
        for (long long i = 0; i < options.iterations; ++i) {
            round_trip();
        }
        const double elapsed_time = MPI_Wtime() - start_time;
        long wrong_elements = wrong(Values::bounce);

        // Once more, not timed, with new values in each direction: by now both ranks hold what the loop above sends.
        if (rank == 0) {
            fill(Values::ping);
            send(ping_tag);
            receive(pong_tag);
            wrong_elements += wrong(Values::pong);
        } else {
            receive(ping_tag);
            wrong_elements += wrong(Values::ping);
            fill(Values::pong);
            send(pong_tag);
        }

        const double transfers = 2.0 * static_cast<double>(options.iterations);
        right = ping_pong::report(N, elapsed_time / transfers, wrong_elements);
        HIP_CHECK(hipFree(d_A));
    }

    MPI_Finalize();
    return right ? EXIT_SUCCESS : apps::exit_wrong_data;
}
