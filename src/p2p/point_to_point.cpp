// SPDX-License-Identifier: Apache-2.0
// Sends and receives.
//
// operations.h decides what the MPI sends for a buffer, and what happens to a message that arrives. A host buffer goes
// to the MPI unchanged. A device buffer goes as an RTS after which the receiver fetches the bytes, or as a staging
// buffer in pinned host memory. In each case one native message on the same communicator and tag stands for the message
// of the program. So the MPI does matching, order and wildcards.

#include <cstring>
#include <optional>

#include "base/step_probe.h"
#include "call/call.h"
#include "call/progress.h"
#include "call/services.h"
#include "call/stage.h"
#include "mpi/status.h"
#include "p2p/operations.h"

namespace awaken::AWAKEN_ABI {

namespace {

using Mode = SendOperation::Mode;

/// Buffered sends are local: they must not wait for the receiver.
template <Function function>
constexpr Mode mode_of() {
    constexpr bool buffered = function == Function::Bsend || function == Function::Bsend_c ||
                              function == Function::Ibsend || function == Function::Ibsend_c;
    return buffered ? Mode::plain : Mode::offered;
}

/// Starts to track an operation that goes on beside the MPI. `receives`: the native request is that of a receive.
void track_progress(std::unique_ptr<MessageOp> message, const bool receives, MPI_Request* const request) {
    Requests& requests = layer().requests;
    auto operation = make_operation(Operation::Kind::once);
    operation->handle = operation->native_request = *request;
    operation->receives = receives;
    if (!receives) {
        operation->take_own_handle(request);
    }
    requests.add_progress_op(operation, std::move(message));
    operation->leave();
    requests.track(std::move(operation));
}

/// Starts to track a nonblocking operation; the program holds the native request.
void track(std::unique_ptr<MessageOp> message, MPI_Request* const request) {
    AWAKEN_STEP("track all");
    const bool sends = message->sends();
    const bool receives = message->receives();
    if (!sends && !receives) {
        return;
    }
    if (message->progressing() || (sends && receives)) {
        track_progress(std::move(message), receives, request);
        return;
    }
    if (!receives && Requests::is_over_at_once(*request)) {
        return;  // the MPI has already sent the staging buffer
    }
    auto operation = make_operation(Operation::Kind::once, message->take_stage());
    operation->handle = operation->native_request = *request;
    operation->receives = receives;
    layer().requests.track(std::move(operation));
}

/// Completes a native request of the layer while other operations go on.
int wait_for(MPI_Request& request, MPI_Status& status) {
    Layer& owner = layer();
    WaitLoop waiting;
    for (int done = 0;; waiting.turn()) {
        const int error = owner.real.Test(&request, &done, &status);
        if (error != MPI_SUCCESS || done != 0) {
            return error;
        }
    }
}

/// True when the MPI is sure to refuse this send. It may also refuse others.
bool will_be_refused(const Posted& sent, const int destination, const int tag, const MPI_Comm comm) {
    if (sent.count < 0 || sent.type == MPI_DATATYPE_NULL || tag < 0 || tag > greatest_tag()) {
        return true;
    }
    return comm != MPI_COMM_NULL && destination != MPI_PROC_NULL && !layer().node_peers.has_rank(comm, destination);
}

/// What the MPI gets for both halves of a combined operation, and the native requests of the halves.
struct Halves {
    int destination, send_tag, source, receive_tag;
    MPI_Comm comm;
    Posted sent{}, received{};
    MPI_Request sending = MPI_REQUEST_NULL, receiving = MPI_REQUEST_NULL;

