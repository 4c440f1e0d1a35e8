// SPDX-License-Identifier: Apache-2.0
// Files that appear whole or not at all: they are written under another name in the same folder, and then renamed.
#pragma once

#include <string>
#include <string_view>

namespace awaken {

/// A new, empty file beside the one whose place it will take.
struct UnfinishedFile {
    int descriptor = -1;  ///< for writing; -1: there is none, and errno says why
    std::string path;
};

/// The name does not grow with that of `target`, which may be as long as the file system allows. Nothing that lies in
/// the folder already is opened, nor what a link there leads to: others may have put it there.
[[nodiscard]] UnfinishedFile open_beside(const std::string& target);

/// Writes all of the text, however many calls that takes. False with the reason in errno.
[[nodiscard]] bool write_all(int descriptor, std::string_view text) noexcept;

/// Replaces a file, or makes it. Returns 0, or the errno of what went wrong; nothing has changed then.
[[nodiscard]] int replace_file(const std::string& path, const std::string& text);

}  // namespace awaken
