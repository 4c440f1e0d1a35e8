// SPDX-License-Identifier: Apache-2.0
// How the kernel and the dynamic loader will take a file, found out without loading it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace awaken::cli {

struct ElfFile {
    bool is_elf = false;           ///< false: all other members are meaningless
    bool has_own_machine = false;  ///< has this program's word size, byte order and instruction set
    bool is_32_bit = false;
    bool is_shared_object = false;    ///< ET_DYN: a library or a position-independent program
    std::vector<std::string> needed;  ///< the libraries that the file names (DT_NEEDED), in their order
    std::string interpreter;  ///< the dynamic loader that the file asks for; empty: a library or a static program
};

/// Reads the headers. A file that cannot be read or is damaged counts as no ELF file.
[[nodiscard]] ElfFile read_elf(const std::filesystem::path& path);

/// Whether `text` occurs anywhere in the file; false when it cannot be read.
[[nodiscard]] bool file_contains(const std::filesystem::path& path, const std::string& text);

}  // namespace awaken::cli