    /// Looks at the buffers. MPI_PROC_NULL receives into the program's own.
    template <class Count>
    void prepare(Call& call, MessageOp& message, const Mode mode, const Argument<Count>& send,
                 const Argument<Count>& receive, const bool rts) {
        sent = message.make_send(call).prepare(mode, send.address, send.count, send.type, destination, comm);
        RecvOperation& recv_operation = message.make_recv(call);
        received = {receive.address, static_cast<std::int64_t>(receive.count), receive.type};
        if (source != MPI_PROC_NULL) {
            received = recv_operation.prepare(rts, receive.address, receive.count, receive.type, source, comm);
        }
    }
    [[nodiscard]] int start_send() {
        return awaken::AWAKEN_ABI::start_send(layer().below, sent, destination, send_tag, comm, &sending);
    }
    [[nodiscard]] int start_receive() {
        return awaken::AWAKEN_ABI::start_receive(layer().below, received, source, receive_tag, comm, &receiving);
    }
    /// Calls the MPI's own combined function; `tail` is its status or its request.
    template <Function function, class Count, class Tail>
    [[nodiscard]] int call_combined(Tail* const tail) const {
        const auto out = sent.as<Count>();
        const auto in = received.as<Count>();
        return below<function>()(out.address, out.count, out.type, destination, send_tag, in.address, in.count, in.type,
                                 source, receive_tag, comm, tail);
    }
};

/// Starts both halves. If this fails, neither half remains.
int start_halves(Halves& halves, SendOperation& send_operation) {
    // The receive comes first, so that its message has a buffer. But nothing can undo it once a message has arrived. So
    // errors of the other half must be found before.
    if (will_be_refused(halves.sent, halves.destination, halves.send_tag, halves.comm)) {
        int error = halves.start_send();
        send_operation.posted(error);  // after an error, no receiver will learn of the offered message
        if (error != MPI_SUCCESS) {
            return error;
        }
        error = halves.start_receive();
        if (error != MPI_SUCCESS && halves.sending != MPI_REQUEST_NULL) {
            MPI_Status ignored{};
            send_operation.hand_over();
            static_cast<void>(wait_for(halves.sending, ignored));
            send_operation.finish();
        }
        return error;
    }
    int error = halves.start_receive();
    if (error != MPI_SUCCESS) {
        send_operation.posted(error);
        return error;
    }
    error = halves.start_send();
    send_operation.posted(error);
    if (error != MPI_SUCCESS && halves.receiving != MPI_REQUEST_NULL) {
        // The receive may write to memory of the layer that is about to be freed, so the layer must wait for its end.
        layer().real.Cancel(&halves.receiving);
        layer().real.Wait(&halves.receiving, MPI_STATUS_IGNORE);
    }
    return error;
}

/// The native receive is over: fetches the announced message, and sets the outcome that the program sees.
int conclude(RecvOperation& recv_operation, MPI_Status& status, int error) {
    if (recv_operation.progressing() && error == MPI_SUCCESS) {
        recv_operation.arrived(status);
        WaitLoop waiting;
        while (!recv_operation.advance()) {
            waiting.turn();
        }
    }
    recv_operation.conclude(status, error);
    return error;
}

/// The RTS of a buffered message may be longer than the buffer that the program attached for the message. The layer has
/// already copied the bytes and keeps the RTS in its own memory, so a nonblocking send serves as well.
int send_buffered_rts(SendOperation& send_operation, const Posted& rts, const int destination, const int tag,
                      const MPI_Comm comm) {
    Layer& owner = layer();
    MPI_Request request = MPI_REQUEST_NULL;
    const int error = start_send(owner.below, rts, destination, tag, comm, &request);
    send_operation.posted(error);
    if (error == MPI_SUCCESS) {
        auto message = std::make_unique<MessageOp>(comm);
        message->make_send(std::move(send_operation));
        auto operation = make_operation(Operation::Kind::once);
        operation->handle = operation->native_request = request;
        owner.requests.add_progress_op(operation, std::move(message));
        owner.requests.orphan(std::move(operation));
    }
    return error;
}

/// MPI_Send, MPI_Ssend, MPI_Rsend, MPI_Bsend.
struct BlockingSend {
    template <Function function, class Count>
    static int run(Call& call, const void* buffer, Count count, MPI_Datatype type, int destination, int tag,
                   MPI_Comm comm) {
        call.on(comm, destination);
        SendOperation send_operation(call);
        const Posted posted = send_operation.prepare(mode_of<function>(), buffer, count, type, destination, comm);
        if (mode_of<function>() == Mode::plain && send_operation.sends_rts()) {
            return send_buffered_rts(send_operation, posted, destination, tag, comm);
        }
        const auto sent = posted.as<Count>();
        int error = MPI_SUCCESS;
        // A synchronous send returns when the receiver's MPI acknowledges it. The receiver's MPI may do that only in
        // the receiver's next call. That call comes after the receiver has fetched the message, so after this process
        // has released the buffer.
        constexpr bool kSynchronous = function == Function::Ssend || function == Function::Ssend_c;
        if (kSynchronous && send_operation.progressing()) {
            MPI_Request request = MPI_REQUEST_NULL;
            MPI_Status ignored{};
            error = below<loader::traits_of(function).nonblocking>()(sent.address, sent.count, sent.type, destination,
                                                                     tag, comm, &request);
            send_operation.posted(error);
            if (error == MPI_SUCCESS) {
                send_operation.hand_over();
                error = wait_for(request, ignored);
            }
        } else {
            error = below<function>()(sent.address, sent.count, sent.type, destination, tag, comm);
            send_operation.posted(error);
        }
        send_operation.finish();
        return error;
    }
};

/// MPI_Isend, MPI_Issend, MPI_Irsend, MPI_Ibsend. A copy to a staging buffer ends before the call does. This keeps the
/// order of messages, and lets the program hold the MPI's own request.
struct NonblockingSend {
    template <Function function, class Count>
    static int run(Call& call, const void* buffer, Count count, MPI_Datatype type, int destination, int tag,
                   MPI_Comm comm, MPI_Request* request) {
        AWAKEN_STEP("Isend");
        call.on(comm, destination);
        auto message = std::make_unique<MessageOp>(comm);
        SendOperation& send_operation = message->make_send(call);
        const Posted posted = send_operation.prepare(mode_of<function>(), buffer, count, type, destination, comm);
        const auto sent = posted.as<Count>();
        int error = MPI_SUCCESS;
        if (mode_of<function>() == Mode::plain && send_operation.sends_rts()) {
            // Like a blocking one: see send_buffered_rts().
            error = start_send(layer().below, posted, destination, tag, comm, request);
        } else {
            AWAKEN_STEP("Isend: native");
            error = below<function>()(sent.address, sent.count, sent.type, destination, tag, comm, request);
        }
        send_operation.posted(error, false);
        if (error == MPI_SUCCESS) {
            track(std::move(message), request);
        }
        return error;
    }
};

struct Receive {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                   MPI_Status* status) {
        call.on(comm, source);
        if (source == MPI_PROC_NULL) {
            return below<function>()(buffer, count, type, source, tag, comm, status);
        }
        Layer& owner = layer();
        const ReceiveReadiness::Unprepared unprepared(owner.receive_readiness);
        RecvOperation recv_operation(call);
        const Posted posted = recv_operation.prepare(!unprepared.allowed(), buffer, count, type, source, comm);
        if (!recv_operation.active()) {
            return below<function>()(buffer, count, type, source, tag, comm, status);
        }
        MPI_Status own{};
        int error = MPI_SUCCESS;
        if (owner.requests.any_progress_ops()) {
            // Other ranks may be waiting for messages that this process has started before.
            MPI_Request request = MPI_REQUEST_NULL;
            error = start_receive(layer().below, posted, source, tag, comm, &request);
            if (error == MPI_SUCCESS) {
                error = wait_for(request, own);
            }
        } else {
            const auto received = posted.as<Count>();
            error = below<function>()(received.address, received.count, received.type, source, tag, comm, &own);
        }
        error = conclude(recv_operation, own, error);
        return_status(status, own);
        return error;
    }
};

struct NonblockingReceive {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                   MPI_Request* request) {
        AWAKEN_STEP("Irecv");
        call.on(comm, source);
        if (source == MPI_PROC_NULL) {
            return below<function>()(buffer, count, type, source, tag, comm, request);
        }
        ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
        auto operation = std::make_unique<MessageOp>(comm);
        const Posted posted =
            operation->make_recv(call).prepare(!unprepared.allowed(), buffer, count, type, source, comm);
        const auto received = posted.as<Count>();
        const int error = [&] {
            AWAKEN_STEP("Irecv: native");
            return below<function>()(received.address, received.count, received.type, source, tag, comm, request);
        }();
        if (error == MPI_SUCCESS) {
            unprepared.continues(*request);
            track(std::move(operation), request);
        }
        return error;
    }
};

