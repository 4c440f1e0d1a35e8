// SPDX-License-Identifier: Apache-2.0
// The numbers that mean the same to the CUDA driver and to HIP. tests/unit/gpu_hip_abi_test.cpp compares them with
// HIP's header where one is installed.
#pragma once

namespace awaken::gpu::driver_abi {

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

inline constexpr unsigned kStreamDefault = 0;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureModeGlobal = 0;
inline constexpr int kNotCapturing = 0;
inline constexpr unsigned kNoDestructorSync = 1;  ///< hipUserObjectNoDestructorSync
inline constexpr unsigned kUserObjectMove = 1;    ///< hipGraphUserObjectMove
inline constexpr unsigned kAttachGlobal = 1;      ///< hipMemAttachGlobal
inline constexpr unsigned kHostPortable = 1;
inline constexpr unsigned kHostMapped = 2;
/// hipIpcMemLazyEnablePeerAccess, the one value that opening a handle takes.
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;

struct Uuid {
    unsigned char bytes[16];
};
struct IpcMemHandle {
    unsigned char bytes[64];
};

}  // namespace awaken::gpu::driver_abi
