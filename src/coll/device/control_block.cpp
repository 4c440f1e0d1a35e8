// SPDX-License-Identifier: Apache-2.0
#include "coll/device/control_block.h"

#include <utility>

#include "base/round_up.h"

namespace awaken::coll {

using transfer::Location;

namespace {

constexpr std::size_t kLine = 128;

// A slot: proposal, seven marks, two locations, offsets.
constexpr std::size_t kMappedAt = sizeof(Proposal);
constexpr std::size_t kQueuedAt = kMappedAt + sizeof(Mark);
constexpr std::size_t kDoneAt = kMappedAt + kLine;
constexpr std::size_t kReadyAt = kDoneAt + sizeof(Mark);
constexpr std::size_t kInvitedAt = kDoneAt + kLine;
constexpr std::size_t kJoinedAt = kInvitedAt + sizeof(Mark);
constexpr std::size_t kLetGoAt = kInvitedAt + kLine;
constexpr std::size_t kSendAt = kLetGoAt + sizeof(Mark);
constexpr std::size_t kReceiveAt = kSendAt + round_up(sizeof(Location), 8);
constexpr std::size_t kOffsetsAt = kReceiveAt + round_up(sizeof(Location), 8);

}  // namespace

static_assert(sizeof(Proposal) == kLine, "the processor fetches lines in pairs");

ControlBlock::ControlBlock(node::Segment& segment, const int members, const int own)
    : _slot_bytes(round_up(kOffsetsAt + 2 * static_cast<std::size_t>(members) * sizeof(std::uint64_t), kLine)),
      _parts(segment, members, own, round_up(sizeof(Head), kLine) + kSlots * _slot_bytes) {}

std::unique_ptr<ControlBlock> ControlBlock::make(node::Segment& segment, const int members, const int own) {
    std::unique_ptr<ControlBlock> control_block(new ControlBlock(segment, members, own));
    // The memory begins filled with zeros, which is what it has to hold: no collective has the number 0.
    return control_block->_parts.make_own() ? std::move(control_block) : nullptr;
}

std::byte* ControlBlock::at(const int member, const std::uint64_t number) const noexcept {
    return _parts.at(member) + round_up(sizeof(Head), kLine) + number % kSlots * _slot_bytes;
}

Proposal& ControlBlock::proposal(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Proposal*>(at(member, number));
}

std::atomic<std::uint64_t>& ControlBlock::finished(const int member) const noexcept {
    return reinterpret_cast<Head*>(_parts.at(member))->finished;
}

Mark& ControlBlock::mapped(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Mark*>(at(member, number) + kMappedAt);
}

Mark& ControlBlock::done(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Mark*>(at(member, number) + kDoneAt);
}

Mark& ControlBlock::ready(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Mark*>(at(member, number) + kReadyAt);
}

Mark& ControlBlock::queued(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Mark*>(at(member, number) + kQueuedAt);
}

Mark& ControlBlock::let_go(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Mark*>(at(member, number) + kLetGoAt);
}

Mark& ControlBlock::invited(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Mark*>(at(member, number) + kInvitedAt);
}

Mark& ControlBlock::joined(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Mark*>(at(member, number) + kJoinedAt);
}

std::array<unsigned char, 128>& ControlBlock::identifier(const int member) const noexcept {
    return reinterpret_cast<Head*>(_parts.at(member))->identifier;
}

Location& ControlBlock::send(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Location*>(at(member, number) + kSendAt);
}

Location& ControlBlock::receive(const int member, const std::uint64_t number) const noexcept {
    return *reinterpret_cast<Location*>(at(member, number) + kReceiveAt);
}

std::span<std::uint64_t> ControlBlock::offsets(const int member, const std::uint64_t number) const noexcept {
    return {reinterpret_cast<std::uint64_t*>(at(member, number) + kOffsetsAt),
            2 * static_cast<std::size_t>(_parts.members())};
}

}  // namespace awaken::coll
