// SPDX-License-Identifier: Apache-2.0
#include "links.h"

#include <dlfcn.h>
#include <strings.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

#include "device.h"

namespace ghost_exchange {

namespace {

/// GB/s of one NVLink in one direction. The library tells the raw rate, of which a pair of GPUs never sees all.
double rate_of_nvlink(const std::string& gpu_name) {
    if (gpu_name.find("P100") != std::string::npos) {
        return 20;
    }
    for (const char* const name : {"B100", "B200", "B300"}) {
        if (gpu_name.find(name) != std::string::npos) {
            return 50;
        }
    }
    return 25;  // V100, A100, H100, H200
}

/// The first of the libraries that can be opened. It is never closed.
void* open_library(std::initializer_list<const char*> names) {
    for (const char* const name : names) {
        if (void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL); library != nullptr) {
            return library;
        }
    }
    return nullptr;
}

/// Whether the library has that function; puts it there.
template <class Function>
bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

/// NVML, https://docs.nvidia.com/deploy/nvml-api. All functions return 0 where they succeed.
class Nvml {
  public:
    static const Nvml& instance() {
        static const Nvml nvml;
        return nvml;
    }

    [[nodiscard]] std::optional<Limit> between(const std::string& gpu_name, const std::string& address,
                                               const std::string& peer) const {
        Device own = nullptr;
        Device other = nullptr;
        if (!_works || _by_address(address.c_str(), &own) != 0 || _by_address(peer.c_str(), &other) != 0) {
            return {};
        }
        const Ends ends = ends_of(own, peer);
        // Through switches a GPU reaches each other one with all of its links.
        const int links = ends.to_peer > 0 ? ends.to_peer : std::min(ends.to_switches, ends_of(other, {}).to_switches);
        if (links == 0) {
            return Limit();
        }
        return Limit{links * rate_of_nvlink(gpu_name), std::to_string(links) + " NVLinks, reported by NVML"};
    }

  private:
    using Device = void*;
    /// nvmlPciInfo_t.
    struct PciInfo {
        std::array<char, 16> short_bus_id;
        unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
        std::array<char, 32> bus_id;
    };
    /// How many of a GPU's links end where.
    struct Ends {
        int to_peer = 0;
        int to_switches = 0;
    };

    Nvml() {
        void* const library = open_library({"libnvidia-ml.so.1"});
        int (*initialize)() = nullptr;
        _works = library != nullptr && find(library, "nvmlInit_v2", initialize) &&
                 find(library, "nvmlDeviceGetHandleByPciBusId_v2", _by_address) &&
                 find(library, "nvmlDeviceGetNvLinkState", _state) &&
                 find(library, "nvmlDeviceGetNvLinkRemoteDeviceType", _remote_type) &&
                 find(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", _remote_info) && initialize() == 0;
    }

    [[nodiscard]] Ends ends_of(Device device, const std::string& peer) const {
        constexpr unsigned most_links = 64;  // more than any GPU has: those that do not exist are refused
        constexpr int type_switch = 2;       // NVML_NVLINK_DEVICE_TYPE_SWITCH
        Ends ends;
        int active = 0;
        for (unsigned link = 0; link < most_links && _state(device, link, &active) == 0; ++link) {
            if (active == 0) {
                continue;
            }
            int type = 0;
            PciInfo info = {};
            if (_remote_type(device, link, &type) == 0 && type == type_switch) {
                ++ends.to_switches;
            } else if (_remote_info(device, link, &info) == 0) {
                std::array<char, 32> address = {};
                std::snprintf(address.data(), address.size(), "%04x:%02x:%02x.0", info.domain, info.bus, info.device);
                if (strcasecmp(address.data(), peer.c_str()) == 0) {
                    ++ends.to_peer;
                }
            }
        }
        return ends;
    }

    bool _works = false;
    int (*_by_address)(const char*, Device*) = nullptr;
    int (*_state)(Device, unsigned, int*) = nullptr;
    int (*_remote_type)(Device, unsigned, int*) = nullptr;
    int (*_remote_info)(Device, unsigned, PciInfo*) = nullptr;
};

/// ROCm SMI, https://rocm.docs.amd.com/projects/rocm_smi_lib. All functions return 0 where they succeed.
class RocmSmi {
  public:
    static const RocmSmi& instance() {
        static const RocmSmi smi;
        return smi;
    }

    [[nodiscard]] std::optional<Limit> between(const std::string& address, const std::string& peer) const {
        const std::optional<std::uint32_t> own = index_of(address);
        const std::optional<std::uint32_t> other = index_of(peer);
        std::uint64_t hops = 0;
        int type = 0;
        if (!own || !other || _link_type(*own, *other, &hops, &type) != 0) {
            return {};
        }
        constexpr int type_xgmi = 2;  // RSMI_IOLINK_TYPE_XGMI
        if (type != type_xgmi) {
            return Limit();
        }
        // In MB/s: that of one link, and that of all.
        std::uint64_t least = 0;
        std::uint64_t most = 0;
        if (_bandwidth(*own, *other, &least, &most) != 0 || least == 0) {
            return {};
        }
        return Limit{static_cast<double>(most) * 1e-3,
                     std::to_string(most / least) + " XGMI links, reported by ROCm SMI"};
    }

  private:
    RocmSmi() {
        void* const library =
            open_library({"librocm_smi64.so.1", "librocm_smi64.so.7", "librocm_smi64.so.6", "librocm_smi64.so.5",
                          "librocm_smi64.so", "/opt/rocm/lib/librocm_smi64.so"});
        int (*initialize)(std::uint64_t) = nullptr;
        _works = library != nullptr && find(library, "rsmi_init", initialize) &&
                 find(library, "rsmi_num_monitor_devices", _count) && find(library, "rsmi_dev_pci_id_get", _pci_id) &&
                 find(library, "rsmi_topo_get_link_type", _link_type) &&
                 find(library, "rsmi_minmax_bandwidth_get", _bandwidth) && initialize(0) == 0;
    }

    [[nodiscard]] std::optional<std::uint32_t> index_of(const std::string& address) const {
        std::uint32_t count = 0;
        if (!_works || _count(&count) != 0) {
            return {};
        }
        for (std::uint32_t index = 0; index < count; ++index) {
            // The domain in the upper half; bus, device and function as PCI packs them in the lowest 16 bits.
            std::uint64_t id = 0;
            if (_pci_id(index, &id) != 0) {
                continue;
            }
            std::array<char, 32> text = {};
            std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%x", static_cast<unsigned>(id >> 32),
                          static_cast<unsigned>((id >> 8) & 0xFF), static_cast<unsigned>((id >> 3) & 0x1F),
                          static_cast<unsigned>(id & 7));
            if (strcasecmp(text.data(), address.c_str()) == 0) {
                return index;
            }
        }
        return {};
    }

    bool _works = false;
    int (*_count)(std::uint32_t*) = nullptr;
    int (*_pci_id)(std::uint32_t, std::uint64_t*) = nullptr;
    int (*_link_type)(std::uint32_t, std::uint32_t, std::uint64_t*, int*) = nullptr;
    int (*_bandwidth)(std::uint32_t, std::uint32_t, std::uint64_t*, std::uint64_t*) = nullptr;
};

}  // namespace

std::optional<Limit> limit_of_links(const std::string& gpu_name, const std::string& address, const std::string& peer) {
    if (apps::runtime_is_amd()) {
        return RocmSmi::instance().between(address, peer);
    }
    return Nvml::instance().between(gpu_name, address, peer);
}

}  // namespace ghost_exchange
