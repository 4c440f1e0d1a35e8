// Neighbourhood collectives. They are messages along the edges if all members can send them (see
// topology_neighbours.h). Otherwise they take the staged path.
//
// On the staged path a neighbour may be MPI_PROC_NULL (the edge of a grid). Its part of the receive buffer is not
// written, so receive buffers are copied to their staging buffers first.

#include <optional>
#include <tuple>

#include "call/call.h"
#include "call/services.h"
#include "call/stage.h"
#include "coll/arguments.h"
#include "coll/collective_comm.h"
#include "coll/run.h"
#include "coll/topology_neighbours.h"

namespace awaken::AWAKEN_ABI {

namespace {

NeighbourCounts neighbours_of(const MPI_Comm comm) {
    return neighbours_of(layer().real, comm);
}

std::byte* at(const void* const buffer, const std::int64_t bytes) {
    return static_cast<std::byte*>(const_cast<void*>(buffer)) + bytes;
}

std::int64_t extent_of(const MPI_Datatype type) {
    MPI_Aint lower_bound = 0, extent = 0;
    // The MPI has to report a null datatype. In this call it would use another error handler than the communicator's.
    if (type != MPI_DATATYPE_NULL) {
        layer().real.Type_get_extent(type, &lower_bound, &extent);
    }
    return extent;
}

/// The data that comes or goes along an edge.
template <class Count>
struct EdgeBuffer {
    std::byte* address;
    Count count;
    MPI_Datatype type;
};

/// The error that the MPI finds in such a message. It also checks the arguments of one from or to MPI_PROC_NULL.
template <class Count>
int try_receive(const EdgeBuffer<Count>& part, const MPI_Comm comm) {
    const Native& native = layer().real;
    if constexpr (sizeof(Count) > sizeof(int)) {
        return native.Recv_c(part.address, part.count, part.type, MPI_PROC_NULL, 0, comm, MPI_STATUS_IGNORE);
    } else {
        return native.Recv(part.address, part.count, part.type, MPI_PROC_NULL, 0, comm, MPI_STATUS_IGNORE);
    }
}

template <class Count>
int try_send(const EdgeBuffer<Count>& part, const MPI_Comm comm) {
    const Native& native = layer().real;
    if constexpr (sizeof(Count) > sizeof(int)) {
        return native.Send_c(part.address, part.count, part.type, MPI_PROC_NULL, 0, comm);
    } else {
        return native.Send(part.address, part.count, part.type, MPI_PROC_NULL, 0, comm);
    }
}

/// Does a collective as messages. `received` gives the part of an edge by its place, and so does `sent`. Nothing: the
/// MPI does the collective. It always does the persistent form.
template <class Received, class Sent, class... Tail>
std::optional<int> by_messages(Call& call, const MPI_Comm comm, const Received& received, const Sent& sent,
                               const Tail... tail) {
    constexpr std::size_t kBlocking = 0, kNonblocking = 1;
    if constexpr (sizeof...(Tail) <= kNonblocking) {
        Layer& owner = layer();
        const TopologyNeighbours* const edges =
            topology_neighbours_of(comm, sizeof...(Tail) == kBlocking ? CollectiveComm::NeighbourUse::blocking
                                                                      : CollectiveComm::NeighbourUse::nonblocking);
        if (edges == nullptr) {
            return std::nullopt;
        }
        const std::size_t sources = edges->sources().size(), destinations = edges->destinations().size();
        // Checked before the first message: messages that were sent meet the neighbours' receives, and a program that
        // goes on after the error would find the edges out of step.
        int error = MPI_SUCCESS;
        for (std::size_t place = 0; place < sources && error == MPI_SUCCESS; ++place) {
            error = try_receive(received(place), edges->comm());
        }
        for (std::size_t place = 0; place < destinations && error == MPI_SUCCESS; ++place) {
            error = try_send(sent(place), edges->comm());
        }
        const auto raise = [&] {
            owner.real.Comm_call_errhandler(comm, error);  // the edges' communicator only returns the error
            return error;
        };
        if (error != MPI_SUCCESS) {
            return raise();
        }
        auto messages =
            std::make_unique<Messages>(call, edges->comm(), comm, Messages::Errors::raised, sources, destinations);
        for (std::size_t place = 0; place < sources && error == MPI_SUCCESS; ++place) {
            const auto part = received(place);
            error = messages->receive(edges->sources()[place], part.address, part.count, part.type);
        }
        for (std::size_t place = 0; place < destinations && error == MPI_SUCCESS; ++place) {
            const auto part = sent(place);
            error = messages->send(edges->destinations()[place], part.address, part.count, part.type);
        }
        if (error != MPI_SUCCESS) {
            return raise();
        }
        if constexpr (sizeof...(Tail) == kBlocking) {
            return messages->finish();
        } else {
            auto operation = make_operation(Operation::Kind::once);
            if (operation->start_own_handle(tail...) != MPI_SUCCESS) {
                throw Error("the MPI gives no request", "complete some of the program's requests first");
            }
            messages->leave();
            owner.requests.add_progress_op(operation, std::move(messages));
            owner.requests.track(std::move(operation));
            return MPI_SUCCESS;
        }
    } else {
        return std::nullopt;
    }
}

/// MPI_Neighbor_allgather and MPI_Neighbor_alltoall.
template <bool to_each>
struct NeighbourRegular {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        check_elements(call, send_buffer, send_count, send_type);
        check_elements(call, receive_buffer, receive_count, receive_type);
        const auto outcome = by_messages(
            call, comm,
            [&, block = receive_count * extent_of(receive_type)](const std::size_t place) {
                return EdgeBuffer<Count>{at(receive_buffer, static_cast<std::int64_t>(place) * block), receive_count,
                                         receive_type};
            },
            [&, block = to_each ? send_count * extent_of(send_type) : 0](const std::size_t place) {
                return EdgeBuffer<Count>{at(send_buffer, static_cast<std::int64_t>(place) * block), send_count,
                                         send_type};
            },
            tail...);
        if (outcome) {
            return *outcome;
        }
        Stage stage(call);
        prepare(stage, tail...);
        const NeighbourCounts neighbours = neighbours_of(comm);
        const auto sent = stage.buffer(Access::in, send_buffer, send_count, send_type,
                                       static_cast<std::int64_t>(send_count) * (to_each ? neighbours.destinations : 1));
        const auto received = stage.buffer(Access::inout, receive_buffer, receive_count, receive_type,
                                           static_cast<std::int64_t>(receive_count) * neighbours.sources);
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, sent.count, sent.type, received.address, received.count,
                                         received.type, comm, tail...);
            },
            tail...);
    }
};
using NeighbourAllGather = NeighbourRegular<false>;
using NeighbourAllToAll = NeighbourRegular<true>;

