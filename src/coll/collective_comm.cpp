// SPDX-License-Identifier: Apache-2.0
#include "coll/collective_comm.h"

#include <algorithm>
#include <array>

#include "call/call.h"
#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

using Membership = NodePeers::Membership;

std::unique_ptr<CommunicatorObject> CollectiveComm::make(const MPI_Comm communicator, CommunicatorRecord& record) {
    return std::make_unique<CollectiveComm>(communicator, record);
}

CollectiveComm* CollectiveComm::of(const MPI_Comm communicator) {
    Layer& owner = layer();
    if (!owner.node_peers.knows_members()) {
        return nullptr;
    }
    const CommunicatorRecord* const record = owner.communicators.record_of(communicator);
    if (record == nullptr) {
        return nullptr;
    }
    constexpr auto kFamily = static_cast<std::size_t>(Communicators::Family::collectives);
    return static_cast<CollectiveComm*>(record->objects[kFamily].get());
}

void CollectiveComm::begin_to_leave() noexcept {
    if (_inter_node_ccl != nullptr) {
        _inter_node_ccl->begin_to_leave();
    }
}

void CollectiveComm::give_up() noexcept {
    if (_hierarchy != nullptr) {
        _hierarchy->give_up();
    }
    if (_neighbours != nullptr) {
        _neighbours->give_up();
    }
    if (_messages != nullptr) {
        _messages->give_up();
    }
    if (_inter_node_ccl != nullptr) {
        _inter_node_ccl->give_up();
    }
}

coll::NodeComm* CollectiveComm::node_comm() {
    if (!_node_comm_tried && layer().node_peers.joined()) {
        _node_comm_tried = true;
        // Whether the members try this depends on what all of them know alike.
        if (!_record.between && _record.indices.size() <= static_cast<std::size_t>(coll::kMostMembers) &&
            std::find(_record.indices.begin(), _record.indices.end(), -1) == _record.indices.end()) {
            _node_comm = new_node_comm(true);
        }
    }
    return _node_comm.get();
}

std::shared_ptr<coll::NodeComm> CollectiveComm::make_persistent_node_comm(const bool possible) {
    std::shared_ptr<coll::NodeComm> node_comm = new_node_comm(possible);
    if (node_comm != nullptr) {
        node_comm->do_without_library();
    }
    return node_comm;
}

