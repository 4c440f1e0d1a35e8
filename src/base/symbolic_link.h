// SPDX-License-Identifier: Apache-2.0
// We replace a file by renaming a finished one over it. Over a symbolic link that would destroy the link.
#pragma once

#include <filesystem>
#include <system_error>
#include <utility>

namespace awaken {

/// The path that `path` leads to; `path` itself when it is no symbolic link. Unlike std::filesystem::weakly_canonical
/// this follows a link whose target does not exist yet.
[[nodiscard]] inline std::filesystem::path behind_symbolic_links(std::filesystem::path path) {
    constexpr int kMostLinks = 40;  // as many as Linux follows
    for (int i = 0; i < kMostLinks; ++i) {
        std::error_code problem;
        const std::filesystem::path target = std::filesystem::read_symlink(path, problem);
        if (problem) {
            break;
        }
        path = path.parent_path() / target;
    }
    return path;
}

}  // namespace awaken
