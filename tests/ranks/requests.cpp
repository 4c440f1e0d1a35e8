// SPDX-License-Identifier: Apache-2.0
// Requests: completion in all forms, mixed with native ones, freed, cancelled, persistent, partitioned.
#include "support.h"

using namespace ranks;

namespace {

constexpr int kTag = 11;
const std::vector<int> kSizes = {16, 5000, 300000};

/// A batch of exchanges with the ring's neighbours: receives and sends on drawn kinds, plus natives on host memory.
struct Batch {
    std::vector<MPI_Request> requests;
    std::vector<bool> receives;
};

Batch start_batch(Run& run, int rounds) {
    const Ring ring(run);
    Batch batch;
    for (int round = 0; round < rounds; ++round) {
        const int bytes = kSizes[static_cast<std::size_t>(round) % kSizes.size()];
        const auto size = static_cast<std::size_t>(bytes);
        // Every third exchange is on host memory in each mix: requests of the MPI itself among ours.
        std::byte* in = round % 3 == 2 ? run.host(size) : run.input(size);
        std::byte* out = round % 3 == 2 ? run.host(size) : run.input(size);
        MPI_Request request;
        OK(MPI_Irecv(in, bytes, MPI_BYTE, ring.previous, kTag + round, run.comm, &request));
        batch.requests.push_back(request);
        batch.receives.push_back(true);
        OK(MPI_Isend(out, bytes, MPI_BYTE, ring.next, kTag + round, run.comm, &request));
        batch.requests.push_back(request);
        batch.receives.push_back(false);
        // Null requests belong into every array.
        batch.requests.push_back(MPI_REQUEST_NULL);
        batch.receives.push_back(false);
    }
    return batch;
}

#if RANKS_HAVE_MPI4
/// Several at once, and before any other call on device memory.
void exchanges_before_all_others(Run& run) {
    const Ring ring(run);
    constexpr int kBytes = 300000, kCount = 3;
    std::vector<MPI_Request> requests(kCount);
    for (int at = 0; at < kCount; ++at) {
        std::byte* out = run.input(kBytes);
        std::byte* in = run.input(kBytes);
        OK(MPI_Isendrecv(out, kBytes, MPI_BYTE, ring.next, kTag + at, in, kBytes, MPI_BYTE, ring.previous, kTag + at,
                         run.comm, &requests[static_cast<std::size_t>(at)]));
    }
    OK(MPI_Waitall(kCount, requests.data(), MPI_STATUSES_IGNORE));
}
#endif

void note_receive(Run& run, const Batch& batch, std::size_t index, const MPI_Status& status) {
    if (batch.receives[index]) {
        run.note_status(format("request %zu", index), status, MPI_BYTE);
    }
}

void expect_all_null(Run& run, const Batch& batch) {
    for (const MPI_Request request : batch.requests) {
        run.expect(request == MPI_REQUEST_NULL, "a completed request is MPI_REQUEST_NULL");
    }
}

void wait_each(Run& run) {
    Batch batch = start_batch(run, 9);
    for (std::size_t index = batch.requests.size(); index-- > 0;) {
        MPI_Status status{};
        OK(MPI_Wait(&batch.requests[index], &status));
        note_receive(run, batch, index, status);
    }
    expect_all_null(run, batch);
}

void test_each(Run& run) {
    Batch batch = start_batch(run, 9);
    std::size_t open = batch.requests.size();
    std::vector<bool> done(open, false);
    while (open > 0) {
        for (std::size_t index = 0; index < batch.requests.size(); ++index) {
            if (done[index]) {
                continue;
            }
            int flag = 0;
            MPI_Status status{};
            OK(MPI_Test(&batch.requests[index], &flag, &status));
            if (flag == 0) {
                continue;
            }
            done[index] = true;
            --open;
            note_receive(run, batch, index, status);
        }
    }
    expect_all_null(run, batch);
}

void wait_any(Run& run) {
    Batch batch = start_batch(run, 9);
    const int count = static_cast<int>(batch.requests.size());
    for (;;) {
        int index = -1;
        MPI_Status status{};
        OK(MPI_Waitany(count, batch.requests.data(), &index, &status));
        if (index == MPI_UNDEFINED) {
            break;
        }
        note_receive(run, batch, static_cast<std::size_t>(index), status);
    }
    expect_all_null(run, batch);
}

void test_any(Run& run) {
    Batch batch = start_batch(run, 9);
    const int count = static_cast<int>(batch.requests.size());
    for (;;) {
        int index = -1, flag = 0;
        MPI_Status status{};
        OK(MPI_Testany(count, batch.requests.data(), &index, &flag, &status));
        if (flag == 0) {
            continue;
        }
        if (index == MPI_UNDEFINED) {
            break;
        }
        note_receive(run, batch, static_cast<std::size_t>(index), status);
    }
    expect_all_null(run, batch);
}

void some(Run& run, bool wait) {
    Batch batch = start_batch(run, 9);
    const int count = static_cast<int>(batch.requests.size());
    std::vector<int> indices(batch.requests.size());
    std::vector<MPI_Status> statuses(batch.requests.size());
    for (;;) {
        int done = -5;
        if (wait) {
            OK(MPI_Waitsome(count, batch.requests.data(), &done, indices.data(), statuses.data()));
        } else {
            OK(MPI_Testsome(count, batch.requests.data(), &done, indices.data(), statuses.data()));
        }
        if (done == MPI_UNDEFINED) {
            break;
        }
        for (int at = 0; at < done; ++at) {
            note_receive(run, batch, static_cast<std::size_t>(indices[static_cast<std::size_t>(at)]),
                         statuses[static_cast<std::size_t>(at)]);
        }
    }
    expect_all_null(run, batch);
}

void all(Run& run, bool wait) {
    Batch batch = start_batch(run, 9);
    const int count = static_cast<int>(batch.requests.size());
    std::vector<MPI_Status> statuses(batch.requests.size());
    if (wait) {
        OK(MPI_Waitall(count, batch.requests.data(), statuses.data()));
    } else {
        for (int flag = 0; flag == 0;) {
            OK(MPI_Testall(count, batch.requests.data(), &flag, statuses.data()));
        }
    }
    for (std::size_t index = 0; index < batch.requests.size(); ++index) {
        note_receive(run, batch, index, statuses[index]);
    }
    expect_all_null(run, batch);
}

void statuses_ignored(Run& run) {
    Batch batch = start_batch(run, 3);
    OK(MPI_Waitall(static_cast<int>(batch.requests.size()), batch.requests.data(), MPI_STATUSES_IGNORE));
    batch = start_batch(run, 3);
    for (MPI_Request& request : batch.requests) {
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    batch = start_batch(run, 3);
    std::vector<int> indices(batch.requests.size());
    for (int done = 0; done != MPI_UNDEFINED;) {
        OK(MPI_Waitsome(static_cast<int>(batch.requests.size()), batch.requests.data(), &done, indices.data(),
                        MPI_STATUSES_IGNORE));
    }
    batch = start_batch(run, 3);
    for (int index = 0; index != MPI_UNDEFINED;) {
        OK(MPI_Waitany(static_cast<int>(batch.requests.size()), batch.requests.data(), &index, MPI_STATUS_IGNORE));
    }
}

void null_and_inactive(Run& run) {
    MPI_Status status{};
    MPI_Request request = MPI_REQUEST_NULL;
    int flag = 0, index = 0;
    OK(MPI_Wait(&request, &status));
    run.note_status("wait for null", status, MPI_BYTE);
    OK(MPI_Test(&request, &flag, &status));
    run.note("test of null", flag);
    run.note_status("test of null", status, MPI_BYTE);
    OK(MPI_Waitany(1, &request, &index, &status));
    run.note("waitany of null", index == MPI_UNDEFINED);
    OK(MPI_Waitall(0, nullptr, MPI_STATUSES_IGNORE));
    OK(MPI_Testall(1, &request, &flag, MPI_STATUSES_IGNORE));
    run.note("testall of null", flag);

    const Ring ring(run);
    std::byte* buffer = run.input(256);
    OK(MPI_Recv_init(buffer, 256, MPI_BYTE, ring.previous, kTag, run.comm, &request));
    OK(MPI_Wait(&request, &status));
    run.note_status("wait for inactive", status, MPI_BYTE);
    OK(MPI_Test(&request, &flag, &status));
    run.note("test of inactive", flag);
    OK(MPI_Waitany(1, &request, &index, &status));
    run.note("waitany of inactive", index == MPI_UNDEFINED);
    run.expect(request != MPI_REQUEST_NULL, "an inactive persistent request stays");
    OK(MPI_Request_get_status(request, &flag, &status));
    run.note("get_status of inactive", flag);
    OK(MPI_Request_free(&request));
    run.expect(request == MPI_REQUEST_NULL, "Request_free sets the request to null");
}

void get_status(Run& run) {
    Batch batch = start_batch(run, 6);
    for (std::size_t index = 0; index < batch.requests.size(); ++index) {
        if (batch.requests[index] == MPI_REQUEST_NULL) {
            continue;
        }
        MPI_Status status{};
        for (int flag = 0; flag == 0;) {
            OK(MPI_Request_get_status(batch.requests[index], &flag, &status));
        }
        note_receive(run, batch, index, status);
        run.expect(batch.requests[index] != MPI_REQUEST_NULL, "Request_get_status keeps the request");
        MPI_Status again{};
        OK(MPI_Wait(&batch.requests[index], &again));
        note_receive(run, batch, index, again);
    }
    expect_all_null(run, batch);
}

// The MPI-5 ABI leaves Fortran's handles to a library of their own, and has integers for handles instead.
#if defined(MPI_ABI_VERSION) && !defined(MPICH_VERSION)
int to_integer(MPI_Request request) {
    return MPI_Request_toint(request);
}
MPI_Request from_integer(int handle) {
    return MPI_Request_fromint(handle);
}
#else
MPI_Fint to_integer(MPI_Request request) {
    return MPI_Request_c2f(request);
}
MPI_Request from_integer(MPI_Fint handle) {
    return MPI_Request_f2c(handle);
}
#endif

void handles_as_integers(Run& run) {
    Batch batch = start_batch(run, 6);
    std::vector<int> stored;
    for (const MPI_Request request : batch.requests) {
        stored.push_back(to_integer(request));
    }
    for (std::size_t index = 0; index < stored.size(); ++index) {
        MPI_Request request = from_integer(stored[index]);
        run.expect(request == batch.requests[index], "a handle comes back from its integer");
        MPI_Status status{};
        OK(MPI_Wait(&request, &status));
        note_receive(run, batch, index, status);
    }
}

/// Requests are values: copied, stored elsewhere, completed by a copy.
void copied_handles(Run& run) {
    Batch batch = start_batch(run, 6);
    std::map<int, MPI_Request> elsewhere;
    for (std::size_t index = 0; index < batch.requests.size(); ++index) {
        elsewhere[static_cast<int>(index * 31 % 101)] = batch.requests[index];
    }
    for (auto& [key, request] : elsewhere) {
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

void freed_while_active(Run& run) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(static_cast<std::size_t>(bytes));
        MPI_Request request;
        if (pair.sender) {
            OK(MPI_Isend(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
            OK(MPI_Request_free(&request));
            run.expect(request == MPI_REQUEST_NULL, "Request_free sets the request to null");
            // The answer says that the message has arrived.
            OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        } else if (pair.receiver) {
            OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm));
        }
    }
    // A persistent request that is freed while active completes too.
    std::byte* buffer = run.input(5000);
    if (pair.sender) {
        MPI_Request request;
        OK(MPI_Send_init(buffer, 5000, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        OK(MPI_Start(&request));
        OK(MPI_Request_free(&request));
        OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
    } else if (pair.receiver) {
        OK(MPI_Recv(buffer, 5000, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm));
    }
}

/// A freed receive still delivers; the next message on the same channel says when.
void freed_receive(Run& run) {
    const Pair pair(run);
    std::byte* buffer = run.input(4000);
    if (pair.sender) {
        OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        OK(MPI_Ssend(buffer, 4000, MPI_BYTE, pair.peer, kTag, run.comm));
        OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm));
    } else if (pair.receiver) {
        MPI_Request request;
        OK(MPI_Irecv(buffer, 4000, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        OK(MPI_Request_free(&request));
        OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm));
        OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        // Nothing tells a program when a freed receive has its data; the barrier at the end of the case gives the
        // layer the same chance to finish that the MPI has.
    }
    OK(MPI_Barrier(run.comm));
}

void cancelled_receive(Run& run) {
    const Pair pair(run);
    std::byte* buffer = run.input(1000);
    std::byte* second = run.input(1000);
    if (pair.receiver) {
        MPI_Request request;
        MPI_Status status{};
        OK(MPI_Irecv(buffer, 1000, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        OK(MPI_Cancel(&request));
        OK(MPI_Wait(&request, &status));
        int cancelled = 0;
        OK(MPI_Test_cancelled(&status, &cancelled));
        run.note("cancelled", cancelled);
        run.expect(cancelled != 0, "a receive that nothing matches is cancelled");
        OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm));
        // What comes now is not for the cancelled one.
        OK(MPI_Recv(second, 1000, MPI_BYTE, pair.peer, kTag, run.comm, &status));
        run.note_status("after the cancel", status, MPI_BYTE);

        // Cancelled and freed without a wait.
        OK(MPI_Irecv(buffer, 1000, MPI_BYTE, pair.peer, kTag + 1, run.comm, &request));
        OK(MPI_Cancel(&request));
        OK(MPI_Request_free(&request));
        // A persistent one, which can be started again.
        OK(MPI_Recv_init(buffer, 1000, MPI_BYTE, pair.peer, kTag + 2, run.comm, &request));
        OK(MPI_Start(&request));
        OK(MPI_Cancel(&request));
        OK(MPI_Wait(&request, &status));
        OK(MPI_Test_cancelled(&status, &cancelled));
        run.note("persistent cancelled", cancelled);
        OK(MPI_Start(&request));
        OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm));
        OK(MPI_Wait(&request, &status));
        run.note_status("started again", status, MPI_BYTE);
        OK(MPI_Request_free(&request));
    } else if (pair.sender) {
        OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        OK(MPI_Send(second, 1000, MPI_BYTE, pair.peer, kTag, run.comm));
        OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        OK(MPI_Send(buffer, 1000, MPI_BYTE, pair.peer, kTag + 2, run.comm));
    }
}

