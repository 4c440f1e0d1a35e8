// SPDX-License-Identifier: Apache-2.0
// Lengths of RTS messages, which tell a probe more than it can see.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace awaken::transport {

/// RTS messages that one process can have under way to one other at a time. When all are in use, messages are sent
/// plain.
inline constexpr std::uint32_t kSlots = 256;

/// Lengths of RTS messages: one for each slot. A probe sees only the length, and finds the slot and the true size from
/// it. The lengths are odd because hardly any message of numbers has an odd length. A sender sends no plain message of
/// such a length to a receiver that takes RTS messages.
inline constexpr std::size_t kShortestRts = 65;
inline constexpr std::size_t kLongestRts = kShortestRts + 2 * (kSlots - 1);

[[nodiscard]] constexpr std::size_t rts_length(const std::uint32_t slot) noexcept {
    return kShortestRts + 2 * slot;
}
[[nodiscard]] constexpr bool is_rts_length(const std::size_t bytes) noexcept {
    return bytes >= kShortestRts && bytes <= kLongestRts && (bytes & 1) != 0;
}
[[nodiscard]] constexpr std::uint32_t slot_of_length(const std::size_t bytes) noexcept {
    return static_cast<std::uint32_t>((bytes - kShortestRts) / 2);
}

/// Slots that must not be used towards one receiver: a plain message of their RTS's length was sent to it and may still
/// be waiting there, and a probe could not tell the two apart. Any thread may call.
class SlotSet {
  public:
    void add(const std::uint32_t slot) noexcept {
        _words[slot / 64].fetch_or(std::uint64_t{1} << (slot % 64), std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t word(const std::size_t index) const noexcept {
        return _words[index].load(std::memory_order_relaxed);
    }

  private:
    std::array<std::atomic<std::uint64_t>, (kSlots + 63) / 64> _words{};
};

}  // namespace awaken::transport
