// Offers: messages whose bytes stay where they are until the receiver fetches them.
//
// The sender describes the bytes in a slot of its area in the node's shared memory and sends an RTS, a short message
// that names the slot, in the payload's place. The receiver claims the slot, fetches the bytes from the sender's own
// memory, and says so in the slot. A sender that must not wait any longer copies the bytes to memory that outlives its
// call, and spills: claimed and spilled are decided by one compare-and-swap, so exactly one of the two happens.
//
//              offer                claim               finish              release
//      free ----------> offered ------------> claimed -----------> done ----------> free
//        |               |  |  withdraw          |  refuse           ^
//        |               |  +--------> free      v                   |
//        |               |                     refused               |
//        |               |  spill                |  spill            |
//        |               +------> spilled <------+                   |
//        |  offer a copy             ^  |  claim           finish    |
//        +---------------------------+  +--------> taken ------------+
//
// offer, spill, withdraw and release are the sender's, claim, refuse and finish the receiver's. Every use of a slot has
// a generation, which the RTS repeats: an RTS that was kept, copied or forged names a generation that is over.
//
// Knows neither MPI nor GPUs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "transfer/flat_type.h"
#include "transfer/location.h"
#include "transfer/ring.h"

namespace awaken::ipc {

/// Offers of one process that can be under way at a time. When all are, messages are sent plain.
inline constexpr std::uint32_t kSlots = 256;

using transfer::Location;
using transfer::Strided;

enum class OfferState : std::uint8_t {
    free,
    offered,
    claimed,
    refused,
    spilled,
    taken,
    done,
    overwritten  ///< never in a slot: what was found there is nothing that this offer can have come to
};

/// One slot in shared memory. What changes with each message lies in the first cache line: each line that changes hands
/// between two cores costs a tenth of a microsecond.
struct alignas(64) Slot {
    std::atomic<std::uint64_t> word;  ///< generation << 8 | OfferState
    /// Index in the segment of the process that may claim it. Atomic because a late or forged RTS makes its
    /// receiver look at a slot that is being filled for somebody else.
    std::atomic<std::int32_t> receiver;
    /// The source may be read: work that the sender's program left behind in the default stream is over.
    std::atomic<std::uint32_t> ready;
    std::atomic<std::uint64_t> bytes;
    std::atomic<std::uint64_t> available;  ///< bytes of `spill` that are there already; more will come until all are
    std::atomic<std::uint32_t> lost;       ///< the sender could not finish the copy
    /// 1: the source is the blocks of `shape` and not one run of bytes; then `offset` is that of its lowest byte, and
    /// so is what the shape counts from.
    std::atomic<std::uint32_t> strided;
    std::atomic<std::uint64_t> offset;  ///< of the source's first byte in its allocation
    /// Valid from offered on, but for its offset. Written only when the slot's last source was another allocation, so
    /// that these lines stay where they are while one buffer after the other of an allocation is sent.
    alignas(64) Location source;
    alignas(64) Location spill;  ///< valid in spilled and taken
    alignas(64) Strided shape;
    transfer::RingControl ring;  ///< of a source or a spill that is a ring
};

/// Whether `bytes` bytes at the location, or the blocks of that shape, lie within its memory; every number may be
/// anything. That shared memory lies within the segment is checked where it is mapped.
[[nodiscard]] bool lies_within(const Location& location, const Strided* shape, std::uint64_t bytes) noexcept;

/// The part of a process's area that offers use.
struct OfferTable {
    std::array<Slot, kSlots> slots;
};

/// The body of an RTS. What follows it in the message, to make up an RTS's length, means nothing.
struct Rts {
    std::array<std::uint64_t, 2> secret;  ///< of the segment
    std::uint32_t sender;                 ///< index in the segment
    std::uint32_t slot;
    std::uint64_t generation;
};

/// Lengths of messages that are RTS messages: one for each slot, so that a probe, which sees only the length, can tell
/// the slot and with it the true size. They are odd, because hardly any message of numbers is; a sender does not send a
/// plain message of such a length to a receiver that takes RTS messages.
inline constexpr std::size_t kShortestRts = 65;
inline constexpr std::size_t kLongestRts = kShortestRts + 2 * (kSlots - 1);
static_assert(sizeof(Rts) <= kShortestRts);

[[nodiscard]] constexpr std::size_t rts_length(const std::uint32_t slot) noexcept {
    return kShortestRts + 2 * slot;
}
[[nodiscard]] constexpr bool is_rts_length(const std::size_t bytes) noexcept {
    return bytes >= kShortestRts && bytes <= kLongestRts && (bytes & 1) != 0;
}
[[nodiscard]] constexpr std::uint32_t slot_of_length(const std::size_t bytes) noexcept {
    return static_cast<std::uint32_t>((bytes - kShortestRts) / 2);
}

/// Slots that must not be used towards one receiver, since a plain message of their RTS's length was sent to it and
/// may be waiting there still: a probe could not tell the two. Any thread may call.
class SlotSet {
  public:
    void add(const std::uint32_t slot) noexcept {
        _words[slot / 64].fetch_or(std::uint64_t{1} << (slot % 64), std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t word(const std::size_t index) const noexcept {
        return _words[index].load(std::memory_order_relaxed);
    }

  private:
    std::array<std::atomic<std::uint64_t>, (kSlots + 63) / 64> _words{};
};

/// The sender's side of one offer.
struct Ticket {
    std::uint32_t slot = 0;
    std::uint64_t generation = 0;
};

/// A process's own offers. Any thread may call.
class Outbox {
  public:
    explicit Outbox(OfferTable& table) noexcept : _table(table) {}
    Outbox(const Outbox&) = delete;
    Outbox& operator=(const Outbox&) = delete;

    /// A free slot for a new offer, none of those to be avoided; nothing when all others are in use. It stays the
    /// caller's until release() or withdraw().
    [[nodiscard]] std::optional<Ticket> reserve(const SlotSet& avoided = {}) noexcept;
    /// Publishes the offer; from now on the receiver may claim it, and read it once it is ready. `shape`: of a source
    /// in strided blocks.
    void offer(Ticket ticket, std::int32_t receiver, std::uint64_t bytes, const Location& source,
               const Strided* shape = nullptr) noexcept;
    /// Whoever claims the offer may read the source from now on.
    void mark_ready(Ticket ticket) noexcept { slot(ticket).ready.store(1, std::memory_order_release); }
    /// Publishes an offer that is spilled from the beginning: a copy of which `ready` bytes are there, and the rest
    /// will be.
    void offer_copy(Ticket ticket, std::int32_t receiver, std::uint64_t bytes, const Location& copy,
                    std::uint64_t available) noexcept;
    /// More of a copy is there; `lost`: and there will be no more.
    void set_available(Ticket ticket, std::uint64_t available, bool lost = false) noexcept;
    [[nodiscard]] transfer::RingControl& ring(const Ticket ticket) noexcept { return slot(ticket).ring; }
    [[nodiscard]] OfferState state(Ticket ticket) const noexcept;
    /// Gives the receiver what is at `spill` instead of the source: a copy, or a ring, which the offer must not have
    /// had so far. The source is no longer read by the receiver if this returns true. False when the receiver has
    /// claimed the source meanwhile (or is done with it), and the spill is not needed; or when it has refused the
    /// source, and the spill is in device memory.
    [[nodiscard]] bool spill(Ticket ticket, const Location& spill) noexcept;
    /// Takes back an offer whose RTS was never sent, or a ticket that was never offered.
    void withdraw(Ticket ticket) noexcept;
    /// Ends an offer that is done.
    void release(Ticket ticket) noexcept;
    [[nodiscard]] std::uint32_t in_use() const noexcept { return _in_use.load(std::memory_order_relaxed); }

  private:
    [[nodiscard]] Slot& slot(const Ticket ticket) noexcept { return _table.slots[ticket.slot]; }
    void set_free(Ticket ticket) noexcept;

    OfferTable& _table;
    std::array<std::atomic<std::uint64_t>, (kSlots + 63) / 64> _reserved{};  ///< a bit a slot
    std::atomic<std::uint32_t> _in_use{0};
};

/// What the receiver of an RTS may fetch.
struct Claim {
    std::uint32_t slot = 0;
    std::uint64_t generation = 0;
    std::uint64_t bytes = 0;
    Location from{};
    std::optional<Strided> shape;  ///< of what is not spilled and not one run of bytes
    bool spilled = false;
    transfer::RingControl* ring = nullptr;  ///< the slot's
    const std::atomic<std::uint32_t>* ready = nullptr;
    const std::atomic<std::uint64_t>* available = nullptr;
    const std::atomic<std::uint32_t>* lost = nullptr;
};

/// What a probe can learn of the message behind an RTS's length, at one moment.
struct TrueSize {
    std::optional<std::uint64_t> bytes;  ///< nothing when no RTS of that length is under way to this process
    /// Another one whenever a message has come or gone in between: two looks with the same version speak of the same
    /// message, whatever other threads have received meanwhile.
    std::uint64_t version = 0;
    bool may_come = false;  ///< the sender may have told, and it is not here yet: look again
};

/// Another process's offers, seen by receiver `own`.
class Inbox {
  public:
    Inbox(OfferTable& table, const std::int32_t own) noexcept : _table(&table), _own(own) {}

    /// Claims what the RTS names. Nothing when there is no such offer to this process: the RTS is forged, or
    /// was used before. Whatever the sender wrote is checked: slot, generation, receiver, and that the bytes lie within
    /// their allocation.
    [[nodiscard]] std::optional<Claim> claim(const Rts& rts) noexcept;
    /// The bytes were fetched.
    void finish(const Claim& claim) noexcept;
    /// The source, or a copy in device memory, cannot be fetched from here: asks the sender for one in host memory.
    void refuse(const Claim& claim) noexcept;
    /// After refuse(): whether the sender has spilled meanwhile; then `claim` describes the spill and is claimed again.
    [[nodiscard]] bool reclaim(Claim& claim) noexcept;
    /// Whether the slot is still this claim's. It always is unless somebody has overwritten it.
    [[nodiscard]] bool holds(const Claim& claim) const noexcept;
    /// True size of the message whose RTS has this length.
    [[nodiscard]] TrueSize size_of(std::size_t rts_length) const noexcept;

  private:
    OfferTable* _table;
    std::int32_t _own;
};

}  // namespace awaken::ipc
