// The members of a communicator, when all of them are on this node: how they agree on the path of a collective, and how
// they do it themselves when everything is device memory.
//
// A collective is a CollectiveOp. In each, every member proposes, by writing to the control block what it passes, when
// the work that its program gave to the GPU's default stream is over. When all proposals are there, each member draws
// the same conclusion from them. If the operation is ours, each starts kernels for its share (see plan.h), which read
// and write the members' own buffers through IPC and wait for nothing; each says when its share is done; when all have
// said so the collective is over. No kernel ever waits for another GPU, so nothing that the program waits for on its
// own GPU can be held up by another rank, and ranks may share a GPU.
//
// An operation never waits either: advance() does what can be done now. Operations of a communicator are decided one
// after the other, in the order of the calls.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "coll/device/ccl_group.h"
#include "coll/device/control_block.h"
#include "coll/device/engine.h"
#include "coll/device/plan.h"

namespace awaken::coll {

/// A member's send or receive buffer in one collective.
struct Buffer {
    enum class State : std::uint8_t {
        unused,  ///< not significant here, or of no bytes
        host,    ///< the CPU's
        device,  ///< what a GPU reaches: device or managed memory
        other    ///< device memory in an arrangement that nothing here can move
    };
    /// Part of the program's memory that is data.
    struct Segment {
        std::byte* address = nullptr;
        gpu::PointerInfo info;
        std::uint64_t at = 0;  ///< where it lies in a copy of the buffer
        std::uint64_t bytes = 0;
        std::shared_ptr<const transfer::TypedMemory> typed;  ///< its bytes, if they have gaps between them
    };
    State state = State::unused;
    std::byte* address = nullptr;
    std::uint64_t bytes = 0;
    gpu::PointerInfo info;
    /// The data, which is all that copies move; empty: all `bytes` bytes from `address` on.
    std::vector<Segment> pieces;
    /// The pieces do not lie at `address` as they do in the copy, so it is the copy that takes part.
    bool gathered = false;
};

/// What a member passes to a collective.
struct Arguments {
    Kind kind = Kind::allreduce;
    int root = 0;
    /// Type and operation, see kernels::code_of; 0 where nothing is reduced.
    std::uint32_t code = 0;
    std::uint64_t elements = 0;  ///< as in Shape
    std::uint64_t bytes = 0;     ///< see Selection::choose
    bool in_place = false;
    bool varying = false;  ///< parts differ by member: the spans below say how
    bool even = true;      ///< reduce_scatter: all members' parts have the same size
    std::uint64_t own_bytes = 0;
    std::uint64_t own_offset = 0;
    std::uint64_t block_bytes = 0;
    std::span<const std::uint64_t> bytes_from;       ///< alltoall, varying
    std::span<const std::uint64_t> send_offsets;     ///< by member, bytes; where the send buffer is in parts
    std::span<const std::uint64_t> receive_offsets;  ///< the same of the receive buffer
    Buffer send, receive;
    /// In place: the receive buffer's part that is sent begins so many bytes into it.
    std::uint64_t in_place_offset = 0;
    /// A nonblocking collective of a kind that all have agreed on: whatever the buffers are, it is done here.
    bool compulsory = false;
    /// Nothing is done: the members only find out whether this would be done here.
    bool asks = false;
    /// Why this member cannot take part in anything but the MPI's own collective; null: it can. Static.
    const char* obstacle = nullptr;
};

class NodeComm;

class CollectiveOp {
  public:
    enum class Decision : std::uint8_t {
        open,    ///< not all members have come
        host,    ///< nobody passes device memory: the MPI's alone
        staged,  ///< the MPI's, through host memory
        ours
    };

    ~CollectiveOp();
    CollectiveOp(const CollectiveOp&) = delete;
    CollectiveOp& operator=(const CollectiveOp&) = delete;

    /// Does what can be done now. True when nothing remains to be done here: the operation was ours and is over, or it
    /// is not ours. Throws Error when it failed; then it is over.
    [[nodiscard]] bool advance();
    /// The communicator was revoked: ends it here, and lets the others know.
    void revoke() noexcept;
    [[nodiscard]] Decision decision() const noexcept { return _decision; }
    /// Why it is staged.
    [[nodiscard]] const std::string& reason() const noexcept { return _reason; }
    /// Some of this member's memory had to be copied, because IPC cannot export it or in place it would be overwritten.
    /// Packing what has gaps is not counted as that.
    [[nodiscard]] bool copied() const noexcept { return _copied; }
    /// How it was done, if it was ours.
    [[nodiscard]] Algorithm algorithm() const noexcept { return _algorithm; }
    [[nodiscard]] std::uint64_t number() const noexcept { return _number; }

  private:
    friend class NodeComm;
    enum class State : std::uint8_t {
        queued,
        copying_in,
        proposing,
        joining,      ///< the members make a communicator of NCCL or RCCL
        reaching,     ///< this member cannot map another's memory yet, while its GPU is busy
        mapping,      ///< the members map each other's memory
        taking_turn,  ///< for that library, one collective of the node at a time
        working,
        copying_out,
        over
    };
    using Clock = std::chrono::steady_clock;

    /// How a buffer of this member is shown to the others.
    struct Shown {
        transfer::Location location;
        transfer::ExportedPool::Block block;  ///< a copy, where the buffer itself cannot be shown
        bool needed = false;
    };
    /// Another member's buffers, mapped here.
    struct MappedPeer {
        transfer::Mappings::Use send, receive;
        std::byte* send_address = nullptr;
        std::byte* receive_address = nullptr;
    };

