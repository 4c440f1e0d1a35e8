// SPDX-License-Identifier: Apache-2.0
// The neighbours of neighbourhood collectives (-N): a periodic grid, or a graph read from a file, both in the order in
// which the OSU micro-benchmarks list them.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <string>
#include <vector>

#include "mpi/benchmark.h"

namespace awaken::bench {

/// One directed edge of the graph.
struct Edge {
    int source;
    int destination;
};

/// Who sends to this rank and whom it sends to.
struct Neighbors {
    std::vector<int> sources;
    std::vector<int> destinations;
    /// How many earlier entries of the same list name the same rank: parallel edges carry their messages in order.
    std::vector<int> source_repeats;
    std::vector<int> destination_repeats;
};

/// Reads the text of a graph file: "SOURCE, DESTINATION" a line, lines that begin with # and empty lines apart. Throws
/// Error when a line is neither, or names a rank that is not there. `name`: of the file, for the message.
[[nodiscard]] std::vector<Edge> parse_graph(const std::string& text, const std::string& name, int ranks);

/// Those of `rank` in a graph.
[[nodiscard]] Neighbors neighbors_in_graph(const std::vector<Edge>& edges, int rank);

/// Those of `rank` in a periodic grid: everyone within `radius` steps in each dimension, the last dimension varying
/// fastest. Throws Error when the grid is so narrow that a neighbour would be met twice.
[[nodiscard]] Neighbors neighbors_in_grid(const std::vector<int>& dimensions, int radius, int rank);

/// A communicator with the topology that the options ask for. Owns it.
class Topology {
  public:
    /// Collective; throws on all ranks alike.
    explicit Topology(const Environment& environment);
    ~Topology();
    Topology(const Topology&) = delete;
    Topology& operator=(const Topology&) = delete;

    [[nodiscard]] MPI_Comm communicator() const noexcept { return _communicator; }
    [[nodiscard]] const Neighbors& neighbors() const noexcept { return _neighbors; }
    /// Of the grid; empty for a graph.
    [[nodiscard]] const std::vector<int>& dimensions() const noexcept { return _dimensions; }
    /// What creating the communicator took, averaged over ranks; counts at rank 0.
    [[nodiscard]] double creation_us() const noexcept { return _creation_us; }

  private:
    MPI_Comm _communicator = MPI_COMM_NULL;
    Neighbors _neighbors;
    std::vector<int> _dimensions;
    double _creation_us = 0;
};

}  // namespace awaken::bench
