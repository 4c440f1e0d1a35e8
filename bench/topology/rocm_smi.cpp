// SPDX-License-Identifier: Apache-2.0
// AMD's management library: type, hops and bandwidth of the link between two GPUs.
//
// It tells no number of links. The least bandwidth of a pair is that of one link and the largest that of all, so their
// quotient is the number; both are 0 where the two are not connected directly.
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "gpu/dynamic_library.h"
#include "topology/links.h"

namespace awaken::topology {
namespace {

using Result = int;

constexpr Result kSuccess = 0;
/// RSMI_IO_LINK_TYPE.
constexpr int kPcie = 1;
constexpr int kXgmi = 2;

#define AWAKEN_ROCM_SMI_FUNCTIONS(X)                                                                           \
    X(init, "rsmi_init", true, Result, std::uint64_t)                                                          \
    X(count, "rsmi_num_monitor_devices", true, Result, std::uint32_t*)                                         \
    X(pci_id, "rsmi_dev_pci_id_get", true, Result, std::uint32_t, std::uint64_t*)                              \
    X(link_type, "rsmi_topo_get_link_type", false, Result, std::uint32_t, std::uint32_t, std::uint64_t*, int*) \
    X(weight, "rsmi_topo_get_link_weight", false, Result, std::uint32_t, std::uint32_t, std::uint64_t*)        \
    X(bandwidth, "rsmi_minmax_bandwidth_get", false, Result, std::uint32_t, std::uint32_t, std::uint64_t*,     \
      std::uint64_t*)                                                                                          \
    X(numa_node, "rsmi_topo_get_numa_node_number", false, Result, std::uint32_t, std::uint32_t*)

struct Functions {
    AWAKEN_ROCM_SMI_FUNCTIONS(AWAKEN_DECLARE_FUNCTION)
};

/// Domain in the upper half; bus, device and function as PCI packs them in the lowest 16 bits.
std::string address_of(const std::uint64_t id) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%x", static_cast<unsigned>(id >> 32),
                  static_cast<unsigned>((id >> 8) & 0xFF), static_cast<unsigned>((id >> 3) & 0x1F),
                  static_cast<unsigned>(id & 7));
    return text.data();
}

class RocmSmi final : public LinkSource {
  public:
    explicit RocmSmi(const Functions& functions) : _smi(functions) {
        std::uint32_t count = 0;
        if (_smi.count(&count) != kSuccess) {
            return;
        }
        for (std::uint32_t index = 0; index < count; ++index) {
            std::uint64_t id = 0;
            if (_smi.pci_id(index, &id) == kSuccess) {
                _indices[address_of(id)] = index;
            }
        }
    }

    [[nodiscard]] const char* name() const noexcept override { return "ROCm SMI"; }

    [[nodiscard]] Link between(const std::string& device, const std::string& peer) override {
        Link link;
        const auto first = _indices.find(device);
        const auto second = _indices.find(peer);
        if (first == _indices.end() || second == _indices.end()) {
            link.why_not = "ROCm SMI does not know " + (first == _indices.end() ? device : peer);
            return link;
        }
        std::uint64_t hops = 0;
        int type = 0;
        if (_smi.link_type == nullptr) {
            link.why_not = "this ROCm SMI is too old to report it";
        } else if (const Result result = _smi.link_type(first->second, second->second, &hops, &type);
                   result != kSuccess) {
            link.why_not = "rsmi_topo_get_link_type fails with " + std::to_string(result);
        } else {
            link.type = type == kXgmi ? "XGMI" : type == kPcie ? "PCIe" : "";
            link.hops = static_cast<int>(hops);
        }
        // For GPUs that XGMI connects, `hops` is 1 even where other GPUs lie between (ROCm/rocm-systems issue 5763).
        // The weight is 15 for each link on the path.
        constexpr std::uint64_t kWeightOfLink = 15;
        std::uint64_t weight = 0;
        if (link.type == "XGMI" && _smi.weight != nullptr &&
            _smi.weight(first->second, second->second, &weight) == kSuccess && weight > 0 &&
            weight % kWeightOfLink == 0) {
            link.hops = static_cast<int>(weight / kWeightOfLink);
        }
        std::uint64_t least = 0;
        std::uint64_t most = 0;
        if (link.type == "XGMI" && link.hops == 1 && _smi.bandwidth != nullptr &&
            _smi.bandwidth(first->second, second->second, &least, &most) == kSuccess && least > 0) {
            link.count = static_cast<int>(most / least);
        }
        return link;
    }

    [[nodiscard]] int numa_node(const std::string& device) override {
        const auto found = _indices.find(device);
        std::uint32_t node = 0;
        if (found == _indices.end() || _smi.numa_node == nullptr || _smi.numa_node(found->second, &node) != kSuccess) {
            return kUnknown;
        }
        return static_cast<int>(node);
    }

    [[nodiscard]] int active_links(const std::string& device) override {
        int total = 0;
        for (const auto& [peer, index] : _indices) {
            if (peer == device) {
                continue;
            }
            const Link link = between(device, peer);
            if (link.type == "XGMI" && link.hops == 1 && link.count == kUnknown) {
                return kUnknown;
            }
            if (link.type == "XGMI" && link.hops == 1) {
                total += link.count;
            }
        }
        return total;
    }

  private:
    Functions _smi;
    std::map<std::string, std::uint32_t> _indices;  ///< the library's numbers by address
};

}  // namespace

std::unique_ptr<LinkSource> open_rocm_smi(std::string& why_not) {
    static const std::string kNames[] = {"librocm_smi64.so.1", "librocm_smi64.so.7", "librocm_smi64.so.6",
                                         "librocm_smi64.so.5", "librocm_smi64.so",   "/opt/rocm/lib/librocm_smi64.so"};
    const gpu::DynamicLibrary library = gpu::DynamicLibrary::open(kNames, why_not);
    Functions table;
    const gpu::FunctionSlot slots[] = {AWAKEN_ROCM_SMI_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
    if (!library || !library.bind(slots, why_not)) {
        return nullptr;
    }
    if (const Result result = table.init(0); result != kSuccess) {
        why_not = "rsmi_init fails with " + std::to_string(result);
        return nullptr;
    }
    return std::make_unique<RocmSmi>(table);
}

std::unique_ptr<LinkSource> open_link_source(const gpu::Vendor vendor, std::string& why_not) {
    switch (vendor) {
        case gpu::Vendor::cuda:
            return open_nvml(why_not);
        case gpu::Vendor::hip:
            return open_rocm_smi(why_not);
        case gpu::Vendor::none:
            break;
    }
    why_not = "there is no GPU";
    return nullptr;
}

}  // namespace awaken::topology
