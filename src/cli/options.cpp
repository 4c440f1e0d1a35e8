// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"

namespace awaken::cli {
namespace {

using Argument = Option::Argument;

constexpr std::array kOptions = {
    Option{"--gpu", Argument::required, "KIND", "AWAKEN_GPU", nullptr,
           "GPU runtime: auto (the one that the program loads), cuda, hip or none"},
    Option{"--emulate", Argument::required, "KIND:N", "AWAKEN_EMULATE", nullptr,
           "run on N emulated GPUs: cuda:N, hip:N, or hip5:N as under ROCm 5"},
    Option{"--mpi", Argument::required, "PATH", "AWAKEN_MPI", nullptr,
           "the libmpi to use, when the program does not name one"},
    Option{"--ucx", Argument::required, "FOLDER", "AWAKEN_UCX", nullptr,
           "a UCX with GPU support, which the MPI uses instead of its own"},
    Option{"--pinned-pool", Argument::required, "SIZE", "AWAKEN_PINNED_POOL", nullptr,
           "pinned host memory per rank, with suffix K, M or G"},
    Option{"--report", Argument::optional, "FILE", "AWAKEN_REPORT", "1",
           "at MPI_Finalize, say which path each call took; *.json gives JSON"},
    Option{"--trace", Argument::required, "FOLDER", "AWAKEN_TRACE", nullptr,
           "record a timeline of all ranks; `awaken trace FOLDER` sums it up"},
    Option{"--check", Argument::none, nullptr, "AWAKEN_CHECK", "1",
           "check each buffer against its allocation, and for overlap"},
};

constexpr const char* kUsage = "awaken exec [OPTIONS] [--] PROGRAM [ARGUMENTS]";
constexpr const char* kDescription = "Runs a program whose MPI calls may be given GPU pointers.";
constexpr const char* kExitStatus =
    "Exit status: the program's; 2 for a wrong option or setting, 126 for a program that cannot be run with a\n"
    "preloaded library, 127 for a program that is not found.\n";
constexpr const char* kSeeHelp = "see `awaken exec --help`";

std::string usage_of(const Option& option) {
    switch (option.argument) {
        case Argument::none:
            return option.name;
        case Argument::optional:
            return std::string(option.name) + "[=" + option.argument_name + "]";
        case Argument::required:
            return std::string(option.name) + " " + option.argument_name;
    }
    return option.name;
}

}  // namespace

Json option_as_json(const std::vector<std::string>& names, const std::string& argument, const bool may_lack_argument,
                    const std::string& help) {
    return {{"names", names}, {"argument", argument}, {"may_lack_argument", may_lack_argument}, {"help", help}};
}

Json exec_as_json() {
    Json options = Json::array();
    for (const Option& option : kOptions) {
        options.push_back(option_as_json({option.name}, option.argument == Argument::none ? "" : option.argument_name,
                                         option.argument == Argument::optional,
                                         option.help + std::string(" [") + option.variable + "]"));
    }
    options.push_back(option_as_json({"--settings"}, "", false, "list all settings, and run nothing"));
    return {{"usage", kUsage}, {"description", kDescription}, {"epilog", kExitStatus}, {"options", std::move(options)}};
}

ExecArguments parse_exec_arguments(std::span<char* const> words) {
    ExecArguments result;
    std::size_t next = 0;
    while (next < words.size()) {
        const std::string_view word = words[next];
        if (word == "--") {
            ++next;
            result.meant.clear();
            break;
        }
        if (!word.starts_with('-')) {
            break;
        }
        ++next;
        result.meant.clear();
        if (word == "-h" || word == "--help") {
            result.help = true;
            return result;
        }
        if (word == "--settings") {
            result.settings = true;
            return result;
        }
        const std::size_t equals = word.find('=');
        const std::string name(word.substr(0, equals));
        const auto option =
            std::find_if(kOptions.begin(), kOptions.end(), [&](const Option& o) { return name == o.name; });
        if (option == kOptions.end()) {
            throw Error("awaken exec has no option " + name, kSeeHelp);
        }
        if (equals != std::string_view::npos) {
            if (option->argument == Argument::none) {
                throw Error(name + " takes no argument", "write " + usage_of(*option));
            }
            if (equals + 1 == word.size()) {
                throw Error(name + "= is given without its " + option->argument_name, "write " + usage_of(*option));
            }
            result.environment.push_back({option->variable, std::string(word.substr(equals + 1))});
        } else if (option->argument == Argument::required) {
            if (next == words.size()) {
                throw Error(name + " is given without its " + option->argument_name, "write " + usage_of(*option));
            }
            result.environment.push_back({option->variable, words[next++]});
        } else {
            result.environment.push_back({option->variable, option->value});
            if (option->argument == Argument::optional && next < words.size()) {
                result.meant = name + "=" + words[next];
            }
        }
    }
    result.command.assign(words.begin() + static_cast<std::ptrdiff_t>(next), words.end());
    if (result.command.empty()) {
        throw Error("awaken exec is given no program", "write awaken exec [OPTIONS] -- PROGRAM [ARGUMENTS]");
    }
    return result;
}

std::string exec_help() {
    std::string text =
        std::string(kDescription) + "\n\n  mpiexec -n 4 " + kUsage +
        "\n\n"
        "Each option sets the environment variable on its right; `awaken exec --settings` lists them all.\n"
        "\n";
    std::size_t width = 0;
    for (const Option& option : kOptions) {
        width = std::max(width, usage_of(option).size());
    }
    for (const Option& option : kOptions) {
        std::string usage = usage_of(option);
        usage.resize(width + 2, ' ');
        text += "  " + usage + option.help + "  [" + option.variable + "]\n";
    }
    return text + "\n" + kExitStatus;
}

}  // namespace awaken::cli
