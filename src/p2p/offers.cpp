#include "p2p/offers.h"

namespace awaken::p2p {

namespace {

constexpr std::uint64_t word_of(const std::uint64_t generation, const OfferState state) noexcept {
    return generation << 8 | static_cast<std::uint64_t>(state);
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

/// Whether `bytes` bytes from the location's offset on lie within it. `area_bytes` of the sender is checked by whoever
/// reads an area.
bool is_within(const Location& location, const std::uint64_t bytes) noexcept {
    switch (location.kind) {
        case Location::Kind::device:
        case Location::Kind::area:
        case Location::Kind::file:
            return location.offset <= location.allocation_bytes && bytes <= location.allocation_bytes - location.offset;
        case Location::Kind::none:
            break;
    }
    return false;
}

}  // namespace

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

std::optional<Ticket> Outbox::reserve() noexcept {
    const std::uint32_t first = _next.fetch_add(1, std::memory_order_relaxed) % kSlots;
    for (std::uint32_t offset = 0; offset < kSlots; ++offset) {
        const std::uint32_t index = (first + offset) % kSlots;
        std::atomic<std::uint64_t>& bits = _reserved[index / 64];
        const std::uint64_t bit = std::uint64_t{1} << (index % 64);
        if ((bits.load(std::memory_order_relaxed) & bit) != 0 ||
            (bits.fetch_or(bit, std::memory_order_acquire) & bit) != 0) {
            continue;
        }
        _in_use.fetch_add(1, std::memory_order_relaxed);
        const std::uint64_t word = _table.slots[index].word.load(std::memory_order_acquire);
        return Ticket{index, generation_of(word) + 1};
    }
    return std::nullopt;
}

void Outbox::offer(const Ticket ticket, const std::int32_t receiver, const std::uint64_t bytes,
                   const Location& source) noexcept {
    Slot& where = slot(ticket);
    where.receiver.store(receiver, std::memory_order_relaxed);
    where.bytes.store(bytes, std::memory_order_relaxed);
    where.source = source;
    where.spill.kind = Location::Kind::none;
    where.word.store(word_of(ticket.generation, OfferState::offered), std::memory_order_release);
}

OfferState Outbox::state(const Ticket ticket) const noexcept {
    return state_of(_table.slots[ticket.slot].word.load(std::memory_order_acquire));
}

bool Outbox::spill(const Ticket ticket, const Location& spill) noexcept {
    Slot& where = slot(ticket);
    // Written before the exchange; the receiver looks at it only after it has seen "spilled".
    where.spill = spill;
    return change(where, ticket.generation, OfferState::offered, OfferState::spilled) ||
           change(where, ticket.generation, OfferState::refused, OfferState::spilled);
}

void Outbox::set_free(const Ticket ticket) noexcept {
    slot(ticket).word.store(word_of(ticket.generation, OfferState::free), std::memory_order_release);
    _reserved[ticket.slot / 64].fetch_and(~(std::uint64_t{1} << (ticket.slot % 64)), std::memory_order_release);
    _in_use.fetch_sub(1, std::memory_order_relaxed);
}

void Outbox::withdraw(const Ticket ticket) noexcept {
    set_free(ticket);
}

void Outbox::release(const Ticket ticket) noexcept {
    set_free(ticket);
}

std::optional<Claim> Inbox::claim(const Header& header) noexcept {
    if (header.slot >= kSlots) {
        return std::nullopt;
    }
    Slot& slot = _table->slots[header.slot];
    Claim claim;
    claim.slot = header.slot;
    claim.generation = header.generation;
    // The receiver's index is looked at before anything is changed, since the slot may be somebody else's by now.
    const std::uint64_t word = slot.word.load(std::memory_order_acquire);
    if (generation_of(word) != header.generation || slot.receiver.load(std::memory_order_relaxed) != _own) {
        return std::nullopt;
    }
    if (change(slot, header.generation, OfferState::offered, OfferState::claimed)) {
        claim.from = slot.source;
    } else if (change(slot, header.generation, OfferState::spilled, OfferState::taken)) {
        claim.from = slot.spill;
        claim.spilled = true;
    } else {
        return std::nullopt;
    }
    claim.bytes = slot.bytes.load(std::memory_order_relaxed);
    if (!is_within(claim.from, claim.bytes)) {
        // Nothing can be fetched; the sender is let go all the same.
        finish(claim);
        return std::nullopt;
    }
    return claim;
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
    claim.spilled = true;
    if (!is_within(claim.from, claim.bytes)) {
        claim.from.kind = Location::Kind::none;
    }
    return true;
}

std::optional<std::uint64_t> Inbox::size_of(const std::size_t header_length) const noexcept {
    if (!is_header_length(header_length)) {
        return std::nullopt;
    }
    const Slot& slot = _table->slots[slot_of_length(header_length)];
    const OfferState state = state_of(slot.word.load(std::memory_order_acquire));
    if ((state != OfferState::offered && state != OfferState::spilled) ||
        slot.receiver.load(std::memory_order_relaxed) != _own) {
        return std::nullopt;
    }
    return slot.bytes.load(std::memory_order_relaxed);
}

}  // namespace awaken::p2p
