// SPDX-License-Identifier: Apache-2.0
// Calls, operations and ranges for tests/test_trace.py to find in the trace of this program.
//
//     traced [--gpu=auto|none] [MODE]
//
// MODE: calls (default), many (a message too many for a small trace), exit (ends without MPI_Finalize; one rank), abort
// (rank 1 does), threads (ranges and calls on several threads at a time). Prints `ok` on rank 0.
#include <dlfcn.h>
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gpu_memory.h"

namespace {

constexpr int kCount = 4096;  // doubles
constexpr int kTag = 7;

void (*range_push)(const char*) = nullptr;
void (*range_pop)() = nullptr;

/// What a program does that was never told of Awaken: nothing without it.
class Range {
  public:
    explicit Range(const char* name) {
        if (range_push != nullptr) {
            range_push(name);
        }
    }
    ~Range() {
        if (range_pop != nullptr) {
            range_pop();
        }
    }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
};

void require(const int error) {
    if (error != MPI_SUCCESS) {
        std::fprintf(stderr, "FAIL: an MPI call failed\n");
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
}

void compute(const std::chrono::microseconds how_long) {
    const auto end = std::chrono::steady_clock::now() + how_long;
    while (std::chrono::steady_clock::now() < end) {
    }
}

struct Rank {
    int rank = 0, size = 1, next = 0, previous = 0;
    double* sent = nullptr;
    double* received = nullptr;
};

void blocking(const Rank& me) {
    const Range range("blocking");
    if (me.rank % 2 == 0) {
        require(MPI_Send(me.sent, kCount, MPI_DOUBLE, me.next, kTag, MPI_COMM_WORLD));
        require(MPI_Recv(me.received, kCount, MPI_DOUBLE, MPI_ANY_SOURCE, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    } else {
        require(MPI_Recv(me.received, kCount, MPI_DOUBLE, me.previous, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        require(MPI_Send(me.sent, kCount, MPI_DOUBLE, me.next, kTag, MPI_COMM_WORLD));
    }
    require(MPI_Sendrecv(me.sent, 1, MPI_DOUBLE, me.next, kTag, me.received, 1, MPI_DOUBLE, me.previous, kTag,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    require(MPI_Send(me.sent, 1, MPI_DOUBLE, MPI_PROC_NULL, kTag, MPI_COMM_WORLD));
}

void nonblocking(const Rank& me) {
    const Range range("nonblocking");
    MPI_Request requests[2];
    require(MPI_Irecv(me.received, kCount, MPI_DOUBLE, me.previous, kTag, MPI_COMM_WORLD, &requests[0]));
    require(MPI_Isend(me.sent, kCount, MPI_DOUBLE, me.next, kTag, MPI_COMM_WORLD, &requests[1]));
    {
        const Range computing("compute");
        compute(std::chrono::milliseconds(2));
    }
    require(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));

    double one = 1, sum = 0;
    MPI_Request reduction = MPI_REQUEST_NULL;
    require(MPI_Iallreduce(&one, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &reduction));
    for (int done = 0; done == 0;) {
        require(MPI_Test(&reduction, &done, MPI_STATUS_IGNORE));
    }
    if (sum != me.size) {
        require(MPI_ERR_OTHER);
    }

    // A persistent operation is one operation for each start.
    MPI_Request persistent[2];
    require(MPI_Recv_init(me.received, 8, MPI_DOUBLE, me.previous, kTag, MPI_COMM_WORLD, &persistent[0]));
    require(MPI_Send_init(me.sent, 8, MPI_DOUBLE, me.next, kTag, MPI_COMM_WORLD, &persistent[1]));
    for (int turn = 0; turn < 3; ++turn) {
        require(MPI_Startall(2, persistent));
        for (int left = 2; left > 0; --left) {
            int index = MPI_UNDEFINED;
            require(MPI_Waitany(2, persistent, &index, MPI_STATUS_IGNORE));
        }
    }
    require(MPI_Request_free(&persistent[0]));
    require(MPI_Request_free(&persistent[1]));
}

void collective(const Rank& me) {
    const Range range("collective");
    for (int turn = 0; turn < 3; ++turn) {
        require(MPI_Allreduce(me.sent, me.received, kCount, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD));
    }
    require(MPI_Barrier(MPI_COMM_WORLD));
    // What the layer has no part in.
    MPI_Comm copy = MPI_COMM_NULL;
    require(MPI_Comm_dup(MPI_COMM_WORLD, &copy));
    require(MPI_Bcast(me.received, 16, MPI_DOUBLE, 0, copy));
    require(MPI_Comm_free(&copy));
}

void on_threads(const Rank& me) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            double out = thread, in = -1;
            for (int turn = 0; turn < 25; ++turn) {
                const Range range("on a thread");
                require(MPI_Sendrecv(&out, 1, MPI_DOUBLE, me.next, 100 + thread, &in, 1, MPI_DOUBLE, me.previous,
                                     100 + thread, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
                if (in != thread) {
                    require(MPI_ERR_OTHER);
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

}  // namespace

int main(int argc, char** argv) {
    range_push = reinterpret_cast<void (*)(const char*)>(dlsym(RTLD_DEFAULT, "awaken_range_push"));
    range_pop = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "awaken_range_pop"));
    std::string mode = "calls", runtime = "auto";
    for (int at = 1; at < argc; ++at) {
        if (std::strncmp(argv[at], "--gpu=", 6) == 0) {
            runtime = argv[at] + 6;
        } else {
            mode = argv[at];
        }
    }
    if (range_pop != nullptr) {
        range_pop();  // nothing was pushed
    }
    const Range whole("before \"MPI\" \xff");
    int level = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, mode == "threads" ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    Rank me;
    MPI_Comm_rank(MPI_COMM_WORLD, &me.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &me.size);
    me.next = (me.rank + 1) % me.size;
    me.previous = (me.rank + me.size - 1) % me.size;
    if (mode == "threads" && level < MPI_THREAD_MULTIPLE) {
        if (me.rank == 0) {
            std::printf("ok: no MPI_THREAD_MULTIPLE here\n");
        }
        MPI_Finalize();
        return 0;
    }
    const std::unique_ptr<ranks::Gpu> gpu = ranks::Gpu::open(runtime);
    if (gpu->present()) {
        gpu->use_device(me.rank % gpu->device_count());
    }
    const std::vector<double> values(kCount, 1.0);
    me.sent = static_cast<double*>(gpu->allocate(ranks::Kind::device, kCount * sizeof(double)));
    me.received = static_cast<double*>(gpu->allocate(ranks::Kind::device, kCount * sizeof(double)));
    gpu->write(me.sent, values.data(), kCount * sizeof(double));

    if (mode == "threads") {
        on_threads(me);
    } else if (mode == "many") {
        for (int i = 0; i < 2000; ++i) {
            require(MPI_Barrier(MPI_COMM_WORLD));
        }
    } else if (mode == "exit") {
        collective(me);  // one rank can do it
    } else {
        blocking(me);
        nonblocking(me);
        collective(me);
    }
    if (range_push != nullptr) {
        range_push("left open");
    }
    if (mode == "exit") {
        std::exit(0);
    }
    if (mode == "abort") {
        if (me.rank == 1) {
            MPI_Abort(MPI_COMM_WORLD, 4);
        }
        // The others wait for the end that rank 1 makes.
        MPI_Recv(me.received, 1, MPI_DOUBLE, me.rank, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    gpu->free(ranks::Kind::device, me.sent);
    gpu->free(ranks::Kind::device, me.received);
    if (me.rank == 0) {
        std::printf("ok\n");
    }
    MPI_Finalize();
    return 0;
}
