// SPDX-License-Identifier: Apache-2.0
#include "transfer/mappings.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <iterator>
#include <utility>

#include "base/fnv1a.h"

namespace awaken::transfer {

namespace {

/// We remember large allocations by identity only. This many are enough for any program that uses several in turn.
constexpr std::size_t kRemembered = 64;
/// While the device is busy, we ask it again after this long.
constexpr std::chrono::milliseconds kBetweenCloses{10};

}  // namespace

Mappings::Clock::time_point Mappings::Clock::now() noexcept {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
    return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

Mappings::Mappings(gpu::Runtime& runtime, const Limits limits) : _runtime(runtime), _limits(limits) {}

Mappings::~Mappings() {
    shut_down();
}

Mappings::Use::Use(Use&& other) noexcept
    : _owner(std::exchange(other._owner, nullptr)), _mapping(other._mapping), _data(other._data) {}

Mappings::Use& Mappings::Use::operator=(Use&& other) noexcept {
    if (this != &other) {
        release();
        _owner = std::exchange(other._owner, nullptr);
        _mapping = other._mapping;
        _data = other._data;
    }
    return *this;
}

void Mappings::Use::release() noexcept {
    if (_owner != nullptr) {
        std::exchange(_owner, nullptr)->give_back(_mapping);
    }
}

Mappings::Use Mappings::open(const int owner, const Location& location, const int device, gpu::Status& status) {
    status = {};
    Use use;
    std::unique_lock lock(_mutex);
    const Key key{owner, device, location.allocation_id, location.address};
    const auto bytes = static_cast<std::size_t>(location.allocation_bytes);
    for (bool tried_to_close = false;;) {
        if (const List::iterator known = find(key, location, lock); known != _mappings.end()) {
            ++known->uses;
            ++_statistics.reused;
            _mappings.splice(_mappings.begin(), _mappings, known);
            use._owner = this;
            use._mapping = known;
            use._data = static_cast<std::byte*>(known->base) + location.offset;
            return use;
        }
        make_room(owner, bytes);
        if (!is_hindered(owner, location, device)) {
            break;
        }
        if (tried_to_close && _closing.empty()) {
            status = {gpu::kBusy, "an older mapping cannot be closed now", "the GPU is busy"};
            return use;
        }
        // Both release the lock, so everything may be different afterwards.
        if (_closing.empty()) {
            close_doomed(lock, When::soon);
            tried_to_close = true;
        } else {
            await_closing(lock);
        }
    }

    // A mapping of a large part of the card would keep its owner from freeing the memory. We keep such a mapping only
    // when the program uses it again and again.
    bool once = bytes > _limits.bytes / 4;
    if (once && location.allocation_id != 0) {
        const auto seen = std::find_if(_seen.begin(), _seen.end(), [&](const Seen& other) {
            return other.owner == owner && other.allocation_id == location.allocation_id;
        });
        if (seen != _seen.end()) {
            once = bytes > _limits.bytes;
        } else {
            _seen.push_front({owner, location.allocation_id});
            if (_seen.size() > kRemembered) {
                _seen.pop_back();
            }
        }
    }
    gpu::IpcMemoryHandle handle;
    static_assert(sizeof(handle.bytes) == sizeof(location.handle));
    std::memcpy(handle.bytes, location.handle.data(), sizeof handle.bytes);
    const List::iterator mapping =
        _mappings.insert(_mappings.begin(), {owner, device, location.handle, location.allocation_id, location.address,
                                             bytes, nullptr, 1, false, once, Clock::now()});
    _bytes[owner] += bytes;
    // Opening takes up to 20 ms, which nobody else waits for.
    lock.unlock();
    void* base = nullptr;
    status = _runtime.ipc_open(handle, device, base);
    lock.lock();
    if (status.ok()) {
        ++_statistics.opened;
        mapping->base = base;
        set_due(Clock::now() + _limits.idle);
        _index.insert_or_assign(key, mapping);
        use._owner = this;
        use._mapping = mapping;
        use._data = static_cast<std::byte*>(base) + location.offset;
    } else {
        _bytes[owner] -= bytes;
        _mappings.erase(mapping);
    }
    _changed.notify_all();
    return use;
}

/// The mapping of the location. Those of allocations that are gone, but in its way, are taken out of use.
Mappings::List::iterator Mappings::find(const Key& key, const Location& location, std::unique_lock<std::mutex>& lock) {
    const auto is_same = [&](const Mapping& mapping) {
        // Where the runtime gives no identity, nothing tells an old mapping from a new one.
        return !mapping.stale && location.allocation_id != 0 && mapping.handle == location.handle &&
               mapping.allocation_id == location.allocation_id && mapping.bytes == location.allocation_bytes;
    };
    if (const auto known = _index.find(key); known != _index.end() && is_same(*known->second)) {
        return known->second;
    }
    // A runtime maps a handle once: another thread that is opening it is waited for.
    _changed.wait(lock, [&] {
        return std::none_of(_mappings.begin(), _mappings.end(), [&](const Mapping& mapping) {
            return mapping.base == nullptr && is_in_the_way(mapping, key.owner, location, key.device);
        });
    });
    for (auto mapping = _mappings.begin(); mapping != _mappings.end();) {
        const auto current = mapping++;
        if (current->stale || !is_in_the_way(*current, key.owner, location, key.device)) {
            continue;
        }
        if (is_same(*current)) {
            return current;
        }
        // The handle is the same but the allocation is another: the mapped memory was freed. A runtime maps a handle
        // once, so the old mapping has to go before the new one can come.
        ++_statistics.closed_stale;
        if (current->uses == 0) {
            doom(current);
        } else {
            current->stale = true;
        }
    }
    return _mappings.end();
}

/// Whether what is not closed yet keeps the location from being mapped.
bool Mappings::is_hindered(const int owner, const Location& location, const int device) {
    std::size_t unclosed = 0;
    for (const List* const list : {&_doomed, &_closing}) {
        for (const Mapping& mapping : *list) {
            if (is_in_the_way(mapping, owner, location, device)) {
                return true;
            }
            unclosed += mapping.owner == owner ? mapping.bytes : 0;
        }
    }
    const std::size_t count = _doomed.size() + _closing.size();
    return (count != 0 && _mappings.size() + count >= _limits.count) ||
           (unclosed != 0 && _bytes[owner] + unclosed + location.allocation_bytes > _limits.bytes);
}

void Mappings::set_due(const Clock::time_point due) noexcept {
    const Clock::rep at = due.time_since_epoch().count();
    if (at < _due.load(std::memory_order_relaxed)) {
        _due.store(at, std::memory_order_relaxed);
    }
}

/// True for a mapping of the same handle, and for one of an allocation at whose place there is another now. The latter
/// happens where a runtime carves small allocations out of a block. The handles differ, but the old allocation was
/// freed, and its mapping makes the runtime refuse the new one.
bool Mappings::is_in_the_way(const Mapping& mapping, const int owner, const Location& location, const int device) {
    if (mapping.owner != owner || mapping.device != device) {
        return false;
    }
    const bool overlaps = location.address != 0 && mapping.address < location.address + location.allocation_bytes &&
                          location.address < mapping.address + mapping.bytes;
    return mapping.handle == location.handle || overlaps;
}

void Mappings::give_back(const List::iterator mapping) noexcept {
    const std::scoped_lock lock(_mutex);
    mapping->last_used = Clock::now();
    // A thread of ours may give the mapping back, and must not close it.
    if (--mapping->uses == 0 && (mapping->stale || mapping->once)) {
        doom(mapping);
    }
}

void Mappings::doom(const List::iterator mapping) noexcept {
    _bytes[mapping->owner] -= mapping->bytes;
    const auto indexed = _index.find({mapping->owner, mapping->device, mapping->allocation_id, mapping->address});
    if (indexed != _index.end() && indexed->second == mapping) {
        _index.erase(indexed);
    }
    _doomed.splice(_doomed.end(), _mappings, mapping);
    set_due(Clock::now());
}

void Mappings::await_closing(std::unique_lock<std::mutex>& lock) noexcept {
    _changed.wait(lock, [this] { return _closing.empty(); });
}

void Mappings::close_doomed(std::unique_lock<std::mutex>& lock, const When when) noexcept {
    if (_doomed.empty() || !_closing.empty()) {
        return;
    }
    _closing.swap(_doomed);
    // Waiting for the device and closing take long. Nobody else changes the list meanwhile.
    lock.unlock();
    int asked = -1;
    bool idle = false;
    for (Mapping& mapping : _closing) {
        if (mapping.device != asked) {
            asked = mapping.device;
            idle = when == When::soon         ? _runtime.is_soon_idle(asked)
                   : when == When::in_the_end ? _runtime.is_idle(asked, gpu::kPatience)
                                              : _runtime.is_idle(asked);
        }
        if (idle) {
            // Fails only when the runtime has shut down. Then there is nothing to close.
            static_cast<void>(_runtime.ipc_close(std::exchange(mapping.base, nullptr)));
        }
    }
    lock.lock();
    _closing.remove_if([](const Mapping& mapping) { return mapping.base == nullptr; });
    _doomed.splice(_doomed.begin(), _closing);
    _changed.notify_all();
}

std::size_t Mappings::Hash::operator()(const Key& key) const noexcept {
    Fnv1a hash;
    for (const std::uint64_t value : {static_cast<std::uint64_t>(key.owner), static_cast<std::uint64_t>(key.device),
                                      key.allocation_id, key.address}) {
        hash.add_word(value);
    }
    return static_cast<std::size_t>(hash.value() ^ hash.value() >> 32);
}

void Mappings::make_room(const int owner, const std::size_t bytes) noexcept {
    const auto too_many = [&] { return _mappings.size() >= _limits.count; };
    const auto too_large = [&] { return _bytes[owner] + bytes > _limits.bytes; };
    for (auto mapping = _mappings.end(); mapping != _mappings.begin() && (too_many() || too_large());) {
        const auto current = --mapping;
        if (current->uses != 0 || (current->owner != owner && !too_many())) {
            continue;
        }
        mapping = std::next(current);
        ++_statistics.closed_for_room;
        doom(current);
    }
}

void Mappings::trim(const When when) noexcept {
    std::unique_lock lock(_mutex);
    for (auto mapping = _mappings.begin(); mapping != _mappings.end();) {
        const auto current = mapping++;
        if (current->uses == 0) {
            doom(current);
        }
    }
    if (when == When::in_the_end) {
        await_closing(lock);
    }
    close_doomed(lock, when);
}

void Mappings::reclaim() noexcept {
    const Clock::rep due = _due.load(std::memory_order_relaxed);
    if (due == kNever) {
        return;
    }
    const Clock::time_point now = Clock::now();
    if (now.time_since_epoch().count() < due) {
        return;
    }
    std::unique_lock lock(_mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        return;  // another thread is reclaiming
    }
    Clock::time_point next = Clock::time_point::max();
    for (auto mapping = _mappings.begin(); mapping != _mappings.end();) {
        const auto current = mapping++;
        if (current->uses == 0 && current->last_used + _limits.idle <= now) {
            ++_statistics.closed_idle;
            doom(current);
        } else {
            next = std::min(next, std::max(current->last_used, now - _limits.idle / 2) + _limits.idle);
        }
    }
    _due.store(next.time_since_epoch().count(), std::memory_order_relaxed);
    close_doomed(lock, When::now);
    if (!_doomed.empty()) {
        set_due(now + kBetweenCloses);
    }
}

void Mappings::shut_down() noexcept {
    trim(When::in_the_end);
}

Mappings::Statistics Mappings::statistics() const {
    const std::scoped_lock lock(_mutex);
    return _statistics;
}

}  // namespace awaken::transfer
