// SPDX-License-Identifier: Apache-2.0
// Messages between processes of different nodes, of sizes at which a layer over MPI may cut them into parts, among
// messages to processes of the own node and to itself.
//
// The sizes are those of the parts as the settings say (network_fragment_bytes), so that small messages have
// many of them. On one machine, AWAKEN_TEST_NODES makes several nodes. Which ranks are on which is the launcher's
// choice, and the test's to know.
//
//     --chunk-bytes=N    size of the parts
//     --distance=N       between a rank and its partner in another node: a power of two
//     --threads          MPI_THREAD_MULTIPLE, for the cases of several threads (they do nothing without)
#include <array>
#include <thread>

#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 41;
constexpr int kReadyTag = 42;

int chunk_bytes = 4096;
int distance = 1;
bool several_threads = false;

std::size_t to_size(int bytes) {
    return static_cast<std::size_t>(bytes);
}

/// Around the borders of parts, and of the number of parts that may be under way at once.
std::vector<int> sizes() {
    const int chunk = chunk_bytes;
    return {chunk - 1,     chunk,         chunk + 1,     2 * chunk - 1,  2 * chunk,
            2 * chunk + 1, 4 * chunk - 3, 5 * chunk + 7, 16 * chunk + 1, 50 * chunk + 5};
}

/// Ranks in pairs that differ in one bit of their number. Without a partner, a rank talks to MPI_PROC_NULL.
struct Partners {
    explicit Partners(const Run& run) : lower((run.rank & distance) == 0), active((run.rank ^ distance) < run.size) {
        if (active) {
            peer = run.rank ^ distance;
        }
    }
    bool lower, active;
    int peer = MPI_PROC_NULL;
};

void await_all(Run& run, std::vector<MPI_Request>& requests) {
    OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

// ---- one at a time --------------------------------------------------------------------------------------------------

using Sender = std::function<void(Run&, const void*, int bytes, int to)>;

/// Each size from one partner to the other and back. The buffer is overwritten as soon as the send is complete.
void there_and_back(Run& run, const Sender& send) {
    const Partners partners(run);
    for (const int bytes : sizes()) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes) + 9);
        const Step step(run, format("%d bytes", bytes));
        for (const bool lower_sends : {true, false}) {
            MPI_Request request = MPI_REQUEST_NULL;
            MPI_Status status{};
            if (partners.lower == lower_sends) {
                if (partners.active) {
                    await_token(run, partners.peer, kReadyTag);
                }
                if (partners.active) {
                    send(run, out, bytes, partners.peer);
                }
                run.refill(out, to_size(bytes), 5);
            } else if (partners.active) {
                OK(MPI_Irecv(in, bytes + 9, MPI_BYTE, partners.peer, kTag, run.comm, &request));
                send_token(run, partners.peer, kReadyTag);
                OK(MPI_Wait(&request, &status));
                run.note_status(format("%d bytes", bytes), status, MPI_BYTE);
            }
        }
    }
}

void buffered(Run& run) {
    const Partners partners(run);
    for (const int bytes : sizes()) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes));
        const RoomForBufferedSends room(to_size(bytes), 1);
        const Step step(run, format("%d bytes", bytes));
        OK(MPI_Bsend(out, bytes, MPI_BYTE, partners.peer, kTag, run.comm));
        OK(MPI_Recv(in, bytes, MPI_BYTE, partners.peer, kTag, run.comm, MPI_STATUS_IGNORE));
    }
}

