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

/// What the members of a communicator know alike of their votes on large collectives (see coll/pipelined.h).
struct ChunkVotes {
    std::uint64_t chunk_bytes = 0;
    int nodes = 1;            ///< that the members are on
    std::uint64_t skip = 0;   ///< collectives that have no vote from now on
    std::uint64_t pause = 0;  ///< as many as were skipped before the last vote
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
    [[nodiscard]] coll::Team* team();
    /// The same for a call that must not wait for others: null as long as there was no collective that may.
    [[nodiscard]] coll::Team* known_team() const noexcept { return _team.get(); }
    /// A team of its own for one persistent collective, whose starts need not come in the same order on all members.
    /// Collective over the members, who all have a team already. Null in all of them when one cannot: it says
    /// `possible` = false, or has no shared memory left.
    [[nodiscard]] std::shared_ptr<coll::Team> make_persistent_team(bool possible);
    /// Null where members may run without the layer. The first call is collective.
    [[nodiscard]] ChunkVotes* chunk_votes();
    /// NCCL or RCCL, where the members have such votes and span nodes; else null.
    [[nodiscard]] CclAcross* ccl_across();
    /// Where the messages travel that are collectives on this communicator; MPI_COMM_NULL, on all members, when one has
    /// none. The first call is collective.
    [[nodiscard]] MPI_Comm messages();
    /// Node and column where the members all run the layer; null where there is nothing to be gained, the same on all
    /// of them. The first call is collective.
    [[nodiscard]] Levels* levels();
    /// The neighbourhood where there is a topology and the members all run the layer; null where the MPI's own
    /// collectives serve it, the same on all of them. The calls when the communicator is made, and of the first
    /// blocking collective, are collective themselves; nonblocking ones get null before, and where members are on other
    /// nodes.
    enum class EdgeUse : std::uint8_t { making, blocking, nonblocking };
    [[nodiscard]] const Edges* edges(EdgeUse use);

    void begin_to_leave() noexcept override;
    void give_up() noexcept override;

  private:
    [[nodiscard]] std::shared_ptr<coll::Team> new_team(bool possible);

    const MPI_Comm _communicator;
    CommunicatorRecord& _record;
    /// Set up by the first collective, which all members call.
    bool _team_tried = false;
    std::shared_ptr<coll::Team> _team;
    bool _levels_tried = false;
    std::unique_ptr<Levels> _levels;
    bool _edges_tried = false, _edges_on_node = false;
    std::unique_ptr<Edges> _edges;
    bool _messages_tried = false;
    std::unique_ptr<OwnCommunicator> _messages;
    bool _votes_tried = false;
    std::optional<ChunkVotes> _votes;
    std::unique_ptr<CclAcross> _across;
};

/// The same by communicator; null, or MPI_COMM_NULL, where the layer keeps no object either.
[[nodiscard]] inline coll::Team* team_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->team() : nullptr;
}
[[nodiscard]] inline coll::Team* known_team_of(const MPI_Comm communicator) {
    const CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->known_team() : nullptr;
}
[[nodiscard]] inline ChunkVotes* chunk_votes_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->chunk_votes() : nullptr;
}
[[nodiscard]] inline CclAcross* ccl_across_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->ccl_across() : nullptr;
}
[[nodiscard]] inline MPI_Comm messages_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->messages() : MPI_COMM_NULL;
}
[[nodiscard]] inline Levels* levels_of(const MPI_Comm communicator) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->levels() : nullptr;
}
[[nodiscard]] inline const Edges* edges_of(const MPI_Comm communicator, const CollectiveComm::EdgeUse use) {
    CollectiveComm* const object = CollectiveComm::of(communicator);
    return object != nullptr ? object->edges(use) : nullptr;
}

}  // namespace awaken::AWAKEN_ABI
