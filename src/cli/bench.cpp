// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "installation.h"
#include "preload.h"
#include "settings_list.h"

namespace awaken::cli {
namespace fs = std::filesystem;
namespace {

struct Early {
    bool native = false;
    std::string emulate;
};

/// Reads the words that matter before the process starts. The benchmarks report mistakes in the words, since they know
/// all options.
Early read_early(const std::span<char* const> words) {
    constexpr std::string_view kEmulate = "--emulate";
    Early early;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string_view word = words[i];
        if (word == "--native") {
            early.native = true;
        } else if (word == kEmulate && i + 1 < words.size()) {
            early.emulate = words[++i];
        } else if (word.starts_with("--emulate=")) {
            early.emulate = word.substr(kEmulate.size() + 1);
        }
    }
    return early;
}

fs::path runner() {
    fs::path path = prefix() / "lib" / "awaken" / "bench" / "awaken-bench";
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) {
        throw Error("this installation has no benchmarks: there is no program " + path.native(),
                    "build Awaken with -DAWAKEN_BUILD_BENCH=ON and nlohmann-json installed");
    }
    return path;
}

}  // namespace

int bench(const std::span<char* const> words) {
    const Early early = read_early(words);
    if (!early.emulate.empty()) {
        set_variable("AWAKEN_EMULATE", early.emulate);
    }
    const Settings settings = checked_settings();
    const fs::path program = runner();
    use_emulation_if_asked();
    if (early.native || !settings.enabled) {
        drop_library();
    } else {
        preload_library(program);
    }
    std::vector<std::string> command = {"awaken bench"};
    command.insert(command.end(), words.begin(), words.end());
    become(program, command, "install Awaken again");
}

}  // namespace awaken::cli
