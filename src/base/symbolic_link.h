// Files that are replaced by renaming a finished one over them: in the place of a symbolic link that would end the
// link.
#pragma once

#include <filesystem>
#include <system_error>
#include <utility>

namespace awaken {

/// Where `path` leads; `path` itself when it is no symbolic link. Unlike std::filesystem::weakly_canonical it follows a
/// link whose target is not there yet.
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
