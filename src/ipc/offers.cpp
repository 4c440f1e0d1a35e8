// SPDX-License-Identifier: Apache-2.0
#include "ipc/offers.h"

#include <bit>

namespace awaken::ipc {

namespace {

constexpr std::uint64_t kLastGeneration = ~std::uint64_t{0} >> 8;

constexpr std::uint64_t word_of(const std::uint64_t generation, const OfferState state) noexcept {
    return generation << 8 | static_cast<std::uint64_t>(state);
}
constexpr std::uint64_t next_of(const std::uint64_t generation) noexcept {
    return (generation + 1) & kLastGeneration;
}
constexpr OfferState state_of(const std::uint64_t word) noexcept {
    return static_cast<OfferState>(word & 0xff);
}
constexpr std::uint64_t generation_of(const std::uint64_t word) noexcept {
    return word >> 8;
}

bool change(Slot& slot, const std::uint64_t generation, const OfferState from, const OfferState to) noexcept {
    std::uint64_t expected = word_of(generation, from);
    return slot.word.compare_exchange_strong(expected, word_of(generation, to), std::memory_order_acq_rel,
                                             std::memory_order_acquire);
}

/// Whether `bytes` bytes from the location's offset on lie within it.
bool is_within(const Location& location, const std::uint64_t bytes) noexcept {
    switch (location.kind) {
        case Location::Kind::device:
            return location.offset <= location.allocation_bytes && bytes <= location.allocation_bytes - location.offset;
        case Location::Kind::shared:
            return bytes <= location.allocation_bytes;
        case Location::Kind::ring:
            return location.chunk_bytes != 0 && location.allocation_bytes >= location.chunk_bytes;
        case Location::Kind::own:
            return location.address != 0;
        case Location::Kind::none:
            break;
    }
    return false;
}

/// The same for strided blocks. Every number may have any value.
bool is_within(const Location& location, const Strided& shape, const std::uint64_t bytes) noexcept {
    if (location.kind != Location::Kind::device || location.offset > location.allocation_bytes || shape.width <= 0) {
        return false;
    }
    std::int64_t total = shape.width, low = shape.offset, high = 0;
    bool sound = !__builtin_add_overflow(shape.offset, shape.width, &high);
    for (std::size_t i = 0; i < Strided::kLoops; ++i) {
        std::int64_t reach = 0;
        sound = sound && shape.counts[i] > 0 &&
                !__builtin_mul_overflow(shape.counts[i] - 1, shape.strides[i], &reach) &&
                !__builtin_mul_overflow(total, shape.counts[i], &total) &&
                !__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high);
    }
    return sound && low >= 0 && static_cast<std::uint64_t>(total) == bytes &&
           static_cast<std::uint64_t>(high) <= location.allocation_bytes - location.offset;
}

}  // namespace

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

bool lies_within(const Location& location, const Strided* const shape, const std::uint64_t bytes) noexcept {
    return shape != nullptr ? is_within(location, *shape, bytes) : is_within(location, bytes);
}

namespace {

/// Relaxed stores are enough for a receiver that claims: the word's release, in the caller, publishes them. A probe
/// reads without claiming, between two looks at the word (Inbox::size_of). It must not see a store of this use of the
/// slot under the word of the last one. On x86 no store overtakes the word's "free" before it. On Arm one may, but for
/// the fence.
void fill(Slot& slot, const std::int32_t receiver, const std::uint64_t bytes, const std::uint64_t available) noexcept {
    std::atomic_thread_fence(std::memory_order_release);
    slot.receiver.store(receiver, std::memory_order_relaxed);
    slot.bytes.store(bytes, std::memory_order_relaxed);
    slot.ready.store(kNotReady, std::memory_order_relaxed);
    slot.available.store(available, std::memory_order_relaxed);
    slot.lost.store(0, std::memory_order_relaxed);
    slot.strided.store(0, std::memory_order_relaxed);
    slot.kind.store(0, std::memory_order_relaxed);
    slot.queued.store(0, std::memory_order_relaxed);
}

void start(transfer::RingControl& ring) noexcept {
    ring.produced.store(0, std::memory_order_relaxed);
    ring.consumed.store(0, std::memory_order_relaxed);
    ring.failed.store(0, std::memory_order_relaxed);
}

}  // namespace

Outbox::Outbox(OfferTable& table) noexcept : _table(table) {
    for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
        _generations[slot] = generation_of(table.slots[slot].word.load(std::memory_order_acquire));
    }
}

