// SPDX-License-Identifier: Apache-2.0
// Whether a process can use the GPU memory of another one: tried between this process and a child of it.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::topology {

struct IpcResult {
    int owner = 0;   ///< the device whose memory is mapped
    int device = 0;  ///< the device that it is mapped for, in the other process
    bool works = false;
    std::string why_not;
};

/// The word by which this program is told to be the other process.
inline constexpr const char* kIpcChildWord = "--ipc-child";

/// For each ordered pair of devices, a device with itself included: whether the child maps the memory and reads what is
/// in it. A child that crashes fails the pair at which it did, and those behind it are given to another child.
[[nodiscard]] std::vector<IpcResult> try_ipc(gpu::Runtime& runtime, const std::vector<int>& devices);

/// Two digits a byte.
[[nodiscard]] std::string hexadecimal(std::span<const unsigned char> bytes);

/// What the child does: answers requests from stdin on stdout until there are no more. Returns its exit status.
[[nodiscard]] int serve_ipc_requests(gpu::Runtime& runtime);

}  // namespace awaken::topology
