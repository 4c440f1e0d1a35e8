// SPDX-License-Identifier: Apache-2.0
// The program `awaken`. It does commands here that must start quickly. The other commands belong to the Python package.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "bench.h"
#include "exec.h"
#include "installation.h"
#include "options.h"
#include "program.h"
#include "settings_list.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

constexpr int kUsageError = 2;

bool asks_for_help(std::string_view word) {
    return word == "-h" || word == "--help";
}

bool asks_for_version(std::string_view word) {
    return word == "-V" || word == "--version";
}

int version(std::span<char* const> words);
int settings(std::span<char* const> words);
int help(std::span<char* const> words);
int run(std::span<char* const> words);

struct Command {
    const char* name;
    int (*run)(std::span<char* const> words);  ///< null for commands of the Python package
    const char* summary;
};

constexpr std::array kCommands = {
    Command{"exec", exec, "run a program whose MPI calls may be given GPU pointers"},
    Command{"bench", bench, "measure MPI on host and GPU memory: the OSU micro-benchmarks and more"},
    Command{"report", nullptr, "measure, or read results and logs, and write one page about them"},
    Command{"compare", nullptr, "say what has become faster or slower between two measurements"},
    Command{"topo", nullptr, "show how GPUs, processors and network cards are connected, and how fast each path is"},
    Command{"doctor", nullptr, "say whether this MPI takes GPU memory, by itself and with Awaken, and what would help"},
    Command{"trace", nullptr, "sum up and draw the timeline that AWAKEN_TRACE recorded"},
    Command{"scale", nullptr, "run a program at several numbers of ranks, and draw how it scales"},
    Command{"completion", nullptr, "print what makes bash, zsh or fish complete commands and options"},
    Command{"settings", settings, "list the environment variables, their values and meaning"},
    Command{"version", version, "print the version and where the library is"},
    Command{"help", help, "print this text, or the options of a command"},
};

auto find_command(std::string_view name) {
    return std::find_if(kCommands.begin(), kCommands.end(), [&](const Command& c) { return name == c.name; });
}

constexpr const char* kJsonHelp = "print JSON";

/// The word of a command whose one option is --json: whether it is given. Nothing when the user asked for the command's
/// help; it has been printed then.
std::optional<bool> asks_for_json(std::string_view command, std::span<char* const> words) {
    if (words.empty()) {
        return false;
    }
    const Command& asked = *find_command(command);
    const std::string_view word = words.front();
    if (words.size() > 1 || (word != "--json" && !asks_for_help(word))) {
        throw Error("awaken " + std::string(command) + " takes no arguments but --json, and is given " +
                        words[words.size() > 1 && word == "--json" ? 1 : 0],
                    std::string("write awaken ") + asked.name + " [--json]");
    }
    if (word == "--json") {
        return true;
    }
    std::printf("awaken %s: %s.\n\n  --json  %s\n", asked.name, asked.summary, kJsonHelp);
    return {};
}

int version(std::span<char* const> words) {
    const std::optional<bool> json = asks_for_json("version", words);
    if (json == true) {
        std::vector<std::string> abis;
        std::istringstream names(AWAKEN_ABI_NAMES);
        for (std::string name; std::getline(names >> std::ws, name, ',');) {
            abis.push_back(name);
        }
        std::puts(
            Json{{"version", AWAKEN_VERSION_TEXT}, {"abis", abis}, {"library", library().native()}}.text().c_str());
    } else if (json == false) {
        std::printf("awaken %s (MPI ABIs: %s)\n", AWAKEN_VERSION_TEXT, AWAKEN_ABI_NAMES);
        std::printf("library %s\n", library().c_str());
    }
    return 0;
}

int settings(std::span<char* const> words) {
    if (const std::optional<bool> json = asks_for_json("settings", words)) {
        print_settings(*json);
    }
    return 0;
}

/// All commands, with the options of those that are answered here, of which `awaken completion` and the manual pages
/// are made.
std::string commands_as_json() {
    Json commands = Json::array();
    for (const Command& command : kCommands) {
        Json entry = command.run == exec ? exec_as_json() : Json{{"usage", std::string("awaken ") + command.name}};
        entry["name"] = command.name;
        entry["summary"] = command.summary;
        entry["native"] = command.run != nullptr;
        if (command.run == version || command.run == settings || command.run == help) {
            entry["options"] = std::vector{option_as_json({"--json"}, "", false, kJsonHelp)};
        }
        commands.push_back(std::move(entry));
    }
    return Json{{"version", AWAKEN_VERSION_TEXT}, {"commands", std::move(commands)}}.text();
}

