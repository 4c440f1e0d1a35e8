// SPDX-License-Identifier: Apache-2.0
// Legal programs that must not hang: an operation completes whatever its peer is doing meanwhile, be it that the peer
// sits in a call of which a layer over MPI notices nothing, computes, or has other debts first.
//
// Whatever waits for something that only a later step would do hangs in its step, which the watch-dog names (steps.h).
//
//     --threads          MPI_THREAD_MULTIPLE, for the cases of several threads (they do nothing without)
#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 21;
constexpr int kReadyTag = 22;
constexpr int kNextTag = 23;
constexpr int kLastTag = 24;

/// Buffered by every MPI; around the MPIs' own limits; and so long that it needs both sides.
const std::vector<int> kSizes = {8, 1024, 65536 + 8, (1 << 20) + 5};
constexpr int kLarge = (3 << 20) + 16;

std::size_t to_size(int bytes) {
    return static_cast<std::size_t>(bytes);
}

void await_all(Run& run, std::vector<MPI_Request>& requests) {
    OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

// ---- the peer is elsewhere ------------------------------------------------------------------------------------------

/// How a message is sent. All of them may be used when the receive is known to be posted.
struct Mode {
    std::string name;
    bool buffered;
    std::function<void(Run&, const void*, int bytes, int to)> send;
};

/// Sends by a nonblocking function and sees to the request by `complete`.
template <class Complete>
void start_and(Run& run, const void* buffer, int bytes, int to, Complete complete) {
    MPI_Request request;
    OK(MPI_Isend(buffer, bytes, MPI_BYTE, to, kTag, run.comm, &request));
    complete(&request);
}

std::vector<Mode> modes() {
    return {
        {"send", false,
         [](Run& run, const void* buffer, int bytes, int to) {
             OK(MPI_Send(buffer, bytes, MPI_BYTE, to, kTag, run.comm));
         }},
        {"ssend", false,
         [](Run& run, const void* buffer, int bytes, int to) {
             OK(MPI_Ssend(buffer, bytes, MPI_BYTE, to, kTag, run.comm));
         }},
        {"rsend", false,
         [](Run& run, const void* buffer, int bytes, int to) {
             OK(MPI_Rsend(buffer, bytes, MPI_BYTE, to, kTag, run.comm));
         }},
        {"bsend", true,
         [](Run& run, const void* buffer, int bytes, int to) {
             OK(MPI_Bsend(buffer, bytes, MPI_BYTE, to, kTag, run.comm));
         }},
        {"isend_wait", false,
         [](Run& run, const void* buffer, int bytes, int to) {
             start_and(run, buffer, bytes, to, [&](MPI_Request* request) { OK(MPI_Wait(request, MPI_STATUS_IGNORE)); });
         }},
        {"isend_test", false,
         [](Run& run, const void* buffer, int bytes, int to) {
             start_and(run, buffer, bytes, to, [&](MPI_Request* request) {
                 for (int flag = 0; flag == 0;) {
                     OK(MPI_Test(request, &flag, MPI_STATUS_IGNORE));
                 }
             });
         }},
        {"isend_freed", false,
         [](Run& run, const void* buffer, int bytes, int to) {
             start_and(run, buffer, bytes, to, [&](MPI_Request* request) { OK(MPI_Request_free(request)); });
         }},
    };
}

/// Where the receiver is while the sender wants to be done. On host memory, of which a layer need not take notice.
struct Place {
    std::string name;
    std::function<void(Run&, const Pair&)> meet;
};

std::vector<Place> places() {
    return {
        {"barrier", [](Run& run, const Pair&) { OK(MPI_Barrier(run.comm)); }},
        {"allreduce",
         [](Run& run, const Pair&) {
             int one = 1, sum = 0;
             OK(MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, run.comm));
             run.expect(sum == run.size, "a sum of ones is the number of ranks");
         }},
        {"host_receive",
         [](Run& run, const Pair& pair) {
             if (pair.sender) {
                 send_token(run, pair.peer, kNextTag);
             }
             if (pair.receiver) {
                 await_token(run, pair.peer, kNextTag);
             }
         }},
        {"host_probe",
         [](Run& run, const Pair& pair) {
             if (pair.sender) {
                 send_token(run, pair.peer, kNextTag);
             }
             if (pair.receiver) {
                 OK(MPI_Probe(pair.peer, kNextTag, run.comm, MPI_STATUS_IGNORE));
                 await_token(run, pair.peer, kNextTag);
             }
         }},
        {"comm_dup",
         [](Run& run, const Pair&) {
             MPI_Comm copy = MPI_COMM_NULL;
             OK(MPI_Comm_dup(run.comm, &copy));
             OK(MPI_Comm_free(&copy));
         }},
    };
}

