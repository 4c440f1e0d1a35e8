// SPDX-License-Identifier: Apache-2.0
// Offers: the bytes of an offered message stay where they are until the receiver gets them.
//
// The sender describes the bytes in a slot of its area in the node's shared memory. In the payload's place it sends an
// RTS, a short message that names the slot. The receiver claims the slot, copies the bytes from the sender's own
// memory, and says in the slot that it has them. A sender that must not wait any longer spills: it copies the bytes to
// memory that outlives its call. One compare-and-swap decides between claimed and spilled, so exactly one of the two
// happens.
//
//              offer                claim               finish              release
//      free ----------> offered ------------> claimed -----------> done ----------> free
//        |               |  |  release           |  refuse           ^
//        |               |  +--------> free      v                   |
//        |               |                     refused               |
//        |               |  spill                |  spill            |
//        |               +------> spilled <------+                   |
//        |  offer a copy             ^  |  claim           finish    |
//        +---------------------------+  +--------> taken ------------+
//
// The sender does offer, spill and release; the receiver does claim, refuse and finish. Every use of a slot
// has a generation, and the RTS repeats it. An RTS that was kept, copied or forged names a generation that is over.
//
// This file knows neither MPI nor GPUs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transfer/flat_type.h"
#include "transfer/location.h"
#include "transfer/ring.h"
#include "transport/found.h"
#include "transport/rts_length.h"
#include "transport/true_size.h"

namespace awaken::ipc {

using transfer::Location;
using transfer::Strided;
using transport::is_rts_length;
using transport::kLongestRts;
using transport::kShortestRts;
using transport::kSlots;
using transport::rts_length;
using transport::slot_of_length;
using transport::SlotSet;

enum class OfferState : std::uint8_t {
    free,
    offered,
    claimed,
    refused,
    spilled,
    taken,
    done,
    overwritten  ///< never in a slot: the slot holds something that this offer cannot have come to
};

/// Values of Slot::ready. Memory that was wiped holds none of them. A message has its own, since a GPU may write one
/// when the slot belongs to the next message already.
inline constexpr std::uint64_t kNotReady = 0x74696177, kReady = 0x79646572;
[[nodiscard]] constexpr std::uint64_t ready_value(const std::uint64_t generation) noexcept {
    return generation << 32U | kReady;
}

enum class OfferKind : std::uint32_t {
    plain,
    ordered,   ///< the sender's stream says when the source is ready, and a receiver's may fetch it: see order.h
    queued,    ///< the sender's stream fills the source, a place: from another stream than `ordered`
    repeated,  ///< a graph fills the source, and may do so again without the CPU
};

/// One slot in shared memory. The fields that change with each message lie in the first cache line: each line that
/// passes from one core to another costs a tenth of a microsecond.
struct alignas(64) Slot {
    std::atomic<std::uint64_t> word;  ///< generation << 8 | OfferState
    /// Index in the segment of the process that may claim the slot. Atomic because the receiver of a late or forged RTS
    /// looks at a slot that its owner may be filling for another process.
    std::atomic<std::int32_t> receiver;
    std::atomic<std::uint32_t> lost;  ///< the sender could not finish the copy
    /// Whether the source may be read: the work that the sender's program left in the default stream is over.
    std::atomic<std::uint64_t> ready;
    std::atomic<std::uint64_t> bytes;
    std::atomic<std::uint64_t> available;  ///< bytes of `spill` that are there already; the rest follows
    /// 1: the source is the blocks of `shape` and not one run of bytes. Then `offset` is the offset of the lowest byte,
    /// and the shape counts from there.
    std::atomic<std::uint32_t> strided;
    std::atomic<std::uint32_t> kind;    ///< an OfferKind
    std::atomic<std::uint32_t> queued;  ///< the number of the message that a receiver's stream has been told to fetch
    std::atomic<std::uint64_t> offset;  ///< of the source's first byte in its allocation
    /// Valid from offered on, except for its offset. The sender writes it only when the slot's last source was another
    /// allocation. So these lines stay where they are while the program sends one buffer of an allocation after
    /// another.
    alignas(64) Location source;
    alignas(64) Location spill;  ///< valid in spilled and taken
    alignas(64) Strided shape;
    transfer::RingControl ring;       ///< for a source or a spill that is a ring
    transport::ChannelState channel;  ///< for a place that a graph fills
};

/// Whether `bytes` bytes at the location, or the blocks of that shape, lie within its memory. Every number may have any
/// value. Whether shared memory lies within the segment is checked where it is mapped.
[[nodiscard]] bool lies_within(const Location& location, const Strided* shape, std::uint64_t bytes) noexcept;

/// The part of a process's area that offers use.
struct OfferTable {
    std::array<Slot, kSlots> slots;
};

/// The body of an RTS. Bytes after it in the message, which fill up an RTS's length, have no meaning.
struct Rts {
    std::array<std::uint64_t, 2> secret;  ///< of the segment
    std::uint32_t sender;                 ///< index in the segment
    std::uint32_t slot;
    std::uint64_t generation;
};

static_assert(sizeof(Rts) <= transport::kShortestRts);

/// By which words that count messages know a generation.
[[nodiscard]] constexpr std::uint32_t number_of(const std::uint64_t generation) noexcept {
    return static_cast<std::uint32_t>(generation);
}

/// The sender's side of one offer.
struct Ticket {
    std::uint32_t slot = 0;
    std::uint64_t generation = 0;
};

/// A process's own offers. Any thread may call.
class Outbox {
  public:
    explicit Outbox(OfferTable& table) noexcept;
    Outbox(const Outbox&) = delete;
    Outbox& operator=(const Outbox&) = delete;

