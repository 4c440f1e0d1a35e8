// SPDX-License-Identifier: Apache-2.0
// Starting ranks: of a test that nobody has launched, and of contenders that cannot share processes. Each group of
// these is launched by itself, and they take turns (engine/turns.h).
#pragma once

#include <filesystem>
#include <span>

#include "engine/options.h"

namespace awaken::bench {

/// Whether some contender needs an environment or a launch command of its own, or nothing has started the ranks of a
/// comparison. Throws Error where --ranks is for nothing that is launched.
[[nodiscard]] bool needs_launches(const CommandLine& command_line);

/// Whether a test without --compare needs ranks that nothing has started.
[[nodiscard]] bool starts_its_ranks(const CommandLine& command_line);

/// Replaces this process with the launcher that the doctor would take, for as many ranks as the test needs, and tells
/// which it is on stderr. Returns only by throwing Error.
[[noreturn]] void become_launcher(const CommandLine& command_line, std::span<char* const> words,
                                  const std::filesystem::path& awaken);

/// Launches the groups, gives them their turns, and prints one table (and JSON) of all of them. `words` are those after
/// `awaken bench`; `awaken` is the program to start. Returns the exit status: 0 when at least one contender ran and all
/// data was right. Throws Error when nothing can be launched.
[[nodiscard]] int run_launches(const CommandLine& command_line, std::span<char* const> words,
                               const std::filesystem::path& awaken);

}  // namespace awaken::bench
