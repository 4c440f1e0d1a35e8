// The program `awaken`. What must start quickly is done here; other commands belong to the Python package.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "bench.h"
#include "exec.h"
#include "installation.h"
#include "program.h"
#include "settings_list.h"
#include "tune.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kUsageError = 2;
constexpr int kCannotExecute = 126;

void refuse_arguments(std::string_view command, std::span<char* const> words) {
    if (!words.empty()) {
        throw Error("awaken " + std::string(command) + " takes no arguments, and is given " + words.front(),
                    "write awaken " + std::string(command));
    }
}

int version(std::span<char* const> words) {
    refuse_arguments("version", words);
    std::printf("awaken %s (MPI ABIs: %s)\n", AWAKEN_VERSION_TEXT, AWAKEN_ABI_NAMES);
    std::printf("library %s\n", library().c_str());
    return 0;
}

int settings(std::span<char* const> words) {
    refuse_arguments("settings", words);
    print_settings();
    return 0;
}

int help(std::span<char* const> words);

struct Command {
    const char* name;
    int (*run)(std::span<char* const> words);
    const char* summary;
};

constexpr std::array kCommands = {
    Command{"exec", exec, "run a program whose MPI calls may be given GPU pointers"},
    Command{"bench", bench, "measure MPI on host and GPU memory: the OSU micro-benchmarks and more"},
    Command{"tune", tune, "measure this machine's GPUs, and write the figures by which paths are chosen"},
    Command{"settings", settings, "list the environment variables, their values and meaning"},
    Command{"version", version, "print the version and where the library is"},
    Command{"help", help, "print this text"},
};

int help(std::span<char* const> words) {
    refuse_arguments("help", words);
    std::puts("Awaken makes any MPI GPU-aware.\n\n  awaken COMMAND [ARGUMENTS]\n");
    for (const Command& command : kCommands) {
        std::printf("  %-10s%s\n", command.name, command.summary);
    }
    std::puts(
        "  trace     sum up and draw the timeline that AWAKEN_TRACE recorded\n"
        "  scale     run a program at several numbers of ranks, and draw how it scales\n"
        "\n`awaken COMMAND --help` lists the options of exec, bench, tune, trace and scale.");
    return 0;
}

/// Gives every other command to the Python package of the same prefix. Returns only by throwing.
int run_in_python(std::span<char* const> words) {
    const fs::path own_python = prefix() / "bin" / "python3";
    const std::string python = access(own_python.c_str(), X_OK) == 0 ? own_python.native() : "python3";
    std::string executable = python;
    std::string option = "-m";
    std::string package = "awaken";
    std::vector<char*> command = {executable.data(), option.data(), package.data()};
    command.insert(command.end(), words.begin(), words.end());
    command.push_back(nullptr);
    execvp(command.front(), command.data());
    throw StartError(kCannotExecute,
                     "awaken " + std::string(words.front()) + " needs Python, and " + python + " cannot be started (" +
                         std::strerror(errno) + ")",
                     "install Python 3");
}

int run(std::span<char* const> words) {
    if (words.empty()) {
        throw Error("no command is given", "see `awaken help`");
    }
    const std::string_view name = words.front();
    if (name == "-h" || name == "--help") {
        return help(words.subspan(1));
    }
    if (name == "--version") {
        return version(words.subspan(1));
    }
    if (name.starts_with('-')) {
        throw Error("awaken has no option " + std::string(name), "see `awaken help`");
    }
    const auto command =
        std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& c) { return name == c.name; });
    return command != kCommands.end() ? command->run(words.subspan(1)) : run_in_python(words);
}

}  // namespace
}  // namespace awaken::cli

int main(int argument_count, char** arguments) {
    try {
        return awaken::cli::run({arguments + 1, static_cast<std::size_t>(std::max(argument_count - 1, 0))});
    } catch (const awaken::cli::StartError& error) {
        std::fprintf(stderr, "awaken: %s\n", error.what());
        return error.exit_status();
    } catch (const awaken::Error& error) {
        std::fprintf(stderr, "awaken: %s\n", error.what());
        return awaken::cli::kUsageError;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "awaken: %s\n", error.what());
        return awaken::cli::kUsageError;
    }
}
