#include "base/settings.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "base/spelling.h"

namespace awaken {
namespace {

constexpr std::string_view kPrefix = "AWAKEN";

std::string lower(std::string_view text) {
    std::string result(text);
    for (char& letter : result)
        letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return result;
}

std::string quoted(const std::string& name, const std::string& value) {
    return name + "=" + value;
}

bool parse_switch(const std::string& name, const std::string& value) {
    const std::string text = lower(value);
    for (const char* const yes : {"1", "on", "yes", "true"}) {
        if (text == yes) return true;
    }
    for (const char* const no : {"0", "off", "no", "false"}) {
        if (text == no) return false;
    }
    throw Error(quoted(name, value) + " is neither on nor off", "use 1 or 0");
}

gpu::Choice parse_gpu(const std::string& name, const std::string& value) {
    const std::string text = lower(value);
    if (text == "auto") return gpu::Choice::automatic;
    if (text == "cuda") return gpu::Choice::cuda;
    if (text == "hip") return gpu::Choice::hip;
    if (text == "none") return gpu::Choice::none;
    throw Error(quoted(name, value) + " is not a GPU runtime", "use auto, cuda, hip or none");
}

/// The known name that `name` most likely stands for; empty when none is near.
std::string nearest_name(const std::string& name) {
    constexpr std::size_t kFarthest = 4;
    std::string nearest;
    std::size_t distance = kFarthest + 1;
    for (const SettingDescription& known : Settings::descriptions()) {
        const std::size_t candidate = edit_distance(name, known.name);
        if (candidate < distance) {
            distance = candidate;
            nearest = known.name;
        }
    }
    return nearest;
}

}  // namespace

std::size_t parse_bytes(const std::string& text, const std::string& what) {
    const auto refuse = [&](const std::string& why) -> Error {
        return {quoted(what, text) + " " + why, "use a number of bytes with an optional K, M or G, such as 64M"};
    };
    std::size_t value = 0;
    std::size_t at = 0;
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
        const std::size_t digit = static_cast<std::size_t>(text[at] - '0');
        if (value > (kMost - digit) / 10) throw refuse("is too large");
        value = value * 10 + digit;
    }
    if (at == 0) throw refuse("is not a number of bytes");
    if (at == text.size()) return value;
    unsigned shift = 0;
    switch (text[at]) {
        case 'k':
        case 'K':
            shift = 10;
            break;
        case 'm':
        case 'M':
            shift = 20;
            break;
        case 'g':
        case 'G':
            shift = 30;
            break;
        default:
            throw refuse("is not a number of bytes");
    }
    if (at + 1 != text.size()) throw refuse("is not a number of bytes");
    if (value > (kMost >> shift)) throw refuse("is too large");
    return value << shift;
}

const std::vector<SettingDescription>& Settings::descriptions() {
    // Leaked, so that it can be read while static objects are destroyed.
    static const auto* const table = new std::vector<SettingDescription>{
        {"AWAKEN", "1 | 0", "1", "0 makes Awaken pass every call through untouched"},
        {"AWAKEN_GPU", "auto | cuda | hip | none", "auto",
         "GPU runtime to use; auto takes the one that the program has loaded, cuda and hip load it if need be"},
        {"AWAKEN_PINNED_POOL", "bytes, with K, M or G", "64M",
         "most pinned host memory that each rank keeps for staging; what does not fit goes through ordinary memory"},
        {"AWAKEN_REPORT", "0 | 1 | file name", "0",
         "at MPI_Finalize, report calls, bytes, time and paths: 1 as text on stderr, or to a file (*.json: as JSON)"},
        {"AWAKEN_CHECK", "1 | 0", "0", "check each buffer against the allocation that it lies in"},
        {"AWAKEN_MPI", "path", "", "the MPI library to use when the program has loaded none by itself"},
        {"AWAKEN_CCL", "path", "", "the NCCL or RCCL library to use, instead of the one that is found"},
        {"AWAKEN_LIBRARY", "path", "", "the Awaken library that awaken exec preloads, instead of the installed one"},
        {"AWAKEN_EMULATE", "cuda:N | hip:N | hip5:N | hip6:N | hip7:N", "",
         "awaken exec gives the program an emulated GPU driver with N devices; hip5 to hip7 as that version of ROCm "
         "only"},
        {"AWAKEN_EMULATE_MEMORY", "bytes, with K, M, G or T", "4G", "emulated driver: memory of each device"},
        {"AWAKEN_EMULATE_FAULTS", "comma-separated faults", "",
         "emulated driver: failures to inject, such as ipc-open or no-peer"},
        {"AWAKEN_EMULATE_DELAY_US", "microseconds", "200",
         "emulated driver: how late operations are that the real runtimes return early from"},
    };
    return *table;
}

Settings Settings::from_environment(char** environment) {
    Settings settings;
    for (char** entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        if (text.substr(0, kPrefix.size()) != kPrefix) continue;
        const std::size_t equals = text.find('=');
        if (equals == std::string_view::npos) continue;
        const std::string name(text.substr(0, equals));
        const std::string value(text.substr(equals + 1));
        // Names such as AWAKENING belong to somebody else.
        if (name.size() > kPrefix.size() && name[kPrefix.size()] != '_') continue;

        const auto& known = descriptions();
        const bool is_known = std::any_of(known.begin(), known.end(),
                                          [&name](const SettingDescription& setting) { return name == setting.name; });
        if (!is_known) {
            const std::string nearest = nearest_name(name);
            throw Error(name + " is not a setting of Awaken",
                        nearest.empty() ? "unset it; awaken exec --settings lists all settings"
                                        : "did you mean " + nearest + "? awaken exec --settings lists all settings");
        }
        // Set but empty is as good as not set: that is how shells and job scripts switch a variable off.
        if (value.empty()) continue;

        if (name == "AWAKEN") {
            settings.enabled = parse_switch(name, value);
        } else if (name == "AWAKEN_GPU") {
            settings.gpu = parse_gpu(name, value);
        } else if (name == "AWAKEN_PINNED_POOL") {
            settings.pinned_pool_bytes = parse_bytes(value, name);
        } else if (name == "AWAKEN_REPORT") {
            settings.report = value != "0";
            if (settings.report && value != "1") settings.report_file = value;
        } else if (name == "AWAKEN_CHECK") {
            settings.check = parse_switch(name, value);
        } else if (name == "AWAKEN_MPI") {
            settings.mpi_library = value;
        }
        // The others belong to awaken exec and to the emulated driver, which check them themselves.
    }
    return settings;
}

}  // namespace awaken
