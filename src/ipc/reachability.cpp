// SPDX-License-Identifier: Apache-2.0
#include "ipc/reachability.h"

#include <sys/random.h>

#include <array>
#include <string>
#include <utility>

#include "base/backoff.h"
#include "base/error.h"

namespace awaken::ipc {

using transfer::Location;

Reachability::Reachability(node::Segment& segment, const Areas& areas, const Means& means,
                           const transfer::Tuning& tuning, Notes& notes)
    : _segment(segment),
      _areas(areas),
      _means(means),
      _tuning(tuning),
      _notes(notes),
      _own(segment.own_index()),
      _waited_for(new std::atomic<bool>[static_cast<std::size_t>(segment.processes())]()) {}

bool Reachability::wait_for_rts(const int peer, const std::chrono::nanoseconds limit) noexcept {
    if (!_waited_for[static_cast<std::size_t>(peer)].exchange(true, std::memory_order_relaxed)) {
        const auto end = Clock::now() + limit;
        for (Backoff backoff; !takes_rts(peer) && Clock::now() < end;) {
            if (backoff.turn()) {
                backoff.pause();
            }
        }
    }
    return takes_rts(peer);
}

void Reachability::received_from_host(const int peer, const std::int64_t bytes, const bool to_device) noexcept {
    if (peer == _own || bytes < least_from_host()) {
        return;
    }
    std::atomic<std::uint32_t>& word = _areas.pair(_own, peer).from_host;
    const std::uint32_t wanted = to_device ? 1 : 0;
    // Relaxed, as it is only a hint: the message arrives either way.
    if (word.load(std::memory_order_relaxed) != wanted) {
        word.store(wanted, std::memory_order_relaxed);
    }
}

bool Reachability::seems_gone(const int peer, Clock::time_point& looked) const {
    constexpr std::chrono::milliseconds kBetweenLooks{10};  // each look costs a system call or two
    const auto now = Clock::now();
    if (looked == Clock::time_point{}) {
        looked = now;
        return false;
    }
    if (now - looked <= kBetweenLooks) {
        return false;
    }
    looked = now;
    return peer != _own && !_segment.alive(peer);
}

std::string Reachability::name_of(const int process) const {
    return "rank " + std::to_string(_segment.process(process).world_rank);
}

void Reachability::copy_at_once(const int device, void* const destination, const void* const source,
                                const std::size_t bytes) {
    _means.copies
        .give(device, 0, bytes,
              [=](gpu::Runtime& runtime, const gpu::StreamHandle stream) {
                  return runtime.copy(destination, source, bytes, stream);
              })
        .wait();
}

bool Reachability::has_probe_buffer(const int device) {
    ProbeBuffer& probe_buffer = own().probe_buffer;
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
        !_means.runtime.allocate(device, sizeof probe_buffer.content, _probe_buffer).ok()) {
        return false;
    }
    const void* const pointer = _probe_buffer;
    gpu::PointerInfo info;
    _means.runtime.classify({&pointer, 1}, &info);
    copy_at_once(device, _probe_buffer, probe_buffer.content.data(), sizeof probe_buffer.content);
    if (!_means.exports.describe(_probe_buffer, info, probe_buffer.location).ok()) {
        return false;
    }
    probe_buffer.there.store(1, std::memory_order_release);
    return true;
}

/// Reads the peer's probe buffer and checks what it says. Empty when it is right.
std::string Reachability::why_unreadable(const int peer, const int device, bool& is_lasting) {
    const ProbeBuffer& probe_buffer = _areas.of(peer).probe_buffer;
    if (probe_buffer.there.load(std::memory_order_acquire) == 0) {
        return "it has no memory to try with";
    }
    const Location location = probe_buffer.location;
    std::array<std::uint64_t, 8> read{};
    if (location.offset > location.allocation_bytes || sizeof read > location.allocation_bytes - location.offset) {
        return "it describes its memory wrongly";
    }
    gpu::Status status;
    const auto use = _means.mappings.open(peer, location, device, status);
    if (!use) {
        is_lasting = status.code != gpu::kBusy;
        return status.message();
    }
    try {
        copy_at_once(device, read.data(), use.data(), sizeof read);
    } catch (const Error& error) {
        return error.what();
    }
    return read == probe_buffer.content ? "" : "what was read is not what was written";
}

bool Reachability::can_read(const int peer, const int device) {
    std::atomic<std::uint32_t>& known = _areas.pair(_own, peer).reachability;
    if (const auto said = static_cast<Reach>(known.load(std::memory_order_acquire)); said != Reach::untried) {
        return said == Reach::works;
    }
    bool is_lasting = true;
    const std::string reason = why_unreadable(peer, device, is_lasting);
    if (!is_lasting) {
        return false;
    }
    const Reach found = reason.empty() ? Reach::works : Reach::refused;
    known.store(static_cast<std::uint32_t>(found), std::memory_order_release);
    if (!reason.empty()) {
        _notes.once("no direct path from " + name_of(peer) + " to " + name_of(_own) + " of MPI_COMM_WORLD: " + reason);
    }
    return reason.empty();
}

void Reachability::try_to_read(const int peer, const int device) {
    if (peer != _own && _areas.of(peer).probe_buffer.there.load(std::memory_order_acquire) != 0) {
        static_cast<void>(can_read(peer, device));
    }
}

void Reachability::shut_down() noexcept {
    if (_probe_buffer != nullptr) {
        _means.runtime.free_when_idle(std::exchange(_probe_buffer, nullptr), -1);
    }
}

}  // namespace awaken::ipc
