// The direct paths from this process to the others of its job on this node.
//
// A RendezvousSend is a message on its way out: its bytes stay where they are until the receiver fetches them, or were
// copied to where they may wait. A RendezvousGet is a message on its way in. Link makes both and owns what they share.
// None of it knows MPI: the RTS messages that connect a rendezvous send with its fetch are carried by whoever uses
// this.
//
// Which way a message goes is the sender's choice (see Link::start_send); the receiver takes it from where the slot
// says.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
#include "ipc/offers.h"
#include "ipc/readiness.h"
#include "node/segment.h"
#include "trace/trace.h"
#include "transfer/cpu_window.h"
#include "transfer/device_copies.h"
#include "transfer/exports.h"
#include "transfer/flat_type.h"
#include "transfer/mappings.h"
#include "transfer/pinned_pool.h"
#include "transfer/ring.h"
#include "transfer/tuning.h"

namespace awaken::ipc {

class Link;

/// The program sends more than the allocation has that its buffer lies in.
class BeyondAllocation final : public Error {
  public:
    using Error::Error;
};

/// How the bytes of a message travel, for the report.
enum class Route : std::uint8_t {
    pull,    ///< the receiver reads the sender's own memory
    copy,    ///< through a copy: exported device memory, or shared host memory for small messages
    ring,    ///< through chunks of shared host memory
    by_cpu,  ///< copied by the CPU through shared memory
};

/// A message on its way to another process.
class RendezvousSend final : public Job,
                             public Readiness::Source,
                             public Recycled<RendezvousSend>,
                             public std::enable_shared_from_this<RendezvousSend> {
  public:
    ~RendezvousSend() override;

    /// The RTS, to be sent in the message's place.
    [[nodiscard]] const std::byte* rts() const noexcept;
    [[nodiscard]] std::size_t rts_length() const noexcept { return rts_length_of(_ticket); }
    [[nodiscard]] Route route() const noexcept { return _route; }

    /// How long a receiver that does not come for the message is waited for before the message is copied out.
    enum class Patience : std::uint8_t {
        endless,  ///< nobody waits
        short_,   ///< a blocking send
        long_     ///< the completion of a nonblocking one
    };
    /// True when the buffer may be given back. Throws awaken::Error when a copy failed or the receiver died on the way.
    [[nodiscard]] bool advance(Patience patience);
    /// To be called when the RTS has been sent: waits until the program's work in the default stream is over, which
    /// the receiver's streams know nothing of, and lets the receiver read the buffer. Asking the runtime costs a
    /// microsecond, in which the RTS travels.
    void wait_until_ready();
    /// Whether wait_until_ready() has anything to wait for.
    [[nodiscard]] bool is_read_by_its_receiver() const noexcept { return !_is_copy && _ring == nullptr && !_withdrawn; }
    /// The work is over, with that outcome: see Readiness.
    void became_ready(const gpu::Status& status) noexcept override;
    /// The RTS could not be sent: takes the offer back.
    void withdraw() noexcept;
    /// Whether it needs to be asked now and then even when nobody waits for it.
    [[nodiscard]] bool wants_background() noexcept;
    bool pump() noexcept override;
    /// A copy in device memory, for which the sender does not wait any more, may be one that the receiver cannot map
    /// now: it gets it through a ring then.
    void serve_refused_copy() noexcept;
    /// The slot was given back by the receiver: nothing of it is in use any more.
    [[nodiscard]] bool is_over() const noexcept;

  private:
    friend class Link;
    using Clock = std::chrono::steady_clock;
    enum class Copying : std::uint8_t {
        no,
        to_host,    ///< shared
        to_device,  ///< exported
        to_itself,  ///< memory of this process's own, from where it goes through a ring
        tried       ///< the receiver came meanwhile
    };

    explicit RendezvousSend(Link& link) : _link(link) {}
    static std::size_t rts_length_of(Ticket ticket) noexcept { return ipc::rts_length(ticket.slot); }
    [[nodiscard]] bool step(Patience patience);
    [[nodiscard]] bool has_waited(Patience patience);
    void start_copying_out();
    [[nodiscard]] bool copy_to_small_place();
    void answer_refusal();
    [[nodiscard]] bool start_serving();
    [[nodiscard]] bool serve() noexcept;
    [[nodiscard]] bool spill_through_ring(const transfer::DeviceCopies::End& from);
    void start_ring(const transfer::RingMemory& memory, const transfer::DeviceCopies::End& from);
    [[nodiscard]] transfer::DeviceCopies::End source() const { return {_buffer, &_info, _typed}; }
    void start_parts(std::byte* target, const gpu::PointerInfo* target_info);
    [[nodiscard]] bool parts_done(bool publish);
    void check_alive();
    void release_all() noexcept;
    /// When it is over: gives back all it has, the slot too. Whoever asks later hears that the buffer is free.
    void give_back() noexcept;

    Link& _link;
    std::mutex _mutex;
    Ticket _ticket;
    int _peer = -1;
    std::byte* _buffer = nullptr;  ///< of typed memory: its lowest byte
    gpu::PointerInfo _info;
    std::shared_ptr<const transfer::TypedMemory> _typed;
    std::size_t _bytes = 0;
    Route _route = Route::pull;
    bool _is_copy = false;   ///< offered as a copy, which `_parts` are making
    trace::Stretch _traced;  ///< from the offer until the buffer is free
    std::atomic<bool> _free{false};
    std::atomic<bool> _not_ready{false};  ///< in the link's Readiness
    bool _withdrawn = false;
    std::optional<Error> _error;
    Clock::time_point _asked{};   ///< when somebody first waited
    Clock::time_point _looked{};  ///< when it was last seen that the receiver lives

    Copying _copying = Copying::no;
    transfer::Location _copy_location;
    gpu::PointerInfo _copy_info;                       ///< describes shared memory that the GPU runtime does not know
    std::vector<transfer::DeviceCopies::Copy> _parts;  ///< copies under way, in order
    std::vector<std::size_t> _part_ends;               ///< bytes that are there when each is done
    std::size_t _parts_done = 0;
    std::size_t _told = 0;  ///< bytes of which the receiver knows that they are there
    transfer::ExportedPool::Block _block;
    std::uint64_t _shared_offset = 0;
    std::size_t _shared_bytes = 0;
    std::byte* _shared = nullptr;
    std::unique_ptr<transfer::RingWriter> _ring;
    int _ring_index = -1;
    std::unique_ptr<std::byte[]> _kept;  ///< a copy of the message that the ring is filled from
    bool _serving = false;               ///< the buffer is free, and the ring is not done
};

/// A message on its way from another process.
class RendezvousGet final : public Job, public Recycled<RendezvousGet> {
  public:
    ~RendezvousGet() override;

