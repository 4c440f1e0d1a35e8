// SPDX-License-Identifier: Apache-2.0
// One collective between the GPUs of a node, as one member does it: propose, decide, work, say that it is over.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "coll/device/control_block.h"
#include "coll/device/engine.h"
#include "coll/device/plan.h"
#include "coll/device/selection.h"
#include "trace/trace.h"
#include "transfer/device_copies.h"
#include "transfer/exports.h"
#include "transfer/mappings.h"

namespace awaken::coll {

/// A member's send or receive buffer in one collective.
struct Buffer {
    enum class State : std::uint8_t {
        unused,  ///< not significant here, or of no bytes
        host,    ///< host memory
        device,  ///< memory that a GPU reaches: device or managed memory
        other    ///< device memory in an arrangement that the layer cannot move
    };
    /// A part of the program's memory that holds data.
    struct Segment {
        std::byte* address = nullptr;
        gpu::PointerInfo info;
        std::uint64_t at = 0;  ///< offset in a copy of the buffer
        std::uint64_t bytes = 0;
        std::shared_ptr<const transfer::TypedMemory> typed;  ///< the segment's bytes, if there are gaps between them
    };
    State state = State::unused;
    std::byte* address = nullptr;
    std::uint64_t bytes = 0;
    gpu::PointerInfo info;
    /// The data, which is all that copies move. Empty: all `bytes` bytes from `address` on.
    std::vector<Segment> pieces;
    /// The pieces do not lie at `address` as they do in the copy, so the copy takes part in the collective.
    bool gathered = false;
};

/// What a member passes to a collective.
struct Arguments : Collective {
    /// Type and operation, see kernels::code_of; 0 if the collective reduces nothing.
    std::uint32_t code = 0;
    std::uint64_t bytes = 0;                         ///< see Selection::choose
    bool varying = false;                            ///< parts differ by member; the spans below say how
    bool even = true;                                ///< reduce_scatter: all members' parts have the same size
    std::span<const std::uint64_t> bytes_from;       ///< alltoall, varying
    std::span<const std::uint64_t> send_offsets;     ///< by member, bytes; if the send buffer is in parts
    std::span<const std::uint64_t> receive_offsets;  ///< the same for the receive buffer
    Buffer send, receive;
    /// In place: offset in the receive buffer, in bytes, of the part that this member sends.
    std::uint64_t in_place_offset = 0;
    /// A nonblocking collective of a kind that all members have agreed on: they do it here, whatever the buffers are.
    bool compulsory = false;
    /// Nothing is done: the members only find out whether they would do this collective here.
    bool asks = false;
    /// The caller's call may return when the operation is queued in the default stream.
    bool may_be_in_order = false;
    /// Nothing else of this process can wait in the default stream before this operation does: one thread calls MPI.
    bool alone = false;
    /// A reduction that folds in the order of the ranks whatever the table says: NCCL and RCCL may not.
    bool in_rank_order = false;
    /// Why this member cannot take part in anything but the MPI's own collective. Null: it can. Static.
    const char* obstacle = nullptr;
};

class NodeComm;

class CollectiveOp final : public Engine::Remains {
  public:
    enum class Decision : std::uint8_t {
        open,    ///< not all members have proposed
        host,    ///< no member passes device memory: the MPI does it alone
        staged,  ///< the MPI does it, through host memory
        ours
    };

    ~CollectiveOp() override;
    CollectiveOp(const CollectiveOp&) = delete;
    CollectiveOp& operator=(const CollectiveOp&) = delete;

