// SPDX-License-Identifier: Apache-2.0
// What a GPU is at besides what its runtime tells: clocks and links, for the manifest of a run.
#pragma once

#include <string>

#include "gpu/gpu.h"

namespace awaken::bench {

struct DeviceFacts {
    std::string clocks;  ///< "SM 1980 of 1980 MHz, memory 3201 of 3201 MHz": now, of the most; empty when not told
    std::string links;   ///< "18 NVLinks"; empty when not told
};

/// Asks NVML (libnvidia-ml.so.1, found at run time) or the amdgpu driver's files below `sysfs`. Whatever cannot be told
/// is left empty. `pci_bus_id` as gpu::DeviceInfo has it: "0000:1b:00.0".
[[nodiscard]] DeviceFacts device_facts(gpu::Vendor vendor, const std::string& pci_bus_id,
                                       const std::string& sysfs = "/sys");

}  // namespace awaken::bench
