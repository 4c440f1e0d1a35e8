// SPDX-License-Identifier: Apache-2.0
// Persistent and partitioned point-to-point operations.
//
// A program may initialise a persistent operation long before the buffer holds data, and may free and reallocate the
// buffer in between. So the layer makes the native persistent request on the program's own buffer, which the MPI does
// not touch before the start. Each start looks where the buffer is now. Host memory starts the native request. Other
// memory gets a nonblocking operation of its own, and so does every receive that may meet an RTS. The program holds the
// native persistent request in each case.
//
// The MPI matches a partitioned operation at its initialisation, so the operation keeps its staging buffer from then
// on.

#include <exception>
#include <optional>
#include <utility>

#include "call/call.h"
#include "call/held_type.h"
#include "call/services.h"
#include "call/stage.h"
#include "p2p/operations.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// The operation was not started after all.
void end_unprepared(Operation& operation) {
    if (std::exchange(operation.unprepared, false)) {
        layer().receive_readiness.ended_unprepared();
    }
}

template <bool receives>
struct PersistentInit {
    template <Function function, class Pointer, class Count>
    static int run(Call& call, Pointer buffer, Count count, MPI_Datatype type, int peer, int tag, MPI_Comm comm,
                   MPI_Request* request) {
        call.on(comm, peer);
        const int error = below<function>()(buffer, count, type, peer, tag, comm, request);
        if (error != MPI_SUCCESS || peer == MPI_PROC_NULL) {
            return error;
        }
        auto operation = make_operation(Operation::Kind::rebinding);
        operation->handle = operation->native_request = *request;
        operation->receives = receives;
        const auto held = std::make_shared<const HeldType>(type);
        operation->launch = [=](Call& start, const std::shared_ptr<Operation>& own, int& outcome) {
            start.on(comm);
            auto message = std::make_unique<MessageOp>(comm);
            Posted posted{};
            auto* const address = const_cast<void*>(static_cast<const void*>(buffer));
            constexpr bool kBuffered = function == Function::Bsend_init || function == Function::Bsend_init_c;
            if constexpr (receives) {
                ReceiveReadiness::Unprepared unprepared(layer().receive_readiness);
                posted =
                    message->make_recv(start).prepare(!unprepared.allowed(), address, count, held->get(), peer, comm);
                own->unprepared = unprepared.keep();
            } else {
                posted = message->make_send(start).prepare(
                    kBuffered ? SendOperation::Mode::plain : SendOperation::Mode::offered, address, count, held->get(),
                    peer, comm);
            }
            if (!message->receives() && !message->sends()) {
                return false;
            }
            const auto argument = posted.as<Count>();
            if (kBuffered && message->send().sends_rts()) {
                // The program's attached buffer may be too small for the RTS, which is in memory of the layer.
                outcome = start_send(layer().below, posted, peer, tag, comm, &own->native_request);
            } else {
                outcome = below<loader::traits_of(function).nonblocking>()(
                    argument.address, argument.count, argument.type, peer, tag, comm, &own->native_request);
            }
            if constexpr (!receives) {
                message->send().posted(outcome, false);
            }
            if (outcome != MPI_SUCCESS) {
                end_unprepared(*own);
            } else if (message->progressing()) {
                layer().requests.add_progress_op(own, std::move(message));
                own->leave();
            } else {
                own->stage = message->take_stage();
            }
            return true;
        };
        layer().requests.track(std::move(operation));
        return error;
    }
};

int start(Call& call, MPI_Request* const request, const std::shared_ptr<Operation>& tracked,
          int (*native_start)(MPI_Request*)) {
    Operation& operation = *tracked;
    if (operation.is_active()) {
        return native_start(request);  // an error of the program, which the MPI reports
    }
    if (operation.kind == Operation::Kind::rebinding) {
        int error = MPI_SUCCESS;
        if (operation.launch(call, tracked, error)) {
            operation.started(error == MPI_SUCCESS);
            return error;
        }
        operation.native_request = operation.handle;
    } else {
        operation.stage->restart();
        operation.stage->load(Stage::Failure::kept);
    }
    const int error = native_start(request);
    operation.started(error == MPI_SUCCESS);
    if (error != MPI_SUCCESS) {
        end_unprepared(operation);
    }
    return error;
}

struct Start {
    template <Function function>
    static int run(Call& call, MPI_Request* request) {
        Layer& owner = layer();
        if (owner.requests.any() && request != nullptr) {
            if (const auto operation = owner.requests.find(*request)) {
                return start(call, request, operation, below<function>());
            }
        }
        return below<function>()(request);
    }
};