int help(std::span<char* const> words) {
    if (words.size() == 1 && std::string_view(words.front()) == "--json") {
        std::puts(commands_as_json().c_str());
        return 0;
    }
    if (words.size() == 1 && !asks_for_help(words.front()) && std::string_view(words.front()) != "help") {
        std::string option = "--help";
        std::array<char*, 2> command = {words.front(), option.data()};
        return run(command);
    }
    if (words.size() > 1) {
        throw Error("awaken help takes one command, and is given " + std::to_string(words.size()) + " words",
                    "write awaken help COMMAND");
    }
    std::puts("Awaken makes any MPI GPU-aware.\n\n  awaken COMMAND [ARGUMENTS]\n");
    for (const Command& command : kCommands) {
        std::printf("  %-12s%s\n", command.name, command.summary);
    }
    std::puts(
        "\n`awaken COMMAND --help` lists a command's options, `awaken COMMAND --version` says which Awaken it is.");
    return 0;
}

/// For a package that is installed in the interpreter. -I hides packages that the user has installed for himself or
/// named in PYTHONPATH, and our package may be one of them. These folders come last, without entries that depend on the
/// current folder.
constexpr const char* kStartInstalledPackage = R"(
import importlib.util, os, runpy, site, sys
if importlib.util.find_spec("awaken") is None:
    user = site.getusersitepackages()
    if user.startswith("/"):
        site.addsitedir(user)
    sys.path += [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry.startswith("/")]
if importlib.util.find_spec("awaken") is None:
    sys.stderr.write("awaken: this command needs the Python package awaken, which " + sys.executable +
                     " does not have: install Awaken again (pip install --force-reinstall ., or make install)\n")
    sys.exit(126)
sys.argv[0] = "awaken"
runpy.run_module("awaken", run_name="__main__", alter_sys=True)
)";

/// Passes every other command to the Python package of the same prefix, even if another version is installed in the
/// interpreter. With -I Python takes no module from the current folder, where data of others may lie. Returns only by
/// throwing.
int run_in_python(std::span<char* const> words) {
    const fs::path own_python = prefix() / "bin" / "python3";
    const fs::path own_start = prefix() / "lib" / "awaken" / "python" / "awaken" / "start.py";
    const std::string python = access(own_python.c_str(), X_OK) == 0 ? own_python.native() : "python3";
    std::error_code ignored;
    std::vector<std::string> start = {python, "-I"};
    if (fs::is_regular_file(own_start, ignored)) {
        start.push_back(own_start.native());
    } else {
        start.insert(start.end(), {"-c", kStartInstalledPackage});
    }
    std::vector<char*> command;
    for (std::string& word : start) {
        command.push_back(word.data());
    }
    command.insert(command.end(), words.begin(), words.end());
    command.push_back(nullptr);
    execvp(command.front(), command.data());
    throw StartError(kCannotExecute,
                     "awaken " + std::string(words.front()) + " needs Python, and " + python + " cannot be started (" +
                         std::strerror(errno) + ")",
                     "install Python 3.9 or newer");
}

int run(std::span<char* const> words) {
    if (words.empty()) {
        throw Error("no command is given", "see `awaken help`");
    }
    const std::string_view name = words.front();
    if (asks_for_help(name)) {
        return help(words.subspan(1));
    }
    if (asks_for_version(name)) {
        return version(words.subspan(1));
    }
    if (name.starts_with('-')) {
        throw Error("awaken has no option " + std::string(name), "see `awaken help`");
    }
    if (name == "tune") {
        throw Error("there is no command tune, since the figures that choose paths are built in",
                    "set AWAKEN_TUNE=NAME=VALUE where another value is faster; docs/tuning.md and awaken settings list "
                    "the figures");
    }
    const auto command = find_command(name);
    // `awaken bench` has a version of its own: that of the output which it imitates.
    if (words.size() > 1 && asks_for_version(words[1]) && command != kCommands.end() && command->run != bench) {
        return version(words.subspan(2));
    }
    const bool native = command != kCommands.end() && command->run != nullptr;
    return native ? command->run(words.subspan(1)) : run_in_python(words);
}

/// The quoted text may hold anything.
void complain(const std::exception& error) {
    std::fprintf(stderr, "awaken: %s\n", printable(error.what()).c_str());
}

}  // namespace
}  // namespace awaken::cli

int main(int argument_count, char** arguments) {
    try {
        return awaken::cli::run({arguments + 1, static_cast<std::size_t>(std::max(argument_count - 1, 0))});
    } catch (const awaken::cli::StartError& error) {
        awaken::cli::complain(error);
        return error.exit_status();
    } catch (const std::exception& error) {
        awaken::cli::complain(error);
        return awaken::cli::kUsageError;
    }
}
