// SPDX-License-Identifier: Apache-2.0
// Shared memory in which the members of a communicator tell each other what they pass to a collective, and how far they
// are with it.
//
// All members of the communicator are on one node. Each has a part of shared memory that only the member and its GPU
// write to. For each of the few collectives that may be under way at a time, the part holds a proposal, which says what
// the member passes, and two marks, which say how far it has come. No member decides on a path alone: each draws the
// decision from the proposals of all, by the same rule.
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

/// Collectives of one communicator that may be under way at a time. Further ones wait for their turn.
inline constexpr std::uint64_t kSlots = 16;

/// Identifies a member's memory, so that others recognise what they have mapped already.
struct Side {
    std::uint64_t allocation_id = 0;  ///< 0: no memory is needed, or the runtime gives no identity
    std::uint64_t allocation = 0;     ///< address of the allocation in the owner's process
    std::uint64_t offset = 0;         ///< of the first byte in the allocation
};

/// What a member says of its part in a collective. The member writes the rest before `number`.
struct alignas(128) Proposal {
    /// The collective's number, from 1 on in the order of the calls on the communicator. Written last.
    std::atomic<std::uint64_t> number;
    std::uint32_t flags;  ///< see NodeComm
    std::uint32_t code;   ///< of the reduction's type and operation; 0 if nothing is reduced
    std::uint64_t signature;
    std::uint64_t bytes;
    std::uint32_t kinds;   ///< see NodeComm::saw
    std::uint64_t device;  ///< identifies the GPU among all of the machine; 0: none
    Side send, receive;
};

/// How far a member has come with a collective.
struct alignas(64) Mark {
    /// The collective's number times four, plus an Outcome. The member's GPU may write it.
    std::atomic<std::uint64_t> value;
};

enum class Outcome : std::uint64_t {
    done = 0,
    failed = 1,
    revoked = 2  ///< this member knows that the communicator was revoked
};

[[nodiscard]] constexpr std::uint64_t mark_of(const std::uint64_t number, const Outcome outcome) noexcept {
    return number * 4 + static_cast<std::uint64_t>(outcome);
}

class ControlBlock {
  public:
    /// Takes this member's part of the node's shared memory. The communicator has `members` members. Null when there is
    /// no room; the member then has to say so in place of its offset.
    [[nodiscard]] static std::unique_ptr<ControlBlock> make(node::Segment& segment, int members, int own);
    /// The offset by which the others find this member's part.
    [[nodiscard]] std::uint64_t own_offset() const noexcept { return _parts.own_offset(); }
    /// Maps the others' parts, whose offsets are given by member. False when one cannot be mapped: this member may then
    /// use its own part only.
    [[nodiscard]] bool connect(std::span<const std::uint64_t> offsets) { return _parts.connect(offsets); }

    [[nodiscard]] int members() const noexcept { return _parts.members(); }
    [[nodiscard]] int own() const noexcept { return _parts.own(); }

    [[nodiscard]] Proposal& proposal(int member, std::uint64_t number) const noexcept;
    /// The number up to which this member is done with all collectives, in every sense: their slots may be used again.
    [[nodiscard]] std::atomic<std::uint64_t>& finished(int member) const noexcept;
    /// Says that this member has mapped all peers' memory. Used only when some of that memory is new to the
    /// communicator.
    [[nodiscard]] Mark& mapped(int member, std::uint64_t number) const noexcept;
    /// Says that this member has done its partition, and needs no other member's memory any more.
    [[nodiscard]] Mark& done(int member, std::uint64_t number) const noexcept;
    /// For the first use of NCCL or RCCL: member 0 says by invited() that the identifier is there, and each member by
    /// joined() that it has joined.
    [[nodiscard]] Mark& invited(int member, std::uint64_t number) const noexcept;
    [[nodiscard]] Mark& joined(int member, std::uint64_t number) const noexcept;
    [[nodiscard]] std::array<unsigned char, 128>& identifier(int member) const noexcept;
    /// The full location, for members that have to map the memory. Written before the proposal.
    [[nodiscard]] transfer::Location& send(int member, std::uint64_t number) const noexcept;
    [[nodiscard]] transfer::Location& receive(int member, std::uint64_t number) const noexcept;
    /// The offsets in bytes of the parts for and from each member: those in the send buffer, then those in the receive
    /// buffer. Only for collectives in which members may differ in that.
    [[nodiscard]] std::span<std::uint64_t> offsets(int member, std::uint64_t number) const noexcept;

    /// In stream order: says that this member's default stream has come to the collective. Its GPU writes that.
    [[nodiscard]] Mark& ready(int member, std::uint64_t number) const noexcept;
    /// In stream order: says that this member has queued its partition.
    [[nodiscard]] Mark& queued(int member, std::uint64_t number) const noexcept;
    /// In stream order: this member's CPU gives up its waits. Not in pinned memory, which a reset of the device frees.
    [[nodiscard]] Mark& let_go(int member, std::uint64_t number) const noexcept;

    /// A member's whole part. GPUs write the marks of their own member's, which has to be registered with the GPU
    /// runtime for that; in stream order they also read others'.
    [[nodiscard]] std::span<std::byte> memory_of(const int member) const noexcept { return _parts.memory_of(member); }

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
