// SPDX-License-Identifier: Apache-2.0
// The functions by which MPIs tell whether they take device memory. The layer answers them for the program, and asks
// the MPI by them.
#pragma once

#include <array>
#include <optional>

#include "gpu/gpu.h"

namespace awaken::AWAKEN_ABI {

/// A function `int NAME(void)` for one vendor's memory.
struct SupportQuery {
    const char* name;
    gpu::Vendor vendor;
};
inline constexpr SupportQuery kCudaQuery = {"MPIX_Query_cuda_support", gpu::Vendor::cuda};
inline constexpr SupportQuery kRocmQuery = {"MPIX_Query_rocm_support", gpu::Vendor::hip};
inline constexpr SupportQuery kHipQuery = {"MPIX_Query_hip_support", gpu::Vendor::hip};
inline constexpr std::array kSupportQueries = {kCudaQuery, kRocmQuery, kHipQuery};

/// MPICH's function for all vendors, `int NAME(int kind, int* is_supported)`.
inline constexpr const char* kQueryByKind = "MPIX_GPU_query_support";

/// MPICH's number for a vendor's memory.
[[nodiscard]] constexpr int kind_of(const gpu::Vendor vendor) noexcept {
    return vendor == gpu::Vendor::hip ? 2 : 0;
}

/// The vendor of MPICH's number; none for a kind that the layer does not serve.
[[nodiscard]] constexpr std::optional<gpu::Vendor> vendor_of(const int kind) noexcept {
    for (const gpu::Vendor vendor : gpu::kVendors) {
        if (kind == kind_of(vendor)) {
            return vendor;
        }
    }
    return std::nullopt;
}

}  // namespace awaken::AWAKEN_ABI