/// rank 1: Irecv; somewhere; Wait.  rank 0: Send; the same place.
void posted_then_elsewhere(Run& run, const Mode& mode, const Place& place) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(to_size(bytes));
        std::unique_ptr<RoomForBufferedSends> room;
        if (mode.buffered && pair.sender) {
            room = std::make_unique<RoomForBufferedSends>(to_size(bytes), 1);
        }
        const Step step(run, format("%d bytes", bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        if (pair.receiver) {
            OK(MPI_Irecv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
            send_token(run, pair.peer, kReadyTag);
        } else if (pair.sender) {
            await_token(run, pair.peer, kReadyTag);
            mode.send(run, buffer, bytes, pair.peer);
        }
        place.meet(run, pair);
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        if (mode.name == "isend_freed") {
            // The buffer is the sender's again only when the receiver says that it has the message.
            if (pair.receiver) {
                send_token(run, pair.peer, kLastTag);
            }
            if (pair.sender) {
                await_token(run, pair.peer, kLastTag);
            }
        }
    }
}

/// The other way round: the receive is blocking, and it is the sender that has gone elsewhere.
void sent_then_elsewhere(Run& run, const Place& place) {
    Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        if (pair.sender) {
            OK(MPI_Isend(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
        }
        if (pair.receiver) {
            OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
        // The sender is the one that waits there.
        Pair swapped = pair;
        std::swap(swapped.sender, swapped.receiver);
        place.meet(run, swapped);
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

/// Both have something under way in both directions while they are elsewhere.
void exchange_then_elsewhere(Run& run, const Place& place) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        std::vector<MPI_Request> requests(2, MPI_REQUEST_NULL);
        if (pair.active) {
            OK(MPI_Isend(out, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[0]));
            OK(MPI_Irecv(in, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[1]));
        }
        place.meet(run, pair);
        await_all(run, requests);
    }
}

/// What a Test has begun, it must not leave to a later call: the receiver may have other business first.
void tested_once_then_elsewhere(Run& run, const Place& place) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        int flag = 0;
        if (pair.receiver) {
            OK(MPI_Irecv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
            // When the token is here, what was sent before it is here too, or at least its beginning.
            await_token(run, pair.peer, kReadyTag);
            OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
        } else if (pair.sender) {
            OK(MPI_Isend(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
            send_token(run, pair.peer, kReadyTag);
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        }
        place.meet(run, pair);
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

/// Messages that nobody waits for yet are left in the middle of being received by all forms of a test.
void tested_in_every_form(Run& run) {
    const Pair pair(run);
    const std::vector<std::function<void(MPI_Request*)>> tests = {
        [&](MPI_Request* requests) {
            int flag = 0;
            OK(MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE));
        },
        [&](MPI_Request* requests) {
            int flag = 0, index = 0;
            OK(MPI_Testany(2, requests, &index, &flag, MPI_STATUS_IGNORE));
        },
        [&](MPI_Request* requests) {
            int done = 0;
            std::array<int, 2> indices{};
            OK(MPI_Testsome(2, requests, &done, indices.data(), MPI_STATUSES_IGNORE));
        },
        [&](MPI_Request* requests) {
            int flag = 0;
            OK(MPI_Request_get_status(requests[0], &flag, MPI_STATUS_IGNORE));
            OK(MPI_Request_get_status(requests[1], &flag, MPI_STATUS_IGNORE));
        },
    };
    for (const auto& test : tests) {
        for (const int bytes : kSizes) {
            std::byte* first = run.input(to_size(bytes));
            std::byte* second = run.input(to_size(bytes));
            const Step step(run, format("%d bytes", bytes));
            std::vector<MPI_Request> requests(2, MPI_REQUEST_NULL);
            if (pair.receiver) {
                OK(MPI_Irecv(first, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[0]));
                OK(MPI_Irecv(second, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[1]));
                await_token(run, pair.peer, kReadyTag);
                test(requests.data());
                // The sender's own wait is over before it answers.
                await_token(run, pair.peer, kNextTag);
            } else if (pair.sender) {
                OK(MPI_Isend(first, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[0]));
                OK(MPI_Isend(second, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[1]));
                send_token(run, pair.peer, kReadyTag);
                await_all(run, requests);
                send_token(run, pair.peer, kNextTag);
            }
            await_all(run, requests);
        }
    }
}

/// The receiver computes; the sender, when its send is over, uses its memory for something else and gives it back.
void receiver_computes(Run& run) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        for (const bool blocking : {true, false}) {
            std::byte* buffer = run.input(to_size(bytes));
            const Step step(run, format("%d bytes", bytes));
            if (pair.receiver) {
                MPI_Request request;
                OK(MPI_Irecv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
                send_token(run, pair.peer, kReadyTag);
                compute(5);
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            } else if (pair.sender) {
                await_token(run, pair.peer, kReadyTag);
                if (blocking) {
                    OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
                } else {
                    start_and(run, buffer, bytes, pair.peer,
                              [&](MPI_Request* request) { OK(MPI_Wait(request, MPI_STATUS_IGNORE)); });
                }
                run.refill(buffer, to_size(bytes), 77);
                run.release(buffer);
            }
        }
    }
}

/// The sender computes between the start and the end of its send, while the receiver waits in every possible way.
void sender_computes(Run& run) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        for (const bool probing : {false, true}) {
            std::byte* buffer = run.input(to_size(bytes));
            const Step step(run, format("%d bytes", bytes));
            if (pair.sender) {
                MPI_Request request;
                OK(MPI_Isend(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
                compute(5);
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            } else if (pair.receiver) {
                if (probing) {
                    OK(MPI_Probe(pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
                }
                OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            }
        }
    }
}

// ---- what must not wait for the receiver ----------------------------------------------------------------------------

/// All send first. MPI does not promise that this works, and every program that is in use relies on it.
void head_to_head(Run& run) {
    const Ring ring(run);
    for (const int bytes : {8, 1024}) {
        constexpr int kMessages = 6;
        std::vector<std::byte*> outs, ins;
        for (int at = 0; at < kMessages; ++at) {
            outs.push_back(run.input(to_size(bytes)));
            ins.push_back(run.input(to_size(bytes)));
        }
        const Step step(run, format("%d bytes", bytes));
        for (std::byte* out : outs) {
            OK(MPI_Send(out, bytes, MPI_BYTE, ring.next, kTag, run.comm));
        }
        for (std::byte* in : ins) {
            OK(MPI_Recv(in, bytes, MPI_BYTE, ring.previous, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    }
}

/// Small sends whose receiver posts after a barrier, in which the sender is too.
void small_sends_before_a_barrier(Run& run) {
    const Pair pair(run);
    for (const int bytes : {1, 8, 64, 512, 1024}) {
        std::vector<std::byte*> buffers;
        for (int at = 0; at < 5; ++at) {
            buffers.push_back(run.input(to_size(bytes)));
        }
        const Step step(run, format("%d bytes", bytes));
        if (pair.sender) {
            for (std::byte* buffer : buffers) {
                OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
                run.refill(buffer, to_size(bytes), 5);  // the send is over, the memory is the program's again
            }
        }
        OK(MPI_Barrier(run.comm));
        if (pair.receiver) {
            for (std::byte* buffer : buffers) {
                OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            }
        }
    }
}

/// A buffered send is local whatever its size.
void buffered_sends_are_local(Run& run) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* first = run.input(to_size(bytes));
        std::byte* second = run.input(to_size(bytes));
        std::unique_ptr<RoomForBufferedSends> room;
        if (pair.sender) {
            room = std::make_unique<RoomForBufferedSends>(2 * to_size(bytes), 2);
        }
        const Step step(run, format("%d bytes", bytes));
        if (pair.sender) {
            OK(MPI_Bsend(first, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
            MPI_Request request;
            OK(MPI_Ibsend(second, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            run.refill(first, to_size(bytes), 1);
            run.refill(second, to_size(bytes), 2);
        }
        OK(MPI_Barrier(run.comm));
        if (pair.receiver) {
            OK(MPI_Recv(first, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            OK(MPI_Recv(second, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    }
}

/// A synchronous send is complete when its receive has begun, not before.
void synchronous_means_matched(Run& run) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        if (pair.sender) {
            MPI_Request request;
            OK(MPI_Issend(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request));
            for (int round = 0; round < 50; ++round) {
                int flag = 0;
                OK(MPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE));
                run.expect(flag == 0, "a synchronous send was complete before its receive was posted");
            }
            send_token(run, pair.peer, kReadyTag);
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        } else if (pair.receiver) {
            await_token(run, pair.peer, kReadyTag);
            OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    }
}

// ---- rings, orders, wildcards ---------------------------------------------------------------------------------------

void ring_of_posted_receives(Run& run) {
    const Ring ring(run);
    std::vector<int> sizes = kSizes;
    sizes.push_back(kLarge);
    for (const int bytes : sizes) {
        std::vector<std::byte*> outs, ins;
        for (int side = 0; side < 2; ++side) {
            outs.push_back(run.input(to_size(bytes)));
            ins.push_back(run.input(to_size(bytes)));
        }
        const Step step(run, format("%d bytes", bytes));
        std::vector<MPI_Request> requests(2);
        OK(MPI_Irecv(ins[0], bytes, MPI_BYTE, ring.previous, kTag, run.comm, &requests[0]));
        OK(MPI_Irecv(ins[1], bytes, MPI_BYTE, ring.next, kTag + 1, run.comm, &requests[1]));
        OK(MPI_Send(outs[0], bytes, MPI_BYTE, ring.next, kTag, run.comm));
        OK(MPI_Send(outs[1], bytes, MPI_BYTE, ring.previous, kTag + 1, run.comm));
        await_all(run, requests);
    }
}

void ring_of_exchanges(Run& run) {
    const Ring ring(run);
    for (const int bytes : kSizes) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes));
        std::byte* both = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        OK(MPI_Sendrecv(out, bytes, MPI_BYTE, ring.next, kTag, in, bytes, MPI_BYTE, ring.previous, kTag, run.comm,
                        MPI_STATUS_IGNORE));
        OK(MPI_Sendrecv_replace(both, bytes, MPI_BYTE, ring.previous, kTag, ring.next, kTag, run.comm,
                                MPI_STATUS_IGNORE));
        // One half of an exchange meets ordinary calls as well.
        if (run.rank == 0) {
            OK(MPI_Sendrecv(in, bytes, MPI_BYTE, ring.next, kTag, both, bytes, MPI_BYTE, ring.previous, kTag, run.comm,
                            MPI_STATUS_IGNORE));
        } else {
            OK(MPI_Recv(both, bytes, MPI_BYTE, ring.previous, kTag, run.comm, MPI_STATUS_IGNORE));
            OK(MPI_Send(in, bytes, MPI_BYTE, ring.next, kTag, run.comm));
        }
    }
}

/// Each rank hands on what it gets, so that the last one's receive depends on every message before it.
void hand_on(Run& run) {
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        for (int round = 0; round < 3; ++round) {
            if (run.rank > 0) {
                OK(MPI_Recv(buffer, bytes, MPI_BYTE, run.rank - 1, kTag, run.comm, MPI_STATUS_IGNORE));
            }
            if (run.rank + 1 < run.size) {
                OK(MPI_Send(buffer, bytes, MPI_BYTE, run.rank + 1, kTag, run.comm));
            }
        }
    }
}

/// Everybody starts sends to everybody and receives in an order of its own, from wildcards where that is determined.
void orders_of_their_own(Run& run) {
    for (const int bytes : kSizes) {
        constexpr int kTags = 3;
        std::vector<std::byte*> outs, ins;
        for (int at = 0; at < kTags * run.size; ++at) {
            outs.push_back(run.input(to_size(bytes)));
            ins.push_back(run.input(to_size(bytes)));
        }
        const Step step(run, format("%d bytes", bytes));
        std::vector<MPI_Request> requests;
        for (int at = 0; at < kTags * run.size; ++at) {
            const int to = (run.rank + at) % run.size, tag = at / run.size;
            requests.emplace_back();
            OK(MPI_Isend(outs[to_size(at)], bytes, MPI_BYTE, to, kTag + tag, run.comm, &requests.back()));
        }
        for (int at = 0; at < kTags * run.size; ++at) {
            // The last tags first, and the sources backwards.
            const int from = (2 * run.size - run.rank - at % run.size) % run.size, tag = kTags - 1 - at / run.size;
            OK(MPI_Recv(ins[to_size(at)], bytes, MPI_BYTE, from, kTag + tag, run.comm, MPI_STATUS_IGNORE));
        }
        await_all(run, requests);
    }
}

void wildcard_receives(Run& run) {
    for (const int bytes : kSizes) {
        std::byte* out = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        if (run.rank == 0) {
            for (int message = 0; message < 2 * (run.size - 1); ++message) {
                std::byte* in = run.transient(to_size(bytes));
                MPI_Status status{};
                OK(MPI_Recv(in, bytes, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, run.comm, &status));
                const std::string name = format("from %d tag %d", status.MPI_SOURCE, status.MPI_TAG);
                run.note_status(name, status, MPI_BYTE);
                run.note_bytes(name, in, to_size(bytes));
                // Each sender waits for its answer, so it depends on which wildcard its message was matched with.
                send_token(run, status.MPI_SOURCE, kReadyTag);
            }
        } else {
            for (int tag = 0; tag < 2; ++tag) {
                OK(MPI_Send(out, bytes, MPI_BYTE, 0, kTag + tag, run.comm));
                await_token(run, 0, kReadyTag);
                run.refill(out, to_size(bytes), 31);
            }
        }
        OK(MPI_Barrier(run.comm));  // the next round's messages would match this one's wildcards
    }
}

/// rank 0 has begun to receive from A by a test, and then waits for B, which waits until A's send is over.
void begun_by_a_test(Run& run, bool host_wait) {
    for (const int bytes : kSizes) {
        const int a = 1, b = run.size > 2 ? 2 : 1;
        std::byte* first = run.input(to_size(bytes));
        std::byte* second = host_wait ? run.host(to_size(bytes)) : run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        if (run.rank == 0) {
            OK(MPI_Irecv(first, bytes, MPI_BYTE, a, kTag, run.comm, &request));
            await_token(run, a, kReadyTag);
            int flag = 0;
            OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
            OK(MPI_Recv(second, bytes, MPI_BYTE, b, kTag + 1, run.comm, MPI_STATUS_IGNORE));
        }
        if (run.rank == a) {
            OK(MPI_Isend(first, bytes, MPI_BYTE, 0, kTag, run.comm, &request));
            send_token(run, 0, kReadyTag);
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            if (b != a) {
                send_token(run, b, kNextTag);
            }
        }
        if (run.rank == b) {
            if (b != a) {
                await_token(run, a, kNextTag);
            }
            OK(MPI_Send(second, bytes, MPI_BYTE, 0, kTag + 1, run.comm));
        }
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

/// A receive is posted and never touched before the last message, on which it does not depend, has come.
void later_messages_first(Run& run) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        constexpr int kMessages = 4;
        std::vector<std::byte*> buffers;
        for (int at = 0; at < kMessages; ++at) {
            buffers.push_back(run.input(to_size(bytes)));
        }
        const Step step(run, format("%d bytes", bytes));
        std::vector<MPI_Request> requests(kMessages, MPI_REQUEST_NULL);
        if (pair.sender) {
            for (int at = 0; at < kMessages; ++at) {
                OK(MPI_Isend(buffers[to_size(at)], bytes, MPI_BYTE, pair.peer, kTag + at, run.comm,
                             &requests[to_size(at)]));
            }
            // In the order in which the receiver does not take them.
            for (MPI_Request& request : requests) {
                OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
            }
        } else if (pair.receiver) {
            OK(MPI_Irecv(buffers[0], bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[0]));
            for (int at = kMessages; at-- > 1;) {
                OK(MPI_Recv(buffers[to_size(at)], bytes, MPI_BYTE, pair.peer, kTag + at, run.comm, MPI_STATUS_IGNORE));
            }
            OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
        }
        OK(MPI_Barrier(run.comm));
    }
}

// ---- collectives under way ------------------------------------------------------------------------------------------

/// One side starts a reduction, waits for its device and sends; the other receives before it starts the reduction.
void reduction_under_way(Run& run) {
    const Pair pair(run);
    constexpr int kCount = 4000;
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(to_size(bytes));
        auto* values = run.values<int>(kCount);
        auto* sums = run.output<int>(kCount);
        const Step step(run, format("%d bytes", bytes));
        MPI_Request request = MPI_REQUEST_NULL;
        const auto reduce = [&] { OK(MPI_Iallreduce(values, sums, kCount, MPI_INT, MPI_SUM, run.comm, &request)); };
        if (pair.receiver) {
            OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            reduce();
        } else {
            reduce();
            if (!run.reference()) {
                run.gpu().synchronize();
            }
            if (pair.sender) {
                OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
            }
        }
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
}

/// Messages and collectives are completed in another order than they were started in, and in different ones.
void collectives_between_messages(Run& run) {
    const Ring ring(run);
    constexpr int kCount = 3000;
    for (const int bytes : kSizes) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes));
        auto* sums = run.values<int>(kCount);
        std::byte* shared = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        std::array<MPI_Request, 5> requests{};
        OK(MPI_Irecv(in, bytes, MPI_BYTE, ring.previous, kTag, run.comm, &requests[0]));
        OK(MPI_Iallreduce(MPI_IN_PLACE, sums, kCount, MPI_INT, MPI_MAX, run.comm, &requests[1]));
        OK(MPI_Isend(out, bytes, MPI_BYTE, ring.next, kTag, run.comm, &requests[2]));
        OK(MPI_Ibcast(shared, bytes, MPI_BYTE, run.size - 1, run.comm, &requests[3]));
        OK(MPI_Ibarrier(run.comm, &requests[4]));
        const std::array<std::array<std::size_t, 5>, 3> orders = {{{4, 3, 2, 1, 0}, {0, 2, 4, 1, 3}, {1, 3, 0, 4, 2}}};
        for (const std::size_t at : orders[to_size(run.rank) % orders.size()]) {
            OK(MPI_Wait(&requests[at], MPI_STATUS_IGNORE));
        }
    }
}

// ---- many -----------------------------------------------------------------------------------------------------------

enum class Taking { in_order, backwards_by_tag, posted_before, after_a_barrier, probed };

/// More messages at a time than any table of a layer has rows for.
void many(Run& run, Taking taking, int messages, int bytes, bool freed) {
    const Pair pair(run);
    const std::size_t stride = to_size(bytes) + 3;  // slices of one allocation, at odd addresses
    std::byte* buffer = run.input(stride * to_size(messages));
    const auto at_message = [&](int message) { return buffer + stride * to_size(message); };
    const auto tag_of = [&](int message) { return taking == Taking::backwards_by_tag ? kTag + 100 + message : kTag; };
    const Step step(run, format("%d messages", messages));
    std::vector<MPI_Request> requests(to_size(messages), MPI_REQUEST_NULL);
    if (pair.sender) {
        if (taking == Taking::posted_before) {
            await_token(run, pair.peer, kReadyTag);
        }
        for (int message = 0; message < messages; ++message) {
            OK(MPI_Isend(at_message(message), bytes, MPI_BYTE, pair.peer, tag_of(message), run.comm,
                         &requests[to_size(message)]));
            if (freed) {
                OK(MPI_Request_free(&requests[to_size(message)]));
            }
        }
    }
    if (pair.receiver && taking == Taking::posted_before) {
        for (int message = 0; message < messages; ++message) {
            OK(MPI_Irecv(at_message(message), bytes, MPI_BYTE, pair.peer, tag_of(message), run.comm,
                         &requests[to_size(message)]));
        }
        send_token(run, pair.peer, kReadyTag);
    }
    if (taking == Taking::after_a_barrier) {
        OK(MPI_Barrier(run.comm));
    }
    if (pair.receiver && taking != Taking::posted_before) {
        for (int index = 0; index < messages; ++index) {
            const int message = taking == Taking::backwards_by_tag ? messages - 1 - index : index;
            if (taking == Taking::probed) {
                MPI_Status status{};
                int count = -1;
                OK(MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, run.comm, &status));
                OK(MPI_Get_count(&status, MPI_BYTE, &count));
                run.expect(count == bytes, format("a probe says %d bytes", count));
            }
            OK(MPI_Recv(at_message(message), bytes, MPI_BYTE, pair.peer, tag_of(message), run.comm, MPI_STATUS_IGNORE));
        }
    }
    await_all(run, requests);
    if (pair.receiver) {
        send_token(run, pair.peer, kLastTag);
    }
    if (pair.sender) {
        await_token(run, pair.peer, kLastTag);
    }
}

/// Blocking sends of small messages, as many as an MPI takes without a receiver, and the receiver far behind.
void many_small_sends(Run& run) {
    const Pair pair(run);
    constexpr int kRounds = 300;
    constexpr int kBytes = 48;
    std::byte* buffer = run.input(kBytes * kRounds);
    const Step step(run, "all of them");
    for (int round = 0; round < kRounds; ++round) {
        if (pair.sender) {
            OK(MPI_Send(buffer + kBytes * round, kBytes, MPI_BYTE, pair.peer, kTag, run.comm));
        }
        if (pair.receiver) {
            if (round % 50 == 0) {
                compute(1);
            }
            OK(MPI_Recv(buffer + kBytes * round, kBytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
        }
    }
}

// ---- a rank and itself ----------------------------------------------------------------------------------------------

void to_myself(Run& run) {
    for (const int bytes : kSizes) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes));
        std::byte* second = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        MPI_Request request;
        OK(MPI_Isend(out, bytes, MPI_BYTE, run.rank, kTag, run.comm, &request));
        OK(MPI_Barrier(run.comm));
        OK(MPI_Recv(in, bytes, MPI_BYTE, run.rank, kTag, run.comm, MPI_STATUS_IGNORE));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        // Half of the buffer to the other half, as programs with periodic boundaries do.
        OK(MPI_Sendrecv(in, bytes / 2, MPI_BYTE, run.rank, kTag, in + bytes / 2, bytes / 2, MPI_BYTE, run.rank, kTag,
                        run.comm, MPI_STATUS_IGNORE));
        OK(MPI_Irecv(second, bytes, MPI_BYTE, run.rank, kTag, run.comm, &request));
        OK(MPI_Ssend(in, bytes, MPI_BYTE, run.rank, kTag, run.comm));
        OK(MPI_Barrier(run.comm));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        // Found by a probe, freed, and received at last.
        OK(MPI_Isend(out, bytes, MPI_BYTE, run.rank, kTag, run.comm, &request));
        OK(MPI_Request_free(&request));
        MPI_Status status{};
        int found = 0;
        while (found == 0) {
            OK(MPI_Iprobe(run.rank, kTag, run.comm, &found, &status));
        }
        run.note_status("probed", status, MPI_BYTE);
        OK(MPI_Recv(second, bytes, MPI_BYTE, MPI_ANY_SOURCE, kTag, run.comm, MPI_STATUS_IGNORE));
    }
}

void many_to_myself(Run& run) {
    constexpr int kMessages = 300;
    constexpr int kBytes = 700;
    std::byte* out = run.input(kBytes * kMessages);
    std::byte* in = run.input(kBytes * kMessages);
    const Step step(run, "all of them");
    std::vector<MPI_Request> requests(kMessages);
    for (int at = 0; at < kMessages; ++at) {
        OK(MPI_Isend(out + kBytes * at, kBytes, MPI_BYTE, run.rank, at, run.comm, &requests[to_size(at)]));
    }
    for (int at = kMessages; at-- > 0;) {
        OK(MPI_Recv(in + kBytes * at, kBytes, MPI_BYTE, run.rank, at, run.comm, MPI_STATUS_IGNORE));
    }
    await_all(run, requests);
}

/// A message that has come is found by the first test, whichever request it is for.
void tested_out_of_order(Run& run) {
    constexpr int kMessages = 6, kBytes = 100;
    const std::vector<std::vector<int>> groups{{5}, {}, {3, 1, 2}, {0, 4}};
    std::byte* out = run.input_of(Kind::host, kBytes);
    std::byte* in = run.input_of(Kind::host, kBytes * kMessages);
    for (const bool any : {false, true}) {
        const Step step(run, any ? "Testany" : "Testsome");
        std::vector<MPI_Request> requests(kMessages);
        for (int at = 0; at < kMessages; ++at) {
            OK(MPI_Irecv(in + kBytes * at, kBytes, MPI_BYTE, run.rank, at, run.comm, &requests[to_size(at)]));
        }
        std::array<int, kMessages> indices{};
        for (const std::vector<int>& tags : groups) {
            for (const int tag : tags) {
                OK(MPI_Ssend(out, kBytes, MPI_BYTE, run.rank, tag, run.comm));
            }
            int done = 0;
            for (int found = 1, index = 0; any && found != 0;) {
                OK(MPI_Testany(kMessages, requests.data(), &index, &found, MPI_STATUS_IGNORE));
                found = found != 0 && index != MPI_UNDEFINED ? 1 : 0;
                done += found;
            }
            if (!any) {
                OK(MPI_Testsome(kMessages, requests.data(), &done, indices.data(), MPI_STATUSES_IGNORE));
            }
            run.note(format("%zu came, found", tags.size()), done);
        }
    }
}

// ---- the receiver waits for news ------------------------------------------------------------------------------------

void awaited_by_a_probe(Run& run, bool matched, bool synchronous) {
    const Pair pair(run);
    for (const int bytes : kSizes) {
        std::byte* buffer = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        if (pair.receiver) {
            MPI_Status status{};
            send_token(run, pair.peer, kReadyTag);
            if (matched) {
                MPI_Message message = MPI_MESSAGE_NULL;
                OK(MPI_Mprobe(MPI_ANY_SOURCE, kTag, run.comm, &message, &status));
                OK(MPI_Mrecv(buffer, bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE));
            } else {
                OK(MPI_Probe(pair.peer, MPI_ANY_TAG, run.comm, &status));
                OK(MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE));
            }
            run.note_status(format("%d bytes", bytes), status, MPI_BYTE);
        } else if (pair.sender) {
            await_token(run, pair.peer, kReadyTag);
            if (synchronous) {
                OK(MPI_Ssend(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
            } else {
                OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
            }
        }
    }
}

/// A message that was taken by a matched probe and is fetched only after the receiver has been elsewhere.
void matched_then_elsewhere(Run& run) {
    const Pair pair(run);
    for (const int bytes : {8, 1024}) {
        std::byte* buffer = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        MPI_Message message = MPI_MESSAGE_NULL;
        if (pair.sender) {
            OK(MPI_Send(buffer, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
        }
        if (pair.receiver) {
            OK(MPI_Mprobe(pair.peer, kTag, run.comm, &message, MPI_STATUS_IGNORE));
        }
        OK(MPI_Barrier(run.comm));
        if (pair.sender) {
            run.refill(buffer, to_size(bytes), 9);
        }
        OK(MPI_Barrier(run.comm));
        if (pair.receiver) {
            OK(MPI_Mrecv(buffer, bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE));
        }
    }
}

// ---- several threads ------------------------------------------------------------------------------------------------

bool threads_allowed() {
    int provided = MPI_THREAD_SINGLE;
    MPI_Query_thread(&provided);
    return provided == MPI_THREAD_MULTIPLE;
}

/// Runs each function in a thread of its own. Threads do not touch the Run, which is not made for that; they count.
void in_threads(Run& run, const std::vector<std::function<int()>>& functions) {
    std::atomic<int> failures{0};
    std::vector<std::thread> threads;
    threads.reserve(functions.size());
    for (const auto& function : functions) {
        threads.emplace_back([&failures, &function] { failures += function(); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    run.expect(failures == 0, format("%d calls failed in threads", failures.load()));
}

/// Two threads exchange on one communicator, told apart by their tags, in opposite orders.
void two_threads(Run& run) {
    const Pair pair(run);
    if (!threads_allowed() || !pair.active) {
        return;
    }
    constexpr int kRounds = 12;
    constexpr int kStride = 70000;
    const std::vector<int> sizes = {8, 1000, kStride};
    std::vector<std::byte*> outs, ins;
    for (int thread = 0; thread < 2; ++thread) {
        outs.push_back(run.input(kRounds * kStride));
        ins.push_back(run.input(kRounds * kStride));
    }
    const Step step(run, "all rounds");
    const auto posted_first = [&]() -> int {
        int failures = 0;
        for (int round = 0; round < kRounds; ++round) {
            const int bytes = sizes[to_size(round) % sizes.size()];
            MPI_Request request;
            failures += MPI_Irecv(ins[0] + round * kStride, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &request) != 0;
            failures += MPI_Send(outs[0] + round * kStride, bytes, MPI_BYTE, pair.peer, kTag, run.comm) != 0;
            for (int flag = 0; flag == 0;) {
                failures += MPI_Test(&request, &flag, MPI_STATUS_IGNORE) != 0;
            }
        }
        return failures;
    };
    const auto in_turn = [&]() -> int {
        int failures = 0;
        for (int round = 0; round < kRounds; ++round) {
            const int bytes = sizes[to_size(round) % sizes.size()];
            for (const bool sending : {pair.sender, !pair.sender}) {
                if (sending) {
                    failures +=
                        MPI_Ssend(outs[1] + round * kStride, bytes, MPI_BYTE, pair.peer, kNextTag, run.comm) != 0;
                } else {
                    failures += MPI_Recv(ins[1] + round * kStride, bytes, MPI_BYTE, pair.peer, kNextTag, run.comm,
                                         MPI_STATUS_IGNORE) != 0;
                }
            }
        }
        return failures;
    };
    in_threads(run, {posted_first, in_turn});
}

/// One thread is blocked, and is released only by what another thread of its process does.
void blocked_thread(Run& run, bool probing) {
    const Pair pair(run);
    if (!threads_allowed() || !pair.active) {
        return;
    }
    for (const int bytes : kSizes) {
        std::byte* first = run.input(to_size(bytes));
        std::byte* second = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        if (pair.receiver) {
            // Gives the peer its message only after the peer's other thread has sent.
            OK(MPI_Recv(second, bytes, MPI_BYTE, pair.peer, kNextTag, run.comm, MPI_STATUS_IGNORE));
            OK(MPI_Send(first, bytes, MPI_BYTE, pair.peer, kTag, run.comm));
            continue;
        }
        const auto blocked = [&]() -> int {
            int failures = 0;
            if (probing) {
                failures += MPI_Probe(pair.peer, kTag, run.comm, MPI_STATUS_IGNORE) != 0;
            }
            failures += MPI_Recv(first, bytes, MPI_BYTE, pair.peer, kTag, run.comm, MPI_STATUS_IGNORE) != 0;
            return failures;
        };
        const auto sending = [&]() -> int {
            return MPI_Send(second, bytes, MPI_BYTE, pair.peer, kNextTag, run.comm) == MPI_SUCCESS ? 0 : 1;
        };
        in_threads(run, {blocked, sending});
    }
}

/// Requests that one thread starts and another completes.
void completed_by_another_thread(Run& run) {
    const Pair pair(run);
    if (!threads_allowed() || !pair.active) {
        return;
    }
    for (const int bytes : kSizes) {
        std::byte* out = run.input(to_size(bytes));
        std::byte* in = run.input(to_size(bytes));
        const Step step(run, format("%d bytes", bytes));
        std::array<MPI_Request, 2> requests{};
        OK(MPI_Irecv(in, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[0]));
        OK(MPI_Isend(out, bytes, MPI_BYTE, pair.peer, kTag, run.comm, &requests[1]));
        std::vector<std::function<int()>> waits;
        for (MPI_Request& request : requests) {
            waits.emplace_back([&request] { return MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS ? 0 : 1; });
        }
        in_threads(run, waits);
    }
}

/// Threads that probe for one tag and receive what they find, or something else that came: what a probe tells was so.
void probing_threads(Run& run) {
    const Pair pair(run);
    if (!threads_allowed() || !pair.active) {
        return;
    }
    constexpr int kMessages = 60, kThreads = 3;
    // Message k has one of these lengths; no message has another, least of all the length of a header.
    const std::vector<int> sizes = {8, 1000, 70000};
    constexpr int kLongest = 70000;
    if (pair.sender) {
        for (int at = 0; at < kThreads * kMessages; ++at) {
            const int bytes = sizes[to_size(at) % sizes.size()];
            OK(MPI_Send(run.input(to_size(bytes)), bytes, MPI_BYTE, pair.peer, kTag, run.comm));
        }
        return;
    }
    std::vector<std::byte*> places;
    for (int at = 0; at < kThreads; ++at) {
        places.push_back(run.transient(kLongest));
    }
    if (!pair.receiver) {
        return;
    }
    std::vector<std::function<int()>> functions;
    for (int thread = 0; thread < kThreads; ++thread) {
        functions.emplace_back([&, thread]() -> int {
            int failures = 0;
            const auto check = [&](const MPI_Status& status) {
                int count = MPI_UNDEFINED;
                MPI_Get_count(&status, MPI_BYTE, &count);
                failures += std::find(sizes.begin(), sizes.end(), count) == sizes.end();
            };
            for (int at = 0; at < kMessages; ++at) {
                MPI_Status status;
                int found = 0;
                // The last messages another thread may take: a probe that waits could wait for ever.
                failures += MPI_Iprobe(pair.peer, kTag, run.comm, &found, &status) != MPI_SUCCESS;
                if (found != 0) {
                    check(status);
                }
                failures += MPI_Recv(places[to_size(thread)], kLongest, MPI_BYTE, pair.peer, kTag, run.comm, &status) !=
                            MPI_SUCCESS;
                check(status);
            }
            return failures;
        });
    }
    in_threads(run, functions);
}

/// A thread that looks, again and again, for what another thread receives: what a probe tells was so, also when the
/// message it found is gone, and the next of its kind there, before it can tell.
void probing_beside_a_receiver(Run& run) {
    const Pair pair(run);
    if (!threads_allowed() || !pair.active) {
        return;
    }
    constexpr int kMessages = 400;
    const std::vector<int> sizes = {8, 1000, 70000};  // as above
    constexpr int kLongest = 70000;
    if (pair.sender) {
        std::byte* buffer = run.input(kLongest);
        for (int at = 0; at < kMessages; ++at) {
            OK(MPI_Send(buffer, sizes[to_size(at) % sizes.size()], MPI_BYTE, pair.peer, kTag, run.comm));
        }
        return;
    }
    std::byte* place = run.transient(kLongest);
    std::atomic<bool> done{false};
    std::mutex telling;
    const auto tell = [&](const std::string& what) {
        const std::scoped_lock lock(telling);
        run.problem(what);
    };
    const auto receiving = [&]() -> int {
        int failures = 0;
        for (int at = 0; at < kMessages; ++at) {
            MPI_Status status;
            int count = MPI_UNDEFINED;
            failures += MPI_Recv(place, kLongest, MPI_BYTE, pair.peer, kTag, run.comm, &status) != MPI_SUCCESS;
            MPI_Get_count(&status, MPI_BYTE, &count);
            const int expected = sizes[to_size(at) % sizes.size()];
            if (count != expected) {
                tell(format("message %d has %d bytes instead of %d", at, count, expected));
                ++failures;
            }
        }
        done = true;
        return failures;
    };
    const auto probing = [&]() -> int {
        int failures = 0;
        while (!done) {
            MPI_Status status;
            int found = 0, count = MPI_UNDEFINED;
            failures += MPI_Iprobe(pair.peer, kTag, run.comm, &found, &status) != MPI_SUCCESS;
            if (found == 0) {
                continue;
            }
            MPI_Get_count(&status, MPI_BYTE, &count);
            if (std::find(sizes.begin(), sizes.end(), count) == sizes.end()) {
                tell(format("a probe found %d bytes, which no message has", count));
                ++failures;
            }
        }
        return failures;
    };
    in_threads(run, {receiving, probing});
}

void add_cases(Suite& suite) {
    for (const Place& place : places()) {
        for (const Mode& mode : modes()) {
            suite.add("posted_" + mode.name + "_" + place.name,
                      [mode, place](Run& run) { posted_then_elsewhere(run, mode, place); });
        }
        suite.add("sent_" + place.name, [place](Run& run) { sent_then_elsewhere(run, place); });
        suite.add("exchange_" + place.name, [place](Run& run) { exchange_then_elsewhere(run, place); });
        suite.add("tested_once_" + place.name, [place](Run& run) { tested_once_then_elsewhere(run, place); });
    }
    suite.add("tested_in_every_form", tested_in_every_form);
    suite.add("receiver_computes", receiver_computes);
    suite.add("sender_computes", sender_computes);
    suite.add("head_to_head", head_to_head);
    suite.add("small_sends_before_a_barrier", small_sends_before_a_barrier);
    suite.add("buffered_sends_are_local", buffered_sends_are_local);
    suite.add("synchronous_means_matched", synchronous_means_matched);
    suite.add("ring_of_posted_receives", ring_of_posted_receives);
    suite.add("ring_of_exchanges", ring_of_exchanges);
    suite.add("hand_on", hand_on);
    suite.add("orders_of_their_own", orders_of_their_own);
    suite.add("wildcard_receives", wildcard_receives);
    suite.add("begun_by_a_test", [](Run& run) { begun_by_a_test(run, false); });
    suite.add("begun_by_a_test_host_wait", [](Run& run) { begun_by_a_test(run, true); });
    suite.add("later_messages_first", later_messages_first);
    suite.add("reduction_under_way", reduction_under_way);
    suite.add("collectives_between_messages", collectives_between_messages);
    const std::vector<std::pair<std::string, Taking>> takings = {{"in_order", Taking::in_order},
                                                                 {"backwards_by_tag", Taking::backwards_by_tag},
                                                                 {"posted_before", Taking::posted_before},
                                                                 {"after_a_barrier", Taking::after_a_barrier},
                                                                 {"probed", Taking::probed}};
    for (const auto& [name, taking] : takings) {
        suite.add("many_" + name, [taking = taking](Run& run) { many(run, taking, 300, 900, false); });
        suite.add("many_freed_" + name, [taking = taking](Run& run) { many(run, taking, 300, 4000, true); });
        suite.add(
            "many_large_" + name, [taking = taking](Run& run) { many(run, taking, 300, 70000, false); }, 2,
            Weight::heavy);
    }
    suite.add("many_small_sends", many_small_sends);
    suite.add("to_myself", to_myself, 1);
    suite.add("many_to_myself", many_to_myself, 1);
    suite.add("tested_out_of_order", tested_out_of_order, 1);
    suite.add("probe", [](Run& run) { awaited_by_a_probe(run, false, false); });
    suite.add("probe_ssend", [](Run& run) { awaited_by_a_probe(run, false, true); });
    suite.add("mprobe", [](Run& run) { awaited_by_a_probe(run, true, false); });
    suite.add("mprobe_ssend", [](Run& run) { awaited_by_a_probe(run, true, true); });
    suite.add("matched_then_elsewhere", matched_then_elsewhere);
    suite.add("threads_two", two_threads);
    suite.add("threads_blocked_in_a_receive", [](Run& run) { blocked_thread(run, false); });
    suite.add("threads_blocked_in_a_probe", [](Run& run) { blocked_thread(run, true); });
    suite.add("threads_completed_by_another", completed_by_another_thread);
    suite.add("threads_probing", probing_threads);
    suite.add("threads_probing_beside_a_receiver", probing_beside_a_receiver);
}

}  // namespace

int main(int argc, char** argv) {
    const bool threads = take_option(argc, argv, "--threads").has_value();
    Suite suite(argc, argv);
    int provided = MPI_THREAD_SINGLE;
    if (threads) {
        MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    } else {
        MPI_Init(&argc, &argv);
    }
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0 && threads_allowed()) {
        std::printf("# several threads\n");
    }
    add_cases(suite);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
