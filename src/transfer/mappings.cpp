#include "transfer/mappings.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace awaken::transfer {

namespace {

/// Large allocations are remembered by identity only; that many are enough for any program that uses several in turn.
constexpr std::size_t kRemembered = 64;

}  // namespace

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
    const std::unique_lock lock(_mutex);
    const auto take = [&](const List::iterator mapping) {
        ++mapping->uses;
        ++_statistics.reused;
        _mappings.splice(_mappings.begin(), _mappings, mapping);
        use._owner = this;
        use._mapping = mapping;
        use._data = static_cast<std::byte*>(mapping->base) + location.offset;
    };
    const Key key{owner, device, location.allocation_id, location.address};
    if (const auto known = _index.find(key); known != _index.end() && location.allocation_id != 0) {
        const List::iterator mapping = known->second;
        if (!mapping->stale && mapping->handle == location.handle && mapping->bytes == location.allocation_bytes) {
            take(mapping);
            return use;
        }
    }
    for (auto mapping = _mappings.begin(); mapping != _mappings.end();) {
        const auto current = mapping++;
        if (current->owner != owner || current->device != device || current->stale) {
            continue;
        }
        const bool same_handle = current->handle == location.handle;
        // An allocation where another one was, as a runtime that carves small ones out of a block makes them: the
        // handles differ, but the old one was freed, and keeping it mapped makes the runtime refuse the new one.
        const bool overlaps = location.address != 0 &&
                              current->address < location.address + location.allocation_bytes &&
                              location.address < current->address + current->bytes;
        if (!same_handle && !overlaps) {
            continue;
        }
        // Where the runtime gives no identity, nothing tells an old mapping from a new one.
        if (same_handle && location.allocation_id != 0 && current->allocation_id == location.allocation_id &&
            current->bytes == location.allocation_bytes) {
            take(current);
            return use;
        }
        // The same handle for another allocation: what is mapped was freed. A runtime maps a handle once, so the old
        // mapping has to go before the new one can come.
        ++_statistics.closed_stale;
        if (current->uses == 0) {
            close(current);
        } else {
            current->stale = true;
        }
    }

    const auto bytes = static_cast<std::size_t>(location.allocation_bytes);
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
    make_room(owner, bytes);
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
                          false, once, Clock::now()});
    _index.insert_or_assign(key, _mappings.begin());
    use._owner = this;
    use._mapping = _mappings.begin();
    use._data = static_cast<std::byte*>(base) + location.offset;
    if (!_janitor.joinable() && !_shut_down) {
        _janitor = std::thread([this] { close_idle_ones(); });
    }
    _wake.notify_one();  // it sleeps while nothing is mapped
    return use;
}

void Mappings::give_back(const List::iterator mapping) noexcept {
    const std::scoped_lock lock(_mutex);
    mapping->last_used = Clock::now();
    if (--mapping->uses == 0 && (mapping->stale || mapping->once)) {
        close(mapping);
    }
}

void Mappings::close(const List::iterator mapping) noexcept {
    // Fails only when the runtime has shut down, and then there is nothing to close.
    static_cast<void>(_runtime.ipc_close(mapping->base));
    _bytes[mapping->owner] -= mapping->bytes;
    const auto indexed = _index.find({mapping->owner, mapping->device, mapping->allocation_id, mapping->address});
    if (indexed != _index.end() && indexed->second == mapping) {
        _index.erase(indexed);
    }
    _mappings.erase(mapping);
}

std::size_t Mappings::Hash::operator()(const Key& key) const noexcept {
    std::uint64_t state = 0xcbf29ce484222325u;  // FNV-1a
    for (const std::uint64_t value : {static_cast<std::uint64_t>(key.owner), static_cast<std::uint64_t>(key.device),
                                      key.allocation_id, key.address}) {
        state = (state ^ value) * 0x100000001b3u;
    }
    return static_cast<std::size_t>(state ^ state >> 32);
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
        close(current);
    }
}

void Mappings::trim() noexcept {
    const std::scoped_lock lock(_mutex);
    for (auto mapping = _mappings.begin(); mapping != _mappings.end();) {
        const auto current = mapping++;
        if (current->uses == 0) {
            close(current);
        }
    }
}

void Mappings::close_idle_ones() {
    std::unique_lock lock(_mutex);
    while (!_stopping) {
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
                close(current);
            } else {
                next = std::min(next, due);
            }
        }
        if (_mappings.empty()) {
            // Sleeps without waking until something is mapped again or it is time to stop.
            _wake.wait(lock, [this] { return _stopping || !_mappings.empty(); });
        } else {
            _wake.wait_until(lock, next, [this] { return _stopping; });
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
