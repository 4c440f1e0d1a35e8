// Where the members of a communicator tell each other what they pass to a collective, and how far they are with it.
//
// All members of the communicator are on one node. Each has a part of shared memory that only it writes to (and its
// GPU): for each of the few collectives that may be under way at a time a proposal, which says what the member passes,
// and two marks, which say how far it has come. Nobody decides on a path alone: a decision is made from the proposals
// of all, by the same rule in every member.
//
// Knows no MPI. The members make their parts known to each other by other means, once (see own_offset()).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "node/member_blocks.h"
#include "transfer/location.h"

namespace awaken::coll {

/// Collectives of one communicator that may be under way at a time; more wait for their turn.
inline constexpr std::uint64_t kSlots = 16;

/// Memory of a member, as far as others need it to recognise what they have mapped already.
struct Side {
    std::uint64_t allocation_id = 0;  ///< 0: none is needed, or the runtime gives none
    std::uint64_t allocation = 0;     ///< address of the allocation in its owner
    std::uint64_t offset = 0;         ///< of the first byte in the allocation
};

/// What a member says of its part in a collective. Written by it before `number` says so.
struct alignas(128) Proposal {
    /// Of the collective, from 1 on in the order of the calls on the communicator. Written last.
    std::atomic<std::uint64_t> number;
    std::uint32_t flags;  ///< see NodeComm
    std::uint32_t code;   ///< of the reduction's type and operation; 0 where nothing is reduced
    std::uint64_t signature;
    std::uint64_t bytes;
    std::uint32_t kinds;   ///< see NodeComm::saw
    std::uint64_t device;  ///< names the GPU among all of the machine; 0: none
    Side send, receive;
};

/// How far a member has come with a collective.
struct alignas(64) Mark {
    /// The collective's number times four, and an Outcome. May be written by the member's GPU.
    std::atomic<std::uint64_t> value;
};

enum class Outcome : std::uint64_t {
    done = 0,
    failed = 1,
    revoked = 2  ///< the communicator was, as this member knows
};

[[nodiscard]] constexpr std::uint64_t mark_of(const std::uint64_t number, const Outcome outcome) noexcept {
    return number * 4 + static_cast<std::uint64_t>(outcome);
}

class ControlBlock {
  public:
    /// Takes this member's part of the node's shared memory. `members` of the communicator. Nothing when there is no
    /// room; the member then has to say so where it would have told its offset.
    [[nodiscard]] static std::unique_ptr<ControlBlock> make(node::Segment& segment, int members, int own);
    /// What the others need to find this member's part.
    [[nodiscard]] std::uint64_t own_offset() const noexcept { return _parts.own_offset(); }
    /// Maps the others' parts, whose offsets are given by member. False when one cannot be mapped: then only this
    /// member's own part may be used.
    [[nodiscard]] bool connect(std::span<const std::uint64_t> offsets) { return _parts.connect(offsets); }

    [[nodiscard]] int members() const noexcept { return _parts.members(); }
    [[nodiscard]] int own() const noexcept { return _parts.own(); }

    [[nodiscard]] Proposal& proposal(int member, std::uint64_t number) const noexcept;
    /// This member is done with all collectives up to this number, in every sense: their slots may be used again.
    [[nodiscard]] std::atomic<std::uint64_t>& finished(int member) const noexcept;
    /// All peers' memory is mapped; only used when some of it is new to the communicator.
    [[nodiscard]] Mark& mapped(int member, std::uint64_t number) const noexcept;
    /// This member has done its share, and needs nobody's memory any more.
    [[nodiscard]] Mark& done(int member, std::uint64_t number) const noexcept;
    /// Of the first use of NCCL or RCCL: the identifier is there (member 0 says so), this member has joined.
    [[nodiscard]] Mark& invited(int member, std::uint64_t number) const noexcept;
    [[nodiscard]] Mark& joined(int member, std::uint64_t number) const noexcept;
    [[nodiscard]] std::array<unsigned char, 128>& identifier(int member) const noexcept;
    /// In full, for those who have to map it. Written before the proposal.
    [[nodiscard]] transfer::Location& send(int member, std::uint64_t number) const noexcept;
    [[nodiscard]] transfer::Location& receive(int member, std::uint64_t number) const noexcept;
    /// Where in its buffers the parts for and of each member lie, in bytes: those of the send buffer, then those of the
    /// receive buffer. Only for collectives where members may differ in that.
    [[nodiscard]] std::span<std::uint64_t> offsets(int member, std::uint64_t number) const noexcept;

    /// This member's part as a whole: what has to be registered with the GPU runtime for its marks.
    [[nodiscard]] std::span<std::byte> own_memory() const noexcept { return _parts.own_memory(); }

  private:
    struct Head {
        std::atomic<std::uint64_t> finished;
        alignas(64) std::array<unsigned char, 128> identifier;
    };
    ControlBlock(node::Segment& segment, int members, int own);
    [[nodiscard]] std::byte* at(int member, std::uint64_t number) const noexcept;

    const std::size_t _slot_bytes;
    node::MemberBlocks _parts;
};

}  // namespace awaken::coll
