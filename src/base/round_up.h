// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace awaken {

/// The smallest multiple of `unit` that is not less than `value`.
constexpr std::size_t round_up(const std::size_t value, const std::size_t unit) noexcept {
    return (value + unit - 1) / unit * unit;
}

}  // namespace awaken
