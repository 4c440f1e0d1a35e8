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
#include "coll/buffer_views.h"
#include "coll/collective_comm.h"
#include "coll/exchange.h"
#include "coll/run.h"
#include "coll/topology_neighbours.h"

namespace awaken::AWAKEN_ABI {

namespace {

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

/// The members of a collective on a topology.
struct Neighbours {
    template <Function function, class Send, class Receive, class... Tail>
    static int exchange(Call& call, const Send& send, const Receive& receive, const MPI_Comm comm, Tail... tail) {
        call.on(comm);
        const NeighbourCounts neighbours = neighbours_of(layer().real, comm);
        send.check(call, neighbours.destinations);
        receive.check(call, neighbours.sources);
        if (const auto outcome = by_messages(call, comm, receive.edges(), send.edges(), tail...)) {
            return *outcome;
        }
        Stage stage(call);
        prepare(stage, tail...);
        const auto sent = send.placed(stage, Access::in, neighbours.destinations);
        const auto received = receive.placed(stage, Access::inout, neighbours.sources);
        return carry_out(
            stage,
            [&] { return std::apply(below<function>(), std::tuple_cat(sent, received, std::tuple{comm, tail...})); },
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
        AWAKEN_SERVE_COUNTS(Neighbor_allgather, AllGather<Neighbours>),
        AWAKEN_SERVE_COUNTS(Neighbor_allgatherv, AllGatherV<Neighbours>),
        AWAKEN_SERVE_COUNTS(Neighbor_alltoall, AllToAll<Neighbours>),
        AWAKEN_SERVE_COUNTS(Neighbor_alltoallv, AllToAllV<Neighbours>),
        AWAKEN_SERVE_COUNTS(Neighbor_alltoallw, AllToAllW<Neighbours>),
    };
}

Services neighbourhood_services() {
    return {
        AWAKEN_SERVE_COLLECTIVE(Neighbor_allgather, Ineighbor_allgather, AllGather<Neighbours>),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_allgatherv, Ineighbor_allgatherv, AllGatherV<Neighbours>),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoall, Ineighbor_alltoall, AllToAll<Neighbours>),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoallv, Ineighbor_alltoallv, AllToAllV<Neighbours>),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoallw, Ineighbor_alltoallw, AllToAllW<Neighbours>),
    };
}

}  // namespace awaken::AWAKEN_ABI