    /// True when it is over, well or not.
    [[nodiscard]] bool advance() noexcept;
    /// Others are likely to be advanced next, and their copies to be given to the GPU along with this one's.
    void join_others() noexcept { _start = transfer::DeviceCopies::Start::together; }
    bool pump() noexcept override { return advance(); }
    [[nodiscard]] Route route() const noexcept { return _route; }
    [[nodiscard]] int peer() const noexcept { return _peer; }
    /// Bytes of the message, which may be more than fit.
    [[nodiscard]] std::size_t size() const noexcept { return _size; }
    /// Why it failed; look only when it is over.
    [[nodiscard]] const std::optional<Error>& error() const noexcept { return _error; }

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
    std::optional<Error> _error;
    Clock::time_point _looked{};

    [[nodiscard]] transfer::DeviceCopies::End target() const { return {_buffer, &_info, _typed}; }

    transfer::Mappings::Use _use;
    transfer::DeviceCopies::End _from;  ///< the first byte
    gpu::PointerInfo _host;             ///< describes shared memory that the GPU runtime does not know
    gpu::PointerInfo _own_info;         ///< of a message to oneself
    int _device = -1;
    std::size_t _asked_for = 0;  ///< bytes whose copy was started
    transfer::DeviceCopies::Start _start = transfer::DeviceCopies::Start::now;
    transfer::DeviceCopies::Copy _copy;
    std::shared_ptr<void> _held;  ///< shared memory that stays mapped
    std::byte* _mapped = nullptr;
    std::size_t _mapped_bytes = 0;
    std::unique_ptr<transfer::RingReader> _ring;
};

class Link {
  public:
    enum class Path : std::uint8_t { automatic, direct, ring };
    struct Options {
        Path path = Path::automatic;
        transfer::CopyEngine engine = transfer::CopyEngine::automatic;
        bool cpu_copy = true;
        transfer::Tuning tuning;
        transfer::Packer* packer = nullptr;  ///< for datatypes with gaps; outlives the link
    };
    /// Hears why a message did not go the fastest way.
    using Note = std::function<void(const std::string& reason)>;