using PersistentSend = int (*)(const void*, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request*);

void persistent(Run& run, PersistentSend init, bool buffered) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        const auto size = static_cast<std::size_t>(bytes);
        std::byte* buffer = run.input(size);
        std::vector<std::byte> memory;
        MPI_Request request = MPI_REQUEST_NULL;
        if (pair.sender) {
            if (buffered) {
                memory.resize(size + MPI_BSEND_OVERHEAD + 128);
                OK(MPI_Buffer_attach(memory.data(), static_cast<int>(memory.size())));
            }
            OK(init(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        } else if (pair.receiver) {
            OK(MPI_Recv_init(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        }
        for (int round = 0; round < 4 && pair.active; ++round) {
            if (pair.sender) {
                run.refill(buffer, size, static_cast<std::uint64_t>(round));
                // The token stands for what a ready send needs; the other modes do not mind it.
                OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTag + 1, run.comm, MPI_STATUS_IGNORE));
                OK(MPI_Start(&request));
            } else {
                OK(MPI_Start(&request));
                OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTag + 1, run.comm));
            }
            MPI_Status status{};
            if (round % 2 == 0) {
                OK(MPI_Wait(&request, &status));
            } else {
                for (int flag = 0; flag == 0;) {
                    OK(MPI_Test(&request, &flag, &status));
                }
            }
            if (pair.receiver) {
                run.note_status(format("round %d", round), status, MPI_BYTE);
                run.note_bytes(format("round %d of %d", round, bytes), buffer, size);
            }
            run.expect(request != MPI_REQUEST_NULL, "a persistent request survives its completion");
        }
        if (pair.active) {
            OK(MPI_Request_free(&request));
        }
        if (buffered && pair.sender) {
            void* address = nullptr;
            int length = 0;
            OK(MPI_Buffer_detach(&address, &length));
        }
    }
}

