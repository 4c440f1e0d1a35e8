// The neighbourhood of a communicator with a topology: what a neighbourhood collective moves along an edge is a message
// like any other (see messages.h).
#pragma once

#include <vector>

#include "coll/messages.h"

namespace awaken::AWAKEN_ABI {

/// Who exchanges with whom on a communicator.
class TopologyNeighbours {
  public:
    /// Whether each edge is known at both of its ends, without which the following would wait for ever. Collective over
    /// the communicator, and the same on all members; costs a message to each.
    [[nodiscard]] static bool are_consistent(const Native& native, MPI_Comm comm);

    /// Collective over the communicator. Not usable() when one of the members is not `willing`.
    TopologyNeighbours(const Native& native, MPI_Comm comm, bool willing);

    /// The same on all members.
    [[nodiscard]] bool usable() const noexcept { return _usable; }
    /// Where the messages travel.
    [[nodiscard]] MPI_Comm comm() const noexcept { return _comm.handle(); }
    /// By place in the send buffer and in the receive buffer. All receives are begun first, in the order of the places,
    /// then all sends: several edges between two processes match in that order.
    [[nodiscard]] const std::vector<MessageEnd>& destinations() const noexcept { return _destinations; }
    [[nodiscard]] const std::vector<MessageEnd>& sources() const noexcept { return _sources; }

    /// Before MPI goes down: it frees what is left itself.
    void give_up() noexcept { _comm.give_up(); }

  private:
    OwnCommunicator _comm;
    bool _usable = false;
    std::vector<MessageEnd> _destinations, _sources;
};

/// How many neighbours a process has.
struct NeighbourCounts {
    int sources = 0;
    int destinations = 0;
};
[[nodiscard]] NeighbourCounts neighbours_of(const Native& native, MPI_Comm comm);

}  // namespace awaken::AWAKEN_ABI
