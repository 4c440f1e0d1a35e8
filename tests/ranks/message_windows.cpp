// SPDX-License-Identifier: Apache-2.0
// Many large nonblocking messages at once between processes of different nodes, and what their sender may do before it
// asks for their completion: nothing that MPI allows may keep the receiver waiting for ever.
//
// In most cases the sender starts a window of messages and then waits for something that comes only when the receiver
// has all of them: in each function that may wait. The receiver takes them in whatever order, and only then does its
// part. Messages are many times as large as what may be under way at once when the chunks are those of the tests
// (network_fragment_bytes) and AWAKEN_PINNED_POOL is small.
//
//     --chunk-bytes=N    size of the parts
//     --distance=N       between a rank and its partner in another node: a power of two
//     --threads          MPI_THREAD_MULTIPLE, for the cases of several threads (they do nothing without)
#include <sched.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <thread>

#include "shared_words.h"
#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTokenTag = 1000;
constexpr int kHostTag = 1001;
constexpr int kMessages = 10;

int chunk_bytes = 4096;
int distance = 1;
bool several_threads = false;

std::size_t to_size(int value) {
    return static_cast<std::size_t>(value);
}

/// A rank and its partner, which differ in the distance between them.
struct Pair {
    explicit Pair(const Run& run) : Pair(run.rank, run.size) {}
    Pair(const int rank, const int size)
        : lower((rank & distance) == 0),
          active((rank ^ distance) < size),
          peer(active ? rank ^ distance : MPI_PROC_NULL),
          first(rank & ~distance) {}
    bool lower, active;
    int peer;
    int first;  ///< rank of the lower one
};

/// Messages in one direction: number i has tag i, and none is as long as another.
class Window {
  public:
    explicit Window(Run& run, const int first_tag = 0, const int messages = kMessages)
        : _run(run), _first_tag(first_tag) {
        for (int at = 0; at < messages; ++at) {
            _buffers.push_back(run.input(to_size(bytes_of(at))));
        }
    }
    [[nodiscard]] int count() const { return static_cast<int>(_buffers.size()); }
    [[nodiscard]] Kind kind() const { return _run.kind_of(_buffers.front()); }

    [[nodiscard]] std::vector<MPI_Request> send(const int to) {
        std::vector<MPI_Request> requests(_buffers.size());
        for (int at = 0; at < count(); ++at) {
            _run.ok(MPI_Isend(_buffers[to_size(at)], bytes_of(at), MPI_BYTE, to, _first_tag + at, _run.comm,
                              &requests[to_size(at)]),
                    "MPI_Isend", __LINE__);
        }
        return requests;
    }
    [[nodiscard]] std::vector<MPI_Request> receive(const int from) {
        std::vector<MPI_Request> requests(_buffers.size());
        for (int at = 0; at < count(); ++at) {
            _run.ok(MPI_Irecv(_buffers[to_size(at)], bytes_of(at), MPI_BYTE, from, _first_tag + at, _run.comm,
                              &requests[to_size(at)]),
                    "MPI_Irecv", __LINE__);
        }
        return requests;
    }
    /// One after the other, the last one first or the first.
    void receive_each(const int from, const bool backwards) {
        for (int turn = 0; turn < count(); ++turn) {
            const int at = backwards ? count() - 1 - turn : turn;
            MPI_Status status{};
            _run.ok(MPI_Recv(_buffers[to_size(at)], bytes_of(at), MPI_BYTE, from, _first_tag + at, _run.comm, &status),
                    "MPI_Recv", __LINE__);
            _run.note_status(format("message %d", at), status, MPI_BYTE);
        }
    }
    /// What was sent may be overwritten.
    void refill() {
        for (int at = 0; at < count(); ++at) {
            _run.refill(_buffers[to_size(at)], to_size(bytes_of(at)), 3);
        }
    }

  private:
    [[nodiscard]] static int bytes_of(const int at) { return 41 * chunk_bytes + 7 * at + 1; }
    Run& _run;
    const int _first_tag;
    std::vector<std::byte*> _buffers;
};

void await_all(Run& run, std::vector<MPI_Request>& requests) {
    OK(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE));
}

// ---- completion in any order ----------------------------------------------------------------------------------------

