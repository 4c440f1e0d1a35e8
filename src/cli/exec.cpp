#include "exec.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/settings.h"
#include "emulation.h"
#include "installation.h"
#include "options.h"
#include "program.h"
#include "settings_list.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kCannotExecute = 126;

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

/// LD_PRELOAD with our library first, once, and every other entry after it in its order.
std::string with_library_first(const fs::path& library, const std::string& preload) {
    std::string result = library.native();
    for (std::size_t begin = 0; begin < preload.size();) {
        const std::size_t end = std::min(preload.find_first_of(" :", begin), preload.size());
        const std::string entry = preload.substr(begin, end - begin);
        if (!entry.empty() && !is_own_library(entry, library)) {
            result += ":" + entry;
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

void set_variable(const char* name, const std::string& value) {
    if (setenv(name, value.c_str(), 1) != 0) {
        throw Error(std::string("cannot set ") + name + " (" + std::strerror(errno) + ")", "free memory");
    }
}

}  // namespace

int exec(std::span<char* const> words) {
    const ExecArguments arguments = parse_exec_arguments(words);
    if (arguments.help) {
        std::fputs(exec_help().c_str(), stdout);
        return 0;
    }
    if (arguments.settings) {
        print_settings();
        return 0;
    }
    for (const auto& [variable, value] : arguments.environment) {
        set_variable(variable.c_str(), value);
    }
    const Settings settings = Settings::from_environment(environ);
    const fs::path program = find_program(arguments.command.front());
    if (!environment_or_empty("AWAKEN_EMULATE").empty()) {
        check_emulation_settings();
        set_variable("LD_LIBRARY_PATH", with_folder_first(emulator_folder(), environment_or_empty("LD_LIBRARY_PATH")));
    }
    if (settings.enabled) {
        const fs::path own = library();
        check_preloadable(program);
        set_variable("LD_PRELOAD", with_library_first(own, environment_or_empty("LD_PRELOAD")));
    }

    std::vector<char*> command;
    command.reserve(arguments.command.size() + 1);
    for (const std::string& word : arguments.command) {
        command.push_back(const_cast<char*>(word.c_str()));  // execvp's type is older than const
    }
    command.push_back(nullptr);
    // The path that was checked, in a form that execvp does not search for again.
    const std::string file = fs::absolute(program).native();
    execvp(file.c_str(), command.data());
    throw StartError(kCannotExecute, file + " cannot be started (" + std::strerror(errno) + ")",
                     "run it without `awaken exec` to see whether it starts at all");
}

}  // namespace awaken::cli
