// SPDX-License-Identifier: Apache-2.0
// Point-to-point operations: every mode, probing, wildcards, order, edge cases, on every mix of buffer kinds.
#include "support.h"

using namespace ranks;

namespace {

/// Around the limits that matter: nothing, less than a header, eager and rendezvous sizes of the MPIs, odd lengths.
const std::vector<int> kSizes = {0, 1, 8, 13, 127, 1024, 4096, 65536 - 8, 262144 + 8, 1 << 20, (3 << 20) + 5};
constexpr int kTag = 7;
constexpr int kGoTag = 8;

using BlockingSend = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm);
using NonblockingSend = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

/// Keeps a buffer attached for the buffered modes while it lives.
class AttachedBuffer {
  public:
    explicit AttachedBuffer(std::size_t bytes) : _memory(bytes) {
        MPI_Buffer_attach(_memory.data(), static_cast<int>(bytes));
    }
    ~AttachedBuffer() {
        void* address = nullptr;
        int bytes = 0;
        MPI_Buffer_detach(&address, &bytes);
    }

  private:
    std::vector<std::byte> _memory;
};

/// The receiver says that its receive is posted; ready sends may start.
void say_ready(Run& run, const Pair& pair) {
    OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kGoTag, run.comm));
}
void await_ready(Run& run, const Pair& pair) {
    OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kGoTag, run.comm, MPI_STATUS_IGNORE));
}

void blocking_mode(Run& run, BlockingSend send, bool buffered) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(static_cast<std::size_t>(bytes));
        if (pair.sender) {
            await_ready(run, pair);
            if (buffered) {
                const AttachedBuffer attached(static_cast<std::size_t>(bytes) + MPI_BSEND_OVERHEAD + 256);
                OK(send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
                // A buffered send has taken its data: the buffer may change at once.
                if (bytes > 0) {
                    run.refill(buffer, static_cast<std::size_t>(bytes), 1);
                }
            } else {
                OK(send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
                if (bytes > 0) {
                    run.refill(buffer, static_cast<std::size_t>(bytes), 1);
                }
            }
        } else if (pair.receiver) {
            MPI_Request request;
            MPI_Status status{};
            OK(MPI_Irecv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
            say_ready(run, pair);
            OK(MPI_Wait(&request, &status));
            run.note_status(format("receive of %d", bytes), status, MPI_BYTE);
        }
    }
}

void nonblocking_mode(Run& run, NonblockingSend send, bool buffered) {
    const Pair pair(run);
    std::size_t total = 256;
    for (const int bytes : kSizes) {
        total += static_cast<std::size_t>(bytes) + MPI_BSEND_OVERHEAD + 64;
    }
    std::unique_ptr<AttachedBuffer> attached;
    if (buffered && pair.sender) {
        attached = std::make_unique<AttachedBuffer>(total);
    }
    std::vector<MPI_Request> requests;
    std::vector<std::byte*> buffers;
    for (const int bytes : kSizes) {
        buffers.push_back(run.input(static_cast<std::size_t>(bytes)));
    }
    if (pair.receiver) {
        for (std::size_t at = 0; at < kSizes.size(); ++at) {
            requests.emplace_back();
            OK(MPI_Irecv(buffers[at], kSizes[at], MPI_BYTE, pair.peer, kTag, run.comm, &requests.back()));
        }
        say_ready(run, pair);
    } else if (pair.sender) {
        await_ready(run, pair);
        for (std::size_t at = 0; at < kSizes.size(); ++at) {
            requests.emplace_back();
            OK(send(buffers[at], kSizes[at], MPI_BYTE, pair.peer, kTag, run.comm, &requests.back()));
        }
    }
    std::vector<MPI_Status> statuses(requests.size());
    OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), statuses.data()));
    for (std::size_t at = 0; pair.receiver && at < statuses.size(); ++at) {
        run.note_status(format("receive of %d", kSizes[at]), statuses[at], MPI_BYTE);
    }
}

