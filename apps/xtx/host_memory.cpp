// SPDX-License-Identifier: Apache-2.0
#include "host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

namespace xtx {

namespace {

constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

/// The files of a control group's folder, which the kernel's documentation calls cgroup-v2 and cgroup-v1/memory.
struct Files {
    const char* folder;  ///< where the groups are mounted
    const char* limit;
    const char* use;
    const char* cache;  ///< in memory.stat: pages of files that are given back before the limit is enforced
};
constexpr Files files_v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
constexpr Files files_v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                            "total_inactive_file"};

/// Nothing for a file that is not there, and for "max".
std::optional<std::size_t> number_in(const std::string& path) {
    std::string word;
    std::ifstream(path) >> word;
    std::size_t number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word.empty() || error != std::errc() || end != word.data() + word.size()) {
        return {};
    }
    return number;
}

/// The number behind a name at the begin of a line.
std::optional<std::size_t> number_of(const std::string& name, const std::string& path) {
    std::ifstream file(path);
    std::string word;
    std::size_t number = 0;
    while (file >> word >> number) {
        if (word == name) {
            return number;
        }
        file.ignore(INT_MAX, '\n');
    }
    return {};
}

/// What one group leaves.
std::size_t left_in(const std::string& folder, const Files& files) {
    const std::optional<std::size_t> limit = number_in(folder + "/" + files.limit);
    const std::optional<std::size_t> use = number_in(folder + "/" + files.use);
    if (!limit || !use) {
        return unlimited;
    }
    const std::size_t cache = std::min(*use, number_of(files.cache, folder + "/memory.stat").value_or(0));
    return *limit - std::min(*limit, *use - cache);
}

/// What a group and those above it leave. Inside a container the path may be that of the host, of which only the
/// outermost folder is there: that of the container itself.
std::size_t left_up_to_the_root(const std::string& root, std::string group, const Files& files) {
    const std::string mounted = root + files.folder;
    std::size_t least = left_in(mounted, files);
    while (group.starts_with('/')) {
        least = std::min(least, left_in(mounted + group, files));
        group.erase(group.rfind('/'));
    }
    return least;
}

bool names_memory(const std::string& controllers) {
    return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

}  // namespace

std::size_t free_host_bytes(const std::string& root) {
    const std::optional<std::size_t> kilobytes = number_of("MemAvailable:", root + "/proc/meminfo");
    std::size_t least = kilobytes ? *kilobytes << 10
                                  : static_cast<std::size_t>(sysconf(_SC_AVPHYS_PAGES)) *
                                        static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::ifstream groups(root + "/proc/self/cgroup");
    std::string line;
    while (std::getline(groups, line)) {  // NUMBER:CONTROLLERS:GROUP, of version 2 0::GROUP
        std::istringstream fields(line);
        std::string number, controllers, group;
        if (!std::getline(fields, number, ':') || !std::getline(fields, controllers, ':') ||
            !std::getline(fields, group)) {
            continue;
        }
        if (controllers.empty()) {
            least = std::min(least, left_up_to_the_root(root, group, files_v2));
        }
        if (names_memory(controllers)) {
            least = std::min(least, left_up_to_the_root(root, group, files_v1));
        }
    }
    return least;
}

}  // namespace xtx
