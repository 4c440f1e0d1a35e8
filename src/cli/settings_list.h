// SPDX-License-Identifier: Apache-2.0
// Reads the settings as a program will read them, and lists them for people.
#pragma once

#include "base/settings.h"

namespace awaken::cli {

/// The settings in this process's environment. Throws Error for every mistake in them, so that mistakes show
/// before a program starts.
[[nodiscard]] Settings checked_settings();

/// Throws Error where AWAKEN_MPI is a path that is no file, or cannot be read. Where the dynamic loader finds a bare
/// name depends on the program. The layer opens the file, and looks at it more closely, only if the program has loaded
/// no MPI.
void check_mpi_library(const Settings& settings);

/// Prints every AWAKEN_* variable on stdout, as text or JSON: its values, its meaning, its default and its present
/// value. Then throws Error for mistakes in them, as the two functions above do.
void print_settings(bool as_json = false);

}  // namespace awaken::cli
