// Files that users name, which may be anything.
#pragma once

#include <cstddef>
#include <string>

namespace awaken {

struct InputFile {
    std::string text;
    /// Why there is no text ("it is a pipe"); empty when there is.
    std::string why_not;
    /// Whether that is because it cannot be opened: there is none, say, or it is somebody else's.
    bool unopened = false;
};

/// Reads a regular file of at most `most_bytes`. Nothing else is read, as a pipe may never say anything and a device
/// never end; only /dev/null is an empty file.
[[nodiscard]] InputFile read_input_file(const std::string& path, std::size_t most_bytes);

}  // namespace awaken
