// The list of settings for people.
#pragma once

namespace awaken::cli {

/// Prints every AWAKEN_* variable on stdout: its values, its meaning, its default, and what it is set to.
void print_settings();

}  // namespace awaken::cli
