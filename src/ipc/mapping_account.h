// SPDX-License-Identifier: Apache-2.0
// When a receiver had better map an allocation of this process.
//
// Opening a mapping takes longer the larger the allocation is, and holds up all calls of the receiver to its driver. A
// short message from a large allocation arrives sooner as a copy in a small one. Each copy costs a little, though. So
// messages are copied until their copies have cost as much as the mapping, which is never more than twice the best
// choice, however many messages follow.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::ipc {

/// Thread-safe.
class MappingAccount {
  public:
    using Clock = std::chrono::steady_clock;

    /// Whether the allocation is so large that others may do better without mapping it.
    [[nodiscard]] static bool counts(const gpu::PointerInfo& allocation) noexcept {
        return allocation.size > kCheap && allocation.ipc_capable && allocation.id != 0;
    }
    /// Whether `peer` had better map such an allocation than get a copy of a short message.
    [[nodiscard]] bool pays(int peer, const gpu::PointerInfo& allocation, Clock::time_point now);
    /// A copy for `peer` of a message from that allocation took so long.
    void copied(int peer, const gpu::PointerInfo& allocation, Clock::duration duration);

  private:
    static constexpr std::size_t kCheap = std::size_t{64} << 20;  ///< as quickly mapped as a byte
    struct Entry {
        int peer;
        std::uint64_t allocation;
        Clock::duration spent;
        Clock::time_point used;
    };

    std::mutex _mutex;
    std::vector<Entry> _entries;  ///< most recently used first
};

}  // namespace awaken::ipc
