#include "settings_list.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "transfer/tuning.h"

namespace awaken::cli {
namespace {

void print(const std::vector<SettingDescription>& settings) {
    for (const SettingDescription& setting : settings) {
        std::printf("%s = %s\n    %s\n", setting.name, setting.values, setting.meaning);
        if (*setting.default_value != '\0') {
            std::printf("    default: %s\n", setting.default_value);
        }
        if (const char* value = std::getenv(setting.name); value != nullptr) {
            std::printf("    set to:  %s\n", value);
        }
    }
}

}  // namespace

Settings checked_settings() {
    Settings settings = Settings::from_environment(environ);
    if (settings.enabled) {
        // For no model in particular: all of the file is checked in any case.
        static_cast<void>(transfer::Tuning::find("", "", settings.tuning_file, environ));
    }
    return settings;
}

void print_settings() {
    print(Settings::descriptions());
    print(transfer::Tuning::descriptions());
}

}  // namespace awaken::cli
