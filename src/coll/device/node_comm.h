// SPDX-License-Identifier: Apache-2.0
// The members of a communicator that has all its members on this node. They agree on the path of each collective. When
// everything is device memory, they do the collective themselves.
//
// A collective is a CollectiveOp. When the work that its program gave to the GPU's default stream is over, each member
// proposes: it writes what it passes to the control block. When all proposals are there, each member draws the same
// conclusion from them. If the operation is ours, each member starts kernels for its partition (see plan.h). The
// kernels read and write the members' own buffers through IPC, and wait for nothing. Each member says when its
// partition is done. When all have said so, the collective is over. No kernel ever waits for another GPU. So no rank
// can hold up what a program waits for on its own GPU, and ranks may share a GPU.
//
// An operation never waits either: advance() does what can be done now. The operations of a communicator are decided
// one after the other, in the order of the calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "coll/device/ccl_group.h"
#include "coll/device/collective_op.h"
#include "coll/device/control_block.h"
#include "coll/device/engine.h"
#include "coll/device/plan.h"

namespace awaken::coll {

class NodeComm : public std::enable_shared_from_this<NodeComm> {
  public:
    /// @param processes  by member, its index in the segment.
    /// @param selection  the same in all members.
    /// @param engine     null as long as this process uses no GPU, and again when the runtime is about to go.
    NodeComm(node::Segment& segment, std::unique_ptr<ControlBlock> control_block, std::vector<int> processes,
             const Selection& selection, const std::atomic<Engine*>& engine);
    ~NodeComm();
    NodeComm(const NodeComm&) = delete;
    NodeComm& operator=(const NodeComm&) = delete;

    /// The next collective of the communicator. All members make these calls in the same order.
    [[nodiscard]] std::unique_ptr<CollectiveOp> begin(const Arguments& arguments);

    /// Sets what this member has seen of a kind of collective.
    ///
    /// Once the members find that not all of them pass device memory, they cannot give a nonblocking collective to the
    /// MPI any more: a rank may be waiting in the MPI by then. So the members agree beforehand on kinds that they do
    /// here. From then on all of them do these here, also with host memory. Each member tells what it has seen of a
    /// kind with its next blocking collective. When all members have seen device memory only, the kind is agreed on.
    void saw(Kind kind, bool only_device) noexcept;
    [[nodiscard]] bool agreed(Kind kind) const noexcept;
    [[nodiscard]] const Selection& selection() const noexcept { return _selection; }
    /// Before the members agree on a kind, they have to know that they reach each other's memory. True once, in all
    /// members, after the blocking collective that made the attempt worth its cost. All members then do an allgather of
    /// a few bytes of device memory.
    [[nodiscard]] bool must_try_reach() noexcept { return std::exchange(_must_try, false); }
    /// Whether that attempt succeeded; the same in all members.
    [[nodiscard]] bool reachable() const noexcept { return _reachable; }

    /// Does without NCCL and RCCL from now on, since each node communicator would make a communicator of its own.
    void do_without_library() noexcept { _may_use_library = false; }

    [[nodiscard]] int members() const noexcept { return _control_block->members(); }
    [[nodiscard]] int own() const noexcept { return _control_block->own(); }

  private:
    friend class CollectiveOp;
    [[nodiscard]] bool is_known(int member, const Side& side) const noexcept;
    void learn(int member, const Side& side);
    void no_more_to_decide(std::uint64_t number);
    /// Whether kernels may write to this member's part of the control block.
    [[nodiscard]] bool registered(Engine& engine);
    /// Whether they may read all members' parts, too.
    [[nodiscard]] bool all_registered(Engine& engine);

    node::Segment& _segment;
    std::unique_ptr<ControlBlock> _control_block;
    const std::vector<int> _processes;
    const Selection& _selection;
    const std::atomic<Engine*>& _engine;
    std::mutex _mutex;
    std::uint64_t _number = 0;  ///< of the last operation
    /// Operations up to this one need no decision any more.
    std::atomic<std::uint64_t> _decided{0};
    std::set<std::uint64_t> _decided_early;          ///< later ones that need no decision, since they failed
    std::atomic<std::uint64_t> _finished_by_all{0};  ///< as far as this member has looked
    std::uint64_t _finished_here = 0;
    std::set<std::uint64_t> _finished_early;  ///< own operations that overtook another
    CclGroup _ccl;
    std::atomic<std::uint32_t> _seen{0};    ///< by kind, as a bit
    std::atomic<std::uint32_t> _agreed{0};  ///< the same in all members between two blocking collectives
    bool _may_use_library = true;
    bool _must_try = false;
    bool _tried = false;
    bool _reachable = false;  ///< all members could map each other's memory
    /// By member, the identities of allocations that all members could map. All members see the same proposals in the
    /// same order, so all know the same ones.
    struct Allocations {
        std::unordered_set<std::uint64_t> identities;
        std::deque<std::uint64_t> in_order;  ///< oldest first
    };
    std::vector<Allocations> _known;
    bool _registered = false;
    bool _register_tried = false;
    bool _all_registered = false;
    bool _all_tried = false;
};

}  // namespace awaken::coll
