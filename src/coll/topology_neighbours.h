// SPDX-License-Identifier: Apache-2.0
// The neighbourhood of a communicator with a topology. What a neighbourhood collective moves along an edge is a message
// like any other (see messages.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "coll/messages.h"

namespace awaken::AWAKEN_ABI {

/// The neighbours that this process exchanges with on a communicator.
class TopologyNeighbours {
  public:
    /// Whether both ends of each edge know it. If one does not, the messages would wait for ever. Collective over the
    /// communicator, and the same on all members. Costs a message to each neighbour.
    [[nodiscard]] static bool are_consistent(const Native& native, MPI_Comm comm);

    /// Collective over the communicator. Not usable() when one of the members is not `willing`.
    TopologyNeighbours(const Native& native, MPI_Comm comm, bool willing);

    /// The same on all members.
    [[nodiscard]] bool usable() const noexcept { return _usable; }
    /// Whether all members complete nonblocking operations of the layer.
    [[nodiscard]] bool all_can_track() const noexcept { return _all_can_track; }
    /// What is to be added to the tags of the next persistent collective. All members initialise these in the same
    /// order. Nothing, on all members: there are no such tags left.
    [[nodiscard]] std::optional<int> next_persistent_tags();
    /// The communicator for the messages.
    [[nodiscard]] MPI_Comm comm() const noexcept { return _comm.handle(); }
    /// By place in the send buffer and in the receive buffer. All receives are begun first, in the order of the places,
    /// then all sends. Several edges between two processes match in that order.
    [[nodiscard]] const std::vector<MessageEnd>& destinations() const noexcept { return _destinations; }
    [[nodiscard]] const std::vector<MessageEnd>& sources() const noexcept { return _sources; }

    /// Called before MPI goes down, which frees the communicator itself.
    void give_up() noexcept { _comm.give_up(); }

  private:
    OwnCommunicator _comm;
    bool _usable = false, _all_can_track = false;
    std::int64_t _tags = 0;        ///< that a collective needs, on the member that needs most
    std::int64_t _persistent = 0;  ///< collectives so far
    std::vector<MessageEnd> _destinations, _sources;
};

/// The numbers of a process's neighbours.
struct NeighbourCounts {
    int sources = 0;
    int destinations = 0;
};
[[nodiscard]] NeighbourCounts neighbours_of(const Native& native, MPI_Comm comm);

}  // namespace awaken::AWAKEN_ABI