    CollectiveOp(std::shared_ptr<NodeComm> owner, std::uint64_t number, const Arguments& arguments);
    bool step();
    void give_up() noexcept;
    [[nodiscard]] bool prepare();
    [[nodiscard]] bool asks_again() noexcept;
    [[nodiscard]] bool can_move(const Buffer& buffer) const;
    [[nodiscard]] bool show(const Buffer& buffer, Shown& shown, bool as_copy);
    void copy_in(const Buffer& buffer, const Shown& shown);
    void copy_out(const Buffer& buffer, const Shown& shown);
    void mark_default_stream();
    [[nodiscard]] bool default_stream_is_over();
    void look_for_dead_members(const char* doing) const;
    void look_for_failed_members() const;
    void proposal();
    [[nodiscard]] bool all_have_proposed();
    void decide();
    [[nodiscard]] Occasion occasion(std::uint64_t bytes) const noexcept;
    [[nodiscard]] bool may_use_ccl() const;
    [[nodiscard]] bool wants_ccl();
    void go_on_with_kernels();
    void take_part();
    [[nodiscard]] bool has_turn();
    void give_turn_back() noexcept;
    void start_ccl();
    void start(const std::function<Engine::Work(std::atomic<std::uint64_t>& word, std::uint64_t value)>& start);
    [[nodiscard]] bool must_map_all() const;
    [[nodiscard]] bool reach(int member, bool receives);
    [[nodiscard]] std::byte* address_of(const Operand& operand, std::uint64_t bytes);
    [[nodiscard]] std::uint64_t room_of(const Operand& operand) const noexcept;
    [[nodiscard]] bool all_have_mapped();
    void start_work();
    [[nodiscard]] bool work_is_done();
    void mark_done(Outcome outcome) noexcept;
    void finish() noexcept;
    /// Now and then: throws Error when a member is dead or has failed. True when it has looked.
    bool check_members(const char* doing);
    /// The same for a wait in which a member's word of this operation says `number` so far.
    void check_members(const char* doing, std::uint64_t number);

    /// This process's; set when it is needed first.
    Engine* _engine = nullptr;
    const std::shared_ptr<NodeComm> _owner;  ///< a communicator may be freed while its collectives are under way
    NodeComm& _node_comm;
    const std::uint64_t _number;
    Arguments _arguments;
    State _state = State::queued;
    Decision _decision = Decision::open;
    Algorithm _algorithm = Algorithm::staged;
    std::string _reason;
    bool _takes_part = false;  ///< this member's proposal says that it can
    bool _uses_library = false;
    bool _proposed = false;
    bool _copied = false;
    bool _has_turn = false;
    bool _reused = false;  ///< what this member sends lies where it receives
    int _device = -1;
    int _seen = 0;  ///< members up to this one have proposed, mapped or finished
    bool _marked = false;
    bool _revoked = false;
    bool _default_marked = false;    ///< the mark was made
    gpu::EventHandle _default_mark;  ///< behind what the program had given to the default stream when it called
    Shown _send, _receive;
    std::vector<transfer::DeviceCopies::Copy> _copies;
    std::vector<MappedPeer> _reached;
    Plan _plan;
    Engine::Work _work;
    trace::Stretch _traced;
    std::atomic<std::uint64_t>* _word =
        nullptr;  ///< what the kernels write to, where the control block is not registered
    Clock::time_point _looked{};
    Clock::time_point _queried{};
    Clock::time_point _asked{};  ///< when the GPU was last busy
    bool _busy = false;
    /// Kept by value: those of the caller may be gone.
    std::vector<std::uint64_t> _bytes_from, _send_offsets, _receive_offsets;
};

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

    /// The next collective of the communicator. All members call it in the same order.
    [[nodiscard]] std::unique_ptr<CollectiveOp> begin(const Arguments& arguments);

    /// Nonblocking collectives cannot be given to the MPI once it has turned out that not everybody passes device
    /// memory: a rank may be waiting in the MPI by then. So the members agree beforehand that those of a kind are done
    /// here, and then all do it, also with host memory. What a member has seen of a kind is told with its next blocking
    /// collective; when all have seen device memory only, the kind is agreed on from then on.
    void saw(Kind kind, bool only_device) noexcept;
    [[nodiscard]] bool agreed(Kind kind) const noexcept;
    [[nodiscard]] const Selection& selection() const noexcept { return _selection; }
    /// Before that, they have to know that they reach each other's memory. True once, in all members, after the
    /// blocking collective with which it became worth trying: all then do an allgather of a few bytes of device memory.
    [[nodiscard]] bool must_try_reach() noexcept { return std::exchange(_must_try, false); }
    /// What came of it; the same in all members.
    [[nodiscard]] bool reachable() const noexcept { return _reachable; }

    /// NCCL and RCCL are not used: each node communicator would make a communicator of its own.
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

    node::Segment& _segment;
    std::unique_ptr<ControlBlock> _control_block;
    const std::vector<int> _processes;
    const Selection& _selection;
    const std::atomic<Engine*>& _engine;
    std::mutex _mutex;
    std::uint64_t _number = 0;  ///< of the last operation
    /// Operations up to this one need no decision any more.
    std::atomic<std::uint64_t> _decided{0};
    std::set<std::uint64_t> _decided_early;          ///< those after it that need none, since they failed
    std::atomic<std::uint64_t> _finished_by_all{0};  ///< as far as it was looked
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
};

}  // namespace awaken::coll
