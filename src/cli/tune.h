// `awaken tune`: measures this machine's GPUs and writes the tuning file.
#pragma once

#include <span>

namespace awaken::cli {

/// Measures, prints the measurements and the figures that follow from them, and writes the file. `words` are the words
/// after `awaken tune`. Returns the exit status. Throws Error on wrong use, without a GPU, or when a file cannot be
/// read or written.
int tune(std::span<char* const> words);

}  // namespace awaken::cli
