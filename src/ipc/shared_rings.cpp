// SPDX-License-Identifier: Apache-2.0
#include "ipc/shared_rings.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace awaken::ipc {

using transfer::Location;

namespace {

/// Bounds on the memory of another process that this one keeps mapped and registered.
constexpr std::size_t kMostKept = std::size_t{1} << 30;
constexpr std::size_t kMostMappings = 1024;
constexpr std::chrono::seconds kIdle{5};

}  // namespace

SharedRings::SharedRings(node::Segment& segment, gpu::Runtime& runtime, const Areas& areas,
                         const transfer::Tuning& tuning)
    : _segment(segment),
      _runtime(runtime),
      _areas(areas),
      _tuning(tuning),
      _mappings(static_cast<std::size_t>(segment.processes())) {}

void SharedRings::map(const std::uint64_t offset, const std::size_t bytes, Mapping& mapping) {
    mapping.base = _segment.map(offset, bytes);
    if (mapping.base == nullptr) {
        return;
    }
    mapping.offset = offset;
    mapping.bytes = bytes;
    mapping.used = Clock::now();
    mapping.held = std::make_shared<char>();
    _keeps_some.store(true, std::memory_order_relaxed);
}

void SharedRings::map_registered(const std::uint64_t offset, const std::size_t bytes, Mapping& mapping) {
    map(offset, bytes, mapping);
    mapping.registered = mapping.base != nullptr && _runtime.register_host(mapping.base, bytes).ok();
}

