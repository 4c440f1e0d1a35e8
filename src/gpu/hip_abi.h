// SPDX-License-Identifier: Apache-2.0
// The binary interface of the HIP runtime: the numbers and layouts of hip_runtime_api.h that hip.cpp relies on. With
// them the build needs no ROCm. tests/unit/gpu_hip_abi_test.cpp compares them with the real header where one is
// installed.
#pragma once

#include <cstddef>

#include "gpu/driver_abi.h"

namespace awaken::gpu::hip_abi {

using namespace driver_abi;

/// hipMemoryType up to HIP 5 ...
struct MemoryType5 {
    static constexpr int kHost = 0;
    static constexpr int kDevice = 1;
    static constexpr int kArray = 2;
    static constexpr int kUnified = 3;
};
/// ... and from HIP 6 on, where it became CUDA's. The meaning of 1 changed from device to host.
struct MemoryType6 {
    static constexpr int kUnregistered = 0;
    static constexpr int kHost = 1;
    static constexpr int kDevice = 2;
    static constexpr int kManaged = 3;
    static constexpr int kArray = 10;
    static constexpr int kUnified = 11;
};

/// hipPointerAttribute_t: the same layout in all versions (the first member was called memoryType, then type).
struct PointerAttributes {
    int type;
    int device;
    void* device_pointer;
    void* host_pointer;
    int is_managed;
    unsigned allocation_flags;
};

/// hipPointer_attribute, for hipPointerGetAttribute.
inline constexpr int kPointerBufferId = 7;
inline constexpr int kPointerIsLegacyIpcCapable = 10;

/// hipDeviceAttribute_t.
inline constexpr int kDeviceMultiprocessorCount = 63;
inline constexpr int kDeviceIsLargeBar = 10011;

inline constexpr int kCopyDefault = 4;         ///< hipMemcpyDefault: the runtime looks at the addresses
inline constexpr int kCaptureModeRelaxed = 2;  ///< hipStreamCaptureModeRelaxed

/// hipIpcMemLazyEnablePeerAccess in early HIP 5.
inline constexpr unsigned kIpcLazyEnablePeerAccessEarly = 0;

/// The HSA runtime beneath HIP: its functions answer so as long as nobody has initialised it.
inline constexpr int kHsaErrorNotInitialised = 0x100B;
inline constexpr int kHsaSystemInfoVersionMajor = 0;  ///< 16 bits wide

/// We read hipDeviceProp_t only for gcnArchName, which no attribute gives. There are two layouts: that of
/// hipGetDeviceProperties, and that of hipGetDevicePropertiesR0600, which HIP 6 introduced.
struct DeviceProperties {
    static constexpr std::size_t kSize = 792;
    static constexpr std::size_t kArchitectureOffset = 396;
};
struct DevicePropertiesR0600 {
    static constexpr std::size_t kSize = 1472;
    static constexpr std::size_t kArchitectureOffset = 1160;
};
inline constexpr std::size_t kArchitectureLength = 256;

/// HIP_VERSION: major * 10000000 + minor * 100000 + patch.
[[nodiscard]] constexpr int major_version(int version) noexcept {
    return version / 10000000;
}
[[nodiscard]] constexpr int minor_version(int version) noexcept {
    return version % 10000000 / 100000;
}

}  // namespace awaken::gpu::hip_abi
