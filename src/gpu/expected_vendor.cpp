// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "gpu/gpu.h"

namespace awaken::gpu {

Vendor expected_vendor() noexcept {
    if (const char* const emulated = getenv("AWAKEN_EMULATE"); emulated != nullptr && *emulated != '\0') {
        return strncmp(emulated, "hip", 3) == 0 ? Vendor::hip : Vendor::cuda;
    }
    for (const char* const node : {"/dev/nvidiactl", "/dev/nvhost-ctrl-gpu", "/dev/dxg"}) {
        if (access(node, F_OK) == 0) {
            return Vendor::cuda;
        }
    }
    return access("/dev/kfd", F_OK) == 0 ? Vendor::hip : Vendor::none;
}

}  // namespace awaken::gpu
