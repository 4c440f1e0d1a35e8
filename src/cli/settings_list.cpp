#include "settings_list.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "coll/device/selection.h"
#include "transfer/tuning.h"
#include "tuning_file.h"

namespace awaken::cli {
namespace {

/// The tuning file's lines to print about each figure, by the figure's name.
using Lines = std::map<std::string, std::vector<std::string>>;
using Values = std::map<std::string, std::string>;

/// The lines before the damage, for a file that is damaged or cannot be read. print_settings() reports the damage at
/// the end.
Lines lines_of_tuning_file() {
    using Kind = transfer::TuningLine::Kind;
    Lines lines;
    const char* const named = std::getenv("AWAKEN_TUNING");
    const std::string file =
        named != nullptr && *named != '\0' ? std::string(named) : transfer::Tuning::default_file(environ);
    std::string model;
    try {
        std::istringstream text(file.empty() ? std::string() : read_if_there(file));
        for (std::string line; std::getline(text, line);) {
            const transfer::TuningLine parsed = transfer::parse_tuning_line(line, file);
            if (parsed.kind == Kind::section) {
                model = parsed.name;
            } else if (const auto* const figure = transfer::find_figure(parsed.name);
                       parsed.kind == Kind::assignment && figure != nullptr) {
                lines[figure->name].push_back(std::string(parsed.value) + "  (" + file +
                                              (model.empty() ? "" : ", " + model) + ")");
            }
        }
    } catch (const Error&) {
        return lines;
    }
    return lines;
}

void print(const std::vector<SettingDescription>& settings, const Values& values, const Lines& in_file) {
    for (const SettingDescription& setting : settings) {
        std::printf("%s = %s\n    %s\n", setting.name, setting.values, setting.meaning);
        if (*setting.default_value != '\0') {
            std::printf("    default: %s\n", setting.default_value);
        }
        if (const auto found = in_file.find(setting.name); found != in_file.end()) {
            for (const std::string& line : found->second) {
                std::printf("    in file: %s\n", line.c_str());
            }
        }
        if (const auto found = values.find(setting.name); found != values.end()) {
            std::printf("    set to:  %s\n", found->second.c_str());
        }
    }
}

/// The environment's value of each setting. A variable that is set but empty counts as not set.
Values values_of(const std::vector<SettingDescription>& settings) {
    Values values;
    for (const SettingDescription& setting : settings) {
        if (const char* const value = std::getenv(setting.name); value != nullptr && *value != '\0') {
            values[setting.name] = value;
        }
    }
    return values;
}

/// AWAKEN_TUNE's value of each figure. A text that cannot be understood gives no values; print_settings() reports it at
/// the end.
Values values_of_figures() {
    Values values;
    const char* const text = std::getenv("AWAKEN_TUNE");
    try {
        for (const auto& [name, value] : transfer::figures_in(text != nullptr ? text : "", "AWAKEN_TUNE")) {
            values[std::string(name)] = value;
        }
    } catch (const Error&) {
        return {};
    }
    return values;
}

}  // namespace

Settings checked_settings() {
    Settings settings = Settings::from_environment(environ);
    if (settings.enabled) {
        static_cast<void>(coll::Selection(settings.collectives, "AWAKEN_COLLECTIVES"));
        // For no model in particular: the check covers the whole file in any case.
        static_cast<void>(transfer::Tuning::find("", "", settings.tuning_file, environ));
    }
    return settings;
}

void check_mpi_library(const Settings& settings) {
    const std::string& path = settings.mpi_library;
    if (!settings.enabled || path.find('/') == std::string::npos) {
        return;
    }
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) {
        throw Error("AWAKEN_MPI=" + path + " is no file",
                    "give the path of a shared MPI library, such as libmpi.so.12");
    }
    if (access(path.c_str(), R_OK) != 0) {
        throw Error("AWAKEN_MPI=" + path + " cannot be read (" + std::strerror(errno) + ")",
                    "give the path of a shared MPI library that all ranks may read");
    }
}

void print_settings() {
    print(Settings::descriptions(), values_of(Settings::descriptions()), {});
    std::printf("\nFigures of the tuning, for AWAKEN_TUNE and the tuning file:\n\n");
    print(transfer::Tuning::descriptions(), values_of_figures(), lines_of_tuning_file());
    if (const Values for_tests = values_of(Settings::test_switches()); !for_tests.empty()) {
        std::printf("\nSwitches for tests that are set:\n\n");
        for (const auto& [name, value] : for_tests) {
            std::printf("%s = %s\n", name.c_str(), value.c_str());
        }
    }
    std::fflush(stdout);
    check_mpi_library(checked_settings());
}

}  // namespace awaken::cli
