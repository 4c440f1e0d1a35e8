// SPDX-License-Identifier: Apache-2.0
// Comparing contenders that cannot share processes: each group of them is launched by itself, and they take turns
// (engine/turns.h).
#pragma once

#include <filesystem>
#include <span>

#include "engine/options.h"

namespace awaken::bench {

/// Whether some contender needs an environment or a launch command of its own, or nothing has started the ranks of a
/// comparison. Throws Error where --ranks is for nothing that is launched.
[[nodiscard]] bool needs_launches(const CommandLine& command_line);

/// Launches the groups, gives them their turns, and prints one table (and JSON) of all of them. `words` are those after
/// `awaken bench`; `awaken` is the program to start. Returns the exit status: 0 when at least one contender ran and all
/// data was right. Throws Error when nothing can be launched.
[[nodiscard]] int run_launches(const CommandLine& command_line, std::span<char* const> words,
                               const std::filesystem::path& awaken);

}  // namespace awaken::bench