struct StartAll {
    template <Function function>
    static int run(Call& call, int count, MPI_Request requests[]) {
        Layer& owner = layer();
        if (!owner.requests.any()) {
            return below<function>()(count, requests);
        }
        std::exception_ptr failure;
        for (int i = 0; i < count; ++i) {
            const auto operation = owner.requests.find(requests[i]);
            int error = MPI_SUCCESS;
            try {
                error = operation ? start(call, &requests[i], operation, owner.below.Start)
                                  : owner.below.Start(&requests[i]);
            } catch (const Error&) {
                failure = failure ? failure : std::current_exception();  // other ranks wait for the next ones
            }
            if (error != MPI_SUCCESS) {
                return error;
            }
        }
        if (failure) {
            std::rethrow_exception(failure);
        }
        return MPI_SUCCESS;
    }
};

template <bool receives>
struct PartitionedInit {
    template <Function function, class Pointer>
    static int run(Call& call, Pointer buffer, int partitions, MPI_Count count, MPI_Datatype type, int peer, int tag,
                   MPI_Comm comm, MPI_Info info, MPI_Request* request) {
        call.on(comm, peer);
        Stage stage(call);
        stage.watch();
        Argument<MPI_Count> argument{const_cast<void*>(static_cast<const void*>(buffer)), count, type};
        if (peer != MPI_PROC_NULL) {
            stage.partitions(receives ? Access::out : Access::in, buffer, partitions, count, type, argument);
        }
        const int error = below<function>()(argument.address, partitions, argument.count, argument.type, peer, tag,
                                            comm, info, request);
        if (error == MPI_SUCCESS && layer().gpu().is_present()) {
            auto operation = make_operation(Operation::Kind::partitioned, std::move(stage));
            operation->handle = operation->native_request = *request;
            layer().requests.track(std::move(operation));
        }
        return error;
    }
};

/// Copies the partitions to their staging buffers before the MPI learns that they are ready. The receiver waits for
/// those that cannot be copied, too. The program hears of them when the operation is complete.
template <class ForEach>
void load_partitions(const MPI_Request request, ForEach for_each) {
    if (!layer().requests.any()) {
        return;
    }
    const auto operation = layer().requests.find(request);
    if (operation != nullptr && operation->kind == Operation::Kind::partitioned && operation->has_staging_buffers()) {
        for_each([&](int partition) {
            try {
                operation->stage->load_partition(partition);
            } catch (const Error& failure) {
                const std::scoped_lock lock(operation->mutex);
                operation->stage->lose_partition(partition, failure);
            }
        });
    }
}

struct Ready {
    template <Function function>
    static int run(Call&, int partition, MPI_Request request) {
        load_partitions(request, [&](auto load) { load(partition); });
        return below<function>()(partition, request);
    }
};

struct ReadyRange {
    template <Function function>
    static int run(Call&, int first, int last, MPI_Request request) {
        load_partitions(request, [&](auto load) {
            for (int i = first; i <= last; ++i) {
                load(i);
            }
        });
        return below<function>()(first, last, request);
    }
};

struct ReadyList {
    template <Function function, class List>
    static int run(Call&, int length, List list, MPI_Request request) {
        load_partitions(request, [&](auto load) {
            for (int i = 0; i < length; ++i) {
                load(list[i]);
            }
        });
        return below<function>()(length, list, request);
    }
};

struct Arrived {
    template <Function function>
    static int run(Call&, MPI_Request request, int partition, int* flag) {
        const int error = below<function>()(request, partition, flag);
        if (error == MPI_SUCCESS && *flag != 0 && layer().requests.any()) {
            const auto operation = layer().requests.find(request);
            if (operation != nullptr && operation->is_active() && operation->has_staging_buffers()) {
                const std::scoped_lock lock(operation->mutex);
                operation->stage->store_partition(partition);
            }
        }
        return error;
    }
};

using SendInit = PersistentInit<false>;
using ReceiveInit = PersistentInit<true>;
using PartitionedSendInit = PartitionedInit<false>;
using PartitionedReceiveInit = PartitionedInit<true>;

}  // namespace

Services persistent_services() {
    return {
        AWAKEN_SERVE_COUNTS(Send_init, SendInit),
        AWAKEN_SERVE_COUNTS(Ssend_init, SendInit),
        AWAKEN_SERVE_COUNTS(Rsend_init, SendInit),
        AWAKEN_SERVE_COUNTS(Bsend_init, SendInit),
        AWAKEN_SERVE_COUNTS(Recv_init, ReceiveInit),
        AWAKEN_SERVE(Start, Start),
        AWAKEN_SERVE(Startall, StartAll),
        AWAKEN_SERVE(Psend_init, PartitionedSendInit),
        AWAKEN_SERVE(Precv_init, PartitionedReceiveInit),
        AWAKEN_SERVE(Pready, Ready),
        AWAKEN_SERVE(Pready_range, ReadyRange),
        AWAKEN_SERVE(Pready_list, ReadyList),
        AWAKEN_SERVE(Parrived, Arrived),
    };
}

}  // namespace awaken::AWAKEN_ABI
