// SPDX-License-Identifier: Apache-2.0
// The options of `awaken exec`: one table gives the parsing, the help and the setting behind each option.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/json_text.h"

namespace awaken::cli {

/// An option that sets an environment variable for the program.
struct Option {
    enum class Argument { none, optional, required };

    const char* name;           ///< "--report"
    Argument argument;          ///< an optional one is given as --report=FILE only
    const char* argument_name;  ///< "FILE"; null when there is none
    const char* variable;       ///< "AWAKEN_REPORT"
    const char* value;          ///< the variable's value when no argument is given; null when one is required
    const char* help;
};

/// An option as `awaken help --json` describes it: its names, and its argument, which is empty where it takes none.
[[nodiscard]] Json option_as_json(const std::vector<std::string>& names, const std::string& argument,
                                  bool may_lack_argument, const std::string& help);

/// Usage, texts and options of `awaken exec`.
[[nodiscard]] Json exec_as_json();

struct ExecArguments {
    struct Assignment {
        std::string variable;
        std::string value;
    };

    bool help = false;
    bool settings = false;                ///< list the settings instead of running a program
    std::vector<Assignment> environment;  ///< what the options set, in their order
    std::vector<std::string> command;     ///< the program and its arguments; empty only with help or settings
    /// "--report=paths.json" where the user wrote "--report paths.json", which makes the file's name the program.
    /// Otherwise empty.
    std::string meant;
};

/// Parses the words after `awaken exec`. Options end at "--" or at the first word that is none. That word is the
/// program, and everything after it belongs to the program. Throws Error on an unknown option, a missing or surplus
/// argument, and when there is no program.
[[nodiscard]] ExecArguments parse_exec_arguments(std::span<char* const> words);

/// The text of `awaken exec --help`.
[[nodiscard]] std::string exec_help();

}  // namespace awaken::cli