/// A message that MPI_Mprobe or MPI_Improbe has found.
struct MatchedReceive {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
        if (message == nullptr || *message == MPI_MESSAGE_NO_PROC) {
            return below<function>()(buffer, count, type, message, status);
        }
        const MPI_Comm comm = layer().matched.take(*message);
        call.on(comm);
        const ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
        RecvOperation recv_operation(call);
        const Posted posted = recv_operation.prepare(!unprepared.allowed(), buffer, count, type, MPI_ANY_SOURCE, comm);
        const auto received = posted.as<Count>();
        if (!recv_operation.active()) {
            return below<function>()(buffer, count, type, message, status);
        }
        MPI_Status own{};
        int error = below<function>()(received.address, received.count, received.type, message, &own);
        error = conclude(recv_operation, own, error);
        return_status(status, own);
        return error;
    }
};

struct NonblockingMatchedReceive {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, MPI_Message* message,
                   MPI_Request* request) {
        if (message == nullptr || *message == MPI_MESSAGE_NO_PROC) {
            return below<function>()(buffer, count, type, message, request);
        }
        const MPI_Comm comm = layer().matched.take(*message);
        call.on(comm);
        ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
        auto operation = std::make_unique<MessageOp>(comm);
        const Posted posted =
            operation->make_recv(call).prepare(!unprepared.allowed(), buffer, count, type, MPI_ANY_SOURCE, comm);
        const auto received = posted.as<Count>();
        const int error = below<function>()(received.address, received.count, received.type, message, request);
        if (error == MPI_SUCCESS) {
            unprepared.continues(*request);
            track(std::move(operation), request);
        }
        return error;
    }
};

