// SPDX-License-Identifier: Apache-2.0
#include "program.h"

#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>

#include "elf_file.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kNotFound = 127;
/// The kernel follows scripts whose interpreter is a script this deep, and no deeper.
constexpr int kDeepestScript = 5;
constexpr const char* kLinkInstead = "link the program with Awaken instead (-lawaken)";

bool is_executable_file(const fs::path& path) {
    std::error_code ignored;
    return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

StartError not_executable(const fs::path& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
        return {kCannotExecute, path.native() + " is a folder", "name the program in it"};
    }
    return {kCannotExecute, path.native() + " may not be executed", "chmod +x " + path.native()};
}

/// The interpreter in a script's first line, if the file is a script.
std::optional<std::string> script_interpreter(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::string line;
    if (!std::getline(file, line) || !line.starts_with("#!")) {
        return std::nullopt;
    }
    const std::size_t begin = line.find_first_not_of(" \t", 2);
    if (begin == std::string::npos) {
        return std::nullopt;
    }
    const std::size_t end = line.find_first_of(" \t\r", begin);
    return line.substr(begin, end == std::string::npos ? end : end - begin);
}

/// Whether the kernel starts the program in secure-execution mode, in which the loader drops LD_PRELOAD.
bool gains_rights(const fs::path& path) {
    struct stat status = {};
    if (stat(path.c_str(), &status) != 0) {
        return false;
    }
    const bool other_user = (status.st_mode & S_ISUID) != 0 && status.st_uid != getuid();
    const bool other_group =
        (status.st_mode & S_ISGID) != 0 && (status.st_mode & S_IXGRP) != 0 && status.st_gid != getgid();
    const bool capabilities = geteuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0;
    return other_user || other_group || capabilities;
}

}  // namespace

fs::path find_program(const std::string& name) {
    if (name.empty()) {
        throw StartError(kNotFound, "the program's name is empty", "name the program to run");
    }
    std::error_code ignored;
    if (name.find('/') != std::string::npos) {
        if (!fs::exists(name, ignored)) {
            throw StartError(kNotFound, "there is no program " + name, "check the path");
        }
        if (!is_executable_file(name)) {
            throw not_executable(name);
        }
        return name;
    }
    const char* variable = std::getenv("PATH");
    const std::string search_path = variable != nullptr ? variable : "/bin:/usr/bin";
    std::optional<fs::path> unusable;
    for (std::size_t begin = 0; begin <= search_path.size();) {
        const std::size_t end = std::min(search_path.find(':', begin), search_path.size());
        // An empty entry is the current folder.
        const std::string folder = end == begin ? "." : search_path.substr(begin, end - begin);
        const fs::path candidate = fs::path(folder) / name;
        if (is_executable_file(candidate)) {
            return candidate;
        }
        if (!unusable && fs::is_regular_file(candidate, ignored)) {
            unusable = candidate;
        }
        begin = end + 1;
    }
    if (unusable) {
        throw not_executable(*unusable);
    }
    std::string remedy = "check the spelling and PATH";
    if (fs::is_regular_file(name, ignored)) {
        remedy = "to run the file in the current folder, write ./" + name;
    }
    throw StartError(kNotFound, "there is no program " + name + " in PATH", remedy);
}

std::vector<std::string> check_preloadable(const fs::path& program) {
    fs::path file = program;
    for (int depth = 0; depth < kDeepestScript; ++depth) {
        const std::optional<std::string> interpreter = script_interpreter(file);
        if (!interpreter) {
            break;
        }
        std::error_code ignored;
        if (!fs::exists(*interpreter, ignored)) {
            throw StartError(kCannotExecute,
                             file.native() + " asks for the interpreter " + *interpreter + ", which does not exist",
                             "install it or correct the script's first line");
        }
        file = *interpreter;
    }
    const ElfFile elf = read_elf(file);
    if (!elf.is_elf) {
        return {};  // execvp gives a text without a first line #! to /bin/sh; the kernel may know further formats
    }
    const std::string subject =
        file == program ? file.native() : file.native() + ", the interpreter of " + program.native() + ",";
    if (elf.is_32_bit) {
        throw StartError(kCannotExecute, subject + " is a 32-bit program, into which a 64-bit library cannot be loaded",
                         "build it for 64 bits");
    }
    if (!elf.has_own_machine) {
        throw StartError(kCannotExecute, subject + " is a program for another kind of machine",
                         "build it for this machine");
    }
    if (elf.interpreter.empty()) {
        throw StartError(kCannotExecute, subject + " is statically linked, so nothing can be preloaded into it",
                         std::string("link it dynamically, or ") + kLinkInstead);
    }
    if (fs::path(elf.interpreter).filename().native().starts_with("ld-musl")) {
        throw StartError(kCannotExecute, subject + " uses the C library musl, and Awaken needs glibc",
                         "build it with glibc");
    }
    if (gains_rights(file)) {
        throw StartError(kCannotExecute,
                         subject +
                             " runs with other rights than yours (setuid, setgid or capabilities), so the system "
                             "ignores preloads for it",
                         std::string("run a copy without these rights, or ") + kLinkInstead);
    }
    return elf.needed;
}

}  // namespace awaken::cli
