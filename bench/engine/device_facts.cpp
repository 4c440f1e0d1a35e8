// SPDX-License-Identifier: Apache-2.0
#include "engine/device_facts.h"

#include <fstream>
#include <string_view>

#include "gpu/dynamic_library.h"

namespace awaken::bench {
namespace {

/// Two clocks, each of which may be unknown.
std::string both(const std::string& first, const std::string& second) {
    return first + (first.empty() || second.empty() ? "" : ", ") + second;
}

// NVIDIA's management library. Prototypes and numbers as NVML's public documentation gives them.
#define AWAKEN_NVML_FACTS(X)                                                         \
    X(init, "nvmlInit_v2", true, int)                                                \
    X(shut_down, "nvmlShutdown", true, int)                                          \
    X(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2", true, int, const char*, void**) \
    X(clock, "nvmlDeviceGetClockInfo", false, int, void*, int, unsigned*)            \
    X(largest_clock, "nvmlDeviceGetMaxClockInfo", false, int, void*, int, unsigned*) \
    X(link_state, "nvmlDeviceGetNvLinkState", false, int, void*, unsigned, int*)

struct NvmlFacts {
    static constexpr int kSuccess = 0;
    static constexpr int kSmClock = 1;
    static constexpr int kMemoryClock = 2;

    AWAKEN_NVML_FACTS(AWAKEN_DECLARE_FUNCTION)

    [[nodiscard]] std::string clock_text(void* const device, const int which, const char* const name) const {
        unsigned now = 0;
        if (clock == nullptr || clock(device, which, &now) != kSuccess) {
            return {};
        }
        std::string text = std::string(name) + " " + std::to_string(now);
        unsigned largest = 0;
        if (largest_clock != nullptr && largest_clock(device, which, &largest) == kSuccess) {
            text += " of " + std::to_string(largest);
        }
        return text + " MHz";
    }

    [[nodiscard]] DeviceFacts facts(const std::string& pci_bus_id) const {
        void* device = nullptr;
        if (by_bus_id(pci_bus_id.c_str(), &device) != kSuccess) {
            return {};
        }
        DeviceFacts facts{both(clock_text(device, kSmClock, "SM"), clock_text(device, kMemoryClock, "memory")), ""};
        // Links are numbered from 0 without gaps; the first number that does not exist is refused.
        int active = 0;
        int state = 0;
        for (unsigned link = 0; link_state != nullptr && link_state(device, link, &state) == kSuccess; ++link) {
            active += state != 0 ? 1 : 0;
        }
        if (active > 0) {
            facts.links = std::to_string(active) + (active == 1 ? " NVLink" : " NVLinks");
        }
        return facts;
    }
};

DeviceFacts nvidia_facts(const std::string& pci_bus_id) {
    static const std::string kNames[] = {"libnvidia-ml.so.1"};
    std::string ignored;
    NvmlFacts table;
    const gpu::FunctionSlot slots[] = {AWAKEN_NVML_FACTS(AWAKEN_BIND_FUNCTION)};
    const gpu::DynamicLibrary library = gpu::DynamicLibrary::open(kNames, ignored);
    if (!library || !library.bind(slots, ignored) || table.init() != NvmlFacts::kSuccess) {
        return {};
    }
    DeviceFacts facts = table.facts(pci_bus_id);
    table.shut_down();
    return facts;
}

/// A file of the amdgpu driver with the clock's steps, the present one marked: "1: 1700Mhz *".
std::string amd_clock(const std::string& path, const char* const name) {
    std::ifstream file(path);
    std::string now;
    std::string largest;
    for (std::string line; std::getline(file, line);) {
        const std::size_t colon = line.find(": ");
        if (colon == std::string::npos) {
            continue;
        }
        const std::string_view step = std::string_view(line).substr(colon + 2);
        const std::string_view digits = step.substr(0, step.find_first_not_of("0123456789"));
        if (digits.empty()) {
            continue;
        }
        largest = digits;
        if (step.find('*') != std::string_view::npos) {
            now = digits;
        }
    }
    return now.empty() ? std::string() : std::string(name) + " " + now + " of " + largest + " MHz";
}

DeviceFacts amd_facts(const std::string& pci_bus_id, const std::string& sysfs) {
    const std::string folder = sysfs + "/bus/pci/devices/" + pci_bus_id;
    return {both(amd_clock(folder + "/pp_dpm_sclk", "shader"), amd_clock(folder + "/pp_dpm_mclk", "memory")), ""};
}

}  // namespace

DeviceFacts device_facts(const gpu::Vendor vendor, const std::string& pci_bus_id, const std::string& sysfs) {
    switch (vendor) {
        case gpu::Vendor::cuda:
            return nvidia_facts(pci_bus_id);
        case gpu::Vendor::hip:
            return amd_facts(pci_bus_id, sysfs);
        case gpu::Vendor::none:
            break;
    }
    return {};
}

}  // namespace awaken::bench
