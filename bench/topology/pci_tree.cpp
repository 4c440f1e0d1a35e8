// SPDX-License-Identifier: Apache-2.0
#include "topology/pci_tree.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <vector>

#if AWAKEN_HAVE_HWLOC
#include <hwloc.h>

#include <memory>
#endif

namespace awaken::topology {
namespace fs = std::filesystem;
namespace {

using Meeting = PciRelation::Meeting;

/// The bridges above a PCI device, from its host bridge ("pci0000:00") down, by their names in the path of its folder.
std::vector<std::string> bridges_above(const std::string& root, const std::string& device) {
    std::error_code failure;
    const fs::path folder = fs::canonical(fs::path(root) / "bus/pci/devices" / device, failure);
    std::vector<std::string> bridges;
    if (failure) {
        return bridges;
    }
    for (const fs::path& part : folder) {
        if (part.native().starts_with("pci") || !bridges.empty()) {
            bridges.push_back(part.native());
        }
    }
    // The last is the device itself.
    if (!bridges.empty()) {
        bridges.pop_back();
    }
    return bridges;
}

/// By the bridges above two devices, of which the host bridge is the first.
template <typename Bridge>
PciRelation relation_of(const std::vector<Bridge>& above_one, const std::vector<Bridge>& above_other) {
    const auto parted = std::mismatch(above_one.begin(), above_one.end(), above_other.begin(), above_other.end());
    const auto common = static_cast<std::size_t>(parted.first - above_one.begin());
    if (common < 2) {
        return {common == 0 ? Meeting::nowhere : Meeting::host_bridge};
    }
    // A switch is a port upwards and one downwards for each device.
    const std::size_t farthest = std::max(above_one.size(), above_other.size()) - common;
    return {farthest <= 1 ? Meeting::one_switch : Meeting::several_switches};
}

PciRelation relate_by_files(const std::string& root, const std::string& device, const std::string& other) {
    const std::vector<std::string> above_one = bridges_above(root, device);
    const std::vector<std::string> above_other = bridges_above(root, other);
    return above_one.empty() || above_other.empty() ? PciRelation{} : relation_of(above_one, above_other);
}

#if AWAKEN_HAVE_HWLOC

struct DestroyTopology {
    void operator()(hwloc_topology* const topology) const { hwloc_topology_destroy(topology); }
};

/// The machine as hwloc sees it, with bridges and PCI devices; null when it cannot be had.
hwloc_topology_t machine() {
    static const std::unique_ptr<hwloc_topology, DestroyTopology> loaded = [] {
        hwloc_topology_t topology = nullptr;
        if (hwloc_topology_init(&topology) != 0) {
            return std::unique_ptr<hwloc_topology, DestroyTopology>();
        }
        std::unique_ptr<hwloc_topology, DestroyTopology> owner(topology);
        // Bridges that lead to one device only are left out of hwloc's default view, and decide between PIX and PXB.
        hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
        if (hwloc_topology_load(topology) != 0) {
            owner.reset();
        }
        return owner;
    }();
    return loaded.get();
}

std::vector<hwloc_obj_t> bridges_above(hwloc_obj_t object) {
    std::vector<hwloc_obj_t> bridges;
    for (hwloc_obj_t at = object->parent; at != nullptr && at->type == HWLOC_OBJ_BRIDGE; at = at->parent) {
        bridges.insert(bridges.begin(), at);
    }
    return bridges;
}

PciRelation relate_by_hwloc(const std::string& device, const std::string& other) {
    hwloc_topology_t const topology = machine();
    if (topology == nullptr) {
        return {};
    }
    hwloc_obj_t const one = hwloc_get_pcidev_by_busidstring(topology, device.c_str());
    hwloc_obj_t const two = hwloc_get_pcidev_by_busidstring(topology, other.c_str());
    return one == nullptr || two == nullptr ? PciRelation{} : relation_of(bridges_above(one), bridges_above(two));
}

#endif

}  // namespace

PciRelation relate(const std::string& root, const std::string& device, const std::string& other) {
#if AWAKEN_HAVE_HWLOC
    if (root == "/sys") {
        if (const PciRelation told = relate_by_hwloc(device, other); told.meeting != Meeting::unknown) {
            return told;
        }
    }
#endif
    return relate_by_files(root, device, other);
}

std::string pci_tree_source() {
#if AWAKEN_HAVE_HWLOC
    const unsigned version = hwloc_get_api_version();
    return "hwloc " + std::to_string(version >> 16) + "." + std::to_string((version >> 8) & 0xFF);
#else
    return "sysfs";
#endif
}

}  // namespace awaken::topology