/// Runs both halves at the same time: neither waits for the other, and each may be fetched.
int send_and_receive(MessageOp& message, Halves& halves, MPI_Status& status) {
    if (const int error = start_halves(halves, message.send()); error != MPI_SUCCESS) {
        return error;
    }
    const auto is_over = [](MPI_Request& request, int& outcome, MPI_Status& of) {
        int done = 0;
        outcome = layer().real.Test(&request, &done, &of);
        if (outcome != MPI_SUCCESS) {
            request = MPI_REQUEST_NULL;  // the request is void after an error
        }
        return done != 0 || outcome != MPI_SUCCESS;
    };
    MPI_Status ignored{};
    int received_error = MPI_SUCCESS, sent_error = MPI_SUCCESS;
    bool sent = halves.sending == MPI_REQUEST_NULL, received = false;
    const Together together;
    for (WaitLoop waiting;; waiting.turn()) {
        sent = sent || is_over(halves.sending, sent_error, ignored);
        if (!received && is_over(halves.receiving, received_error, status)) {
            received = true;
            status.MPI_ERROR = received_error;
        }
        const bool over = message.advance(received ? &status : nullptr, transport::Patience::short_);
        if (sent && received && over) {
            break;
        }
        together.look();
    }
    message.conclude(status, received_error);
    return received_error != MPI_SUCCESS ? received_error : sent_error;
}

/// Both halves of a combined send and receive.
struct SendReceive {
    template <Function function, class Count>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, int destination,
                   int send_tag, void* receive_buffer, Count receive_count, MPI_Datatype receive_type, int source,
                   int receive_tag, MPI_Comm comm, MPI_Status* status) {
        call.on(comm, destination);
        const ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
        MessageOp message(comm);
        Halves halves{destination, send_tag, source, receive_tag, comm};
        halves.prepare<Count>(call, message, Mode::offered, {const_cast<void*>(send_buffer), send_count, send_type},
                              {receive_buffer, receive_count, receive_type}, !unprepared.allowed());
        MPI_Status own{};
        int error = MPI_SUCCESS;
        if (message.progressing()) {
            error = send_and_receive(message, halves, own);
        } else if (!message.receives()) {
            return halves.call_combined<function, Count>(status);
        } else {
            error = halves.call_combined<function, Count>(&own);
            message.recv().conclude(own, error);
        }
        return_status(status, own);
        return error;
    }
};