/// The buffer belongs to the program between two starts: the same address may be another kind of memory by then.
void persistent_buffer_reallocated(Run& run) {
    const Pair pair(run);
    constexpr std::size_t kBytes = 40000;
    // What an allocator does with freed addresses is its own business, so both sides use each new request once with
    // memory that replaces freed memory, which is likely to lie at the same address.
    for (int round = 0; round < 6; ++round) {
        const Kind kind = round % 2 == 0 ? Kind::device : Kind::managed;
        std::byte* buffer = run.input_of(kind, kBytes);
        MPI_Request request = MPI_REQUEST_NULL;
        if (pair.sender) {
            OK(MPI_Send_init(buffer, kBytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        } else if (pair.receiver) {
            OK(MPI_Recv_init(buffer, kBytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        }
        for (int start = 0; start < 2 && pair.active; ++start) {
            if (pair.sender) {
                run.refill(buffer, kBytes, static_cast<std::uint64_t>(start));
            }
            OK(MPI_Start(&request));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            run.note_bytes(format("round %d start %d", round, start), buffer, kBytes);
        }
        if (pair.active) {
            OK(MPI_Request_free(&request));
        }
        run.release(buffer);
    }
}

void startall(Run& run) {
    const Ring ring(run);
    std::vector<MPI_Request> requests;
    std::vector<std::byte*> outs, ins;
    for (int at = 0; at < 6; ++at) {
        const int bytes = kSizes[static_cast<std::size_t>(at) % kSizes.size()];
        outs.push_back(at % 3 == 2 ? run.host(static_cast<std::size_t>(bytes))
                                   : run.input(static_cast<std::size_t>(bytes)));
        ins.push_back(at % 3 == 2 ? run.host(static_cast<std::size_t>(bytes))
                                  : run.input(static_cast<std::size_t>(bytes)));
        requests.emplace_back();
        OK(MPI_Recv_init(ins.back(), bytes, MPI_BYTE, ring.previous, kTag + at, run.comm, &requests.back()));
        requests.emplace_back();
        OK(MPI_Send_init(outs.back(), bytes, MPI_BYTE, ring.next, kTag + at, run.comm, &requests.back()));
    }
    for (int round = 0; round < 3; ++round) {
        for (std::size_t at = 0; at < outs.size(); ++at) {
            run.refill(outs[at], static_cast<std::size_t>(kSizes[at % kSizes.size()]),
                       static_cast<std::uint64_t>(round));
        }
        OK(MPI_Startall(static_cast<int>(requests.size()), requests.data()));
        if (round == 0) {
            OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
        } else if (round == 1) {
            for (int index = 0; index != MPI_UNDEFINED;) {
                OK(MPI_Waitany(static_cast<int>(requests.size()), requests.data(), &index, MPI_STATUS_IGNORE));
            }
        } else {
            std::vector<int> indices(requests.size());
            for (int done = 0; done != MPI_UNDEFINED;) {
                OK(MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &done, indices.data(),
                                MPI_STATUSES_IGNORE));
            }
        }
        for (std::size_t at = 0; at < ins.size(); ++at) {
            run.note_bytes(format("round %d buffer %zu", round, at), ins[at],
                           static_cast<std::size_t>(kSizes[at % kSizes.size()]));
        }
    }
    for (MPI_Request& request : requests) {
        OK(MPI_Request_free(&request));
    }
}

/// Errors of single requests in Waitall and Waitsome: MPI_ERR_IN_STATUS, and the right class in the statuses.
/// What a program attaches for buffered sends may be memory of any kind, and is what it gets back.
void room_for_buffered_sends(Run& run) {
    const Pair pair(run);
    constexpr int kMessages = 5, kBytes = 3000;
    constexpr int kRoom = kMessages * (kBytes + MPI_BSEND_OVERHEAD + 64);
    std::byte* room = run.transient(kRoom);
    std::byte* out = run.input(kBytes);
    std::byte* in = run.input(kBytes);
    using Attach = std::function<int(void*, int)>;
    using Detach = std::function<int(void*, int*)>;
    std::vector<std::pair<Attach, Detach>> forms = {
        {[](void* memory, int bytes) { return MPI_Buffer_attach(memory, bytes); },
         [](void* address, int* bytes) { return MPI_Buffer_detach(address, bytes); }}};
#if MPI_VERSION >= 4
    forms.emplace_back([](void* memory, int bytes) { return MPI_Buffer_attach_c(memory, bytes); },
                       [](void* address, int* bytes) {
                           MPI_Count large = 0;
                           const int code = MPI_Buffer_detach_c(address, &large);
                           *bytes = static_cast<int>(large);
                           return code;
                       });
#endif
#ifdef MPI_BUFFER_AUTOMATIC
    forms.emplace_back([&run](void* memory, int bytes) { return MPI_Comm_attach_buffer(run.comm, memory, bytes); },
                       [&run](void* address, int* bytes) { return MPI_Comm_detach_buffer(run.comm, address, bytes); });
    forms.emplace_back([&run](void*, int) { return MPI_Comm_attach_buffer(run.comm, MPI_BUFFER_AUTOMATIC, 0); },
                       [&run, room](void* address, int* bytes) {
                           const int code = MPI_Comm_detach_buffer(run.comm, address, bytes);
                           void* given = nullptr;
                           std::memcpy(&given, address, sizeof given);
                           run.expect(given == MPI_BUFFER_AUTOMATIC, "automatic buffering is not detached as such");
                           std::memcpy(address, &room, sizeof room);
                           *bytes = kRoom;
                           return code;
                       });
#endif
    for (const auto& [attach, detach] : forms) {
        if (pair.sender) {
            OK(attach(room, kRoom));
            for (int message = 0; message < kMessages; ++message) {
                run.refill(out, kBytes, static_cast<std::uint64_t>(message));
                OK(MPI_Bsend(out, kBytes, MPI_BYTE, pair.peer, kTag, run.comm));
            }
            void* address = nullptr;
            int bytes = 0;
            OK(detach(&address, &bytes));
            run.expect(address == room && bytes == kRoom, "what was attached is detached");
        } else if (pair.receiver) {
            for (int message = 0; message < kMessages; ++message) {
                OK(MPI_Recv(in, kBytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
                run.note_bytes(format("message %d", message), in, kBytes);
            }
        }
    }
    // Refused twice, and again when there is nothing: what is attached stays what it was.
    if (pair.sender) {
        OK(MPI_Buffer_attach(room, kRoom));
        run.note("a second one", error_class(MPI_Buffer_attach(room, kRoom)));
        void* address = nullptr;
        int bytes = 0;
        OK(MPI_Buffer_detach(&address, &bytes));
        run.expect(address == room && bytes == kRoom, "the first one is detached");
    }
}

void errors_in_statuses(Run& run) {
    const Pair pair(run);
    std::byte* first = run.input(2000);
    std::byte* second = run.input(2000);
    if (pair.sender) {
        OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTag + 9, run.comm, MPI_STATUS_IGNORE));
        OK(MPI_Send(first, 2000, MPI_BYTE, pair.peer, kTag, run.comm));
        OK(MPI_Send(second, 500, MPI_BYTE, pair.peer, kTag + 1, run.comm));
    } else if (pair.receiver) {
        MPI_Request requests[2];
        MPI_Status statuses[2]{};
        OK(MPI_Irecv(first, 100, MPI_BYTE, pair.peer, kTag, run.comm, &requests[0]));
        OK(MPI_Irecv(second, 2000, MPI_BYTE, pair.peer, kTag + 1, run.comm, &requests[1]));
        OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTag + 9, run.comm));
        int code = MPI_Waitall(2, requests, statuses);
        run.note("waitall", error_class(code));
        run.expect(error_class(code) == MPI_ERR_IN_STATUS, "Waitall gives MPI_ERR_IN_STATUS");
        run.note("first", error_class(statuses[0].MPI_ERROR));
        // The second may be reported as pending.
        if (statuses[1].MPI_ERROR != MPI_SUCCESS && error_class(statuses[1].MPI_ERROR) == MPI_ERR_PENDING) {
            OK(MPI_Wait(&requests[1], &statuses[1]));
        }
        run.note_status("second", statuses[1], MPI_BYTE);
        if (requests[0] != MPI_REQUEST_NULL) {
            MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
        }
    }
}

/// A grequest of the program's own among ours.
int grequest_query(void*, MPI_Status* status) {
    MPI_Status_set_elements(status, MPI_BYTE, 42);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}
int grequest_free(void*) {
    return MPI_SUCCESS;
}
int grequest_cancel(void*, int) {
    return MPI_SUCCESS;
}

void generalized(Run& run) {
    Batch batch = start_batch(run, 3);
    MPI_Request own;
    OK(MPI_Grequest_start(grequest_query, grequest_free, grequest_cancel, nullptr, &own));
    batch.requests.push_back(own);
    batch.receives.push_back(true);
    OK(MPI_Grequest_complete(own));
    std::vector<MPI_Status> statuses(batch.requests.size());
    OK(MPI_Waitall(static_cast<int>(batch.requests.size()), batch.requests.data(), statuses.data()));
    int count = 0;
    MPI_Get_count(&statuses.back(), MPI_BYTE, &count);
    run.note("the program's own", count);
    batch.receives.back() = false;
    for (std::size_t index = 0; index < batch.requests.size(); ++index) {
        note_receive(run, batch, index, statuses[index]);
    }
}

/// More requests at one time than any table of fixed size would have.
/// Functions that return one status leave its MPI_ERROR alone (MPI-4.1, 3.2.5).
void error_field_is_kept(Run& run) {
    const Ring ring(run);
    constexpr int kBytes = 5000, kKept = 12345;
    std::byte* out = run.input(kBytes);
    std::byte* in = run.input(kBytes);
    MPI_Request sent = MPI_REQUEST_NULL;
    int index = 0, flag = 0;
    const auto receive = [&](const char* function, const auto& complete) {
        MPI_Status status{};
        status.MPI_ERROR = kKept;
        OK(MPI_Isend(out, kBytes, MPI_BYTE, ring.next, kTag, run.comm, &sent));
        OK(complete(&status));
        OK(MPI_Wait(&sent, MPI_STATUS_IGNORE));
        run.expect(status.MPI_ERROR == kKept, format("%s set it to %d", function, status.MPI_ERROR));
        run.note(function, status.MPI_SOURCE);
    };
    const auto complete = [&](const char* function, const auto& finish) {
        receive(function, [&](MPI_Status* status) {
            MPI_Request request;
            OK(MPI_Irecv(in, kBytes, MPI_BYTE, ring.previous, kTag, run.comm, &request));
            int error = MPI_SUCCESS;
            for (flag = 0; flag == 0 && error == MPI_SUCCESS;) {
                flag = 1;
                error = finish(&request, status);
            }
            if (request != MPI_REQUEST_NULL) {
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            }
            return error;
        });
    };
    receive("MPI_Recv",
            [&](MPI_Status* status) { return MPI_Recv(in, kBytes, MPI_BYTE, ring.previous, kTag, run.comm, status); });
    receive("MPI_Mrecv", [&](MPI_Status* status) {
        MPI_Message message;
        OK(MPI_Mprobe(ring.previous, kTag, run.comm, &message, MPI_STATUS_IGNORE));
        return MPI_Mrecv(in, kBytes, MPI_BYTE, &message, status);
    });
    receive("MPI_Sendrecv", [&](MPI_Status* status) {
        OK(MPI_Recv(in, kBytes, MPI_BYTE, ring.previous, kTag, run.comm, MPI_STATUS_IGNORE));
        return MPI_Sendrecv(out, kBytes, MPI_BYTE, ring.next, kTag, in, kBytes, MPI_BYTE, ring.previous, kTag, run.comm,
                            status);
    });
    // MPICH's own MPI_Sendrecv_replace does not.
    complete("MPI_Wait", [](MPI_Request* request, MPI_Status* status) { return MPI_Wait(request, status); });
    complete("MPI_Test", [&](MPI_Request* request, MPI_Status* status) { return MPI_Test(request, &flag, status); });
    complete("MPI_Waitany",
             [&](MPI_Request* request, MPI_Status* status) { return MPI_Waitany(1, request, &index, status); });
    complete("MPI_Testany",
             [&](MPI_Request* request, MPI_Status* status) { return MPI_Testany(1, request, &index, &flag, status); });
    complete("MPI_Request_get_status",
             [&](MPI_Request* request, MPI_Status* status) { return MPI_Request_get_status(*request, &flag, status); });
}

void many_at_once(Run& run) {
    const Ring ring(run);
    constexpr int kCount = 400;
    std::byte* out = run.input(kCount * 24);
    std::byte* in = run.input(kCount * 24);
    std::vector<MPI_Request> requests(2 * kCount);
    for (int at = 0; at < kCount; ++at) {
        OK(MPI_Irecv(in + 24 * at, 20, MPI_BYTE, ring.previous, at, run.comm, &requests[static_cast<std::size_t>(at)]));
    }
    for (int at = kCount; at-- > 0;) {
        OK(MPI_Isend(out + 24 * at, 20, MPI_BYTE, ring.next, at, run.comm,
                     &requests[static_cast<std::size_t>(kCount + at)]));
    }
    OK(MPI_Waitall(2 * kCount, requests.data(), MPI_STATUSES_IGNORE));
}

#if RANKS_HAVE_MPI4
/// `parts` of the sender against `parts` of the receiver; the sender marks its parts ready in a drawn order.
void partitioned(Run& run, int send_parts, int receive_parts) {
#ifdef OPEN_MPI
    // Open MPI 5's component duplicates MPI_COMM_WORLD at the first use: every rank has to take part.
    if (run.size % 2 != 0) {
        return;
    }
#endif
    const Pair pair(run);
    constexpr int kBytes = 24000;
    std::byte* buffer = run.input(kBytes);
    MPI_Request request = MPI_REQUEST_NULL;
    if (pair.sender) {
        OK(MPI_Psend_init(buffer, send_parts, kBytes / send_parts, MPI_BYTE, pair.peer, kTag, run.comm, MPI_INFO_NULL,
                          &request));
    } else if (pair.receiver) {
        OK(MPI_Precv_init(buffer, receive_parts, kBytes / receive_parts, MPI_BYTE, pair.peer, kTag, run.comm,
                          MPI_INFO_NULL, &request));
    }
    for (int round = 0; round < 3 && pair.active; ++round) {
        if (pair.sender) {
            OK(MPI_Start(&request));
            // A part is written after the start and before it is marked ready.
            const int part_bytes = kBytes / send_parts;
            for (int at = 0; at < send_parts; ++at) {
                const int part = (at * 5 + round) % send_parts;
                run.refill(buffer + part * part_bytes, static_cast<std::size_t>(part_bytes),
                           static_cast<std::uint64_t>(100 * round + part));
                if (round == 1 && send_parts > 1) {
                    continue;
                }
                OK(MPI_Pready(part, request));
            }
            if (round == 1 && send_parts > 1) {
                OK(MPI_Pready_range(0, send_parts / 2 - 1, request));
                std::vector<int> rest;
                for (int part = send_parts / 2; part < send_parts; ++part) {
                    rest.push_back(part);
                }
                OK(MPI_Pready_list(static_cast<int>(rest.size()), rest.data(), request));
            }
        } else {
            OK(MPI_Start(&request));
            if (round == 2) {
                for (int part = 0; part < receive_parts; ++part) {
                    for (int arrived = 0; arrived == 0;) {
                        OK(MPI_Parrived(request, part, &arrived));
                    }
                }
            }
        }
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        run.note_bytes(format("round %d", round), buffer, kBytes);
    }
    if (pair.active) {
        OK(MPI_Request_free(&request));
    }
}
#endif

}  // namespace