/// Receives by the given function while the peer sends each size; tells the size by probing first.
template <class Receive>
void probed(Run& run, Receive receive) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        if (pair.sender) {
            std::byte* buffer = run.input(static_cast<std::size_t>(bytes));
            OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
        } else if (pair.receiver) {
            receive(pair, bytes);
        } else {
            run.input(static_cast<std::size_t>(bytes));
        }
    }
}

void order_of_messages(Run& run) {
    const Pair pair(run);
    constexpr int kMessages = 40;
    std::vector<std::byte*> buffers;
    std::vector<int> lengths;
    for (int at = 0; at < kMessages; ++at) {
        lengths.push_back(static_cast<int>(combine(5, static_cast<std::uint64_t>(at)) % 3000) +
                          (at % 9 == 0 ? 90000 : 0));
        buffers.push_back(run.input(static_cast<std::size_t>(lengths.back())));
    }
    std::vector<MPI_Request> requests;
    for (int at = 0; at < kMessages; ++at) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (pair.sender) {
            OK(MPI_Isend(buffers[at], lengths[at], MPI_BYTE, pair.peer, at % 5 == 0 ? kTag + 1 : kTag, run.comm,
                         &request));
        } else if (pair.receiver) {
            OK(MPI_Irecv(buffers[at], lengths[at], MPI_BYTE, at % 3 == 0 ? MPI_ANY_SOURCE : pair.peer,
                         at % 5 == 0 ? kTag + 1 : kTag, run.comm, &request));
        }
        requests.push_back(request);
    }
    OK(MPI_Waitall(kMessages, requests.data(), MPI_STATUSES_IGNORE));
}

void wildcards_from_many(Run& run) {
    constexpr int kBytes = 5000;
    if (run.rank == 0) {
        for (int message = 0; message < 3 * (run.size - 1); ++message) {
            // Which message comes is the scheduler's choice, so the content goes by source and tag.
            std::byte* buffer = run.transient(kBytes);
            MPI_Status status{};
            OK(MPI_Recv(buffer, kBytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, run.comm, &status));
            const std::string name = format("from %d tag %d", status.MPI_SOURCE, status.MPI_TAG);
            run.note_status(name, status, MPI_BYTE);
            run.note_bytes(name, buffer, static_cast<std::size_t>(100 * status.MPI_TAG));
        }
    } else {
        for (int tag = 1; tag <= 3; ++tag) {
            std::byte* buffer = run.input(kBytes);
            OK(MPI_Send(buffer, 100 * tag, MPI_BYTE, 0, tag, run.comm));
        }
    }
}

void self_messages(Run& run) {
    for (const int bytes : {1, 100, 70000, 1 << 20}) {
        const auto size = static_cast<std::size_t>(bytes);
        std::byte* out = run.input(size);
        std::byte* in = run.input(size);
        MPI_Request request;
        OK(MPI_Isend(out, bytes, MPI_BYTE, run.rank, kTag, run.comm, &request));
        MPI_Status status{};
        OK(MPI_Recv(in, bytes, MPI_BYTE, run.rank, kTag, run.comm, &status));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        run.note_status("from myself", status, MPI_BYTE);

        std::byte* out2 = run.input(size);
        std::byte* in2 = run.input(size);
        OK(MPI_Sendrecv(out2, bytes, MPI_BYTE, run.rank, kTag, in2, bytes, MPI_BYTE, run.rank, kTag, run.comm,
                        &status));
        std::byte* both = run.input(size);
        OK(MPI_Sendrecv_replace(both, bytes, MPI_BYTE, run.rank, kTag, run.rank, kTag, run.comm, &status));

        std::byte* in3 = run.input(size);
        OK(MPI_Irecv(in3, bytes, MPI_BYTE, run.rank, kTag, run.comm, &request));
        OK(MPI_Send(in2, bytes, MPI_BYTE, run.rank, kTag, run.comm));
        OK(MPI_Wait(&request, &status));

        std::byte* in4 = run.input(size);
        OK(MPI_Irecv(in4, bytes, MPI_BYTE, 0, kTag, MPI_COMM_SELF, &request));
        OK(MPI_Ssend(out, bytes, MPI_BYTE, 0, kTag, MPI_COMM_SELF));
        OK(MPI_Wait(&request, &status));
    }
}

