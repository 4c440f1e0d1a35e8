// SPDX-License-Identifier: Apache-2.0
// One enumeration of errors for all front ends: the CUDA driver's numbers, which the CUDA runtime (since 10.1) and HIP
// share. Where a vendor answers another number in some situation, its front end translates.
#pragma once

/// Each with its number, the enumerator's name without a vendor's prefix in capitals, the same in camel case as the
/// runtimes of both vendors spell it, and a description.
#define AWAKEN_EMULATED_ERRORS(X)                                                                                  \
    X(success, 0, "SUCCESS", "Success", "no error")                                                                \
    X(invalid_value, 1, "INVALID_VALUE", "ErrorInvalidValue", "invalid argument")                                  \
    X(out_of_memory, 2, "OUT_OF_MEMORY", "ErrorMemoryAllocation", "out of memory")                                 \
    X(not_initialized, 3, "NOT_INITIALIZED", "ErrorInitializationError", "initialization error")                   \
    X(deinitialized, 4, "DEINITIALIZED", "ErrorCudartUnloading", "driver shutting down")                           \
    X(invalid_device_pointer, 17, "INVALID_DEVICE_POINTER", "ErrorInvalidDevicePointer", "invalid device pointer") \
    X(invalid_copy_direction, 21, "INVALID_MEMCPY_DIRECTION", "ErrorInvalidMemcpyDirection",                       \
      "invalid copy direction for memcpy")                                                                         \
    X(no_device, 100, "NO_DEVICE", "ErrorNoDevice", "no GPU device is detected")                                   \
    X(invalid_device, 101, "INVALID_DEVICE", "ErrorInvalidDevice", "invalid device ordinal")                       \
    X(invalid_image, 200, "INVALID_IMAGE", "ErrorInvalidKernelImage", "device kernel image is invalid")            \
    X(invalid_context, 201, "INVALID_CONTEXT", "ErrorDeviceUninitialized", "invalid device context")               \
    X(map_failed, 205, "MAP_FAILED", "ErrorMapBufferObjectFailed", "mapping of buffer object failed")              \
    X(no_binary_for_device, 209, "NO_BINARY_FOR_GPU", "ErrorNoKernelImageForDevice",                               \
      "no kernel image is available for execution on the device")                                                  \
    X(peer_access_unsupported, 217, "PEER_ACCESS_UNSUPPORTED", "ErrorPeerAccessUnsupported",                       \
      "peer access is not supported between these two devices")                                                    \
    X(file_not_found, 301, "FILE_NOT_FOUND", "ErrorFileNotFound", "file not found")                                \
    X(operating_system, 304, "OPERATING_SYSTEM", "ErrorOperatingSystem",                                           \
      "OS call failed or operation not supported on this OS")                                                      \
    X(invalid_handle, 400, "INVALID_HANDLE", "ErrorInvalidResourceHandle", "invalid resource handle")              \
    X(not_found, 500, "NOT_FOUND", "ErrorSymbolNotFound", "named symbol not found")                                \
    X(not_ready, 600, "NOT_READY", "ErrorNotReady", "device not ready")                                            \
    X(launch_out_of_resources, 701, "LAUNCH_OUT_OF_RESOURCES", "ErrorLaunchOutOfResources",                        \
      "too many resources requested for launch")                                                                   \
    X(peer_access_already_enabled, 704, "PEER_ACCESS_ALREADY_ENABLED", "ErrorPeerAccessAlreadyEnabled",            \
      "peer access is already enabled")                                                                            \
    X(peer_access_not_enabled, 705, "PEER_ACCESS_NOT_ENABLED", "ErrorPeerAccessNotEnabled",                        \
      "peer access has not been enabled")                                                                          \
    X(context_destroyed, 709, "CONTEXT_IS_DESTROYED", "ErrorContextIsDestroyed", "context is destroyed")           \
    X(host_memory_already_registered, 712, "HOST_MEMORY_ALREADY_REGISTERED", "ErrorHostMemoryAlreadyRegistered",   \
      "part or all of the requested memory range is already mapped")                                               \
    X(host_memory_not_registered, 713, "HOST_MEMORY_NOT_REGISTERED", "ErrorHostMemoryNotRegistered",               \
      "pointer does not correspond to a registered memory region")                                                 \
    X(launch_failed, 719, "LAUNCH_FAILED", "ErrorLaunchFailure", "unspecified launch failure")                     \
    X(not_permitted, 800, "NOT_PERMITTED", "ErrorNotPermitted", "operation not permitted")                         \
    X(not_supported, 801, "NOT_SUPPORTED", "ErrorNotSupported", "operation not supported")                         \
    X(capture_unsupported, 900, "STREAM_CAPTURE_UNSUPPORTED", "ErrorStreamCaptureUnsupported",                     \
      "operation not permitted when stream is capturing")                                                          \
    X(capture_invalidated, 901, "STREAM_CAPTURE_INVALIDATED", "ErrorStreamCaptureInvalidated",                     \
      "operation failed due to a previous error during capture")                                                   \
    X(capture_isolation, 905, "STREAM_CAPTURE_ISOLATION", "ErrorStreamCaptureIsolation",                           \
      "dependency created on uncaptured work in another stream")                                                   \
    X(capture_implicit, 906, "STREAM_CAPTURE_IMPLICIT", "ErrorStreamCaptureImplicit",                              \
      "operation would make the legacy stream depend on a capturing blocking stream")                              \
    X(captured_event, 907, "CAPTURED_EVENT", "ErrorCapturedEvent",                                                 \
      "operation not permitted on an event last recorded in a capturing stream")                                   \
    X(unknown, 999, "UNKNOWN", "ErrorUnknown", "unknown error")

namespace awaken::emulator {

enum class Error : int {
#define AWAKEN_NUMBER_ERROR(name, number, ...) name = (number),
    AWAKEN_EMULATED_ERRORS(AWAKEN_NUMBER_ERROR)
#undef AWAKEN_NUMBER_ERROR
};

/// "out of memory". Static.
[[nodiscard]] const char* description(Error error) noexcept;
/// "OUT_OF_MEMORY"; null for a number that is no error.
[[nodiscard]] const char* capital_name(Error error) noexcept;
/// "ErrorMemoryAllocation"; null likewise.
[[nodiscard]] const char* camel_name(Error error) noexcept;

}  // namespace awaken::emulator