using Complete = std::function<void(Run&, std::vector<MPI_Request>&)>;

void by_wait_backwards(Run& run, std::vector<MPI_Request>& requests) {
    for (std::size_t at = requests.size(); at-- > 0;) {
        OK(MPI_Wait(&requests[at], MPI_STATUS_IGNORE));
    }
}
void by_waitany(Run& run, std::vector<MPI_Request>& requests) {
    for (int index = 0; index != MPI_UNDEFINED;) {
        OK(MPI_Waitany(static_cast<int>(requests.size()), requests.data(), &index, MPI_STATUS_IGNORE));
    }
}
void by_testsome(Run& run, std::vector<MPI_Request>& requests) {
    std::vector<int> indices(requests.size());
    for (int completed = 0; completed != MPI_UNDEFINED;) {
        OK(MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &completed, indices.data(),
                        MPI_STATUSES_IGNORE));
    }
}
void by_waitsome(Run& run, std::vector<MPI_Request>& requests) {
    std::vector<int> indices(requests.size());
    for (int completed = 0; completed != MPI_UNDEFINED;) {
        OK(MPI_Waitsome(static_cast<int>(requests.size()), requests.data(), &completed, indices.data(),
                        MPI_STATUSES_IGNORE));
    }
}
/// The last one only, again and again, then the one before it.
void by_test_backwards(Run& run, std::vector<MPI_Request>& requests) {
    for (std::size_t at = requests.size(); at-- > 0;) {
        for (int done = 0; done == 0;) {
            OK(MPI_Test(&requests[at], &done, MPI_STATUS_IGNORE));
        }
    }
}

/// Both directions at once, everything nonblocking.
void both_ways(Run& run, const Complete& complete) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    Window in(run), out(run);
    const Step step(run, "all");
    std::vector<MPI_Request> requests = in.receive(pair.peer);
    for (const MPI_Request request : out.send(pair.peer)) {
        requests.push_back(request);
    }
    complete(run, requests);
}

/// The receiver comes late, and takes the messages one after the other.
void one_way(Run& run, const Complete& complete, const bool backwards) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    Window window(run);
    const Step step(run, "all");
    if (pair.lower) {
        std::vector<MPI_Request> requests = window.send(pair.peer);
        complete(run, requests);
        window.refill();
    } else {
        compute(15);
        window.receive_each(pair.peer, backwards);
    }
}

/// How often the MPI has asked the program's own request for its status.
int queries = 0;
int query(void*, MPI_Status* status) {
    ++queries;
    MPI_Status_set_elements(status, MPI_BYTE, 42);
    MPI_Status_set_cancelled(status, 0);
    status->MPI_SOURCE = status->MPI_TAG = MPI_UNDEFINED;
    return MPI_SUCCESS;
}

/// A generalized request is completed while messages are under way that their receiver takes only later: once, among
/// others that are null or inactive.
void request_of_the_program(Run& run, const bool alone) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    Window window(run);
    const Step step(run, "all");
    if (!pair.lower) {
        OK(MPI_Recv(nullptr, 0, MPI_BYTE, pair.peer, kTokenTag, run.comm, MPI_STATUS_IGNORE));
        window.receive_each(pair.peer, false);
        return;
    }
    std::vector<MPI_Request> requests = window.send(pair.peer);
    std::array<MPI_Request, 3> own{MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    std::array<MPI_Status, 3> statuses{};
    OK(MPI_Recv_init(nullptr, 0, MPI_BYTE, pair.peer, kHostTag, run.comm, &own[1]));
    OK(MPI_Grequest_start(
        query, [](void*) -> int { return MPI_SUCCESS; }, [](void*, int) -> int { return MPI_SUCCESS; }, nullptr,
        &own[2]));
    OK(MPI_Grequest_complete(own[2]));
    queries = 0;
    OK(alone ? MPI_Wait(&own[2], &statuses[2]) : MPI_Waitall(3, own.data(), statuses.data()));
    run.expect(queries == 1, format("it was asked %d times", queries));
    run.expect(own[2] == MPI_REQUEST_NULL && own[1] != MPI_REQUEST_NULL, "it is over, the inactive one stays");
    for (std::size_t at = alone ? 2 : 0; at < own.size(); ++at) {
        run.note_status(format("request %zu", at), statuses[at], MPI_BYTE);
    }
    OK(MPI_Request_free(&own[1]));
    OK(MPI_Send(nullptr, 0, MPI_BYTE, pair.peer, kTokenTag, run.comm));
    await_all(run, requests);
}

