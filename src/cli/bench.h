// SPDX-License-Identifier: Apache-2.0
// `awaken bench`: the benchmarks, with Awaken's library preloaded.
#pragma once

#include <span>

namespace awaken::cli {

/// Replaces this process with the program of the benchmarks, which reads `words` (everything after `awaken bench`).
/// This call obeys --native and --emulate among them too, because they must take effect before a process starts.
/// Returns only by throwing Error.
int bench(std::span<char* const> words);

}  // namespace awaken::cli
