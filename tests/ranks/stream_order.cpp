// SPDX-License-Identifier: Apache-2.0
// Messages while the ranks' default streams are held up, with AWAKEN_DEFAULT_STREAM=order: calls return when the order
// of their messages is settled, and the bytes come when the streams go on.
//
// A call that waits for a GPU hangs, and the watch-dog names it.
#include <cstdlib>

#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 41;
constexpr std::size_t kSizes[] = {1, 4096, std::size_t{64} << 10, std::size_t{1} << 20};
constexpr std::size_t kSmall = 3000;
/// Stays where it is until its receiver has it.
constexpr std::size_t kLarge = (std::size_t{1} << 20) + 24;

int next(const Run& run) {
    return (run.rank + 1) % run.size;
}
int previous(const Run& run) {
    return (run.rank + run.size - 1) % run.size;
}
int count_of(std::size_t bytes) {
    return static_cast<int>(bytes);
}

/// Messages of other memory wait as ever.
std::byte* device_memory(Run& run, std::size_t bytes) {
    return run.input_of(Kind::device, bytes);
}

/// The default streams of all ranks, or of those with `mine`, do nothing while it lives.
class HeldUp {
  public:
    explicit HeldUp(Run& run, bool mine = true) {
        if (!run.reference() && run.gpu().present() && mine) {
            _work = run.gpu().keep_busy(true);
        }
        OK(MPI_Barrier(run.comm));
    }
    void end() { _work.reset(); }

  private:
    std::shared_ptr<void> _work;
};

