// SPDX-License-Identifier: Apache-2.0
// Text from others, made fit for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace awaken {

/// Length of the well-formed UTF-8 sequence at the start of `text` (RFC 3629), or 0. The text is not empty.
[[nodiscard]] std::size_t utf8_length(std::string_view text) noexcept;

/// Writes control characters and bytes that are not UTF-8 as \xNN. So text from others can neither break a table nor
/// send commands to the terminal.
[[nodiscard]] std::string printable(std::string_view text);

/// The same, with line breaks left as they are: some MPIs explain an error in several lines.
[[nodiscard]] std::string printable_lines(std::string_view text);

/// The same, cut to a length that leaves room for words beside it in a line.
[[nodiscard]] std::string excerpt(std::string_view text);

}  // namespace awaken
