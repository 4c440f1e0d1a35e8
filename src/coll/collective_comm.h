// The objects that the first collectives on a communicator make, and that later ones use.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "call/communicators.h"
#include "coll/device/node_comm.h"
#include "coll/hierarchical.h"
#include "coll/inter_node_ccl.h"
#include "coll/own_communicator.h"
#include "coll/topology_neighbours.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// What the members of a communicator know alike about their proposals on large collectives (see coll/pipelined.h).
struct PipelineProposals {
    std::uint64_t chunk_bytes = 0;
    int nodes = 1;            ///< the nodes that the members are on
    std::uint64_t skip = 0;   ///< collectives without a proposal from now on
    std::uint64_t pause = 0;  ///< collectives that were skipped before the last proposal
    /// The same for collectives whose parts vary (see coll/point_to_point.h).
    std::uint64_t varying_skip = 0, varying_pause = 0;
};

class CollectiveComm final : public CommunicatorObject {
  public:
    CollectiveComm(MPI_Comm communicator, CommunicatorRecord& record) : _communicator(communicator), _record(record) {}

    /// The object of this communicator. Null where the layer keeps none: MPI is not up, or the layer does not know the
    /// members.
    [[nodiscard]] static CollectiveComm* of(MPI_Comm communicator);
    /// For Communicators::set_family().
    [[nodiscard]] static std::unique_ptr<CommunicatorObject> make(MPI_Comm communicator, CommunicatorRecord& record);

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
    [[nodiscard]] PipelineProposals* pipeline_proposals();
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
    /// first blocking collective. Nonblocking collectives get null before these, and also if members are on other
    /// nodes.
    enum class NeighbourUse : std::uint8_t { making, blocking, nonblocking };
    [[nodiscard]] const TopologyNeighbours* neighbours(NeighbourUse use);

    void begin_to_leave() noexcept override;
    void give_up() noexcept override;

  private:
    [[nodiscard]] std::shared_ptr<coll::NodeComm> new_node_comm(bool possible);

    const MPI_Comm _communicator;
    CommunicatorRecord& _record;
    /// The first collective, which all members call, sets these up.
    bool _node_comm_tried = false;
    std::shared_ptr<coll::NodeComm> _node_comm;
    bool _hierarchy_tried = false;
    std::unique_ptr<Hierarchy> _hierarchy;
    bool _neighbours_tried = false, _neighbours_on_node = false;
    std::unique_ptr<TopologyNeighbours> _neighbours;
    bool _messages_tried = false;
    std::unique_ptr<OwnCommunicator> _messages;
    bool _proposals_tried = false;
    std::optional<PipelineProposals> _proposals;
    std::unique_ptr<InterNodeCcl> _inter_node_ccl;
};

/// The same by communicator. Null, or MPI_COMM_NULL, also where the layer keeps no object.
[[nodiscard]] inline coll::NodeComm* node_comm_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->node_comm() : nullptr;
}
[[nodiscard]] inline coll::NodeComm* known_node_comm_of(const MPI_Comm communicator) {
    const CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->known_node_comm() : nullptr;
}
[[nodiscard]] inline PipelineProposals* pipeline_proposals_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->pipeline_proposals() : nullptr;
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
[[nodiscard]] inline const TopologyNeighbours* topology_neighbours_of(const MPI_Comm communicator,
                                                                      const CollectiveComm::NeighbourUse use) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->neighbours(use) : nullptr;
}

}  // namespace awaken::AWAKEN_ABI
