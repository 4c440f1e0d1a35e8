// Sends and receives on the staged path.
//
// A device buffer is copied to an image in pinned host memory, which the MPI sends like any other buffer; a receive
// goes into an image that is copied to the device once the status says how much came. Messages look on the wire exactly
// as without the layer, so matching, order, probing, and peers that run without it need no thought.

#include "call/call.h"
#include "call/stage.h"
#include "entry/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

bool is_truncation(const int error) {
    int error_class = error;
    layer().real.Error_class(error, &error_class);
    return error_class == MPI_ERR_TRUNCATE;
}

/// Stores what a blocking receive delivered.
void store_received(Stage& stage, const int error, const MPI_Status& status) {
    if (error == MPI_SUCCESS || is_truncation(error)) {
        stage.store(received_bytes(status));
    }
}

/// Starts tracking a nonblocking operation on images; the program's request is the native one.
void track(Stage stage, const bool receives, const MPI_Request request) {
    auto operation = std::make_shared<Operation>(Operation::Kind::once, std::move(stage));
    operation->handle = operation->carrier = request;
    operation->receives = receives;
    layer().requests.track(std::move(operation));
}

/// MPI_Send, MPI_Ssend, MPI_Rsend, MPI_Bsend.
struct BlockingSend {
    template <Function function, class Count>
    static int run(Call& call, const void* buffer, Count count, MPI_Datatype type, int destination, int tag,
                   MPI_Comm comm) {
        call.on(comm);
        Stage stage(call);
        Argument<Count> sent{const_cast<void*>(buffer), count, type};
        if (destination != MPI_PROC_NULL) {
            sent = stage.buffer(Access::in, buffer, count, type);
            stage.load();
        }
        return below<function>()(sent.address, sent.count, sent.type, destination, tag, comm);
    }
};

/// MPI_Isend, MPI_Issend, MPI_Irsend, MPI_Ibsend. The copy to the image ends before the call does, which keeps the
/// order of messages and lets the program's request be the MPI's own.
struct NonblockingSend {
    template <Function function, class Count>
    static int run(Call& call, const void* buffer, Count count, MPI_Datatype type, int destination, int tag,
                   MPI_Comm comm, MPI_Request* request) {
        call.on(comm);
        Stage stage(call);
        Argument<Count> sent{const_cast<void*>(buffer), count, type};
        if (destination != MPI_PROC_NULL) {
            sent = stage.buffer(Access::in, buffer, count, type);
            stage.load();
        }
        const int error = below<function>()(sent.address, sent.count, sent.type, destination, tag, comm, request);
        if (error == MPI_SUCCESS && stage.active()) {
            track(std::move(stage), false, *request);
        }
        return error;
    }
};

struct Receive {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                   MPI_Status* status) {
        call.on(comm);
        Stage stage(call);
        if (source == MPI_PROC_NULL) {
            return below<function>()(buffer, count, type, source, tag, comm, status);
        }
        const Argument<Count> received = stage.buffer(Access::out, buffer, count, type);
        if (!stage.active()) {
            return below<function>()(buffer, count, type, source, tag, comm, status);
        }
        MPI_Status own{};
        const int error = below<function>()(received.address, received.count, received.type, source, tag, comm, &own);
        store_received(stage, error, own);
        if (status != MPI_STATUS_IGNORE) {
            *status = own;
        }
        return error;
    }
};

struct NonblockingReceive {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                   MPI_Request* request) {
        call.on(comm);
        Stage stage(call);
        Argument<Count> received{buffer, count, type};
        if (source != MPI_PROC_NULL) {
            received = stage.buffer(Access::out, buffer, count, type);
        }
        const int error =
            below<function>()(received.address, received.count, received.type, source, tag, comm, request);
        if (error == MPI_SUCCESS && stage.active()) {
            track(std::move(stage), true, *request);
        }
        return error;
    }
};

/// A message found by MPI_Mprobe or MPI_Improbe. The communicator it belongs to is not known here; errors are raised as
/// the MPI itself does for a bad message handle, on MPI_COMM_SELF.
struct MatchedReceive {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, MPI_Message* message, MPI_Status* status) {
        Stage stage(call);
        if (message == nullptr || *message == MPI_MESSAGE_NO_PROC) {
            return below<function>()(buffer, count, type, message, status);
        }
        const Argument<Count> received = stage.buffer(Access::out, buffer, count, type);
        if (!stage.active()) {
            return below<function>()(buffer, count, type, message, status);
        }
        MPI_Status own{};
        const int error = below<function>()(received.address, received.count, received.type, message, &own);
        store_received(stage, error, own);
        if (status != MPI_STATUS_IGNORE) {
            *status = own;
        }
        return error;
    }
};

