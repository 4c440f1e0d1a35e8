#include "engine/device_facts.h"

#include <dlfcn.h>

#include <fstream>
#include <string_view>
#include <utility>

namespace awaken::bench {
namespace {

/// NVIDIA's management library. Prototypes and numbers as NVML's public documentation gives them.
class Nvml {
  public:
    Nvml() : _library(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
        if (_library == nullptr) {
            return;
        }
        const auto initialize = find<int (*)()>("nvmlInit_v2");
        _by_bus_id = find<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
        _clock = find<int (*)(void*, int, unsigned*)>("nvmlDeviceGetClockInfo");
        _largest_clock = find<int (*)(void*, int, unsigned*)>("nvmlDeviceGetMaxClockInfo");
        _link_state = find<int (*)(void*, unsigned, int*)>("nvmlDeviceGetNvLinkState");
        _up = initialize != nullptr && _by_bus_id != nullptr && initialize() == kSuccess;
    }
    ~Nvml() {
        if (const auto shut_down = find<int (*)()>("nvmlShutdown"); _up && shut_down != nullptr) {
            shut_down();
        }
        if (_library != nullptr) {
            dlclose(_library);
        }
    }
    Nvml(const Nvml&) = delete;
    Nvml& operator=(const Nvml&) = delete;

    [[nodiscard]] DeviceFacts facts(const std::string& pci_bus_id) const {
        DeviceFacts facts;
        void* device = nullptr;
        if (!_up || _by_bus_id(pci_bus_id.c_str(), &device) != kSuccess) {
            return facts;
        }
        facts.clocks = clock(device, kSmClock, "SM");
        if (const std::string memory = clock(device, kMemoryClock, "memory"); !memory.empty()) {
            facts.clocks += (facts.clocks.empty() ? "" : ", ") + memory;
        }
        // Links are numbered from 0 without gaps; the first number that does not exist is refused.
        int active = 0;
        int state = 0;
        for (unsigned link = 0; _link_state != nullptr && _link_state(device, link, &state) == kSuccess; ++link) {
            active += state != 0 ? 1 : 0;
        }
        if (active > 0) {
            facts.links = std::to_string(active) + (active == 1 ? " NVLink" : " NVLinks");
        }
        return facts;
    }

  private:
    static constexpr int kSuccess = 0;
    static constexpr int kSmClock = 1;
    static constexpr int kMemoryClock = 2;

    template <typename Function>
    [[nodiscard]] Function find(const char* const name) const {
        return _library != nullptr ? reinterpret_cast<Function>(dlsym(_library, name)) : nullptr;
    }

    [[nodiscard]] std::string clock(void* const device, const int which, const char* const name) const {
        unsigned now = 0;
        if (_clock == nullptr || _clock(device, which, &now) != kSuccess) {
            return {};
        }
        std::string text = std::string(name) + " " + std::to_string(now);
        unsigned largest = 0;
        if (_largest_clock != nullptr && _largest_clock(device, which, &largest) == kSuccess) {
            text += " of " + std::to_string(largest);
        }
        return text + " MHz";
    }

    void* _library;
    int (*_by_bus_id)(const char*, void**) = nullptr;
    int (*_clock)(void*, int, unsigned*) = nullptr;
    int (*_largest_clock)(void*, int, unsigned*) = nullptr;
    int (*_link_state)(void*, unsigned, int*) = nullptr;
    bool _up = false;
};

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
    DeviceFacts facts;
    facts.clocks = amd_clock(folder + "/pp_dpm_sclk", "shader");
    if (const std::string memory = amd_clock(folder + "/pp_dpm_mclk", "memory"); !memory.empty()) {
        facts.clocks += (facts.clocks.empty() ? "" : ", ") + memory;
    }
    return facts;
}

}  // namespace

DeviceFacts device_facts(const gpu::Vendor vendor, const std::string& pci_bus_id, const std::string& sysfs) {
    switch (vendor) {
        case gpu::Vendor::cuda:
            return Nvml().facts(pci_bus_id);
        case gpu::Vendor::hip:
            return amd_facts(pci_bus_id, sysfs);
        case gpu::Vendor::none:
            break;
    }
    return {};
}

}  // namespace awaken::bench
