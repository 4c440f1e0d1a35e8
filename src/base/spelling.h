// SPDX-License-Identifier: Apache-2.0
// Guessing which word was meant.
#pragma once

#include <cstddef>
#include <string_view>

namespace awaken {

/// Number of single-letter insertions, deletions, substitutions and swaps of neighbours between two words.
[[nodiscard]] std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace awaken
