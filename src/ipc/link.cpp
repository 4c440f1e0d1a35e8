#include "ipc/link.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <thread>
#include <utility>

#include "base/backoff.h"
#include "base/round_up.h"
#include "base/step_probe.h"

namespace awaken::ipc {

using transfer::Location;

namespace {

/// Adding this many rendezvous sends that wait for their receivers makes the link look through all of them.
constexpr std::uint32_t kLookEvery = 16;
/// Receivers get longer messages by a copy of their own (transfer/device_copies.cpp).
constexpr std::size_t kSmallMessage = std::size_t{64} << 10;
/// Bounds on the memory of another process that this one keeps mapped and registered.
constexpr std::size_t kMostKept = std::size_t{1} << 30;
constexpr std::size_t kMostMappings = 1024;
/// Of a GPU, by copies that are made because mapping their originals does not pay yet.
constexpr std::size_t kMostBeforeMapping = std::size_t{16} << 20;
/// Other programs need shared memory, too: the link gives back what was not used for this long.
constexpr std::chrono::seconds kIdle{5};
/// A copy takes memory that the program may want, so copies take at most this part of a card.
constexpr std::size_t kPart = 32;
/// A mapping keeps memory alive for a short while after its owner has freed it. Mappings take at most this part of the
/// owner's card.
constexpr std::size_t kMappedPart = 16;
constexpr std::size_t kMostMapped = std::size_t{16} << 30;

std::size_t part_of_card(gpu::Runtime& runtime, const std::size_t part) {
    gpu::DeviceInfo info;
    if (runtime.device_count() > 0 && runtime.device_info(0, info).ok() && info.memory_bytes != 0) {
        return std::min(kMostMapped, info.memory_bytes / part);
    }
    return kMostMapped;
}

}  // namespace

report::Path path_of(const Route route) noexcept {
    switch (route) {
        case Route::pull:
            return report::Path::direct;
        case Route::copy:
        case Route::by_cpu:
            return report::Path::copied;
        case Route::ring:
            break;
    }
    return report::Path::ring;
}

std::size_t Link::area_bytes(const int processes) noexcept {
    return round_up(sizeof(Area), 64) + static_cast<std::size_t>(processes) * sizeof(PairWords);
}

Link::Link(node::Segment& segment, gpu::Runtime& runtime, transfer::DeviceCopies& copies, const Options& options,
           Note note, const std::vector<SlotSet>* const avoided)
    : _segment(segment),
      _runtime(runtime),
      _options(options),
      _tuning(_options.tuning),
      _note(std::move(note)),
      _avoided(avoided),
      _own(segment.own_index()),
      _outbox(area(_own).offers),
      _exports(runtime, part_of_card(runtime, kMappedPart)),
      _exported(runtime, _exports, {.bytes = std::min(options.tuning.bounce_pool_bytes, part_of_card(runtime, kPart))}),
      _mappings(runtime, {.bytes = part_of_card(runtime, kMappedPart)}),
      _copies(copies),
      _window(runtime, options.cpu_copy),
      _peers(static_cast<std::size_t>(segment.processes())),
      _readiness(std::make_shared<Readiness>(runtime, Readiness::Pace(options.tuning.send_burst))),
      _background([this] {
          release_finished();
          return pump_left() || _exported.statistics().lent_bytes != 0;
      }) {}

void Link::reclaim_idle() {
    _background.reclaim_idle();
}

void Link::reclaim() noexcept {
    _mappings.reclaim();
    _exported.trim_idle();
    _runtime.close_idle_exports();
    _runtime.do_deferred();
    constexpr unsigned kSeldom = 256;
    if (_keeps_rings.load(std::memory_order_relaxed) &&
        _reclaims.fetch_add(1, std::memory_order_relaxed) % kSeldom == kSeldom - 1) {
        trim_idle(std::chrono::steady_clock::now());
    }
}

void Link::trim_idle(const std::chrono::steady_clock::time_point now) noexcept {
    const auto is_idle_ring = [now](const Ring& ring) {
        return !ring.in_use && ring.memory.base != nullptr && now - ring.memory.used > kIdle;
    };
    const auto is_used = [now](const SharedMapping& mapping) {
        return mapping.held.use_count() > 1 || now - mapping.used <= kIdle;
    };
    std::vector<SharedMapping> idle;
    std::size_t own = 0;
    {
        const std::scoped_lock lock(_mutex);
        if (_shut_down) {
            return;
        }
        // Asks whether the GPU is idle only when there is something to give back. Unregistering would wait for a busy
        // GPU.
        const bool some = std::any_of(_rings.begin(), _rings.end(), is_idle_ring) ||
                          std::any_of(_peers.begin(), _peers.end(), [&](const Peer& peer) {
                              return !std::all_of(peer.mappings.begin(), peer.mappings.end(), is_used);
                          });
        if (some && !_runtime.is_idle(-1)) {
            return;
        }
        for (Ring& ring : _rings) {
            if (is_idle_ring(ring)) {
                idle.push_back(std::exchange(ring.memory, {}));
            }
        }
        own = idle.size();
        for (Peer& peer : _peers) {
            const auto first_idle = std::partition(peer.mappings.begin(), peer.mappings.end(), is_used);
            idle.insert(idle.end(), std::make_move_iterator(first_idle), std::make_move_iterator(peer.mappings.end()));
            peer.mappings.erase(first_idle, peer.mappings.end());
        }
        const bool keeps =
            std::any_of(_rings.begin(), _rings.end(), [](const Ring& ring) { return ring.memory.base != nullptr; }) ||
            std::any_of(_peers.begin(), _peers.end(), [](const Peer& peer) { return !peer.mappings.empty(); });
        _keeps_rings.store(keeps, std::memory_order_relaxed);
    }
    for (std::size_t i = 0; i < idle.size(); ++i) {
        const std::uint64_t offset = idle[i].offset;
        const std::size_t bytes = idle[i].bytes;
        forget(idle[i]);
        if (i < own) {
            _segment.release(offset, bytes);
        }
    }
}

void Link::forget(SharedMapping& mapping) noexcept {
    if (mapping.base == nullptr) {
        return;
    }
    if (mapping.registered) {
        // Registered memory stays mapped until then.
        _runtime.when_idle(-1, [&runtime = _runtime, base = mapping.base, bytes = mapping.bytes] {
            static_cast<void>(runtime.unregister_host(base));
            node::Segment::unmap(base, bytes);
        });
    } else {
        node::Segment::unmap(mapping.base, mapping.bytes);
    }
    mapping = {};
}

Link::~Link() {
    shut_down();
}

void Link::take_rts() noexcept {
    area(_own).takes_rts.store(1, std::memory_order_release);
}

Link::PairWords& Link::pair(const int receiver, const int sender) const noexcept {
    return reinterpret_cast<PairWords*>(_segment.area(receiver) + round_up(sizeof(Area), 64))[sender];
}

bool Link::wait_for_rts(const int peer, const std::size_t bytes) noexcept {
    if (!_peers[static_cast<std::size_t>(peer)].waited_for.exchange(true, std::memory_order_relaxed)) {
        const auto limit = std::chrono::steady_clock::now() + watch(_tuning.first_watch, bytes);
        for (Backoff backoff; !takes_rts(peer) && std::chrono::steady_clock::now() < limit;) {
            if (backoff.turn()) {
                backoff.pause();
            }
        }
    }
    return takes_rts(peer);
}

void Link::received_from_host(const int peer, const std::int64_t bytes, const bool to_device) noexcept {
    if (peer == _own || bytes < least_from_host()) {
        return;
    }
    std::atomic<std::uint32_t>& word = pair(_own, peer).from_host;
    const std::uint32_t wanted = to_device ? 1 : 0;
    // Relaxed, as it is only a hint: the message arrives either way.
    if (word.load(std::memory_order_relaxed) != wanted) {
        word.store(wanted, std::memory_order_relaxed);
    }
}

int Link::any_device() const noexcept {
    return _runtime.device_to_use();
}

bool Link::seems_gone(const int peer, std::chrono::steady_clock::time_point& looked) const {
    constexpr std::chrono::milliseconds kBetweenLooks{10};  // each look costs a system call or two
    const auto now = std::chrono::steady_clock::now();
    if (looked == std::chrono::steady_clock::time_point{}) {
        looked = now;
        return false;
    }
    if (now - looked <= kBetweenLooks) {
        return false;
    }
    looked = now;
    return peer != _own && !is_alive(peer);
}

void Link::note_once(const std::string& reason) {
    {
        const std::scoped_lock lock(_mutex);
        if (std::find(_noted.begin(), _noted.end(), reason) != _noted.end()) {
            return;
        }
        _noted.push_back(reason);
    }
    _note(reason);
}

// ---- sending --------------------------------------------------------------------------------------------------------

std::shared_ptr<RendezvousSend> Link::reserve(const int peer, const std::size_t bytes) {
    AWAKEN_STEP("Isend: reserve");
    static const SlotSet kNone;
    const SlotSet& avoided = _avoided != nullptr ? (*_avoided)[static_cast<std::size_t>(peer)] : kNone;
    auto ticket = _outbox.reserve(avoided);
    if (!ticket) {
        release_finished();
        ticket = _outbox.reserve(avoided);
        if (!ticket) {
            note_once("more than " + std::to_string(kSlots) +
                      " messages under way at a time: those beyond were sent through host memory");
            return nullptr;
        }
    }
    std::shared_ptr<RendezvousSend> send(new RendezvousSend(*this), std::default_delete<RendezvousSend>{},
                                         RecyclingAllocator<RendezvousSend>{});
    send->_ticket = *ticket;
    send->_peer = peer;
    send->_bytes = bytes;
    return send;
}

void Link::publish(RendezvousSend& send, const Location& location, const bool is_copy, const std::uint64_t available,
                   const transfer::Strided* const shape) {
    AWAKEN_STEP("Isend: publish");
    Rts rts{};
    rts.secret = _segment.secret();
    rts.sender = static_cast<std::uint32_t>(_own);
    rts.slot = send._ticket.slot;
    rts.generation = send._ticket.generation;
    std::memcpy(_rts[rts.slot].data(), &rts, sizeof rts);
    send._is_copy = is_copy;
    send._traced.begin(trace::Kind::background, "message offered", send._bytes, -1,
                       _segment.process(send._peer).world_rank);
    if (is_copy) {
        _outbox.offer_copy(send._ticket, send._peer, send._bytes, location, available);
    } else {
        _outbox.offer(send._ticket, send._peer, send._bytes, location, shape);
    }
}

void Link::describe(const int peer, const gpu::PointerInfo& memory, protocol::SendFacts& facts) const noexcept {
    using Facts = protocol::SendFacts;
    facts.receiver = peer == _own ? Facts::Receiver::itself : Facts::Receiver::on_node;
    if (peer != _own) {
        const std::uint32_t known = pair(peer, _own).reachability.load(std::memory_order_acquire);
        facts.reach = known == works     ? Facts::Reach::works
                      : known == refused ? Facts::Reach::refused
                                         : Facts::Reach::untried;
        if (facts.exported_by == Facts::Export::descriptors &&
            pair(peer, _own).descriptors_refused.load(std::memory_order_relaxed) != 0) {
            facts.exported_by = Facts::Export::no;
        }
        facts.mapping_pays = !MappingAccount::counts(memory) || facts.bytes > _tuning.copy_first_bytes ||
                             _mapping_account.pays(peer, memory, std::chrono::steady_clock::now());
    }
    facts.wants_from_host = wants_from_host(peer, static_cast<std::int64_t>(facts.bytes));
    facts.allowed = _options.path;
    facts.cpu_reaches_memory = _window.usable();
}

std::shared_ptr<OutgoingMessage> Link::start_send(const int peer, const Buffer& from,
                                                  const protocol::SendPaths& paths) {
    AWAKEN_STEP("Isend: start_send");
    if (paths.begin() == paths.end() || !protocol::is_on_node(*paths.begin())) {
        return nullptr;
    }
    std::shared_ptr<RendezvousSend> send = reserve(peer, from.bytes);
    if (send == nullptr) {
        return nullptr;
    }
    send->_buffer = from.first;
    send->_info = from.info;
    send->_typed = from.typed;
    try {
        // A thread that uses no GPU gets no context for a message in host memory. No work that the program's
        // synchronous-looking calls left behind may still write device memory when another process reads it.
        // RendezvousSend::wait_until_ready() waits for work in the default stream.
        int device = from.info.device;
        const bool usable = from.info.host_accessible()
                                ? _runtime.current_device(device).ok() && device >= 0
                                : _runtime.order_after_default_stream(from.first, from.info).ok();
        device = device >= 0 ? device : any_device();
        // The receiver of a first message tries whether it can read this process's memory, whichever path that takes.
        const bool is_probed = usable && peer != _own && _options.path != Allowed::ring && has_probe_buffer(device);
        for (const protocol::SendPath path : paths) {
            const bool is_read = path == protocol::SendPath::pull || path == protocol::SendPath::exported ||
                                 path == protocol::SendPath::before_mapping;
            if (usable && (is_probed || peer == _own || !is_read) && offer(path, *send)) {
                return send;
            }
        }
    } catch (const BeyondAllocation&) {
        send->withdraw();
        throw;
    } catch (const Error& error) {
        // The copy could not even be started. The plain way may work, and says why when it does not.
        note_once(error.what());
    }
    send->withdraw();
    return nullptr;
}

std::shared_ptr<OutgoingMessage> Link::start_failed(const int peer, const std::size_t bytes, const Error& error) {
    std::shared_ptr<RendezvousSend> send = reserve(peer, bytes);
    if (send != nullptr) {
        publish(*send, Location{}, true, 0);
        send->_error = error;
    }
    return send;
}

/// Offers the message in this way. False when that is not possible now.
bool Link::offer(const protocol::SendPath path, RendezvousSend& send) {
    using protocol::SendPath;
    switch (path) {
        case SendPath::by_cpu:
            return send_by_cpu(send);
        case SendPath::own: {
            Location location;
            location.kind = Location::Kind::own;
            location.address = reinterpret_cast<std::uintptr_t>(send._buffer);
            publish(send, location, false, 0);
            return true;
        }
        case SendPath::pull:
            return send_directly(send);
        case SendPath::exported:
            return send_copy(send);
        case SendPath::before_mapping:
            // A receiver that has not tried yet may refuse the copy: see watch_copy(). Then small_space() is the memory
            // that is left for it when there is none for rings.
            if (!small_space() || _exported.statistics().lent_bytes + send._bytes > kMostBeforeMapping) {
                return false;
            }
            send._copy_began = std::chrono::steady_clock::now();
            return send_copy_in_device_memory(send);
        case SendPath::ring:
            return send_through_ring(send);
        default:
            return false;
    }
}

std::shared_ptr<OutgoingMessage> Link::wrap(const int peer, const void* const buffer, const std::size_t bytes) {
    if (bytes > _tuning.small_bytes || !small_space()) {
        return nullptr;
    }
    std::shared_ptr<RendezvousSend> send = reserve(peer, bytes);
    if (send == nullptr) {
        return nullptr;
    }
    std::memcpy(small_place(send->_ticket), buffer, bytes);
    send->_route = Route::by_cpu;
    publish(*send, small_location(send->_ticket), true, bytes);
    send->_free = true;
    send->_traced.end();
    return send;
}

bool Link::send_by_cpu(RendezvousSend& send) {
    if (!small_space() || !_runtime.finish_default_stream(send._info.device).ok() ||
        !_window.to_host(small_place(send._ticket), send._buffer, send._info, send._bytes)) {
        return false;
    }
    send._route = Route::by_cpu;
    publish(send, small_location(send._ticket), true, send._bytes);
    send._free = true;
    send._traced.end();
    return true;
}

bool Link::send_directly(RendezvousSend& send) {
    AWAKEN_STEP("Isend: directly");
    if (!small_space()) {
        // A receiver that cannot read this memory would wait for a copy that there is no memory for.
        note_once("no shared memory for messages that their receiver may refuse: they were staged");
        return false;
    }
    std::optional<transfer::Strided> shape;
    if (send._typed != nullptr) {
        shape = send._typed->strided;
        // Makes the offset count from the lowest byte, which the location describes.
        shape->offset +=
            static_cast<std::int64_t>(send._typed->origin - reinterpret_cast<std::uintptr_t>(send._buffer));
    }
    Location location;
    const gpu::Status status = [&] {
        AWAKEN_STEP("Isend: describe");
        const std::size_t extent = shape ? static_cast<std::size_t>(shape->end()) : send._bytes;
        return _exports.describe(send._buffer, extent, send._info, location, send._export);
    }();
    if (!status.ok()) {
        note_once("memory that IPC cannot export: " + status.message());
        return false;
    }
    if (!lies_within(location, shape ? &*shape : nullptr, send._bytes)) {
        throw BeyondAllocation("a message of " + std::to_string(send._bytes) + " bytes leaves the allocation of " +
                                   std::to_string(send._info.size) + " bytes in which its buffer begins at byte " +
                                   std::to_string(reinterpret_cast<std::uintptr_t>(send._buffer) - send._info.base),
                               "pass a count that fits, or allocate more");
    }
    send._route = Route::pull;
    publish(send, location, false, 0, shape ? &*shape : nullptr);
    return true;
}

bool Link::send_copy(RendezvousSend& send) {
    if (send._bytes <= _tuning.small_bytes && small_space()) {
        send._copy_info = {};
        publish(send, small_location(send._ticket), true, 0);
        send.start_parts(small_place(send._ticket), gpu_reaches_small_space() ? nullptr : &send._copy_info);
        send._route = Route::copy;
        return true;
    }
    return send_copy_in_device_memory(send);
}

bool Link::send_copy_in_device_memory(RendezvousSend& send) {
    const int device = send._info.device >= 0 ? send._info.device : any_device();
    release_finished();  // the block of the previous message may be free again
    send._block = _exported.acquire(device, send._bytes);
    if (!send._block) {
        note_once("no exported device memory left for a copy of a message");
        return false;
    }
    Location location = send._block.location();
    if (send._peer == _own) {
        location.kind = Location::Kind::own;
        location.address = reinterpret_cast<std::uintptr_t>(send._block.data());
    }
    publish(send, location, true, 0);
    send.start_parts(send._block.data(), nullptr);
    send._route = Route::copy;
    // Not before it is published: a message that is not there yet counts as over.
    watch_copy(send);
    return true;
}

bool Link::send_through_ring(RendezvousSend& send) {
    if (send._bytes <= _tuning.small_bytes && small_space()) {
        send._copy_info = {};
        publish(send, small_location(send._ticket), true, 0);
        send.start_parts(small_place(send._ticket), gpu_reaches_small_space() ? nullptr : &send._copy_info);
        send._route = Route::copy;
        return true;
    }
    Location location;
    transfer::RingMemory memory;
    if (!find_ring(send, location, memory)) {
        // Rings of messages that their receivers have got meanwhile are free.
        release_finished();
        if (!find_ring(send, location, memory)) {
            note_once("no ring free, and no shared memory for another: messages were staged");
            return false;
        }
    }
    send._route = Route::ring;
    publish(send, location, false, 0);
    send.start_ring(memory, send.source());
    return true;
}

bool Link::find_ring(RendezvousSend& send, Location& location, transfer::RingMemory& memory) {
    if (send._ring_index < 0) {
        send._ring_index = take_ring();
        if (send._ring_index < 0) {
            return false;
        }
    }
    const std::scoped_lock lock(_mutex);
    const SharedMapping& ring = _rings[static_cast<std::size_t>(send._ring_index)].memory;
    location.kind = Location::Kind::ring;
    location.offset = ring.offset;
    location.allocation_bytes = ring.bytes;
    location.chunk_bytes = _tuning.ring_chunk_bytes;
    memory = {ring.base, _tuning.ring_chunk_bytes, _tuning.ring_chunks, ring.registered};
    return true;
}

bool Link::find_small_ring(const Ticket ticket, Location& location, transfer::RingMemory& memory) {
    if (!small_space()) {
        return false;
    }
    constexpr std::size_t kChunks = 2;
    location = small_location(ticket);
    location.kind = Location::Kind::ring;
    location.chunk_bytes = _tuning.small_bytes / kChunks;
    memory = {small_place(ticket), location.chunk_bytes, kChunks, gpu_reaches_small_space()};
    return true;
}

/// Maps shared memory that stays mapped, and registers it with the GPU runtime when that agrees.
void Link::map_shared(const std::uint64_t offset, const std::size_t bytes, SharedMapping& mapping) {
    mapping.base = _segment.map(offset, bytes);
    if (mapping.base == nullptr) {
        return;
    }
    mapping.offset = offset;
    mapping.bytes = bytes;
    mapping.used = std::chrono::steady_clock::now();
    mapping.held = std::make_shared<char>();
    _keeps_rings.store(true, std::memory_order_relaxed);
}

void Link::map_registered(const std::uint64_t offset, const std::size_t bytes, SharedMapping& mapping) {
    map_shared(offset, bytes, mapping);
    mapping.registered = mapping.base != nullptr && _runtime.register_host(mapping.base, bytes).ok();
}

bool Link::small_space() {
    const std::scoped_lock lock(_mutex);
    if (_small.base != nullptr) {
        return true;
    }
    const std::size_t bytes = kSlots * _tuning.small_bytes;
    const auto offset = _segment.allocate(bytes);
    if (!offset) {
        return false;
    }
    map_shared(*offset, bytes, _small);
    if (_small.base == nullptr) {
        _segment.release(*offset, bytes);
        return false;
    }
    area(_own).small_bytes.store(bytes, std::memory_order_relaxed);  // published by the offset's release
    area(_own).small_offset.store(*offset, std::memory_order_release);
    return true;
}

bool Link::gpu_reaches_small_space() {
    const std::scoped_lock lock(_mutex);
    if (!std::exchange(_small_registration_tried, true)) {
        _small.registered = _runtime.register_host(_small.base, _small.bytes).ok();
    }
    return _small.registered;
}

Location Link::small_location(const Ticket ticket) const noexcept {
    Location location;
    location.kind = Location::Kind::shared;
    location.offset = _small.offset + ticket.slot * _tuning.small_bytes;
    location.allocation_bytes = _tuning.small_bytes;
    return location;
}

int Link::take_ring() {
    const std::scoped_lock lock(_mutex);
    std::size_t place = _rings.size();
    for (std::size_t i = 0; i < _rings.size(); ++i) {
        if (!_rings[i].in_use && _rings[i].memory.base != nullptr) {
            _rings[i].in_use = true;
            return static_cast<int>(i);
        }
        place = _rings[i].in_use ? place : std::min(place, i);
    }
    if (place >= _tuning.rings) {
        return -1;
    }
    const std::size_t bytes = _tuning.ring_chunk_bytes * _tuning.ring_chunks;
    const auto offset = _segment.allocate(bytes);
    if (!offset) {
        return -1;
    }
    Ring ring;
    map_registered(*offset, bytes, ring.memory);
    if (ring.memory.base == nullptr) {
        _segment.release(*offset, bytes);
        return -1;
    }
    ring.in_use = true;
    if (place == _rings.size()) {
        _rings.emplace_back();
    }
    _rings[place] = std::move(ring);
    return static_cast<int>(place);
}

void Link::give_back_ring(const int index) noexcept {
    const std::scoped_lock lock(_mutex);
    Ring& ring = _rings[static_cast<std::size_t>(index)];
    ring.in_use = false;
    ring.memory.used = std::chrono::steady_clock::now();
}

void Link::wait_in_turn(std::shared_ptr<RendezvousSend> send) {
    AWAKEN_STEP("Isend: wait_in_turn");
    RendezvousSend& self = *send;
    const Readiness::Clock::time_point now = Readiness::Clock::now();
    if (!self.is_read_by_its_receiver() || !_readiness->in_burst(now)) {
        self.wait_until_ready();
        return;
    }
    gpu::EventHandle mark;
    const int device = self._info.device >= 0 ? self._info.device : any_device();
    const gpu::Status status = _runtime.mark_default_stream(device, mark);
    if (!status.ok() || mark.value == nullptr) {
        self.became_ready(status);
        return;
    }
    self._not_ready.store(true, std::memory_order_release);
    try {
        if (_readiness->add(std::move(send), mark, self._bytes > kSmallMessage, now)) {
            _background.take(_readiness);
        }
    } catch (const std::bad_alloc&) {
        // The RTS was sent, and its receiver must not wait for ever. The caller keeps the message.
        _readiness->forget(self);
        self._not_ready.store(false, std::memory_order_release);
        self.wait_until_ready();
    }
}

void Link::retire(std::shared_ptr<RendezvousSend> send) {
    AWAKEN_STEP("retire");
    if (send->_withdrawn) {
        return;
    }
    if (send->is_over()) {
        send->give_back();
        return;
    }
    bool look_through = false;
    {
        const std::scoped_lock lock(_mutex);
        _lingering.push_back(std::move(send));
        look_through = ++_retired % kLookEvery == 0;
    }
    if (look_through) {
        release_finished();
    }
}

void Link::leave(std::shared_ptr<RendezvousSend> send) {
    AWAKEN_STEP("Isend: leave");
    if (send->_free.load(std::memory_order_acquire)) {
        return;
    }
    if (send->wants_background() || !is_readable(send->_peer)) {
        _background.take(std::move(send));
        return;
    }
    // The send needs work only in the rare case that the receiver cannot map its memory, so a look now and then is
    // enough. Until the next look there may be thousands of such sends, most of which are over.
    std::vector<std::shared_ptr<RendezvousSend>> over;
    {
        const std::scoped_lock lock(_mutex);
        if (_left.size() >= _left_enough) {
            const auto first_over =
                std::partition(_left.begin(), _left.end(), [](const auto& each) { return !each->_free.load(); });
            over.assign(std::make_move_iterator(first_over), std::make_move_iterator(_left.end()));
            _left.erase(first_over, _left.end());
            _left_enough = std::max(kLeftEnough, 2 * _left.size());
        }
        _left.push_back(std::move(send));
    }
    reclaim_idle();
}

bool Link::pump_left() noexcept {
    std::vector<std::shared_ptr<RendezvousSend>> left;
    {
        const std::scoped_lock lock(_mutex);
        left.swap(_left);
    }
    left.erase(std::remove_if(left.begin(), left.end(),
                              [this](const auto& send) {
                                  if (send->pump()) {
                                      return true;
                                  }
                                  if (!send->wants_background()) {
                                      return false;
                                  }
                                  _background.take(send);  // was refused: a look now and then is too little
                                  return true;
                              }),
               left.end());
    const std::scoped_lock lock(_mutex);
    _left.insert(_left.end(), left.begin(), left.end());
    return !_left.empty();
}

void Link::watch_copy(RendezvousSend& send) {
    {
        const std::scoped_lock lock(_mutex);
        _exported_copies.push_back(send.weak_from_this());
    }
    if (send._peer != _own && !is_readable(send._peer)) {
        _background.take(send.shared_from_this());  // it may well be refused: a look now and then is too little
    }
    reclaim_idle();
}

void Link::release_finished() noexcept {
    std::vector<std::shared_ptr<RendezvousSend>> over, copies;
    {
        const std::scoped_lock lock(_mutex);
        std::erase_if(_exported_copies, [&](const std::weak_ptr<RendezvousSend>& copy) {
            std::shared_ptr<RendezvousSend> send = copy.lock();
            const bool gone = send == nullptr || send->is_over();
            if (send != nullptr) {
                copies.push_back(std::move(send));  // the last owner destroys the send after the lock is released
            }
            return gone;
        });
        for (std::size_t i = 0; i < _lingering.size();) {
            if (_lingering[i]->is_over()) {
                over.push_back(std::move(_lingering[i]));
                _lingering[i] = std::move(_lingering.back());
                _lingering.pop_back();
            } else {
                ++i;
            }
        }
    }
    for (const std::shared_ptr<RendezvousSend>& send : over) {
        send->give_back();
    }
    for (const std::shared_ptr<RendezvousSend>& send : copies) {
        send->serve_refused_copy();
    }
}

void Link::finish_sends() noexcept {
    // A process that says that it takes no RTS messages any more has received all that it wanted.
    area(_own).takes_rts.store(0, std::memory_order_release);
    for (;;) {
        ask_readiness();
        release_finished();
        std::vector<std::shared_ptr<RendezvousSend>> rest;
        {
            const std::scoped_lock lock(_mutex);
            rest = _lingering;
        }
        for (const std::shared_ptr<RendezvousSend>& send : rest) {
            send->pump();  // where there is no thread for the send
        }
        const bool any = std::any_of(rest.begin(), rest.end(), [this](const auto& send) {
            return !send->is_over() && send->_peer != _own && takes_rts(send->_peer) && is_alive(send->_peer);
        });
        if (!any) {
            return;
        }
        std::this_thread::yield();
    }
}

// ---- receiving ------------------------------------------------------------------------------------------------------

bool Link::is_rts(const std::byte* const message, const std::size_t length) const noexcept {
    if (length < sizeof(Rts) || length > kLongestRts) {
        return false;
    }
    Rts rts;
    std::memcpy(&rts, message, sizeof rts);
    return rts.secret == _segment.secret();
}

TrueSize Link::size_of(const int peer, const std::size_t length) const noexcept {
    return inbox(peer).size_of(length);
}

std::shared_ptr<IncomingMessage> Link::start_receive(const std::byte* const message, const std::size_t length,
                                                     const Buffer& into) {
    AWAKEN_STEP("wait: start_receive");
    if (!is_rts(message, length)) {
        return nullptr;
    }
    Rts rts;
    std::memcpy(&rts, message, sizeof rts);
    if (rts.sender >= _peers.size() || rts.slot >= kSlots || length != rts_length(rts.slot)) {
        return nullptr;
    }
    const int peer = static_cast<int>(rts.sender);
    auto claim = inbox(peer).claim(rts);
    if (!claim) {
        return nullptr;
    }
    std::shared_ptr<RendezvousGet> get(new RendezvousGet(*this), std::default_delete<RendezvousGet>{},
                                       RecyclingAllocator<RendezvousGet>{});
    get->_peer = peer;
    get->_claim = *claim;
    get->_buffer = into.first;
    get->_info = into.info;
    get->_typed = into.typed;
    get->_size = claim->bytes;
    get->_wanted = std::min<std::size_t>(claim->bytes, into.bytes);
    get->_traced.begin(trace::Kind::background, "message fetched", get->_wanted, -1, _segment.process(peer).world_rank);
    if (peer != _own && _options.path != Allowed::ring &&
        area(peer).probe_buffer.there.load(std::memory_order_acquire) != 0) {
        // Tests the path at first use, whichever way the message came: the result decides how the next messages are
        // sent.
        static_cast<void>(can_read(peer, into.info.device >= 0 ? into.info.device : any_device()));
    }
    try {
        if (get->_wanted != 0) {
            get->begin();
        }
    } catch (const Error& error) {
        get->_error = error;
        get->finish();
    } catch (const std::bad_alloc&) {
        get->_error = Error("out of host memory while a message was fetched", "free memory, or send smaller messages");
        get->finish();
    }
    return get;
}

/// The driver copies these few bytes from or to ordinary memory while it is called. The first block of pinned memory
/// would cost the first message 1.3 ms.
void Link::copy_at_once(const int device, void* const destination, const void* const source, const std::size_t bytes) {
    _copies
        .give(device, 0, bytes,
              [=](gpu::Runtime& runtime, const gpu::StreamHandle stream) {
                  return runtime.copy(destination, source, bytes, stream);
              })
        .wait();
}

bool Link::has_probe_buffer(const int device) {
    ProbeBuffer& probe_buffer = area(_own).probe_buffer;
    if (probe_buffer.there.load(std::memory_order_relaxed) != 0) {
        return true;
    }
    const std::scoped_lock lock(_mutex);
    if (_probe_buffer_tried) {
        return probe_buffer.there.load(std::memory_order_relaxed) != 0;
    }
    _probe_buffer_tried = true;
    if (getrandom(probe_buffer.content.data(), sizeof probe_buffer.content, 0) !=
            static_cast<ssize_t>(sizeof probe_buffer.content) ||
        !_runtime.allocate(device, sizeof probe_buffer.content, _probe_buffer).ok()) {
        return false;
    }
    const void* const pointer = _probe_buffer;
    gpu::PointerInfo info;
    _runtime.classify({&pointer, 1}, &info);
    copy_at_once(device, _probe_buffer, probe_buffer.content.data(), sizeof probe_buffer.content);
    if (!_exports.describe(_probe_buffer, info, probe_buffer.location).ok()) {
        return false;
    }
    probe_buffer.there.store(1, std::memory_order_release);
    return true;
}

bool Link::can_read(const int peer, const int device) {
    std::atomic<std::uint32_t>& known = pair(_own, peer).reachability;
    if (const std::uint32_t said = known.load(std::memory_order_acquire); said != unknown) {
        return said == works;
    }
    const ProbeBuffer& probe_buffer = area(peer).probe_buffer;
    std::string reason;
    if (probe_buffer.there.load(std::memory_order_acquire) == 0) {
        reason = "it has no memory to try with";
    } else {
        gpu::Status status;
        const Location location = probe_buffer.location;
        std::array<std::uint64_t, 8> read{};
        if (location.offset > location.allocation_bytes || sizeof read > location.allocation_bytes - location.offset) {
            reason = "it describes its memory wrongly";
        } else if (const auto use = _mappings.open(peer, location, device, status); !use) {
            if (status.code == gpu::kBusy) {
                return false;  // not a lasting refusal
            }
            reason = status.message();
        } else {
            try {
                copy_at_once(device, read.data(), use.data(), sizeof read);
                if (read != probe_buffer.content) {
                    reason = "what was read is not what was written";
                }
            } catch (const Error& error) {
                reason = error.what();
            }
        }
    }
    known.store(reason.empty() ? works : refused, std::memory_order_release);
    if (!reason.empty()) {
        note_once("no direct path from rank " + std::to_string(_segment.process(peer).world_rank) + " to rank " +
                  std::to_string(_segment.process(_own).world_rank) + " of MPI_COMM_WORLD: " + reason);
    }
    return reason.empty();
}

Link::SharedMapping Link::lasting_mapping(const int peer, const std::uint64_t offset, const std::size_t bytes,
                                          const bool is_ring) {
    const std::scoped_lock lock(_mutex);
    std::vector<SharedMapping>& mappings = _peers[static_cast<std::size_t>(peer)].mappings;
    const auto inside = [&](const SharedMapping& mapping) {
        SharedMapping part = mapping;
        part.base += offset - mapping.offset;
        return part;
    };
    for (SharedMapping& mapping : mappings) {
        if (offset >= mapping.offset && bytes <= mapping.bytes && offset - mapping.offset <= mapping.bytes - bytes) {
            mapping.used = std::chrono::steady_clock::now();
            return inside(mapping);
        }
    }
    // The place of small messages is mapped as a whole, and so is a ring. A mapping for a single large message is not
    // kept.
    const std::uint64_t small = area(peer).small_offset.load(std::memory_order_acquire);
    const std::uint64_t small_bytes = area(peer).small_bytes.load(std::memory_order_relaxed);
    const bool is_small = small != 0 && small_bytes <= kMostKept && offset >= small && bytes <= small_bytes &&
                          offset - small <= small_bytes - bytes;
    if (!is_small && (!is_ring || bytes > kMostKept || mappings.size() >= kMostMappings)) {
        return {};
    }
    SharedMapping mapping;
    map_registered(is_small ? small : offset, is_small ? small_bytes : bytes, mapping);
    if (mapping.base == nullptr) {
        return {};
    }
    mappings.push_back(mapping);
    return inside(mapping);
}

void Link::shut_down() noexcept {
    {
        const std::scoped_lock lock(_mutex);
        if (std::exchange(_shut_down, true)) {
            return;
        }
    }
    area(_own).takes_rts.store(0, std::memory_order_release);
    _ending.store(true, std::memory_order_release);
    _readiness->end();
    _background.stop();
    std::vector<std::shared_ptr<RendezvousSend>> lingering;
    {
        const std::scoped_lock lock(_mutex);
        lingering.swap(_lingering);
        lingering.insert(lingering.end(), _left.begin(), _left.end());
        _left.clear();
    }
    for (const std::shared_ptr<RendezvousSend>& send : lingering) {
        const std::scoped_lock lock(send->_mutex);
        send->release_all();
    }
    _mappings.shut_down();
    _window.shut_down();
    _copies.shut_down();  // nothing reads or writes exported memory any more
    _exported.shut_down();
    if (_probe_buffer != nullptr) {
        _runtime.free_when_idle(std::exchange(_probe_buffer, nullptr), -1);
    }
    for (Peer& peer : _peers) {
        for (SharedMapping& mapping : peer.mappings) {
            forget(mapping);
        }
    }
    for (Ring& ring : _rings) {
        forget(ring.memory);
    }
    forget(_small);
}

}  // namespace awaken::ipc
