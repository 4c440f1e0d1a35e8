// SPDX-License-Identifier: Apache-2.0
// FNV-1a, 64 bits (http://www.isthe.com/chongo/tech/comp/fnv). Tells texts apart where nobody forges them.
#pragma once

#include <cstdint>
#include <string_view>

namespace awaken {

class Fnv1a {
  public:
    Fnv1a() = default;
    explicit Fnv1a(const std::uint64_t start) noexcept : _state(start) {}

    /// The bytes of a text, one by one, as the definition says.
    Fnv1a& add(const std::string_view text) noexcept {
        for (const char byte : text) {
            add_word(static_cast<unsigned char>(byte));
        }
        return *this;
    }
    /// Adds a whole number in one step. This is weaker than its bytes one by one, and eight times as fast.
    Fnv1a& add_word(const std::uint64_t word) noexcept {
        _state = (_state ^ word) * 0x100000001b3u;
        return *this;
    }
    [[nodiscard]] std::uint64_t value() const noexcept { return _state; }

  private:
    std::uint64_t _state = 0xcbf29ce484222325u;
};

}  // namespace awaken