struct NeighbourAllGatherV {
    template <Function function, class Count, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Counts receive_counts, Displacements displacements, MPI_Datatype receive_type, MPI_Comm comm,
                   Tail... tail) {
        call.on(comm);
        const NeighbourCounts neighbours = neighbours_of(comm);
        check_elements(call, send_buffer, send_count, send_type);
        check_parts(call, receive_buffer, receive_counts, receive_type, neighbours.sources);
        const auto outcome = by_messages(
            call, comm,
            [&, extent = extent_of(receive_type)](const std::size_t place) {
                return EdgeBuffer<Count>{at(receive_buffer, displacements[place] * extent), receive_counts[place],
                                         receive_type};
            },
            [&](std::size_t) { return EdgeBuffer<Count>{at(send_buffer, 0), send_count, send_type}; }, tail...);
        if (outcome) {
            return *outcome;
        }
        Stage stage(call);
        prepare(stage, tail...);
        const auto sent = stage.buffer(Access::in, send_buffer, send_count, send_type);
        const auto received = stage.blocks(Access::inout, receive_buffer, receive_counts, displacements, receive_type,
                                           neighbours.sources);
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, sent.count, sent.type, received.address, receive_counts,
                                         received.displacements, received.type, comm, tail...);
            },
            tail...);
    }
};

