// The settings, read as a program will read them, and their list for people.
#pragma once

#include "base/settings.h"

namespace awaken::cli {

/// The settings in this process's environment. Throws Error for whatever is wrong with them or with the tuning file, so
/// that it shows before a program starts.
[[nodiscard]] Settings checked_settings();

/// Prints every AWAKEN_* variable on stdout: its values, its meaning, its default, what the tuning file says, and what
/// it is set to. Then throws Error for whatever is wrong with them, as checked_settings() does.
void print_settings();

}  // namespace awaken::cli
