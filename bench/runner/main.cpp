// SPDX-License-Identifier: Apache-2.0
// The program behind `awaken bench`: answers what needs no MPI, finds the MPI, and gives the words to the module that
// was compiled for its ABI.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <span>
#include <string>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "engine/catalogue.h"
#include "engine/options.h"
#include "engine/printer.h"
#include "runner/find_mpi.h"
#include "runner/launches.h"
#include "runner/open_module.h"

namespace awaken::bench {
namespace fs = std::filesystem;
namespace {

constexpr int kUsageError = 2;

/// A test's version is the first line of its output, as in the OSU micro-benchmarks.
void print_version(const CommandLine& command_line) {
    if (command_line.test != nullptr) {
        std::puts(title_line(*command_line.test, command_line.options, command_line.options.accelerator).c_str());
    } else {
        std::puts("awaken bench " AWAKEN_VERSION_TEXT
                  " (prints as the OSU micro-benchmarks 7.5, or 7.0 with --omb-version)");
    }
}

/// The list or the help of all tests, or the version, as JSON; what `awaken completion` and the manual page are made
/// of.
void print_as_json(const Request request) {
    Json shown{{"version", AWAKEN_VERSION_TEXT}};
    if (request == Request::list) {
        shown["tests"] = Json::array();
        for (const TestInfo& test : catalogue()) {
            shown["tests"].push_back({{"name", test.name}, {"summary", summary_of(test)}});
        }
    } else if (request == Request::help) {
        shown["usage"] = "awaken bench NAME [OPTIONS] [SRC DST]";
        shown["description"] = general_description();
        shown["options"] = Json::array();
        for (const OptionDescription& option : option_descriptions()) {
            shown["options"].push_back({{"names", option.names},
                                        {"argument", option.argument},
                                        {"may_lack_argument", option.may_lack_argument},
                                        {"help", option.meaning}});
        }
    }
    std::puts(shown.text().c_str());
}

void print_list() {
    std::size_t width = 0;
    for (const TestInfo& test : catalogue()) {
        width = std::max(width, std::strlen(test.name));
    }
    for (const TestInfo& test : catalogue()) {
        std::printf("%-*s  %s\n", static_cast<int>(width), test.name, summary_of(test).c_str());
    }
}

int run(const std::span<char*> words) {
    CommandLine command_line;
    try {
        command_line = parse_command_line(words);
    } catch (const Error&) {
        // Among several ranks one is to speak, and they can agree on it only once MPI is up: the module parses again.
        if (launched_ranks() == 1) {
            throw;
        }
    }
    if (command_line.as_json) {
        print_as_json(command_line.request);
        return 0;
    }
    switch (command_line.request) {
        case Request::help:
            std::fputs(help_text(command_line.test).c_str(), stdout);
            return 0;
        case Request::version:
            print_version(command_line);
            return 0;
        case Request::list:
            print_list();
            return 0;
        case Request::measure:
            break;
    }
    const fs::path folder = own_folder();
    const fs::path prefix = folder.parent_path().parent_path().parent_path();
    const fs::path awaken = prefix / "bin" / "awaken";
    if (needs_launches(command_line)) {
        return run_launches(command_line, words, awaken);
    }
    if (starts_its_ranks(command_line)) {
        if (std::getenv("AWAKEN_MPI") != nullptr) {
            static_cast<void>(find_mpi(prefix.native()));  // what is wrong with it is said once, and before all else
        }
        become_launcher(command_line, words, awaken);
    }
    const FoundMpi mpi = find_mpi(prefix.native());
    const ModuleMain entry = open_module(folder, "bench", mpi);
    const MpiLibrary library = mpi.view();
    return entry(static_cast<int>(words.size()), words.data(), &library);
}

}  // namespace
}  // namespace awaken::bench

int main(const int count, char** const arguments) {
    try {
        return awaken::bench::run({arguments + 1, static_cast<std::size_t>(count > 0 ? count - 1 : 0)});
    } catch (const std::exception& error) {
        // It may quote words of the user.
        std::fprintf(stderr, "awaken: %s\n", awaken::printable(error.what()).c_str());
        return awaken::bench::kUsageError;
    }
}
