// A communicator that spans nodes, as two levels: the members of a node, and the inter-node communicators of those that
// have the same place on each node. What a node's GPUs can do among themselves is done first; between the nodes, each
// inter-node communicator moves its share.
#pragma once

#include <memory>
#include <vector>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

class Hierarchy {
  public:
    /// Collective over the communicator, whose members of a node all pass the same number, and those of other nodes
    /// another one. Check usable() before anything else.
    Hierarchy(const Native& native, MPI_Comm comm, int node);
    ~Hierarchy();
    Hierarchy(const Hierarchy&) = delete;
    Hierarchy& operator=(const Hierarchy&) = delete;

    /// False: the communicators were not to be had, or no node has more than one member. The same on all members.
    [[nodiscard]] bool usable() const noexcept { return _inter_node_comms > 0; }
    [[nodiscard]] MPI_Comm node() const noexcept { return _node; }
    /// MPI_COMM_NULL where this member's place is one that not every node has.
    [[nodiscard]] MPI_Comm inter_node() const noexcept { return _inter_node; }
    /// As many as the smallest node has members.
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

    /// The rank in this member's inter_node() of the one on that node.
    [[nodiscard]] int in_inter_node_from(int node) const noexcept;
    [[nodiscard]] bool is_on(const int node) const noexcept { return node == _own_node; }

    /// Before MPI goes down: it frees what is left itself.
    void give_up() noexcept;

  private:
    const Native& _native;
    const int _own_node;
    MPI_Comm _node = MPI_COMM_NULL, _inter_node = MPI_COMM_NULL;
    int _rank_on_node = 0, _size_of_node = 0, _inter_node_comms = 0;
    std::vector<Position> _positions;
};

}  // namespace awaken::AWAKEN_ABI
