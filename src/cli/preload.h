// SPDX-License-Identifier: Apache-2.0
// Prepares the environment in which a program meets Awaken's library, and becomes that program.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace awaken::cli {

/// Sets an environment variable of this process. Throws Error.
void set_variable(const char* name, const std::string& value);

/// Puts a folder first in LD_LIBRARY_PATH, once.
void put_first_in_search_path(const std::filesystem::path& folder);

/// Puts the emulated GPU drivers before all others when AWAKEN_EMULATE asks for it. Throws Error when the settings of
/// the emulation are wrong or this installation has none.
void use_emulation_if_asked();

/// Puts Awaken's library first in LD_PRELOAD, behind the sanitizer that the program is built with. Throws StartError
/// when `program` could not load it.
void preload_library(const std::filesystem::path& program);

/// Takes Awaken's library out of LD_PRELOAD, where an earlier `awaken exec` may have put it.
void drop_library();

/// Replaces this process with the program; `words` begins with the name that the program is to see. `remedy` is for the
/// case that the kernel refuses. Returns only by throwing StartError.
[[noreturn]] void become(const std::filesystem::path& program, const std::vector<std::string>& words,
                         const std::string& remedy);

}  // namespace awaken::cli
