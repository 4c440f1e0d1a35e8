// SPDX-License-Identifier: Apache-2.0
// Files that users name. Such a file may be anything.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

namespace awaken {

struct InputFile {
    std::string text;
    /// Why there is no text ("it is a pipe"); empty when there is.
    std::string why_not;
    /// True when there is no text because the file cannot be opened: it does not exist, say, or belongs to somebody
    /// else.
    bool unopened = false;
};

/// What a file is that is not regular ("it is a pipe, not a regular file"); empty for a regular file.
[[nodiscard]] const char* other_kind(const struct stat& status);
[[nodiscard]] bool is_null_device(const struct stat& status);

/// Reads a regular file of at most `most_bytes`. Reads nothing else, since a pipe may never say anything and a device
/// never end. /dev/null counts as an empty file.
[[nodiscard]] InputFile read_input_file(const std::string& path, std::size_t most_bytes);

}  // namespace awaken
