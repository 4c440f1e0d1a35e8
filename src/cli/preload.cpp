#include "preload.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

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
std::string without_library(const fs::path& library, const std::string& preload) {
    std::string result;
    for (std::size_t begin = 0; begin < preload.size();) {
        const std::size_t end = std::min(preload.find_first_of(" :", begin), preload.size());
        const std::string entry = preload.substr(begin, end - begin);
        if (!entry.empty() && !is_own_library(entry, library)) {
            result += (result.empty() ? "" : ":") + entry;
        }
        begin = end + 1;
    }
    return result;
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

void use_emulation_if_asked() {
    if (!environment_or_empty("AWAKEN_EMULATE").empty()) {
        check_emulation_settings();
        set_variable("LD_LIBRARY_PATH", with_folder_first(emulator_folder(), environment_or_empty("LD_LIBRARY_PATH")));
    }
}

void preload_library(const fs::path& program) {
    const fs::path own = library();
    check_preloadable(program);
    const std::string others = without_library(own, environment_or_empty("LD_PRELOAD"));
    set_variable("LD_PRELOAD", others.empty() ? own.native() : own.native() + ":" + others);
}

void drop_library() {
    const std::string preload = environment_or_empty("LD_PRELOAD");
    if (preload.empty()) {
        return;
    }
    const std::string others = without_library(library(), preload);
    if (others.empty()) {
        unsetenv("LD_PRELOAD");
    } else {
        set_variable("LD_PRELOAD", others);
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
