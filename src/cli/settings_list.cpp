#include "settings_list.h"

#include <cstdio>
#include <cstdlib>

#include "base/settings.h"

namespace awaken::cli {

void print_settings() {
    for (const SettingDescription& setting : Settings::descriptions()) {
        std::printf("%s = %s\n    %s\n", setting.name, setting.values, setting.meaning);
        if (*setting.default_value != '\0') {
            std::printf("    default: %s\n", setting.default_value);
        }
        if (const char* value = std::getenv(setting.name); value != nullptr) {
            std::printf("    set to:  %s\n", value);
        }
    }
}

}  // namespace awaken::cli
