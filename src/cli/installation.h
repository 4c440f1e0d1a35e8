// Where this installation keeps what `awaken` needs at run time.
#pragma once

#include <filesystem>

namespace awaken::cli {

/// The folder that holds bin/ and lib/awaken/: the installation prefix or the build directory. Taken from the path of
/// the running program, so an installation may be moved. Throws Error where /proc is not mounted.
[[nodiscard]] std::filesystem::path prefix();

/// The library to preload: AWAKEN_LIBRARY, else <prefix>/lib/awaken/libawaken.so, as an absolute path.
///
/// Throws Error when it is missing, is not Awaken's library for this machine (the loader would only print a warning and
/// run the program without it), or has a path that LD_PRELOAD cannot express.
[[nodiscard]] std::filesystem::path library();

/// The folder with the emulated GPU drivers. Throws Error when this installation has none or LD_LIBRARY_PATH cannot
/// express its path.
[[nodiscard]] std::filesystem::path emulator_folder();

}  // namespace awaken::cli
