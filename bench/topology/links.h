// SPDX-License-Identifier: Apache-2.0
// What a vendor's management library tells of GPUs and the links between them.
#pragma once

#include <memory>
#include <string>

#include "gpu/gpu.h"

namespace awaken::topology {

/// Numbers that are not known.
inline constexpr int kUnknown = -1;

/// How two GPUs are connected.
struct Link {
    std::string type;      ///< "NVLink", "NVSwitch" (NVLinks to a common switch), "XGMI", "PCIe"; empty: not told
    int count = kUnknown;  ///< parallel links; of NVSwitch, links that each GPU has to the switch
    int hops = kUnknown;   ///< links from one to the other: 1 is a direct one
    std::string pci_path;  ///< what their ways over PCIe have in common: "PIX", "PXB", "PHB", "NODE", "SYS"; or empty
    std::string why_not;   ///< why something of the above is not known
};

/// A management library. Devices are named by their PCI address, "0000:1b:00.0", because its numbers are not those of
/// the GPU runtime.
class LinkSource {
  public:
    virtual ~LinkSource() = default;
    LinkSource() = default;
    LinkSource(const LinkSource&) = delete;
    LinkSource& operator=(const LinkSource&) = delete;

    /// "NVML", "ROCm SMI".
    [[nodiscard]] virtual const char* name() const noexcept = 0;
    [[nodiscard]] virtual Link between(const std::string& device, const std::string& peer) = 0;
    /// NUMA node of a device, kUnknown when the library does not say.
    [[nodiscard]] virtual int numa_node(const std::string& device) = 0;
    /// Active links of a device to whatever (NVLink, XGMI); kUnknown when it cannot be told.
    [[nodiscard]] virtual int active_links(const std::string& device) = 0;
};

/// NVML (libnvidia-ml.so.1); null with the reason in `why_not`.
[[nodiscard]] std::unique_ptr<LinkSource> open_nvml(std::string& why_not);
/// ROCm SMI (librocm_smi64.so); null with the reason in `why_not`.
[[nodiscard]] std::unique_ptr<LinkSource> open_rocm_smi(std::string& why_not);
/// The one that goes with a GPU runtime.
[[nodiscard]] std::unique_ptr<LinkSource> open_link_source(gpu::Vendor vendor, std::string& why_not);

}  // namespace awaken::topology
