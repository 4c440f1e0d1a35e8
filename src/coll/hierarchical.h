// SPDX-License-Identifier: Apache-2.0
// A communicator that spans nodes, as two levels: the members of a node, and the inter-node communicators, each of
// which joins the members that have the same place on each node. The GPUs of a node do first what they can do among
// themselves. Then each inter-node communicator moves its partition between the nodes.
#pragma once

#include <memory>
#include <vector>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

class Hierarchy {
  public:
    /// Collective over the communicator. All members of a node pass the same number, and those of other nodes other
    /// ones. Check usable() before anything else.
    Hierarchy(const Native& native, MPI_Comm comm, int node);
    ~Hierarchy();
    Hierarchy(const Hierarchy&) = delete;
    Hierarchy& operator=(const Hierarchy&) = delete;

    /// False: the MPI did not give the communicators, or no node has more than one member. The same on all members.
    [[nodiscard]] bool usable() const noexcept { return _inter_node_comms > 0; }
    [[nodiscard]] MPI_Comm node() const noexcept { return _node; }
    /// MPI_COMM_NULL if not every node has a member in this member's place.
    [[nodiscard]] MPI_Comm inter_node() const noexcept { return _inter_node; }
    /// As many as there are members on the smallest node.
    [[nodiscard]] int inter_node_comms() const noexcept { return _inter_node_comms; }
    [[nodiscard]] int rank_on_node() const noexcept { return _rank_on_node; }
    [[nodiscard]] int size_of_node() const noexcept { return _size_of_node; }

    /// Where a member of the communicator is.
    struct Position {
        int on_node;        ///< rank in its node()
        int in_inter_node;  ///< rank in its inter_node(); -1: it has none
        int node;           ///< the number that it passed
    };
    [[nodiscard]] Position position_of(int rank) const { return _positions[static_cast<std::size_t>(rank)]; }

    /// The rank, in this member's inter_node(), of the member on that node.
    [[nodiscard]] int in_inter_node_from(int node) const noexcept;
    [[nodiscard]] bool is_on(const int node) const noexcept { return node == _own_node; }

    /// Called before MPI goes down, which frees the rest itself.
    void give_up() noexcept;

  private:
    const Native& _native;
    const int _own_node;
    MPI_Comm _node = MPI_COMM_NULL, _inter_node = MPI_COMM_NULL;
    int _rank_on_node = 0, _size_of_node = 0, _inter_node_comms = 0;
    std::vector<Position> _positions;
};

}  // namespace awaken::AWAKEN_ABI
