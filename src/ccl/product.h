// SPDX-License-Identifier: Apache-2.0
// What differs between the vendors' libraries. Internal to src/ccl.
#pragma once

#include "gpu/gpu.h"

namespace awaken::ccl {

/// A vendor's library.
struct Product {
    const char* title;      ///< "NCCL"
    const char* stem;       ///< file name without version: "libnccl"
    const char* remedy;     ///< what to do where there is none
    int first_with_float8;  ///< the version that brought 8-bit floating point numbers
};

/// Null for the none runtime.
[[nodiscard]] const Product* product_of(gpu::Vendor vendor) noexcept;

}  // namespace awaken::ccl
