// SPDX-License-Identifier: Apache-2.0
// MPI calls while the ranks' GPUs are busy with work that ends only after them: another library's collective, a kernel
// that stays, a function that waits for what the program does next. None of them may wait for it.
//
// A case that waits hangs, and the watch-dog names it. Drivers wait for all work of a device in calls that free, unmap,
// unregister or load; AWAKEN_TEST_BUSY=error names those on the emulated ones, the program's own too.
#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 31;
constexpr int kGoTag = 32;
/// In doubles: little enough for a header's own time, more than one block, and several megabytes.
constexpr int kCounts[] = {5, 3000, 600000};
constexpr int kLarge = 600000;
/// Rounds with memory that is new each time.
constexpr int kRounds = 4;

/// The GPUs of all ranks, or of those with `mine`, are busy while it lives.
class Busy {
  public:
    explicit Busy(Run& run, bool mine = true, bool in_default_stream = false) {
        if (!run.reference() && run.gpu().present() && mine) {
            _work = run.gpu().keep_busy(in_default_stream);
        }
        OK(MPI_Barrier(run.comm));
    }
    void end() { _work.reset(); }

  private:
    std::shared_ptr<void> _work;
};

std::size_t bytes_of(int count) {
    return static_cast<std::size_t>(count) * sizeof(double);
}
int next(const Run& run) {
    return (run.rank + 1) % run.size;
}
int previous(const Run& run) {
    return (run.rank + run.size - 1) % run.size;
}

// ---- messages -------------------------------------------------------------------------------------------------------

void exchanges(Run& run) {
    std::vector<std::pair<std::byte*, std::byte*>> buffers;
    for (const int count : kCounts) {
        buffers.emplace_back(run.input(bytes_of(count)), run.output<std::byte>(bytes_of(count)));
    }
    const Busy busy(run);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        const auto& [out, in] = buffers[i];
        OK(MPI_Sendrecv(out, kCounts[i], MPI_DOUBLE, next(run), kTag, in, kCounts[i], MPI_DOUBLE, previous(run), kTag,
                        run.comm, MPI_STATUS_IGNORE));
    }
}

void nonblocking(Run& run) {
    std::vector<std::pair<std::byte*, std::byte*>> buffers;
    for (const int count : kCounts) {
        buffers.emplace_back(run.input(bytes_of(count)), run.output<std::byte>(bytes_of(count)));
    }
    const Busy busy(run);
    std::vector<MPI_Request> requests;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        const auto& [out, in] = buffers[i];
        OK(MPI_Irecv(in, kCounts[i], MPI_DOUBLE, previous(run), kTag, run.comm, &requests.emplace_back()));
        OK(MPI_Isend(out, kCounts[i], MPI_DOUBLE, next(run), kTag, run.comm, &requests.emplace_back()));
    }
    OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