std::optional<Ticket> Outbox::reserve(const SlotSet& avoided) noexcept {
    // Takes the lowest free slot, since its RTS is the shortest.
    for (std::uint32_t word = 0; word < _reserved.size(); ++word) {
        std::atomic<std::uint64_t>& bits = _reserved[word];
        const std::uint64_t never = avoided.word(word);
        for (std::uint64_t taken = bits.load(std::memory_order_relaxed) | never; ~taken != 0;) {
            const auto place = static_cast<std::uint32_t>(std::countr_one(taken));
            const std::uint32_t index = word * 64 + place;
            if (index >= kSlots) {
                break;
            }
            const std::uint64_t bit = std::uint64_t{1} << place;
            const std::uint64_t before = bits.fetch_or(bit, std::memory_order_acquire);
            taken = before | never;
            if ((before & bit) == 0) {
                _in_use.fetch_add(1, std::memory_order_relaxed);
                std::uint64_t& generation = _generations[index];
                generation = next_of(generation);
                return Ticket{index, generation};
            }
        }
    }
    return std::nullopt;
}

void Outbox::offer(const Ticket ticket, const std::int32_t receiver, const std::uint64_t bytes, const Location& source,
                   const Strided* const shape, const OfferKind kind) noexcept {
    Slot& where = slot(ticket);
    fill(where, receiver, bytes, 0);
    where.offset.store(source.offset, std::memory_order_relaxed);
    Location allocation = source;
    allocation.offset = 0;
    if (where.source != allocation) {
        where.source = allocation;
    }
    if (shape != nullptr) {
        where.shape = *shape;
        where.strided.store(1, std::memory_order_relaxed);
    }
    where.kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
    if (kind == OfferKind::repeated) {
        where.channel.phase.store(transport::ChannelState::none, std::memory_order_relaxed);
        where.channel.fetched.store(number_of(ticket.generation), std::memory_order_relaxed);
    }
    if (source.kind == Location::Kind::ring) {
        start(where.ring);
    }
    where.word.store(word_of(ticket.generation, OfferState::offered), std::memory_order_release);
}

void Outbox::offer_copy(const Ticket ticket, const std::int32_t receiver, const std::uint64_t bytes,
                        const Location& copy, const std::uint64_t available) noexcept {
    Slot& where = slot(ticket);
    fill(where, receiver, bytes, available);
    where.spill = copy;
    where.word.store(word_of(ticket.generation, OfferState::spilled), std::memory_order_release);
}

OfferState Outbox::state(const Ticket ticket) const noexcept {
    const std::uint64_t word = _table.slots[ticket.slot].word.load(std::memory_order_acquire);
    const OfferState state = state_of(word);
    return generation_of(word) == ticket.generation && state > OfferState::free && state <= OfferState::done
               ? state
               : OfferState::overwritten;
}

bool Outbox::is_queued(const Ticket ticket) const noexcept {
    return _table.slots[ticket.slot].queued.load(std::memory_order_acquire) == number_of(ticket.generation);
}

