#include <cstring>
#include <new>
#include <utility>

#include "ipc/link.h"

namespace awaken::ipc {

using transfer::DeviceCopies;
using transfer::Location;

const std::byte* RendezvousSend::rts() const noexcept {
    return _link._rts[_ticket.slot].data();
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
        _link.give_back_ring(std::exchange(_ring_index, -1));
    }
    _export.reset();
    _block.release();
    if (_shared != nullptr) {
        _link._segment.unmap(std::exchange(_shared, nullptr), _shared_bytes);
        if (is_over()) {
            _link._segment.release(_shared_offset, _shared_bytes);
        }  // else the receiver may still come for the message, and the memory goes with the segment
    }
}

void RendezvousSend::give_back() noexcept {
    if (_not_ready.load(std::memory_order_acquire)) {
        _link._readiness->forget(*this);  // the slot soon belongs to another message
    }
    const std::scoped_lock lock(_mutex);
    release_all();
    _traced.end();
    // The background may hold this object until its next turn. No owner may use the slot from now on, since it may
    // belong to another message at once.
    _free.store(true, std::memory_order_release);
    _link._outbox.release(_ticket);
}

void RendezvousSend::copy_out() {
    while (!advance(Patience::endless)) {
    }
}

void RendezvousSend::posted(const bool waits) {
    if (waits) {
        wait_until_ready();
    } else {
        _link.wait_in_turn(shared_from_this());
    }
    if (_is_copy || _ring != nullptr) {  // nobody else has the message yet
        // A ring or a copy that has begun goes on after the native function of a blocking send has returned, or after
        // the program has left a nonblocking send to itself.
        static_cast<void>(pump());
    }
}

void RendezvousSend::leave() {
    if (!std::exchange(_left, true)) {
        _link.leave(shared_from_this());
    }
}

void RendezvousSend::end() noexcept {
    _link.retire(shared_from_this());
}

void RendezvousSend::wait_until_ready() {
    if (is_read_by_its_receiver()) {  // else this process copies the bytes, and its streams are in order
        const int device = _info.device >= 0 ? _info.device : _link.any_device();
        became_ready(_link._runtime.finish_default_stream(device));
    }
}

void RendezvousSend::became_ready(const gpu::Status& status) noexcept {
    _link._outbox.mark_ready(_ticket);
    _not_ready.store(false, std::memory_order_release);
    if (!status.ok()) {
        const std::scoped_lock lock(_mutex);
        _error = Error("waiting for earlier work on a GPU buffer failed (" + status.message() + ")",
                       "an error of an earlier kernel of the program comes out here");
    }
}

void RendezvousSend::withdraw() noexcept {
    if (_not_ready.load(std::memory_order_acquire)) {
        _link._readiness->forget(*this);
    }
    const std::scoped_lock lock(_mutex);
    if (!_withdrawn) {
        _withdrawn = true;
        _free = true;
        _traced.end();
        release_all();
        _link._outbox.withdraw(_ticket);
    }
}

bool RendezvousSend::is_over() const noexcept {
    // An overwritten slot tells nothing more about this message.
    const OfferState state = _withdrawn ? OfferState::done : _link._outbox.state(_ticket);
    return state == OfferState::done || state == OfferState::overwritten;
}

bool RendezvousSend::wants_background() const noexcept {
    const std::scoped_lock lock(_mutex);
    return _serving || (!_free.load(std::memory_order_relaxed) && (_ring != nullptr || !_parts.empty()));
}

std::chrono::microseconds RendezvousSend::pause() const noexcept {
    // Where the receiver alone has work to do, it may still refuse what it cannot read.
    constexpr std::chrono::microseconds kBetweenRefusals{500};
    return wants_background() ? Job::pause() : kBetweenRefusals;
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
    return _link._ending.load(std::memory_order_acquire) && !_is_copy;
}

