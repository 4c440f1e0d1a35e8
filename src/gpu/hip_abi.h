// SPDX-License-Identifier: Apache-2.0
// The binary interface of the HIP runtime: the numbers and layouts of hip_runtime_api.h that hip.cpp relies on. With
// them the build needs no ROCm. tests/unit/gpu_hip_abi.cpp compares them with the real header where one is installed.
#pragma once

#include <cstddef>

namespace awaken::gpu::hip_abi {

using Result = int;
using Stream = void*;
using Event = void*;
using Module = void*;
using Function = void*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorDeinitialized = 4;
inline constexpr Result kErrorInvalidDevice = 101;
inline constexpr Result kErrorInvalidHandle = 400;
inline constexpr Result kErrorNotReady = 600;
inline constexpr Result kErrorPeerAccessAlreadyEnabled = 704;
inline constexpr Result kErrorContextIsDestroyed = 709;
inline constexpr Result kErrorCaptureUnsupported = 900;
inline constexpr Result kErrorCaptureImplicit = 906;

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

inline constexpr int kCopyDefault = 4;  ///< hipMemcpyDefault: the runtime looks at the addresses
inline constexpr unsigned kStreamDefault = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureModeGlobal = 0;      ///< hipStreamCaptureModeGlobal
inline constexpr int kCaptureModeRelaxed = 2;     ///< hipStreamCaptureModeRelaxed
inline constexpr int kNotCapturing = 0;           ///< hipStreamCaptureStatusNone
inline constexpr unsigned kNoDestructorSync = 1;  ///< hipUserObjectNoDestructorSync
inline constexpr unsigned kUserObjectMove = 1;    ///< hipGraphUserObjectMove
inline constexpr unsigned kAttachGlobal = 1;      ///< hipMemAttachGlobal
inline constexpr unsigned kHostMallocPortable = 1;
inline constexpr unsigned kHostMallocMapped = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterMapped = 2;

/// hipIpcMemLazyEnablePeerAccess, the one value that hipIpcOpenMemHandle accepts. It was 0 in early HIP 5 and became 1.
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr unsigned kIpcLazyEnablePeerAccessEarly = 0;

/// The HSA runtime beneath HIP: its functions answer so as long as nobody has initialised it.
inline constexpr int kHsaErrorNotInitialised = 0x100B;
inline constexpr int kHsaSystemInfoVersionMajor = 0;  ///< 16 bits wide

struct Uuid {
    unsigned char bytes[16];
};
struct IpcMemHandle {
    unsigned char bytes[64];
};

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
