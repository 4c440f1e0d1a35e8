#include "transfer/mappings.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/own_thread.h"

namespace awaken::transfer {

namespace {

/// Large allocations are remembered by identity only; that many are enough for any program that uses several in turn.
constexpr std::size_t kRemembered = 64;
/// Who gives back the last use of what its owner may want to free, or needs room, waits so long for it to be closed.
/// Closing takes milliseconds, but waits for all kernels of the device, and one of these may wait for what the caller
/// does next.
constexpr std::chrono::milliseconds kPatience{100};

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
    const auto take = [&](const List::iterator mapping) {
        ++mapping->uses;
        ++_statistics.reused;
        _mappings.splice(_mappings.begin(), _mappings, mapping);
        use._owner = this;
        use._mapping = mapping;
        use._data = static_cast<std::byte*>(mapping->base) + location.offset;
    };
    const Key key{owner, device, location.allocation_id, location.address};
    const auto bytes = static_cast<std::size_t>(location.allocation_bytes);
    bool some_doomed = false;
    do {  // again when the lock was given up
        if (const auto known = _index.find(key); known != _index.end() && location.allocation_id != 0) {
            const List::iterator mapping = known->second;
            if (!mapping->stale && mapping->handle == location.handle && mapping->bytes == location.allocation_bytes) {
                take(mapping);
                return use;
            }
        }
        for (auto mapping = _mappings.begin(); mapping != _mappings.end();) {
            const auto current = mapping++;
            if (current->stale || !is_in_the_way(*current, owner, location, device)) {
                continue;
            }
            // Where the runtime gives no identity, nothing tells an old mapping from a new one.
            if (current->handle == location.handle && location.allocation_id != 0 &&
                current->allocation_id == location.allocation_id && current->bytes == location.allocation_bytes) {
                take(current);
                return use;
            }
            // The same handle for another allocation: what is mapped was freed. A runtime maps a handle once, so the
            // old mapping has to go before the new one can come.
            ++_statistics.closed_stale;
            if (current->uses == 0) {
                doom(current);
            } else {
                current->stale = true;
            }
        }
        some_doomed = make_room(owner, bytes);
    } while (waited_for_closing(lock, owner, location, device, some_doomed));