struct NonblockingMatchedReceive {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, MPI_Message* message,
                   MPI_Request* request) {
        Stage stage(call);
        Argument<Count> received{buffer, count, type};
        if (message != nullptr && *message != MPI_MESSAGE_NO_PROC) {
            received = stage.buffer(Access::out, buffer, count, type);
        }
        const int error = below<function>()(received.address, received.count, received.type, message, request);
        if (error == MPI_SUCCESS && stage.active()) {
            track(std::move(stage), true, *request);
        }
        return error;
    }
};

/// Both halves of a combined send and receive. Two stages, since what was received limits only one of them.
struct SendReceive {
    template <Function function, class Count>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, int destination,
                   int send_tag, void* receive_buffer, Count receive_count, MPI_Datatype receive_type, int source,
                   int receive_tag, MPI_Comm comm, MPI_Status* status) {
        call.on(comm);
        Stage out(call), in(call);
        Argument<Count> sent{const_cast<void*>(send_buffer), send_count, send_type};
        Argument<Count> received{receive_buffer, receive_count, receive_type};
        if (destination != MPI_PROC_NULL) {
            sent = out.buffer(Access::in, send_buffer, send_count, send_type);
            out.load();
        }
        if (source != MPI_PROC_NULL) {
            received = in.buffer(Access::out, receive_buffer, receive_count, receive_type);
        }
        MPI_Status own{};
        MPI_Status* const asked = in.active() ? &own : status;
        const int error =
            below<function>()(sent.address, sent.count, sent.type, destination, send_tag, received.address,
                              received.count, received.type, source, receive_tag, comm, asked);
        if (in.active()) {
            store_received(in, error, own);
            if (status != MPI_STATUS_IGNORE) {
                *status = own;
            }
        }
        return error;
    }
};

struct SendReceiveReplace {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int destination, int send_tag, int source,
                   int receive_tag, MPI_Comm comm, MPI_Status* status) {
        call.on(comm);
        Stage stage(call);
        const Argument<Count> replaced = stage.buffer(Access::inout, buffer, count, type);
        if (!stage.active()) {
            return below<function>()(buffer, count, type, destination, send_tag, source, receive_tag, comm, status);
        }
        stage.load();
        MPI_Status own{};
        const int error = below<function>()(replaced.address, replaced.count, replaced.type, destination, send_tag,
                                            source, receive_tag, comm, &own);
        store_received(stage, error, own);
        if (status != MPI_STATUS_IGNORE) {
            *status = own;
        }
        return error;
    }
};

struct NonblockingSendReceive {
    template <Function function, class Count>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, int destination,
                   int send_tag, void* receive_buffer, Count receive_count, MPI_Datatype receive_type, int source,
                   int receive_tag, MPI_Comm comm, MPI_Request* request) {
        call.on(comm);
        Stage stage(call);
        Argument<Count> sent{const_cast<void*>(send_buffer), send_count, send_type};
        Argument<Count> received{receive_buffer, receive_count, receive_type};
        if (destination != MPI_PROC_NULL) {
            sent = stage.buffer(Access::in, send_buffer, send_count, send_type);
        }
        if (source != MPI_PROC_NULL) {
            received = stage.buffer(Access::out, receive_buffer, receive_count, receive_type);
        }
        stage.load();
        const int error =
            below<function>()(sent.address, sent.count, sent.type, destination, send_tag, received.address,
                              received.count, received.type, source, receive_tag, comm, request);
        if (error == MPI_SUCCESS && stage.active()) {
            track(std::move(stage), true, *request);
        }
        return error;
    }
};

struct NonblockingSendReceiveReplace {
    template <Function function, class Count>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int destination, int send_tag, int source,
                   int receive_tag, MPI_Comm comm, MPI_Request* request) {
        call.on(comm);
        Stage stage(call);
        const Argument<Count> replaced = stage.buffer(Access::inout, buffer, count, type);
        stage.load();
        const int error = below<function>()(replaced.address, replaced.count, replaced.type, destination, send_tag,
                                            source, receive_tag, comm, request);
        if (error == MPI_SUCCESS && stage.active()) {
            track(std::move(stage), true, *request);
        }
        return error;
    }
};

