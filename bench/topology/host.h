// SPDX-License-Identifier: Apache-2.0
// What the system tells of the machine around the GPUs: NUMA nodes, network cards, and the ways between them.
#pragma once

#include <string>
#include <vector>

namespace awaken::topology {

/// A PCI device's own link, as it could be at best.
struct PcieLink {
    double gigatransfers_per_s = 0;  ///< of a lane: 16 for generation 4, 32 for 5; 0: not told
    int lanes = 0;
};

/// A network card: an InfiniBand (or RoCE, Slingshot) device, or an interface that is none of those.
struct NetworkCard {
    std::string name;         ///< "mlx5_0", "eth0"
    std::string kind;         ///< "infiniband" or "ethernet"
    std::string pci_address;  ///< "0000:3b:00.0"
    int numa_node = -1;
    double gigabits_per_s = 0;  ///< 0: not told
    std::string rate;           ///< the system's own words: "400 Gb/sec (4X NDR)"
};

/// Reads the system's files below `root` ("/sys").
class Host {
  public:
    explicit Host(std::string root) : _root(std::move(root)) {}

    /// Of a PCI device; -1 when the system does not say.
    [[nodiscard]] int numa_node(const std::string& pci_address) const;
    [[nodiscard]] PcieLink pcie_link(const std::string& pci_address) const;
    /// Processors of a NUMA node, as the system writes them: "0-15,32-47".
    [[nodiscard]] std::string processors(int numa_node) const;
    /// Distances from each NUMA node to each, as the firmware tells them (10: the same).
    [[nodiscard]] std::vector<std::vector<int>> numa_distances() const;
    /// Those with a PCI address, by name.
    [[nodiscard]] std::vector<NetworkCard> network_cards() const;
    /// What the ways of two PCI devices have in common: "PIX" one switch, "PXB" several switches, "PHB" a host bridge,
    /// "NODE" a NUMA node, "SYS" neither; empty when it cannot be told.
    [[nodiscard]] std::string pci_path(const std::string& device, const std::string& other) const;
    /// "hwloc 2.9.0", or "sysfs" in a build without it.
    [[nodiscard]] static std::string source();

  private:
    std::string _root;
};

}  // namespace awaken::topology
