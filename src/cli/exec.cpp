// SPDX-License-Identifier: Apache-2.0
#include "exec.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/expected_report.h"
#include "options.h"
#include "preload.h"
#include "program.h"
#include "settings_list.h"
#include "ucx.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

fs::path program_of(const ExecArguments& arguments) {
    try {
        return find_program(arguments.command.front());
    } catch (const StartError& error) {
        if (arguments.meant.empty()) {
            throw;
        }
        throw StartError(error.exit_status(), error.cause(),
                         error.remedy() + "; if it is not a program but the option's value, write " + arguments.meant);
    }
}

/// Makes the library say why when no report comes.
void expect_report(const Settings& settings) {
    unsetenv(kReportExpected);
    if (!settings.report) {
        return;
    }
    if (!settings.enabled) {
        std::fputs("awaken: no report will come, since AWAKEN=0 runs the program without the library\n", stderr);
        return;
    }
    set_variable(kReportExpected, std::to_string(getpid()));  // the program will have this number
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
    check_mpi_library(settings);
    const fs::path program = program_of(arguments);
    use_emulation_if_asked();
    use_ucx_if_asked(program);
    if (settings.enabled) {
        preload_library(program);
    }
    expect_report(settings);
    become(program, arguments.command, "run it without `awaken exec` to see whether it starts at all");
}

}  // namespace awaken::cli