/// Blocking sends to a receiver that is late, so that they are copied out.
void late_receiver(Run& run) {
    std::byte* const out = run.input(bytes_of(kLarge));
    std::byte* const in = run.output<std::byte>(bytes_of(kLarge));
    const Busy busy(run);
    MPI_Request request = MPI_REQUEST_NULL;
    OK(MPI_Isend(out, kLarge, MPI_DOUBLE, next(run), kTag, run.comm, &request));
    OK(MPI_Barrier(run.comm));
    OK(MPI_Recv(in, kLarge, MPI_DOUBLE, previous(run), kTag, run.comm, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

void strided(Run& run) {
    constexpr int kBlocks = 20000, kWidth = 2, kStride = 5;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    OK(MPI_Type_vector(kBlocks, kWidth, kStride, MPI_DOUBLE, &type));
    OK(MPI_Type_commit(&type));
    const std::size_t bytes = bytes_of(kBlocks * kStride);
    std::byte* const out = run.input(bytes);
    std::byte* const in = run.output<std::byte>(bytes);
    std::byte* const packed = run.output<std::byte>(bytes_of(kBlocks * kWidth));
    const Busy busy(run);
    OK(MPI_Sendrecv(out, 1, type, next(run), kTag, in, 1, type, previous(run), kTag, run.comm, MPI_STATUS_IGNORE));
    int position = 0;
    OK(MPI_Pack(out, 1, type, packed, static_cast<int>(bytes_of(kBlocks * kWidth)), &position, run.comm));
    OK(MPI_Type_free(&type));
}

/// The sender's buffer is new in each round, and lies where the last one was.
void new_memory(Run& run) {
    const bool sends = run.rank == 0;
    std::byte* const in = run.output<std::byte>(bytes_of(kLarge));
    Busy busy(run, !sends);
    for (int round = 0; round < kRounds; ++round) {
        if (sends) {
            std::byte* const out = run.input(bytes_of(kLarge));
            for (int to = 1; to < run.size; ++to) {
                OK(MPI_Send(out, kLarge, MPI_DOUBLE, to, kTag, run.comm));
            }
            OK(MPI_Barrier(run.comm));
            run.release(out);
        } else {
            OK(MPI_Recv(in, kLarge, MPI_DOUBLE, 0, kTag, run.comm, MPI_STATUS_IGNORE));
            OK(MPI_Barrier(run.comm));
            run.note_bytes("round " + std::to_string(round), in, bytes_of(kLarge));
        }
    }
    busy.end();
}

/// A receiver that has a message's RTS waits for its bytes; the MPI below must go on with other messages meanwhile,
/// since the one that the bytes wait for may be among them. For AWAKEN_PATH=ring, where a send returns although the
/// default stream that its bytes come from is busy (on CUDA).
void other_messages_go_on(Run& run) {
    constexpr int kOthers = 200;
    std::byte* const large = run.input(bytes_of(kLarge));
    std::byte* const words = run.host(kOthers * sizeof(int));
    std::vector<MPI_Request> requests;
    if (run.rank == 1) {
        for (int i = 0; i < kOthers; ++i) {
            OK(MPI_Irecv(words + static_cast<std::size_t>(i) * sizeof(int), 1, MPI_INT, 0, kGoTag, run.comm,
                         &requests.emplace_back()));
        }
    }
    Busy busy(run, run.rank == 0, true);
    if (run.rank == 0) {
        OK(MPI_Isend(large, kLarge, MPI_DOUBLE, 1, kTag, run.comm, &requests.emplace_back()));
        // Each of them needs a call of the receiver's MPI.
        for (int i = 0; i < kOthers; ++i) {
            OK(MPI_Ssend(words, 1, MPI_INT, 1, kGoTag, run.comm));
        }
        busy.end();
    } else if (run.rank == 1) {
        OK(MPI_Recv(large, kLarge, MPI_DOUBLE, 0, kTag, run.comm, MPI_STATUS_IGNORE));
    }
    OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

// ---- collectives ----------------------------------------------------------------------------------------------------

using Collective = void (*)(Run&, double* out, double* in, int count, MPI_Comm comm);

struct Named {
    const char* name;
    Collective call;
    /// Values of each rank that it sends and receives, in multiples of the count.
    bool out_for_all, in_for_all;
};

const Named kCollectives[] = {
    {"bcast",
     [](Run& run, double* out, double*, int count, MPI_Comm comm) { OK(MPI_Bcast(out, count, MPI_DOUBLE, 0, comm)); },
     false, false},
    {"allreduce",
     [](Run& run, double* out, double* in, int count, MPI_Comm comm) {
         OK(MPI_Allreduce(out, in, count, MPI_DOUBLE, MPI_SUM, comm));
     },
     false, false},
    {"reduce_max",
     [](Run& run, double* out, double* in, int count, MPI_Comm comm) {
         OK(MPI_Reduce(out, in, count, MPI_DOUBLE, MPI_MAX, 0, comm));
     },
     false, false},
    {"allgather",
     [](Run& run, double* out, double* in, int count, MPI_Comm comm) {
         OK(MPI_Allgather(out, count, MPI_DOUBLE, in, count, MPI_DOUBLE, comm));
     },
     false, true},
    {"alltoall",
     [](Run& run, double* out, double* in, int count, MPI_Comm comm) {
         OK(MPI_Alltoall(out, count, MPI_DOUBLE, in, count, MPI_DOUBLE, comm));
     },
     true, true},
    {"reduce_scatter",
     [](Run& run, double* out, double* in, int count, MPI_Comm comm) {
         OK(MPI_Reduce_scatter_block(out, in, count, MPI_DOUBLE, MPI_SUM, comm));
     },
     true, false},
    {"iallreduce",
     [](Run& run, double* out, double* in, int count, MPI_Comm comm) {
         MPI_Request request = MPI_REQUEST_NULL;
         OK(MPI_Iallreduce(out, in, count, MPI_DOUBLE, MPI_SUM, comm, &request));
         OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
     },
     false, false},
    {"communicator",
     [](Run& run, double* out, double* in, int count, MPI_Comm comm) {
         MPI_Comm copy = MPI_COMM_NULL;
         OK(MPI_Comm_dup(comm, &copy));
         OK(MPI_Allreduce(out, in, count, MPI_DOUBLE, MPI_SUM, copy));
         OK(MPI_Comm_free(&copy));
     },
     false, false},
};

void collective(Run& run, const Named& named) {
    const auto part = [&](bool for_all) { return static_cast<std::size_t>(for_all ? run.size : 1); };
    std::vector<std::pair<double*, double*>> buffers;
    for (const int count : kCounts) {
        buffers.emplace_back(run.values<double>(static_cast<std::size_t>(count) * part(named.out_for_all)),
                             run.values<double>(static_cast<std::size_t>(count) * part(named.in_for_all)));
    }
    const Busy busy(run);
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        named.call(run, buffers[i].first, buffers[i].second, kCounts[i], run.comm);
    }
}

/// The root's buffer is new in each round, and lies where the last one was. A nonblocking collective that the ranks
/// have agreed to do by their GPUs may wait for one that has to map what it cannot map now; later collectives wait with
/// it.
void new_memory_in_collectives(Run& run) {
    const bool root = run.rank == 0;
    double* const kept = run.values<double>(kLarge);
    double* const sum = run.values<double>(kLarge);
    Busy busy(run, !root);
    for (int round = 0; round < kRounds; ++round) {
        double* const mine = root ? run.values<double>(kLarge) : kept;
        OK(MPI_Bcast(mine, kLarge, MPI_DOUBLE, 0, run.comm));
        OK(MPI_Allreduce(mine, sum, kLarge, MPI_DOUBLE, MPI_SUM, run.comm));
        OK(MPI_Barrier(run.comm));
        run.note_bytes("round " + std::to_string(round), sum, bytes_of(kLarge));
        if (round + 1 == kRounds) {
            MPI_Request request = MPI_REQUEST_NULL;
            OK(MPI_Iallreduce(mine, sum, kLarge, MPI_DOUBLE, MPI_MAX, run.comm, &request));
            busy.end();
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        }
        OK(MPI_Barrier(run.comm));
        if (root) {
            run.release(mine);
        }
    }
}

#if MPI_VERSION >= 4
void persistent(Run& run) {
    auto* const out = run.values<double>(kLarge);
    auto* const in = run.values<double>(kLarge);
    const Busy busy(run);
    MPI_Request request = MPI_REQUEST_NULL;
    OK(MPI_Allreduce_init(out, in, kLarge, MPI_DOUBLE, MPI_SUM, run.comm, MPI_INFO_NULL, &request));
    for (int round = 0; round < 2; ++round) {
        OK(MPI_Start(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    OK(MPI_Request_free(&request));
}
#endif

void local_reduction(Run& run) {
    auto* const out = run.values<double>(kLarge);
    auto* const in = run.values<double>(kLarge);
    const Busy busy(run);
    OK(MPI_Reduce_local(out, in, kLarge, MPI_DOUBLE, MPI_SUM));
}

// ---- windows and files ----------------------------------------------------------------------------------------------

void access(Run& run, MPI_Win window, double* origin) {
    constexpr int kPart = 1000;
    OK(MPI_Win_fence(0, window));
    OK(MPI_Put(origin, kPart, MPI_DOUBLE, next(run), 0, kPart, MPI_DOUBLE, window));
    OK(MPI_Win_fence(0, window));
    OK(MPI_Accumulate(origin, kPart, MPI_DOUBLE, next(run), kPart, kPart, MPI_DOUBLE, MPI_SUM, window));
    OK(MPI_Win_fence(0, window));
    OK(MPI_Get(origin + kPart, kPart, MPI_DOUBLE, next(run), 0, kPart, MPI_DOUBLE, window));
    OK(MPI_Win_fence(0, window));
}

void window(Run& run) {
    auto* const memory = run.values<double>(kLarge);
    auto* const origin = run.values<double>(kLarge);
    const Busy busy(run);
    MPI_Win made = MPI_WIN_NULL;
    OK(MPI_Win_create(memory, static_cast<MPI_Aint>(bytes_of(kLarge)), sizeof(double), MPI_INFO_NULL, run.comm, &made));
    access(run, made, origin);
    OK(MPI_Win_free(&made));
}

void allocated_window(Run& run) {
    auto* const origin = run.values<double>(kLarge);
    MPI_Info info = MPI_INFO_NULL;
    OK(MPI_Info_create(&info));
    OK(MPI_Info_set(info, "awaken_memory", run.reference() || !run.gpu().present() ? "host" : "device"));
    const Busy busy(run);
    for (int round = 0; round < 2; ++round) {
        MPI_Win made = MPI_WIN_NULL;
        double* memory = nullptr;
        OK(MPI_Win_allocate(static_cast<MPI_Aint>(bytes_of(kLarge)), sizeof(double), info, run.comm,
                            static_cast<void*>(&memory), &made));
        OK(MPI_Win_fence(0, made));
        OK(MPI_Put(origin, kLarge, MPI_DOUBLE, next(run), 0, kLarge, MPI_DOUBLE, made));
        OK(MPI_Win_fence(0, made));
        OK(MPI_Get(origin, kLarge, MPI_DOUBLE, next(run), 0, kLarge, MPI_DOUBLE, made));
        OK(MPI_Win_fence(0, made));
        OK(MPI_Win_free(&made));
    }
    OK(MPI_Info_free(&info));
}

/// The exposed memory is new in each round, and lies where the last was.
void new_memory_in_windows(Run& run) {
    const bool exposes = run.rank == 0;
    std::byte* const in = run.output<std::byte>(bytes_of(kLarge));
    Busy busy(run, !exposes);
    for (int round = 0; round < kRounds; ++round) {
        std::byte* const memory = exposes ? run.input(bytes_of(kLarge)) : nullptr;
        MPI_Win made = MPI_WIN_NULL;
        OK(MPI_Win_create(memory, exposes ? static_cast<MPI_Aint>(bytes_of(kLarge)) : 0, sizeof(double), MPI_INFO_NULL,
                          run.comm, &made));
        OK(MPI_Win_fence(0, made));
        if (!exposes) {
            OK(MPI_Get(in, kLarge, MPI_DOUBLE, 0, 0, kLarge, MPI_DOUBLE, made));
        }
        OK(MPI_Win_fence(0, made));
        OK(MPI_Win_free(&made));
        if (exposes) {
            run.release(memory);
        } else {
            run.note_bytes("round " + std::to_string(round), in, bytes_of(kLarge));
        }
    }
    busy.end();
}

void add_cases(Suite& suite) {
    suite.add("exchanges", exchanges);
    suite.add("nonblocking", nonblocking);
    suite.add("late_receiver", late_receiver);
    suite.add("strided", strided);
    suite.add("new_memory", new_memory, 2);
    for (const Named& named : kCollectives) {
        suite.add(named.name, [named](Run& run) { collective(run, named); });
    }
    suite.add("new_memory_in_collectives", new_memory_in_collectives, 2);
#if MPI_VERSION >= 4
    suite.add("persistent", persistent);
#endif
    suite.add("local_reduction", local_reduction);
    suite.add("window", window);
    suite.add("allocated_window", allocated_window);
    suite.add("new_memory_in_windows", new_memory_in_windows, 2);
    const char* const path = std::getenv("AWAKEN_PATH");
    if (path != nullptr && std::string(path) == "ring") {
        suite.add("other_messages_go_on", other_messages_go_on, 2);
    }
}

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
    add_cases(suite);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
