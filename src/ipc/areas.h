// SPDX-License-Identifier: Apache-2.0
// What each process of the node keeps in the shared segment for messages.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/round_up.h"
#include "ipc/offers.h"
#include "node/segment.h"
#include "stream/pages.h"

namespace awaken::ipc {

/// A little exported memory with known contents, for a checked copy at first use.
struct ProbeBuffer {
    std::atomic<std::uint32_t> there;
    transfer::Location location;
    std::array<std::uint64_t, 8> content;
};

/// What a receiver has found out about a sender, or wants of it.
struct PairWords {
    std::atomic<std::uint32_t> reachability;         ///< of the sender's memory: a Reach
    std::atomic<std::uint32_t> from_host;            ///< not 0: offer messages in host memory
    std::atomic<std::uint32_t> maps_page;            ///< not 0: the receiver has mapped the page of the sender
    std::atomic<std::uint32_t> descriptors_refused;  ///< not 0: the receiver cannot map memory by descriptors
};

/// A process's part of the segment. One PairWords for each process follows it.
struct Area {
    alignas(64) std::atomic<std::uint32_t> takes_rts;
    std::atomic<std::uint64_t> small_offset;  ///< of the places for small messages in the segment
    std::atomic<std::uint64_t> small_bytes;
    ProbeBuffer probe_buffer;
    stream::PageLocation page;  ///< there: this process takes messages in stream order
    OfferTable offers;
};

class Areas {
  public:
    explicit Areas(node::Segment& segment) noexcept : _segment(segment) {}

    /// Bytes of each process's area in a segment of `processes` processes.
    [[nodiscard]] static std::size_t bytes(const int processes) noexcept {
        return round_up(sizeof(Area), 64) + static_cast<std::size_t>(processes) * sizeof(PairWords);
    }
    [[nodiscard]] Area& of(const int process) const noexcept {
        return *reinterpret_cast<Area*>(_segment.area(process));
    }
    [[nodiscard]] PairWords& pair(const int receiver, const int sender) const noexcept {
        return reinterpret_cast<PairWords*>(_segment.area(receiver) + round_up(sizeof(Area), 64))[sender];
    }

  private:
    node::Segment& _segment;
};

}  // namespace awaken::ipc