void SharedRings::forget(Mapping& mapping) noexcept {
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

bool SharedRings::has_small_places() {
    if (_small_base.load(std::memory_order_acquire) != nullptr) {
        return true;
    }
    const std::scoped_lock lock(_mutex);
    if (_small.base != nullptr) {
        return true;
    }
    const std::size_t bytes = kSlots * _tuning.small_bytes;
    const auto offset = _segment.allocate(bytes);
    if (!offset) {
        return false;
    }
    map(*offset, bytes, _small);
    if (_small.base == nullptr) {
        _segment.release(*offset, bytes);
        return false;
    }
    Area& own = _areas.of(_segment.own_index());
    own.small_bytes.store(bytes, std::memory_order_relaxed);  // published by the offset's release
    own.small_offset.store(*offset, std::memory_order_release);
    _small_base.store(_small.base, std::memory_order_release);
    return true;
}

bool SharedRings::gpu_reaches_small_places() {
    Registered registered = _small_registered.load(std::memory_order_acquire);
    if (registered == Registered::untried) {
        const std::scoped_lock lock(_mutex);
        registered = _small_registered.load(std::memory_order_relaxed);
        if (registered == Registered::untried) {
            _small.registered = _runtime.register_host(_small.base, _small.bytes).ok();
            registered = _small.registered ? Registered::yes : Registered::no;
            _small_registered.store(registered, std::memory_order_release);
        }
    }
    return registered == Registered::yes;
}

Location SharedRings::small_location(const Ticket ticket) const noexcept {
    Location location;
    location.kind = Location::Kind::shared;
    location.offset = _small.offset + ticket.slot * _tuning.small_bytes;
    location.allocation_bytes = _tuning.small_bytes;
    return location;
}

bool SharedRings::find_small_ring(const Ticket ticket, Location& location, transfer::RingMemory& memory) {
    if (!has_small_places()) {
        return false;
    }
    constexpr std::size_t kChunks = 2;
    location = small_location(ticket);
    location.kind = Location::Kind::ring;
    location.chunk_bytes = _tuning.small_bytes / kChunks;
    memory = {small_place(ticket), location.chunk_bytes, kChunks, gpu_reaches_small_places()};
    return true;
}

int SharedRings::take() {
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

void SharedRings::give_back(const int index) noexcept {
    const std::scoped_lock lock(_mutex);
    Ring& ring = _rings[static_cast<std::size_t>(index)];
    ring.in_use = false;
    ring.memory.used = Clock::now();
}

void SharedRings::describe(const int index, Location& location, transfer::RingMemory& memory) {
    const std::scoped_lock lock(_mutex);
    const Mapping& ring = _rings[static_cast<std::size_t>(index)].memory;
    location.kind = Location::Kind::ring;
    location.offset = ring.offset;
    location.allocation_bytes = ring.bytes;
    location.chunk_bytes = _tuning.ring_chunk_bytes;
    memory = {ring.base, _tuning.ring_chunk_bytes, _tuning.ring_chunks, ring.registered};
}

SharedRings::Mapping SharedRings::mapping_of(const int peer, const std::uint64_t offset, const std::size_t bytes,
                                             const bool is_ring) {
    const std::scoped_lock lock(_mutex);
    std::vector<Mapping>& mappings = _mappings[static_cast<std::size_t>(peer)];
    const auto inside = [&](const Mapping& mapping) {
        Mapping part = mapping;
        part.base += offset - mapping.offset;
        return part;
    };
    for (Mapping& mapping : mappings) {
        if (offset >= mapping.offset && bytes <= mapping.bytes && offset - mapping.offset <= mapping.bytes - bytes) {
            mapping.used = Clock::now();
            return inside(mapping);
        }
    }
    // The places of small messages are mapped as a whole, and so is a ring. A mapping for a single large message is not
    // kept.
    const Area& area = _areas.of(peer);
    const std::uint64_t small = area.small_offset.load(std::memory_order_acquire);
    const std::uint64_t small_bytes = area.small_bytes.load(std::memory_order_relaxed);
    const bool is_small = small != 0 && small_bytes <= kMostKept && offset >= small && bytes <= small_bytes &&
                          offset - small <= small_bytes - bytes;
    if (!is_small && (!is_ring || bytes > kMostKept || mappings.size() >= kMostMappings)) {
        return {};
    }
    Mapping mapping;
    map_registered(is_small ? small : offset, is_small ? small_bytes : bytes, mapping);
    if (mapping.base == nullptr) {
        return {};
    }
    mappings.push_back(mapping);
    return inside(mapping);
}

void SharedRings::trim_idle(const Clock::time_point now) noexcept {
    if (!_keeps_some.load(std::memory_order_relaxed)) {
        return;
    }
    const auto is_idle_ring = [now](const Ring& ring) {
        return !ring.in_use && ring.memory.base != nullptr && now - ring.memory.used > kIdle;
    };
    const auto is_used = [now](const Mapping& mapping) {
        return mapping.held.use_count() > 1 || now - mapping.used <= kIdle;
    };
    std::vector<Mapping> idle;
    std::size_t own = 0;
    {
        const std::scoped_lock lock(_mutex);
        if (_shut_down) {
            return;
        }
        // Asks whether the GPU is idle only when there is something to give back. Unregistering would wait for a busy
        // GPU.
        const bool some = std::any_of(_rings.begin(), _rings.end(), is_idle_ring) ||
                          std::any_of(_mappings.begin(), _mappings.end(), [&](const std::vector<Mapping>& peer) {
                              return !std::all_of(peer.begin(), peer.end(), is_used);
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
        for (std::vector<Mapping>& peer : _mappings) {
            const auto first_idle = std::partition(peer.begin(), peer.end(), is_used);
            idle.insert(idle.end(), std::make_move_iterator(first_idle), std::make_move_iterator(peer.end()));
            peer.erase(first_idle, peer.end());
        }
        const bool keeps =
            std::any_of(_rings.begin(), _rings.end(), [](const Ring& ring) { return ring.memory.base != nullptr; }) ||
            std::any_of(_mappings.begin(), _mappings.end(), [](const auto& peer) { return !peer.empty(); });
        _keeps_some.store(keeps, std::memory_order_relaxed);
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

void SharedRings::shut_down() noexcept {
    const std::scoped_lock lock(_mutex);
    _shut_down = true;
    for (std::vector<Mapping>& peer : _mappings) {
        for (Mapping& mapping : peer) {
            forget(mapping);
        }
    }
    for (Ring& ring : _rings) {
        forget(ring.memory);
    }
    forget(_small);
}

}  // namespace awaken::ipc