struct NeighbourAllToAllV {
    template <Function function, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements send_displacements,
                   MPI_Datatype send_type, void* receive_buffer, Counts receive_counts,
                   Displacements receive_displacements, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        const NeighbourCounts neighbours = neighbours_of(comm);
        check_parts(call, send_buffer, send_counts, send_type, neighbours.destinations);
        check_parts(call, receive_buffer, receive_counts, receive_type, neighbours.sources);
        const auto outcome = by_messages(
            call, comm,
            [&, extent = extent_of(receive_type)](const std::size_t place) {
                return EdgeBuffer{at(receive_buffer, receive_displacements[place] * extent), receive_counts[place],
                                  receive_type};
            },
            [&, extent = extent_of(send_type)](const std::size_t place) {
                return EdgeBuffer{at(send_buffer, send_displacements[place] * extent), send_counts[place], send_type};
            },
            tail...);
        if (outcome) {
            return *outcome;
        }
        Stage stage(call);
        prepare(stage, tail...);
        const auto sent =
            stage.blocks(Access::in, send_buffer, send_counts, send_displacements, send_type, neighbours.destinations);
        const auto received = stage.blocks(Access::inout, receive_buffer, receive_counts, receive_displacements,
                                           receive_type, neighbours.sources);
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, send_counts, sent.displacements, sent.type, received.address,
                                         receive_counts, received.displacements, received.type, comm, tail...);
            },
            tail...);
    }
};

struct NeighbourAllToAllW {
    template <Function function, class Counts, class Displacements, class Types, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements send_displacements,
                   Types send_types, void* receive_buffer, Counts receive_counts, Displacements receive_displacements,
                   Types receive_types, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        const NeighbourCounts neighbours = neighbours_of(comm);
        check_parts(call, send_buffer, send_counts, send_types, neighbours.destinations);
        check_parts(call, receive_buffer, receive_counts, receive_types, neighbours.sources);
        const auto outcome = by_messages(
            call, comm,
            [&](const std::size_t place) {
                return EdgeBuffer{at(receive_buffer, receive_displacements[place]), receive_counts[place],
                                  receive_types[place]};
            },
            [&](const std::size_t place) {
                return EdgeBuffer{at(send_buffer, send_displacements[place]), send_counts[place], send_types[place]};
            },
            tail...);
        if (outcome) {
            return *outcome;
        }
        Stage stage(call);
        prepare(stage, tail...);
        const auto sent = stage.typed_blocks(Access::in, send_buffer, send_counts, send_displacements, send_types,
                                             neighbours.destinations);
        const auto received = stage.typed_blocks(Access::inout, receive_buffer, receive_counts, receive_displacements,
                                                 receive_types, neighbours.sources);
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, send_counts, sent.displacements, sent.types, received.address,
                                         receive_counts, received.displacements, received.types, comm, tail...);
            },
            tail...);
    }
};

/// All members are here together, so the edges are made now. A nonblocking collective, which may not wait for others,
/// then finds them.
struct MakeTopology {
    template <Function function, class... Arguments>
    static int run(Call&, Arguments... arguments) {
        const int error = below<function>()(arguments...);
        MPI_Comm* const made = std::get<sizeof...(Arguments) - 1>(std::tuple(arguments...));
        if (error == MPI_SUCCESS && *made != MPI_COMM_NULL) {
            static_cast<void>(topology_neighbours_of(*made, CollectiveComm::NeighbourUse::making));
        }
        return error;
    }
};

}  // namespace

Services edge_services() {
    return {
        AWAKEN_SERVE(Cart_create, MakeTopology),
        AWAKEN_SERVE(Cart_sub, MakeTopology),
        AWAKEN_SERVE(Graph_create, MakeTopology),
        AWAKEN_SERVE(Dist_graph_create, MakeTopology),
        AWAKEN_SERVE(Dist_graph_create_adjacent, MakeTopology),
        AWAKEN_SERVE_COUNTS(Neighbor_allgather, NeighbourAllGather),
        AWAKEN_SERVE_COUNTS(Neighbor_allgatherv, NeighbourAllGatherV),
        AWAKEN_SERVE_COUNTS(Neighbor_alltoall, NeighbourAllToAll),
        AWAKEN_SERVE_COUNTS(Neighbor_alltoallv, NeighbourAllToAllV),
        AWAKEN_SERVE_COUNTS(Neighbor_alltoallw, NeighbourAllToAllW),
    };
}

Services neighbourhood_services() {
    return {
        AWAKEN_SERVE_COLLECTIVE(Neighbor_allgather, Ineighbor_allgather, NeighbourAllGather),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_allgatherv, Ineighbor_allgatherv, NeighbourAllGatherV),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoall, Ineighbor_alltoall, NeighbourAllToAll),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoallv, Ineighbor_alltoallv, NeighbourAllToAllV),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoallw, Ineighbor_alltoallw, NeighbourAllToAllW),
    };
}

}  // namespace awaken::AWAKEN_ABI