/// The buffer of buffered sends belongs to the MPI, whose CPU writes it.
struct AttachBuffer {
    template <Function function, class... Arguments>
    static int run(Call& call, void* buffer, Arguments... arguments) {
        gpu::PointerInfo info;
        const void* const pointer = buffer;
        layer().gpu().classify({&pointer, 1}, &info);
        if (info.kind == gpu::MemoryKind::device) {
            throw ClassedError(MPI_ERR_BUFFER, std::string(call.name()) + ": the buffer is device memory",
                               "attach host memory; buffered sends of device memory then work");
        }
        return below<function>()(buffer, arguments...);
    }
};

struct AttachBufferOn {
    template <Function function, class Handle, class... Arguments>
    static int run(Call& call, Handle object, void* buffer, Arguments... arguments) {
        gpu::PointerInfo info;
        const void* const pointer = buffer;
        layer().gpu().classify({&pointer, 1}, &info);
        if (info.kind == gpu::MemoryKind::device) {
            throw ClassedError(MPI_ERR_BUFFER, std::string(call.name()) + ": the buffer is device memory",
                               "attach host memory; buffered sends of device memory then work");
        }
        return below<function>()(object, buffer, arguments...);
    }
};

}  // namespace

Services point_to_point_services() {
    return {
        AWAKEN_SERVE(Send, BlockingSend),
        AWAKEN_SERVE(Send_c, BlockingSend),
        AWAKEN_SERVE(Ssend, BlockingSend),
        AWAKEN_SERVE(Ssend_c, BlockingSend),
        AWAKEN_SERVE(Rsend, BlockingSend),
        AWAKEN_SERVE(Rsend_c, BlockingSend),
        AWAKEN_SERVE(Bsend, BlockingSend),
        AWAKEN_SERVE(Bsend_c, BlockingSend),
        AWAKEN_SERVE(Isend, NonblockingSend),
        AWAKEN_SERVE(Isend_c, NonblockingSend),
        AWAKEN_SERVE(Issend, NonblockingSend),
        AWAKEN_SERVE(Issend_c, NonblockingSend),
        AWAKEN_SERVE(Irsend, NonblockingSend),
        AWAKEN_SERVE(Irsend_c, NonblockingSend),
        AWAKEN_SERVE(Ibsend, NonblockingSend),
        AWAKEN_SERVE(Ibsend_c, NonblockingSend),
        AWAKEN_SERVE(Recv, Receive),
        AWAKEN_SERVE(Recv_c, Receive),
        AWAKEN_SERVE(Irecv, NonblockingReceive),
        AWAKEN_SERVE(Irecv_c, NonblockingReceive),
        AWAKEN_SERVE(Mrecv, MatchedReceive),
        AWAKEN_SERVE(Mrecv_c, MatchedReceive),
        AWAKEN_SERVE(Imrecv, NonblockingMatchedReceive),
        AWAKEN_SERVE(Imrecv_c, NonblockingMatchedReceive),
        AWAKEN_SERVE(Sendrecv, SendReceive),
        AWAKEN_SERVE(Sendrecv_c, SendReceive),
        AWAKEN_SERVE(Sendrecv_replace, SendReceiveReplace),
        AWAKEN_SERVE(Sendrecv_replace_c, SendReceiveReplace),
        AWAKEN_SERVE(Isendrecv, NonblockingSendReceive),
        AWAKEN_SERVE(Isendrecv_c, NonblockingSendReceive),
        AWAKEN_SERVE(Isendrecv_replace, NonblockingSendReceiveReplace),
        AWAKEN_SERVE(Isendrecv_replace_c, NonblockingSendReceiveReplace),
        AWAKEN_SERVE(Buffer_attach, AttachBuffer),
        AWAKEN_SERVE(Buffer_attach_c, AttachBuffer),
        AWAKEN_SERVE(Comm_attach_buffer, AttachBufferOn),
        AWAKEN_SERVE(Comm_attach_buffer_c, AttachBufferOn),
        AWAKEN_SERVE(Session_attach_buffer, AttachBufferOn),
        AWAKEN_SERVE(Session_attach_buffer_c, AttachBufferOn),
    };
}

}  // namespace awaken::AWAKEN_ABI
