#include "exec.h"

#include <cstdio>
#include <filesystem>

#include "options.h"
#include "preload.h"
#include "program.h"
#include "settings_list.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

fs::path program_of(const ExecArguments& arguments) {
    try {
        return find_program(arguments.command.front());
    } catch (const StartError& error) {
        if (arguments.meant.empty()) throw;
        throw StartError(error.exit_status(), error.cause(),
                         error.remedy() + "; if it is no program but the option's, write " + arguments.meant);
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
    const Settings settings = checked_settings();
    const fs::path program = program_of(arguments);
    use_emulation_if_asked();
    if (settings.enabled) {
        preload_library(program);
    }
    become(program, arguments.command, "run it without `awaken exec` to see whether it starts at all");
}

}  // namespace awaken::cli
