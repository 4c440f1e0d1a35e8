// SPDX-License-Identifier: Apache-2.0
#include "coll/topology_neighbours.h"

#include <algorithm>
#include <array>

#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// Ranks by place in the buffers. Both are empty if there is no topology; `sources` is empty for a grid.
struct Ranks {
    std::vector<int> sources, destinations;
};

Ranks ranks_of(const Native& native, const MPI_Comm comm) {
    int topology = MPI_UNDEFINED;
    native.Topo_test(comm, &topology);
    const NeighbourCounts neighbours = neighbours_of(native, comm);
    Ranks all;
    std::vector<int>& ranks = all.destinations;
    ranks.resize(static_cast<std::size_t>(neighbours.destinations), MPI_PROC_NULL);
    if (topology == MPI_CART) {
        for (std::size_t place = 0; place < ranks.size(); place += 2) {
            native.Cart_shift(comm, static_cast<int>(place / 2), 1, &ranks[place], &ranks[place + 1]);
        }
    } else if (topology == MPI_GRAPH) {
        int rank = 0;
        native.Comm_rank(comm, &rank);
        native.Graph_neighbors(comm, rank, neighbours.destinations, ranks.data());
        all.sources = ranks;
    } else if (topology == MPI_DIST_GRAPH) {
        all.sources.resize(static_cast<std::size_t>(neighbours.sources));
        std::vector<int> weights(all.sources.size() + ranks.size());
        native.Dist_graph_neighbors(comm, neighbours.sources, all.sources.data(), weights.data(),
                                    neighbours.destinations, ranks.data(), weights.data() + all.sources.size());
    }
    return all;
}

}  // namespace

NeighbourCounts neighbours_of(const Native& native, const MPI_Comm comm) {
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

// A program that makes a graph need not use it. Until it does, nothing shows that a process names a neighbour that does
// not name it.
bool TopologyNeighbours::are_consistent(const Native& native, const MPI_Comm comm) {
    int topology = MPI_UNDEFINED, size = 0;
    native.Topo_test(comm, &topology);
    if (topology == MPI_CART) {
        return true;
    }
    native.Comm_size(comm, &size);
    const Ranks ranks = ranks_of(native, comm);
    const auto count = [size](const std::vector<int>& neighbours) {
        std::vector<int> edges(static_cast<std::size_t>(size));
        for (const int rank : neighbours) {
            if (rank >= 0 && rank < size) {
                ++edges[static_cast<std::size_t>(rank)];
            }
        }
        return edges;
    };
    const std::vector<int> to = count(ranks.destinations), from = count(ranks.sources);
    std::vector<int> said(to.size());
    const bool told = native.Alltoall(to.data(), 1, MPI_INT, said.data(), 1, MPI_INT, comm) == MPI_SUCCESS;
    const int consistent = told && said == from ? 1 : 0;
    int all_consistent = 0;
    return native.Allreduce(&consistent, &all_consistent, 1, MPI_INT, MPI_MIN, comm) == MPI_SUCCESS &&
           all_consistent != 0;
}

// The MPI decides which of a process's edges leads to which edge of another process. Releases differ if two processes
// have several edges between them, as in a periodic grid of two. So the MPI's own collective sends each edge's number
// along the edge once, and the number is the tag of the edge's messages from then on.
TopologyNeighbours::TopologyNeighbours(const Native& native, const MPI_Comm comm, const bool willing)
    : _comm(native, comm) {
    constexpr std::size_t kLeastTagBound = 32767;  // MPI-4.1, 9.1.2
    const std::vector<int> ranks = ranks_of(native, comm).destinations;
    struct Name {
        int rank, edge;
    };
    int own = 0;
    native.Comm_rank(comm, &own);
    const auto sources = static_cast<std::size_t>(neighbours_of(native, comm).sources);
    // One more element each: MPIs refuse null buffers, also those of no elements.
    std::vector<Name> said(ranks.size() + 1), heard(sources + 1, Name{MPI_PROC_NULL, 0});
    for (std::size_t place = 0; place < ranks.size(); ++place) {
        said[place] = {own, static_cast<int>(place)};
        _destinations.push_back({ranks[place], static_cast<int>(place)});
    }
    const bool told = native.Neighbor_alltoall(said.data(), 2, MPI_INT, heard.data(), 2, MPI_INT, comm) == MPI_SUCCESS;
    for (std::size_t place = 0; place < sources; ++place) {
        _sources.push_back({heard[place].rank, heard[place].edge});
    }
    const bool usable = told && willing && _comm.handle() != MPI_COMM_NULL && ranks.size() < kLeastTagBound;
    // The least of all members' values; the greatest number of edges is the least negative one.
    const std::array<int, 3> mine{usable ? 1 : 0, layer().tracks_operations ? 1 : 0, -static_cast<int>(ranks.size())};
    std::array<int, 3> least{};
    if (native.Allreduce(mine.data(), least.data(), 3, MPI_INT, MPI_MIN, comm) == MPI_SUCCESS) {
        _usable = least[0] != 0;
        _all_can_track = least[1] != 0;
        _tags = std::max(1, -least[2]);
    }
}

std::optional<int> TopologyNeighbours::next_persistent_tags() {
    const std::int64_t first = ++_persistent * _tags;
    return first + _tags <= greatest_tag() ? std::optional(static_cast<int>(first)) : std::nullopt;
}

}  // namespace awaken::AWAKEN_ABI