std::shared_ptr<coll::NodeComm> CollectiveComm::new_node_comm(const bool possible) {
    Layer& owner = layer();
    const Native& native = owner.real;
    node::Segment& segment = *owner.node_peers.segment();
    int own = 0;
    native.Comm_rank(_communicator, &own);
    const auto size = static_cast<int>(_record.indices.size());
    constexpr std::uint64_t kNothing = ~std::uint64_t{0};
    std::unique_ptr<coll::ControlBlock> control_block =
        possible ? coll::ControlBlock::make(segment, size, own) : nullptr;
    struct Mine {
        std::uint64_t offset, choices;
    };
    const coll::Selection& selection = owner.collectives.selection;
    const Mine mine{control_block != nullptr ? control_block->own_offset() : kNothing, selection.hash()};
    std::vector<Mine> all(_record.indices.size());
    if (const int error = native.Allgather(&mine, 2, MPI_UINT64_T, all.data(), 2, MPI_UINT64_T, _communicator);
        error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    std::vector<std::uint64_t> offsets;
    std::string why_not;
    for (const Mine& each : all) {
        offsets.push_back(each.offset);
        if (each.offset == kNothing) {
            why_not = "a rank has no shared memory left";
        } else if (each.choices != mine.choices) {
            why_not = "AWAKEN_COLLECTIVES is not the same in all ranks";
        }
    }
    const int connected = why_not.empty() && control_block->connect(offsets) ? 1 : 0;
    if (why_not.empty()) {
        int all_connected = 0;
        native.Allreduce(&connected, &all_connected, 1, MPI_INT, MPI_MIN, _communicator);
        if (all_connected == 0) {
            why_not = "a rank cannot map the others' shared memory";
        }
    }
    if (!why_not.empty()) {
        owner.ledger.add_fallback("collectives", "no direct paths: " + why_not);
        return nullptr;
    }
    owner.collectives.any_node_comms.store(true, std::memory_order_relaxed);
    return std::make_shared<coll::NodeComm>(segment, std::move(control_block), _record.indices, selection,
                                            owner.node_peers.engine_word());
}

bool CollectiveComm::all_have_the_layer() const {
    NodePeers& peers = layer().node_peers;
    return _record.between ? peers.world_has_the_layer() && layer().communicators.are_all_of_world(_communicator)
                           : peers.membership_of(_communicator) != Membership::unknown;
}

Proposals* CollectiveComm::proposals() {
    if (_proposals_tried || !all_have_the_layer()) {
        _proposals_tried = true;
        return known_proposals();
    }
    _proposals_tried = true;
    Layer& owner = layer();
    const Native& native = owner.real;
    // The smallest of all members' values.
    using Values = std::array<std::uint64_t, 2>;
    const Values own{static_cast<std::uint64_t>(Layer::tuning().network_fragment_bytes),
                     owner.tracks_operations ? 1U : 0U};
    Values least{}, passed{};
    const auto reduce = [&](const Values& from, Values& to) {
        return native.Allreduce(from.data(), to.data(), 2, MPI_UINT64_T, MPI_MIN, _communicator) == MPI_SUCCESS;
    };
    Proposals made;
    made.between = _record.between;
    if (!reduce(own, least)) {
        return nullptr;
    }
    if (made.between) {
        // Each group got the other's values. Once more, it gets its own.
        if (!reduce(least, passed)) {
            return nullptr;
        }
        std::transform(least.begin(), least.end(), passed.begin(), least.begin(),
                       [](const std::uint64_t one, const std::uint64_t other) { return std::min(one, other); });
        made.nodes = 2;  // for all that the table tells apart
    } else {
        const int node = owner.node_peers.own_node();
        std::vector<int> nodes(_record.indices.size());
        if (native.Allgather(&node, 1, MPI_INT, nodes.data(), 1, MPI_INT, _communicator) != MPI_SUCCESS) {
            return nullptr;
        }
        std::sort(nodes.begin(), nodes.end());
        made.nodes = static_cast<int>(std::unique(nodes.begin(), nodes.end()) - nodes.begin());
    }
    made.chunk_bytes = least[0];
    made.all_can_track = least[1] != 0;
    owner.collectives.chunk_bytes.store(made.chunk_bytes, std::memory_order_relaxed);
    return &_proposals.emplace(made);
}

void CollectiveComm::saw_nonblocking(const coll::Kind kind, const bool on_device) noexcept {
    const auto bit = std::uint32_t{1} << static_cast<unsigned>(kind);
    _nonblocking_seen.called |= bit;
    _nonblocking_seen.only_device =
        on_device ? _nonblocking_seen.only_device | bit : _nonblocking_seen.only_device & ~bit;
}

Proposals* CollectiveComm::proposals_for_barrier() {
    if (_node_comm != nullptr || _nonblocking_seen.called == 0) {
        return nullptr;
    }
    Proposals* const known = proposals();
    const bool useful = known != nullptr && (_nonblocking_seen.called & ~known->nonblocking) != 0;
    return useful && known->barriers.is_over() ? known : nullptr;
}

std::optional<int> CollectiveComm::next_persistent_tag() {
    return ++_persistent <= greatest_tag() ? std::optional(_persistent) : std::nullopt;
}

InterNodeCcl* CollectiveComm::inter_node_ccl() {
    // When the communicator is revoked meanwhile, nothing ends the library's wait.
    if (_record.between || !_proposals || _proposals->nodes < 2 || layer().fault_tolerance.active()) {
        return nullptr;
    }
    if (_inter_node_ccl == nullptr) {
        _inter_node_ccl = std::make_unique<InterNodeCcl>(_communicator);
    }
    return _inter_node_ccl.get();
}

MPI_Comm CollectiveComm::messages() {
    if (!_messages_tried) {
        _messages_tried = true;
        const Native& native = layer().real;
        auto made = std::make_unique<OwnCommunicator>(native, _communicator);
        std::uint32_t unusable = 0;
        if (or_of_all(_communicator, _record.between, made->handle() == MPI_COMM_NULL ? 1 : 0, unusable) ==
                MPI_SUCCESS &&
            unusable == 0) {
            _messages = std::move(made);
        }
    }
    return _messages != nullptr ? _messages->handle() : MPI_COMM_NULL;
}

Hierarchy* CollectiveComm::hierarchy() {
    Layer& owner = layer();
    // The node's and the inter-node communicators would not be revoked together with this one.
    if (_record.between || !_proposals || _node_comm != nullptr || owner.fault_tolerance.active()) {
        return nullptr;
    }
    if (!_hierarchy_tried) {
        _hierarchy_tried = true;
        auto made = std::make_unique<Hierarchy>(owner.real, _communicator, owner.node_peers.own_node());
        if (made->usable()) {
            // A collective that a node's GPUs cannot do would be staged twice.
            bool reachable = made->size_of_node() == 1;
            if (!reachable) {
                CollectiveComm* const node = of(made->node());
                reachable = node != nullptr && node->node_comm() != nullptr;
            }
            const int reach = reachable ? 1 : 0;
            int all_reach = 0;
            owner.real.Allreduce(&reach, &all_reach, 1, MPI_INT, MPI_MIN, _communicator);
            if (all_reach != 0) {
                owner.collectives.inter_node_comms.store(made->inter_node_comms(), std::memory_order_relaxed);
                _hierarchy = std::move(made);
            }
        }
    }
    return _hierarchy.get();
}

TopologyNeighbours* CollectiveComm::neighbours(const NeighbourUse use) {
    const auto size = static_cast<int>(_record.indices.size());
    // Up to this size, a graph is checked for consistency before a program has used it.
    constexpr int kMostAsked = 4096;
    if (!_neighbours_tried && (use == NeighbourUse::blocking || (use == NeighbourUse::making && size <= kMostAsked))) {
        _neighbours_tried = true;
        Layer& owner = layer();
        const Native& native = owner.real;
        int topology = MPI_UNDEFINED;
        native.Topo_test(_communicator, &topology);
        const Membership membership = owner.node_peers.membership_of(_communicator);
        if (topology == MPI_UNDEFINED) {
            return nullptr;
        }
        const auto staged = [&owner](const char* const why) {
            owner.ledger.add_fallback("neighbourhood collectives", std::string("staged: ") + why);
            return nullptr;
        };
        if (membership == Membership::unknown) {
            return staged("some ranks of the communicator may run without Awaken");
        }
        if (use == NeighbourUse::making && !TopologyNeighbours::are_consistent(native, _communicator)) {
            return staged("some edges of the graph are known to one of their two ranks only");
        }
        // Messages go between nodes as well as on one. So the rows for one node count wherever the members are.
        const coll::Occasion occasion{.kind = coll::Kind::neighborhood, .ranks = size};
        const bool willing = owner.collectives.selection.choose(occasion) != coll::Algorithm::staged;
        auto made = std::make_unique<TopologyNeighbours>(native, _communicator, willing);
        if (made->usable()) {
            _neighbours = std::move(made);
        } else {
            return staged(willing ? "a rank could not make a communicator for them"
                                  : "the table of algorithms says so");
        }
    }
    const bool may_use = use != NeighbourUse::tracked || (_neighbours != nullptr && _neighbours->all_can_track());
    return may_use ? _neighbours.get() : nullptr;
}

}  // namespace awaken::AWAKEN_ABI
