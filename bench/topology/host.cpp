// SPDX-License-Identifier: Apache-2.0
#include "topology/host.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "topology/pci_tree.h"

namespace awaken::topology {
namespace fs = std::filesystem;
namespace {

std::string first_line(const fs::path& file) {
    std::ifstream stream(file);
    std::string line;
    std::getline(stream, line);
    return line;
}

int number_or(const std::string& text, const int otherwise) {
    char* end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    return end == text.c_str() ? otherwise : static_cast<int>(value);
}

/// "0000:3b:00.0" of a device's folder, when it is a PCI device.
std::string pci_address_of(const fs::path& device) {
    std::error_code failure;
    const std::string name = fs::canonical(device, failure).filename().native();
    return !failure && name.size() == 12 && name[4] == ':' && name[7] == ':' && name[10] == '.' ? name : "";
}

std::vector<fs::path> entries_of(const fs::path& folder) {
    std::vector<fs::path> entries;
    std::error_code failure;
    for (fs::directory_iterator at(folder, failure), end; !failure && at != end; at.increment(failure)) {
        entries.push_back(at->path());
    }
    std::sort(entries.begin(), entries.end());
    return entries;
}

}  // namespace

int Host::numa_node(const std::string& pci_address) const {
    return number_or(first_line(fs::path(_root) / "bus/pci/devices" / pci_address / "numa_node"), -1);
}

PcieLink Host::pcie_link(const std::string& pci_address) const {
    const fs::path folder = fs::path(_root) / "bus/pci/devices" / pci_address;
    // "32.0 GT/s PCIe"
    return {std::strtod(first_line(folder / "max_link_speed").c_str(), nullptr),
            std::max(0, number_or(first_line(folder / "max_link_width"), 0))};
}

std::string Host::processors(const int numa_node) const {
    return first_line(fs::path(_root) / "devices/system/node" / ("node" + std::to_string(numa_node)) / "cpulist");
}

std::vector<std::vector<int>> Host::numa_distances() const {
    std::vector<std::vector<int>> distances;
    for (int node = 0;; ++node) {
        std::istringstream words(
            first_line(fs::path(_root) / "devices/system/node" / ("node" + std::to_string(node)) / "distance"));
        std::vector<int> row;
        for (int distance = 0; words >> distance;) {
            row.push_back(distance);
        }
        if (row.empty()) {
            return distances;
        }
        distances.push_back(std::move(row));
    }
}

std::vector<NetworkCard> Host::network_cards() const {
    std::vector<NetworkCard> cards;
    for (const fs::path& entry : entries_of(fs::path(_root) / "class/infiniband")) {
        NetworkCard card{entry.filename().native(), "infiniband", pci_address_of(entry / "device"), -1, 0, ""};
        card.rate = first_line(entry / "ports/1/rate");
        card.gigabits_per_s = std::strtod(card.rate.c_str(), nullptr);
        cards.push_back(std::move(card));
    }
    for (const fs::path& entry : entries_of(fs::path(_root) / "class/net")) {
        NetworkCard card{entry.filename().native(), "ethernet", pci_address_of(entry / "device"), -1, 0, ""};
        // The interface of a card that is listed by its other name.
        const bool known = std::any_of(cards.begin(), cards.end(),
                                       [&](const NetworkCard& other) { return other.pci_address == card.pci_address; });
        if (card.pci_address.empty() || known) {
            continue;
        }
        const int megabits = number_or(first_line(entry / "speed"), -1);
        if (megabits > 0) {
            card.gigabits_per_s = megabits / 1e3;
            card.rate = std::to_string(megabits) + " Mb/s";
        }
        cards.push_back(std::move(card));
    }
    for (NetworkCard& card : cards) {
        if (!card.pci_address.empty()) {
            card.numa_node = numa_node(card.pci_address);
        }
    }
    return cards;
}

std::string Host::pci_path(const std::string& device, const std::string& other) const {
    const PciRelation relation = relate(_root, device, other);
    switch (relation.meeting) {
        case PciRelation::Meeting::one_switch:
            return "PIX";
        case PciRelation::Meeting::several_switches:
            return "PXB";
        case PciRelation::Meeting::host_bridge:
            return "PHB";
        case PciRelation::Meeting::nowhere:
            break;
        case PciRelation::Meeting::unknown:
            return "";
    }
    const int node = numa_node(device);
    return node >= 0 && node == numa_node(other) ? "NODE" : "SYS";
}

std::string Host::source() {
    return pci_tree_source();
}

}  // namespace awaken::topology
