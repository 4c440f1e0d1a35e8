// SPDX-License-Identifier: Apache-2.0
#include "settings_list.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/json_text.h"
#include "coll/device/selection.h"
#include "transfer/tuning.h"

namespace awaken::cli {
namespace {

using Values = std::map<std::string, std::string>;

void print(const std::vector<SettingDescription>& settings, const Values& values) {
    for (const SettingDescription& setting : settings) {
        std::printf("%s = %s\n    %s\n", setting.name, setting.values, setting.meaning);
        if (*setting.default_value != '\0') {
            std::printf("    default: %s\n", setting.default_value);
        }
        if (const auto found = values.find(setting.name); found != values.end()) {
            std::printf("    set to:  %s\n", found->second.c_str());
        }
    }
}

Json described(const std::vector<SettingDescription>& settings, const Values& values) {
    Json list = Json::array();
    for (const SettingDescription& setting : settings) {
        const auto found = values.find(setting.name);
        list.push_back({{"name", setting.name},
                        {"values", setting.values},
                        {"meaning", setting.meaning},
                        {"default", setting.default_value},
                        {"value", found != values.end() ? Json(found->second) : Json()}});
    }
    return list;
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

void print_as_text() {
    print(Settings::descriptions(), values_of(Settings::descriptions()));
    std::printf("\nFigures of the tuning, for AWAKEN_TUNE:\n\n");
    print(transfer::Tuning::descriptions(), values_of_figures());
    if (const Values for_tests = values_of(Settings::test_switches()); !for_tests.empty()) {
        std::printf("\nSwitches for tests that are set:\n\n");
        for (const auto& [name, value] : for_tests) {
            std::printf("%s = %s\n", name.c_str(), value.c_str());
        }
    }
}

}  // namespace

Settings checked_settings() {
    Settings settings = Settings::from_environment(environ);
    if (settings.enabled) {
        static_cast<void>(coll::Selection(settings.collectives, "AWAKEN_COLLECTIVES"));
        static_cast<void>(transfer::Tuning::from_environment(environ));
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

void print_settings(const bool as_json) {
    if (as_json) {
        Json test_switches = Json::array();
        for (const auto& [name, value] : values_of(Settings::test_switches())) {
            test_switches.push_back({{"name", name}, {"value", value}});
        }
        const Json all{{"settings", described(Settings::descriptions(), values_of(Settings::descriptions()))},
                       {"figures", described(transfer::Tuning::descriptions(), values_of_figures())},
                       {"test_switches", std::move(test_switches)}};
        std::puts(all.text().c_str());
    } else {
        print_as_text();
    }
    std::fflush(stdout);
    check_mpi_library(checked_settings());
}

}  // namespace awaken::cli