bool Outbox::spill(const Ticket ticket, const Location& spill) noexcept {
    Slot& where = slot(ticket);
    // Written before the exchange. The receiver looks at it only after it has seen "spilled".
    where.spill = spill;
    if (spill.kind == Location::Kind::ring) {
        start(where.ring);
    }
    where.available.store(where.bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
    // A receiver that has refused memory of a GPU cannot read a copy in such memory either.
    return change(where, ticket.generation, OfferState::offered, OfferState::spilled) ||
           (spill.kind != Location::Kind::device &&
            change(where, ticket.generation, OfferState::refused, OfferState::spilled));
}

void Outbox::set_available(const Ticket ticket, const std::uint64_t available, const bool lost) noexcept {
    Slot& where = slot(ticket);
    where.available.store(available, std::memory_order_release);
    if (lost) {
        where.lost.store(1, std::memory_order_release);
    }
}

void Outbox::release(const Ticket ticket) noexcept {
    slot(ticket).word.store(word_of(ticket.generation, OfferState::free), std::memory_order_release);
    _reserved[ticket.slot / 64].fetch_and(~(std::uint64_t{1} << (ticket.slot % 64)), std::memory_order_release);
    _in_use.fetch_sub(1, std::memory_order_relaxed);
}

Ticket Outbox::renew(const Ticket ticket, const std::uint32_t further) noexcept {
    std::uint64_t& generation = _generations[ticket.slot];
    generation = (ticket.generation + further) & kLastGeneration;
    return {ticket.slot, generation};
}

std::optional<Claim> Inbox::claim(const Rts& rts) noexcept {
    if (rts.slot >= kSlots) {
        return std::nullopt;
    }
    Slot& slot = _table->slots[rts.slot];
    Claim claim;
    claim.slot = rts.slot;
    claim.generation = rts.generation;
    claim.ring = &slot.ring;
    claim.ready = &slot.ready;
    claim.available = &slot.available;
    claim.lost = &slot.lost;
    // Looks at the receiver's index before changing anything, since the slot may belong to another message by now.
    const std::uint64_t word = slot.word.load(std::memory_order_acquire);
    if (generation_of(word) != rts.generation || slot.receiver.load(std::memory_order_relaxed) != _own) {
        return std::nullopt;
    }
    if (change(slot, rts.generation, OfferState::offered, OfferState::claimed)) {
        claim.from = slot.source;
        claim.from.offset = slot.offset.load(std::memory_order_relaxed);
    } else if (change(slot, rts.generation, OfferState::spilled, OfferState::taken)) {
        claim.from = slot.spill;
        claim.spilled = true;
    } else {
        return std::nullopt;
    }
    claim.bytes = slot.bytes.load(std::memory_order_relaxed);
    claim.kind = claim.spilled ? OfferKind::plain : static_cast<OfferKind>(slot.kind.load(std::memory_order_relaxed));
    claim.channel = &slot.channel;
    if (!claim.spilled && slot.strided.load(std::memory_order_relaxed) != 0) {
        claim.shape = slot.shape;
    }
    if (!lies_within(claim.from, claim.shape ? &*claim.shape : nullptr, claim.bytes)) {
        // The receiver can get nothing, but it lets the sender go on.
        finish(claim);
        return std::nullopt;
    }
    return claim;
}

Inbox::DoneWord Inbox::done_word(const Claim& claim) const noexcept {
    Slot& slot = _table->slots[claim.slot];
    return {&slot.word, word_of(claim.generation, OfferState::done), &slot.queued};
}

bool Inbox::is_claimed(const Claim& claim) const noexcept {
    return _table->slots[claim.slot].word.load(std::memory_order_acquire) ==
           word_of(claim.generation, OfferState::claimed);
}

void Inbox::finish(const Claim& claim) noexcept {
    _table->slots[claim.slot].word.store(word_of(claim.generation, OfferState::done), std::memory_order_release);
}

void Inbox::refuse(const Claim& claim) noexcept {
    _table->slots[claim.slot].word.store(word_of(claim.generation, OfferState::refused), std::memory_order_release);
}

bool Inbox::reclaim(Claim& claim) noexcept {
    Slot& slot = _table->slots[claim.slot];
    if (!change(slot, claim.generation, OfferState::spilled, OfferState::taken)) {
        return false;
    }
    claim.from = slot.spill;
    claim.shape.reset();
    claim.spilled = true;
    claim.kind = OfferKind::plain;
    if (!is_within(claim.from, claim.bytes)) {
        claim.from.kind = Location::Kind::none;
    }
    return true;
}

bool Inbox::holds(const Claim& claim) const noexcept {
    const std::uint64_t word = _table->slots[claim.slot].word.load(std::memory_order_acquire);
    const OfferState state = state_of(word);
    const std::uint64_t ready = claim.ready->load(std::memory_order_relaxed) & 0xffffffff;
    return generation_of(word) == claim.generation && state > OfferState::offered && state < OfferState::done &&
           (ready == kNotReady || ready == kReady);
}

transport::TrueSize Inbox::size_of(const std::size_t rts_length) const noexcept {
    if (!is_rts_length(rts_length)) {
        return {};
    }
    const Slot& slot = _table->slots[slot_of_length(rts_length)];
    transport::TrueSize size;
    size.version = slot.word.load(std::memory_order_acquire);
    const OfferState state = state_of(size.version);
    if ((state == OfferState::offered || state == OfferState::spilled) &&
        slot.receiver.load(std::memory_order_relaxed) == _own) {
        size.bytes = slot.bytes.load(std::memory_order_relaxed);
        // The caller's next look at the version comes after this. Pairs with the fence in fill().
        std::atomic_thread_fence(std::memory_order_acquire);
    }
    return size;
}

}  // namespace awaken::ipc