struct SendReceiveReplace {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int destination, int send_tag, int source,
                   int receive_tag, MPI_Comm comm, MPI_Status* status) {
        call.on(comm, destination);
        const ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
        MPI_Status own{};
        int error = MPI_SUCCESS;
        if (!unprepared.allowed()) {
            MessageOp message(comm);
            Halves halves{destination, send_tag, source, receive_tag, comm};
            const Argument<Count> both{buffer, count, type};
            halves.prepare(call, message, Mode::detached, both, both, true);
            error = send_and_receive(message, halves, own);
        } else {
            Stage stage(call);
            const Argument<Count> replaced = stage.for_message(stage.buffer(Access::inout, buffer, count, type));
            if (!stage.active()) {
                return below<function>()(buffer, count, type, destination, send_tag, source, receive_tag, comm, status);
            }
            stage.load(Stage::Failure::kept);
            error = below<function>()(replaced.address, replaced.count, replaced.type, destination, send_tag, source,
                                      receive_tag, comm, &own);
            if (error == MPI_SUCCESS || class_of(layer().real, error) == MPI_ERR_TRUNCATE) {
                stage.store(received_bytes(own));
            }
        }
        return_status(status, own);
        return error;
    }
};

/// A nonblocking combined send and receive: one request of the program stands for both halves.
template <Function function, class Count>
int start_both(ReceiveReadiness::Unprepared& unprepared, std::unique_ptr<MessageOp> message, Halves& halves,
               MPI_Request* const request) {
    const bool nothing_comes = halves.source == MPI_PROC_NULL;
    if ((!message->sends() && !message->receives()) || (nothing_comes && halves.destination == MPI_PROC_NULL)) {
        const int error = halves.call_combined<function, Count>(request);
        if (error == MPI_SUCCESS) {
            unprepared.continues(*request);
            track(std::move(message), request);
        }
        return error;
    }
    // Uses two native operations instead of the combined one, since MPICH's status of the combined one lacks the
    // received size. The program holds the receive; the layer completes the send along with it.
    if (const int error = start_halves(halves, message->send()); error != MPI_SUCCESS) {
        return error;
    }
    if (nothing_comes) {
        // In some MPIs a receive from MPI_PROC_NULL gives a shared request: the request of the send stands for both.
        layer().real.Request_free(&halves.receiving);
        *request = halves.sending;
        message->receive_from_nobody();
    } else {
        unprepared.continues(halves.receiving);
        *request = halves.receiving;
        message->send().carry(halves.sending);
    }
    track_progress(std::move(message), !nothing_comes, request);
    return MPI_SUCCESS;
}

struct NonblockingSendReceive {
    template <Function function, class Count>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, int destination,
                   int send_tag, void* receive_buffer, Count receive_count, MPI_Datatype receive_type, int source,
                   int receive_tag, MPI_Comm comm, MPI_Request* request) {
        call.on(comm, destination);
        ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
        auto message = std::make_unique<MessageOp>(comm);
        Halves halves{destination, send_tag, source, receive_tag, comm};
        halves.prepare<Count>(call, *message, Mode::offered, {const_cast<void*>(send_buffer), send_count, send_type},
                              {receive_buffer, receive_count, receive_type}, !unprepared.allowed());
        return start_both<function, Count>(unprepared, std::move(message), halves, request);
    }
};

struct NonblockingSendReceiveReplace {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int destination, int send_tag, int source,
                   int receive_tag, MPI_Comm comm, MPI_Request* request) {
        call.on(comm, destination);
        ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
        const bool rts = !unprepared.allowed();
        if (rts || Stage(call).locate(buffer, static_cast<std::int64_t>(count), type).served) {
            auto message = std::make_unique<MessageOp>(comm);
            Halves halves{destination, send_tag, source, receive_tag, comm};
            const Argument<Count> both{buffer, count, type};
            halves.prepare(call, *message, Mode::detached, both, both, rts);
            // The two-buffer function of the same ABI, since the halves now have different buffers.
            constexpr Function kBoth =
                function == Function::Isendrecv_replace ? Function::Isendrecv : Function::Isendrecv_c;
            return start_both<kBoth, Count>(unprepared, std::move(message), halves, request);
        }
        Stage(call).account_native(static_cast<std::int64_t>(count), type);
        const int error =
            below<function>()(buffer, count, type, destination, send_tag, source, receive_tag, comm, request);
        if (error == MPI_SUCCESS) {
            unprepared.continues(*request);
        }
        return error;
    }
};

