// Text of others in JSON.
#pragma once

#include <string>
#include <string_view>

namespace awaken {

/// A JSON string (RFC 8259) with its quotes. Bytes that are not UTF-8 (RFC 3629) become U+FFFD, one each.
[[nodiscard]] std::string json_string(std::string_view text);

}  // namespace awaken