/// The first messages of two processes wait: they find each other's memory by them.
void meet(Run& run) {
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    for (int round = 0; round < 4; ++round) {
        for (const int shift : {1, run.size - 1}) {
            OK(MPI_Sendrecv(out, count_of(kSmall), MPI_BYTE, (run.rank + shift) % run.size, kTag, in, count_of(kSmall),
                            MPI_BYTE, (run.rank + run.size - shift) % run.size, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    }
}

/// The receiver's call returns before the sender's bytes are there.
void one_way(Run& run) {
    meet(run);
    std::vector<std::byte*> out, in;
    for (const std::size_t bytes : kSizes) {
        out.push_back(device_memory(run, bytes));
        in.push_back(device_memory(run, bytes));
    }
    HeldUp held(run, run.rank == 0);
    for (std::size_t i = 0; i < out.size(); ++i) {
        if (run.rank == 0) {
            OK(MPI_Send(out[i], count_of(kSizes[i]), MPI_BYTE, 1, kTag, run.comm));
        } else if (run.rank == 1) {
            MPI_Status status;
            OK(MPI_Recv(in[i], count_of(kSizes[i]), MPI_BYTE, MPI_ANY_SOURCE, kTag, run.comm, &status));
            run.note_status("receive " + std::to_string(i), status, MPI_BYTE);
        }
    }
    OK(MPI_Barrier(run.comm));
    held.end();
}

/// What the program queues after its send may overwrite the buffer.
void overwritten(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    HeldUp held(run);
    OK(MPI_Send(out, count_of(kSmall), MPI_BYTE, next(run), kTag, run.comm));
    if (run.reference() || !run.gpu().present()) {
        std::memset(out, 7, kSmall);
    } else {
        run.gpu().memset(out, 7, kSmall);
    }
    OK(MPI_Recv(in, count_of(kSmall), MPI_BYTE, previous(run), kTag, run.comm, MPI_STATUS_IGNORE));
    OK(MPI_Barrier(run.comm));
    held.end();
}

void exchange(Run& run, std::byte* out, std::byte* in, std::size_t bytes) {
    OK(MPI_Sendrecv(out, count_of(bytes), MPI_BYTE, next(run), kTag, in, count_of(bytes), MPI_BYTE, previous(run), kTag,
                    run.comm, MPI_STATUS_IGNORE));
}

/// The first exchange of long buffers maps them. Where mappings of older memory are in the way, it waits for an idle
/// GPU.
void exchange_first(Run& run, std::byte* out, std::byte* in, std::size_t bytes) {
    if (!run.reference() && run.gpu().present()) {
        run.gpu().synchronize();
    }
    exchange(run, out, in, bytes);
}

/// With AWAKEN_DEFAULT_STREAM=order,check, whoever looks at a buffer before its data come finds a pattern.
void looked_at_early(Run& run) {
    const char* const word = std::getenv("AWAKEN_DEFAULT_STREAM");
    const bool is_checked = word != nullptr && std::string(word) == "order,check" && !run.reference();
    const std::vector<std::byte> pattern(kLarge, std::byte{0xb5});
    for (const std::size_t bytes : {kSmall, kLarge}) {
        meet(run);
        std::byte* const out = device_memory(run, bytes);
        std::byte* const in = device_memory(run, bytes);
        exchange_first(run, out, in, bytes);
        HeldUp held(run, run.rank == 0);
        if (run.rank == 0) {
            OK(MPI_Send(out, count_of(bytes), MPI_BYTE, 1, kTag, run.comm));
        } else if (run.rank == 1) {
            OK(MPI_Recv(in, count_of(bytes), MPI_BYTE, 0, kTag, run.comm, MPI_STATUS_IGNORE));
            std::vector<std::byte> seen(bytes);
            while (is_checked && std::memcmp(seen.data(), pattern.data(), bytes) != 0) {
                run.gpu().read_beside(seen.data(), in, bytes);
            }
        }
        OK(MPI_Barrier(run.comm));
        held.end();
    }
}

void exchanged(Run& run, std::size_t bytes) {
    meet(run);
    std::byte* const out = device_memory(run, bytes);
    std::byte* const in = device_memory(run, bytes);
    exchange_first(run, out, in, bytes);
    HeldUp held(run);
    exchange(run, out, in, bytes);
    OK(MPI_Barrier(run.comm));
    held.end();
}

/// Ranks that send first and receive afterwards, as short sends allow.
void sent_first(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    HeldUp held(run, run.rank % 2 == 0);
    OK(MPI_Send(out, count_of(kSmall), MPI_BYTE, next(run), kTag, run.comm));
    OK(MPI_Recv(in, count_of(kSmall), MPI_BYTE, previous(run), kTag, run.comm, MPI_STATUS_IGNORE));
    OK(MPI_Barrier(run.comm));
    held.end();
}

/// More messages than one launch takes, of all sizes, completed in several ways.
void windows(Run& run) {
    meet(run);
    constexpr int kMessages = 36;
    for (const char* const way : {"all", "any", "some", "test", "each"}) {
        const Step step(run, way);
        std::vector<std::byte*> out, in;
        std::vector<std::size_t> sizes;
        for (int i = 0; i < kMessages; ++i) {
            sizes.push_back(i % 20 == 1 ? kLarge : 100 + 97 * static_cast<std::size_t>(i));
            out.push_back(device_memory(run, sizes.back()));
            in.push_back(device_memory(run, sizes.back()));
            if (sizes.back() == kLarge) {
                exchange_first(run, out.back(), in.back(), kLarge);
            }
        }
        HeldUp held(run);
        std::vector<MPI_Request> requests;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            const int tag = kTag + static_cast<int>(i);
            OK(MPI_Irecv(in[i], count_of(sizes[i]), MPI_BYTE, previous(run), tag, run.comm, &requests.emplace_back()));
            OK(MPI_Isend(out[i], count_of(sizes[i]), MPI_BYTE, next(run), tag, run.comm, &requests.emplace_back()));
        }
        const int count = static_cast<int>(requests.size());
        const std::string completed = way;
        if (completed == "all") {
            OK(MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE));
        } else if (completed == "any") {
            for (int i = 0; i < count; ++i) {
                int index = 0;
                OK(MPI_Waitany(count, requests.data(), &index, MPI_STATUS_IGNORE));
            }
        } else if (completed == "some") {
            std::vector<int> indices(requests.size());
            for (int over = 0, outcount = 0; over < count; over += outcount) {
                OK(MPI_Waitsome(count, requests.data(), &outcount, indices.data(), MPI_STATUSES_IGNORE));
            }
        } else if (completed == "test") {
            for (int flag = 0; flag == 0;) {
                OK(MPI_Testall(count, requests.data(), &flag, MPI_STATUSES_IGNORE));
            }
        } else {
            for (MPI_Request& request : requests) {
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            }
        }
        OK(MPI_Barrier(run.comm));
        held.end();
    }
}

/// The sender makes no further call: its part of the message goes to its stream nevertheless.
void left_alone(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    MPI_Request request = MPI_REQUEST_NULL;
    if (run.rank == 0) {
        OK(MPI_Isend(out, count_of(kSmall), MPI_BYTE, 1, kTag, run.comm, &request));
        compute(300);
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    } else if (run.rank == 1) {
        OK(MPI_Recv(in, count_of(kSmall), MPI_BYTE, 0, kTag, run.comm, MPI_STATUS_IGNORE));
        run.note_bytes("received", in, kSmall);
    }
}

void persistent(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    MPI_Request requests[2];
    OK(MPI_Recv_init(in, count_of(kSmall), MPI_BYTE, previous(run), kTag, run.comm, &requests[0]));
    OK(MPI_Send_init(out, count_of(kSmall), MPI_BYTE, next(run), kTag, run.comm, &requests[1]));
    HeldUp held(run);
    for (int round = 0; round < 5; ++round) {
        OK(MPI_Startall(2, requests));
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    }
    OK(MPI_Barrier(run.comm));
    held.end();
    OK(MPI_Request_free(&requests[0]));
    OK(MPI_Request_free(&requests[1]));
}

void probed(Run& run) {
    meet(run);
    std::byte* const out = device_memory(run, kLarge);
    std::byte* const in = device_memory(run, kLarge);
    HeldUp held(run);
    MPI_Request request = MPI_REQUEST_NULL;
    OK(MPI_Isend(out, count_of(kSmall), MPI_BYTE, next(run), kTag, run.comm, &request));
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    OK(MPI_Mprobe(previous(run), kTag, run.comm, &message, &status));
    run.note_status("probe", status, MPI_BYTE);
    OK(MPI_Mrecv(in, count_of(kLarge), MPI_BYTE, &message, &status));
    run.note_status("receive", status, MPI_BYTE);
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    OK(MPI_Barrier(run.comm));
    held.end();
}

/// As the program's kernels would.
void copy_in_order(Run& run, std::byte* to, const std::byte* from, std::size_t bytes) {
    if (run.reference() || !run.gpu().present()) {
        std::memcpy(to, from, bytes);
    } else {
        run.gpu().copy_in_stream(to, from, bytes);
    }
}

struct Collective {
    const char* name;
    /// `count` integers of each rank or for each rank.
    void (*call)(Run& run, const std::byte* out, std::byte* in, int count);
};

constexpr Collective kCollectives[] = {
    {"allreduce", [](Run& run, const std::byte* out, std::byte* in,
                     int count) { OK(MPI_Allreduce(out, in, count, MPI_INT, MPI_SUM, run.comm)); }},
    {"bcast",
     [](Run& run, const std::byte* out, std::byte* in, int count) {
         OK(MPI_Bcast(run.rank == 0 ? const_cast<std::byte*>(out) : in, count, MPI_INT, 0, run.comm));
     }},
    {"reduce", [](Run& run, const std::byte* out, std::byte* in,
                  int count) { OK(MPI_Reduce(out, in, count, MPI_INT, MPI_BXOR, run.size - 1, run.comm)); }},
    {"allgather", [](Run& run, const std::byte* out, std::byte* in,
                     int count) { OK(MPI_Allgather(out, count, MPI_INT, in, count, MPI_INT, run.comm)); }},
    {"gather", [](Run& run, const std::byte* out, std::byte* in,
                  int count) { OK(MPI_Gather(out, count, MPI_INT, in, count, MPI_INT, 0, run.comm)); }},
    {"scatter", [](Run& run, const std::byte* out, std::byte* in,
                   int count) { OK(MPI_Scatter(out, count, MPI_INT, in, count, MPI_INT, run.size - 1, run.comm)); }},
    {"alltoall", [](Run& run, const std::byte* out, std::byte* in,
                    int count) { OK(MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, run.comm)); }},
    {"reduce_scatter_block",
     [](Run& run, const std::byte* out, std::byte* in, int count) {
         OK(MPI_Reduce_scatter_block(out, in, count, MPI_INT, MPI_MAX, run.comm));
     }},
    {"scan", [](Run& run, const std::byte* out, std::byte* in,
                int count) { OK(MPI_Scan(out, in, count, MPI_INT, MPI_SUM, run.comm)); }},
};

