// SPDX-License-Identifier: Apache-2.0
// How much memory the CPU's side may still take.
#pragma once

#include <cstddef>
#include <string>

namespace xtx {

/// Bytes that this process could have without swapping: what the system has available, or less where a control group
/// (a container's, a batch job's), its own or one above it, is limited. The system promises more than either, and takes
/// it back the hard way. `root` stands before /proc and /sys, for tests.
[[nodiscard]] std::size_t free_host_bytes(const std::string& root = "");

}  // namespace xtx
