// What collectives keep of each communicator: the objects that its first collectives make.
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

/// What the members of a communicator know alike of their proposals on large collectives (see coll/pipelined.h).
struct PipelineProposals {
    std::uint64_t chunk_bytes = 0;
    int nodes = 1;            ///< that the members are on
    std::uint64_t skip = 0;   ///< collectives that have no proposal from now on
    std::uint64_t pause = 0;  ///< as many as were skipped before the last proposal
    /// The same of collectives whose parts vary (see coll/point_to_point.h).
    std::uint64_t varying_skip = 0, varying_pause = 0;
};

class CollectiveComm final : public CommunicatorObject {
  public:
    CollectiveComm(MPI_Comm communicator, CommunicatorRecord& record) : _communicator(communicator), _record(record) {}

    /// The object of this communicator; null where the layer keeps none: MPI is not up, or its members are not known.
    [[nodiscard]] static CollectiveComm* of(MPI_Comm communicator);
    /// For Communicators::set_family().
    [[nodiscard]] static std::unique_ptr<CommunicatorObject> make(MPI_Comm communicator, CommunicatorRecord& record);

    /// How the members do collectives themselves; null where they are not all on this node. The first call is
    /// collective.
    [[nodiscard]] coll::NodeComm* node_comm();
    /// The same for a call that must not wait for others: null as long as there was no collective that may.
    [[nodiscard]] coll::NodeComm* known_node_comm() const noexcept { return _node_comm.get(); }
    /// A node communicator of its own for one persistent collective, whose starts need not come in the same order on
    /// all members. Collective over the members, who all have a node communicator already. Null in all of them when one
    /// cannot: it says `possible` = false, or has no shared memory left.
    [[nodiscard]] std::shared_ptr<coll::NodeComm> make_persistent_node_comm(bool possible);
    /// Null where members may run without the layer. The first call is collective.
    [[nodiscard]] PipelineProposals* pipeline_proposals();
    /// NCCL or RCCL, where the members have such proposals and span nodes; else null.
    [[nodiscard]] InterNodeCcl* inter_node_ccl();
    /// Where the messages travel that are collectives on this communicator; MPI_COMM_NULL, on all members, when one has
    /// none. The first call is collective.
    [[nodiscard]] MPI_Comm messages();
    /// Node and inter-node communicator where the members all run the layer; null where there is nothing to be gained,
    /// the same on all of them. The first call is collective.
    [[nodiscard]] Hierarchy* hierarchy();
    /// The neighbourhood where there is a topology and the members all run the layer; null where the MPI's own
    /// collectives serve it, the same on all of them. The calls when the communicator is made, and of the first
    /// blocking collective, are collective themselves; nonblocking ones get null before, and where members are on other
    /// nodes.
    enum class NeighbourUse : std::uint8_t { making, blocking, nonblocking };
    [[nodiscard]] const TopologyNeighbours* neighbours(NeighbourUse use);

    void begin_to_leave() noexcept override;
    void give_up() noexcept override;

  private:
    [[nodiscard]] std::shared_ptr<coll::NodeComm> new_node_comm(bool possible);

    const MPI_Comm _communicator;
    CommunicatorRecord& _record;
    /// Set up by the first collective, which all members call.
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

/// The same by communicator; null, or MPI_COMM_NULL, where the layer keeps no object either.
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
