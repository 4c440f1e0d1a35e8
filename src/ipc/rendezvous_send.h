// SPDX-License-Identifier: Apache-2.0
// A message to another process of the node: the sender's half of a rendezvous.
//
// The bytes stay where they are until the receiver gets them, or a copy of them waits for the receiver. Knows no MPI:
// the caller carries the RTS.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/error.h"
#include "gpu/gpu.h"
#include "ipc/background.h"
#include "ipc/offers.h"
#include "ipc/order.h"
#include "ipc/readiness.h"
#include "protocol/send_path.h"
#include "report/report.h"
#include "trace/trace.h"
#include "transfer/device_copies.h"
#include "transfer/exports.h"
#include "transfer/flat_type.h"
#include "transfer/ring.h"
#include "transport/transport.h"

namespace awaken::ipc {

struct Resources;

class RendezvousSend final : public transport::OutgoingMessage,
                             public Task,
                             public Readiness::Source,
                             public std::enable_shared_from_this<RendezvousSend> {
  public:
    /// For a message to `peer`, in a slot that belongs to this object from now on. `from` has only a size where the
    /// buffer is not needed.
    RendezvousSend(Resources& resources, const Ticket ticket, const int peer, const transport::Buffer& from)
        : _resources(resources),
          _ticket(ticket),
          _peer(peer),
          _bytes(from.bytes),
          _buffer(from.first),
          _info(from.info),
          _typed(from.typed) {}
    ~RendezvousSend() override;

    // ---- before the RTS is sent: one of these three

    /// Offers the buffer in this way. False when that is not possible now; then another way may be tried. Throws Error,
    /// and BeyondAllocation where the receiver would read something else than the buffer.
    [[nodiscard]] bool offer(protocol::SendPath path);
    /// The same, in the order of the default stream. False when the message does not go that way.
    [[nodiscard]] bool offer_in_order(const protocol::SendPaths& paths);
    /// A place for the message, which offer_place() offers. Null when none is free.
    [[nodiscard]] std::byte* take_place();
    /// Offers a copy of a small message in host memory, which is made at once. There are places for small messages.
    void offer_copy_of(const void* packed);
    /// Tells the receiver that there is no message. advance() throws the error.
    void offer_nothing(const Error& error);

    [[nodiscard]] const std::byte* rts() const noexcept override;
    [[nodiscard]] std::size_t rts_length() const noexcept override { return ipc::rts_length(_ticket.slot); }
    [[nodiscard]] report::Path path() const noexcept override { return _path; }
    [[nodiscard]] bool is_in_order() const noexcept override { return _in_order; }
    [[nodiscard]] int peer() const noexcept { return _peer; }

    void copy_out() override;
    void posted(bool waits) override;
    [[nodiscard]] bool advance(transport::Patience patience) override;
    void leave() override;
    void end() noexcept override;
    void offer_place(bool repeats) noexcept override;
    [[nodiscard]] transport::ReadyWords offer_early() noexcept override;
    [[nodiscard]] bool is_placed() noexcept override;
    [[nodiscard]] std::optional<transport::Channel> channel() noexcept override;
    [[nodiscard]] transport::ChannelState* channel_state() noexcept override;
    void close_channel(std::uint32_t messages) noexcept override;
    [[nodiscard]] bool is_fetched() override;
    /// Call when the RTS has been sent, as posted() does. Waits until the program's work in the default stream is over,
    /// which the receiver's streams do not wait for, and lets the receiver read the buffer. Asking the runtime costs a
    /// microsecond, in which the RTS travels.
    void wait_until_ready();
    /// The work in the default stream is over, with that outcome: see Readiness.
    void became_ready(const gpu::Status& status) noexcept override;
    void withdraw() noexcept override;
    /// Whether the send must be advanced now and then even when no call waits for it.
    [[nodiscard]] bool wants_background() const noexcept;
    bool pump() noexcept override;
    [[nodiscard]] std::chrono::microseconds pause() const noexcept override;
    /// The receiver may be unable to map a copy in device memory for which the sender no longer waits. It then gets the
    /// copy through a ring.
    void serve_refused_copy() noexcept;
    /// The program's buffer is free.
    [[nodiscard]] bool is_free() const noexcept { return _free.load(std::memory_order_acquire); }
    [[nodiscard]] bool is_withdrawn() const noexcept { return _withdrawn; }
    /// The receiver has given the slot back, and nothing of this send is in use any more.
    [[nodiscard]] bool is_over() const noexcept;
    /// Call when the send is over: gives back all memory, and the slot. A later advance() returns that the buffer is
    /// free.
    void give_back() noexcept;
    /// Call at the end of the process's messages: gives back all memory.
    void give_up() noexcept;

  private:
    using Clock = std::chrono::steady_clock;
    enum class Copying : std::uint8_t {
        no,
        to_host,    ///< shared
        to_device,  ///< exported
        to_itself,  ///< this process's own memory, from where the bytes go through a ring
        tried       ///< the receiver claimed the original meanwhile
    };

    [[nodiscard]] bool offer_by_cpu();
    [[nodiscard]] bool offer_buffer();
    void offer_small_place();
    [[nodiscard]] bool offer_small_copy();
    [[nodiscard]] bool offer_copy_in_device_memory();
    [[nodiscard]] transfer::Location location_of_block() const;
    [[nodiscard]] bool offer_ring();
    void announce_in_order(bool wake);
    [[nodiscard]] std::shared_ptr<stream::Receipt> receipt() { return {shared_from_this(), &_receipt}; }
    [[nodiscard]] bool is_queued(transport::Patience patience);
    [[nodiscard]] bool advance_in_order(transport::Patience patience);
    [[nodiscard]] bool lies_in_its_allocation() const noexcept;
    [[noreturn]] void throw_beyond() const;
    void publish(const transfer::Location& location, bool is_copy, std::uint64_t available,
                 const transfer::Strided* shape = nullptr);
    [[nodiscard]] bool describe_buffer(const transfer::Strided* shape, transfer::Location& location);
    /// wait_until_ready() for a send that does not wait. In a burst of such sends, one answer of the runtime serves
    /// several.
    void wait_in_turn();
    /// Whether these two have anything to wait for.
    [[nodiscard]] bool is_read_by_its_receiver() const noexcept {
        return !_is_copy && !_in_order && _ring == nullptr && !_withdrawn;
    }
    /// Gives the message a ring. False when none is free and there is no memory for another.
    [[nodiscard]] bool find_ring(transfer::Location& location, transfer::RingMemory& memory);
    [[nodiscard]] bool step(transport::Patience patience);
    [[nodiscard]] bool has_waited(transport::Patience patience);
    void start_copying_out();
    [[nodiscard]] bool copy_to_small_place();
    void answer_refusal();
    [[nodiscard]] bool start_serving();
    [[nodiscard]] bool is_on_trial() const noexcept;
    [[nodiscard]] bool serve() noexcept;
    [[nodiscard]] bool spill_through_ring(const transfer::DeviceCopies::End& from);
    void start_ring(const transfer::RingMemory& memory, const transfer::DeviceCopies::End& from);
    [[nodiscard]] transfer::DeviceCopies::End source() const { return {_buffer, &_info, _typed}; }
    void start_parts(std::byte* target, const gpu::PointerInfo* target_info);
    void start_next_part();
    [[nodiscard]] bool parts_done(bool publish);
    void check_alive();
    void release_all() noexcept;

    Resources& _resources;
    mutable std::mutex _mutex;
    Ticket _ticket;
    const int _peer;
    const std::size_t _bytes;
    std::byte* _buffer;  ///< the lowest byte of typed memory
    gpu::PointerInfo _info;
    const std::shared_ptr<const transfer::TypedMemory> _typed;
    report::Path _path = report::Path::direct;
    bool _in_order = false;                            ///< the default stream says when the bytes may be read
    bool _asked_to = false;                            ///< it has been asked to
    bool _waits = false;                               ///< it has been asked to wait for the receiver, too
    stream::Receipt _receipt{stream::Outcome::added};  ///< of what it was asked last
    std::optional<Order::Place> _place;                ///< of the copy that it makes
    OfferKind _kind = OfferKind::plain;
    unsigned _offers = 0;             ///< of the place, one after the other
    std::uint32_t _by_channel = 0;    ///< messages that went by a channel since the last offer
    bool _is_copy = false;            ///< offered as a copy, which `_parts` are making
    Clock::time_point _copy_began{};  ///< where the copy counts in the MappingAccount
    trace::Stretch _traced;           ///< from the offer until the buffer is free
    std::atomic<bool> _free{false};
    std::atomic<bool> _not_ready{false};  ///< in the Readiness
    bool _withdrawn = false;
    bool _left = false;  ///< the background has it, too
    std::optional<Error> _error;
    Clock::time_point _asked{};   ///< when a call first waited
    Clock::time_point _looked{};  ///< when the receiver was last seen alive

    Copying _copying = Copying::no;
    transfer::Location _copy_location;
    gpu::PointerInfo _copy_info;                       ///< describes shared memory that the GPU runtime does not know
    std::vector<transfer::DeviceCopies::Copy> _parts;  ///< copies under way, in order
    std::vector<std::size_t> _part_ends;               ///< bytes that are there when each copy is done
    transfer::DeviceCopies::End _parts_target;
    std::size_t _parts_begun = 0;  ///< bytes
    std::size_t _parts_done = 0;
    std::size_t _told = 0;                             ///< bytes that the receiver knows to be there
    std::unique_ptr<transfer::Exports::Hold> _export;  ///< of the buffer, where descriptors export it
    transfer::ExportedPool::Block _block;
    std::uint64_t _shared_offset = 0;
    std::size_t _shared_bytes = 0;
    std::byte* _shared = nullptr;
    std::unique_ptr<transfer::RingWriter> _ring;
    int _ring_index = -1;
    std::unique_ptr<std::byte[]> _kept;  ///< a copy of the message, from which the ring is filled
    bool _serving = false;               ///< the buffer is free, but the ring is not done
};

}  // namespace awaken::ipc
