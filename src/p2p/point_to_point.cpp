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

/// Starts to track a nonblocking operation; the program holds the native request.
void track(std::unique_ptr<MessageOp> message, MPI_Request* const request) {
    AWAKEN_STEP("track all");
    Layer& owner = layer();
    const bool departs = message->sends();
    const bool arrives = message->receives();
    if (!departs && !arrives) {
        return;
    }
    if (message->progressing() || (departs && arrives)) {
        auto operation = make_operation(Operation::Kind::once);
        operation->handle = operation->native_request = *request;
        operation->receives = arrives;
        if (!arrives) {
            operation->take_own_handle(request);
        }
        owner.requests.add_progress_op(operation, std::move(message));
        operation->leave();
        owner.requests.track(std::move(operation));
        return;
    }
    if (!arrives && Requests::is_over_at_once(*request)) {
        return;  // the MPI has already sent the staging buffer
    }
    auto operation = make_operation(Operation::Kind::once, message->take_stage());
    operation->handle = operation->native_request = *request;
    operation->receives = arrives;
    owner.requests.track(std::move(operation));
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

/// Starts both halves of a combined operation. If this fails, neither half remains.
int start_halves(SendOperation& send_operation, const Posted& sent, const int destination, const int send_tag,
                 const Posted& received, const int source, const int receive_tag, const MPI_Comm comm,
                 MPI_Request& receiving, MPI_Request& sending) {
    // The receive comes first, so that its message has a buffer. But nothing can undo it once a message has arrived. So
    // errors of the other half must be found before.
    if (will_be_refused(sent, destination, send_tag, comm)) {
        if (const int error = start_send(layer().below, sent, destination, send_tag, comm, &sending);
            error != MPI_SUCCESS) {
            send_operation.posted(error);  // no receiver will learn of the offered message
            return error;
        }
        send_operation.posted(MPI_SUCCESS);
        return start_receive(layer().below, received, source, receive_tag, comm, &receiving);
    }
    int error = start_receive(layer().below, received, source, receive_tag, comm, &receiving);
    if (error != MPI_SUCCESS) {
        send_operation.posted(error);
        return error;
    }
    error = start_send(layer().below, sent, destination, send_tag, comm, &sending);
    send_operation.posted(error);
    if (error != MPI_SUCCESS && receiving != MPI_REQUEST_NULL) {
        // The receive may write to memory of the layer that is about to be freed, so the layer must wait for its end.
        layer().real.Cancel(&receiving);
        layer().real.Wait(&receiving, MPI_STATUS_IGNORE);
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
        auto operation = make_operation(Operation::Kind::once);
        operation->handle = operation->native_request = request;
        owner.requests.add_progress_op(
            operation, std::make_unique<MessageOp>(std::move(send_operation), std::optional<RecvOperation>(), comm));
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
int send_and_receive(MessageOp& message, const Posted& sent, const int destination, const int send_tag,
                     const Posted& received, const int source, const int receive_tag, const MPI_Comm comm,
                     MPI_Status& status) {
    MPI_Request receiving = MPI_REQUEST_NULL, sending = MPI_REQUEST_NULL;
    const int error = start_halves(message.send(), sent, destination, send_tag, received, source, receive_tag, comm,
                                   receiving, sending);
    MPI_Status ignored{};
    if (error != MPI_SUCCESS) {
        if (sending != MPI_REQUEST_NULL) {
            message.send().hand_over();
            static_cast<void>(wait_for(sending, ignored));
            message.send().finish();
        }
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
    int received_error = MPI_SUCCESS, sent_error = MPI_SUCCESS;
    bool departed = sending == MPI_REQUEST_NULL, arrived = false;
    const Together together;
    for (WaitLoop waiting;; waiting.turn()) {
        departed = departed || is_over(sending, sent_error, ignored);
        if (!arrived && is_over(receiving, received_error, status)) {
            arrived = true;
            status.MPI_ERROR = received_error;
        }
        const bool over = message.advance(arrived ? &status : nullptr, transport::Patience::short_);
        if (departed && arrived && over) {
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
        SendOperation& send_operation = message.make_send(call);
        RecvOperation& recv_operation = message.make_recv(call);
        const Posted sent =
            send_operation.prepare(Mode::offered, send_buffer, send_count, send_type, destination, comm);
        Posted received{receive_buffer, receive_count, receive_type};
        if (source != MPI_PROC_NULL) {
            received = recv_operation.prepare(!unprepared.allowed(), receive_buffer, receive_count, receive_type,
                                              source, comm);
        }
        MPI_Status own{};
        int error = MPI_SUCCESS;
        if (recv_operation.progressing() || send_operation.progressing()) {
            error = send_and_receive(message, sent, destination, send_tag, received, source, receive_tag, comm, own);
        } else {
            const auto out = sent.as<Count>();
            const auto in = received.as<Count>();
            MPI_Status* const asked = recv_operation.active() ? &own : status;
            error = below<function>()(out.address, out.count, out.type, destination, send_tag, in.address, in.count,
                                      in.type, source, receive_tag, comm, asked);
            if (!recv_operation.active()) {
                return error;
            }
            recv_operation.conclude(own, error);
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
            const Posted sent = message.make_send(call).prepare(Mode::detached, buffer, count, type, destination, comm);
            RecvOperation& recv_operation = message.make_recv(call);
            Posted received{buffer, count, type};
            if (source != MPI_PROC_NULL) {
                received = recv_operation.prepare(true, buffer, count, type, source, comm);
            }
            error = send_and_receive(message, sent, destination, send_tag, received, source, receive_tag, comm, own);
        } else {
            Stage stage(call);
            const Argument<Count> replaced = stage.for_message(stage.buffer(Access::inout, buffer, count, type));
            if (!stage.active()) {
                return below<function>()(buffer, count, type, destination, send_tag, source, receive_tag, comm, status);
            }
            stage.load(Stage::Failure::kept);
            error = below<function>()(replaced.address, replaced.count, replaced.type, destination, send_tag, source,
                                      receive_tag, comm, &own);
            int error_class = error;
            layer().real.Error_class(error, &error_class);
            if (error == MPI_SUCCESS || error_class == MPI_ERR_TRUNCATE) {
                stage.store(received_bytes(own));
            }
        }
        return_status(status, own);
        return error;
    }
};

/// A nonblocking combined send and receive: one request of the program stands for both halves.
template <Function function, class Count>
int start_both(ReceiveReadiness::Unprepared& unprepared, SendOperation send_operation, const Posted& sent,
               const int destination, const int send_tag, RecvOperation recv_operation, const Posted& received,
               const int source, const int receive_tag, const MPI_Comm comm, MPI_Request* const request) {
    const bool ours = send_operation.active() || recv_operation.active();
    if (!ours || (source == MPI_PROC_NULL && destination == MPI_PROC_NULL)) {
        const auto out = sent.as<Count>();
        const auto in = received.as<Count>();
        const int error = below<function>()(out.address, out.count, out.type, destination, send_tag, in.address,
                                            in.count, in.type, source, receive_tag, comm, request);
        if (error == MPI_SUCCESS) {
            unprepared.continues(*request);
            track(std::make_unique<MessageOp>(std::move(send_operation), std::move(recv_operation), comm), request);
        }
        return error;
    }
    // Uses two native operations instead of the combined one, since MPICH's status of the combined one lacks the
    // received size. The program holds the receive; the layer completes the send along with it.
    MPI_Request receiving = MPI_REQUEST_NULL, sending = MPI_REQUEST_NULL;
    const int error = start_halves(send_operation, sent, destination, send_tag, received, source, receive_tag, comm,
                                   receiving, sending);
    if (error != MPI_SUCCESS) {
        if (sending != MPI_REQUEST_NULL) {
            MPI_Status ignored{};
            send_operation.hand_over();
            static_cast<void>(wait_for(sending, ignored));
            send_operation.finish();
        }
        return error;
    }
    if (source != MPI_PROC_NULL) {
        unprepared.continues(receiving);
    }
    // In some MPIs a receive from MPI_PROC_NULL gives a shared request: then the request of the send stands for both.
    const bool nothing_comes = source == MPI_PROC_NULL;
    if (nothing_comes) {
        layer().real.Request_free(&receiving);
        std::swap(receiving, sending);
    } else {
        send_operation.carry(sending);
    }
    *request = receiving;
    auto operation = make_operation(Operation::Kind::once);
    operation->handle = operation->native_request = receiving;
    operation->receives = !nothing_comes;
    if (nothing_comes) {
        operation->take_own_handle(request);
    }
    layer().requests.add_progress_op(
        operation, std::make_unique<MessageOp>(
                       std::move(send_operation),
                       nothing_comes ? std::nullopt : std::optional<RecvOperation>(std::move(recv_operation)), comm,
                       nothing_comes));
    operation->leave();
    layer().requests.track(std::move(operation));
    return error;
}

struct NonblockingSendReceive {
    template <Function function, class Count>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, int destination,
                   int send_tag, void* receive_buffer, Count receive_count, MPI_Datatype receive_type, int source,
                   int receive_tag, MPI_Comm comm, MPI_Request* request) {
        call.on(comm, destination);
        ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
        SendOperation send_operation(call);
        RecvOperation recv_operation(call);
        const Posted sent =
            send_operation.prepare(Mode::offered, send_buffer, send_count, send_type, destination, comm);
        Posted received{receive_buffer, receive_count, receive_type};
        if (source != MPI_PROC_NULL) {
            received = recv_operation.prepare(!unprepared.allowed(), receive_buffer, receive_count, receive_type,
                                              source, comm);
        }
        return start_both<function, Count>(unprepared, std::move(send_operation), sent, destination, send_tag,
                                           std::move(recv_operation), received, source, receive_tag, comm, request);
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
            SendOperation send_operation(call);
            RecvOperation recv_operation(call);
            const Posted sent = send_operation.prepare(Mode::detached, buffer, count, type, destination, comm);
            Posted received{buffer, count, type};
            if (source != MPI_PROC_NULL) {
                received = recv_operation.prepare(rts, buffer, count, type, source, comm);
            }
            // The two-buffer function of the same ABI, since the halves now have different buffers.
            constexpr Function kBoth =
                function == Function::Isendrecv_replace ? Function::Isendrecv : Function::Isendrecv_c;
            return start_both<kBoth, Count>(unprepared, std::move(send_operation), sent, destination, send_tag,
                                            std::move(recv_operation), received, source, receive_tag, comm, request);
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
