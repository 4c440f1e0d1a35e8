// SPDX-License-Identifier: Apache-2.0
#include "ipc/order.h"

#include <utility>

#include "base/error.h"
#include "ipc/resources.h"

namespace awaken::ipc {

namespace {

/// A call gathers steps for so long at most, while it waits for more of them.
constexpr std::chrono::microseconds kGathers{10};
/// The background gives the GPU what no call has given it for so long.
constexpr std::chrono::microseconds kLeft{20};
constexpr std::chrono::milliseconds kBetweenLooks{50};
/// So many looks without work until the background looks less often.
constexpr unsigned kBusyLooks = 100;
/// What a checked buffer holds until its data come, and how often a step looks at the CPU's word before it fetches
/// them: each look takes about a microsecond.
constexpr unsigned char kPattern = 0xb5;
constexpr std::uint32_t kCheckLooks = 500;

/// By which a kernel knows memory.
std::uint64_t address_of(const void* const memory) noexcept {
    return reinterpret_cast<std::uintptr_t>(memory);
}

}  // namespace

Order::Order(Resources& resources)
    : _resources(resources),
      _checks(resources.options.order_check),
      _steps(resources.runtime),
      _pages(resources.runtime, resources.exports, resources.mappings, resources.processes, kSlots),
      _peers(static_cast<std::size_t>(resources.processes)) {}

void Order::prepare() noexcept {
    int device = -1;
    if (!_resources.runtime.threads_begin_with_a_device() && _resources.runtime.current_device(device).ok() &&
        device >= 0 && _steps.prepare(device)) {
        static_cast<void>(_pages.make(device, _resources.areas.of(_resources.own).page));
    }
}

bool Order::goes(const int peer, const int device) noexcept {
    if (device < 0 || _resources.ending.load(std::memory_order_relaxed)) {
        return false;
    }
    Peer& known = _peers[static_cast<std::size_t>(peer)];
    if (known.gone.load(std::memory_order_relaxed) || !_steps.prepare(device) ||
        !_pages.make(device, _resources.areas.of(_resources.own).page) || peer == _resources.own) {
        return false;
    }
    if (known.goes.load(std::memory_order_acquire)) {
        return true;
    }
    if (shares_its_gpu()) {
        return false;
    }
    // A GPU tells CPUs, too: in the slots of both processes.
    {
        const std::scoped_lock lock(_mutex);
        if (!std::exchange(_register_tried, true)) {
            const auto processes = static_cast<std::size_t>(_resources.processes);
            _registered = _resources.runtime
                              .register_host(_resources.segment.area(0), processes * _resources.segment.area_bytes())
                              .ok();
        }
        if (!_registered) {
            return false;
        }
    }
    // Both processes have tried whether they read the other one's memory, and have mapped its page.
    try {
        static_cast<void>(_resources.reachability.has_probe_buffer(device));
        _resources.reachability.try_to_read(peer, device);
    } catch (const Error&) {
        return false;
    }
    if (!_resources.reachability.reads(peer) || !_pages.reach(peer, _resources.areas.of(peer).page)) {
        return false;
    }
    _resources.areas.pair(_resources.own, peer).maps_page.store(1, std::memory_order_release);
    if (_resources.areas.pair(peer, _resources.own).maps_page.load(std::memory_order_acquire) == 0) {
        return false;
    }
    known.goes.store(true, std::memory_order_release);
    if (!_started.exchange(true)) {
        static_cast<void>(_resources.runtime.create_stream(device, false, _asked));
        _resources.background.take(shared_from_this());
    }
    return true;
}

void Order::tell(const int peer, const Ticket& ticket, const std::byte* const from, const std::size_t bytes,
                 const Place* const place, std::shared_ptr<stream::Receipt> receipt, const bool wake) {
    stream::Step step;
    if (place != nullptr) {
        step.target = place->data;
        step.source = from;
        step.bytes = bytes;
    }
    step.told = _pages.ready_of(peer, _resources.own, ticket.slot);
    step.told_number = number_of(ticket.generation);
    step.told_host = reinterpret_cast<std::uint64_t*>(&_resources.outbox.ready_word(ticket));
    step.told_host_number = ready_value(ticket.generation);
    _steps.add(step, std::move(receipt), nullptr, place == nullptr);
    if (wake && _sleeps.exchange(false)) {
        _woken.store(true);
        _resources.background.take(shared_from_this());
    }
}

void Order::wait(const int peer, const Ticket& ticket, std::shared_ptr<stream::Receipt> receipt) {
    stream::Step step;
    step.awaited = _pages.done(ticket.slot);
    step.released = _pages.done_released(ticket.slot);
    step.number = number_of(ticket.generation);
    Wait& noted = _waits[ticket.slot];
    noted.number.store(step.number);
    noted.peer.store(peer);
    if (_peers[static_cast<std::size_t>(peer)].gone.load()) {
        _pages.release_done(ticket.slot, step.number);
    }
    _steps.add(step, std::move(receipt), nullptr, true);
}

void Order::spoil(std::byte* const to, const std::size_t bytes) noexcept {
    flush();  // a step that was added before may send what the buffer holds
    if (const gpu::Status status = _resources.runtime.fill(to, kPattern, bytes, {nullptr, _steps.device()});
        !status.ok()) {
        _resources.notes.once("a received buffer was not filled with a pattern: " + status.message());
    }
}

void Order::fetch(const int peer, const Claim& claim, std::byte* const to, const std::byte* const from,
                  const std::size_t bytes, std::shared_ptr<stream::Receipt> receipt) {
    const bool is_placed = place_of(peer, claim) != nullptr;
    stream::Step step;
    step.awaited = _pages.ready(peer, claim.slot);
    step.released = _pages.ready_released(peer, claim.slot);
    step.number = number_of(claim.generation);
    step.target = to;
    step.source = from;
    step.bytes = bytes;
    step.delay = _checks ? kCheckLooks : 0;
    if (!is_placed) {  // nobody's stream waits for a copy in a place
        step.told = _pages.done_of(peer, claim.slot);
        step.told_number = step.number;
    }
    const Inbox::DoneWord done = Inbox(_resources.areas.of(peer).offers, _resources.own).done_word(claim);
    step.told_host = reinterpret_cast<std::uint64_t*>(done.word);
    step.told_host_number = done.value;
    _steps.add(step, std::move(receipt), is_placed ? nullptr : done.queued, !is_placed);
}

std::optional<transport::Placed> Order::find(const int peer, const Claim& claim, const bool repeats) const noexcept {
    const std::byte* const place = place_of(peer, claim);
    if (claim.kind == OfferKind::ordered || claim.shape || place == nullptr) {
        return std::nullopt;
    }
    const Inbox::DoneWord done = Inbox(_resources.areas.of(peer).offers, _resources.own).done_word(claim);
    transport::Placed placed;
    placed.found = {address_of(place), claim.bytes, address_of(done.word), done.value};
    if (claim.kind == OfferKind::queued) {
        placed.found.awaited = address_of(_pages.ready(peer, claim.slot));
        placed.found.released = address_of(_pages.ready_released(peer, claim.slot));
        placed.found.number = number_of(claim.generation);
        placed.ready = claim.ready;
        placed.ready_value = ready_value(claim.generation);
    }
    if (repeats && claim.kind == OfferKind::repeated) {
        placed.state = claim.channel;
        placed.channel = {1,
                          number_of(claim.generation),
                          placed.found.source,
                          claim.bytes,
                          address_of(_pages.ready(peer, claim.slot)),
                          address_of(_pages.done_of(peer, claim.slot)),
                          address_of(&claim.channel->fetched)};
        claim.channel->phase.store(transport::ChannelState::open, std::memory_order_release);
    }
    return placed;
}

transport::ReadyWords Order::ready_words(const int peer, const Ticket& ticket) const noexcept {
    return {_pages.ready_of(peer, _resources.own, ticket.slot), number_of(ticket.generation),
            reinterpret_cast<std::uint64_t*>(&_resources.outbox.ready_word(ticket)), ready_value(ticket.generation)};
}

stream::Channel Order::channel_to(const int peer, const Ticket& ticket) const noexcept {
    stream::Channel channel;
    channel.open = 1;
    channel.number = number_of(ticket.generation);
    channel.awaited = address_of(_pages.done(ticket.slot));
    channel.told = address_of(_pages.ready_of(peer, _resources.own, ticket.slot));
    return channel;
}

void Order::flush_late() noexcept {
    if (_steps.is_late(kGathers)) {
        _steps.flush();
    }
}

std::optional<std::string> Order::take_lost() {
    const std::scoped_lock lock(_mutex);
    return _lost.empty() ? std::nullopt : std::optional(std::exchange(_lost, {}));
}

bool Order::pump() noexcept {
    if (_resources.ending.load(std::memory_order_acquire)) {
        flush();
        return true;
    }
    _sleeps.store(false);
    const bool is_late = _steps.is_late(kLeft);
    if (is_late) {
        // A reset has destroyed the kernels. Once that is noticed, launches fail, and touch nothing.
        static_cast<void>(_resources.runtime.was_reset());
        flush();
    }
    // What calls flush by themselves does not keep this thread awake: it may have to share its processor with them.
    _idle = is_late || _woken.exchange(false) ? 0 : _idle + 1;
    if (const Clock::time_point now = Clock::now(); now - _looked > kBetweenLooks) {
        _looked = now;
        look_after_own_gpu();
        look_after_peers();
        const std::scoped_lock lock(_watch_mutex);
        if (_watched != nullptr) {
            _watched->look();
        }
    }
    return false;
}

std::chrono::microseconds Order::pause() const noexcept {
    if (_idle < kBusyLooks) {
        return Task::pause();
    }
    _sleeps.store(true);
    // Whoever adds a step from now on wakes this thread. A step that was added before has not been seen yet.
    return _steps.any() ? Task::pause() : std::chrono::duration_cast<std::chrono::microseconds>(kBetweenLooks);
}

/// Processes that share a GPU get it in turns. A kernel of one that waits for the other would use up its turn.
bool Order::shares_its_gpu() const noexcept {
    const stream::PageLocation& own = _resources.areas.of(_resources.own).page;
    for (int peer = 0; peer < _resources.processes; ++peer) {
        const stream::PageLocation& other = _resources.areas.of(peer).page;
        if (peer != _resources.own && other.there.load(std::memory_order_acquire) != 0 && other.gpu == own.gpu) {
            return true;
        }
    }
    return false;
}

/// A kernel that fails ends all work of its process. The CPU may be in a call that waits for a process which waits for
/// that work, so it does not hear of the error by itself.
void Order::look_after_own_gpu() noexcept {
    if (_asked.value == nullptr || _resources.runtime.was_reset()) {
        return;
    }
    bool over = false;
    if (!_resources.runtime.query_stream(_asked, over).ok() && !_resources.runtime.was_reset()) {
        _resources.areas.of(_resources.own).page.failed.store(1, std::memory_order_release);
    }
}

/// A process that has ended tells nobody that its bytes are there, or that it has read others'.
void Order::look_after_peers() noexcept {
    for (int peer = 0; peer < _resources.processes; ++peer) {
        Peer& known = _peers[static_cast<std::size_t>(peer)];
        if (!known.goes.load(std::memory_order_relaxed) || known.gone.load(std::memory_order_relaxed)) {
            continue;
        }
        const bool has_failed = _resources.areas.of(peer).page.failed.load(std::memory_order_acquire) != 0;
        if (!has_failed && !_resources.reachability.seems_gone(peer, known.looked)) {
            continue;
        }
        known.gone.store(true);
        known.goes.store(false);
        _pages.release_from(peer);
        for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
            if (_waits[slot].peer.load() == peer) {
                _pages.release_done(slot, _waits[slot].number.load());
            }
        }
        if (_resources.reachability.takes_rts(peer)) {  // else it has finalised MPI before
            const std::scoped_lock lock(_mutex);
            _lost = has_failed ? "the GPU of " + _resources.reachability.name_of(peer) + " of MPI_COMM_WORLD failed"
                               : _resources.reachability.name_of(peer) + " of MPI_COMM_WORLD ended";
            _resources.notes.once(_lost + " while messages to or from it may have been waiting in the default stream");
        }
    }
}

gpu::Status Order::take(const std::span<const stream::Step> steps) {
    for (const stream::Step& step : steps) {
        _steps.add(step, nullptr);
    }
    flush();
    return _steps.failure();
}

void Order::watch(stream::Watched* const watched) noexcept {
    const std::scoped_lock lock(_watch_mutex);
    _watched = watched;
}

void Order::end() noexcept {
    _pages.release_all();
    const std::scoped_lock lock(_watch_mutex);
    if (_watched != nullptr) {
        _watched->let_go();
    }
}

void Order::finish() noexcept {
    flush();
    if (const int device = _steps.device(); device >= 0) {
        static_cast<void>(_resources.runtime.finish_default_stream(device));
    }
}

void Order::shut_down() noexcept {
    if (_asked.value != nullptr) {
        static_cast<void>(_resources.runtime.destroy_stream(std::exchange(_asked, {})));
    }
    _steps.shut_down();
    _pages.shut_down();
}

}  // namespace awaken::ipc
