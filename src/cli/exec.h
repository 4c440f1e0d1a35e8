// SPDX-License-Identifier: Apache-2.0
// `awaken exec`: the program, with Awaken's library preloaded.
#pragma once

#include <span>

namespace awaken::cli {

/// Replaces this process with the program. `words` are the words after `awaken exec`. Returns 0 after printing the
/// help. Throws Error (StartError when the program is at fault) when it cannot start the program.
int exec(std::span<char* const> words);

}  // namespace awaken::cli
