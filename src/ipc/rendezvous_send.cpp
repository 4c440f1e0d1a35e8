// SPDX-License-Identifier: Apache-2.0
#include "ipc/rendezvous_send.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/step_probe.h"
#include "ipc/resources.h"

namespace awaken::ipc {

using transfer::DeviceCopies;
using transfer::Location;
using transport::BeyondAllocation;
using transport::Patience;

namespace {

/// Receivers get longer messages by a copy of their own (transfer/device_copies.cpp).
constexpr std::size_t kSmallMessage = std::size_t{64} << 10;
/// Of a GPU, by copies that are made because mapping their originals does not pay yet.
constexpr std::size_t kMostBeforeMapping = std::size_t{16} << 20;

}  // namespace

// ---- offers ---------------------------------------------------------------------------------------------------------

void RendezvousSend::publish(const Location& location, const bool is_copy, const std::uint64_t available,
                             const transfer::Strided* const shape) {
    AWAKEN_STEP("Isend: publish");
    Rts rts{};
    rts.secret = _resources.segment.secret();
    rts.sender = static_cast<std::uint32_t>(_resources.own);
    rts.slot = _ticket.slot;
    rts.generation = _ticket.generation;
    std::memcpy(_resources.rts[rts.slot].data(), &rts, sizeof rts);
    _is_copy = is_copy;
    _traced.begin(trace::Kind::background, "message offered", _bytes, -1, _resources.segment.process(_peer).world_rank);
    if (is_copy) {
        _resources.outbox.offer_copy(_ticket, _peer, _bytes, location, available);
    } else {
        _resources.outbox.offer(_ticket, _peer, _bytes, location, shape, _in_order ? OfferKind::ordered : _kind);
    }
}

bool RendezvousSend::offer(const protocol::SendPath path) {
    using protocol::SendPath;
    switch (path) {
        case SendPath::by_cpu:
            return offer_by_cpu();
        case SendPath::own: {
            Location location;
            location.kind = Location::Kind::own;
            location.address = reinterpret_cast<std::uintptr_t>(_buffer);
            publish(location, false, 0);
            return true;
        }
        case SendPath::pull:
            return offer_buffer();
        case SendPath::exported:
            return offer_small_copy() || offer_copy_in_device_memory();
        case SendPath::before_mapping:
            // A receiver that has not tried yet may refuse the copy: see SendList::watch_copy(). Then the small place
            // is the memory that is left for it when there is none for rings.
            if (!_resources.rings.has_small_places() ||
                _resources.exported.statistics().lent_bytes + _bytes > kMostBeforeMapping) {
                return false;
            }
            _copy_began = Clock::now();
            return offer_copy_in_device_memory();
        case SendPath::ring:
            return offer_small_copy() || offer_ring();
        default:
            return false;
    }
}

void RendezvousSend::offer_copy_of(const void* const packed) {
    std::memcpy(_resources.rings.small_place(_ticket), packed, _bytes);
    offer_small_place();
}

void RendezvousSend::offer_nothing(const Error& error) {
    publish(Location{}, true, 0);
    _error = error;
}

/// The whole message is in the small place.
void RendezvousSend::offer_small_place() {
    _path = report::Path::copied;
    publish(_resources.rings.small_location(_ticket), true, _bytes);
    _free.store(true, std::memory_order_release);
    _traced.end();
}

bool RendezvousSend::offer_by_cpu() {
    if (!_resources.rings.has_small_places() || !_resources.runtime.finish_default_stream(_info.device).ok() ||
        !_resources.window.to_host(_resources.rings.small_place(_ticket), _buffer, _info, _bytes)) {
        return false;
    }
    offer_small_place();
    return true;
}

bool RendezvousSend::offer_buffer() {
    AWAKEN_STEP("Isend: directly");
    if (!_resources.rings.has_small_places()) {
        // A receiver that cannot read this memory would wait for a copy that there is no memory for.
        _resources.notes.once("no shared memory for messages that their receiver may refuse: they were staged");
        return false;
    }
    std::optional<transfer::Strided> shape;
    if (_typed != nullptr) {
        shape = _typed->strided;
        // Makes the offset count from the lowest byte, which the location describes.
        shape->offset += static_cast<std::int64_t>(_typed->origin - reinterpret_cast<std::uintptr_t>(_buffer));
    }
    Location location;
    if (!describe_buffer(shape ? &*shape : nullptr, location)) {
        return false;
    }
    _path = report::Path::direct;
    publish(location, false, 0, shape ? &*shape : nullptr);
    return true;
}

/// False when the memory cannot be exported. Throws BeyondAllocation.
bool RendezvousSend::describe_buffer(const transfer::Strided* const shape, Location& location) {
    AWAKEN_STEP("Isend: describe");
    const std::size_t extent = shape != nullptr ? static_cast<std::size_t>(shape->end()) : _bytes;
    const gpu::Status status = _resources.exports.describe(_buffer, extent, _info, location, _export);
    if (!status.ok()) {
        _resources.notes.once("memory that IPC cannot export: " + status.message());
        return false;
    }
    if (!lies_within(location, shape, _bytes)) {
        throw_beyond();
    }
    return true;
}

// ---- in the order of the default stream -----------------------------------------------------------------------------

/// A short message is copied in stream order, so that its sender's program may go on whatever the receiver does. A long
/// one stays where it is, and the sender's stream waits for its receiver where the call would have waited.
bool RendezvousSend::offer_in_order(const protocol::SendPaths& paths) {
    using protocol::SendPath;
    const SendPath first = *paths.begin();
    if (_info.kind != gpu::MemoryKind::device || _typed != nullptr || first == SendPath::own ||
        first == SendPath::ring || !_resources.rings.has_small_places() ||
        !_resources.order->goes(_peer, _info.device)) {
        return false;
    }
    AWAKEN_STEP("order: offer");
    _place = _resources.order->take_place(_ticket, _bytes);
    if (!_place && _bytes <= Order::kLongestPlace) {
        _resources.sends.release_finished();  // places of messages that their receivers have got meanwhile
        _place = _resources.order->take_place(_ticket, _bytes);
    }
    Location location;
    if (_place) {
        if (!lies_in_its_allocation()) {
            throw_beyond();
        }
        location = _place->location;
        _path = report::Path::copied;
    } else {
        // A copy that spares the receiver a first mapping would keep CPUs waiting with every message.
        const bool is_pulled =
            std::find(paths.begin(), paths.end(), SendPath::pull) != paths.end() || first == SendPath::before_mapping;
        if (!is_pulled || !describe_buffer(nullptr, location)) {
            return false;
        }
        _path = report::Path::direct;
    }
    _in_order = true;
    publish(location, false, 0);
    return true;
}

// ---- from a place ---------------------------------------------------------------------------------------------------

std::byte* RendezvousSend::take_place() {
    Order& queues = *_resources.queues;
    _place = queues.take_place(_ticket, _bytes);
    if (!_place) {
        _resources.sends.release_finished();
        _place = queues.take_place(_ticket, _bytes);
    }
    if (!_place) {
        return nullptr;
    }
    _buffer = _place->data;
    _info = queues.info_of_places();
    _path = report::Path::copied;
    return _buffer;
}

void RendezvousSend::offer_place(const bool repeats) noexcept {
    const std::scoped_lock lock(_mutex);
    _kind = repeats ? OfferKind::repeated : OfferKind::plain;
    if (_offers++ != 0) {
        _ticket = _resources.outbox.renew(_ticket, std::exchange(_by_channel, 0) + 1);
        _parts.clear();
        _part_ends.clear();
        _ring.reset();
        _copying = Copying::no;
        _left = false;
        _free.store(false, std::memory_order_release);
    }
    publish(_place->location, false, 0);
    _traced.end();
    _resources.outbox.mark_ready(_ticket);
}

transport::ReadyWords RendezvousSend::offer_early() noexcept {
    const std::scoped_lock lock(_mutex);
    _kind = OfferKind::queued;
    ++_offers;
    publish(_place->location, false, 0);
    _traced.end();
    return _resources.queues->ready_words(_peer, _ticket);
}

bool RendezvousSend::is_placed() noexcept {
    return _resources.outbox.is_ready(_ticket);
}

transport::ChannelState* RendezvousSend::channel_state() noexcept {
    return &_resources.outbox.channel(_ticket);
}

std::optional<transport::Channel> RendezvousSend::channel() noexcept {
    if (channel_state()->phase.load(std::memory_order_acquire) != transport::ChannelState::open) {
        return std::nullopt;
    }
    return _resources.queues->channel_to(_peer, _ticket);
}

/// The numbers of messages that follow in the slot must be none that GPUs have written.
void RendezvousSend::close_channel(const std::uint32_t messages) noexcept {
    transport::ChannelState& state = *channel_state();
    const std::scoped_lock lock(_mutex);
    _by_channel = messages + 1;
    std::uint32_t expected = transport::ChannelState::open;
    state.last.store(number_of(_ticket.generation) + messages, std::memory_order_relaxed);
    state.phase.compare_exchange_strong(expected, transport::ChannelState::closed_by_sender, std::memory_order_acq_rel);
}

bool RendezvousSend::is_fetched() {
    if (_resources.outbox.state(_ticket) == OfferState::refused) {
        leave();  // the background copies it for the receiver
    }
    return is_over() && (!_left || is_free());
}

bool RendezvousSend::lies_in_its_allocation() const noexcept {
    const std::size_t begin = reinterpret_cast<std::uintptr_t>(_buffer) - _info.base;
    return _info.size == 0 || (begin <= _info.size && _bytes <= _info.size - begin);
}

void RendezvousSend::throw_beyond() const {
    throw BeyondAllocation("a message of " + std::to_string(_bytes) + " bytes leaves the allocation of " +
                               std::to_string(_info.size) + " bytes in which its buffer begins at byte " +
                               std::to_string(reinterpret_cast<std::uintptr_t>(_buffer) - _info.base),
                           "pass a count that fits, or allocate more");
}

/// Asks the stream, once, to make the bytes ready.
void RendezvousSend::announce_in_order(const bool wake) {
    if (!std::exchange(_asked_to, true)) {
        _resources.order->tell(_peer, _ticket, _buffer, _bytes, _place ? &*_place : nullptr, receipt(), wake);
    }
}

/// Whether the stream has been given what it was asked. While the thread gathers, the promise is enough.
bool RendezvousSend::is_queued(const Patience patience) {
    if (_receipt.load(std::memory_order_acquire) == stream::Outcome::added) {
        if (patience == Patience::endless) {
            return false;
        }
        if (transport::Gathering::is_on()) {
            return true;
        }
        _resources.order->flush();
    }
    if (_receipt.load(std::memory_order_acquire) == stream::Outcome::failed) {
        throw Error("a message could not be queued in the default stream (" + _resources.order->failure() + ")",
                    "an error of an earlier kernel of the program is reported here");
    }
    return true;
}

/// Whether the program may go on, since what it gives to its stream next comes after the receiver has the bytes.
///
/// Nothing waits in a stream for what is not queued yet in another one. So the CPU waits for the receiver's CPU here,
/// as it does without streams, and the wait is queued when the receiver has queued its fetch. All that one stream waits
/// for has been queued before the wait then, and no circle of waits can come about.
bool RendezvousSend::advance_in_order(const Patience patience) {
    if (!_asked_to) {
        return false;
    }
    if (_place || _waits) {
        return is_queued(patience);
    }
    switch (_resources.outbox.state(_ticket)) {
        case OfferState::done:
            return true;
        case OfferState::refused:
        case OfferState::offered:
            static_cast<void>(is_queued(patience));
            // From here on the message is like others, once its bytes may be read.
            if ((_resources.outbox.state(_ticket) == OfferState::refused || has_waited(patience)) &&
                _resources.outbox.is_ready(_ticket)) {
                _in_order = false;
            }
            check_alive();
            return false;
        case OfferState::claimed:
            if (patience != Patience::endless && _resources.outbox.is_queued(_ticket)) {
                _receipt.store(stream::Outcome::added, std::memory_order_release);
                _resources.order->wait(_peer, _ticket, receipt());
                _waits = true;
                return is_queued(patience);
            }
            static_cast<void>(is_queued(patience));
            [[fallthrough]];
        default:
            check_alive();
            return false;
    }
}

/// A copy in shared memory. False when the message is not small, or there is no memory.
bool RendezvousSend::offer_small_copy() {
    SharedRings& rings = _resources.rings;
    if (_bytes > _resources.tuning.small_bytes || !rings.has_small_places()) {
        return false;
    }
    _copy_info = {};
    publish(rings.small_location(_ticket), true, 0);
    start_parts(rings.small_place(_ticket), rings.gpu_reaches_small_places() ? nullptr : &_copy_info);
    _path = report::Path::copied;
    return true;
}

bool RendezvousSend::offer_copy_in_device_memory() {
    _resources.sends.release_finished();  // the block of the previous message may be free again
    _block = _resources.exported.acquire(_resources.device_or_any(_info.device), _bytes);
    if (!_block) {
        _resources.notes.once("no exported device memory left for a copy of a message");
        return false;
    }
    publish(location_of_block(), true, 0);
    start_parts(_block.data(), nullptr);
    _path = report::Path::copied;
    // Not before it is published: a message that is not there yet counts as over.
    _resources.sends.watch_copy(*this);
    return true;
}

Location RendezvousSend::location_of_block() const {
    Location location = _block.location();
    if (_peer == _resources.own) {
        location.kind = Location::Kind::own;
        location.address = reinterpret_cast<std::uintptr_t>(_block.data());
    }
    return location;
}

bool RendezvousSend::offer_ring() {
    Location location;
    transfer::RingMemory memory;
    if (!find_ring(location, memory)) {
        // Rings of messages that their receivers have got meanwhile are free.
        _resources.sends.release_finished();
        if (!find_ring(location, memory)) {
            _resources.notes.once("no ring free, and no shared memory for another: messages were staged");
            return false;
        }
    }
    _path = report::Path::ring;
    publish(location, false, 0);
    start_ring(memory, source());
    return true;
}

bool RendezvousSend::find_ring(Location& location, transfer::RingMemory& memory) {
    if (_ring_index < 0) {
        _ring_index = _resources.rings.take();
        if (_ring_index < 0) {
            return false;
        }
    }
    _resources.rings.describe(_ring_index, location, memory);
    return true;
}

// ---- the message under way ------------------------------------------------------------------------------------------

const std::byte* RendezvousSend::rts() const noexcept {
    return _resources.rts[_ticket.slot].data();
}

RendezvousSend::~RendezvousSend() {
    release_all();
}

/// Gives back everything but the slot.
void RendezvousSend::release_all() noexcept {
    _parts.clear();  // waits for copies under way
    _ring.reset();
    _serving = false;
    _kept.reset();
    if (_ring_index >= 0) {
        _resources.rings.give_back(std::exchange(_ring_index, -1));
    }
    _export.reset();
    _block.release();
    if (_place) {
        _resources.queues->give_back(*std::exchange(_place, std::nullopt));
    }
    if (_shared != nullptr) {
        _resources.segment.unmap(std::exchange(_shared, nullptr), _shared_bytes);
        if (is_over()) {
            _resources.segment.release(_shared_offset, _shared_bytes);
        }  // else the receiver may still come for the message, and the memory goes with the segment
    }
}

void RendezvousSend::give_up() noexcept {
    const std::scoped_lock lock(_mutex);
    release_all();
}

void RendezvousSend::give_back() noexcept {
    if (_not_ready.load(std::memory_order_acquire)) {
        _resources.readiness->forget(*this);  // the slot soon belongs to another message
    }
    const std::scoped_lock lock(_mutex);
    release_all();
    _traced.end();
    // The background may hold this object until its next turn. No owner may use the slot from now on, since it may
    // belong to another message at once.
    _free.store(true, std::memory_order_release);
    if (_by_channel != 0) {
        _ticket = _resources.outbox.renew(_ticket, _by_channel);
    }
    _resources.outbox.release(_ticket);
}

void RendezvousSend::copy_out() {
    if (_in_order) {
        const std::scoped_lock lock(_mutex);
        announce_in_order(false);  // what comes later in the stream may overwrite the buffer
        _resources.order->flush();
        return;
    }
    while (!advance(Patience::endless)) {
    }
}

void RendezvousSend::posted(const bool waits) {
    if (_in_order) {
        const std::scoped_lock lock(_mutex);
        announce_in_order(!waits);
        return;
    }
    if (waits) {
        wait_until_ready();
    } else {
        wait_in_turn();
    }
    if (_is_copy || _ring != nullptr) {  // nobody else has the message yet
        // A ring or a copy that has begun goes on after the native function of a blocking send has returned, or after
        // the program has left a nonblocking send to itself.
        static_cast<void>(pump());
    }
}

void RendezvousSend::leave() {
    if (_in_order && _place) {
        return;  // the stream has all that it takes, or soon will
    }
    if (!std::exchange(_left, true)) {
        _resources.sends.leave(shared_from_this());
    }
}

void RendezvousSend::end() noexcept {
    if (_place && !_in_order) {
        if (_offers == 0 || _withdrawn) {
            withdraw();
            return;
        }
        if (!is_over()) {
            leave();
        }
    }
    _resources.sends.retire(shared_from_this());
}

void RendezvousSend::wait_until_ready() {
    if (is_read_by_its_receiver()) {  // else this process copies the bytes, and its streams are in order
        const int device = _resources.device_or_any(_info.device);
        became_ready(_resources.runtime.finish_default_stream(device));
    }
}

void RendezvousSend::wait_in_turn() {
    AWAKEN_STEP("Isend: wait_in_turn");
    const Readiness::Clock::time_point now = Readiness::Clock::now();
    if (!is_read_by_its_receiver() || !_resources.readiness->in_burst(now)) {
        wait_until_ready();
        return;
    }
    gpu::EventHandle mark;
    const gpu::Status status = _resources.runtime.mark_default_stream(_resources.device_or_any(_info.device), mark);
    if (!status.ok() || mark.value == nullptr) {
        became_ready(status);
        return;
    }
    _not_ready.store(true, std::memory_order_release);
    try {
        if (_resources.readiness->add(shared_from_this(), mark, _bytes > kSmallMessage, now)) {
            _resources.background.take(_resources.readiness);
        }
    } catch (const std::bad_alloc&) {
        // The RTS was sent, and its receiver must not wait for ever. The caller keeps the message.
        _resources.readiness->forget(*this);
        _not_ready.store(false, std::memory_order_release);
        wait_until_ready();
    }
}

void RendezvousSend::became_ready(const gpu::Status& status) noexcept {
    _resources.outbox.mark_ready(_ticket);
    _not_ready.store(false, std::memory_order_release);
    if (!status.ok()) {
        const std::scoped_lock lock(_mutex);
        _error = Error("waiting for earlier work on a GPU buffer failed (" + status.message() + ")",
                       "an error of an earlier kernel of the program is reported here");
    }
}

void RendezvousSend::withdraw() noexcept {
    if (_not_ready.load(std::memory_order_acquire)) {
        _resources.readiness->forget(*this);
    }
    const std::scoped_lock lock(_mutex);
    if (!_withdrawn) {
        _withdrawn = true;
        _free = true;
        _traced.end();
        release_all();
        _resources.outbox.release(_ticket);
    }
}

bool RendezvousSend::is_over() const noexcept {
    // An overwritten slot tells nothing more about this message.
    const OfferState state = _withdrawn ? OfferState::done : _resources.outbox.state(_ticket);
    if (state == OfferState::done && _by_channel != 0) {
        transport::ChannelState& channel = _resources.outbox.channel(_ticket);
        const std::uint32_t phase = channel.phase.load(std::memory_order_acquire);
        return phase == transport::ChannelState::left_by_receiver ||
               (phase == transport::ChannelState::seen_by_receiver &&
                static_cast<std::uint32_t>(channel.fetched.load(std::memory_order_acquire)) ==
                    channel.last.load(std::memory_order_relaxed));
    }
    if (state == OfferState::done && _kind == OfferKind::queued && !_withdrawn) {
        // The step that fills the place writes to the slot, though nobody may want the message.
        return _resources.outbox.is_ready(_ticket) ||
               _resources.areas.of(_resources.own).page.failed.load(std::memory_order_acquire) != 0;
    }
    return state == OfferState::done || state == OfferState::overwritten;
}

bool RendezvousSend::wants_background() const noexcept {
    const std::scoped_lock lock(_mutex);
    return _serving || (!_free.load(std::memory_order_relaxed) && (_ring != nullptr || !_parts.empty()));
}

std::chrono::microseconds RendezvousSend::pause() const noexcept {
    // Where the receiver alone has work to do, it may still refuse what it cannot read.
    constexpr std::chrono::microseconds kBetweenRefusals{500};
    return wants_background() ? Task::pause() : kBetweenRefusals;
}

bool RendezvousSend::pump() noexcept {
    try {
        if (advance(Patience::endless)) {
            serve_refused_copy();
            return serve() && !is_on_trial();
        }
    } catch (const Error&) {
        return true;  // advance() throws the error
    }
    // The GPU finishes a copy by itself. For other work the receiver might take any time.
    return _resources.ending.load(std::memory_order_acquire) && !_is_copy;
}

bool RendezvousSend::advance(const Patience patience) {
    if (_free.load(std::memory_order_acquire)) {
        return true;
    }
    if (_not_ready.load(std::memory_order_relaxed)) {
        _resources.readiness->ask();
    }
    const std::scoped_lock lock(_mutex);
    if (_free.load(std::memory_order_relaxed)) {
        return true;  // given back while this thread waited for the lock
    }
    if (_error) {
        throw *_error;
    }
    try {
        if (step(patience)) {
            // When the message was copied out, or the receiver does not want it, copies into the ring may still be
            // under way. They must not read the buffer any more, so this waits for them.
            if (!_serving) {
                _ring.reset();
            }
            _traced.end();
            _free.store(true, std::memory_order_release);
        }
    } catch (const Error& error) {
        _error = error;
        if (_is_copy) {
            _resources.outbox.set_available(_ticket, 0, true);
        }
        if (_ring != nullptr) {
            _resources.outbox.ring(_ticket).failed.store(1, std::memory_order_release);
        }
        _parts.clear();
        _ring.reset();
        // The program owns the buffer again. A receiver that comes for the message now must not read it, and learns
        // that there is none.
        static_cast<void>(_resources.outbox.spill(_ticket, Location{}));
        throw;
    }
    return _free.load(std::memory_order_relaxed);
}

/// Whether the receiver has had its time, counted from when the program first asked: until then the message kept no
/// call waiting.
bool RendezvousSend::has_waited(const Patience patience) {
    if (patience == Patience::endless) {
        return false;
    }
    const Clock::time_point now = Clock::now();
    if (_asked == Clock::time_point{}) {
        _asked = now;
    }
    const transfer::Tuning& tuning = _resources.tuning;
    const bool small = _bytes <= tuning.small_bytes;
    // The more messages are under way, the longer a receiver needs to come to each of them.
    constexpr std::uint32_t kFew = 8;
    const auto limit = !small                         ? tuning.watch(tuning.large_watch, _bytes)
                       : patience == Patience::short_ ? tuning.small_watch
                                                      : tuning.small_wait * (1 + _resources.outbox.in_use() / kFew);
    return now - _asked > limit;
}

/// Goes on filling the ring from this process's own copy. True when nothing remains to be done.
bool RendezvousSend::serve() noexcept {
    const std::scoped_lock lock(_mutex);
    if (!_serving) {
        return true;
    }
    bool over = _resources.ending.load(std::memory_order_acquire) || _withdrawn;
    try {
        static_cast<void>(_ring->advance());
        over = over || _ring->done() || is_over();
        if (!over) {
            check_alive();
        }
    } catch (const Error& error) {
        _resources.outbox.ring(_ticket).failed.store(1, std::memory_order_release);
        _resources.notes.once(error.what());  // the send is complete: no call asks about it any more
        over = true;
    }
    if (over) {
        _serving = false;
        _ring.reset();
        _kept.reset();
    }
    return over;
}

bool RendezvousSend::step(const Patience patience) {
    if (_withdrawn) {
        return true;
    }
    if (_in_order) {
        return advance_in_order(patience);
    }
    if (_is_copy) {
        if (!parts_done(true)) {
            return false;
        }
        if (_copy_began != Clock::time_point{}) {
            _resources.mapping_account.copied(_peer, _info, Clock::now() - _copy_began);
        }
        return true;
    }
    const bool is_copied_out =
        _copying == Copying::to_host || _copying == Copying::to_device || _copying == Copying::to_itself;
    if (_ring != nullptr && !is_copied_out) {
        static_cast<void>(_ring->advance());
        if (_ring->done()) {
            return true;
        }
    }
    if (is_copied_out) {
        if (!parts_done(false)) {
            return false;
        }
        if (_copying == Copying::to_itself ? start_serving() : _resources.outbox.spill(_ticket, _copy_location)) {
            _path = report::Path::copied;
            return true;
        }
        // The receiver came for the original meanwhile.
        _copying = Copying::tried;
        _kept.reset();
    }
    switch (_resources.outbox.state(_ticket)) {
        case OfferState::done:
            // The receiver may have given up after the ring was asked above: it says so before it says that it is done.
            if (_ring != nullptr && !_ring->done()) {
                static_cast<void>(_ring->advance());
            }
            return true;
        case OfferState::refused:
            if (_kind != OfferKind::queued || _resources.outbox.is_ready(_ticket)) {
                answer_refusal();
            }
            return false;
        case OfferState::offered:
            if (_copying == Copying::no && has_waited(patience)) {
                start_copying_out();
            }
            return false;
        default:
            // Also in the background, where a ring would otherwise go on for ever for a reader that is gone.
            check_alive();
            return false;
    }
}

void RendezvousSend::check_alive() {
    if (_resources.outbox.state(_ticket) == OfferState::overwritten) {
        throw Error("the shared memory that describes a message was overwritten",
                    "look for a process of this job that writes where it must not, or set AWAKEN_PATH=staged");
    }
    if (_resources.reachability.seems_gone(_peer, _looked) && _resources.outbox.state(_ticket) != OfferState::done) {
        throw Error(_resources.reachability.name_of(_peer) + " of MPI_COMM_WORLD ended while it was fetching a message",
                    "look at that rank's own output for the reason", Error::Kind::failed_process);
    }
}

/// Begins to copy all of the buffer to `target`, in parts, so that the receiver can follow. parts_done() starts the
/// parts after the first: each start costs 4 us, in which the RTS could be on its way.
void RendezvousSend::start_parts(std::byte* const target, const gpu::PointerInfo* const target_info) {
    _parts.clear();
    _part_ends.clear();
    _parts_target = {target, target_info};
    _parts_done = _parts_begun = _told = 0;
    start_next_part();
}

/// The first part is as short as pays: to start a copy takes as long as to copy a few MiB. A GPU copies in its own
/// memory about three times as fast as another one reads it, so what has been copied may grow four times with each
/// part. Copies to the host take as long as those from there.
void RendezvousSend::start_next_part() {
    constexpr std::size_t kGrowth = 4;
    const std::size_t longest = _resources.tuning.bounce_chunk_bytes;
    const std::size_t begin = _parts_begun;
    std::size_t end = begin == 0 ? std::max(longest / kGrowth, _resources.tuning.small_bytes) : begin * kGrowth;
    if (_copying != Copying::no || !_block) {
        end = std::min(end, begin + longest);
    }
    // Each copy of ordinary host memory needs pinned blocks to pass through, and reports its own progress. A short rest
    // is not worth a copy of its own.
    if (_info.kind == gpu::MemoryKind::host || _bytes - begin <= 2 * (end - begin)) {
        end = _bytes;
    }
    const int device = _resources.device_or_any(_info.device);
    _parts.push_back(_resources.copies.start(device, static_cast<unsigned>(_peer), _parts_target.from(begin),
                                             source().from(begin), end - begin));
    _part_ends.push_back(end);
    _parts_begun = end;
    // Polls the copy at once, so that the end of each part is marked and not only that of the last.
    static_cast<void>(_parts.back().poll());
}

/// True when all of the buffer is in the copy. `publish`: the receiver learns of each part.
bool RendezvousSend::parts_done(const bool publish) {
    for (;;) {
        while (_parts_done < _parts.size()) {
            const bool over = _parts[_parts_done].poll();
            const std::size_t begin = _parts_done == 0 ? 0 : _part_ends[_parts_done - 1];
            const std::size_t there = over ? _part_ends[_parts_done] : begin + _parts[_parts_done].completed();
            if (publish && there != _told) {
                _told = there;
                _resources.outbox.set_available(_ticket, there);
            }
            if (!over) {
                break;
            }
            ++_parts_done;
        }
        if (_parts_begun == _bytes) {
            return _parts_done == _parts.size();
        }
        start_next_part();
    }
}

/// Copies to the place that each slot has for a small message. False when the message is not small, or there is no
/// memory.
bool RendezvousSend::copy_to_small_place() {
    if (_bytes > _resources.tuning.small_bytes || !_resources.rings.has_small_places()) {
        return false;
    }
    _copy_location = _resources.rings.small_location(_ticket);
    _copy_info = {};
    start_parts(_resources.rings.small_place(_ticket),
                _resources.rings.gpu_reaches_small_places() ? nullptr : &_copy_info);
    _copying = Copying::to_host;
    return true;
}

/// The receiver does not come: makes a copy that may wait for it.
void RendezvousSend::start_copying_out() {
    _parts.clear();
    _part_ends.clear();
    if (copy_to_small_place()) {
        return;
    }
    if (_info.kind == gpu::MemoryKind::device && _ring == nullptr &&
        (_peer == _resources.own || _resources.reachability.is_readable(_peer))) {
        _block = _resources.exported.acquire(_info.device, _bytes);
        if (_block) {
            _resources.sends.watch_copy(*this);
            _copy_location = location_of_block();
            start_parts(_block.data(), nullptr);
            _copying = Copying::to_device;
            return;
        }
    }
    if (const auto offset = _resources.segment.allocate(_bytes)) {
        _shared = _resources.segment.map(*offset, _bytes);
        if (_shared != nullptr) {
            _shared_offset = *offset;
            _shared_bytes = _bytes;
        } else {
            _resources.segment.release(*offset, _bytes);
        }
    }
    if (_shared != nullptr) {
        _copy_location = {};
        _copy_location.kind = Location::Kind::shared;
        _copy_location.offset = _shared_offset;
        _copy_location.allocation_bytes = _bytes;
        _copy_info = {};
        start_parts(_shared, &_copy_info);
        _copying = Copying::to_host;
        return;
    }
    // Shared memory is scarce in containers. The bytes wait in this process's own memory, and pass through a ring when
    // the receiver comes.
    if (_ring != nullptr || _resources.rings.has_small_places()) {
        _kept.reset(new (std::nothrow) std::byte[_bytes]);
    }
    if (_kept != nullptr) {
        _copy_info = {};
        start_parts(_kept.get(), &_copy_info);
        _copying = Copying::to_itself;
        return;
    }
    // There is no memory for a copy anywhere: this message, and only such a one, waits for its receiver.
    _resources.notes.once("no memory for a copy of a message whose receiver did not come for it: the sender waited");
    check_alive();
    _asked = Clock::now();  // the send tries again after the same time
}

/// The receiver cannot read the original, and waits for bytes that it can read. It goes on taking those by itself, so
/// little shared memory is enough.
void RendezvousSend::answer_refusal() {
    _parts.clear();
    _part_ends.clear();
    if (!copy_to_small_place()) {
        _path = report::Path::ring;
        _copying = Copying::tried;
        if (!spill_through_ring(source())) {
            check_alive();
        }
    }
}

/// The message is in `_kept`: the buffer is free, and the background gives the receiver what it asks for. False when
/// the receiver has come for the original meanwhile.
bool RendezvousSend::start_serving() {
    _copy_info = {};
    const DeviceCopies::End copy{_kept.get(), &_copy_info};
    if (_ring != nullptr) {
        _ring->continue_from(copy);
    } else if (!spill_through_ring(copy)) {
        return false;
    }
    _serving = true;
    _resources.background.take(shared_from_this());
    return true;
}

/// Whether the receiver of a copy may still refuse it, and has read no other one yet.
bool RendezvousSend::is_on_trial() const noexcept {
    const std::scoped_lock lock(_mutex);
    return static_cast<bool>(_block) && _peer != _resources.own && !_resources.reachability.is_readable(_peer) &&
           !is_over() && !_resources.ending.load(std::memory_order_acquire);
}

void RendezvousSend::serve_refused_copy() noexcept {
    const std::scoped_lock lock(_mutex);
    const bool is_whole = _free.load(std::memory_order_relaxed) && static_cast<bool>(_block);
    if (_serving || !is_whole || _resources.outbox.state(_ticket) != OfferState::refused) {
        return;
    }
    try {
        if (!spill_through_ring({_block.data(), nullptr})) {
            return;
        }
        _serving = true;
        _resources.background.take(shared_from_this());
    } catch (const Error& error) {
        _resources.notes.once(error.what());
        static_cast<void>(_resources.outbox.spill(_ticket, Location{}));  // tells the receiver that there is nothing
    } catch (const std::bad_alloc&) {
        static_cast<void>(_resources.outbox.spill(_ticket, Location{}));
    }
}

/// Makes the receiver take the message through a ring. When all rings are in use and there is no memory for another,
/// the slot's place for small messages serves as one: it is there since before the offer.
bool RendezvousSend::spill_through_ring(const DeviceCopies::End& from) {
    Location location;
    transfer::RingMemory memory;
    if (!find_ring(location, memory) && !_resources.rings.find_small_ring(_ticket, location, memory)) {
        throw Error("no shared memory is left for a message that its receiver cannot read where it lies",
                    "give the job more shared memory (/dev/shm), or set AWAKEN_PATH=staged");
    }
    if (!_resources.outbox.spill(_ticket, location)) {
        return false;
    }
    start_ring(memory, from);
    return true;
}

void RendezvousSend::start_ring(const transfer::RingMemory& memory, const DeviceCopies::End& from) {
    const int device = _resources.device_or_any(_info.device);
    _ring = std::make_unique<transfer::RingWriter>(_resources.copies, _resources.outbox.ring(_ticket), memory, device,
                                                   from, _bytes);
    static_cast<void>(_ring->advance());
}

}  // namespace awaken::ipc
