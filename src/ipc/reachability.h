// SPDX-License-Identifier: Apache-2.0
// What this process and the others of its node have found out about each other: who takes RTS messages, who reads whose
// device memory, and who wants messages from host memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "gpu/gpu.h"
#include "ipc/areas.h"
#include "ipc/notes.h"
#include "node/segment.h"
#include "protocol/send_path.h"
#include "transfer/device_copies.h"
#include "transfer/exports.h"
#include "transfer/mappings.h"
#include "transfer/tuning.h"

namespace awaken::ipc {

/// Thread-safe.
class Reachability {
  public:
    using Clock = std::chrono::steady_clock;

    /// What a process tries memory of others with. References outlive the object.
    struct Means {
        gpu::Runtime& runtime;
        transfer::Exports& exports;
        transfer::Mappings& mappings;
        transfer::DeviceCopies& copies;
    };
    Reachability(node::Segment& segment, const Areas& areas, const Means& means, const transfer::Tuning& tuning,
                 Notes& notes);
    Reachability(const Reachability&) = delete;
    Reachability& operator=(const Reachability&) = delete;

    /// From now on others may send RTS messages to this process, or not.
    void take_rts(bool takes) noexcept { own().takes_rts.store(takes ? 1 : 0, std::memory_order_release); }
    [[nodiscard]] bool takes_rts(const int peer) const noexcept {
        return _areas.of(peer).takes_rts.load(std::memory_order_acquire) != 0;
    }
    /// The same, for the first message from device memory: waits so long for a process that may not have found its GPU
    /// runtime yet. Only the first call for each process waits.
    [[nodiscard]] bool wait_for_rts(int peer, std::chrono::nanoseconds limit) noexcept;

    /// Whether messages of that size from this process's host memory are worth an offer to `peer`: it received the last
    /// such message into device memory. Any receiver can get an offered message, but for one in host memory the MPI's
    /// own way is as good.
    [[nodiscard]] bool wants_from_host(const int peer, const std::int64_t bytes) const noexcept {
        return peer != _own && bytes >= least_from_host() &&
               _areas.pair(peer, _own).from_host.load(std::memory_order_relaxed) != 0;
    }
    [[nodiscard]] std::int64_t least_from_host() const noexcept {
        return static_cast<std::int64_t>(_tuning.host_offer_bytes);
    }
    /// Records where a message from `peer` went that had lain in the sender's host memory, as far as this process
    /// knows.
    void received_from_host(int peer, std::int64_t bytes, bool to_device) noexcept;

    using Reach = protocol::SendFacts::Reach;
    /// Whether `receiver`, which is another process, reads device memory of this one.
    [[nodiscard]] Reach reach_of(const int receiver) const noexcept {
        return static_cast<Reach>(_areas.pair(receiver, _own).reachability.load(std::memory_order_acquire));
    }
    [[nodiscard]] bool is_readable(const int receiver) const noexcept {
        return receiver != _own && reach_of(receiver) == Reach::works;
    }
    /// Whether the receiver maps memory that descriptors export, as far as is known.
    [[nodiscard]] bool takes_descriptors(const int receiver) const noexcept {
        return _areas.pair(receiver, _own).descriptors_refused.load(std::memory_order_relaxed) == 0;
    }
    /// This process could not map such memory of `sender`.
    void refuse_descriptors(const int sender) noexcept {
        _areas.pair(_own, sender).descriptors_refused.store(1, std::memory_order_relaxed);
    }

    /// Makes memory that others try to read, once. False when there is none.
    [[nodiscard]] bool has_probe_buffer(int device);
    /// Tries once whether this process reads memory of `peer`, with that device. The outcome decides how the peer sends
    /// to this process from then on. False, with the reason noted, when it does not.
    [[nodiscard]] bool can_read(int peer, int device);
    /// The same, when a message comes in another way: tries as soon as the peer has memory to try with.
    void try_to_read(int peer, int device);
    /// Whether this process is known to read memory of `peer`.
    [[nodiscard]] bool reads(const int peer) const noexcept {
        return static_cast<Reach>(_areas.pair(_own, peer).reachability.load(std::memory_order_acquire)) == Reach::works;
    }

    /// Checks, at most every 10 ms, whether the peer has ended. The caller keeps the time of the last check in
    /// `looked`.
    [[nodiscard]] bool seems_gone(int peer, Clock::time_point& looked) const;
    /// For the user.
    [[nodiscard]] std::string name_of(int process) const;

    /// Gives the probe buffer back.
    void shut_down() noexcept;

  private:
    [[nodiscard]] Area& own() const noexcept { return _areas.of(_own); }
    /// The driver copies these few bytes from or to ordinary memory while it is called. The first block of pinned
    /// memory would cost the first message 1.3 ms.
    void copy_at_once(int device, void* destination, const void* source, std::size_t bytes);
    [[nodiscard]] std::string why_unreadable(int peer, int device, bool& is_lasting);

    node::Segment& _segment;
    const Areas& _areas;
    const Means _means;
    const transfer::Tuning& _tuning;
    Notes& _notes;
    const int _own;
    const std::unique_ptr<std::atomic<bool>[]> _waited_for;  ///< by peer: see wait_for_rts()
    std::mutex _mutex;                                       ///< guards the making of the probe buffer
    void* _probe_buffer = nullptr;
    bool _probe_buffer_tried = false;
};

}  // namespace awaken::ipc