/// Keeps another process from the processor.
class Stopped {
  public:
    explicit Stopped(const pid_t process) : _process(process) { kill(_process, SIGSTOP); }
    Stopped(const Stopped&) = delete;
    Stopped& operator=(const Stopped&) = delete;
    ~Stopped() { kill(_process, SIGCONT); }

  private:
    const pid_t _process;
};

/// A send between nodes is complete when the MPI has its bytes, whatever its receiver does: this one stands still until
/// all are. MPIs do not promise that for messages of host memory, so nobody is stopped there.
void receiver_stopped(Run& run) {
    const Pair pair(run);
    SharedWords words(run.comm);
    if (!pair.active) {
        return;
    }
    std::atomic<int>& sent = words[pair.first];
    int own = static_cast<int>(getpid()), other = 0;
    OK(MPI_Sendrecv(&own, 1, MPI_INT, pair.peer, kTokenTag, &other, 1, MPI_INT, pair.peer, kTokenTag, run.comm,
                    MPI_STATUS_IGNORE));
    // In the first round they find each other, and messages may travel as a whole.
    for (int round = 0; round < 3; ++round) {
        Window window(run, 0, 2);  // of more parts an MPI may keep the envelopes until there is room for them
        const bool stops = round > 0 && !run.reference() && !host_accessible(window.kind());
        const Step step(run, "all");
        if (!pair.lower) {
            send_token(run, pair.peer, kTokenTag);
            while (stops && sent <= round) {
                sched_yield();
            }
            window.receive_each(pair.peer, false);
            continue;
        }
        await_token(run, pair.peer, kTokenTag);
        std::unique_ptr<Stopped> stopped = stops ? std::make_unique<Stopped>(other) : nullptr;
        std::vector<MPI_Request> requests = window.send(pair.peer);
        await_all(run, requests);
        window.refill();
        sent = round + 1;
    }
}

/// Each receives blockingly while its own messages are under way.
void crossed(Run& run) {
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    Window in(run), out(run);
    const Step step(run, "all");
    std::vector<MPI_Request> requests = out.send(pair.peer);
    in.receive_each(pair.peer, pair.lower);
    await_all(run, requests);
}

// ---- a sender that waits for something else -------------------------------------------------------------------------

/// What the sender waits in, and what the receiver does for that when it has the messages.
struct Elsewhere {
    const char* name;
    std::function<void(Run&, const Pair&)> sender, receiver;
};

void give_token(Run& run, const Pair& pair) {
    send_token(run, pair.peer, kTokenTag);
}
void take_large(Run& run, const Pair& pair) {
    const int bytes = 1 << 21;  // more than an MPI sends before the receiver is there
    OK(MPI_Recv(run.host(to_size(bytes)), bytes, MPI_BYTE, pair.peer, kHostTag, run.comm, MPI_STATUS_IGNORE));
}
void with_both(const std::function<void(Run&)>& call, std::vector<Elsewhere>& list, const char* name) {
    const auto part = [call](Run& run, const Pair&) { call(run); };
    list.push_back({name, part, part});
}

