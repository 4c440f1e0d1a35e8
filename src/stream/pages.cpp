// SPDX-License-Identifier: Apache-2.0
#include "stream/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "base/round_up.h"

namespace awaken::stream {

static_assert(Pages::kLongPlaces <= 32, "a word has a bit for each");

namespace {

/// A word is reached when it is at least the wanted number, counted around zero. No message has counted so far.
constexpr std::uint32_t kFarAhead = 0x7fffffff;

}  // namespace

Pages::Pages(gpu::Runtime& runtime, transfer::Exports& exports, transfer::Mappings& mappings, const int processes,
             const std::uint32_t slots)
    : _runtime(runtime),
      _exports(exports),
      _mappings(mappings),
      _processes(processes),
      _slots(slots),
      _peers(static_cast<std::size_t>(processes)) {}

Pages::~Pages() {
    shut_down();
}

std::size_t Pages::places_at() const noexcept {
    return round_up(words() * sizeof(std::uint32_t), kPlaceBytes);
}

std::size_t Pages::bytes() const noexcept {
    return places_at() + _slots * kPlaceBytes + kLongPlaces * kLongPlaceBytes;
}

bool Pages::make(const int device, PageLocation& own) {
    if (const int made = _device.load(std::memory_order_acquire); made >= 0) {
        return made == device;
    }
    const std::scoped_lock lock(_mutex);
    if (std::exchange(_tried, true)) {
        return _device.load(std::memory_order_relaxed) == device;
    }
    const std::size_t word_bytes = words() * sizeof(std::uint32_t);
    void* page = nullptr;
    if (!make_host_words()) {
        return false;
    }
    // The words are zero before anybody learns of them.
    const bool made = _runtime.allocate(device, bytes(), page).ok() &&
                      _runtime.fill(page, 0, word_bytes, {nullptr, device}).ok() &&
                      _runtime.finish_default_stream(device).ok();
    const void* const pointer = page;
    gpu::PointerInfo info;
    if (made) {
        _runtime.classify({&pointer, 1}, &info);
    }
    if (!made || !_exports.describe(page, info, own.location).ok()) {
        if (page != nullptr) {
            _runtime.free_when_idle(page, device);
        }
        return false;
    }
    if (gpu::DeviceInfo gpu; _runtime.device_info(device, gpu).ok()) {
        std::copy(std::begin(gpu.uuid), std::end(gpu.uuid), own.gpu.begin());
    }
    _page = static_cast<std::byte*>(page);
    _location = own.location;
    own.there.store(1, std::memory_order_release);
    _device.store(device, std::memory_order_release);
    return true;
}

std::size_t Pages::host_bytes() const noexcept {
    constexpr std::size_t kMemoryPage = 4096;
    return round_up(words() * sizeof(std::uint32_t), kMemoryPage);
}

bool Pages::make_host_words() noexcept {
    void* const host = mmap(nullptr, host_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (host == MAP_FAILED) {
        return false;
    }
    if (!_runtime.register_host(host, host_bytes()).ok()) {
        munmap(host, host_bytes());
        return false;
    }
    _host = static_cast<std::uint32_t*>(host);
    return true;
}

bool Pages::reach(const int peer, const PageLocation& page) {
    Peer& known = _peers[static_cast<std::size_t>(peer)];
    if (known.page.load(std::memory_order_acquire) != nullptr) {
        return true;
    }
    const int device = _device.load(std::memory_order_acquire);
    if (device < 0 || page.there.load(std::memory_order_acquire) == 0) {
        return false;
    }
    const std::scoped_lock lock(_mutex);
    if (known.page.load(std::memory_order_relaxed) != nullptr) {
        return true;
    }
    const transfer::Location location = page.location;
    if (known.refused || location.kind != transfer::Location::Kind::device ||
        location.offset > location.allocation_bytes || bytes() > location.allocation_bytes - location.offset) {
        return false;
    }
    gpu::Status status;
    known.use = _mappings.open(peer, location, device, status);
    if (!known.use) {
        known.refused = status.code != gpu::kBusy;
        return false;
    }
    known.location = location;
    known.page.store(const_cast<std::byte*>(known.use.data()), std::memory_order_release);
    return true;
}

std::optional<Pages::Place> Pages::take_place(const std::uint32_t slot, const std::size_t bytes) noexcept {
    std::size_t at = places_at() + slot * kPlaceBytes;
    Place place;
    if (bytes > kPlaceBytes) {
        if (bytes > kLongPlaceBytes) {
            return std::nullopt;
        }
        std::uint32_t taken = _long_places.load(std::memory_order_relaxed);
        do {
            place.number = std::countr_one(taken);
            if (place.number >= static_cast<int>(kLongPlaces)) {
                return std::nullopt;
            }
        } while (!_long_places.compare_exchange_weak(taken, taken | std::uint32_t{1} << place.number,
                                                     std::memory_order_acquire, std::memory_order_relaxed));
        at = places_at() + _slots * kPlaceBytes + static_cast<std::size_t>(place.number) * kLongPlaceBytes;
    }
    place.data = _page + at;
    place.location = _location;
    place.location.offset += at;
    return place;
}

void Pages::give_back(const Place& place) noexcept {
    if (place.number >= 0) {
        _long_places.fetch_and(~(std::uint32_t{1} << place.number), std::memory_order_release);
    }
}

gpu::PointerInfo Pages::info() const noexcept {
    gpu::PointerInfo info;
    info.kind = gpu::MemoryKind::device;
    info.device = _device.load(std::memory_order_acquire);
    info.base = reinterpret_cast<std::uintptr_t>(_page);
    info.size = bytes();
    return info;
}

const std::byte* Pages::place_of(const int peer, const transfer::Location& location,
                                 const std::size_t bytes) const noexcept {
    const Peer& known = _peers[static_cast<std::size_t>(peer)];
    const std::byte* const page = known.page.load(std::memory_order_acquire);
    const std::size_t first = known.location.offset + places_at(), end = known.location.offset + this->bytes();
    if (page == nullptr || location.allocation_id != known.location.allocation_id || location.offset < first ||
        location.offset > end || bytes > end - location.offset) {
        return nullptr;
    }
    return page + (location.offset - known.location.offset);
}

void Pages::release(const std::size_t first, const std::size_t count, const std::uint32_t number) noexcept {
    if (_host == nullptr) {
        return;
    }
    for (std::size_t i = first; i < first + count; ++i) {
        std::atomic_ref(_host[i]).store(number, std::memory_order_release);
    }
}

void Pages::release_from(const int sender) noexcept {
    release(ready_at(sender, 0), _slots, kFarAhead);
}

void Pages::release_done(const std::uint32_t slot, const std::uint32_t number) noexcept {
    release(done_at(slot), 1, number);
}

void Pages::release_all() noexcept {
    release(0, words(), kFarAhead);
}

void Pages::shut_down() noexcept {
    const std::scoped_lock lock(_mutex);
    for (Peer& peer : _peers) {
        peer.page.store(nullptr, std::memory_order_release);
        peer.use = {};
    }
    if (const int device = _device.exchange(-1); device >= 0) {
        _runtime.free_when_idle(std::exchange(_page, nullptr), device);
    }
    // What stays registered stays mapped until the process ends.
    if (std::uint32_t* const host = std::exchange(_host, nullptr);
        host != nullptr && _runtime.is_idle(-1) && _runtime.unregister_host(host).ok()) {
        munmap(host, host_bytes());
    }
}

}  // namespace awaken::stream