bool RendezvousSend::advance(const Patience patience) {
    if (_free.load(std::memory_order_acquire)) {
        return true;
    }
    if (_not_ready.load(std::memory_order_relaxed)) {
        _link.ask_readiness();
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
            _link._outbox.set_available(_ticket, 0, true);
        }
        if (_ring != nullptr) {
            _link._outbox.ring(_ticket).failed.store(1, std::memory_order_release);
        }
        _parts.clear();
        _ring.reset();
        // The program owns the buffer again. A receiver that comes for the message now must not read it, and learns
        // that there is none.
        static_cast<void>(_link._outbox.spill(_ticket, Location{}));
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
    const transfer::Tuning& tuning = _link._tuning;
    const bool small = _bytes <= tuning.small_bytes;
    // The more messages are under way, the longer a receiver needs to come to each of them.
    constexpr std::uint32_t kFew = 8;
    const auto limit = !small                         ? Link::watch(tuning.large_watch, _bytes)
                       : patience == Patience::short_ ? tuning.small_watch
                                                      : tuning.small_wait * (1 + _link._outbox.in_use() / kFew);
    return now - _asked > limit;
}

/// Goes on filling the ring from this process's own copy. True when nothing remains to be done.
bool RendezvousSend::serve() noexcept {
    const std::scoped_lock lock(_mutex);
    if (!_serving) {
        return true;
    }
    bool over = _link._ending.load(std::memory_order_acquire) || _withdrawn;
    try {
        static_cast<void>(_ring->advance());
        over = over || _ring->done() || is_over();
        if (!over) {
            check_alive();
        }
    } catch (const Error& error) {
        _link._outbox.ring(_ticket).failed.store(1, std::memory_order_release);
        _link.note_once(error.what());  // the send is complete: no call asks about it any more
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
    if (_is_copy) {
        if (!parts_done(true)) {
            return false;
        }
        if (_copy_began != Clock::time_point{}) {
            _link._mapping_account.copied(_peer, _info, Clock::now() - _copy_began);
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
        if (_copying == Copying::to_itself ? start_serving() : _link._outbox.spill(_ticket, _copy_location)) {
            _route = Route::copy;
            return true;
        }
        // The receiver came for the original meanwhile.
        _copying = Copying::tried;
        _kept.reset();
    }
    switch (_link._outbox.state(_ticket)) {
        case OfferState::done:
            // The receiver may have given up after the ring was asked above: it says so before it says that it is done.
            if (_ring != nullptr && !_ring->done()) {
                static_cast<void>(_ring->advance());
            }
            return true;
        case OfferState::refused:
            answer_refusal();
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
    if (_link._outbox.state(_ticket) == OfferState::overwritten) {
        throw Error("the shared memory that describes a message was overwritten",
                    "look for a process of this job that writes where it must not, or set AWAKEN_PATH=staged");
    }
    if (_link.seems_gone(_peer, _looked) && _link._outbox.state(_ticket) != OfferState::done) {
        throw Error("rank " + std::to_string(_link._segment.process(_peer).world_rank) +
                        " of MPI_COMM_WORLD ended while it was fetching a message",
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
    const std::size_t longest = _link._tuning.bounce_chunk_bytes;
    const std::size_t begin = _parts_begun;
    std::size_t end = begin == 0 ? std::max(longest / kGrowth, _link._tuning.small_bytes) : begin * kGrowth;
    if (_copying != Copying::no || !_block) {
        end = std::min(end, begin + longest);
    }
    // Each copy of ordinary host memory needs pinned blocks to pass through, and reports its own progress. A short rest
    // is not worth a copy of its own.
    if (_info.kind == gpu::MemoryKind::host || _bytes - begin <= 2 * (end - begin)) {
        end = _bytes;
    }
    const int device = _info.device >= 0 ? _info.device : _link.any_device();
    _parts.push_back(_link._copies.start(device, static_cast<unsigned>(_peer), _parts_target.from(begin),
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
                _link._outbox.set_available(_ticket, there);
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
    if (_bytes > _link._tuning.small_bytes || !_link.small_space()) {
        return false;
    }
    _copy_location = _link.small_location(_ticket);
    _copy_info = {};
    start_parts(_link.small_place(_ticket), _link.gpu_reaches_small_space() ? nullptr : &_copy_info);
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
    const bool to_oneself = _peer == _link._own;
    if (_info.kind == gpu::MemoryKind::device && _ring == nullptr && (to_oneself || _link.is_readable(_peer))) {
        _block = _link._exported.acquire(_info.device, _bytes);
        if (_block) {
            _link.watch_copy(*this);
            _copy_location = _block.location();
            if (to_oneself) {
                _copy_location.kind = Location::Kind::own;
                _copy_location.address = reinterpret_cast<std::uintptr_t>(_block.data());
            }
            start_parts(_block.data(), nullptr);
            _copying = Copying::to_device;
            return;
        }
    }
    if (const auto offset = _link._segment.allocate(_bytes)) {
        _shared = _link._segment.map(*offset, _bytes);
        if (_shared != nullptr) {
            _shared_offset = *offset;
            _shared_bytes = _bytes;
        } else {
            _link._segment.release(*offset, _bytes);
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
    if (_ring != nullptr || _link.small_space()) {
        _kept.reset(new (std::nothrow) std::byte[_bytes]);
    }
    if (_kept != nullptr) {
        _copy_info = {};
        start_parts(_kept.get(), &_copy_info);
        _copying = Copying::to_itself;
        return;
    }
    // There is no memory for a copy anywhere: this message, and only such a one, waits for its receiver.
    _link.note_once("no memory for a copy of a message whose receiver did not come for it: the sender waited");
    check_alive();
    _asked = Clock::now();  // the send tries again after the same time
}

/// The receiver cannot read the original, and waits for bytes that it can read. It goes on taking those by itself, so
/// little shared memory is enough.
void RendezvousSend::answer_refusal() {
    _parts.clear();
    _part_ends.clear();
    if (!copy_to_small_place()) {
        _route = Route::ring;
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
    _link._background.take(shared_from_this());
    return true;
}

/// Whether the receiver of a copy may still refuse it, and has read no other one yet.
bool RendezvousSend::is_on_trial() const noexcept {
    const std::scoped_lock lock(_mutex);
    return static_cast<bool>(_block) && _peer != _link._own && !_link.is_readable(_peer) && !is_over() &&
           !_link._ending.load(std::memory_order_acquire);
}

void RendezvousSend::serve_refused_copy() noexcept {
    const std::scoped_lock lock(_mutex);
    const bool is_whole = _free.load(std::memory_order_relaxed) && static_cast<bool>(_block);
    if (_serving || !is_whole || _link._outbox.state(_ticket) != OfferState::refused) {
        return;
    }
    try {
        if (!spill_through_ring({_block.data(), nullptr})) {
            return;
        }
        _serving = true;
        _link._background.take(shared_from_this());
    } catch (const Error& error) {
        _link.note_once(error.what());
        static_cast<void>(_link._outbox.spill(_ticket, Location{}));  // tells the receiver that there is nothing
    } catch (const std::bad_alloc&) {
        static_cast<void>(_link._outbox.spill(_ticket, Location{}));
    }
}

/// Makes the receiver take the message through a ring. When all rings are in use and there is no memory for another,
/// the slot's place for small messages serves as one: it is there since before the offer.
bool RendezvousSend::spill_through_ring(const DeviceCopies::End& from) {
    Location location;
    transfer::RingMemory memory;
    if (!_link.find_ring(*this, location, memory) && !_link.find_small_ring(_ticket, location, memory)) {
        throw Error("no shared memory is left for a message that its receiver cannot read where it lies",
                    "give the job more shared memory (/dev/shm), or set AWAKEN_PATH=staged");
    }
    if (!_link._outbox.spill(_ticket, location)) {
        return false;
    }
    start_ring(memory, from);
    return true;
}

void RendezvousSend::start_ring(const transfer::RingMemory& memory, const DeviceCopies::End& from) {
    const int device = _info.device >= 0 ? _info.device : _link.any_device();
    _ring = std::make_unique<transfer::RingWriter>(_link._copies, _link._outbox.ring(_ticket), memory, device, from,
                                                   _bytes);
    static_cast<void>(_ring->advance());
}

}  // namespace awaken::ipc