/// The MPI owns the buffer of buffered sends, and its CPU writes to it. In place of device memory the MPI gets host
/// memory of the same size. `attach_native` passes it to the MPI.
template <class Size, class Attach>
int attach(void* const buffer, const Size size, const Attach& attach_native) {
    Layer& owner = layer();
    gpu::PointerInfo info;
    const void* const pointer = buffer;
    owner.gpu().classify({&pointer, 1}, &info);
    if (info.kind != gpu::MemoryKind::device || size < 0) {
        return attach_native(buffer);
    }
    void* const substitute = owner.attached_buffers.add(buffer, static_cast<std::size_t>(size));
    try {
        const int error = attach_native(substitute);
        if (error != MPI_SUCCESS) {
            static_cast<void>(owner.attached_buffers.remove(substitute));
        }
        return error;
    } catch (...) {
        static_cast<void>(owner.attached_buffers.remove(substitute));  // the program's error handler threw
        throw;
    }
}

/// The MPI has returned the attached buffer; `buffer` is where the program wants its address.
int detached(const int error, void* const buffer) {
    if (error != MPI_SUCCESS || buffer == nullptr) {
        return error;
    }
    void* address = nullptr;
    std::memcpy(&address, buffer, sizeof address);
    if (void* const given = layer().attached_buffers.remove(address); given != nullptr) {
        std::memcpy(buffer, &given, sizeof given);
    }
    return error;
}

struct AttachBuffer {
    template <Function function, class Size>
    static int run(Call&, void* buffer, Size size) {
        return attach(buffer, size, [&](void* const host) { return below<function>()(host, size); });
    }
};

struct AttachBufferOn {
    template <Function function, class Handle, class Size>
    static int run([[maybe_unused]] Call& call, Handle object, void* buffer, Size size) {
        if constexpr (function == Function::Comm_attach_buffer || function == Function::Comm_attach_buffer_c) {
            call.on(object);
        }
        return attach(buffer, size, [&](void* const host) { return below<function>()(object, host, size); });
    }
};

struct DetachBuffer {
    template <Function function, class Size>
    static int run(Call&, void* buffer, Size* size) {
        return detached(below<function>()(buffer, size), buffer);
    }
};

struct DetachBufferOf {
    template <Function function, class Handle, class Size>
    static int run(Call&, Handle object, void* buffer, Size* size) {
        return detached(below<function>()(object, buffer, size), buffer);
    }
};

}  // namespace

Services point_to_point_services() {
    return {
        AWAKEN_SERVE_COUNTS(Send, BlockingSend),
        AWAKEN_SERVE_COUNTS(Ssend, BlockingSend),
        AWAKEN_SERVE_COUNTS(Rsend, BlockingSend),
        AWAKEN_SERVE_COUNTS(Bsend, BlockingSend),
        AWAKEN_SERVE_COUNTS(Isend, NonblockingSend),
        AWAKEN_SERVE_COUNTS(Issend, NonblockingSend),
        AWAKEN_SERVE_COUNTS(Irsend, NonblockingSend),
        AWAKEN_SERVE_COUNTS(Ibsend, NonblockingSend),
        AWAKEN_SERVE_COUNTS(Recv, Receive),
        AWAKEN_SERVE_COUNTS(Irecv, NonblockingReceive),
        AWAKEN_SERVE_COUNTS(Mrecv, MatchedReceive),
        AWAKEN_SERVE_COUNTS(Imrecv, NonblockingMatchedReceive),
        AWAKEN_SERVE_COUNTS(Sendrecv, SendReceive),
        AWAKEN_SERVE_COUNTS(Sendrecv_replace, SendReceiveReplace),
        AWAKEN_SERVE_COUNTS(Isendrecv, NonblockingSendReceive),
        AWAKEN_SERVE_COUNTS(Isendrecv_replace, NonblockingSendReceiveReplace),
        AWAKEN_SERVE_COUNTS(Buffer_attach, AttachBuffer),
        AWAKEN_SERVE_COUNTS(Comm_attach_buffer, AttachBufferOn),
        AWAKEN_SERVE_COUNTS(Session_attach_buffer, AttachBufferOn),
        AWAKEN_SERVE_COUNTS(Buffer_detach, DetachBuffer),
        AWAKEN_SERVE_COUNTS(Comm_detach_buffer, DetachBufferOf),
        AWAKEN_SERVE_COUNTS(Session_detach_buffer, DetachBufferOf),
    };
}

}  // namespace awaken::AWAKEN_ABI
