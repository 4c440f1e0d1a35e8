// SPDX-License-Identifier: Apache-2.0
// AMD's management library for the emulated machine: the calls by which programs ask after links.
#include <cstdint>

#include "front_end.h"
#include "machine.h"

namespace {

using namespace awaken::emulator;

enum Result : int { success = 0, invalid_arguments = 1, not_supported = 2, init_error = 8 };

/// Of one link, MB/s, as on an MI250X.
constexpr std::uint64_t kLinkMegabytesPerSecond = 50000;

bool is_device(const std::uint32_t device) {
    return static_cast<int>(device) < configuration().devices;
}

/// 0 where no XGMI link of their own connects the devices.
int xgmi_links(const std::uint32_t from, const std::uint32_t to) {
    return configuration().links.between(static_cast<int>(from), static_cast<int>(to));
}
/// 0 where PCIe connects the devices.
int xgmi_hops(const std::uint32_t from, const std::uint32_t to) {
    return configuration().links.hops(static_cast<int>(from), static_cast<int>(to));
}

}  // namespace

AWAKEN_EXPORT int rsmi_init(std::uint64_t /*flags*/) {
    return configuration().vendor == Vendor::hip && configuration().problem.empty() ? success : init_error;
}
AWAKEN_EXPORT int rsmi_shut_down() {
    return success;
}
AWAKEN_EXPORT int rsmi_num_monitor_devices(std::uint32_t* count) {
    if (count == nullptr) {
        return invalid_arguments;
    }
    *count = static_cast<std::uint32_t>(configuration().devices);
    return success;
}
AWAKEN_EXPORT int rsmi_dev_pci_id_get(std::uint32_t device, std::uint64_t* id) {
    if (!is_device(device) || id == nullptr) {
        return invalid_arguments;
    }
    *id = static_cast<std::uint64_t>(bus_of(device)) << 8;
    return success;
}
AWAKEN_EXPORT int rsmi_topo_get_numa_node_number(std::uint32_t device, std::uint32_t* node) {
    if (!is_device(device) || node == nullptr) {
        return invalid_arguments;
    }
    *node = 0;
    return success;
}
AWAKEN_EXPORT int rsmi_topo_get_link_type(std::uint32_t from, std::uint32_t to, std::uint64_t* hops, int* type) {
    if (!is_device(from) || !is_device(to) || from == to || hops == nullptr || type == nullptr) {
        return invalid_arguments;
    }
    // The real library's hops are steps between GPUs and processors: 1 over XGMI, whatever GPUs lie between, and 2 to
    // the host bridge and back (ROCm/rocm-systems issue 5763).
    *hops = xgmi_hops(from, to) != 0 ? 1 : 2;
    *type = xgmi_hops(from, to) != 0 ? 2 : 1;
    return success;
}
AWAKEN_EXPORT int rsmi_topo_get_link_weight(std::uint32_t from, std::uint32_t to, std::uint64_t* weight) {
    if (!is_device(from) || !is_device(to) || from == to || weight == nullptr) {
        return invalid_arguments;
    }
    constexpr std::uint64_t kOfXgmiLink = 15;
    constexpr std::uint64_t kOfPcieSegment = 20;
    const auto hops = static_cast<std::uint64_t>(xgmi_hops(from, to));
    *weight = hops != 0 ? kOfXgmiLink * hops : 2 * kOfPcieSegment;
    return success;
}
AWAKEN_EXPORT int rsmi_minmax_bandwidth_get(std::uint32_t from, std::uint32_t to, std::uint64_t* least,
                                            std::uint64_t* most) {
    if (!is_device(from) || !is_device(to) || from == to || least == nullptr || most == nullptr) {
        return invalid_arguments;
    }
    if (xgmi_links(from, to) == 0) {
        return not_supported;
    }
    *least = kLinkMegabytesPerSecond;
    *most = kLinkMegabytesPerSecond * static_cast<std::uint64_t>(xgmi_links(from, to));
    return success;
}
