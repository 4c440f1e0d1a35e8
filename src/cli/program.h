// SPDX-License-Identifier: Apache-2.0
// Finds the program to run, and tells beforehand whether a preloaded library can work in it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace awaken::cli {

/// As in the shells: found, but not usable.
inline constexpr int kCannotExecute = 126;

/// A program that cannot be started. `exit_status` follows the shells: 127 not found, 126 found but not usable.
class StartError : public Error {
  public:
    StartError(int exit_status, std::string cause, std::string remedy)
        : Error(std::move(cause), std::move(remedy)), _exit_status(exit_status) {}

    [[nodiscard]] int exit_status() const noexcept { return _exit_status; }

  private:
    int _exit_status;
};

/// The file that execvp would start for `name`: `name` itself when it contains a slash, otherwise the one found in
/// PATH. Throws StartError when there is none or it may not be executed.
[[nodiscard]] std::filesystem::path find_program(const std::string& name);

/// Throws StartError (126) when the dynamic loader would ignore LD_PRELOAD, or could not load our library, in this
/// program. Such programs are static or 32-bit, have another instruction set or C library, or run with more rights than
/// the caller. For a script, the interpreter counts. Preloading fails silently in these cases, and the program would
/// then crash on the first device pointer.
///
/// Returns the libraries that the program names.
std::vector<std::string> check_preloadable(const std::filesystem::path& program);

}  // namespace awaken::cli