/// Collectives return when their order is settled.
void collectives(Run& run) {
    meet(run);
    for (const std::size_t bytes : {kSmall, kLarge}) {
        const int count = count_of(bytes / sizeof(int));
        const std::size_t whole = bytes * static_cast<std::size_t>(run.size);
        for (const Collective& collective : kCollectives) {
            const Step step(run, collective.name);
            std::byte* const out = device_memory(run, whole);
            std::byte* const in = device_memory(run, whole);
            std::byte* const next_out = device_memory(run, whole);
            for (int round = 0; round < 3; ++round) {  // kernels are loaded, and memory is mapped
                collective.call(run, out, in, count);
            }
            HeldUp held(run);
            for (int round = 0; round < 3; ++round) {
                copy_in_order(run, out, next_out, whole);
                collective.call(run, out, in, count);
                copy_in_order(run, next_out, in, bytes);
            }
            OK(MPI_Barrier(run.comm));
            held.end();
        }
    }
}

/// More collectives than may be under way at a time, and messages between them.
void among_messages(Run& run) {
    meet(run);
    constexpr int kRounds = 20;
    const int count = count_of(kSmall / sizeof(int));
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const sum = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    std::byte* const late = device_memory(run, kLarge);
    std::byte* const large = device_memory(run, kLarge);
    exchange_first(run, large, late, kLarge);
    for (int round = 0; round < 3; ++round) {
        OK(MPI_Allreduce(out, sum, count, MPI_INT, MPI_SUM, run.comm));
    }
    HeldUp held(run, run.rank != 0);
    for (int round = 0; round < kRounds; ++round) {
        MPI_Request requests[2];
        OK(MPI_Irecv(late, count_of(kLarge), MPI_BYTE, previous(run), kTag, run.comm, &requests[0]));
        OK(MPI_Isend(large, count_of(kLarge), MPI_BYTE, next(run), kTag, run.comm, &requests[1]));
        if (round < 10) {  // further ones wait until the first are over
            OK(MPI_Allreduce(out, sum, count, MPI_INT, MPI_SUM, run.comm));
        }
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
        OK(MPI_Sendrecv(sum, count_of(kSmall), MPI_BYTE, next(run), kTag, in, count_of(kSmall), MPI_BYTE, previous(run),
                        kTag, run.comm, MPI_STATUS_IGNORE));
        copy_in_order(run, out, in, kSmall);
        copy_in_order(run, large, sum, kSmall);
    }
    OK(MPI_Barrier(run.comm));
    held.end();
    for (int round = 0; round < kRounds; ++round) {
        OK(MPI_Allreduce(out, sum, count, MPI_INT, MPI_SUM, run.comm));
        copy_in_order(run, out, sum, kSmall);
    }
}

void add_cases(Suite& suite) {
    suite.add("one_way", one_way, 2);
    suite.add("overwritten", overwritten);
    for (const std::size_t bytes : kSizes) {
        suite.add("exchanged_" + std::to_string(bytes), [bytes](Run& run) { exchanged(run, bytes); });
    }
    suite.add("exchanged_large", [](Run& run) { exchanged(run, kLarge); });
    suite.add("looked_at_early", looked_at_early, 2);
    suite.add("sent_first", sent_first);
    suite.add("windows", windows);
    suite.add("left_alone", left_alone, 2);
    suite.add("persistent", persistent);
    suite.add("probed", probed);
    suite.add("collectives", collectives, 2);
    suite.add("among_messages", among_messages, 2);
}

}  // namespace

int main(int argc, char** argv) {
    // Where several threads may call MPI, a collective's steps are queued one by one.
    const bool threads = take_option(argc, argv, "--threads").has_value();
    Suite suite(argc, argv);
    int provided = MPI_THREAD_SINGLE;
    if (threads) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    } else {
        MPI_Init(&argc, &argv);
    }
    add_cases(suite);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