    // A mapping of a large part of the card would keep its owner from freeing it: such a one is kept only when it turns
    // out to be used again and again.
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
    void* base = nullptr;
    status = _runtime.ipc_open(handle, device, base);
    if (!status.ok()) {
        return use;
    }
    ++_statistics.opened;
    _bytes[owner] += bytes;
    _mappings.push_front({owner, device, location.handle, location.allocation_id, location.address, bytes, base, 1,
                          false, once, false, Clock::now()});
    _index.insert_or_assign(key, _mappings.begin());
    use._owner = this;
    use._mapping = _mappings.begin();
    use._data = static_cast<std::byte*>(base) + location.offset;
    start_janitor();
    _wake.notify_one();  // it sleeps while nothing is mapped
    return use;
}

void Mappings::start_janitor() {
    if (!_janitor.joinable() && !_shut_down) {
        _janitor = start_own_thread([this] { keep_house(); });
    }
}

/// A mapping of the same handle, or of an allocation where another one was, as a runtime that carves small ones out of
/// a block makes them: the handles differ, but the old one was freed, and keeping it mapped makes the runtime refuse
/// the new one.
bool Mappings::is_in_the_way(const Mapping& mapping, const int owner, const Location& location, const int device) {
    if (mapping.owner != owner || mapping.device != device) {
        return false;
    }
    const bool overlaps = location.address != 0 && mapping.address < location.address + location.allocation_bytes &&
                          location.address < mapping.address + mapping.bytes;
    return mapping.handle == location.handle || overlaps;
}

bool Mappings::waited_for_closing(std::unique_lock<std::mutex>& lock, const int owner, const Location& location,
                                  const int device, const bool some_doomed) {
    const auto hinders = [&](const Mapping& mapping) { return is_in_the_way(mapping, owner, location, device); };
    bool waited = false;
    while (std::any_of(_doomed.begin(), _doomed.end(), hinders)) {
        waited = true;
        if (!close_one(lock)) {
            _closed.wait(lock);
        }
    }
    if (some_doomed && !_doomed.empty()) {
        waited = true;
        wait_for_janitor(lock, [this] { return _doomed.empty(); });
    }
    return waited;
}

template <class Condition>
void Mappings::wait_for_janitor(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    start_janitor();
    if (!_janitor.joinable()) {
        while (close_one(lock)) {
        }
        return;
    }
    _wake.notify_one();
    _closed.wait_for(lock, kPatience, condition);
}

void Mappings::give_back(const List::iterator mapping) noexcept {
    std::unique_lock lock(_mutex);
    mapping->last_used = Clock::now();
    if (--mapping->uses != 0 || (!mapping->stale && !mapping->once)) {
        return;
    }
    const Mapping* const given = &*mapping;
    doom(mapping);
    wait_for_janitor(lock, [&] {
        return std::none_of(_doomed.begin(), _doomed.end(), [&](const Mapping& other) { return &other == given; });
    });
}

void Mappings::doom(const List::iterator mapping) noexcept {
    _bytes[mapping->owner] -= mapping->bytes;
    const auto indexed = _index.find({mapping->owner, mapping->device, mapping->allocation_id, mapping->address});
    if (indexed != _index.end() && indexed->second == mapping) {
        _index.erase(indexed);
    }
    _doomed.splice(_doomed.end(), _mappings, mapping);
}

bool Mappings::close_one(std::unique_lock<std::mutex>& lock) noexcept {
    const auto next =
        std::find_if(_doomed.begin(), _doomed.end(), [](const Mapping& mapping) { return !mapping.closing; });
    if (next == _doomed.end()) {
        return false;
    }
    next->closing = true;
    lock.unlock();
    // Fails only when the runtime has shut down, and then there is nothing to close.
    static_cast<void>(_runtime.ipc_close(next->base));
    lock.lock();
    _doomed.erase(next);
    _closed.notify_all();
    return true;
}

std::size_t Mappings::Hash::operator()(const Key& key) const noexcept {
    std::uint64_t state = 0xcbf29ce484222325u;  // FNV-1a
    for (const std::uint64_t value : {static_cast<std::uint64_t>(key.owner), static_cast<std::uint64_t>(key.device),
                                      key.allocation_id, key.address}) {
        state = (state ^ value) * 0x100000001b3u;
    }
    return static_cast<std::size_t>(state ^ state >> 32);
}

bool Mappings::make_room(const int owner, const std::size_t bytes) noexcept {
    bool some_doomed = false;
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
        some_doomed = true;
    }
    return some_doomed;
}

void Mappings::trim() noexcept {
    std::unique_lock lock(_mutex);
    for (auto mapping = _mappings.begin(); mapping != _mappings.end();) {
        const auto current = mapping++;
        if (current->uses == 0) {
            doom(current);
        }
    }
    while (!_doomed.empty()) {
        if (!close_one(lock)) {
            _closed.wait(lock);
        }
    }
}

void Mappings::keep_house() {
    std::unique_lock lock(_mutex);
    while (!_stopping) {
        if (close_one(lock)) {
            continue;
        }
        // Until the first of the unused ones has been so for long enough; somebody wakes us to stop, or nothing is
        // mapped and we look again after the same time.
        Clock::time_point next = Clock::now() + _limits.idle;
        for (auto mapping = _mappings.begin(); mapping != _mappings.end();) {
            const auto current = mapping++;
            if (current->uses != 0) {
                continue;
            }
            const Clock::time_point due = current->last_used + _limits.idle;
            if (due <= Clock::now()) {
                ++_statistics.closed_idle;
                doom(current);
            } else {
                next = std::min(next, due);
            }
        }
        const auto is_called = [this] {
            return _stopping ||
                   std::any_of(_doomed.begin(), _doomed.end(), [](const Mapping& mapping) { return !mapping.closing; });
        };
        if (_mappings.empty()) {
            // Sleeps without waking until something is mapped again, or there is something to do.
            _wake.wait(lock, [&] { return is_called() || !_mappings.empty(); });
        } else {
            _wake.wait_for(lock, next - Clock::now(), is_called);
        }
    }
}

void Mappings::shut_down() noexcept {
    std::thread janitor;
    {
        const std::scoped_lock lock(_mutex);
        _stopping = true;
        _shut_down = true;
        janitor = std::move(_janitor);
    }
    _wake.notify_all();
    if (janitor.joinable()) {
        janitor.join();
    }
    trim();
}

Mappings::Statistics Mappings::statistics() const {
    const std::scoped_lock lock(_mutex);
    return _statistics;
}

}  // namespace awaken::transfer
