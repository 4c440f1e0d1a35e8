// SPDX-License-Identifier: Apache-2.0
// Where the ways of two PCI devices to the processors meet. By hwloc where the build found it, else by sysfs.
#pragma once

#include <cstdint>
#include <string>

namespace awaken::topology {

struct PciRelation {
    enum class Meeting : std::uint8_t { unknown, one_switch, several_switches, host_bridge, nowhere };
    Meeting meeting = Meeting::unknown;
};

/// `device` and `other` are PCI addresses. `root`: where the system's files are ("/sys"); hwloc is asked for the real
/// machine alone, and another root is always read as files.
[[nodiscard]] PciRelation relate(const std::string& root, const std::string& device, const std::string& other);

/// "hwloc 2.9.0" or "sysfs".
[[nodiscard]] std::string pci_tree_source();

}  // namespace awaken::topology