std::vector<Elsewhere> places() {
    std::vector<Elsewhere> list = {
        {"recv", [](Run& run, const Pair& pair) { await_token(run, pair.peer, kTokenTag); }, give_token},
        {"wait",
         [](Run& run, const Pair& pair) {
             MPI_Request request = MPI_REQUEST_NULL;
             OK(MPI_Irecv(nullptr, 0, MPI_BYTE, pair.peer, kTokenTag, run.comm, &request));
             OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
         },
         give_token},
        {"waitany",
         [](Run& run, const Pair& pair) {
             std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
             int index = -1;
             OK(MPI_Irecv(nullptr, 0, MPI_BYTE, pair.peer, kTokenTag, run.comm, &requests[1]));
             OK(MPI_Waitany(2, requests.data(), &index, MPI_STATUS_IGNORE));
             run.expect(index == 1, "the request that is one");
             OK(MPI_Waitany(2, requests.data(), &index, MPI_STATUS_IGNORE));
             run.expect(index == MPI_UNDEFINED, "none is left");
         },
         give_token},
        {"waitsome",
         [](Run& run, const Pair& pair) {
             MPI_Request request = MPI_REQUEST_NULL;
             int completed = 0, index = -1;
             OK(MPI_Irecv(nullptr, 0, MPI_BYTE, pair.peer, kTokenTag, run.comm, &request));
             OK(MPI_Waitsome(1, &request, &completed, &index, MPI_STATUSES_IGNORE));
             run.expect(completed == 1 && index == 0, "the only one");
         },
         give_token},
        // Nothing but looks at another request, and work between them.
        {"test",
         [](Run& run, const Pair& pair) {
             MPI_Request request = MPI_REQUEST_NULL;
             OK(MPI_Irecv(nullptr, 0, MPI_BYTE, pair.peer, kTokenTag, run.comm, &request));
             for (int done = 0; done == 0; compute(0.1)) {
                 OK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
             }
         },
         give_token},
        {"probe",
         [](Run& run, const Pair& pair) {
             OK(MPI_Probe(pair.peer, kTokenTag, run.comm, MPI_STATUS_IGNORE));
             await_token(run, pair.peer, kTokenTag);
         },
         give_token},
        {"iprobe",
         [](Run& run, const Pair& pair) {
             for (int found = 0; found == 0;) {
                 OK(MPI_Iprobe(pair.peer, kTokenTag, run.comm, &found, MPI_STATUS_IGNORE));
             }
             await_token(run, pair.peer, kTokenTag);
         },
         give_token},
        {"mprobe",
         [](Run& run, const Pair& pair) {
             MPI_Message message = MPI_MESSAGE_NULL;
             OK(MPI_Mprobe(pair.peer, kTokenTag, run.comm, &message, MPI_STATUS_IGNORE));
             OK(MPI_Mrecv(nullptr, 0, MPI_BYTE, &message, MPI_STATUS_IGNORE));
         },
         give_token},
        {"ssend",
         [](Run& run, const Pair& pair) { OK(MPI_Ssend(nullptr, 0, MPI_BYTE, pair.peer, kHostTag, run.comm)); },
         [](Run& run, const Pair& pair) { await_token(run, pair.peer, kHostTag); }},
        {"send",
         [](Run& run, const Pair& pair) {
             const int bytes = 1 << 21;
             OK(MPI_Send(run.host(to_size(bytes)), bytes, MPI_BYTE, pair.peer, kHostTag, run.comm));
         },
         take_large},
        {"device_ssend",
         [](Run& run, const Pair& pair) { OK(MPI_Ssend(run.input(64), 64, MPI_BYTE, pair.peer, kHostTag, run.comm)); },
         [](Run& run, const Pair& pair) {
             OK(MPI_Recv(run.input(64), 64, MPI_BYTE, pair.peer, kHostTag, run.comm, MPI_STATUS_IGNORE));
         }},
        {"sendrecv",
         [](Run& run, const Pair& pair) {
             OK(MPI_Sendrecv(nullptr, 0, MPI_BYTE, pair.peer, kHostTag, nullptr, 0, MPI_BYTE, pair.peer, kTokenTag,
                             run.comm, MPI_STATUS_IGNORE));
         },
         [](Run& run, const Pair& pair) {
             give_token(run, pair);
             await_token(run, pair.peer, kHostTag);
         }},
        {"buffer_detach",
         [](Run& run, const Pair& pair) {
             const int bytes = 1 << 21;
             const RoomForBufferedSends room(to_size(bytes), 1);
             OK(MPI_Bsend(run.host(to_size(bytes)), bytes, MPI_BYTE, pair.peer, kHostTag, run.comm));
         },
         take_large},
    };
    with_both([](Run& run) { OK(MPI_Barrier(run.comm)); }, list, "barrier");
    with_both(
        [](Run& run) {
            int all = 0;
            OK(MPI_Allreduce(&run.rank, &all, 1, MPI_INT, MPI_SUM, run.comm));
        },
        list, "allreduce");
    with_both(
        [](Run& run) {
            MPI_Request request = MPI_REQUEST_NULL;
            OK(MPI_Ibarrier(run.comm, &request));
            OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        },
        list, "ibarrier");
    with_both(
        [](Run& run) {
            MPI_Comm copy = MPI_COMM_NULL;
            OK(MPI_Comm_dup(run.comm, &copy));
            OK(MPI_Comm_free(&copy));
        },
        list, "comm_dup");
    with_both(
        [](Run& run) {
            MPI_Comm turned = MPI_COMM_NULL;
            OK(MPI_Comm_split(run.comm, 0, -run.rank, &turned));
            OK(MPI_Comm_free(&turned));
        },
        list, "comm_split");
    with_both(
        [](Run& run) {
            const int periodic = 1;
            MPI_Comm grid = MPI_COMM_NULL;
            OK(MPI_Cart_create(run.comm, 1, &run.size, &periodic, 1, &grid));
            OK(MPI_Comm_free(&grid));
        },
        list, "cart_create");
    with_both(
        [](Run& run) {
            MPI_Win window = MPI_WIN_NULL;
            OK(MPI_Win_create(run.host(64), 64, 1, MPI_INFO_NULL, run.comm, &window));
            OK(MPI_Win_fence(0, window));
            OK(MPI_Win_free(&window));
        },
        list, "window");
    return list;
}