    /// Bytes of each process's area in a segment of so many processes.
    [[nodiscard]] static std::size_t area_bytes(int processes) noexcept;

    /// @param avoided for each process of the segment, slots that must not be used towards it; outlives the link.
    Link(node::Segment& segment, gpu::Runtime& runtime, transfer::PinnedPool& pool, const Options& options, Note note,
         const std::vector<SlotSet>* avoided = nullptr);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    [[nodiscard]] int own() const noexcept { return _own; }
    [[nodiscard]] int processes() const noexcept { return static_cast<int>(_peers.size()); }
    /// From now on others may send RTS messages to this process.
    void take_rts() noexcept;
    [[nodiscard]] bool takes_rts(const int peer) const noexcept {
        return area(peer).takes_rts.load(std::memory_order_acquire) != 0;
    }

    /// Whether messages of that size from this process's host memory are worth an offer to `peer`, which received the
    /// last such one into device memory. Any receiver can fetch them; to others the MPI's own way is as good.
    [[nodiscard]] bool wants_from_host(const int peer, const std::int64_t bytes) const noexcept {
        return peer != _own && bytes >= least_from_host() && from_host(peer, _own).load(std::memory_order_relaxed) != 0;
    }
    [[nodiscard]] std::int64_t least_from_host() const noexcept {
        return static_cast<std::int64_t>(_tuning.host_offer_bytes);
    }
    /// Where a message of that size from `peer` went that had lain in host memory, as far as is known here.
    void received_from_host(int peer, std::int64_t bytes, bool to_device) noexcept;

    /// Offers `bytes` bytes of memory to `peer` (which may be this process). Null when they are to be
    /// sent plain: no slot is free, or no way is faster. Throws BeyondAllocation where the receiver would read
    /// something else than the buffer. `detached`: from a copy, which is made at once. `typed`: the
    /// bytes of a datatype with gaps; `buffer` is then the lowest one.
    [[nodiscard]] std::shared_ptr<RendezvousSend> start_send(
        int peer, void* buffer, const gpu::PointerInfo& info, std::size_t bytes, bool detached = false,
        std::shared_ptr<const transfer::TypedMemory> typed = nullptr);
    /// The same for a small message in host memory, which is copied at once. For messages whose length is an RTS's.
    [[nodiscard]] std::shared_ptr<RendezvousSend> wrap(int peer, const void* buffer, std::size_t bytes);
    /// The same as RendezvousSend::wait_until_ready(), for a send that does not wait: in a burst of these, one answer
    /// of the runtime's serves several.
    void wait_in_turn(const std::shared_ptr<RendezvousSend>& send);
    /// Lets receivers read what wait_in_turn() has left, as far as it is ready. Costs a load where nothing is left.
    void ask_readiness() noexcept { _readiness->ask(); }
    /// Called when the RTS has been sent and the buffer is free, or will never be: keeps the rendezvous send until the
    /// receiver is done with it.
    void retire(std::shared_ptr<RendezvousSend> send);