void proc_null(Run& run) {
    std::byte* buffer = run.input(4096);
    MPI_Status status{};
    OK(MPI_Send(buffer, 4096, MPI_BYTE, MPI_PROC_NULL, kTag, run.comm));
    OK(MPI_Ssend(buffer, 4096, MPI_BYTE, MPI_PROC_NULL, kTag, run.comm));
    OK(MPI_Recv(buffer, 4096, MPI_BYTE, MPI_PROC_NULL, kTag, run.comm, &status));
    run.note_status("receive", status, MPI_BYTE);
    OK(MPI_Sendrecv(buffer, 100, MPI_BYTE, MPI_PROC_NULL, kTag, buffer + 2000, 100, MPI_BYTE, MPI_PROC_NULL, kTag,
                    run.comm, &status));
    run.note_status("sendrecv", status, MPI_BYTE);
    OK(MPI_Sendrecv_replace(buffer, 100, MPI_BYTE, MPI_PROC_NULL, kTag, MPI_PROC_NULL, kTag, run.comm, &status));
    run.note_status("sendrecv_replace", status, MPI_BYTE);
    MPI_Request requests[2];
    OK(MPI_Isend(buffer, 4096, MPI_BYTE, MPI_PROC_NULL, kTag, run.comm, &requests[0]));
    OK(MPI_Irecv(buffer, 4096, MPI_BYTE, MPI_PROC_NULL, kTag, run.comm, &requests[1]));
    MPI_Status statuses[2]{};
    OK(MPI_Waitall(2, requests, statuses));
    run.note_status("irecv", statuses[1], MPI_BYTE);
    OK(MPI_Probe(MPI_PROC_NULL, kTag, run.comm, &status));
    run.note_status("probe", status, MPI_BYTE);
    MPI_Message message;
    OK(MPI_Mprobe(MPI_PROC_NULL, kTag, run.comm, &message, &status));
    run.expect(message == MPI_MESSAGE_NO_PROC, "Mprobe of MPI_PROC_NULL gives MPI_MESSAGE_NO_PROC");
    OK(MPI_Mrecv(buffer, 4096, MPI_BYTE, &message, &status));
    run.note_status("mrecv", status, MPI_BYTE);
    // One side of an exchange is null, the other is not: the ends of a line.
    std::byte* out = run.input(3000);
    std::byte* in = run.input(3000);
    const int up = run.rank + 1 < run.size ? run.rank + 1 : MPI_PROC_NULL;
    const int down = run.rank > 0 ? run.rank - 1 : MPI_PROC_NULL;
    OK(MPI_Sendrecv(out, 3000, MPI_BYTE, up, kTag, in, 3000, MPI_BYTE, down, kTag, run.comm, &status));
    run.note_status("line", status, MPI_BYTE);
#if RANKS_HAVE_MPI4
    MPI_Request request;
    OK(MPI_Isendrecv(out, 3000, MPI_BYTE, up, kTag, in, 3000, MPI_BYTE, down, kTag, run.comm, &request));
    OK(MPI_Wait(&request, &status));
#ifdef OPEN_MPI  // MPICH's status says nothing
    run.note_status("nonblocking line", status, MPI_BYTE);
#endif
#endif
}

void zero_counts(Run& run) {
    const Ring ring(run);
    std::byte* out = run.input(64);
    std::byte* in = run.input(64);
    MPI_Status status{};
    OK(MPI_Sendrecv(nullptr, 0, MPI_DOUBLE, ring.next, kTag, nullptr, 0, MPI_DOUBLE, ring.previous, kTag, run.comm,
                    &status));
    run.note_status("null", status, MPI_DOUBLE);
    OK(MPI_Sendrecv(out, 0, MPI_DOUBLE, ring.next, kTag, in, 8, MPI_DOUBLE, ring.previous, kTag, run.comm, &status));
    run.note_status("nothing into a buffer", status, MPI_DOUBLE);
    // Freed memory and addresses that never were memory are legal where nothing is transferred.
    void* nonsense = reinterpret_cast<void*>(std::uintptr_t{0x10});
    OK(MPI_Sendrecv(nonsense, 0, MPI_BYTE, ring.next, kTag, nonsense, 0, MPI_BYTE, ring.previous, kTag, run.comm,
                    &status));
    MPI_Datatype empty;
    OK(MPI_Type_contiguous(0, MPI_INT, &empty));
    OK(MPI_Type_commit(&empty));
    OK(MPI_Sendrecv(out, 5, empty, ring.next, kTag, in, 5, empty, ring.previous, kTag, run.comm, &status));
    run.note_status("empty type", status, MPI_BYTE);
    OK(MPI_Type_free(&empty));
}

