// The settings, read as a program will read them, and their list for people.
#pragma once

#include "base/settings.h"

namespace awaken::cli {

/// The settings in this process's environment. Throws Error for whatever is wrong with them or with the tuning file, so
/// that it shows before a program starts.
[[nodiscard]] Settings checked_settings();

/// Throws Error where AWAKEN_MPI is a path that is no file, or cannot be read. Where the dynamic loader finds a bare
/// name depends on the program. The file is opened, and looked at more closely, only if the program turns out to have
/// loaded no MPI.
void check_mpi_library(const Settings& settings);

/// Prints every AWAKEN_* variable on stdout: its values, its meaning, its default, what the tuning file says, and what
/// it is set to. Then throws Error for whatever is wrong with them, as these do.
void print_settings();

}  // namespace awaken::cli
