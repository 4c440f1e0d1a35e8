// SPDX-License-Identifier: Apache-2.0
// The links between two GPUs of one host, as the vendor's management library tells of them: NVML, or ROCm SMI.
#pragma once

#include <optional>
#include <string>

namespace ghost_exchange {

/// A limit in GB/s (10^9), and where it is from; 0 where it is not known.
struct Limit {
    double gb_s = 0;
    std::string source;
};

/// In one direction between the GPUs at two PCI addresses ("0000:1b:00.0"): all links that a pair has, times the
/// nominal rate of one. 0 where they are not connected by NVLink or XGMI. Nothing where the library is not there, or
/// does not tell. `gpu_name` is that of the first.
[[nodiscard]] std::optional<Limit> limit_of_links(const std::string& gpu_name, const std::string& address,
                                                  const std::string& peer);

}  // namespace ghost_exchange