void elsewhere(Run& run, const Elsewhere& place, const bool posted_early) {
    const Pair pair(run);
    Window window(run);
    const Step step(run, place.name);
    if (pair.lower && pair.active) {
        std::vector<MPI_Request> requests = window.send(pair.peer);
        place.sender(run, pair);
        await_all(run, requests);
        window.refill();
    } else if (pair.active) {
        if (posted_early) {
            std::vector<MPI_Request> requests = window.receive(pair.peer);
            await_all(run, requests);
        } else {
            window.receive_each(pair.peer, true);
        }
        place.receiver(run, pair);
    } else {
        place.sender(run, pair);  // collectives are for all
    }
}

/// The receives are there, and the receiver waits for something that the sender does when its messages are complete.
void receiver_elsewhere(Run& run, const Elsewhere& place) {
    const Pair pair(run);
    Window window(run);
    const Step step(run, place.name);
    if (pair.lower && pair.active) {
        std::vector<MPI_Request> requests = window.send(pair.peer);
        await_all(run, requests);
        place.receiver(run, pair);
    } else if (pair.active) {
        std::vector<MPI_Request> requests = window.receive(pair.peer);
        place.sender(run, pair);
        await_all(run, requests);
    } else {
        place.sender(run, pair);  // collectives are for all
    }
}

/// The same in a barrier; with `wait_first` the sender asks for completion before it.
void both_elsewhere(Run& run, const bool wait_first) {
    const Pair pair(run);
    Window window(run);
    const Step step(run, "all");
    std::vector<MPI_Request> requests;
    if (pair.active) {
        requests = pair.lower ? window.send(pair.peer) : window.receive(pair.peer);
    }
    if (wait_first && pair.lower) {
        await_all(run, requests);
    }
    OK(MPI_Barrier(run.comm));
    await_all(run, requests);
}

/// Messages whose requests were given away, and a barrier.
void given_away(Run& run) {
    const Pair pair(run);
    Window window(run);
    const Step step(run, "all");
    if (pair.lower && pair.active) {
        for (MPI_Request& request : window.send(pair.peer)) {
            OK(MPI_Request_free(&request));
        }
    } else if (pair.active) {
        window.receive_each(pair.peer, true);
    }
    OK(MPI_Barrier(run.comm));
}

