// SPDX-License-Identifier: Apache-2.0
// Programs that end, or lose a rank or a GPU, while messages and collectives are in the default stream
// (AWAKEN_DEFAULT_STREAM=order).
//
//     order_ends MODE [--gpu=KIND]
//
//     finalize    MPI_Finalize follows at once: all data arrive
//     reset       the device is reset, and then MPI finalised
//     abort       rank 0 calls MPI_Abort
//     message     rank 1 dies while its default stream holds up a message to rank 0
//     collective  the same with a collective
//     error       goes on until a kernel of some rank has failed (AWAKEN_TEST_FAULTS=kernel-error=N)
//
// Rank 0 prints `ok MODE` when it has come to its end. In the modes in which it may be ended before, the file
// SURVIVOR_FILE hears of that, too.
#include <csignal>
#include <thread>

#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 7, kRounds = 30;
constexpr int kCount = 1000;
constexpr std::size_t kBytes = kCount * sizeof(int);

[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "FAIL order_ends: %s\n", what.c_str());
    MPI_Abort(MPI_COMM_WORLD, 3);
    std::abort();
}

#define MPI(call)                               \
    do {                                        \
        if ((call) != MPI_SUCCESS) fail(#call); \
    } while (false)

struct Rank {
    std::unique_ptr<Gpu> gpu;
    int rank = 0, size = 1;
    int *out = nullptr, *in = nullptr, *sum = nullptr;

    [[nodiscard]] int next() const { return (rank + 1) % size; }
    [[nodiscard]] int previous() const { return (rank + size - 1) % size; }

    int* make(int value) const {
        auto* const made = static_cast<int*>(gpu->allocate(Kind::device, kBytes));
        const std::vector<int> values(kCount, value);
        gpu->write(made, values.data(), kBytes);
        return made;
    }
    [[nodiscard]] bool holds(const int* memory, int value) const {
        std::vector<int> values(kCount);
        gpu->read(values.data(), memory, kBytes);
        return std::all_of(values.begin(), values.end(), [&](int each) { return each == value; });
    }

    /// What each rank sends goes round, and is its own again after `size` rounds; the sum is that of all ranks' numbers
    /// in any case.
    void round() const {
        MPI(MPI_Sendrecv(out, kCount, MPI_INT, next(), kTag, in, kCount, MPI_INT, previous(), kTag, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE));
        MPI(MPI_Allreduce(in, sum, kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
        gpu->copy_in_stream(out, in, kBytes);
    }
};

void say(const std::string& mode) {
    const std::string text = "ok " + mode + "\n";
    write_survivor_file(text);
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
}

/// Rank 1 dies when rank 0 has returned from its call. The default stream of rank 0 goes on all the same, and the next
/// message with device memory says what has happened.
[[noreturn]] void die(const Rank& on, const std::string& mode) {
    std::shared_ptr<void> held;
    if (on.rank == 1) {
        held = on.gpu->keep_busy(true);
    }
    int word = 0;
    if (mode == "collective") {
        MPI(MPI_Allreduce(on.out, on.sum, kCount, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
    } else if (on.rank == 1) {
        MPI(MPI_Send(on.out, kCount, MPI_INT, 0, kTag, MPI_COMM_WORLD));
    } else {
        MPI(MPI_Recv(on.in, kCount, MPI_INT, 1, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    }
    if (on.rank == 1) {
        MPI(MPI_Recv(&word, 1, MPI_INT, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        raise(SIGKILL);
    }
    MPI(MPI_Send(&word, 1, MPI_INT, 1, kTag, MPI_COMM_WORLD));
    on.gpu->synchronize();
    if (mode == "message") {
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        if (MPI_Sendrecv(on.out, kCount, MPI_INT, 0, kTag, on.in, kCount, MPI_INT, 0, kTag, MPI_COMM_SELF,
                         MPI_STATUS_IGNORE) == MPI_SUCCESS) {
            fail("nobody was told of the dead rank");
        }
    }
    say(mode);
    _exit(0);  // MPI_Finalize would wait for the dead rank
}

}  // namespace

int main(int argc, char** argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    const std::string gpu = take_option(argc, argv, "--gpu").value_or("auto");
    MPI_Init(&argc, &argv);
    Rank on;
    MPI_Comm_rank(MPI_COMM_WORLD, &on.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &on.size);
    on.gpu = Gpu::open(gpu);
    on.gpu->use_device(on.rank % on.gpu->device_count());
    on.out = on.make(on.rank + 1);
    on.in = on.make(-1);
    on.sum = on.make(-1);
    // Ranks find each other by their first calls, which wait.
    for (int i = 0; i < 4 * on.size; ++i) {
        on.round();
    }
    on.gpu->synchronize();
    MPI(MPI_Barrier(MPI_COMM_WORLD));
    if (mode == "message" || mode == "collective") {
        die(on, mode);
    }
    if (mode == "error") {
        for (;;) {  // until MPI_ERRORS_ARE_FATAL
            on.round();
        }
    }
    for (int i = 0; i < kRounds * on.size; ++i) {
        on.round();
    }
    if (mode == "abort") {
        if (on.rank == 0) {
            MPI_Abort(MPI_COMM_WORLD, 5);
        }
        on.gpu->synchronize();
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (mode == "reset") {
        on.gpu->reset();
    }
    MPI(MPI_Finalize());
    if (mode == "finalize" && !(on.holds(on.sum, on.size * (on.size + 1) / 2) && on.holds(on.in, on.rank + 1))) {
        std::fprintf(stderr, "FAIL order_ends: rank %d has other data\n", on.rank);
        return 1;
    }
    if (on.rank == 0) {
        say(mode);
    }
    return 0;
}
