// Neighbourhood collectives on the staged path.
//
// A neighbour may be MPI_PROC_NULL (the edge of a grid): its part of the receive buffer is not written, so receive
// buffers are copied to their images first.

#include "call/call.h"
#include "call/stage.h"
#include "coll/run.h"
#include "entry/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

struct NeighbourCounts {
    int sources = 0;
    int destinations = 0;
};

NeighbourCounts neighbours_of(const MPI_Comm comm) {
    const Native& native = layer().real;
    NeighbourCounts neighbours;
    int topology = MPI_UNDEFINED;
    native.Topo_test(comm, &topology);
    if (topology == MPI_CART) {
        int dimensions = 0;
        native.Cartdim_get(comm, &dimensions);
        neighbours.sources = neighbours.destinations = 2 * dimensions;
    } else if (topology == MPI_GRAPH) {
        int rank = 0;
        native.Comm_rank(comm, &rank);
        native.Graph_neighbors_count(comm, rank, &neighbours.sources);
        neighbours.destinations = neighbours.sources;
    } else if (topology == MPI_DIST_GRAPH) {
        int weighted = 0;
        native.Dist_graph_neighbors_count(comm, &neighbours.sources, &neighbours.destinations, &weighted);
    }
    return neighbours;
}

/// MPI_Neighbor_allgather and MPI_Neighbor_alltoall.
template <bool to_each>
struct Regular {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        call.on(comm);
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
using AllGather = Regular<false>;
using AllToAll = Regular<true>;

struct AllGatherV {
    template <Function function, class Count, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Counts receive_counts, Displacements displacements, MPI_Datatype receive_type, MPI_Comm comm,
                   Tail... tail) {
        call.on(comm);
        Stage stage(call);
        prepare(stage, tail...);
        const NeighbourCounts neighbours = neighbours_of(comm);
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

struct AllToAllV {
    template <Function function, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements send_displacements,
                   MPI_Datatype send_type, void* receive_buffer, Counts receive_counts,
                   Displacements receive_displacements, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        Stage stage(call);
        prepare(stage, tail...);
        const NeighbourCounts neighbours = neighbours_of(comm);
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

struct AllToAllW {
    template <Function function, class Counts, class Displacements, class Types, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements send_displacements,
                   Types send_types, void* receive_buffer, Counts receive_counts, Displacements receive_displacements,
                   Types receive_types, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        Stage stage(call);
        prepare(stage, tail...);
        const NeighbourCounts neighbours = neighbours_of(comm);
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

}  // namespace

Services neighbourhood_services() {
    return {
        AWAKEN_SERVE_COLLECTIVE(Neighbor_allgather, Ineighbor_allgather, AllGather),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_allgatherv, Ineighbor_allgatherv, AllGatherV),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoall, Ineighbor_alltoall, AllToAll),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoallv, Ineighbor_alltoallv, AllToAllV),
        AWAKEN_SERVE_COLLECTIVE(Neighbor_alltoallw, Ineighbor_alltoallw, AllToAllW),
    };
}

}  // namespace awaken::AWAKEN_ABI
