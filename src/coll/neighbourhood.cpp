// SPDX-License-Identifier: Apache-2.0
// Neighbourhood collectives. They are messages along the edges if all members can send them (see
// topology_neighbours.h). Otherwise they take the staged path.
//
// On the staged path a neighbour may be MPI_PROC_NULL (the edge of a grid). Its part of the receive buffer is not
// written, so receive buffers are copied to their staging buffers first.

#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

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

/// The first error that the MPI finds in these messages. It checks the arguments of one to or from MPI_PROC_NULL, too.
int error_in(const MessageList& list, const MPI_Comm comm) {
    const Native& native = layer().real;
    const auto first_error = [](const std::vector<Leg>& legs, const auto& small, const auto& large,
                                const auto& function) {
        int error = MPI_SUCCESS;
        for (const Leg& leg : legs) {
            const auto& [address, count, type] = leg.data;
            if (count <= std::numeric_limits<int>::max()) {
                error = small(address, static_cast<int>(count), type);
            } else if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(function)>, Absent>) {
                // Where the library at hand lacks it, the message itself fails.
                error = function != nullptr ? large(address, static_cast<MPI_Count>(count), type) : MPI_SUCCESS;
            }
            if (error != MPI_SUCCESS) {
                break;
            }
        }
        return error;
    };
    const int error = first_error(
        list.receives,
        [&](void* const address, const int count, const MPI_Datatype type) {
            return native.Recv(address, count, type, MPI_PROC_NULL, 0, comm, MPI_STATUS_IGNORE);
        },
        [&](void* const address, const auto count, const MPI_Datatype type) {
            return native.Recv_c(address, count, type, MPI_PROC_NULL, 0, comm, MPI_STATUS_IGNORE);
        },
        native.Recv_c);
    return error != MPI_SUCCESS ? error
                                : first_error(
                                      list.sends,
                                      [&](const void* const address, const int count, const MPI_Datatype type) {
                                          return native.Send(address, count, type, MPI_PROC_NULL, 0, comm);
                                      },
                                      [&](const void* const address, const auto count, const MPI_Datatype type) {
                                          return native.Send_c(address, count, type, MPI_PROC_NULL, 0, comm);
                                      },
                                      native.Send_c);
}

template <class Parts>
std::vector<Leg> legs_of(const std::vector<MessageEnd>& ends, const Parts& parts) {
    std::vector<Leg> legs;
    legs.reserve(ends.size());
    for (std::size_t place = 0; place < ends.size(); ++place) {
        legs.push_back({ends[place], parts(place)});
    }
    return legs;
}

// The forms of a collective as messages, see run.h.
int do_messages(Call& call, const MessageRoute& route, const MessageList& list) {
    Messages messages(call, route, Messages::Errors::raised);
    static_cast<void>(messages.begin(list));
    return messages.finish();
}
int do_messages(Call& call, const MessageRoute& route, const MessageList& list, MPI_Request* const request) {
    return start_messages(call, route, list, request);
}
int do_messages(Call&, const MessageRoute& route, MessageList list, MPI_Info, MPI_Request* const request) {
    return make_persistent_messages(route, std::move(list), request);
}

/// Does a collective as messages. `received` gives the part of an edge by its place, and so does `sent`. Nothing: the
/// MPI does the collective.
template <class Received, class Sent, class... Tail>
std::optional<int> by_messages(Call& call, const MPI_Comm comm, const Received& received, const Sent& sent,
                               const Tail... tail) {
    constexpr bool kBlocking = sizeof...(Tail) == 0, kPersistent = sizeof...(Tail) == 2;
    TopologyNeighbours* const edges = topology_neighbours_of(
        comm, kBlocking ? CollectiveComm::NeighbourUse::blocking : CollectiveComm::NeighbourUse::tracked);
    if (edges == nullptr) {
        return std::nullopt;
    }
    MessageList list{legs_of(edges->sources(), received), legs_of(edges->destinations(), sent)};
    // Checked before the first message: messages that were sent meet the neighbours' receives, and a program that goes
    // on after the error would find the edges out of step.
    if (const int error = error_in(list, edges->comm()); error != MPI_SUCCESS) {
        layer().real.Comm_call_errhandler(comm, error);  // the edges' communicator only returns the error
        return error;
    }
    if constexpr (kPersistent) {
        // A refused call takes no tags, since the other members know nothing of it.
        const std::optional<int> first_tag = edges->next_persistent_tags();
        if (!first_tag) {
            return std::nullopt;
        }
        for (std::vector<Leg>* const legs : {&list.receives, &list.sends}) {
            for (Leg& leg : *legs) {
                leg.end.tag += *first_tag;
            }
        }
    }
    return do_messages(call, {edges->comm(), comm}, list, tail...);
}

/// The members of a collective on a topology.
struct Neighbours {
    template <Function function, class Send, class Receive, class... Tail>
    static int exchange(Call& call, const Send& send, const Receive& receive, const MPI_Comm comm, Tail... tail) {
        call.on(comm);
        const NeighbourCounts neighbours = neighbours_of(layer().real, comm);
        send.check(call, neighbours.destinations);
        receive.check(call, neighbours.sources);
        if (layer().settings.check) {
            check_overlap(call, parts_of(send, Send::kPerMember ? neighbours.destinations : 1),
                          parts_of(receive, neighbours.sources));
        }
        if (const auto outcome = by_messages(call, comm, receive.parts(), send.parts(), tail...)) {
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
        std::tuple<Arguments...> all(arguments...);
        constexpr std::size_t kArguments = sizeof...(Arguments);
        MPI_Info hints = MPI_INFO_NULL;
        constexpr bool kTakesHints =
            function == Function::Dist_graph_create || function == Function::Dist_graph_create_adjacent;
        if constexpr (kTakesHints) {
            hints = std::get<kArguments - 3>(all);
        }
        const InfoForMpi for_mpi(hints);
        if constexpr (kTakesHints) {
            std::get<kArguments - 3>(all) = for_mpi.get();
        }
        const int error = std::apply(below<function>(), all);
        MPI_Comm* const made = std::get<kArguments - 1>(all);
        if (error == MPI_SUCCESS && *made != MPI_COMM_NULL) {
            MemoryKinds& kinds = layer().memory_kinds;
            const NamedObject object = NamedObject::of(NamedObject::Type::communicator, *made);
            kinds.inherit(NamedObject::of(NamedObject::Type::communicator, std::get<0>(all)), object);
            kinds.take_hints(object, hints, false);
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
