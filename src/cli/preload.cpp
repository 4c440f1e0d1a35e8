// SPDX-License-Identifier: Apache-2.0
#include "preload.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "emulation.h"
#include "installation.h"
#include "program.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

std::string environment_or_empty(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
}

/// Whether an entry of LD_PRELOAD means our library: the same file, or its bare name.
bool is_own_library(const std::string& entry, const fs::path& library) {
    if (entry.find('/') == std::string::npos) {
        return library.filename() == entry;
    }
    std::error_code ignored;
    return fs::equivalent(entry, library, ignored);
}

/// The entries of LD_PRELOAD in their order, without our library.
std::vector<std::string> other_preloads(const fs::path& library) {
    const std::string preload = environment_or_empty("LD_PRELOAD");
    std::vector<std::string> entries;
    for (std::size_t begin = 0; begin < preload.size();) {
        const std::size_t end = std::min(preload.find_first_of(" :", begin), preload.size());
        const std::string entry = preload.substr(begin, end - begin);
        if (!entry.empty() && !is_own_library(entry, library)) {
            entries.push_back(entry);
        }
        begin = end + 1;
    }
    return entries;
}

void set_preloads(const std::vector<std::string>& entries) {
    std::string text;
    for (const std::string& entry : entries) {
        text += (text.empty() ? "" : ":") + entry;
    }
    set_variable("LD_PRELOAD", text);
}

/// Whether a library is the run-time library of a sanitizer that ends the program unless it comes before all others, so
/// that it sees each of their calls of malloc().
bool must_come_first(const std::string& library) {
    constexpr std::string_view kNames[] = {"libasan.",         "libtsan.",         "liblsan.",          "libhwasan.",
                                           "libclang_rt.asan", "libclang_rt.tsan", "libclang_rt.hwasan"};
    const std::string name = fs::path(library).filename().native();
    return std::any_of(std::begin(kNames), std::end(kNames),
                       [&](const std::string_view begin) { return name.starts_with(begin); });
}

/// LD_LIBRARY_PATH with `folder` first, once.
std::string with_folder_first(const fs::path& folder, const std::string& search_path) {
    if (search_path.empty()) {
        return folder.native();
    }
    if (search_path == folder.native() || search_path.starts_with(folder.native() + ":")) {
        return search_path;
    }
    return folder.native() + ":" + search_path;
}

}  // namespace

void set_variable(const char* name, const std::string& value) {
    if (setenv(name, value.c_str(), 1) != 0) {
        throw Error(std::string("cannot set ") + name + " (" + std::strerror(errno) + ")", "free memory");
    }
}

void put_first_in_search_path(const fs::path& folder) {
    set_variable("LD_LIBRARY_PATH", with_folder_first(folder, environment_or_empty("LD_LIBRARY_PATH")));
}

void use_emulation_if_asked() {
    if (!environment_or_empty("AWAKEN_EMULATE").empty()) {
        check_emulation_settings();
        put_first_in_search_path(emulator_folder());
    }
}

void preload_library(const fs::path& program) {
    const fs::path own = library();
    const std::vector<std::string> needed = check_preloadable(program);
    std::vector<std::string> entries = other_preloads(own);
    auto others = std::stable_partition(entries.begin(), entries.end(), must_come_first);
    if (others == entries.begin()) {
        // The dynamic loader finds it by its name as it does for the program, and loads it once.
        const auto sanitizer = std::find_if(needed.begin(), needed.end(), must_come_first);
        if (sanitizer != needed.end()) {
            others = entries.insert(entries.begin(), *sanitizer) + 1;
        }
    }
    entries.insert(others, own.native());
    set_preloads(entries);
}

void drop_library() {
    const std::vector<std::string> others = other_preloads(library());
    if (others.empty()) {
        unsetenv("LD_PRELOAD");
    } else {
        set_preloads(others);
    }
}

void become(const fs::path& program, const std::vector<std::string>& words, const std::string& remedy) {
    std::vector<char*> arguments;
    arguments.reserve(words.size() + 1);
    for (const std::string& word : words) {
        arguments.push_back(const_cast<char*>(word.c_str()));  // execvp's type is older than const
    }
    arguments.push_back(nullptr);
    // The path that was checked, in a form that execvp does not search for again.
    const std::string file = fs::absolute(program).native();
    execvp(file.c_str(), arguments.data());
    throw StartError(kCannotExecute, file + " cannot be started (" + std::strerror(errno) + ")", remedy);
}

}  // namespace awaken::cli
