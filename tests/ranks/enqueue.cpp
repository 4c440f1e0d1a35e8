// SPDX-License-Identifier: Apache-2.0
// MPI's stream API: operations that a stream of the program orders, against the same operations without a stream.
//
// In the reference, and without a GPU, each queued operation is the plain one, done at once. Streams are held up where
// a call must not wait for them. A call that waits hangs, and the watch-dog names it.
#define AWAKEN_WEAK_MPIX
#include "awaken/mpix_stream.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "steps.h"

using namespace ranks;

namespace {

constexpr int kTag = 23;
constexpr std::size_t kSizes[] = {1, 4096, std::size_t{64} << 10, (std::size_t{1} << 20) + 24};
constexpr std::size_t kSmall = 3000;

int next(const Run& run) {
    return (run.rank + 1) % run.size;
}
int previous(const Run& run) {
    return (run.rank + run.size - 1) % run.size;
}
int count_of(std::size_t value) {
    return static_cast<int>(value);
}
std::size_t to_size(int value) {
    return static_cast<std::size_t>(value);
}

/// A communicator with a stream, or, in the reference, without.
class Queue {
  public:
    explicit Queue(Run& given, bool is_blocking = false, bool has_stream = true) : run(given) {
        _plain = run.reference() || !run.gpu().present();
        if (_plain) {
            OK(MPI_Comm_dup(run.comm, &comm));
            return;
        }
        MPIX_Stream number = MPIX_STREAM_NULL;
        if (has_stream) {
            _stream = run.gpu().make_stream(is_blocking);
            MPI_Info info;
            OK(MPI_Info_create(&info));
            OK(MPI_Info_set(info, "type", run.gpu().is_hip() ? "hipStream_t" : "cudaStream_t"));
            OK(MPIX_Info_set_hex(info, "value", &_stream, sizeof _stream));
            OK(MPIX_Stream_create(info, &number));
            OK(MPI_Info_free(&info));
        }
        OK(MPIX_Stream_comm_create(run.comm, number, &comm));
        if (has_stream) {
            MPIX_Stream same = MPIX_STREAM_NULL;
            OK(MPIX_Comm_get_stream(comm, 0, &same));
            if (same != number) {
                throw std::runtime_error("MPIX_Comm_get_stream gives another stream");
            }
            OK(MPIX_Stream_free(&number));
        }
    }
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;
    ~Queue() {
        if (comm != MPI_COMM_NULL) {
            MPI_Comm_free(&comm);
        }
        if (_stream != nullptr) {
            run.gpu().finish_stream(_stream);
            run.gpu().destroy_stream(_stream);
        }
    }

    void send(const void* buffer, std::size_t count, MPI_Datatype type, int to, int tag = kTag) const {
        OK(_plain ? MPI_Send(buffer, count_of(count), type, to, tag, comm)
                  : MPIX_Send_enqueue(buffer, count_of(count), type, to, tag, comm));
    }
    void receive(void* buffer, std::size_t count, MPI_Datatype type, int from, int tag = kTag,
                 MPI_Status* status = MPI_STATUS_IGNORE) const {
        OK(_plain ? MPI_Recv(buffer, count_of(count), type, from, tag, comm, status)
                  : MPIX_Recv_enqueue(buffer, count_of(count), type, from, tag, comm, status));
    }
    void isend(const void* buffer, std::size_t count, MPI_Datatype type, int to, int tag, MPI_Request* request) const {
        OK(_plain ? MPI_Isend(buffer, count_of(count), type, to, tag, comm, request)
                  : MPIX_Isend_enqueue(buffer, count_of(count), type, to, tag, comm, request));
    }
    void ireceive(void* buffer, std::size_t count, MPI_Datatype type, int from, int tag, MPI_Request* request) const {
        OK(_plain ? MPI_Irecv(buffer, count_of(count), type, from, tag, comm, request)
                  : MPIX_Irecv_enqueue(buffer, count_of(count), type, from, tag, comm, request));
    }
    void wait(MPI_Request* request, MPI_Status* status = MPI_STATUS_IGNORE) const {
        OK(_plain ? MPI_Wait(request, status) : MPIX_Wait_enqueue(request, status));
    }
    void waitall(std::vector<MPI_Request>& requests, MPI_Status* statuses = MPI_STATUSES_IGNORE) const {
        const int count = count_of(requests.size());
        OK(_plain ? MPI_Waitall(count, requests.data(), statuses)
                  : MPIX_Waitall_enqueue(count, requests.data(), statuses));
    }
    void startall(std::vector<MPI_Request>& requests) const {
        const int count = count_of(requests.size());
        OK(_plain ? MPI_Startall(count, requests.data()) : MPIX_Startall_enqueue(count, requests.data()));
    }
    void exchange(const void* out, void* in, std::size_t bytes) const {
        std::vector<MPI_Request> requests(2);
        ireceive(in, bytes, MPI_BYTE, previous(run), kTag, &requests[0]);
        isend(out, bytes, MPI_BYTE, next(run), kTag, &requests[1]);
        waitall(requests);
    }
    /// In the stream's order.
    void copy(void* target, const void* source, std::size_t bytes) const {
        if (_plain) {
            std::memcpy(target, source, bytes);
        } else {
            run.gpu().copy_in(_stream, target, source, bytes);
        }
    }
    [[nodiscard]] std::shared_ptr<void> hold() const { return _stream == nullptr ? nullptr : run.gpu().hold(_stream); }
    void finish() const {
        if (_stream != nullptr) {
            run.gpu().finish_stream(_stream);
        }
    }
    [[nodiscard]] bool plain() const { return _plain; }

    /// What `turn` queues, as a graph. Null in the reference, and without a GPU.
    template <class Turn>
    [[nodiscard]] void* graph(const Turn& turn) const {
        if (_stream == nullptr) {
            return nullptr;
        }
        run.gpu().begin_capture(_stream);
        turn();
        return run.gpu().end_capture(_stream);
    }
    /// Does it once more.
    template <class Turn>
    void replay(void* graph, const Turn& turn) const {
        if (graph != nullptr) {
            run.gpu().launch_graph(graph, _stream);
        } else {
            turn();
        }
    }
    void destroy(void* graph) const {
        if (graph != nullptr) {
            run.gpu().destroy_graph(graph);
        }
    }
    template <class Turn>
    void in_a_graph(int replays, const Turn& turn) const {
        void* const made = graph(turn);
        for (int i = 0; i < replays; ++i) {
            replay(made, turn);
        }
        finish();
        destroy(made);
    }

    MPI_Comm comm = MPI_COMM_NULL;

