// SPDX-License-Identifier: Apache-2.0
#include "trace/clocks.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>

namespace awaken::trace {

Offset estimate_offset(const std::vector<RoundTrip>& trips) noexcept {
    const auto quickest = std::min_element(trips.begin(), trips.end(), [](const RoundTrip& a, const RoundTrip& b) {
        return a.heard_ns - a.asked_ns < b.heard_ns - b.asked_ns;
    });
    const std::uint64_t duration = quickest->heard_ns - quickest->asked_ns;
    const std::uint64_t middle = quickest->asked_ns + duration / 2;
    return {middle, static_cast<std::int64_t>(quickest->answer_ns - middle), duration / 2 + duration % 2};
}

std::int64_t Alignment::offset_at(const std::uint64_t time_ns) const noexcept {
    if (shared || (!first && !last)) {
        return 0;
    }
    if (!first || !last || first->at_ns == last->at_ns) {
        return first ? first->offset_ns : last->offset_ns;
    }
    // Clocks drift by parts per million, so that the products stay exact to a nanosecond in double precision.
    const auto span = static_cast<double>(static_cast<std::int64_t>(last->at_ns - first->at_ns));
    const auto passed = static_cast<double>(static_cast<std::int64_t>(time_ns - first->at_ns));
    const auto drift = static_cast<double>(last->offset_ns - first->offset_ns);
    const double change = drift * passed / span;
    return first->offset_ns + static_cast<std::int64_t>(change < 0 ? change - 0.5 : change + 0.5);
}

std::string clock_name() {
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen("/proc/sys/kernel/random/boot_id", "r"), std::fclose);
    std::array<char, 64> boot{};
    struct stat time_namespace{};
    // Linux before 5.6 has no time namespaces: then the running kernel has one clock.
    const bool separate = stat("/proc/self/ns/time", &time_namespace) == 0;
    if (file == nullptr || std::fgets(boot.data(), boot.size(), file.get()) == nullptr) {
        return {};
    }
    std::string name(boot.data());
    while (!name.empty() && name.back() == '\n') {
        name.pop_back();
    }
    return name.empty() ? name : name + ":" + (separate ? std::to_string(time_namespace.st_ino) : "0");
}

}  // namespace awaken::trace