    /// Does what can be done now. True when nothing remains to be done here: the operation was ours and is over, or it
    /// is not ours, or it is in order. Throws Error when the operation failed; it is over then.
    [[nodiscard]] bool advance();
    /// The operation is a part of the default stream, and goes on there.
    [[nodiscard]] bool is_in_order() const noexcept { return _state == State::in_order; }
    /// Why it is not. Static text.
    [[nodiscard]] const char* why_not_in_order() const noexcept { return _why_not_in_order; }
    /// An operation in order is kept until it is over.
    static void keep(std::unique_ptr<CollectiveOp> op);
    [[nodiscard]] bool look() noexcept override;
    void let_go() noexcept override;
    /// The communicator was revoked: ends the operation here, and tells the other members.
    void revoke() noexcept;
    [[nodiscard]] Decision decision() const noexcept { return _decision; }
    /// Why the operation is staged.
    [[nodiscard]] const std::string& reason() const noexcept { return _reason; }
    /// Whether the layer copied some of this member's memory, because IPC cannot export it, or because it would be
    /// overwritten in place. Packing memory that has gaps does not count.
    [[nodiscard]] bool copied() const noexcept { return _copied; }
    /// How the operation was done, if it was ours.
    [[nodiscard]] Algorithm algorithm() const noexcept { return _algorithm; }
    [[nodiscard]] std::uint64_t number() const noexcept { return _number; }

  private:
    friend class NodeComm;
    enum class State : std::uint8_t {
        queued,
        copying_in,
        proposing,
        awaiting,     ///< for the default streams of members that have proposed early
        joining,      ///< the members make a communicator of NCCL or RCCL
        reaching,     ///< this member cannot map another's memory yet, while its GPU is busy
        mapping,      ///< the members map each other's memory
        taking_turn,  ///< one collective of the node at a time uses NCCL or RCCL
        working,
        copying_out,
        queueing,  ///< in order: others have not queued their partitions
        in_order,
        over
    };
    using Clock = std::chrono::steady_clock;

    /// What this member shows the others of a buffer.
    struct Shown {
        transfer::Location location;
        transfer::ExportedPool::Block block;  ///< a copy, if the buffer itself cannot be shown
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
    void finish_synchronous_calls();
    [[nodiscard]] const char* why_not_early();
    [[nodiscard]] bool all_are_ready();
    [[nodiscard]] bool all_have_queued();
    using MarkOf = Mark& (ControlBlock::*)(int, std::uint64_t) const noexcept;
    [[nodiscard]] const std::uint32_t* word_of(MarkOf mark, int member) const noexcept;
    void queue(bool tells, bool awaits, MarkOf mark);
    void go_on();
    void look_for_dead_members(const char* doing) const;
    void look_for_failed_members() const;
    void proposal();
    [[nodiscard]] bool all_have_proposed();
    void decide();
    [[nodiscard]] Algorithm choose(std::uint64_t bytes) const noexcept;
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
    void say_queued() noexcept;
    [[nodiscard]] bool work_is_done();
    void mark_done(Outcome outcome) noexcept;
    void finish() noexcept;
    /// Looks at the other members now and then, and throws Error when one is dead or has failed. True when it has
    /// looked.
    bool check_members(const char* doing);
    /// The same for a wait in which a member's word of this operation holds `number` so far.
    void check_members(const char* doing, std::uint64_t number);

    /// This process's engine; set when it is first needed.
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
    bool _reused = false;  ///< what this member sends lies in its receive buffer
    bool _early = false;   ///< this member proposes before its default stream is over
    bool _ordered = false;
    bool _told = false;      ///< the default stream was told to say "ready"
    bool _together = false;  ///< in order, and all members queue their kernels before anything else
    const char* _why_not_in_order = "it was not asked";
    int _device = -1;
    int _seen = 0;  ///< members up to this one have proposed, mapped or finished
    bool _marked = false;
    bool _revoked = false;
    bool _default_marked = false;    ///< the mark was made
    gpu::EventHandle _default_mark;  ///< behind what the program had given to the default stream when it made the call
    Shown _send, _receive;
    std::vector<transfer::DeviceCopies::Copy> _copies;
    std::vector<MappedPeer> _reached;
    Plan _plan;
    Engine::Work _work;
    trace::Stretch _traced;
    std::atomic<std::uint64_t>* _word =
        nullptr;  ///< the kernels write to this word if the control block is not registered
    Clock::time_point _looked{};
    Clock::time_point _queried{};
    Clock::time_point _asked{};  ///< when the GPU was last busy
    bool _busy = false;
    /// Copies, since the caller's arrays may be gone.
    std::vector<std::uint64_t> _bytes_from, _send_offsets, _receive_offsets;
};

}  // namespace awaken::coll