    /// A first look at memory that a message may be arriving in meanwhile; what it says has to be confirmed.
    [[nodiscard]] bool begins_like_rts(const std::byte* message) const noexcept;
    /// Whether a received message is an RTS, or a forgery of one: it is as short, and begins with the secret, which
    /// nothing else does. What else is wrong with it, start_get() finds.
    [[nodiscard]] bool is_rts(const std::byte* message, std::size_t length) const noexcept;
    /// Fetches what the RTS stands for: as much as fits into `capacity` bytes at `buffer`, which `info` describes
    /// (kind host for ordinary memory). The RTS is one that is_rts() knows. Null when it names no offer to this
    /// process: a forgery, or a message that was received before. `typed`: the place of the bytes is that of a datatype
    /// with gaps, for which can_move() was asked; `buffer` is then the lowest one.
    [[nodiscard]] std::shared_ptr<RendezvousGet> start_get(
        const std::byte* message, std::size_t length, void* buffer, const gpu::PointerInfo& info, std::size_t capacity,
        std::shared_ptr<const transfer::TypedMemory> typed = nullptr);
    /// Whether messages can be fetched to such memory, which `info` describes.
    [[nodiscard]] bool can_move(const transfer::TypedMemory& memory, const gpu::PointerInfo& info) {
        return _copies.can_move(info.device >= 0 ? info.device : any_device(), memory);
    }
    /// True size of a message from `peer` whose RTS has this length.
    [[nodiscard]] TrueSize size_of(int peer, std::size_t rts_length) const noexcept;

    /// The call ends and the rendezvous send does not: whatever it may still need is done in the background. Once for
    /// each.
    void leave(const std::shared_ptr<RendezvousSend>& send);
    Background& background() noexcept { return _background; }
    /// Gives back what was idle for long, as of that time: rings, and mappings of others' rings.
    void trim_idle(std::chrono::steady_clock::time_point now) noexcept;
    /// Gives back what receivers are done with.
    void release_finished() noexcept;
    /// Gives back to the driver what is not needed any more, where that waits for nothing. For calls of the program's
    /// only, see gpu.h. Costs a load or a look at a clock where there is nothing to do.
    void reclaim() noexcept;
    /// Waits until every rendezvous send was fetched or its receiver is gone; called after MPI_Finalize.
    void finish_sends() noexcept;
    /// Ends everything; called while the runtime is still there. Safe to call twice.
    void shut_down() noexcept;

    [[nodiscard]] const transfer::CpuWindow& cpu_window() const noexcept { return _window; }
    // For whoever else reaches other processes' memory: a runtime maps an allocation once, so there is one owner of
    // mappings in a process.
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
    /// A process's part of the segment. After it come two words for each process: see reachability() and from_host().
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
        std::chrono::steady_clock::time_point used{};  ///< when somebody wanted it last
        std::shared_ptr<void> held{};                  ///< whoever has a copy uses the memory
    };
    struct Ring {
        SharedMapping memory;  ///< none while nobody has needed it for long
        bool in_use = false;
    };

    [[nodiscard]] Area& area(const int process) const noexcept {
        return *reinterpret_cast<Area*>(_segment.area(process));
    }
    /// What `receiver` found about reading memory of `sender`.
    [[nodiscard]] std::atomic<std::uint32_t>& reachability(int receiver, int sender) const noexcept;
    /// Whether `receiver` wants what `sender` has in host memory to be offered.
    [[nodiscard]] std::atomic<std::uint32_t>& from_host(int receiver, int sender) const noexcept;
    [[nodiscard]] bool is_readable(const int receiver) const noexcept {
        return receiver != _own && reachability(receiver, _own).load(std::memory_order_acquire) == works;
    }
    [[nodiscard]] bool is_unreadable(const int receiver) const noexcept {
        return receiver != _own && reachability(receiver, _own).load(std::memory_order_acquire) == refused;
    }
    [[nodiscard]] Inbox inbox(const int peer) const noexcept { return {area(peer).offers, _own}; }

