// `awaken tune`: measures this machine's GPUs and writes the tuning file.
#pragma once

#include <span>

namespace awaken::cli {

/// Measures, prints what was measured and what follows from it, and writes the file. `words` is what follows `awaken
/// tune`. Returns the exit status; throws Error on wrong use, without a GPU, or when a file cannot be read or written.
int tune(std::span<char* const> words);

}  // namespace awaken::cli
