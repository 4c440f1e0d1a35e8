// SPDX-License-Identifier: Apache-2.0
// The objects that the first collectives on a communicator make, and that later ones use.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "call/communicators.h"
#include "call/layer.h"
#include "coll/agreement.h"
#include "coll/device/node_comm.h"
#include "coll/hierarchical.h"
#include "coll/inter_node_ccl.h"
#include "coll/own_communicator.h"
#include "coll/topology_neighbours.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

class CollectiveComm final : public CommunicatorObject {
  public:
    CollectiveComm(MPI_Comm communicator, CommunicatorRecord& record) : _communicator(communicator), _record(record) {}

    /// The object of this communicator. Null where the layer keeps none: MPI is not up, or the layer does not know the
    /// members.
    [[nodiscard]] static CollectiveComm* of(MPI_Comm communicator);
    /// For Communicators::set_family().
    [[nodiscard]] static std::unique_ptr<CommunicatorObject> make(MPI_Comm communicator, CommunicatorRecord& record);

    /// An intercommunicator.
    [[nodiscard]] bool is_between() const noexcept { return _record.between; }
    /// The node communicator by which the members do collectives themselves. Null if they are not all on this node. The
    /// first call is collective.
    [[nodiscard]] coll::NodeComm* node_comm();
    /// The same for a call that must not wait for others. Null until a collective that may wait has made the node
    /// communicator.
    [[nodiscard]] coll::NodeComm* known_node_comm() const noexcept { return _node_comm.get(); }
    /// A separate node communicator for one persistent collective, since members may make its starts in different
    /// orders. Collective over the members, who all have a node communicator already. Null in all of them when one
    /// member passes `possible` = false, or has no shared memory left.
    [[nodiscard]] std::shared_ptr<coll::NodeComm> make_persistent_node_comm(bool possible);
    /// Null if members may run without the layer. The first call is collective.
    [[nodiscard]] Proposals* proposals();
    /// The same for a call that must not wait for others. Null until a collective that may wait has made them.
    [[nodiscard]] Proposals* known_proposals() noexcept { return _proposals ? &*_proposals : nullptr; }
    /// What this process has seen of nonblocking exchanges that are not agreed on. It tells the others in a barrier.
    void saw_nonblocking(coll::Kind kind, bool on_device) noexcept;
    [[nodiscard]] const NonblockingSeen& nonblocking_seen() const noexcept { return _nonblocking_seen; }
    /// If the next barrier is to be one in which the members agree on nonblocking collectives; else null. Collective.
    [[nodiscard]] Proposals* proposals_for_barrier();
    /// A tag, on messages(), for the next persistent collective. All members initialise these in the same order.
    /// Nothing, on all members: there is none left.
    [[nodiscard]] std::optional<int> next_persistent_tag();
    /// NCCL or RCCL, if the members make proposals and span nodes; else null.
    [[nodiscard]] InterNodeCcl* inter_node_ccl();
    /// The communicator for messages that make up the collectives on this one. MPI_COMM_NULL, on all members, when one
    /// of them could not get it. The first call is collective.
    [[nodiscard]] MPI_Comm messages();
    /// The node's and the inter-node communicators, if all members run the layer. Null if nothing is to be gained, the
    /// same on all members. The first call is collective.
    [[nodiscard]] Hierarchy* hierarchy();
    /// The neighbourhood, if there is a topology and all members run the layer. Null if the MPI's own collectives serve
    /// it, the same on all members. Two calls are collective: the one when the communicator is made, and that of the
    /// first blocking collective. Others get null before these, and also if a member does not track operations.
    enum class NeighbourUse : std::uint8_t { making, blocking, tracked };
    [[nodiscard]] TopologyNeighbours* neighbours(NeighbourUse use);

    void begin_to_leave() noexcept override;
    void give_up() noexcept override;

  private:
    [[nodiscard]] std::shared_ptr<coll::NodeComm> new_node_comm(bool possible);
    [[nodiscard]] bool all_have_the_layer() const;

    const MPI_Comm _communicator;
    CommunicatorRecord& _record;
    /// The first collective, which all members call, sets these up.
    bool _node_comm_tried = false;
    std::shared_ptr<coll::NodeComm> _node_comm;
    bool _hierarchy_tried = false;
    std::unique_ptr<Hierarchy> _hierarchy;
    bool _neighbours_tried = false;
    std::unique_ptr<TopologyNeighbours> _neighbours;
    bool _messages_tried = false;
    std::unique_ptr<OwnCommunicator> _messages;
    bool _proposals_tried = false;
    std::optional<Proposals> _proposals;
    NonblockingSeen _nonblocking_seen;
    int _persistent = 0;  ///< persistent collectives so far that are messages
    std::unique_ptr<InterNodeCcl> _inter_node_ccl;
};

/// The same by communicator. Null, or MPI_COMM_NULL, also where the layer keeps no object.
[[nodiscard]] inline coll::NodeComm* node_comm_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->node_comm() : nullptr;
}
[[nodiscard]] inline coll::NodeComm* known_node_comm_of(const MPI_Comm communicator) {
    const CollectiveComm* const object = layer().tracks_operations ? CollectiveComm::of(communicator) : nullptr;
    return object != nullptr ? object->known_node_comm() : nullptr;
}
[[nodiscard]] inline Proposals* proposals_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->proposals() : nullptr;
}
[[nodiscard]] inline InterNodeCcl* inter_node_ccl_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->inter_node_ccl() : nullptr;
}
[[nodiscard]] inline MPI_Comm messages_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->messages() : MPI_COMM_NULL;
}
[[nodiscard]] inline Hierarchy* hierarchy_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->hierarchy() : nullptr;
}
[[nodiscard]] inline TopologyNeighbours* topology_neighbours_of(const MPI_Comm communicator,
                                                                const CollectiveComm::NeighbourUse use) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->neighbours(use) : nullptr;
}

}  // namespace awaken::AWAKEN_ABI