int main(int argc, char** argv) {
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);
#if RANKS_HAVE_MPI4
    suite.add("exchanges_before_all_others", exchanges_before_all_others);
#endif
    suite.add("wait_each", wait_each);
    suite.add("test_each", test_each);
    suite.add("wait_any", wait_any);
    suite.add("test_any", test_any);
    suite.add("wait_some", [](Run& run) { some(run, true); });
    suite.add("test_some", [](Run& run) { some(run, false); });
    suite.add("wait_all", [](Run& run) { all(run, true); });
    suite.add("test_all", [](Run& run) { all(run, false); });
    suite.add("statuses_ignored", statuses_ignored);
    suite.add("null_and_inactive", null_and_inactive);
    suite.add("get_status", get_status);
    suite.add("handles_as_integers", handles_as_integers);
    suite.add("copied_handles", copied_handles);
    suite.add("freed_while_active", freed_while_active);
    suite.add("freed_receive", freed_receive);
    suite.add("cancelled_receive", cancelled_receive);
    const std::vector<std::pair<std::string, PersistentSend>> modes = {{"send_init", MPI_Send_init},
                                                                       {"ssend_init", MPI_Ssend_init},
                                                                       {"rsend_init", MPI_Rsend_init},
                                                                       {"bsend_init", MPI_Bsend_init}};
    for (const auto& [name, init] : modes) {
        suite.add(name, [name = name, init = init](Run& run) { persistent(run, init, name == "bsend_init"); });
    }
    suite.add("persistent_buffer_reallocated", persistent_buffer_reallocated);
    suite.add("startall", startall);
    suite.add("room_for_buffered_sends", room_for_buffered_sends);
    suite.add("errors_in_statuses", errors_in_statuses);
    suite.add("generalized", generalized);
    suite.add("error_field_is_kept", error_field_is_kept);
    suite.add("many_at_once", many_at_once);
#if RANKS_HAVE_MPI4
    suite.add("partitioned_one", [](Run& run) { partitioned(run, 1, 1); });
    suite.add("partitioned_equal", [](Run& run) { partitioned(run, 8, 8); });
    suite.add("partitioned_more_on_the_sender", [](Run& run) { partitioned(run, 12, 3); });
#ifndef OPEN_MPI  // hangs in Open MPI 5.0.11 on host memory
    suite.add("partitioned_more_on_the_receiver", [](Run& run) { partitioned(run, 2, 8); });
#endif
#endif
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