/// One thread is in the MPI already, and comes back only when the receiver has what the other thread sends.
void while_another_waits(Run& run, const bool in_barrier) {
    if (!several_threads) {
        return;
    }
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    Window window(run);
    MPI_Comm other = MPI_COMM_NULL;
    OK(MPI_Comm_split(run.comm, pair.first, run.rank, &other));
    const Step step(run, "all");
    run.watch_current(false);
    const int peer = pair.lower ? 1 : 0;
    int error = MPI_SUCCESS;
    const auto meet = [&] {
        if (in_barrier) {
            error = MPI_Barrier(other);
        } else if (pair.lower) {
            error = MPI_Recv(nullptr, 0, MPI_BYTE, peer, kTokenTag, other, MPI_STATUS_IGNORE);
        } else {
            error = MPI_Send(nullptr, 0, MPI_BYTE, peer, kTokenTag, other);
        }
    };
    if (pair.lower) {
        std::thread waiting(meet);
        compute(10);  // mostly it waits by then, and otherwise it comes later: both must do
        std::vector<MPI_Request> requests = window.send(pair.peer);
        waiting.join();
        await_all(run, requests);
    } else {
        window.receive_each(pair.peer, true);
        meet();
    }
    run.expect(error == MPI_SUCCESS, "the call of the other thread");
    run.watch_current(true);
    OK(MPI_Comm_free(&other));
}

/// One for each of two threads.
std::array<MPI_Comm, 2> comms_of_pairs(Run& run) {
    std::array<MPI_Comm, 2> comms{};
    for (MPI_Comm& comm : comms) {
        OK(MPI_Comm_split(run.comm, Pair(run).first, run.rank, &comm));
    }
    return comms;
}
void free_all(Run& run, std::array<MPI_Comm, 2>& comms) {
    for (MPI_Comm& comm : comms) {
        OK(MPI_Comm_free(&comm));
    }
}

/// MPIs give a request's handle out again as soon as the request is complete: to another thread, whose operation must
/// not be taken for the one before.
void handles_of_another_thread(Run& run) {
    if (!several_threads) {
        return;
    }
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    constexpr int kRounds = 20;
    Window window(run, 0, 32);
    std::array<MPI_Comm, 2> comms = comms_of_pairs(run);
    const Step step(run, "all");
    run.watch_current(false);
    const int peer = pair.lower ? 1 : 0;
    std::vector<std::byte> host(to_size(130 * chunk_bytes));
    int error = MPI_SUCCESS;
    // Until the lower rank says that it is the last message: in the first byte.
    bool over = false;
    std::atomic<bool> last{false};
    std::thread other([&] {
        while (error == MPI_SUCCESS && !over) {
            MPI_Request request = MPI_REQUEST_NULL;
            const int bytes = static_cast<int>(host.size());
            if (pair.lower) {
                error = MPI_Irecv(host.data(), bytes, MPI_BYTE, peer, kHostTag, comms[1], &request);
            } else {
                host[0] = last.load() ? std::byte{1} : std::byte{0};
                error = MPI_Isend(host.data(), bytes, MPI_BYTE, peer, kHostTag, comms[1], &request);
            }
            error = error == MPI_SUCCESS ? MPI_Wait(&request, MPI_STATUS_IGNORE) : error;
            over = host[0] == std::byte{1};
        }
    });
    for (int round = 0; round < kRounds; ++round) {
        std::vector<MPI_Request> requests = pair.lower ? window.send(pair.peer) : window.receive(pair.peer);
        await_all(run, requests);
        if (pair.lower && round + 1 < kRounds) {
            window.refill();
        }
        OK(MPI_Barrier(comms[0]));
    }
    last = true;
    other.join();
    run.expect(error == MPI_SUCCESS, "the messages of the other thread");
    run.watch_current(true);
    free_all(run, comms);
}

/// A synchronous send whose receiver does not come yet keeps back no message of another thread that is expected.
void behind_a_synchronous_send(Run& run) {
    if (!several_threads) {
        return;
    }
    const Pair pair(run);
    if (!pair.active) {
        return;
    }
    const int bytes = 300 * chunk_bytes;
    std::array<std::byte*, 2> buffers{run.input(to_size(bytes)), run.input(to_size(bytes))};
    std::array<MPI_Comm, 2> comms = comms_of_pairs(run);
    const Step step(run, "all");
    run.watch_current(false);
    const int peer = pair.lower ? 1 : 0;
    int error = MPI_SUCCESS;
    if (pair.lower) {
        std::thread synchronous([&] { error = MPI_Ssend(buffers[0], bytes, MPI_BYTE, peer, 1, comms[0]); });
        compute(10);  // mostly it is under way by then, and otherwise it comes later: both must do
        OK(MPI_Send(buffers[1], bytes, MPI_BYTE, peer, 2, comms[1]));
        OK(MPI_Barrier(comms[1]));
        synchronous.join();
    } else {
        MPI_Request request = MPI_REQUEST_NULL;
        OK(MPI_Irecv(buffers[1], bytes, MPI_BYTE, peer, 2, comms[1], &request));
        OK(MPI_Barrier(comms[1]));
        OK(MPI_Recv(buffers[0], bytes, MPI_BYTE, peer, 1, comms[0], MPI_STATUS_IGNORE));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    }
    run.expect(error == MPI_SUCCESS, "the synchronous send");
    run.watch_current(true);
    free_all(run, comms);
}

