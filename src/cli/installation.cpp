// SPDX-License-Identifier: Apache-2.0
#include "installation.h"

#include <cstdlib>
#include <string>
#include <system_error>

#include "base/error.h"
#include "elf_file.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kReinstall = "install Awaken again (`pip install --force-reinstall .`, or `make install`)";
/// A symbol that Awaken's library exports, under every ABI, and no other library has.
constexpr const char* kOwnSymbol = "awaken_version";

/// The loader splits LD_PRELOAD and LD_LIBRARY_PATH at these characters, and offers no way to quote them.
void refuse_separators(const fs::path& path, const char* separators, const char* variable, const char* remedy) {
    const std::size_t position = path.native().find_first_of(separators);
    if (position != std::string::npos) {
        throw Error(path.native() + " cannot be named in " + variable + ", because its path contains '" +
                        path.native()[position] + "'",
                    remedy);
    }
}

}  // namespace

fs::path prefix() {
    std::error_code failure;
    const fs::path self = fs::read_symlink("/proc/self/exe", failure);
    if (failure) {
        throw Error(
            "cannot find its own installation, because /proc/self/exe cannot be read (" + failure.message() + ")",
            "mount /proc");
    }
    return self.parent_path().parent_path();
}

fs::path library() {
    fs::path path;
    std::string remedy = kReinstall;
    if (const char* own = std::getenv("AWAKEN_LIBRARY"); own != nullptr && *own != '\0') {
        path = fs::absolute(own);
        remedy = "set AWAKEN_LIBRARY to the path of libawaken.so, or unset it";
    } else {
        path = prefix() / "lib" / "awaken" / "libawaken.so";
    }
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) {
        throw Error("there is no library " + path.native(), remedy);
    }
    const ElfFile file = read_elf(path);
    if (!file.is_elf || !file.has_own_machine || !file.is_shared_object) {
        throw Error(path.native() + " is not a shared library for this machine", remedy);
    }
    if (!file_contains(path, kOwnSymbol)) {
        throw Error(path.native() + " is not Awaken's library", remedy);
    }
    refuse_separators(path, " :", "LD_PRELOAD",
                      "install Awaken under a path without spaces and colons, or make a link to the library there and "
                      "set AWAKEN_LIBRARY to it");
    return path;
}

fs::path emulator_folder() {
    fs::path folder = prefix() / "lib" / "awaken" / "emulator";
    std::error_code ignored;
    if (!fs::is_directory(folder, ignored)) {
        throw Error("this installation has no emulated GPU: there is no folder " + folder.native(),
                    "build Awaken with -DAWAKEN_BUILD_EMULATOR=ON");
    }
    refuse_separators(folder, ":;", "LD_LIBRARY_PATH", "install Awaken under a path without colons and semicolons");
    return folder;
}

}  // namespace awaken::cli
