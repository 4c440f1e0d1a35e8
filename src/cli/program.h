// Finding the program to run, and telling beforehand whether a preloaded library can work in it.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "base/error.h"

namespace awaken::cli {

/// As the shells have it: found, but not usable.
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

/// The file that execvp would start for `name`: as it stands when it contains a slash, else searched in PATH.
/// Throws StartError when there is none or it may not be executed.
[[nodiscard]] std::filesystem::path find_program(const std::string& name);

/// Throws StartError (126) when the dynamic loader would ignore LD_PRELOAD, or could not load our library, in this
/// program: a static or a 32-bit program, one of another instruction set or C library, one that runs with more rights
/// than the caller's. Of a script, the interpreter is what counts. Preloading fails silently in these cases, and the
/// program would then crash on the first device pointer.
void check_preloadable(const std::filesystem::path& program);

}  // namespace awaken::cli
