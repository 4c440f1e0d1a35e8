// SPDX-License-Identifier: Apache-2.0
#include "ipc/rendezvous_get.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/step_probe.h"
#include "ipc/resources.h"

namespace awaken::ipc {

using transfer::DeviceCopies;
using transfer::Location;

RendezvousGet::RendezvousGet(Resources& resources, const int peer, const Claim& claim, const transport::Buffer& into)
    : _resources(resources),
      _peer(peer),
      _claim(claim),
      _buffer(into.first),
      _info(into.info),
      _typed(into.typed),
      _size(claim.bytes),
      _wanted(std::min<std::size_t>(claim.bytes, into.bytes)) {
    _traced.begin(trace::Kind::background, "message fetched", _wanted, -1, _resources.segment.process(peer).world_rank);
}

RendezvousGet::~RendezvousGet() {
    _copy = {};  // waits for a copy under way
    _next = {};
    _ring.reset();
    if (_mapped != nullptr) {
        _resources.segment.unmap(_mapped, _mapped_bytes);
    }
}

/// A failure is the end of the get.
template <class Work>
void RendezvousGet::attempt(const Work& work) noexcept {
    try {
        work();
    } catch (const Error& error) {
        _error = error;
        finish();
    } catch (const std::bad_alloc&) {
        _error = Error("out of host memory while a message was fetched", "free memory, or send smaller messages");
        finish();
    }
}

void RendezvousGet::start() noexcept {
    attempt([this] {
        if (_resources.order != nullptr) {
            if (const auto lost = _resources.order->take_lost()) {
                throw Error(*lost + " while messages to or from it may have been waiting in the default stream",
                            "look at that rank's own output for the reason", Error::Kind::failed_process);
            }
        }
        if (_wanted == 0) {
            return;
        }
        if (_resources.order != nullptr && fetch_in_order()) {
            _in_order.store(true, std::memory_order_release);
            _traced.end();
            if (_use) {
                _resources.background.take(shared_from_this());  // the mapping is in use until the GPU has the bytes
            }
        } else if (!_use && !_refused) {
            begin();
        }
    });
}

/// False when the message is not to be fetched in stream order: the CPU waits for it then.
bool RendezvousGet::fetch_in_order() {
    AWAKEN_STEP("order: fetch");
    // The sender learns from the first message, which waits, that this process can.
    const bool goes = _resources.order->goes(_peer, _info.device);
    const std::size_t begins = reinterpret_cast<std::uintptr_t>(_buffer) - _info.base;
    const bool fits = _info.size == 0 || (begins <= _info.size && _wanted <= _info.size - begins);
    if (!goes || _claim.kind != OfferKind::ordered || _info.kind != gpu::MemoryKind::device || _typed != nullptr ||
        !fits || _claim.from.kind != Location::Kind::device || _claim.shape) {
        return false;
    }
    const std::byte* from = _resources.order->place_of(_peer, _claim);
    if (from != nullptr) {
        _path = report::Path::copied;
    } else {
        begin();
        if (_refused) {
            return false;
        }
        from = static_cast<const std::byte*>(_from.address);
    }
    if (_resources.order->checks()) {
        _resources.order->spoil(_buffer, _wanted);
    }
    _resources.order->fetch(_peer, _claim, _buffer, from, _wanted, {shared_from_this(), &_receipt});
    return true;
}

/// Whether the stream has been given the fetch, or has refused it. While the thread gathers, the promise is enough.
bool RendezvousGet::is_queued() noexcept {
    if (_receipt.load(std::memory_order_acquire) == stream::Outcome::added && !transport::Gathering::is_on()) {
        _resources.order->flush();
    }
    if (_receipt.load(std::memory_order_acquire) == stream::Outcome::failed) {
        const std::scoped_lock lock(_mutex);
        if (!_error) {
            _error = Error("a message could not be fetched in the default stream (" + _resources.order->failure() + ")",
                           "an error of an earlier kernel of the program is reported here");
            finish();
        }
    }
    return true;
}

bool RendezvousGet::advance() noexcept {
    return _in_order.load(std::memory_order_acquire) ? is_queued() : pump();
}

bool RendezvousGet::pump() noexcept {
    if (_over.load(std::memory_order_acquire)) {
        return true;
    }
    const std::scoped_lock lock(_mutex);
    if (_over.load(std::memory_order_relaxed)) {
        return true;
    }
    attempt([this] {
        if (step()) {
            finish();
        }
    });
    return _over.load(std::memory_order_relaxed);
}

Inbox RendezvousGet::inbox() const noexcept {
    return {_resources.areas.of(_peer).offers, _resources.own};
}

void RendezvousGet::leave() {
    if (!_left && !_in_order.load(std::memory_order_relaxed) && !advance()) {
        _left = true;
        _resources.background.take(shared_from_this());
    }
}

void RendezvousGet::went_to_host() noexcept {
    if (_path != report::Path::direct) {
        _resources.reachability.received_from_host(_peer, static_cast<std::int64_t>(_size), false);
    }
}

/// Tells the sender that the get is over, however it ended. Where a GPU has fetched the message, it has told the
/// sender.
void RendezvousGet::finish() noexcept {
    _traced.end();
    _copy = {};
    _next = {};
    if (_ring != nullptr && _error) {
        _claim.ring->failed.store(1, std::memory_order_release);
    }
    _ring.reset();
    _held.reset();
    _use.release();
    if (!_in_order.load(std::memory_order_relaxed) || _error) {
        inbox().finish(_claim);
    }
    _over.store(true, std::memory_order_release);
}

/// Asks the sender for a copy in host memory.
void RendezvousGet::refuse(const std::string& reason) {
    _resources.notes.once(reason);
    if (_claim.spilled && _claim.from.kind != Location::Kind::device) {
        throw Error("a message from " + _resources.reachability.name_of(_peer) +
                        " of MPI_COMM_WORLD lies where it cannot be read (" + reason + ")",
                    "set AWAKEN_PATH=staged, and report this");
    }
    _use.release();
    _refused = true;
    inbox().refuse(_claim);
}

void RendezvousGet::begin() {
    const Location& from = _claim.from;
    _device = _resources.device_or_any(_info.device);
    _from = {};
    _asked_for = 0;
    switch (from.kind) {
        case Location::Kind::own:
            // The other process wrote the location. Only this process itself may name an address of its own.
            if (_peer != _resources.own) {
                throw Error("an RTS describes memory that does not belong to its sender",
                            "this is a bug in Awaken, or some process forges messages: please report it");
            }
            _from.address = reinterpret_cast<void*>(from.address);
            if (_typed != nullptr) {
                // The memory may be that of a device that a kernel of the receiver cannot reach.
                const void* const pointer = _from.address;
                _resources.runtime.classify({&pointer, 1}, &_own_info);
                _from.info = &_own_info;
            }
            break;
        case Location::Kind::device: {
            if (!_resources.reachability.can_read(_peer, _device)) {
                refuse("memory of another process's GPU cannot be read");
                return;
            }
            gpu::Status status;
            _use = _resources.mappings.open(_peer, from, _device, status);
            if (!_use && status.code == gpu::kBusy && _claim.kind == OfferKind::ordered &&
                _resources.order != nullptr) {
                // A GPU that messages keep busy would never have time to close an older mapping. What they have queued
                // there needs nothing more of this thread. What the program has queued might, so the wait has an end.
                constexpr std::chrono::microseconds kPatience{10'000};
                _resources.order->flush();
                static_cast<void>(_resources.runtime.is_idle(_device, kPatience));
                _use = _resources.mappings.open(_peer, from, _device, status);
            }
            if (!_use) {
                if (from.by_descriptors != 0 && status.code != gpu::kBusy && status.code != gpu::kExpired) {
                    _resources.reachability.refuse_descriptors(_peer);
                }
                refuse("memory of " + _resources.reachability.name_of(_peer) +
                       " cannot be mapped: " + status.message());
                return;
            }
            _from.address = const_cast<std::byte*>(_use.data());
            _path = _claim.spilled ? report::Path::copied : report::Path::direct;
            if (_claim.shape) {
                _from.typed = std::make_shared<const transfer::TypedMemory>(_use.data(), *_claim.shape);
                if (_typed != nullptr ? !_resources.copies.has_kernels(_device)
                                      : !_resources.copies.can_move(_device, *_from.typed)) {
                    refuse("memory with gaps of another process cannot be read without kernels");
                }
            }
            break;
        }
        case Location::Kind::shared: {
            _path = report::Path::copied;
            const auto known = _resources.rings.mapping_of(_peer, from.offset, _claim.bytes, false);
            if (known.base != nullptr) {
                _held = known.held;
                _from.address = known.base;
                if (!known.registered) {
                    _from.info = &_host;
                }
            } else {
                _mapped_bytes = _claim.bytes;
                _mapped = _resources.segment.map(from.offset, _mapped_bytes);
                if (_mapped == nullptr) {
                    throw Error("a message in shared memory cannot be mapped",
                                "raise the limit on mapped memory (ulimit -v), or set AWAKEN_PATH=staged");
                }
                _from.address = _mapped;
                _from.info = &_host;
            }
            if (_typed == nullptr && _info.kind == gpu::MemoryKind::device && _wanted == _claim.bytes &&
                _wanted <= protocol::kCpuCopyBytes && _resources.window.usable() &&
                _claim.available->load(std::memory_order_acquire) >= _wanted &&
                _resources.runtime.order_after_default_stream(_buffer, _info).ok() &&
                _resources.runtime.finish_default_stream(_info.device).ok() &&
                _resources.window.to_device(_buffer, _info, _from.address, _wanted)) {
                _path = report::Path::copied;
                _asked_for = _wanted;
            }
            break;
        }
        case Location::Kind::ring: {
            _path = report::Path::ring;
            const auto memory = _resources.rings.mapping_of(_peer, from.offset, from.allocation_bytes, true);
            if (memory.base == nullptr) {
                // The get cannot refuse this: bytes that are in the ring already may be gone from their buffer.
                throw Error("shared memory that messages pass through cannot be mapped",
                            "raise the limit on mapped memory (ulimit -v), or set AWAKEN_PATH=staged");
            }
            _held = memory.held;
            _ring = std::make_unique<transfer::RingReader>(
                _resources.copies, *_claim.ring,
                transfer::RingMemory{memory.base, from.chunk_bytes, from.allocation_bytes / from.chunk_bytes,
                                     memory.registered},
                _device, target(), _wanted, _size);
            break;
        }
        case Location::Kind::none:
            throw Error("the sender of a message has given it up", "look at the error of the other rank");
    }
}

bool RendezvousGet::step() {
    if (_in_order.load(std::memory_order_relaxed)) {
        return !inbox().is_claimed(_claim) || _resources.ending.load(std::memory_order_acquire) ||
               _resources.reachability.seems_gone(_peer, _looked);
    }
    if (_refused) {
        if (!inbox().reclaim(_claim)) {
            check_alive();
            return false;
        }
        _refused = false;
        begin();
    }
    if (_refused) {
        return false;
    }
    if (_ring != nullptr) {
        if (!_ring->advance() && !_ring->done()) {
            check_alive();
        }
        return _ring->done();
    }
    bool is_copying = !_copy.poll();
    if (!is_copying && _has_next) {
        _copy = std::move(_next);
        _has_next = false;
        is_copying = !_copy.poll();
    }
    if (_asked_for == _wanted) {
        return !is_copying;
    }
    if (is_copying && _has_next) {
        return false;  // the GPU has enough to do
    }
    if (!_claim.spilled && _claim.ready->load(std::memory_order_acquire) != ready_value(_claim.generation)) {
        check_alive();
        return false;  // the sender will soon say that it is ready
    }
    const std::size_t there =
        _claim.spilled ? std::min<std::size_t>(_claim.available->load(std::memory_order_acquire), _wanted) : _wanted;
    if (there > _asked_for) {
        // While the GPU copies one part it gets the next, so that it does not stand still between them.
        (is_copying ? _next : _copy) =
            _resources.copies.start(_device, static_cast<unsigned>(_peer), target().from(_asked_for),
                                    _from.from(_asked_for), there - _asked_for, _start);
        _has_next = is_copying;
        _asked_for = there;
        if (is_copying) {
            static_cast<void>(_next.poll());  // marks its end
            return false;
        }
        if (_start == DeviceCopies::Start::together) {
            return false;  // asking about the copy now would start it alone
        }
        return _copy.poll() && _asked_for == _wanted;
    }
    if (_claim.lost->load(std::memory_order_acquire) != 0) {
        throw Error("the sender of a message could not finish its copy", "look at the sender's own error");
    }
    check_alive();
    return false;
}

void RendezvousGet::check_alive() {
    if (!inbox().holds(_claim)) {
        throw Error("the shared memory that describes a message was overwritten",
                    "look for a process of this job that writes where it must not, or set AWAKEN_PATH=staged");
    }
    if (_resources.ending.load(std::memory_order_acquire)) {
        throw Error("MPI ended before a message from " + _resources.reachability.name_of(_peer) +
                        " of MPI_COMM_WORLD had arrived",
                    "complete every receive before MPI_Finalize");
    }
    if (_resources.reachability.seems_gone(_peer, _looked)) {
        throw Error(_resources.reachability.name_of(_peer) +
                        " of MPI_COMM_WORLD ended while one of its messages was being fetched",
                    "look at that rank's own output for the reason", Error::Kind::failed_process);
    }
}

}  // namespace awaken::ipc
