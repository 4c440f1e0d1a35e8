// SPDX-License-Identifier: Apache-2.0
// Remembers a bounded number of allocation identities without locks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace awaken::gpu {

/// A direct-mapped cache from an allocation's identity to one mark. Looking up is one load. Identities that fall on the
/// same place displace each other. So the table may forget a mark, but a mark is never wrong. The caller then repeats
/// the work that the mark stood for.
class IdentityTable {
  public:
    enum class Mark : std::uint8_t { absent, set, refused };

    /// Identity 0 (none) is always absent.
    [[nodiscard]] Mark find(std::uint64_t identity) const noexcept {
        if (identity == 0) {
            return Mark::absent;
        }
        const std::uint64_t entry = place(identity).load(std::memory_order_acquire);
        if (entry == encode(identity, Mark::set)) {
            return Mark::set;
        }
        if (entry == encode(identity, Mark::refused)) {
            return Mark::refused;
        }
        return Mark::absent;
    }

    void insert(std::uint64_t identity, Mark mark) noexcept {
        if (identity == 0) {
            return;
        }
        place(identity).store(encode(identity, mark), std::memory_order_release);
    }

  private:
    static constexpr std::size_t kPlaces = 4096;

    static std::uint64_t encode(std::uint64_t identity, Mark mark) noexcept {
        // Identities are counters: the topmost bit is free.
        return (identity << 1) | (mark == Mark::refused ? 1U : 0U);
    }
    [[nodiscard]] std::atomic<std::uint64_t>& place(std::uint64_t identity) const noexcept {
        // Counters fill the table evenly as they are.
        return _entries[identity % kPlaces];
    }

    mutable std::array<std::atomic<std::uint64_t>, kPlaces> _entries = {};
};

}  // namespace awaken::gpu
