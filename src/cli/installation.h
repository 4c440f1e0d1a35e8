// SPDX-License-Identifier: Apache-2.0
// The place where this installation keeps the files that `awaken` needs at run time.
#pragma once

#include <filesystem>

namespace awaken::cli {

/// The folder that holds bin/ and lib/awaken/: the installation prefix or the build directory. Found from the path of
/// the running program, so that an installation may be moved. Throws Error where /proc is not mounted.
[[nodiscard]] std::filesystem::path prefix();

/// The library to preload: AWAKEN_LIBRARY, else <prefix>/lib/awaken/libawaken.so, as an absolute path.
///
/// Throws Error in three cases. The library is missing. It is not Awaken's library for this machine (the loader would
/// only print a warning and run the program without it). LD_PRELOAD cannot express its path.
[[nodiscard]] std::filesystem::path library();

/// The folder with the emulated GPU drivers. Throws Error when this installation has none or LD_LIBRARY_PATH cannot
/// express its path.
[[nodiscard]] std::filesystem::path emulator_folder();

}  // namespace awaken::cli