void add_cases(Suite& suite) {
    const std::vector<std::pair<std::string, Complete>> ways = {
        {"waitall", await_all},    {"wait_backwards", by_wait_backwards},
        {"waitany", by_waitany},   {"waitsome", by_waitsome},
        {"testsome", by_testsome}, {"test_backwards", by_test_backwards}};
    for (const auto& [name, complete] : ways) {
        suite.add("both_ways_" + name, [complete = complete](Run& run) { both_ways(run, complete); });
        suite.add("in_order_" + name, [complete = complete](Run& run) { one_way(run, complete, false); });
        suite.add("backwards_" + name, [complete = complete](Run& run) { one_way(run, complete, true); });
    }
    suite.add("crossed", crossed);
    suite.add("request_of_the_program", [](Run& run) { request_of_the_program(run, true); });
    suite.add("request_of_the_program_among_others", [](Run& run) { request_of_the_program(run, false); });
    suite.add("receiver_stopped", receiver_stopped, 2, Weight::heavy);
    for (const Elsewhere& place : places()) {
        suite.add(std::string("posted_") + place.name, [place](Run& run) { elsewhere(run, place, true); });
        suite.add(std::string("late_") + place.name, [place](Run& run) { elsewhere(run, place, false); });
        suite.add(std::string("receiver_in_") + place.name, [place](Run& run) { receiver_elsewhere(run, place); });
    }
    suite.add("both_in_barrier", [](Run& run) { both_elsewhere(run, false); });
    suite.add("sender_waits_before_barrier", [](Run& run) { both_elsewhere(run, true); });
    suite.add("given_away", given_away);
    suite.add("beside_barrier", [](Run& run) { while_another_waits(run, true); });
    suite.add("beside_recv", [](Run& run) { while_another_waits(run, false); });
    suite.add("behind_a_synchronous_send", behind_a_synchronous_send);
    suite.add("handles_of_another_thread", handles_of_another_thread);
}

/// The program ends while messages are under way that it has given away. True when they came.
bool given_away_at_the_end(Gpu& gpu) {
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const Pair pair(rank, size);
    const int bytes = 77 * chunk_bytes + 3;
    bool right = true;
    if (!pair.active) {
        return right;
    }
    for (int at = 0; at < kMessages; ++at) {
        std::vector<std::byte> content(to_size(bytes)), found(to_size(bytes));
        fill_random(content.data(), content.size(), to_size(at));
        void* const buffer = gpu.allocate(Kind::device, content.size());  // the driver's to free, after MPI
        if (pair.lower) {
            gpu.write(buffer, content.data(), content.size());
            MPI_Request request = MPI_REQUEST_NULL;
            MPI_Isend(buffer, bytes, MPI_BYTE, pair.peer, at, MPI_COMM_WORLD, &request);
            MPI_Request_free(&request);
        } else {
            MPI_Recv(buffer, bytes, MPI_BYTE, pair.peer, at, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            gpu.read(found.data(), buffer, found.size());
            right = right && found == content;
        }
    }
    return right;
}

}  // namespace

int main(int argc, char** argv) {
    if (const auto text = take_option(argc, argv, "--distance")) {
        distance = std::stoi(*text);
    }
    if (const auto text = take_option(argc, argv, "--chunk-bytes")) {
        chunk_bytes = std::stoi(*text);
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
    detail::set_watchdog(kSlowness * kLimitSeconds);
    const bool right = given_away_at_the_end(suite.gpu());
    MPI_Finalize();
    detail::set_watchdog(0);
    std::printf("%s end: rank %d\n", right ? "ok" : "FAIL", rank);
    return right ? status : status + 1;
}
