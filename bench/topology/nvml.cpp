// SPDX-License-Identifier: Apache-2.0
// NVIDIA's management library: the links of a GPU, and what is at their other ends.
//
// A link ends at another GPU, whose address is then the one that is told, or at a switch. On machines with NVSwitch
// every GPU has all its links at switches and reaches every other one with all of them, so the pair has as many links
// as the GPU with fewer has.
#include <array>
#include <map>
#include <string>

#include "gpu/dynamic_library.h"
#include "topology/links.h"

namespace awaken::topology {
namespace {

using Result = int;
using Device = void*;

constexpr Result kSuccess = 0;
/// NVML_NVLINK_DEVICE_TYPE_SWITCH of nvmlIntNvLinkDeviceType_t: GPU 0, IBM's NPU 1, switch 2, unknown 255.
constexpr int kSwitch = 2;
/// More links than any GPU has; those that do not exist are refused.
constexpr unsigned kMostLinks = 64;

/// nvmlPciInfo_t as nvmlDeviceGetNvLinkRemotePciInfo_v2 fills it.
struct PciInfo {
    char short_bus_id[16];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pci_device_id;
    unsigned pci_subsystem_id;
    char bus_id[32];
};

// Member, symbol, whether it must be there, result, parameters.
#define AWAKEN_NVML_FUNCTIONS(X)                                                                         \
    X(init, "nvmlInit_v2", true, Result)                                                                 \
    X(error_string, "nvmlErrorString", true, const char*, Result)                                        \
    X(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2", true, Result, const char*, Device*)                 \
    X(common_ancestor, "nvmlDeviceGetTopologyCommonAncestor", false, Result, Device, Device, int*)       \
    X(link_state, "nvmlDeviceGetNvLinkState", false, Result, Device, unsigned, int*)                     \
    X(remote_pci_info, "nvmlDeviceGetNvLinkRemotePciInfo_v2", false, Result, Device, unsigned, PciInfo*) \
    X(remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType", false, Result, Device, unsigned, int*)         \
    X(numa_node, "nvmlDeviceGetNumaNodeId", false, Result, Device, unsigned*)

struct Functions {
    AWAKEN_NVML_FUNCTIONS(AWAKEN_DECLARE_FUNCTION)
};

/// nvmlGpuTopologyLevel_t, by the names of `nvidia-smi topo -m`.
std::string path_name(const int level) {
    switch (level) {
        case 0:   // on one board
        case 10:  // one switch
            return "PIX";
        case 20:  // several switches
            return "PXB";
        case 30:  // a host bridge
            return "PHB";
        case 40:  // a NUMA node
            return "NODE";
        case 50:
            return "SYS";
        default:
            return "";
    }
}

/// What a GPU's active links lead to.
struct Ends {
    int active = 0;
    int to_switches = 0;
    std::map<std::string, int> to_devices;  ///< links by the address at the other end
};

/// "0000:1b:00.0" of a bus id in any of NVML's spellings ("00000000:1B:00.0").
std::string normal_address(const PciInfo& info) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", info.domain, info.bus, info.device);
    return text.data();
}

class Nvml final : public LinkSource {
  public:
    explicit Nvml(const Functions& functions) : _nvml(functions) {}

    [[nodiscard]] const char* name() const noexcept override { return "NVML"; }

    [[nodiscard]] Link between(const std::string& device, const std::string& peer) override {
        Link link;
        Device first = nullptr;
        Device second = nullptr;
        for (const auto& [address, handle] : {std::pair{&device, &first}, std::pair{&peer, &second}}) {
            if (const Result result = _nvml.by_bus_id(address->c_str(), handle); result != kSuccess) {
                link.why_not = "NVML does not know " + *address + ": " + _nvml.error_string(result);
                return link;
            }
        }
        int level = -1;
        if (_nvml.common_ancestor != nullptr && _nvml.common_ancestor(first, second, &level) == kSuccess) {
            link.pci_path = path_name(level);
        }
        const Ends own = ends_of(first);
        const Ends others = ends_of(second);
        if (const auto direct = own.to_devices.find(peer); direct != own.to_devices.end()) {
            link.type = "NVLink";
            link.count = direct->second;
            link.hops = 1;
        } else if (own.to_switches > 0 && others.to_switches > 0) {
            link.type = "NVSwitch";
            link.count = std::min(own.to_switches, others.to_switches);
            link.hops = 2;
        } else {
            link.type = "PCIe";
        }
        return link;
    }

    [[nodiscard]] int numa_node(const std::string& device) override {
        Device handle = nullptr;
        unsigned node = 0;
        // On most machines it is the node of the GPU's own memory that is asked for here, and there is none.
        if (_nvml.numa_node == nullptr || _nvml.by_bus_id(device.c_str(), &handle) != kSuccess ||
            _nvml.numa_node(handle, &node) != kSuccess) {
            return kUnknown;
        }
        return static_cast<int>(node);
    }

    [[nodiscard]] int active_links(const std::string& device) override {
        Device handle = nullptr;
        if (_nvml.link_state == nullptr || _nvml.by_bus_id(device.c_str(), &handle) != kSuccess) {
            return kUnknown;
        }
        return ends_of(handle).active;
    }

  private:
    [[nodiscard]] Ends ends_of(Device device) const {
        Ends ends;
        int active = 0;
        for (unsigned link = 0;
             link < kMostLinks && _nvml.link_state != nullptr && _nvml.link_state(device, link, &active) == kSuccess;
             ++link) {
            if (active == 0) {
                continue;
            }
            ++ends.active;
            int type = 0;
            PciInfo remote{};
            if (_nvml.remote_type != nullptr && _nvml.remote_type(device, link, &type) == kSuccess && type == kSwitch) {
                ++ends.to_switches;
            } else if (_nvml.remote_pci_info != nullptr && _nvml.remote_pci_info(device, link, &remote) == kSuccess) {
                ++ends.to_devices[normal_address(remote)];
            }
        }
        return ends;
    }

    Functions _nvml;
};

}  // namespace

std::unique_ptr<LinkSource> open_nvml(std::string& why_not) {
    static const std::string kNames[] = {"libnvidia-ml.so.1"};
    const gpu::DynamicLibrary library = gpu::DynamicLibrary::open(kNames, why_not);
    Functions table;
    const gpu::FunctionSlot slots[] = {AWAKEN_NVML_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
    if (!library || !library.bind(slots, why_not)) {
        return nullptr;
    }
    if (const Result result = table.init(); result != kSuccess) {
        why_not = std::string("nvmlInit_v2: ") + table.error_string(result);
        return nullptr;
    }
    return std::make_unique<Nvml>(table);
}

}  // namespace awaken::topology
