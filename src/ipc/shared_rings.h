// SPDX-License-Identifier: Apache-2.0
// Host memory of the segment through which messages pass: a place for each small message, and rings for large ones.
//
// A process allocates its own, and maps those of the others that it receives from. All of it stays mapped, and is
// registered with the GPU runtime, until it has been idle for some seconds: other programs need shared memory, too.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/gpu.h"
#include "ipc/areas.h"
#include "node/segment.h"
#include "transfer/location.h"
#include "transfer/ring.h"
#include "transfer/tuning.h"

namespace awaken::ipc {

/// Thread-safe.
class SharedRings {
  public:
    using Clock = std::chrono::steady_clock;

    /// References outlive the object.
    SharedRings(node::Segment& segment, gpu::Runtime& runtime, const Areas& areas, const transfer::Tuning& tuning);
    SharedRings(const SharedRings&) = delete;
    SharedRings& operator=(const SharedRings&) = delete;

    // ---- small messages of this process

    /// Makes the places when first asked. False when there is no memory for them. Costs a load from then on.
    [[nodiscard]] bool has_small_places();
    /// Whether the GPU copies to the places. Registers them when first asked, which takes 1 to 6 ms that a first
    /// message to be read in place need not wait for. Call after has_small_places().
    [[nodiscard]] bool gpu_reaches_small_places();
    [[nodiscard]] std::byte* small_place(const Ticket ticket) const noexcept {
        return _small_base.load(std::memory_order_relaxed) + ticket.slot * _tuning.small_bytes;
    }
    [[nodiscard]] transfer::Location small_location(Ticket ticket) const noexcept;
    /// The slot's place as a ring, where the places are.
    [[nodiscard]] bool find_small_ring(Ticket ticket, transfer::Location& location, transfer::RingMemory& memory);

    // ---- rings of this process

    /// Index of a ring that is free now; -1 when there is none, and no memory for another.
    [[nodiscard]] int take();
    void give_back(int index) noexcept;
    void describe(int index, transfer::Location& location, transfer::RingMemory& memory);

    // ---- memory of other processes

    struct Mapping {
        std::uint64_t offset = 0;
        std::byte* base = nullptr;
        std::size_t bytes = 0;
        bool registered = false;
        Clock::time_point used{};      ///< when it was last wanted
        std::shared_ptr<void> held{};  ///< each copy of this pointer is a use
    };
    /// Memory of the peer that stays mapped: its places for small messages, and rings. Its `base` is null when there is
    /// no such mapping.
    [[nodiscard]] Mapping mapping_of(int peer, std::uint64_t offset, std::size_t bytes, bool is_ring);

    /// Gives back what has been idle for long at the time `now`. Costs a load where there is nothing.
    void trim_idle(Clock::time_point now) noexcept;
    /// Ends everything. Nothing is copied any more.
    void shut_down() noexcept;

  private:
    struct Ring {
        Mapping memory;  ///< none after a long time without use
        bool in_use = false;
    };

    void forget(Mapping& mapping) noexcept;
    void map(std::uint64_t offset, std::size_t bytes, Mapping& mapping);
    void map_registered(std::uint64_t offset, std::size_t bytes, Mapping& mapping);

    node::Segment& _segment;
    gpu::Runtime& _runtime;
    const Areas& _areas;
    const transfer::Tuning& _tuning;

    std::mutex _mutex;                            ///< guards everything below but the atomic members
    std::vector<std::vector<Mapping>> _mappings;  ///< by peer
    std::vector<Ring> _rings;
    Mapping _small;
    std::atomic<std::byte*> _small_base{nullptr};
    enum class Registered : std::uint8_t { untried, yes, no };
    std::atomic<Registered> _small_registered{Registered::untried};
    std::atomic<bool> _keeps_some{false};  ///< trim_idle() has something to look at
    bool _shut_down = false;
};

}  // namespace awaken::ipc