    [[nodiscard]] std::shared_ptr<RendezvousSend> reserve(int peer, std::size_t bytes);
    void publish(RendezvousSend& send, const transfer::Location& location, bool is_copy, std::uint64_t available,
                 const transfer::Strided* shape = nullptr);
    [[nodiscard]] bool send_by_cpu(RendezvousSend& send);
    [[nodiscard]] bool send_directly(RendezvousSend& send);
    [[nodiscard]] bool send_copy(RendezvousSend& send);
    [[nodiscard]] bool send_through_ring(RendezvousSend& send);
    [[nodiscard]] bool send_from_host(RendezvousSend& send);
    /// Lets go on what calls have left; true when some of it is not over.
    bool pump_left() noexcept;
    [[nodiscard]] bool has_probe_buffer(int device);
    [[nodiscard]] bool small_space();
    [[nodiscard]] std::byte* small_place(const Ticket ticket) const noexcept {
        return _small.base + ticket.slot * _tuning.small_bytes;
    }
    [[nodiscard]] transfer::Location small_location(Ticket ticket) const noexcept;
    /// A ring for a message, which then has it; false when none is free and there is no memory for another.
    [[nodiscard]] bool find_ring(RendezvousSend& send, transfer::Location& location, transfer::RingMemory& memory);
    /// The place of the slot's small messages as a ring.
    [[nodiscard]] bool find_small_ring(Ticket ticket, transfer::Location& location, transfer::RingMemory& memory);
    [[nodiscard]] int take_ring();
    void give_back_ring(int index) noexcept;

    /// Tries a real open and a checked copy of the peer's probe buffer, once. False, with the reason noted, when it is
    /// no use.
    [[nodiscard]] bool can_read(int peer, int device);
    /// Memory of the segment that stays mapped: the peer's small messages and rings.
    [[nodiscard]] SharedMapping lasting_mapping(int peer, std::uint64_t offset, std::size_t bytes, bool is_ring);
    void reclaim_idle();
    /// The rendezvous send has a copy in exported memory, which its receiver may refuse when nobody looks at the
    /// rendezvous send: it may have gone on, or wait for a message of the receiver's.
    void watch_copy(RendezvousSend& send);
    void forget(SharedMapping& mapping) noexcept;
    void map_registered(std::uint64_t offset, std::size_t bytes, SharedMapping& mapping);
    [[nodiscard]] int any_device() const noexcept;
    [[nodiscard]] bool is_alive(int peer) const { return _segment.alive(peer); }
    /// Looks, at most every 10 ms, whether the peer is still there; `looked` is the caller's memory of the last time.
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
    /// What is sent for each slot: an RTS and nothing after it. Here and not in the rendezvous sends, which are made
    /// for each message and are small enough for the quick ways of the allocator so. A slot is used again only when its
    /// receiver has the RTS, or will never have it.
    std::vector<std::array<std::byte, kLongestRts>> _rts{kSlots};
    transfer::Exports _exports;
    transfer::ExportedPool _exported;
    transfer::Mappings _mappings;
    transfer::DeviceCopies _copies;
    transfer::CpuWindow _window;

    std::mutex _mutex;  ///< of everything below
    struct Peer {
        std::vector<SharedMapping> mappings;
    };
    std::vector<Peer> _peers;
    std::vector<Ring> _rings;
    SharedMapping _small;
    void* _probe_buffer = nullptr;
    bool _probe_buffer_tried = false;
    std::vector<std::string> _noted;
    std::vector<std::shared_ptr<RendezvousSend>> _lingering;
    std::vector<std::weak_ptr<RendezvousSend>> _exported_copies;
    /// Left by their calls, and waiting for nothing but their receivers, which may yet refuse them.
    std::vector<std::shared_ptr<RendezvousSend>> _left;
    static constexpr std::size_t kLeftEnough = 64;
    std::size_t _left_enough = kLeftEnough;  ///< to look for those that are over
    std::uint32_t _retired = 0;
    bool _shut_down = false;
    std::atomic<bool> _ending{false};  ///< what only another process could bring on is given up
    std::shared_ptr<Readiness> _readiness;
    std::atomic<bool> _keeps_rings{false};  ///< trim_idle() has something to look at
    std::atomic<unsigned> _reclaims{0};
    Background _background;
};

}  // namespace awaken::ipc