    /// A free slot for a new offer, except those in `avoided`; nothing when all others are in use. The slot belongs to
    /// the caller until release().
    [[nodiscard]] std::optional<Ticket> reserve(const SlotSet& avoided = {}) noexcept;
    /// Publishes the offer. From now on the receiver may claim it, and read it once it is ready. `shape`: for a source
    /// in strided blocks.
    void offer(Ticket ticket, std::int32_t receiver, std::uint64_t bytes, const Location& source,
               const Strided* shape = nullptr, OfferKind kind = OfferKind::plain) noexcept;
    /// Whether the receiver's GPU has been told to fetch the source.
    [[nodiscard]] bool is_queued(Ticket ticket) const noexcept;
    /// The word that mark_ready() writes, for a GPU that does so.
    [[nodiscard]] std::atomic<std::uint64_t>& ready_word(const Ticket ticket) noexcept { return slot(ticket).ready; }
    [[nodiscard]] bool is_ready(const Ticket ticket) noexcept {
        return slot(ticket).ready.load(std::memory_order_acquire) == ready_value(ticket.generation);
    }
    /// From now on the receiver that claims the offer may read the source.
    void mark_ready(const Ticket ticket) noexcept {
        slot(ticket).ready.store(ready_value(ticket.generation), std::memory_order_release);
    }
    /// Publishes an offer that is spilled from the beginning: a copy of which `available` bytes are there already, and
    /// the rest follows.
    void offer_copy(Ticket ticket, std::int32_t receiver, std::uint64_t bytes, const Location& copy,
                    std::uint64_t available) noexcept;
    /// More of a copy is there. `lost`: the rest will not come.
    void set_available(Ticket ticket, std::uint64_t available, bool lost = false) noexcept;
    [[nodiscard]] transfer::RingControl& ring(const Ticket ticket) noexcept { return slot(ticket).ring; }
    [[nodiscard]] OfferState state(Ticket ticket) const noexcept;
    /// Gives the receiver `spill` instead of the source: a copy, or a ring, which this offer must not have had before.
    /// If this returns true, the receiver no longer reads the source. False when the receiver has claimed the source
    /// meanwhile (or is done with it), so that the spill is not needed. Also false when the receiver has refused the
    /// source and the spill is in device memory.
    [[nodiscard]] bool spill(Ticket ticket, const Location& spill) noexcept;
    /// Ends an offer that is done, or whose RTS was never sent, or gives back a ticket that was never offered.
    void release(Ticket ticket) noexcept;
    /// Ends an offer that is done, and keeps its slot for another one, whose number comes `further` later.
    [[nodiscard]] Ticket renew(Ticket ticket, std::uint32_t further = 1) noexcept;
    [[nodiscard]] transport::ChannelState& channel(const Ticket ticket) noexcept { return slot(ticket).channel; }
    [[nodiscard]] std::uint32_t in_use() const noexcept { return _in_use.load(std::memory_order_relaxed); }

