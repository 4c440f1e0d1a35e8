// SPDX-License-Identifier: Apache-2.0
// Which GPU runtime the user asked for (AWAKEN_GPU).
#pragma once

#include <cstdint>

namespace awaken::gpu {

enum class Choice : std::uint8_t {
    automatic,  ///< the one that the program has loaded
    cuda,       ///< the CUDA driver, loaded by us if need be
    hip,        ///< the HIP runtime, loaded by us if need be
    none        ///< never look
};

}  // namespace awaken::gpu
