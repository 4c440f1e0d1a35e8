#include "machine.h"

#include <array>

#include "array.h"
#include "device.h"

extern const char* const ghost_exchange_kernels;  // kernels.hip

namespace ghost_exchange {

namespace {

/// Vendors' figures for GPUs by a part of their names; the first that fits counts. Links: NVLink through switches, or
/// what directly connects two GPUs.
struct Facts {
    const char* name;
    double memory_gb_s;  ///< 0: what the attributes say is right
    double link_gb_s;
};
constexpr std::array<Facts, 9> known_gpus = {{
    {"MI300A", 5300, 128},  // the memory clock that the runtime tells is a quarter of the data rate here, not a half
    {"MI300X", 5300, 64},
    {"MI325X", 6000, 64},
    {"MI250X", 1600, 0},  // 1, 2 or 4 links of 50 GB/s, depending on the pair
    {"MI210", 1600, 0},
    {"B200", 0, 900},
    {"H200", 0, 450},
    {"H100", 0, 450},
    {"A100", 0, 300},
}};

const Facts* facts_of(const std::string& gpu_name) {
    for (const Facts& facts : known_gpus) {
        if (gpu_name.find(facts.name) != std::string::npos) return &facts;
    }
    return nullptr;
}

}  // namespace

Machine::Machine(const std::string& program, const Options& options) {
    if (options.memory == Memory::host) return;
    _device = apps::select_device(program);
    apps::leave_if(program, problem_of(options.memory, options.exchange, _device));
    _kernels = std::make_unique<apps::Kernels>("ghost_exchange", ghost_exchange_kernels);
    if (options.exchange != Exchange::ccl) return;
    _ccl = std::make_unique<apps::Ccl>();
    apps::leave_if(program, _ccl->problem().empty() ? "" : "--exchange ccl: " + _ccl->name() + ": " + _ccl->problem());
}

std::string Machine::gpu_name() const {
    std::array<char, 256> name = {};
    if (_device < 0 || hipDeviceGetName(name.data(), static_cast<int>(name.size()), _device) != hipSuccess) return {};
    return name.data();
}

Limit Machine::memory_limit() const {
    if (_device < 0) return {};
    const std::string name = gpu_name();
    const Facts* const facts = facts_of(name);
    if (facts != nullptr && facts->memory_gb_s > 0) return {facts->memory_gb_s, "figure for " + name};
    int clock_khz = 0;
    int width_bits = 0;
    if (hipDeviceGetAttribute(&clock_khz, hipDeviceAttributeMemoryClockRate, _device) != hipSuccess ||
        hipDeviceGetAttribute(&width_bits, hipDeviceAttributeMemoryBusWidth, _device) != hipSuccess) {
        (void)hipGetLastError();
        return {};
    }
    if (clock_khz <= 0 || width_bits <= 0) return {};
    // Two transfers in each clock.
    return {2.0 * clock_khz * 1e3 * width_bits / 8 / 1e9, "memory clock x bus width"};
}

Limit Machine::link_limit() const {
    const std::string name = gpu_name();
    const Facts* const facts = facts_of(name);
    if (facts == nullptr || facts->link_gb_s == 0) return {};
    return {facts->link_gb_s, "link of " + name};
}

}  // namespace ghost_exchange