  private:
    [[nodiscard]] Slot& slot(const Ticket ticket) noexcept { return _table.slots[ticket.slot]; }

    OfferTable& _table;
    std::array<std::atomic<std::uint64_t>, (kSlots + 63) / 64> _reserved{};  ///< one bit for each slot
    /// The generation of each slot's last use. Whoever holds the slot's bit may touch it. The slot itself says the
    /// same, but its line lies in the cache of the last receiver's core.
    std::array<std::uint64_t, kSlots> _generations{};
    std::atomic<std::uint32_t> _in_use{0};
};

/// What the receiver of an RTS may copy.
struct Claim {
    std::uint32_t slot = 0;
    std::uint64_t generation = 0;
    std::uint64_t bytes = 0;
    Location from{};
    std::optional<Strided> shape;  ///< of a source in strided blocks
    bool spilled = false;
    OfferKind kind = OfferKind::plain;
    transport::ChannelState* channel = nullptr;         ///< the slot's
    transfer::RingControl* ring = nullptr;              ///< the slot's
    const std::atomic<std::uint64_t>* ready = nullptr;  ///< ready_value(): the source may be read
    const std::atomic<std::uint64_t>* available = nullptr;
    const std::atomic<std::uint32_t>* lost = nullptr;
};

/// Another process's offers, as the receiver `own` sees them.
class Inbox {
  public:
    Inbox(OfferTable& table, const std::int32_t own) noexcept : _table(&table), _own(own) {}

    /// Claims the offer that the RTS names. Nothing when there is no such offer to this process: the RTS is forged, or
    /// was used before. Checks everything that the sender wrote: slot, generation, receiver, and that the bytes lie
    /// within their allocation.
    [[nodiscard]] std::optional<Claim> claim(const Rts& rts) noexcept;
    /// For a GPU that fetches the source: the word that finish() writes, and what it writes. `queued` tells the sender
    /// that the GPU does.
    struct DoneWord {
        std::atomic<std::uint64_t>* word;
        std::uint64_t value;
        std::atomic<std::uint32_t>* queued;
    };
    [[nodiscard]] DoneWord done_word(const Claim& claim) const noexcept;
    /// Whether the message is still being fetched.
    [[nodiscard]] bool is_claimed(const Claim& claim) const noexcept;
    /// The receiver has the bytes.
    void finish(const Claim& claim) noexcept;
    /// The receiver cannot read the source, or a copy in device memory: asks the sender for a copy in host memory.
    void refuse(const Claim& claim) noexcept;
    /// After refuse(): whether the sender has spilled meanwhile. If so, `claim` describes the spill and is claimed
    /// again.
    [[nodiscard]] bool reclaim(Claim& claim) noexcept;
    /// Whether the slot still belongs to this claim. It does unless another process has overwritten it.
    [[nodiscard]] bool holds(const Claim& claim) const noexcept;
    /// True size of the message whose RTS has this length.
    [[nodiscard]] transport::TrueSize size_of(std::size_t rts_length) const noexcept;

  private:
    OfferTable* _table;
    std::int32_t _own;
};

}  // namespace awaken::ipc
