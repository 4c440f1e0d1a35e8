// `awaken bench`: the benchmarks, with Awaken's library preloaded.
#pragma once

#include <span>

namespace awaken::cli {

/// Replaces this process with the program of the benchmarks, which reads `words` (what follows `awaken bench`). Of
/// them,
/// --native and --emulate are obeyed here too, because they must be before a process starts. Returns only by throwing
/// Error.
int bench(std::span<char* const> words);

}  // namespace awaken::cli