  private:
    Run& run;
    bool _plain = true;
    void* _stream = nullptr;
};

std::byte* device_memory(Run& run, std::size_t bytes) {
    return run.input_of(Kind::device, bytes);
}

/// What is sent is made, and what came is used, in the order of the stream.
void one_way(Run& run) {
    Queue queue(run);
    for (const std::size_t bytes : kSizes) {
        std::byte* const made = device_memory(run, bytes);
        std::byte* const out = device_memory(run, bytes);
        std::byte* const in = device_memory(run, bytes);
        std::byte* const used = device_memory(run, bytes);
        const Step step(run, format("%zu bytes", bytes));
        queue.copy(out, made, bytes);
        if (run.rank == 0) {
            queue.send(out, bytes, MPI_BYTE, 1);
        } else if (run.rank == 1) {
            queue.receive(in, bytes, MPI_BYTE, 0);
        }
        queue.copy(out, used, bytes);  // a send that is over has read its buffer
        queue.copy(used, in, bytes);
        queue.finish();
    }
}

/// Calls do not wait for the stream, and progress needs no call of MPI.
void held_up(Run& run) {
    Queue queue(run);
    for (const std::size_t bytes : kSizes) {
        std::byte* const out = device_memory(run, bytes);
        std::byte* const in = device_memory(run, bytes);
        std::byte* const sum = run.input_of(Kind::device, kSmall);
        const Step step(run, format("%zu bytes", bytes));
        std::shared_ptr<void> held = queue.hold();
        for (int round = 0; round < 3; ++round) {
            queue.exchange(out, in, bytes);
            queue.copy(out, in, bytes);
        }
        OK(queue.plain() ? MPI_Allreduce(MPI_IN_PLACE, sum, 100, MPI_INT32_T, MPI_BXOR, queue.comm)
                         : MPIX_Allreduce_enqueue(MPI_IN_PLACE, sum, 100, MPI_INT32_T, MPI_BXOR, queue.comm));
        OK(MPI_Barrier(run.comm));  // all calls have returned
        held.reset();
        queue.finish();
    }
}

/// Many at a time, awaited in another order, in memory of all kinds.
void many(Run& run) {
    Queue queue(run);
    constexpr int kMessages = 40;
    std::vector<std::byte*> out, in;
    std::vector<MPI_Request> requests;
    for (int i = 0; i < kMessages; ++i) {
        out.push_back(run.input(kSmall));
        in.push_back(run.input(kSmall));
    }
    const Step step(run, "all of them");
    for (int i = 0; i < kMessages; ++i) {
        queue.isend(out[to_size(i)], kSmall, MPI_BYTE, next(run), i, &requests.emplace_back());
    }
    for (int i = kMessages; i-- > 0;) {
        queue.ireceive(in[to_size(i)], kSmall, MPI_BYTE, previous(run), i, &requests.emplace_back());
    }
    for (std::size_t i = 0; i < requests.size(); i += 4) {
        queue.wait(&requests[(i * 3) % requests.size()]);
        requests[(i * 3) % requests.size()] = MPI_REQUEST_NULL;
    }
    queue.waitall(requests);
    queue.finish();
}

/// More than are ever open at a time.
void very_many(Run& run) {
    Queue queue(run);
    std::byte* const out = device_memory(run, 64);
    std::byte* const in = device_memory(run, 64);
    const Step step(run, "all of them");
    for (int i = 0; i < 700; ++i) {
        queue.exchange(out, in, 64);
        queue.copy(out, in, 64);
    }
    queue.finish();
}

/// A receive is over long before it is waited for.
void awaited_late(Run& run) {
    Queue queue(run);
    std::byte* const early_out = device_memory(run, kSmall);
    std::byte* const early_in = device_memory(run, kSmall);
    std::byte* const out = device_memory(run, 64);
    std::byte* const in = device_memory(run, 64);
    const Step step(run, "all of them");
    std::vector<MPI_Request> requests(2);
    queue.ireceive(early_in, kSmall, MPI_BYTE, previous(run), kTag + 1, &requests[0]);
    queue.isend(early_out, kSmall, MPI_BYTE, next(run), kTag + 1, &requests[1]);
    for (int i = 0; i < 1100; ++i) {
        queue.exchange(out, in, 64);
    }
    queue.waitall(requests);
    queue.finish();
}

/// Messages that are shorter than the buffer, which has gaps: what nothing is received into stays.
void short_messages(Run& run) {
    Queue queue(run);
    MPI_Datatype column;
    OK(MPI_Type_vector(64, 3, 16, MPI_INT, &column));
    OK(MPI_Type_commit(&column));
    for (const Kind kind : {Kind::device, Kind::host}) {
        for (const int count : {1, 5, 50}) {
            std::byte* const out = device_memory(run, 256);
            std::byte* const in = run.input_of(kind, 64 * 64);
            const Step step(run, format("%d of 192", count));
            std::vector<MPI_Request> requests(2);
            queue.ireceive(in, 1, column, previous(run), kTag, &requests[0]);
            queue.isend(out, to_size(count), MPI_INT, next(run), kTag, &requests[1]);
            queue.waitall(requests);
            queue.finish();
        }
    }
    OK(MPI_Type_free(&column));
}

/// The type goes right after the call.
void types(Run& run) {
    Queue queue(run);
    for (const Kind kind : {Kind::device, Kind::host}) {
        std::byte* const out = run.input_of(kind, 64 * 64);
        std::byte* const in = run.input_of(kind, 64 * 64);
        std::shared_ptr<void> held = queue.hold();
        MPI_Datatype column;
        OK(MPI_Type_vector(64, 3, 16, MPI_INT, &column));
        OK(MPI_Type_commit(&column));
        std::vector<MPI_Request> requests(2);
        queue.ireceive(in, 1, column, previous(run), kTag, &requests[0]);
        queue.isend(out, 1, column, next(run), kTag, &requests[1]);
        OK(MPI_Type_free(&column));
        queue.waitall(requests);
        held.reset();
        queue.finish();
    }
}

/// One side queues, the other one calls the plain function.
void plain_partner(Run& run) {
    for (const bool sender_has_stream : {true, false}) {
        const Step step(run, sender_has_stream ? "the sender queues" : "the receiver queues");
        const bool has_stream = (run.rank == 0) == sender_has_stream;
        Queue queue(run, false, has_stream);
        for (const std::size_t bytes : kSizes) {
            std::byte* const out = device_memory(run, bytes);
            std::byte* const in = device_memory(run, bytes);
            MPI_Status status{};
            if (run.rank == 0) {
                has_stream ? queue.send(out, bytes, MPI_BYTE, 1)
                           : OK(MPI_Send(out, count_of(bytes), MPI_BYTE, 1, kTag, queue.comm));
            } else if (run.rank == 1) {
                has_stream ? queue.receive(in, bytes, MPI_BYTE, 0, kTag, &status)
                           : OK(MPI_Recv(in, count_of(bytes), MPI_BYTE, 0, kTag, queue.comm, &status));
            }
            queue.finish();
            if (run.rank == 1) {
                run.note_status("received", status, MPI_BYTE);
            }
        }
    }
}

/// A plain call on the communicator comes after what its stream was given.
void plain_after_queued(Run& run) {
    Queue queue(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const second = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    std::byte* const last = device_memory(run, kSmall);
    const Step step(run, "both");
    if (run.rank == 0) {
        queue.copy(out, second, kSmall);
        queue.send(out, kSmall, MPI_BYTE, 1);
        OK(MPI_Send(second, 100, MPI_BYTE, 1, kTag, queue.comm));
    } else if (run.rank == 1) {
        queue.receive(in, kSmall, MPI_BYTE, 0);
        MPI_Status status{};
        OK(MPI_Recv(last, count_of(kSmall), MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, queue.comm, &status));
        run.note_status("the second", status, MPI_BYTE);
    }
    OK(MPI_Barrier(queue.comm));
    queue.finish();
}

void wildcards(Run& run) {
    Queue queue(run);
    constexpr int kEach = 5;
    const int all = kEach * (run.size - 1);
    std::vector<std::byte*> in;
    std::byte* const out = device_memory(run, kSmall);
    for (int i = 0; i < kEach * (run.size - 1); ++i) {
        in.push_back(device_memory(run, kSmall));
    }
    const Step step(run, "all of them");
    std::vector<MPI_Status> statuses(to_size(std::max(all, 1)));
    if (run.rank == 0) {
        // Each one's messages come in their order.
        for (int from = 1; from < run.size; ++from) {
            for (int i = 0; i < kEach; ++i) {
                const auto at = to_size((from - 1) * kEach + i);
                queue.receive(in[at], kSmall, MPI_BYTE, run.size == 2 ? MPI_ANY_SOURCE : from, MPI_ANY_TAG,
                              &statuses[at]);
            }
        }
    } else {
        for (int i = 0; i < kEach; ++i) {
            queue.send(out, kSmall - to_size(i), MPI_BYTE, 0, 10 * run.rank + i);
        }
    }
    queue.finish();
    for (int i = 0; run.rank == 0 && i < all; ++i) {
        run.note_status(format("message %d", i), statuses[to_size(i)], MPI_BYTE);
    }
}

/// Two communicators and streams whose operations cross.
void two_streams(Run& run) {
    Queue first(run), second(run, true);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    std::byte* const more = device_memory(run, kSmall);
    std::byte* const last = device_memory(run, kSmall);
    const Step step(run, "both");
    if (run.rank == 0) {
        second.receive(in, kSmall, MPI_BYTE, 1);
        first.send(out, kSmall, MPI_BYTE, 1);
    } else if (run.rank == 1) {
        if (first.plain()) {  // one after the other
            std::vector<MPI_Request> requests(2);
            first.ireceive(in, kSmall, MPI_BYTE, 0, kTag, &requests[0]);
            second.isend(out, kSmall, MPI_BYTE, 0, kTag, &requests[1]);
            first.waitall(requests);
        } else {
            first.receive(in, kSmall, MPI_BYTE, 0);
            second.send(out, kSmall, MPI_BYTE, 0);
        }
    }
    // Requests of both in one call.
    std::vector<MPI_Request> requests(4);
    first.ireceive(more, kSmall, MPI_BYTE, previous(run), 1, &requests[0]);
    second.ireceive(last, kSmall, MPI_BYTE, previous(run), 2, &requests[1]);
    first.isend(out, kSmall, MPI_BYTE, next(run), 1, &requests[2]);
    second.isend(out, kSmall, MPI_BYTE, next(run), 2, &requests[3]);
    first.waitall(requests);
    first.finish();
    second.finish();
}

/// What the default stream was given waits for a stream that waits for a message.
void default_stream_behind(Run& run) {
    Queue queue(run, true);
    for (const std::size_t bytes : kSizes) {
        std::byte* const out = device_memory(run, bytes);
        std::byte* const in = device_memory(run, bytes);
        std::byte* const other = device_memory(run, bytes);
        std::byte* const copy = device_memory(run, bytes);
        const Step step(run, format("%zu bytes", bytes));
        if (run.rank == 1) {
            queue.receive(in, bytes, MPI_BYTE, 0);
        }
        if (queue.plain()) {
            std::memcpy(copy, other, bytes);
        } else {
            run.gpu().copy_in_stream(copy, other, bytes);
        }
        if (!queue.plain()) {  // else the receive waits for what is sent after it
            OK(MPI_Barrier(run.comm));
        }
        if (run.rank == 0) {
            queue.send(out, bytes, MPI_BYTE, 1);
        }
        queue.finish();
        if (!queue.plain()) {
            run.gpu().synchronize();
        }
    }
}

/// The program completes what it has queued by itself.
void plain_wait(Run& run) {
    Queue queue(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    for (int way = 0; way < 4; ++way) {
        const Step step(run, format("way %d", way));
        MPI_Request requests[2];
        MPI_Status statuses[2] = {};
        queue.ireceive(in, kSmall, MPI_BYTE, previous(run), kTag, &requests[0]);
        queue.isend(out, kSmall, MPI_BYTE, next(run), kTag, &requests[1]);
        int done = 0;
        switch (way) {
            case 0:
                OK(MPI_Waitall(2, requests, statuses));
                break;
            case 1:
                OK(MPI_Wait(&requests[0], &statuses[0]));
                OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
                break;
            case 2:
                while (done == 0) {
                    OK(MPI_Testall(2, requests, &done, statuses));
                }
                break;
            default:
                OK(MPI_Wait(&requests[0], &statuses[0]));
                queue.wait(&requests[1]);
                break;
        }
        run.note_status("received", statuses[0], MPI_BYTE);
        queue.finish();
    }
}

void statuses(Run& run) {
    Queue queue(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    std::vector<MPI_Request> requests(3, MPI_REQUEST_NULL);
    std::vector<MPI_Status> told(3);
    const Step step(run, "Waitall");
    queue.isend(out, kSmall / 2, MPI_BYTE, next(run), 7, &requests[0]);
    queue.ireceive(in, kSmall, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, &requests[2]);
    queue.waitall(requests, told.data());
    queue.finish();
    run.note_status("null", told[1], MPI_BYTE);
    run.note_status("receive", told[2], MPI_BYTE);
}

void persistent(Run& run) {
    Queue queue(run);
    for (const std::size_t bytes : kSizes) {
        std::byte* const out = device_memory(run, bytes);
        std::byte* const in = device_memory(run, bytes);
        const Step step(run, format("%zu bytes", bytes));
        std::vector<MPI_Request> requests(2);
        OK(MPI_Recv_init(in, count_of(bytes), MPI_BYTE, previous(run), kTag, queue.comm, &requests[0]));
        OK(MPI_Send_init(out, count_of(bytes), MPI_BYTE, next(run), kTag, queue.comm, &requests[1]));
        for (int round = 0; round < 5; ++round) {
            queue.startall(requests);
            queue.waitall(requests);
            queue.copy(out, in, bytes);
        }
        queue.finish();
        for (MPI_Request& request : requests) {
            OK(MPI_Request_free(&request));
        }
    }
}

void sum_of_squares(void* in, void* inout, int* count, MPI_Datatype*) {
    for (int i = 0; i < *count; ++i) {
        static_cast<int*>(inout)[i] += 3 * static_cast<int*>(in)[i];
    }
}

void collectives(Run& run) {
    Queue queue(run);
    const auto n = to_size(run.size);
    constexpr std::size_t kCount = 500, kBytes = kCount * sizeof(int);
    for (const Kind kind : {Kind::device, Kind::host}) {
        std::byte* const a = run.input_of(kind, kBytes * n);
        std::byte* const b = run.input_of(kind, kBytes * n);
        const MPI_Comm comm = queue.comm;
        const int count = count_of(kCount);
        const Step step(run, "all of them");
        const auto turn = [&](bool plain) {
            if (plain) {
                OK(MPI_Bcast(a, count, MPI_INT, run.size - 1, comm));
                OK(MPI_Allreduce(a, b, count, MPI_INT, MPI_SUM, comm));
                OK(MPI_Allgather(b, count, MPI_INT, a, count, MPI_INT, comm));
                OK(MPI_Alltoall(a, count, MPI_INT, b, count, MPI_INT, comm));
                OK(MPI_Reduce_scatter_block(b, a, count, MPI_INT, MPI_MAX, comm));
                OK(MPI_Barrier(comm));
                OK(MPI_Allreduce(MPI_IN_PLACE, a, count, MPI_INT, MPI_BXOR, comm));
                OK(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b, count, MPI_INT, comm));
            } else {
                OK(MPIX_Bcast_enqueue(a, count, MPI_INT, run.size - 1, comm));
                OK(MPIX_Allreduce_enqueue(a, b, count, MPI_INT, MPI_SUM, comm));
                OK(MPIX_Allgather_enqueue(b, count, MPI_INT, a, count, MPI_INT, comm));
                OK(MPIX_Alltoall_enqueue(a, count, MPI_INT, b, count, MPI_INT, comm));
                OK(MPIX_Reduce_scatter_block_enqueue(b, a, count, MPI_INT, MPI_MAX, comm));
                OK(MPIX_Barrier_enqueue(comm));
                OK(MPIX_Allreduce_enqueue_c(MPI_IN_PLACE, a, count, MPI_INT, MPI_BXOR, comm));
                OK(MPIX_Allgather_enqueue_c(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b, count, MPI_INT, comm));
            }
            queue.copy(a, b, kBytes);
        };
        for (int round = 0; round < 3; ++round) {
            turn(queue.plain());
        }
        // The operation goes right after the call.
        MPI_Op op;
        OK(MPI_Op_create(&sum_of_squares, 1, &op));
        std::shared_ptr<void> held = queue.hold();
        OK(queue.plain() ? MPI_Allreduce(MPI_IN_PLACE, b, 10, MPI_INT, op, comm)
                         : MPIX_Allreduce_enqueue(MPI_IN_PLACE, b, 10, MPI_INT, op, comm));
        OK(MPI_Op_free(&op));
        held.reset();
        queue.finish();
    }
}

void neighbours(Run& run) {
    MPI_Comm ring;
    // Which of two edges between the same two processes is which differs from MPI to MPI.
    const int size = run.size, periodic = run.size > 2 ? 1 : 0;
    OK(MPI_Cart_create(run.comm, 1, &size, &periodic, 0, &ring));
    const MPI_Comm whole = run.comm;
    run.comm = ring;
    {
        Queue queue(run);
        std::byte* const out = device_memory(run, 4000);
        std::byte* const in = device_memory(run, 4000);
        const Step step(run, "both sides");
        for (int round = 0; round < 3; ++round) {
            MPI_Datatype pairs;
            OK(MPI_Type_vector(50, 2, 4, MPI_INT, &pairs));
            OK(MPI_Type_commit(&pairs));
            const int counts[] = {100, 1};
            const MPI_Aint offsets[] = {0, 1000};
            const MPI_Datatype out_types[] = {MPI_INT, pairs}, in_types[] = {pairs, MPI_INT};
            const int in_counts[] = {1, 100};
            const MPI_Aint in_offsets[] = {2000, 0};
            OK(queue.plain() ? MPI_Neighbor_alltoallw(out, counts, offsets, out_types, in, in_counts, in_offsets,
                                                      in_types, queue.comm)
                             : MPIX_Neighbor_alltoallw_enqueue(out, counts, offsets, out_types, in, in_counts,
                                                               in_offsets, in_types, queue.comm));
            OK(MPI_Type_free(&pairs));
            queue.copy(out, in, 4000);
        }
        queue.finish();
    }
    run.comm = whole;
    OK(MPI_Comm_free(&ring));
}

/// The communicator goes while its stream has work.
void freed_early(Run& run) {
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    const Step step(run, "both");
    Queue queue(run);
    for (int i = 0; i < 50; ++i) {
        queue.exchange(out, in, kSmall);
        queue.copy(out, in, kSmall);
    }
    OK(MPI_Comm_free(&queue.comm));
    queue.finish();
}

/// A copy of the communicator has the stream, too.
void duplicated(Run& run) {
    Queue queue(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    const Step step(run, "the copy");
    const MPI_Comm first = queue.comm;
    MPI_Comm second;
    OK(MPI_Comm_dup(first, &second));
    queue.comm = second;
    queue.exchange(out, in, kSmall);
    OK(MPI_Comm_free(&second));
    queue.comm = first;
    queue.exchange(in, out, kSmall);
    queue.finish();
}

/// What fails in the stream comes out at the next call, and the stream goes on.
void truncated(Run& run) {
    Queue queue(run);
    OK(MPI_Comm_set_errhandler(queue.comm, MPI_ERRORS_RETURN));
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    std::byte* const after = device_memory(run, kSmall);
    const Step step(run, "one");
    int error = MPI_SUCCESS;
    if (run.rank == 0) {
        queue.send(out, kSmall, MPI_BYTE, 1);
    } else if (run.rank == 1) {
        if (queue.plain()) {
            error = MPI_Recv(in, 100, MPI_BYTE, 0, kTag, queue.comm, MPI_STATUS_IGNORE);
            std::memcpy(in, out, kSmall);  // what a truncated receive leaves is not told
        } else {
            OK(MPIX_Recv_enqueue(in, 100, MPI_BYTE, 0, kTag, queue.comm, MPI_STATUS_IGNORE));
            queue.copy(in, out, kSmall);
            queue.finish();
            error = MPI_Barrier(queue.comm);
        }
        run.note("class", error_class(error));
    }
    queue.exchange(out, after, kSmall);
    queue.finish();
}

/// Found in the call, before anything is queued.
void wrong_arguments(Run& run) {
    Queue queue(run);
    OK(MPI_Comm_set_errhandler(queue.comm, MPI_ERRORS_RETURN));
    std::byte* const memory = device_memory(run, 100);
    const bool plain = queue.plain();
    const MPI_Comm comm = queue.comm;
    MPI_Request request = MPI_REQUEST_NULL;
    const auto note = [&](const char* name, int error) { run.note(name, error_class(error)); };
    note("rank", plain ? MPI_Send(memory, 1, MPI_BYTE, run.size, kTag, comm)
                       : MPIX_Send_enqueue(memory, 1, MPI_BYTE, run.size, kTag, comm));
    note("tag", plain ? MPI_Isend(memory, 1, MPI_BYTE, 0, -7, comm, &request)
                      : MPIX_Isend_enqueue(memory, 1, MPI_BYTE, 0, -7, comm, &request));
    note("count", plain ? MPI_Recv(memory, -1, MPI_BYTE, 0, kTag, comm, MPI_STATUS_IGNORE)
                        : MPIX_Recv_enqueue(memory, -1, MPI_BYTE, 0, kTag, comm, MPI_STATUS_IGNORE));
    note("type", plain ? MPI_Irecv(memory, 1, MPI_DATATYPE_NULL, 0, kTag, comm, &request)
                       : MPIX_Irecv_enqueue(memory, 1, MPI_DATATYPE_NULL, 0, kTag, comm, &request));
    note("root", plain ? MPI_Bcast(memory, 1, MPI_BYTE, -5, comm) : MPIX_Bcast_enqueue(memory, 1, MPI_BYTE, -5, comm));
    if (!plain) {
        MPI_Comm ordinary;
        OK(MPI_Comm_dup(run.comm, &ordinary));
        OK(MPI_Comm_set_errhandler(ordinary, MPI_ERRORS_RETURN));
        if (error_class(MPIX_Barrier_enqueue(ordinary)) != MPI_ERR_COMM) {
            throw std::runtime_error("a communicator without a stream is taken");
        }
        OK(MPI_Irecv(memory, 1, MPI_BYTE, run.rank, kTag, ordinary, &request));
        if (error_class(MPIX_Wait_enqueue(&request, MPI_STATUS_IGNORE)) != MPI_ERR_REQUEST) {
            throw std::runtime_error("a request of no stream is taken");
        }
        OK(MPI_Cancel(&request));
        OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
        OK(MPI_Comm_free(&ordinary));
        MPIX_Stream stream = MPIX_STREAM_NULL;
        MPI_Info info;
        OK(MPI_Info_create(&info));
        OK(MPI_Info_set(info, "type", run.gpu().is_hip() ? "cudaStream_t" : "hipStream_t"));
        if (MPIX_Stream_create(info, &stream) == MPI_SUCCESS) {
            throw std::runtime_error("a stream of another vendor is taken");
        }
        OK(MPI_Info_set(info, "type", run.gpu().is_hip() ? "hipStream_t" : "cudaStream_t"));
        if (MPIX_Stream_create(info, &stream) == MPI_SUCCESS) {
            throw std::runtime_error("no stream is taken");
        }
        OK(MPI_Info_free(&info));
    }
    queue.finish();
}

void nobody(Run& run) {
    Queue queue(run);
    std::byte* const memory = device_memory(run, 100);
    MPI_Status status{};
    queue.send(memory, 100, MPI_BYTE, MPI_PROC_NULL);
    queue.receive(memory, 100, MPI_BYTE, MPI_PROC_NULL, kTag, &status);
    queue.finish();
    run.note_status("received", status, MPI_BYTE);
}

// ---- graphs ---------------------------------------------------------------------------------------------------------

void graph_halo(Run& run) {
    Queue queue(run);
    for (const std::size_t bytes : kSizes) {
        std::byte* const out = device_memory(run, bytes);
        std::byte* const in = device_memory(run, bytes);
        const Step step(run, format("%zu bytes", bytes));
        queue.in_a_graph(bytes > kSmall ? 10 : 200, [&] {
            queue.exchange(out, in, bytes);
            queue.copy(out, in, bytes / 2);
        });
    }
}

/// Each of many messages of one graph, in memory of all kinds, with gaps.
void graph_of_many(Run& run) {
    Queue queue(run);
    MPI_Datatype column;
    OK(MPI_Type_vector(64, 3, 16, MPI_INT, &column));
    OK(MPI_Type_commit(&column));
    constexpr int kMessages = 12;
    std::vector<std::byte*> out, in;
    for (int i = 0; i < kMessages; ++i) {
        out.push_back(run.input(64 * 64));
        in.push_back(run.input(64 * 64));
    }
    const Step step(run, "all of them");
    MPI_Status statuses[2 * kMessages] = {};
    queue.in_a_graph(20, [&] {
        std::vector<MPI_Request> requests;
        for (int i = 0; i < kMessages; ++i) {
            queue.isend(out[to_size(i)], 1, column, next(run), i, &requests.emplace_back());
        }
        for (int i = kMessages; i-- > 0;) {
            queue.ireceive(in[to_size(i)], 1, column, previous(run), i, &requests.emplace_back());
        }
        queue.waitall(requests, statuses);
    });
    for (int i = kMessages; i < 2 * kMessages; ++i) {
        run.note_status("received", statuses[i], column);
    }
    OK(MPI_Type_free(&column));
}

/// Messages between two ranks with one tag, which one kernel sends.
void graph_keeps_order(Run& run) {
    Queue queue(run);
    constexpr std::size_t kMessages = 4;
    std::vector<std::byte*> out, in;
    // CUDA reads pageable memory when the graph is launched, before the messages have come.
    const auto made = [&run] {
        const Kind kind = run.draw_kind();
        return run.input_of(kind == Kind::host ? Kind::registered : kind, kSmall);
    };
    for (std::size_t i = 0; i < kMessages; ++i) {
        out.push_back(made());
        in.push_back(made());
    }
    const Step step(run, "all of them");
    queue.in_a_graph(10, [&] {
        std::vector<MPI_Request> requests;
        for (std::size_t i = 0; i < kMessages; ++i) {
            queue.isend(out[i], kSmall - i, MPI_BYTE, next(run), kTag, &requests.emplace_back());
            queue.ireceive(in[i], kSmall - i, MPI_BYTE, previous(run), kTag, &requests.emplace_back());
        }
        queue.waitall(requests);
        for (std::size_t i = 0; i < kMessages; ++i) {
            queue.copy(out[i], in[kMessages - 1 - i], kSmall);
        }
    });
}

/// What is captured between a nonblocking call and its wait goes beside the messages, and may use what came before.
void graph_with_work_between(Run& run) {
    Queue queue(run);
    for (const std::size_t bytes : {kSmall, std::size_t{70000}}) {
        std::byte* const first = device_memory(run, bytes);
        std::byte* const second = device_memory(run, bytes);
        std::byte* const in = device_memory(run, bytes);
        std::byte* const in_too = device_memory(run, bytes);
        std::byte* const other = device_memory(run, bytes);
        const Step step(run, format("%zu bytes", bytes));
        queue.in_a_graph(10, [&] {
            std::vector<MPI_Request> requests(4);
            queue.ireceive(in, bytes, MPI_BYTE, previous(run), kTag, &requests[0]);
            queue.isend(first, bytes, MPI_BYTE, next(run), kTag, &requests[1]);
            queue.copy(other, first, bytes / 2);
            queue.copy(second, other, bytes / 3);
            // Of one rank and with one tag, so they must not overtake each other.
            queue.isend(second, bytes, MPI_BYTE, next(run), kTag, &requests[2]);
            queue.ireceive(in_too, bytes, MPI_BYTE, previous(run), kTag, &requests[3]);
            queue.copy(other, second, bytes / 4);
            queue.waitall(requests);
            queue.copy(first, in_too, bytes);
            queue.copy(second, in, bytes / 2);
        });
    }
}

void graph_of_collectives(Run& run) {
    Queue queue(run);
    const auto n = to_size(run.size);
    constexpr std::size_t kCount = 300, kBytes = kCount * sizeof(int);
    std::byte* const a = device_memory(run, kBytes * n);
    std::byte* const b = device_memory(run, kBytes * n);
    const MPI_Comm comm = queue.comm;
    const int count = count_of(kCount);
    const Step step(run, "all of them");
    queue.in_a_graph(15, [&] {
        if (queue.plain()) {
            OK(MPI_Allreduce(a, b, count, MPI_INT, MPI_BXOR, comm));
            OK(MPI_Allgather(b, count, MPI_INT, a, count, MPI_INT, comm));
            OK(MPI_Alltoall(a, count, MPI_INT, b, count, MPI_INT, comm));
            OK(MPI_Reduce_scatter_block(b, a, count, MPI_INT, MPI_MAX, comm));
            OK(MPI_Barrier(comm));
            OK(MPI_Bcast(a, count, MPI_INT, run.size - 1, comm));
        } else {
            OK(MPIX_Allreduce_enqueue(a, b, count, MPI_INT, MPI_BXOR, comm));
            OK(MPIX_Allgather_enqueue(b, count, MPI_INT, a, count, MPI_INT, comm));
            OK(MPIX_Alltoall_enqueue(a, count, MPI_INT, b, count, MPI_INT, comm));
            OK(MPIX_Reduce_scatter_block_enqueue(b, a, count, MPI_INT, MPI_MAX, comm));
            OK(MPIX_Barrier_enqueue(comm));
            OK(MPIX_Bcast_enqueue(a, count, MPI_INT, run.size - 1, comm));
        }
        queue.copy(a + kBytes, b, kBytes);
    });
}

void graph_of_persistent(Run& run) {
    Queue queue(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    const Step step(run, "the exchange");
    std::vector<MPI_Request> requests(2);
    OK(MPI_Recv_init(in, count_of(kSmall), MPI_BYTE, previous(run), kTag, queue.comm, &requests[0]));
    OK(MPI_Send_init(out, count_of(kSmall), MPI_BYTE, next(run), kTag, queue.comm, &requests[1]));
    queue.in_a_graph(30, [&] {
        queue.startall(requests);
        queue.waitall(requests);
        queue.copy(out, in, kSmall);
    });
    for (MPI_Request& request : requests) {
        OK(MPI_Request_free(&request));
    }
}

/// Replays of two graphs, messages that are queued, and plain calls, one after the other on one communicator.
void graphs_and_others(Run& run) {
    Queue queue(run);
    std::byte* const a = device_memory(run, kSmall);
    std::byte* const b = device_memory(run, kSmall);
    std::byte* const c = device_memory(run, kSmall);
    const Step step(run, "all of them");
    const auto forth = [&] { queue.exchange(a, b, kSmall); };
    const auto back = [&] {
        queue.exchange(b, c, kSmall - 4);
        queue.copy(a, c, kSmall / 2);
    };
    void* const first = queue.graph(forth);
    void* const second = queue.graph(back);
    for (int round = 0; round < 6; ++round) {
        queue.replay(first, forth);
        queue.replay(second, back);
        forth();
        queue.replay(second, back);
        queue.replay(first, forth);
        if (round % 2 == 0) {
            MPI_Status status{};
            OK(MPI_Sendrecv(b, count_of(kSmall), MPI_BYTE, next(run), kTag, a, count_of(kSmall), MPI_BYTE,
                            previous(run), kTag, queue.comm, &status));
            run.note_status("plain", status, MPI_BYTE);
        }
    }
    queue.finish();
    queue.destroy(second);
    queue.destroy(first);
}

/// One half of the ranks makes its graph anew now and then, and the other keeps what it has: what two graphs pass on by
/// themselves finds another partner.
void graph_made_anew(Run& run) {
    Queue queue(run);
    for (const std::size_t bytes : {kSmall, std::size_t{70000}}) {
        std::byte* const out = device_memory(run, bytes);
        std::byte* const in = device_memory(run, bytes);
        const auto turn = [&] {
            queue.exchange(out, in, bytes);
            queue.copy(out, in, bytes / 2);
        };
        for (const int who : {0, 1}) {
            const Step step(run, format("%zu bytes, ranks from %d", bytes, who));
            void* graph = queue.graph(turn);
            for (int round = 0; round < 5; ++round) {
                for (int replay = 0; replay < 4; ++replay) {
                    queue.replay(graph, turn);
                }
                if (run.rank % 2 == who) {
                    queue.finish();
                    queue.destroy(graph);
                    graph = queue.graph(turn);
                }
            }
            queue.finish();
            queue.destroy(graph);
        }
    }
}

/// Graphs of two streams at a time, held up in different order.
void graphs_of_two_streams(Run& run) {
    Queue first(run), second(run);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    std::byte* const more = device_memory(run, kSmall);
    std::byte* const last = device_memory(run, kSmall);
    const Step step(run, "both");
    const auto one = [&] {
        first.exchange(out, in, kSmall);
        first.copy(out, in, 100);
    };
    const auto other = [&] {
        second.exchange(more, last, kSmall);
        second.copy(more, last, 200);
    };
    void* const a = first.graph(one);
    void* const b = second.graph(other);
    std::shared_ptr<void> held = run.rank % 2 == 0 ? first.hold() : second.hold();
    for (int i = 0; i < 20; ++i) {
        first.replay(a, one);
        second.replay(b, other);
    }
    held.reset();
    first.finish();
    second.finish();
    first.destroy(a);
    second.destroy(b);
}

/// The other side calls plain functions.
void graph_and_plain_partner(Run& run) {
    const bool has_stream = run.rank == 0;
    Queue queue(run, false, has_stream);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    const Step step(run, "both");
    constexpr int kTimes = 25;
    if (has_stream) {
        queue.in_a_graph(kTimes, [&] {
            queue.send(out, kSmall, MPI_BYTE, 1);
            queue.receive(in, kSmall, MPI_BYTE, 1);
            queue.copy(out, in, 500);
        });
    } else if (run.rank == 1) {
        for (int i = 0; i < kTimes; ++i) {
            OK(MPI_Recv(in, count_of(kSmall), MPI_BYTE, 0, kTag, queue.comm, MPI_STATUS_IGNORE));
            OK(MPI_Send(in, count_of(kSmall), MPI_BYTE, 0, kTag, queue.comm));
        }
    }
}

/// More graphs than there may be at a time: what each has goes with it.
void graphs_that_go(Run& run) {
    Queue queue(run);
    std::byte* const out = device_memory(run, 64);
    std::byte* const in = device_memory(run, 64);
    const Step step(run, "all of them");
    for (int i = 0; i < 1100; ++i) {
        queue.in_a_graph(1, [&] {
            queue.exchange(out, in, 64);
            queue.copy(out, in, 32);
        });
    }
}

/// Nothing that cannot be replayed is captured, and the communicator stays of use.
void wrong_captures(Run& run) {
    Queue queue(run);
    std::byte* const out = device_memory(run, 64);
    std::byte* const in = device_memory(run, 64);
    std::vector<MPI_Request> before(2);
    queue.ireceive(in, 64, MPI_BYTE, previous(run), kTag, &before[0]);
    queue.isend(out, 64, MPI_BYTE, next(run), kTag, &before[1]);
    if (!queue.plain()) {
        OK(MPI_Comm_set_errhandler(queue.comm, MPI_ERRORS_RETURN));
        MPI_Request inside = MPI_REQUEST_NULL;
        void* const graph = queue.graph([&] {
            const int any_source =
                MPIX_Recv_enqueue(in, 64, MPI_BYTE, MPI_ANY_SOURCE, kTag, queue.comm, MPI_STATUS_IGNORE);
            const int any_tag =
                MPIX_Recv_enqueue(in, 64, MPI_BYTE, run.rank, MPI_ANY_TAG, queue.comm, MPI_STATUS_IGNORE);
            if (error_class(any_source) != MPI_ERR_UNSUPPORTED_OPERATION ||
                error_class(any_tag) != MPI_ERR_UNSUPPORTED_OPERATION) {
                throw std::runtime_error("a receive from anybody is captured");
            }
            if (error_class(MPIX_Waitall_enqueue(2, before.data(), MPI_STATUSES_IGNORE)) != MPI_ERR_REQUEST) {
                throw std::runtime_error("a graph waits for what was queued before");
            }
            OK(MPIX_Isend_enqueue(out, 64, MPI_BYTE, MPI_PROC_NULL, kTag, queue.comm, &inside));
        });
        if (error_class(MPIX_Wait_enqueue(&inside, MPI_STATUS_IGNORE)) != MPI_ERR_REQUEST) {
            throw std::runtime_error("the stream waits for what is captured");
        }
        OK(MPI_Wait(&inside, MPI_STATUS_IGNORE));
        queue.destroy(graph);
    }
    queue.waitall(before);
    queue.finish();
}

// ---- NCCL and RCCL --------------------------------------------------------------------------------------------------
//
// With one GPU for each rank the library does the collectives.

/// Memory of a case that rank 0 passes. The other ranks pass device memory.
constexpr Kind kMemory[] = {Kind::device, Kind::host, Kind::pinned, Kind::managed};

/// Four parts for each rank.
struct Parts {
    Parts(Run& run, Kind kind, std::size_t count)
        : n(to_size(run.size)), count(count_of(count)), bytes(count * sizeof(int)) {
        for (std::byte** each : {&a, &b, &c, &d}) {
            *each = run.input_of(run.rank == 0 ? kind : Kind::device, bytes * n);
        }
    }
    std::size_t n;
    int count;
    std::size_t bytes;
    std::byte *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr;
};

/// All collectives, in place too. What the library lacks comes between.
void all_collectives(Run& run, const Queue& queue, const Parts& parts) {
    const MPI_Comm comm = queue.comm;
    const int count = parts.count, last = run.size - 1;
    std::byte *const a = parts.a, *const b = parts.b, *const c = parts.c, *const d = parts.d;
    const std::size_t all = parts.bytes * parts.n;
    if (queue.plain()) {
        OK(MPI_Bcast(a, count, MPI_INT, last, comm));
        OK(MPI_Allreduce(a, b, count, MPI_INT, MPI_SUM, comm));
        OK(MPI_Allreduce(MPI_IN_PLACE, c, count, MPI_INT, MPI_BXOR, comm));
        OK(MPI_Allgather(b, count, MPI_INT, a, count, MPI_INT, comm));
        OK(MPI_Alltoall(a, count, MPI_INT, b, count, MPI_INT, comm));
        OK(MPI_Reduce_scatter_block(b, a, count, MPI_INT, MPI_MAX, comm));
        OK(MPI_Barrier(comm));
        OK(MPI_Allreduce(MPI_IN_PLACE, a, count, MPI_UNSIGNED, MPI_MIN, comm));
        OK(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b, count, MPI_INT, comm));
        OK(MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b, count, MPI_INT, comm));
        OK(MPI_Reduce_scatter_block(MPI_IN_PLACE, d, count, MPI_INT, MPI_SUM, comm));
        OK(MPI_Bcast(b, 0, MPI_INT, 0, comm));
    } else {
        OK(MPIX_Bcast_enqueue(a, count, MPI_INT, last, comm));
        OK(MPIX_Allreduce_enqueue(a, b, count, MPI_INT, MPI_SUM, comm));
        OK(MPIX_Allreduce_enqueue(MPI_IN_PLACE, c, count, MPI_INT, MPI_BXOR, comm));
        OK(MPIX_Allgather_enqueue(b, count, MPI_INT, a, count, MPI_INT, comm));
        OK(MPIX_Alltoall_enqueue(a, count, MPI_INT, b, count, MPI_INT, comm));
        OK(MPIX_Reduce_scatter_block_enqueue(b, a, count, MPI_INT, MPI_MAX, comm));
        OK(MPIX_Barrier_enqueue(comm));
        OK(MPIX_Allreduce_enqueue(MPI_IN_PLACE, a, count, MPI_UNSIGNED, MPI_MIN, comm));
        OK(MPIX_Allgather_enqueue_c(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b, count, MPI_INT, comm));
        OK(MPIX_Alltoall_enqueue(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, b, count, MPI_INT, comm));
        OK(MPIX_Reduce_scatter_block_enqueue(MPI_IN_PLACE, d, count, MPI_INT, MPI_SUM, comm));
        OK(MPIX_Bcast_enqueue(b, 0, MPI_INT, 0, comm));
    }
    // Of what was reduced in place, only the first part is defined.
    queue.copy(c + parts.bytes * (parts.n - 1), d, parts.bytes);
    queue.copy(d, b, all);
    queue.copy(a, c, all);
}

void library(Run& run) {
    Queue queue(run);
    for (const Kind kind : kMemory) {
        for (const std::size_t count : {1, 3000, 50001}) {
            const Parts parts(run, kind, count);
            const Step step(run, format("memory %d, %zu numbers", static_cast<int>(kind), count));
            for (int round = 0; round < 2; ++round) {
                all_collectives(run, queue, parts);
            }
            queue.finish();
        }
    }
}

/// Rank 0 holds its GPU up meanwhile. The library's set-up would wait for that, so no rank uses it.
void made_on_a_busy_gpu(Run& run) {
    Queue first(run);
    std::shared_ptr<void> held = run.rank == 0 ? first.hold() : nullptr;
    Queue queue(run);
    held.reset();
    const Parts parts(run, Kind::device, 3000);
    all_collectives(run, queue, parts);
    queue.finish();
}

/// Rank 0 has the numbers with gaps between them, the others one after another.
void library_gaps(Run& run) {
    Queue queue(run);
    constexpr int kRows = 40, kWidth = 3, kPitch = 5;
    MPI_Datatype type;
    int count = 1;
    if (run.rank == 0) {
        OK(MPI_Type_vector(kRows, kWidth, kPitch, MPI_INT, &type));
    } else {
        OK(MPI_Type_contiguous(kWidth, MPI_INT, &type));
        count = kRows;
    }
    OK(MPI_Type_commit(&type));
    for (const Kind kind : kMemory) {
        const Parts parts(run, kind, to_size(kRows * kPitch));
        const Step step(run, format("memory %d", static_cast<int>(kind)));
        const MPI_Comm comm = queue.comm;
        std::byte *const a = parts.a, *const b = parts.b, *const c = parts.c;
        for (int round = 0; round < 3; ++round) {
            if (queue.plain()) {
                OK(MPI_Bcast(a, count, type, 0, comm));
                OK(MPI_Allgather(a, count, type, b, count, type, comm));
                OK(MPI_Alltoall(b, count, type, c, count, type, comm));
                OK(MPI_Bcast(c, count, type, run.size - 1, comm));
            } else {
                OK(MPIX_Bcast_enqueue(a, count, type, 0, comm));
                OK(MPIX_Allgather_enqueue(a, count, type, b, count, type, comm));
                OK(MPIX_Alltoall_enqueue(b, count, type, c, count, type, comm));
                OK(MPIX_Bcast_enqueue(c, count, type, run.size - 1, comm));
            }
            queue.copy(a, c, parts.bytes);
        }
        queue.finish();
    }
    OK(MPI_Type_free(&type));
}

void library_graph(Run& run) {
    for (const bool is_first : {true, false}) {  // before the library is there, and after
        Queue queue(run);
        for (const Kind kind : kMemory) {
            const Parts parts(run, kind, 700);
            const Step step(run, format("memory %d, %s", static_cast<int>(kind), is_first ? "first" : "later"));
            if (!is_first) {
                all_collectives(run, queue, parts);
            }
            queue.in_a_graph(9, [&] { all_collectives(run, queue, parts); });
            if (!is_first) {
                all_collectives(run, queue, parts);
            }
            queue.finish();
        }
    }
}

/// The ranks use two communicators in different orders, and one is not used by all at a time.
void library_two_streams(Run& run) {
    Queue first(run), second(run, true);
    const Parts one(run, Kind::device, 900), other(run, Kind::device, 800);
    const Step step(run, "both");
    const bool swaps = run.rank % 2 != 0 && !first.plain();
    for (int round = 0; round < 3; ++round) {
        for (const bool is_first : {!swaps, swaps}) {
            for (int i = 0; i < 3; ++i) {
                all_collectives(run, is_first ? first : second, is_first ? one : other);
            }
        }
    }
    first.finish();
    second.finish();
}

/// Messages and collectives keep their order, and calls do not wait for the stream.
void library_and_messages(Run& run) {
    Queue queue(run);
    const Parts parts(run, Kind::device, 600);
    std::byte* const out = device_memory(run, kSmall);
    std::byte* const in = device_memory(run, kSmall);
    const Step step(run, "both");
    all_collectives(run, queue, parts);
    std::shared_ptr<void> held = queue.hold();
    for (int round = 0; round < 5; ++round) {
        queue.exchange(out, in, kSmall);
        queue.copy(parts.a, in, parts.bytes);
        all_collectives(run, queue, parts);
        queue.copy(out, parts.b, parts.bytes);
    }
    OK(MPI_Barrier(run.comm));  // all calls have returned
    held.reset();
    int plain = run.rank, sum = 0;
    OK(MPI_Allreduce(&plain, &sum, 1, MPI_INT, MPI_SUM, queue.comm));
    run.note("plain", sum);
    queue.finish();
}

/// The communicator goes while its stream has work, and before a graph that it has been used in.
void library_freed(Run& run) {
    for (int uses = 0; uses < 5; ++uses) {
        Queue queue(run);
        const Parts parts(run, Kind::device, 500);
        const MPI_Comm comm = queue.comm;
        const Step step(run, format("after %d", uses));
        const auto reduce = [&] {
            OK(queue.plain() ? MPI_Allreduce(MPI_IN_PLACE, parts.a, parts.count, MPI_INT, MPI_SUM, comm)
                             : MPIX_Allreduce_enqueue(MPI_IN_PLACE, parts.a, parts.count, MPI_INT, MPI_SUM, comm));
        };
        for (int i = 0; i < uses; ++i) {
            reduce();
        }
        void* const graph = queue.graph(reduce);
        queue.replay(graph, reduce);
        OK(MPI_Comm_free(&queue.comm));
        queue.destroy(graph);
    }
}

// ---- ends -----------------------------------------------------------------------------------------------------------

MPI_Comm make_stream_comm(const Gpu& gpu, void* const stream) {
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, "type", gpu.is_hip() ? "hipStream_t" : "cudaStream_t");
    MPIX_Info_set_hex(info, "value", &stream, sizeof stream);
    MPIX_Stream number;
    MPI_Comm comm;
    MPIX_Stream_create(info, &number);
    MPIX_Stream_comm_create(MPI_COMM_WORLD, number, &comm);
    return comm;
}

/// `finalize`: MPI ends while the stream has work, and all data arrive. `error`: goes on until a kernel fails.
int end_with_work(Suite& suite, const std::string& how) {
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    Gpu& gpu = suite.open_gpu(rank);
    auto* const out = static_cast<std::byte*>(gpu.allocate(Kind::device, kSmall));
    auto* const in = static_cast<std::byte*>(gpu.allocate(Kind::device, kSmall));
    std::vector<std::byte> mine(kSmall, static_cast<std::byte>(rank + 1));
    gpu.write(out, mine.data(), kSmall);
    constexpr int kSums = 5;
    auto* const sums = static_cast<std::byte*>(gpu.allocate(Kind::device, sizeof(int)));
    const int one = 1;
    gpu.write(sums, &one, sizeof one);
    void* const stream = gpu.make_stream(false);
    MPI_Comm comm = make_stream_comm(gpu, stream);
    std::shared_ptr<void> held = gpu.hold(stream);
    MPI_Request requests[2];
    for (int round = 0; round < size || how == "error"; ++round) {
        MPIX_Irecv_enqueue(in, count_of(kSmall), MPI_BYTE, (rank + size - 1) % size, kTag, comm, &requests[0]);
        MPIX_Isend_enqueue(out, count_of(kSmall), MPI_BYTE, (rank + 1) % size, kTag, comm, &requests[1]);
        MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE);
        if (how != "error") {
            gpu.copy_in(stream, out, in, kSmall);
        }
        held.reset();
    }
    for (int i = 0; i < kSums; ++i) {
        MPIX_Allreduce_enqueue(MPI_IN_PLACE, sums, 1, MPI_INT, MPI_SUM, comm);
    }
    MPI_Finalize();
    gpu.finish_stream(stream);
    std::vector<std::byte> came(kSmall);
    gpu.read(came.data(), out, kSmall);
    int sum = 0, expected = 1;
    gpu.read(&sum, sums, sizeof sum);
    for (int i = 0; i < kSums; ++i) {
        expected *= size;
    }
    if (came != mine || sum != expected) {
        std::printf("FAIL %s: other bytes\n", how.c_str());
        return 1;
    }
    std::printf("ok %s\n", how.c_str());
    return 0;
}

/// Rank 1 replays its graph once less than rank 0, until the library of rank 0 has said so.
int replay_differently(Suite& suite) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int ends[2] = {-1, -1};
    if (pipe(ends) != 0 || (rank == 0 && dup2(ends[1], STDERR_FILENO) < 0)) {
        throw std::runtime_error("no pipe");
    }
    std::FILE* const errors = fdopen(ends[0], "r");
    Gpu& gpu = suite.open_gpu(rank);
    auto* const memory = static_cast<std::byte*>(gpu.allocate(Kind::device, kSmall));
    void* const stream = gpu.make_stream(false);
    MPI_Comm comm = make_stream_comm(gpu, stream);
    MPI_Comm_set_name(comm, "halo");
    gpu.begin_capture(stream);
    if (rank == 0) {
        MPIX_Recv_enqueue(memory, count_of(kSmall), MPI_BYTE, 1, kTag, comm, MPI_STATUS_IGNORE);
    } else if (rank == 1) {
        MPIX_Send_enqueue(memory, count_of(kSmall), MPI_BYTE, 0, kTag, comm);
    }
    void* const graph = gpu.end_capture(stream);
    for (int i = 0; i < (rank == 0 ? 4 : 3); ++i) {
        gpu.launch_graph(graph, stream);
    }
    int told = 0;
    if (rank == 0) {
        char line[1000] = "";
        while (std::strstr(line, "replay 4 of an operation in a graph, on communicator \"halo\"") == nullptr &&
               std::fgets(line, sizeof line, errors) != nullptr) {
        }
        std::printf("%s", line);
        MPI_Send(&told, 1, MPI_INT, 1, kTag, MPI_COMM_WORLD);
    } else if (rank == 1) {
        MPI_Recv(&told, 1, MPI_INT, 0, kTag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        gpu.launch_graph(graph, stream);
    }
    gpu.finish_stream(stream);
    gpu.destroy_graph(graph);
    MPI_Comm_free(&comm);
    MPI_Finalize();
    std::printf("ok replays\n");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::optional<std::string> ends = take_option(argc, argv, "--ends");
    Suite suite(argc, argv);
    MPI_Init(&argc, &argv);  // the layer asks for threads
    if (ends) {
        return *ends == "replays" ? replay_differently(suite) : end_with_work(suite, *ends);
    }
    suite.add("one_way", one_way);
    suite.add("held_up", held_up);
    suite.add("many", many);
    suite.add("very_many", very_many);
    suite.add("awaited_late", awaited_late);
    suite.add("short_messages", short_messages);
    suite.add("types", types);
    suite.add("plain_partner", plain_partner);
    suite.add("plain_after_queued", plain_after_queued);
    suite.add("wildcards", wildcards);
    suite.add("two_streams", two_streams);
    suite.add("default_stream_behind", default_stream_behind);
    suite.add("plain_wait", plain_wait);
    suite.add("statuses", statuses);
    suite.add("persistent", persistent);
    suite.add("collectives", collectives);
    suite.add("neighbours", neighbours);
    suite.add("freed_early", freed_early);
    suite.add("duplicated", duplicated);
    suite.add("truncated", truncated);
    suite.add("wrong_arguments", wrong_arguments);
    suite.add("nobody", nobody, 1);
    suite.add("graph_halo", graph_halo);
    suite.add("graph_of_many", graph_of_many);
    suite.add("graph_keeps_order", graph_keeps_order);
    suite.add("graph_with_work_between", graph_with_work_between);
    suite.add("graph_of_collectives", graph_of_collectives);
    suite.add("graph_of_persistent", graph_of_persistent);
    suite.add("graphs_and_others", graphs_and_others);
    suite.add("graph_made_anew", graph_made_anew);
    suite.add("graphs_of_two_streams", graphs_of_two_streams);
    suite.add("graph_and_plain_partner", graph_and_plain_partner);
    suite.add("graphs_that_go", graphs_that_go);
    suite.add("wrong_captures", wrong_captures);
    suite.add("made_on_a_busy_gpu", made_on_a_busy_gpu);
    suite.add("library", library);
    suite.add("library_gaps", library_gaps);
    suite.add("library_graph", library_graph);
    suite.add("library_two_streams", library_two_streams);
    suite.add("library_and_messages", library_and_messages);
    suite.add("library_freed", library_freed);
    const int status = suite.run();
    MPI_Finalize();
    return status;
}