void truncation(Run& run, int sent, int room) {
    const Pair pair(run);
    std::byte* buffer = run.input(static_cast<std::size_t>(std::max(sent, room)));
    std::byte* second = run.input(512);
    if (pair.sender) {
        OK(MPI_Send(buffer, sent, MPI_BYTE, pair.peer, kTag, run.comm));
        OK(MPI_Send(second, 512, MPI_BYTE, pair.peer, kTag, run.comm));
    } else if (pair.receiver) {
        const int code = MPI_Recv(buffer, room, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE);
        run.note("error class", error_class(code));
        run.expect(error_class(code) == MPI_ERR_TRUNCATE, "a receive that is too short gives MPI_ERR_TRUNCATE");
        // The connection must have survived it.
        OK(MPI_Recv(second, 512, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
    }
}

void truncation_nonblocking(Run& run) {
    const Pair pair(run);
    std::byte* buffer = run.input(2048);
    std::byte* second = run.input(512);
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    if (pair.sender) {
        OK(MPI_Isend(buffer, 2048, MPI_BYTE, pair.peer, kTag, run.comm, &requests[0]));
        OK(MPI_Isend(second, 512, MPI_BYTE, pair.peer, kTag, run.comm, &requests[1]));
        OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    } else if (pair.receiver) {
        OK(MPI_Irecv(buffer, 1000, MPI_BYTE, pair.peer, kTag, run.comm, &requests[0]));
        OK(MPI_Irecv(second, 512, MPI_BYTE, pair.peer, kTag, run.comm, &requests[1]));
        // One by one: what Waitall leaves in the statuses after the first error differs between MPIs.
        run.note("first", error_class(MPI_Wait(&requests[0], MPI_STATUS_IGNORE)));
        run.note("second", error_class(MPI_Wait(&requests[1], MPI_STATUS_IGNORE)));
        run.expect(requests[0] == MPI_REQUEST_NULL && requests[1] == MPI_REQUEST_NULL, "requests are null afterwards");
    }
}

void shorter_than_the_buffer(Run& run) {
    const Pair pair(run);
    for (const auto& [sent, room] :
         std::vector<std::pair<int, int>>{{8, 1024}, {100, 128}, {1, 100000}, {70000, 1 << 20}}) {
        std::byte* buffer = run.input(static_cast<std::size_t>(room));
        MPI_Status status{};
        if (pair.sender) {
            OK(MPI_Send(buffer, sent, MPI_BYTE, pair.peer, kTag, run.comm));
        } else if (pair.receiver) {
            OK(MPI_Recv(buffer, room, MPI_BYTE, pair.peer, kTag, run.comm, &status));
            run.note_status(format("%d of %d", sent, room), status, MPI_BYTE);
        }
    }
}

void small_sends_do_not_wait(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    // Both send first: MPI does not promise that this works, and every program that is in use relies on it.
    for (const int bytes : {1, 8, 64, 256, 1024}) {
        std::byte* out = run.input(static_cast<std::size_t>(bytes));
        std::byte* in = run.input(static_cast<std::size_t>(bytes));
        OK(MPI_Send(out, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
        OK(MPI_Recv(in, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
    }
    std::vector<std::byte*> buffers;
    for (int at = 0; at < 24; ++at) {
        buffers.push_back(run.input(128));
    }
    if (pair.sender) {
        for (std::byte* buffer : buffers) {
            OK(MPI_Send(buffer, 128, MPI_BYTE, pair.peer, kTag, run.comm));
        }
        OK(MPI_Ssend(nullptr, 0, MPI_BYTE, pair.peer, kGoTag, run.comm));
    } else {
        OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kGoTag, run.comm, MPI_STATUS_IGNORE));
        for (std::byte* buffer : buffers) {
            OK(MPI_Recv(buffer, 128, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    }
}

/// A send must complete though its receiver sits in a native call and does not come back to the layer before that.
void progress_without_the_receiver(Run& run) {
    const Pair pair(run);
    for (const int bytes : {64, 100000, 4 << 20}) {
        std::byte* buffer = run.input(static_cast<std::size_t>(bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        if (pair.receiver) {
            OK(MPI_Irecv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        }
        if (pair.sender) {
            OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
        }
        OK(MPI_Barrier(run.comm));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        // The other way round: the sender's request is completed only after a barrier.
        std::byte* second = run.input(static_cast<std::size_t>(bytes));
        if (pair.sender) {
            OK(MPI_Isend(second, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        }
        if (pair.receiver) {
            OK(MPI_Recv(second, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
        OK(MPI_Barrier(run.comm));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

#if RANKS_HAVE_MPI4
/// The process's first call on device memory goes on while others make it ready for what it was not ready for then.
void exchange_before_all_others(Run& run) {
    const Pair pair(run);
    constexpr int kBytes = 1 << 20, kSmall = 4096;
    if (!pair.sender && !pair.receiver) {
        return;
    }
    std::byte* first_in = run.input(kBytes);
    std::byte* first_out = run.input(kSmall);
    MPI_Request request = MPI_REQUEST_NULL;
    if (pair.receiver) {
        OK(MPI_Isendrecv(first_out, kSmall, MPI_BYTE, pair.peer, kTag + 1, first_in, kBytes, MPI_BYTE, pair.peer,
                         kTag + 2, run.comm, &request));
    }
    for (int turn = 0; turn < 3; ++turn) {
        std::byte* buffer = run.input(kSmall);
        if (pair.sender) {
            OK(MPI_Send(buffer, kSmall, MPI_BYTE, pair.peer, kTag, run.comm));
            OK(MPI_Recv(buffer, kSmall, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        } else {
            OK(MPI_Recv(buffer, kSmall, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            OK(MPI_Send(buffer, kSmall, MPI_BYTE, pair.peer, kTag, run.comm));
        }
    }
    if (pair.sender) {
        OK(MPI_Recv(first_out, kSmall, MPI_BYTE, pair.peer, kTag + 1, run.comm, MPI_STATUS_IGNORE));
        OK(MPI_Send(first_in, kBytes, MPI_BYTE, pair.peer, kTag + 2, run.comm));
    } else {
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));  // MPICH's status does not say how much came
    }
}
#endif

void exchanges(Run& run) {
    const Ring ring(run);
    for (const int bytes : kSizes) {
        const auto size = static_cast<std::size_t>(bytes);
        std::byte* out = run.input(size);
        std::byte* in = run.input(size + 16);
        MPI_Status status{};
        OK(MPI_Sendrecv(out, bytes, MPI_BYTE, ring.next, kTag, in, bytes + 16, MPI_BYTE, ring.previous, MPI_ANY_TAG,
                        run.comm, &status));
        run.note_status(format("sendrecv %d", bytes), status, MPI_BYTE);
        std::byte* both = run.input(size);
        OK(MPI_Sendrecv_replace(both, bytes, MPI_BYTE, ring.next, kTag, ring.previous, kTag, run.comm, &status));
        run.note_status(format("sendrecv_replace %d", bytes), status, MPI_BYTE);
#if RANKS_HAVE_MPI4
        MPI_Request request;
        std::byte* out2 = run.input(size);
        std::byte* in2 = run.input(size);
        OK(MPI_Isendrecv(out2, bytes, MPI_BYTE, ring.previous, kTag, in2, bytes, MPI_BYTE, ring.next, kTag, run.comm,
                         &request));
        OK(MPI_Wait(&request, &status));
        std::byte* both2 = run.input(size);
        OK(MPI_Isendrecv_replace(both2, bytes, MPI_BYTE, ring.previous, kTag, ring.next, kTag, run.comm, &request));
        OK(MPI_Wait(&request, &status));
#endif
    }
}

void blocking_receives_of_every_size(Run& run) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(static_cast<std::size_t>(bytes));
        MPI_Status status{};
        if (pair.sender) {
            OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
            OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &status));
            run.note_status("back", status, MPI_BYTE);
        } else if (pair.receiver) {
            std::byte* received = run.input(static_cast<std::size_t>(bytes));
            OK(MPI_Recv(received, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
        }
    }
}

/// Both sides exchange with every pair of kinds, whatever the mix says.
void every_pair_of_kinds(Run& run) {
    const Pair pair(run);
    for (int from = 0; from < kKinds; ++from) {
        for (int to = 0; to < kKinds; ++to) {
            for (const int bytes : {24, 3000, 200000}) {
                const Kind kind = static_cast<Kind>(run.rank % 2 == 0 ? from : to);
                std::byte* buffer = run.input_of(kind, static_cast<std::size_t>(bytes));
                if (pair.sender) {
                    OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
                }
                if (pair.receiver) {
                    OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
                }
            }
        }
    }
}

/// More than the default pinned pool (64 MiB) holds, at one time and in one piece.
void beyond_the_pool(Run& run) {
    const Pair pair(run);
    constexpr int kBytes = 72 << 20;
    std::byte* buffer = run.input(kBytes);
    if (pair.sender) {
        OK(MPI_Send(buffer, kBytes, MPI_BYTE, pair.peer, kTag, run.comm));
    }
    if (pair.receiver) {
        OK(MPI_Recv(buffer, kBytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
    }
}

/// Interior pointers at every alignment.
void unaligned(Run& run) {
    const Pair pair(run);
    std::byte* buffer = run.input(4096);
    for (int offset = 1; offset < 40; offset += 3) {
        const int bytes = 50 + offset;
        if (pair.sender) {
            OK(MPI_Send(buffer + 90 * offset % 3000 + offset, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
        }
        if (pair.receiver) {
            OK(MPI_Recv(buffer + 71 * offset % 3000 + offset, bytes, MPI_BYTE, pair.peer, kTag, run.comm,
                        MPI_STATUS_IGNORE));
        }
    }
}

#if RANKS_HAVE_LARGE_COUNT
void large_count_forms(Run& run) {
    const Ring ring(run);
    const MPI_Count count = 30001;
    const auto bytes = static_cast<std::size_t>(count) * sizeof(int);
    MPI_Status status{};
    std::byte* out = run.input(bytes);
    std::byte* in = run.input(bytes);
    MPI_Request requests[2];
    OK(MPI_Irecv_c(in, count, MPI_INT, ring.previous, kTag, run.comm, &requests[0]));
    OK(MPI_Isend_c(out, count, MPI_INT, ring.next, kTag, run.comm, &requests[1]));
    OK(MPI_Waitall(2, requests, MPI_STATUSES_IGNORE));
    std::byte* in2 = run.input(bytes);
    OK(MPI_Sendrecv_c(out, count, MPI_INT, ring.next, kTag, in2, count, MPI_INT, ring.previous, kTag, run.comm,
                      &status));
    MPI_Count received = -1;
    OK(MPI_Get_count_c(&status, MPI_INT, &received));
    run.note("count", received);
    MPI_Count elements = -1;
    OK(MPI_Get_elements_c(&status, MPI_INT, &elements));
    run.note("elements", elements);
    std::byte* both = run.input(bytes);
    OK(MPI_Sendrecv_replace_c(both, count, MPI_INT, ring.next, kTag, ring.previous, kTag, run.comm, &status));
    const Pair pair(run);
    std::byte* buffer = run.input(bytes);
    std::byte* second = run.input(bytes);
    if (pair.sender) {
        OK(MPI_Send_c(buffer, count, MPI_INT, pair.peer, kTag, run.comm));
        OK(MPI_Ssend_c(buffer, count, MPI_INT, pair.peer, kTag, run.comm));
        OK(MPI_Issend_c(buffer, count, MPI_INT, pair.peer, kTag, run.comm, &requests[0]));
        OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    } else if (pair.receiver) {
        OK(MPI_Recv_c(buffer, count, MPI_INT, pair.peer, kTag, run.comm, &status));
        OK(MPI_Recv_c(second, count + 0, MPI_INT, pair.peer, kTag, run.comm, &status));
        MPI_Message message;
        OK(MPI_Mprobe(pair.peer, kTag, run.comm, &message, &status));
        OK(MPI_Mrecv_c(second, count, MPI_INT, &message, &status));
    }
}

/// Beyond what an int counts: 2 GiB + 8 bytes.
void more_than_two_gibibytes(Run& run) {
    const Pair pair(run);
    constexpr MPI_Count kBytes = (MPI_Count{2} << 30) + 8;
    if (!pair.active) {
        return;
    }
    std::byte* buffer = run.input(static_cast<std::size_t>(kBytes));
    MPI_Status status{};
    if (pair.sender) {
        OK(MPI_Send_c(buffer, kBytes, MPI_BYTE, pair.peer, kTag, run.comm));
    }
    if (pair.receiver) {
        OK(MPI_Recv_c(buffer, kBytes, MPI_BYTE, pair.peer, kTag, run.comm, &status));
        MPI_Count received = 0;
        OK(MPI_Get_count_c(&status, MPI_BYTE, &received));
        run.note("received", received);
    }
}
#endif

void add_probing(Suite& suite) {
    suite.add("probe", [](Run& run) {
        probed(run, [&](const Pair& pair, int) {
            MPI_Status status{};
            int count = 0;
            OK(MPI_Probe(pair.peer, kTag, run.comm, &status));
            MPI_Get_count(&status, MPI_BYTE, &count);
            run.note("probed", count);
            std::byte* buffer = run.input(static_cast<std::size_t>(count));
            OK(MPI_Recv(buffer, count, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, run.comm, &status));
            run.note_status("received", status, MPI_BYTE);
        });
    });
    suite.add("iprobe", [](Run& run) {
        int flag = 1;
        OK(MPI_Iprobe(MPI_ANY_SOURCE, 999, run.comm, &flag, MPI_STATUS_IGNORE));
        run.note("nothing there", flag);
        probed(run, [&](const Pair&, int) {
            MPI_Status status{};
            int found = 0, count = 0;
            while (found == 0) {
                OK(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, run.comm, &found, &status));
            }
            MPI_Get_count(&status, MPI_BYTE, &count);
            run.note_status("probed", status, MPI_BYTE);
            std::byte* buffer = run.input(static_cast<std::size_t>(count));
            OK(MPI_Recv(buffer, count, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, run.comm, &status));
        });
    });
    suite.add("mprobe", [](Run& run) {
        probed(run, [&](const Pair&, int) {
            MPI_Status status{};
            MPI_Message message;
            int count = 0;
            OK(MPI_Mprobe(MPI_ANY_SOURCE, kTag, run.comm, &message, &status));
            MPI_Get_count(&status, MPI_BYTE, &count);
            std::byte* buffer = run.input(static_cast<std::size_t>(count));
            OK(MPI_Mrecv(buffer, count, MPI_BYTE, &message, &status));
            run.note_status("received", status, MPI_BYTE);
            run.expect(message == MPI_MESSAGE_NULL, "Mrecv sets the message to null");
        });
    });
    suite.add("improbe", [](Run& run) {
        probed(run, [&](const Pair& pair, int) {
            MPI_Status status{};
            MPI_Message message;
            int found = 0, count = 0;
            while (found == 0) {
                OK(MPI_Improbe(pair.peer, MPI_ANY_TAG, run.comm, &found, &message, &status));
            }
            MPI_Get_count(&status, MPI_BYTE, &count);
            run.note_status("probed", status, MPI_BYTE);
            std::byte* buffer = run.input(static_cast<std::size_t>(count) + 10);
            MPI_Request request;
            OK(MPI_Imrecv(buffer, count + 10, MPI_BYTE, &message, &request));
            OK(MPI_Wait(&request, &status));
            run.note_status("received", status, MPI_BYTE);
        });
    });
    suite.add("probe_takes_messages_out_of_order", [](Run& run) {
        const Pair pair(run);
        std::vector<std::byte*> buffers;
        for (int tag = 0; tag < 5; ++tag) {
            buffers.push_back(run.input(700));
        }
        if (pair.sender) {
            for (int tag = 0; tag < 5; ++tag) {
                OK(MPI_Send(buffers[tag], 100 * tag + 100, MPI_BYTE, pair.peer, tag, run.comm));
            }
        } else if (pair.receiver) {
            MPI_Message message;
            MPI_Status status{};
            OK(MPI_Mprobe(pair.peer, 3, run.comm, &message, &status));
            OK(MPI_Probe(pair.peer, 4, run.comm, &status));
            run.note_status("tag 4", status, MPI_BYTE);
            OK(MPI_Recv(buffers[0], 700, MPI_BYTE, pair.peer, MPI_ANY_TAG, run.comm, &status));
            run.note_status("any, first", status, MPI_BYTE);
            OK(MPI_Recv(buffers[4], 700, MPI_BYTE, pair.peer, 4, run.comm, &status));
            OK(MPI_Mrecv(buffers[3], 700, MPI_BYTE, &message, &status));
            run.note_status("matched", status, MPI_BYTE);
            OK(MPI_Recv(buffers[1], 700, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, run.comm, &status));
            run.note_status("any, second", status, MPI_BYTE);
            OK(MPI_Recv(buffers[2], 700, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, run.comm, &status));
            run.note_status("any, third", status, MPI_BYTE);
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
#if RANKS_HAVE_MPI4
    suite.add("exchange_before_all_others", exchange_before_all_others);
#endif
    const std::vector<std::pair<std::string, BlockingSend>> blocking = {
        {"send", MPI_Send}, {"ssend", MPI_Ssend}, {"rsend", MPI_Rsend}, {"bsend", MPI_Bsend}};
    for (const auto& [name, function] : blocking) {
        suite.add(name,
                  [name = name, function = function](Run& run) { blocking_mode(run, function, name == "bsend"); });
    }
    const std::vector<std::pair<std::string, NonblockingSend>> nonblocking = {
        {"isend", MPI_Isend}, {"issend", MPI_Issend}, {"irsend", MPI_Irsend}, {"ibsend", MPI_Ibsend}};
    for (const auto& [name, function] : nonblocking) {
        suite.add(name,
                  [name = name, function = function](Run& run) { nonblocking_mode(run, function, name == "ibsend"); });
    }
    suite.add("recv", blocking_receives_of_every_size);
    suite.add("exchanges", exchanges);
    add_probing(suite);
    suite.add("wildcards_from_many", wildcards_from_many);
    suite.add("order", order_of_messages);
    suite.add("self", self_messages, 1);
    suite.add("proc_null", proc_null, 1);
    suite.add("zero_counts", zero_counts, 1);
    suite.add("truncation_small", [](Run& run) { truncation(run, 2048, 1000); });
    suite.add("truncation_to_8_bytes", [](Run& run) { truncation(run, 128, 8); });
    suite.add("truncation_to_nothing", [](Run& run) { truncation(run, 4000, 0); });
    suite.add("truncation_nonblocking", truncation_nonblocking);
    suite.add("shorter_than_the_buffer", shorter_than_the_buffer);
    suite.add("small_sends_do_not_wait", small_sends_do_not_wait);
    suite.add("progress_without_the_receiver", progress_without_the_receiver);
    suite.add("every_pair_of_kinds", every_pair_of_kinds, 2, Weight::heavy);
    suite.add("unaligned", unaligned);
    suite.add("beyond_the_pool", beyond_the_pool, 2, Weight::heavy);
#if RANKS_HAVE_LARGE_COUNT
    suite.add("large_count_forms", large_count_forms);
    suite.add("more_than_two_gibibytes", more_than_two_gibibytes, 2, Weight::longer);
#endif
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