/// The receive is there, the receiver is not: it waits in a barrier that the sender must reach. And the other way.
void elsewhere(Run& run, bool blocking_send) {
    const Partners partners(run);
    for (const int bytes : sizes()) {
        std::byte* buffer = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        if (blocking_send) {
            if (!partners.lower) {
                OK(MPI_Irecv(buffer, bytes, MPI_BYTE, partners.peer, kTag, run.comm, &request));
            }
            if (partners.lower) {
                OK(MPI_Send(buffer, bytes, MPI_BYTE, partners.peer, kTag, run.comm));
            }
        } else {
            if (partners.lower) {
                OK(MPI_Isend(buffer, bytes, MPI_BYTE, partners.peer, kTag, run.comm, &request));
            }
            if (!partners.lower) {
                OK(MPI_Recv(buffer, bytes, MPI_BYTE, partners.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            }
        }
        OK(MPI_Barrier(run.comm));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

void persistent(Run& run) {
    const Partners partners(run);
    const int bytes = 5 * chunk_bytes + 7;
    std::byte* out = run.input(to_size(bytes));
    std::byte* in = run.input(to_size(bytes));
    std::vector<MPI_Request> requests(2, MPI_REQUEST_NULL);
    OK(MPI_Send_init(out, bytes, MPI_BYTE, partners.peer, kTag, run.comm, &requests[0]));
    OK(MPI_Recv_init(in, bytes, MPI_BYTE, partners.peer, kTag, run.comm, &requests[1]));
    for (int round = 0; round < 6; ++round) {
        const Step step(run, format("round %d", round));
        OK(MPI_Startall(2, requests.data()));
        await_all(run, requests);
        run.note_bytes(format("round %d", round), in, to_size(bytes));
        run.refill(out, to_size(bytes), static_cast<std::uint64_t>(round));
    }
    for (MPI_Request& request : requests) {
        OK(MPI_Request_free(&request));
    }
}

/// The program gives the request away before the message has left.
void freed(Run& run) {
    const Partners partners(run);
    if (!partners.active) {
        return;
    }
    for (const int bytes : sizes()) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        MPI_Request request;
        OK(MPI_Isend(out, bytes, MPI_BYTE, partners.peer, kTag, run.comm, &request));
        OK(MPI_Request_free(&request));
        OK(MPI_Recv(in, bytes, MPI_BYTE, partners.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        // Only now is the buffer the sender's again.
        OK(MPI_Sendrecv(nullptr, 0, MPI_BYTE, partners.peer, kReadyTag, nullptr, 0, MPI_BYTE, partners.peer, kReadyTag,
                        run.comm, MPI_STATUS_IGNORE));
    }
}

// ---- what does not fit ----------------------------------------------------------------------------------------------

/// What comes is longer than its receive; the next message is whole.
[[maybe_unused]] void truncated(Run& run) {
    const Partners partners(run);
    for (const int room : {0, 8, 100, 575, 600, chunk_bytes - 1, chunk_bytes, chunk_bytes + 1, 5 * chunk_bytes}) {
        const int bytes = 5 * chunk_bytes + 7;
        std::byte* buffer = run.input(to_size(bytes));
        std::byte* next = run.input(to_size(bytes));
        const Step step(run, format("%d into %d", bytes, room));
        if (partners.lower) {
            OK(MPI_Send(buffer, bytes, MPI_BYTE, partners.peer, kTag, run.comm));
            OK(MPI_Send(next, bytes, MPI_BYTE, partners.peer, kTag, run.comm));
        } else if (partners.active) {
            const int code = MPI_Recv(buffer, room, MPI_BYTE, partners.peer, kTag, run.comm, MPI_STATUS_IGNORE);
            run.note(format("class for %d", room), error_class(code));
            OK(MPI_Recv(next, bytes, MPI_BYTE, partners.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    }
}

// ---- probes ---------------------------------------------------------------------------------------------------------

/// Large messages, and host messages of lengths that a layer may use for messages of its own, all under way together
/// and each found by a probe.
void probed(Run& run) {
    const Partners partners(run);
    constexpr int kFirst = 60, kLast = 580, kStep = 9;
    std::vector<int> lengths;
    for (int length = kFirst; length <= kLast; length += kStep) {
        lengths.push_back(length);
        lengths.push_back(chunk_bytes + length);
    }
    std::byte* host = run.host(to_size(kLast));
    std::byte* device = run.input(to_size(chunk_bytes + kLast));
    std::byte* into = run.transient(to_size(chunk_bytes + kLast));
    const Step step(run, "all lengths");
    if (partners.lower) {
        std::vector<MPI_Request> requests;
        for (const int length : lengths) {
            requests.emplace_back();
            const bool large = length > kLast;
            OK(MPI_Isend(large ? device : host, length, MPI_BYTE, partners.peer, kTag, run.comm, &requests.back()));
        }
        await_all(run, requests);
    } else if (partners.active) {
        for (std::size_t at = 0; at < lengths.size(); ++at) {
            MPI_Status status{};
            int count = -1;
            if (at % 3 == 0) {
                OK(MPI_Probe(MPI_ANY_SOURCE, kTag, run.comm, &status));
                OK(MPI_Get_count(&status, MPI_BYTE, &count));
                OK(MPI_Recv(into, count, MPI_BYTE, partners.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            } else {
                MPI_Message message = MPI_MESSAGE_NULL;
                int found = 0;
                while (found == 0) {
                    OK(MPI_Improbe(partners.peer, at % 3 == 1 ? kTag : MPI_ANY_TAG, run.comm, &found, &message,
                                   &status));
                }
                OK(MPI_Get_count(&status, MPI_BYTE, &count));
                OK(MPI_Mrecv(into, count, MPI_BYTE, &message, MPI_STATUS_IGNORE));
            }
            run.expect(count == lengths[at],
                       format("message %zu has %d bytes, the probe says %d", at, lengths[at], count));
            run.note_bytes(format("message %zu", at), into, to_size(lengths[at]));
        }
    }
}

// ---- many -----------------------------------------------------------------------------------------------------------

/// Everybody sends to everybody, to itself too, in all sizes at once, and receives from anybody.
void all_to_all(Run& run, bool any_source) {
    const std::vector<int> all = sizes();
    std::vector<MPI_Request> requests;
    const Step step(run, "all");
    for (int peer = 0; peer < run.size; ++peer) {
        for (std::size_t at = 0; at < all.size(); ++at) {
            requests.emplace_back();
            OK(MPI_Irecv(run.input(to_size(all[at])), all[at], MPI_BYTE, peer, static_cast<int>(at), run.comm,
                         &requests.back()));
        }
    }
    std::byte* found = run.transient(to_size(all.back()));
    for (int peer = 0; peer < run.size; ++peer) {
        for (std::size_t at = 0; at < all.size(); ++at) {
            requests.emplace_back();
            OK(MPI_Isend(run.input(to_size(all[at])), all[at], MPI_BYTE, peer, static_cast<int>(at), run.comm,
                         &requests.back()));
        }
        if (any_source) {
            requests.emplace_back();
            OK(MPI_Isend(run.input(to_size(all.back())), all.back(), MPI_BYTE, peer, 99, run.comm, &requests.back()));
        }
    }
    for (int message = 0; any_source && message < run.size; ++message) {
        MPI_Status status{};
        OK(MPI_Recv(found, all.back(), MPI_BYTE, MPI_ANY_SOURCE, 99, run.comm, &status));
        run.note_bytes(format("from %d", status.MPI_SOURCE), found, to_size(all.back()));
    }
    await_all(run, requests);
}

/// More messages at once than a layer may have names for, in one order sent and in another received.
void very_many(Run& run) {
    const Partners partners(run);
    if (!partners.active) {
        return;
    }
    constexpr int kMessages = 600;
    const int bytes = chunk_bytes + 3;
    std::vector<MPI_Request> requests;
    std::byte* out = run.input(to_size(bytes) * kMessages);
    std::byte* in = run.input(to_size(bytes) * kMessages);
    const Step step(run, "all");
    for (int at = 0; at < kMessages; ++at) {
        requests.emplace_back();
        OK(MPI_Isend(out + to_size(at) * to_size(bytes), bytes, MPI_BYTE, partners.peer, at, run.comm,
                     &requests.back()));
    }
    for (int at = kMessages; at-- > 0;) {
        if (at % 2 == 0) {
            OK(MPI_Recv(in + to_size(at) * to_size(bytes), bytes, MPI_BYTE, partners.peer, at, run.comm,
                        MPI_STATUS_IGNORE));
        } else {
            requests.emplace_back();
            OK(MPI_Irecv(in + to_size(at) * to_size(bytes), bytes, MPI_BYTE, partners.peer, at, run.comm,
                         &requests.back()));
        }
    }
    await_all(run, requests);
}

/// Messages of one tag arrive in the order in which they were sent, be they cut or whole, device or host.
void in_order(Run& run) {
    const Partners partners(run);
    constexpr int kMessages = 40;
    const auto size_of = [&](int at) { return at % 3 == 0 ? 8 : at % 3 == 1 ? 3 * chunk_bytes + at : chunk_bytes / 2; };
    const Step step(run, "all");
    for (int at = 0; at < kMessages; ++at) {
        std::byte* device = run.input(to_size(size_of(at)));
        std::byte* host = run.host(to_size(size_of(at)));
        std::byte* buffer = at % 4 == 3 ? host : device;
        if (partners.lower) {
            OK(MPI_Send(buffer, size_of(at), MPI_BYTE, partners.peer, kTag, run.comm));
        }
        if (!partners.lower && partners.active) {
            MPI_Status status{};
            OK(MPI_Recv(buffer, size_of(at), MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, run.comm, &status));
            run.note_status(format("message %d", at), status, MPI_BYTE);
        }
    }
}

void rings(Run& run) {
    const Ring ring(run);
    const Partners partners(run);
    for (const int bytes : sizes()) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        OK(MPI_Sendrecv(out, bytes, MPI_BYTE, ring.next, kTag, in, bytes, MPI_BYTE, ring.previous, kTag, run.comm,
                        MPI_STATUS_IGNORE));
        OK(MPI_Sendrecv_replace(out, bytes, MPI_BYTE, ring.next, kTag, ring.previous, kTag, run.comm,
                                MPI_STATUS_IGNORE));
        OK(MPI_Sendrecv(out, bytes, MPI_BYTE, partners.peer, kTag, in, bytes, MPI_BYTE, partners.peer, kTag, run.comm,
                        MPI_STATUS_IGNORE));
    }
}

// ---- layouts, communicators -----------------------------------------------------------------------------------------

/// Contiguous on one side, with gaps on the other.
void layouts(Run& run) {
    const Partners partners(run);
    const int blocks = chunk_bytes / 2;
    MPI_Datatype gaps = MPI_DATATYPE_NULL;
    OK(MPI_Type_vector(blocks, 3, 5, MPI_INT, &gaps));
    OK(MPI_Type_commit(&gaps));
    const std::size_t wide = to_size(blocks * 5) * sizeof(int), dense = to_size(blocks * 3) * sizeof(int);
    for (const bool gaps_out : {true, false}) {
        std::byte* sparse = run.input(wide);
        std::byte* packed = run.input(dense);
        const Step step(run, gaps_out ? "gaps sent" : "gaps received");
        const bool with_gaps = partners.lower == gaps_out;
        void* buffer = with_gaps ? sparse : packed;
        const int count = with_gaps ? 1 : blocks * 3;
        const MPI_Datatype type = with_gaps ? gaps : MPI_INT;
        if (partners.lower) {
            OK(MPI_Send(buffer, count, type, partners.peer, kTag, run.comm));
        }
        if (!partners.lower && partners.active) {
            MPI_Status status{};
            OK(MPI_Recv(buffer, count, type, partners.peer, kTag, run.comm, &status));
            run.note_status(gaps_out ? "gaps sent" : "gaps received", status, MPI_INT);
        }
    }
    OK(MPI_Type_free(&gaps));
}

/// Ranks have other numbers there.
void other_numbers(Run& run) {
    MPI_Comm turned = MPI_COMM_NULL;
    OK(MPI_Comm_split(run.comm, 0, run.size - run.rank, &turned));
    const int me = run.size - 1 - run.rank, bytes = 7 * chunk_bytes + 1;
    std::byte* out = run.input(to_size(bytes));
    std::byte* in = run.input(to_size(bytes));
    const Step step(run, "ring");
    OK(MPI_Sendrecv(out, bytes, MPI_BYTE, (me + 1) % run.size, kTag, in, bytes, MPI_BYTE,
                    (me + run.size - 1) % run.size, kTag, turned, MPI_STATUS_IGNORE));
    OK(MPI_Comm_free(&turned));
}

/// Each thread has a partner of its own in the other node.
void by_threads(Run& run) {
    if (!several_threads) {
        return;
    }
    const Partners partners(run);
    constexpr int kThreads = 3, kRounds = 8;
    const int bytes = 6 * chunk_bytes + 5;
    std::vector<std::byte*> outs, ins;
    for (int thread = 0; thread < kThreads; ++thread) {
        outs.push_back(run.input(to_size(bytes)));
        ins.push_back(run.input(to_size(bytes)));
    }
    run.watch_current(false);
    std::array<int, kThreads> errors{};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
        threads.emplace_back([&, thread] {
            const auto at = to_size(thread);
            for (int round = 0; round < kRounds; ++round) {
                MPI_Request request;
                errors[at] += MPI_Irecv(ins[at], bytes, MPI_BYTE, partners.peer, kTag + thread, run.comm, &request);
                errors[at] += MPI_Send(outs[at], bytes, MPI_BYTE, partners.peer, kTag + thread, run.comm);
                errors[at] += MPI_Wait(&request, MPI_STATUS_IGNORE);
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const int error : errors) {
        run.expect(error == MPI_SUCCESS, "no call of a thread fails");
    }
    run.watch_current(true);
}

void add_cases(Suite& suite) {
    const std::vector<std::pair<std::string, Sender>> senders = {
        {"send", [](Run& run, const void* buffer, int bytes,
                    int to) { OK(MPI_Send(buffer, bytes, MPI_BYTE, to, kTag, run.comm)); }},
        {"ssend", [](Run& run, const void* buffer, int bytes,
                     int to) { OK(MPI_Ssend(buffer, bytes, MPI_BYTE, to, kTag, run.comm)); }},
        {"rsend", [](Run& run, const void* buffer, int bytes,
                     int to) { OK(MPI_Rsend(buffer, bytes, MPI_BYTE, to, kTag, run.comm)); }},
        {"isend",
         [](Run& run, const void* buffer, int bytes, int to) {
             MPI_Request request;
             OK(MPI_Isend(buffer, bytes, MPI_BYTE, to, kTag, run.comm, &request));
             OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
         }},
    };
    for (const auto& [name, send] : senders) {
        suite.add("there_and_back_" + name, [send = send](Run& run) { there_and_back(run, send); });
    }
    suite.add("buffered", buffered);
    suite.add("blocking_send_then_elsewhere", [](Run& run) { elsewhere(run, true); });
    suite.add("nonblocking_send_then_elsewhere", [](Run& run) { elsewhere(run, false); });
    suite.add("persistent", persistent);
    suite.add("freed", freed);
#ifndef OPEN_MPI  // Open MPI 5.0.11 writes the whole of such a message, on host memory too: beyond the buffer
    suite.add("truncated", truncated);
#endif
    suite.add("all_to_all", [](Run& run) { all_to_all(run, false); });
    suite.add("from_anybody", [](Run& run) { all_to_all(run, true); });
    suite.add("very_many", very_many);
    suite.add("in_order", in_order);
    suite.add("rings", rings);
    suite.add("layouts", layouts);
    suite.add("other_numbers", other_numbers);
    suite.add("threads", by_threads);
    // Last, since it uses up the lengths that messages of the layer's own may have.
    suite.add("probed", probed);
}

}  // namespace

int main(int argc, char** argv) {
    if (const auto text = take_option(argc, argv, "--chunk-bytes")) {
        chunk_bytes = std::stoi(*text);
    }
    if (const auto text = take_option(argc, argv, "--distance")) {
        distance = std::stoi(*text);
    }
    const bool threads = take_option(argc, argv, "--threads").has_value();
    Suite suite(argc, argv);
    int provided = MPI_THREAD_SINGLE;
    if (threads) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    } else {
        MPI_Init(&argc, &argv);
    }
    several_threads = provided == MPI_THREAD_MULTIPLE;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && several_threads) {
        std::printf("# several threads\n");
    }
    add_cases(suite);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
