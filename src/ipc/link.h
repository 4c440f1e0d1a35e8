// The direct paths from this process to the others of its job on this node.
//
// A RendezvousSend is a message that this process sends: its bytes stay where they are until the receiver gets them, or
// a copy of them waits for the receiver. A RendezvousGet is a message that this process receives. Link makes both and
// owns what they share. None of them knows MPI: the caller carries the RTS messages that connect a rendezvous send with
// its get.
//
// The sender chooses the way of a message (see Link::start_send). The receiver gets the bytes from where the slot says.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/recycled.h"
#include "gpu/gpu.h"
#include "ipc/background.h"
#include "ipc/mapping_account.h"
#include "ipc/message.h"
#include "ipc/offers.h"
#include "ipc/readiness.h"
#include "node/segment.h"
#include "trace/trace.h"
#include "transfer/cpu_window.h"
#include "transfer/device_copies.h"
#include "transfer/exports.h"
#include "transfer/flat_type.h"
#include "transfer/mappings.h"
#include "transfer/ring.h"
#include "transfer/tuning.h"

namespace awaken::ipc {

class Link;

/// How the bytes of a message travel, for the report.
enum class Route : std::uint8_t {
    pull,    ///< the receiver reads the sender's own memory
    copy,    ///< through a copy: exported device memory, or shared host memory for small messages
    ring,    ///< through chunks of shared host memory
    by_cpu,  ///< copied by the CPU through shared memory
};
[[nodiscard]] report::Path path_of(Route route) noexcept;

/// A message to another process of the node.
class RendezvousSend final : public OutgoingMessage,
                             public Job,
                             public Readiness::Source,
                             public Recycled<RendezvousSend>,
                             public std::enable_shared_from_this<RendezvousSend> {
  public:
    ~RendezvousSend() override;

    [[nodiscard]] const std::byte* rts() const noexcept override;
    [[nodiscard]] std::size_t rts_length() const noexcept override { return rts_length_of(_ticket); }
    [[nodiscard]] report::Path path() const noexcept override { return path_of(_route); }
    [[nodiscard]] Route route() const noexcept { return _route; }

    void copy_out() override;
    void posted(bool waits) override;
    [[nodiscard]] bool advance(Patience patience) override;
    void leave() override;
    void end() noexcept override;
    /// Call when the RTS has been sent. Waits until the program's work in the default stream is over, which the
    /// receiver's streams do not wait for, and lets the receiver read the buffer. Asking the runtime costs a
    /// microsecond, in which the RTS travels.
    void wait_until_ready();
    /// Whether wait_until_ready() has anything to wait for.
    [[nodiscard]] bool is_read_by_its_receiver() const noexcept { return !_is_copy && _ring == nullptr && !_withdrawn; }
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
    /// The receiver has given the slot back, and nothing of this send is in use any more.
    [[nodiscard]] bool is_over() const noexcept;

  private:
    friend class Link;
    using Clock = std::chrono::steady_clock;
    enum class Copying : std::uint8_t {
        no,
        to_host,    ///< shared
        to_device,  ///< exported
        to_itself,  ///< this process's own memory, from where the bytes go through a ring
        tried       ///< the receiver claimed the original meanwhile
    };

    explicit RendezvousSend(Link& link) : _link(link) {}
    static std::size_t rts_length_of(Ticket ticket) noexcept { return ipc::rts_length(ticket.slot); }
    [[nodiscard]] bool step(Patience patience);
    [[nodiscard]] bool has_waited(Patience patience);
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
    /// Call when the send is over: gives back all memory, and the slot. A later advance() returns that the buffer is
    /// free.
    void give_back() noexcept;

    Link& _link;
    mutable std::mutex _mutex;
    Ticket _ticket;
    int _peer = -1;
    std::byte* _buffer = nullptr;  ///< the lowest byte of typed memory
    gpu::PointerInfo _info;
    std::shared_ptr<const transfer::TypedMemory> _typed;
    std::size_t _bytes = 0;
    Route _route = Route::pull;
    bool _is_copy = false;            ///< offered as a copy, which `_parts` are making
    Clock::time_point _copy_began{};  ///< where the copy counts in the link's MappingAccount
    trace::Stretch _traced;           ///< from the offer until the buffer is free
    std::atomic<bool> _free{false};
    std::atomic<bool> _not_ready{false};  ///< in the link's Readiness
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

/// A message from another process of the node.
class RendezvousGet final : public IncomingMessage,
                            public Job,
                            public Recycled<RendezvousGet>,
                            public std::enable_shared_from_this<RendezvousGet> {
  public:
    ~RendezvousGet() override;

    [[nodiscard]] bool advance() noexcept override;
    void join_others() noexcept override { _start = transfer::DeviceCopies::Start::together; }
    void leave() override;
    void went_to_host() noexcept override;
    bool pump() noexcept override { return advance(); }
    [[nodiscard]] report::Path path() const noexcept override { return path_of(_route); }
    [[nodiscard]] Route route() const noexcept { return _route; }
    [[nodiscard]] std::size_t size() const noexcept override { return _size; }
    [[nodiscard]] const std::optional<Error>& error() const noexcept override { return _error; }

  private:
    friend class Link;
    using Clock = std::chrono::steady_clock;
    explicit RendezvousGet(Link& link) : _link(link) {}
    void begin();
    [[nodiscard]] bool step();
    void refuse(const std::string& reason);
    void check_alive();
    void finish() noexcept;

    Link& _link;
    std::mutex _mutex;
    int _peer = -1;
    Claim _claim;
    std::byte* _buffer = nullptr;
    gpu::PointerInfo _info;
    std::shared_ptr<const transfer::TypedMemory> _typed;
    std::size_t _size = 0, _wanted = 0;
    trace::Stretch _traced;
    Route _route = Route::pull;
    std::atomic<bool> _over{false};
    bool _refused = false;
    bool _left = false;  ///< the background has it, too
    std::optional<Error> _error;
    Clock::time_point _looked{};

    [[nodiscard]] transfer::DeviceCopies::End target() const { return {_buffer, &_info, _typed}; }

    transfer::Mappings::Use _use;
    transfer::DeviceCopies::End _from;  ///< first byte of the source
    gpu::PointerInfo _host;             ///< describes shared memory that the GPU runtime does not know
    gpu::PointerInfo _own_info;         ///< for a message from this process to itself
    int _device = -1;
    std::size_t _asked_for = 0;  ///< bytes whose copy was started
    transfer::DeviceCopies::Start _start = transfer::DeviceCopies::Start::now;
    transfer::DeviceCopies::Copy _copy, _next;
    bool _has_next = false;       ///< the GPU has the part after the one that `_copy` copies, too
    std::shared_ptr<void> _held;  ///< shared memory that stays mapped
    std::byte* _mapped = nullptr;
    std::size_t _mapped_bytes = 0;
    std::unique_ptr<transfer::RingReader> _ring;
};

class Link final : public Transport {
  public:
    using Allowed = protocol::SendFacts::Allowed;
    struct Options {
        Allowed path = Allowed::all;
        bool cpu_copy = true;
        transfer::Tuning tuning;
    };
    /// Is told why a message did not go the fastest way.
    using Note = std::function<void(const std::string& reason)>;

    /// Bytes of each process's area in a segment of `processes` processes.
    [[nodiscard]] static std::size_t area_bytes(int processes) noexcept;

    /// @param avoided for each process of the segment, slots that must not be used towards it; outlives the link.
    /// @param copies  and whatever else is a reference outlives the link.
    Link(node::Segment& segment, gpu::Runtime& runtime, transfer::DeviceCopies& copies, const Options& options,
         Note note, const std::vector<SlotSet>* avoided = nullptr);
    ~Link() override;
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    [[nodiscard]] int own() const noexcept { return _own; }
    [[nodiscard]] const transfer::Tuning& tuning() const noexcept { return _tuning; }
    [[nodiscard]] int processes() const noexcept { return static_cast<int>(_peers.size()); }
    /// From now on others may send RTS messages to this process.
    void take_rts() noexcept;
    [[nodiscard]] bool takes_rts(const int peer) const noexcept {
        return area(peer).takes_rts.load(std::memory_order_acquire) != 0;
    }

    /// The same, for the first message from device memory, of so many bytes: waits a moment for a process that may not
    /// have found its GPU runtime yet. Only the first call for each process waits.
    [[nodiscard]] bool wait_for_rts(int peer, std::size_t bytes) noexcept;

    /// How long a sender watches for the receiver of so many bytes before it copies or stages them: as long again for
    /// each 16 MiB, since that is about what copying them costs.
    [[nodiscard]] static std::chrono::nanoseconds watch(const std::chrono::nanoseconds least,
                                                        const std::size_t bytes) noexcept {
        constexpr std::size_t kOneMore = std::size_t{16} << 20;
        return least * static_cast<std::int64_t>(1 + bytes / kOneMore);
    }

    /// Whether messages of that size from this process's host memory are worth an offer to `peer`: it received the last
    /// such message into device memory. Any receiver can get an offered message, but for one in host memory the MPI's
    /// own way is as good.
    [[nodiscard]] bool wants_from_host(const int peer, const std::int64_t bytes) const noexcept {
        return peer != _own && bytes >= least_from_host() &&
               pair(peer, _own).from_host.load(std::memory_order_relaxed) != 0;
    }
    [[nodiscard]] std::int64_t least_from_host() const noexcept {
        return static_cast<std::int64_t>(_tuning.host_offer_bytes);
    }
    /// Records where a message from `peer` went that had lain in the sender's host memory, as far as this process
    /// knows.
    void received_from_host(int peer, std::int64_t bytes, bool to_device) noexcept;

    // A peer is an index in the segment, and may be this process.
    void describe(int peer, const gpu::PointerInfo& memory, protocol::SendFacts& facts) const noexcept override;
    [[nodiscard]] std::shared_ptr<OutgoingMessage> start_send(int peer, const Buffer& from,
                                                              const protocol::SendPaths& paths) override;
    [[nodiscard]] std::shared_ptr<OutgoingMessage> start_failed(int peer, std::size_t bytes,
                                                                const Error& error) override;
    [[nodiscard]] bool may_go_plain(int /*peer*/, std::size_t /*length*/) override { return false; }
    [[nodiscard]] std::shared_ptr<OutgoingMessage> wrap(int peer, const void* buffer, std::size_t bytes) override;
    /// The same as RendezvousSend::wait_until_ready(), for a send that does not wait. In a burst of such sends, one
    /// answer of the runtime serves several.
    void wait_in_turn(std::shared_ptr<RendezvousSend> send);
    /// Lets receivers read the messages that wait_in_turn() has left, as far as they are ready. Costs one load where
    /// there are none.
    void ask_readiness() noexcept { _readiness->ask(); }
    /// Call when the RTS has been sent and the buffer is free, or will never be. Keeps the rendezvous send until the
    /// receiver is done with it.
    void retire(std::shared_ptr<RendezvousSend> send);

    [[nodiscard]] bool begins_like_rts(const std::byte* const message) const noexcept override {
        std::uint64_t first = 0;
        std::memcpy(&first, message, sizeof first);
        return first == _segment.secret()[0];
    }
    [[nodiscard]] bool is_rts(const std::byte* message, std::size_t length) const noexcept override;
    [[nodiscard]] std::shared_ptr<IncomingMessage> start_receive(const std::byte* message, std::size_t length,
                                                                 const Buffer& into) override;
    [[nodiscard]] bool can_move(const transfer::TypedMemory& memory, const gpu::PointerInfo& info) override {
        return _copies.can_move(info.device >= 0 ? info.device : any_device(), memory);
    }
    [[nodiscard]] TrueSize size_of(int peer, std::size_t length) const noexcept override;

    /// The call ends before the rendezvous send does: the background does whatever the send still needs. Call once for
    /// each send.
    void leave(std::shared_ptr<RendezvousSend> send);
    Background& background() noexcept { return _background; }
    /// Gives back rings, and mappings of others' rings, that have long been idle at the time `now`.
    void trim_idle(std::chrono::steady_clock::time_point now) noexcept;
    /// Gives back the memory of messages that their receivers are done with.
    void release_finished() noexcept;
    /// Gives back to the driver what is not needed any more, where that waits for nothing. Only for calls of the
    /// program, see gpu.h. Where there is nothing to do, it costs a load or a look at a clock.
    void reclaim() noexcept;
    /// Waits until the receiver of every rendezvous send has the message or is gone. Call after MPI_Finalize.
    void finish_sends() noexcept;
    /// Ends everything. Call while the runtime is still there. Safe to call twice.
    void shut_down() noexcept;

    [[nodiscard]] const transfer::CpuWindow& cpu_window() const noexcept { return _window; }
    // For other parts that reach memory of other processes: a runtime maps an allocation once, so a process has one
    // owner of mappings.
    [[nodiscard]] transfer::DeviceCopies& copies() noexcept { return _copies; }
    [[nodiscard]] transfer::Exports& exports() noexcept { return _exports; }
    [[nodiscard]] transfer::ExportedPool& exported() noexcept { return _exported; }
    [[nodiscard]] transfer::Mappings& mappings() noexcept { return _mappings; }

  private:
    friend class RendezvousSend;
    friend class RendezvousGet;

    /// A little exported memory with known contents, for a checked copy at first use.
    struct ProbeBuffer {
        std::atomic<std::uint32_t> there;
        transfer::Location location;
        std::array<std::uint64_t, 8> content;
    };
    /// What a receiver has found out about a sender, or wants of it.
    struct PairWords {
        std::atomic<std::uint32_t> reachability;
        std::atomic<std::uint32_t> from_host;            ///< not 0: offer messages in host memory
        std::atomic<std::uint32_t> descriptors_refused;  ///< not 0: the receiver cannot map memory by descriptors
    };
    /// A process's part of the segment. One PairWords for each process follows it.
    struct Area {
        alignas(64) std::atomic<std::uint32_t> takes_rts;
        std::atomic<std::uint64_t> small_offset;  ///< of kSlots * small_bytes bytes of shared memory
        std::atomic<std::uint64_t> small_bytes;
        ProbeBuffer probe_buffer;
        OfferTable offers;
    };
    enum Reachability : std::uint32_t { unknown, works, refused };

    struct SharedMapping {
        std::uint64_t offset = 0;
        std::byte* base = nullptr;
        std::size_t bytes = 0;
        bool registered = false;
        std::chrono::steady_clock::time_point used{};  ///< when it was last wanted
        std::shared_ptr<void> held{};                  ///< each copy of this pointer is a use
    };
    struct Ring {
        SharedMapping memory;  ///< none after a long time without use
        bool in_use = false;
    };

    [[nodiscard]] Area& area(const int process) const noexcept {
        return *reinterpret_cast<Area*>(_segment.area(process));
    }
    [[nodiscard]] PairWords& pair(int receiver, int sender) const noexcept;
    [[nodiscard]] bool is_readable(const int receiver) const noexcept {
        return receiver != _own && pair(receiver, _own).reachability.load(std::memory_order_acquire) == works;
    }
    [[nodiscard]] Inbox inbox(const int peer) const noexcept { return {area(peer).offers, _own}; }

    [[nodiscard]] std::shared_ptr<RendezvousSend> reserve(int peer, std::size_t bytes);
    void publish(RendezvousSend& send, const transfer::Location& location, bool is_copy, std::uint64_t available,
                 const transfer::Strided* shape = nullptr);
    [[nodiscard]] bool offer(protocol::SendPath path, RendezvousSend& send);
    [[nodiscard]] bool send_by_cpu(RendezvousSend& send);
    [[nodiscard]] bool send_directly(RendezvousSend& send);
    [[nodiscard]] bool send_copy(RendezvousSend& send);
    [[nodiscard]] bool send_copy_in_device_memory(RendezvousSend& send);
    [[nodiscard]] bool send_through_ring(RendezvousSend& send);
    /// Advances the sends that calls have left. True when some of them are not over.
    bool pump_left() noexcept;
    void copy_at_once(int device, void* destination, const void* source, std::size_t bytes);
    [[nodiscard]] bool has_probe_buffer(int device);
    [[nodiscard]] bool small_space();
    /// Whether the GPU copies to the places of small messages. Registers them when first asked, which takes 1 to 6 ms
    /// that a first message to be read in place need not wait for. Call after small_space().
    [[nodiscard]] bool gpu_reaches_small_space();
    [[nodiscard]] std::byte* small_place(const Ticket ticket) const noexcept {
        return _small.base + ticket.slot * _tuning.small_bytes;
    }
    [[nodiscard]] transfer::Location small_location(Ticket ticket) const noexcept;
    /// Gives the message a ring. False when none is free and there is no memory for another.
    [[nodiscard]] bool find_ring(RendezvousSend& send, transfer::Location& location, transfer::RingMemory& memory);
    /// Uses the slot's place for small messages as a ring.
    [[nodiscard]] bool find_small_ring(Ticket ticket, transfer::Location& location, transfer::RingMemory& memory);
    [[nodiscard]] int take_ring();
    void give_back_ring(int index) noexcept;

    /// Opens the peer's probe buffer and checks a copy of it, once. False, with the reason noted, when this process
    /// cannot read it.
    [[nodiscard]] bool can_read(int peer, int device);
    /// Memory of the segment that stays mapped: the peer's small messages and rings.
    [[nodiscard]] SharedMapping lasting_mapping(int peer, std::uint64_t offset, std::size_t bytes, bool is_ring);
    void reclaim_idle();
    /// The rendezvous send has a copy in exported memory. Its receiver may refuse the copy when no call advances the
    /// send: the sender may have gone on, or wait for a message of the receiver.
    void watch_copy(RendezvousSend& send);
    void forget(SharedMapping& mapping) noexcept;
    void map_shared(std::uint64_t offset, std::size_t bytes, SharedMapping& mapping);
    void map_registered(std::uint64_t offset, std::size_t bytes, SharedMapping& mapping);
    [[nodiscard]] int any_device() const noexcept;
    [[nodiscard]] bool is_alive(int peer) const { return _segment.alive(peer); }
    /// Checks, at most every 10 ms, whether the peer is still there. The caller keeps the time of the last check in
    /// `looked`.
    [[nodiscard]] bool seems_gone(int peer, std::chrono::steady_clock::time_point& looked) const;
    void note_once(const std::string& reason);

    node::Segment& _segment;
    gpu::Runtime& _runtime;
    const Options _options;
    const transfer::Tuning& _tuning;
    const Note _note;
    const std::vector<SlotSet>* const _avoided;
    const int _own;
    Outbox _outbox;
    /// What is sent for each slot: an RTS and nothing after it. It lies here and not in the rendezvous sends, which are
    /// made for each message: so they are small enough for the quick ways of the allocator. A slot is used again only
    /// when its receiver has the RTS, or will never have it.
    std::vector<std::array<std::byte, kLongestRts>> _rts{kSlots};
    transfer::Exports _exports;
    transfer::ExportedPool _exported;
    mutable MappingAccount _mapping_account;
    transfer::Mappings _mappings;
    transfer::DeviceCopies& _copies;
    transfer::CpuWindow _window;

    std::mutex _mutex;  ///< guards everything below
    struct Peer {
        std::vector<SharedMapping> mappings;
        std::atomic<bool> waited_for{false};  ///< see wait_for_rts()
    };
    std::vector<Peer> _peers;
    std::vector<Ring> _rings;
    SharedMapping _small;
    bool _small_registration_tried = false;
    void* _probe_buffer = nullptr;
    bool _probe_buffer_tried = false;
    std::vector<std::string> _noted;
    std::vector<std::shared_ptr<RendezvousSend>> _lingering;
    std::vector<std::weak_ptr<RendezvousSend>> _exported_copies;
    /// Sends that their calls have left. They wait only for their receivers, which may still refuse the copies.
    std::vector<std::shared_ptr<RendezvousSend>> _left;
    static constexpr std::size_t kLeftEnough = 64;
    std::size_t _left_enough = kLeftEnough;  ///< so many in `_left` are worth a search for those that are over
    std::uint32_t _retired = 0;
    bool _shut_down = false;
    std::atomic<bool> _ending{false};  ///< gives up what only another process could complete
    std::shared_ptr<Readiness> _readiness;
    std::atomic<bool> _keeps_rings{false};  ///< trim_idle() has something to look at
    std::atomic<unsigned> _reclaims{0};
    Background _background;
};

}  // namespace awaken::ipc
