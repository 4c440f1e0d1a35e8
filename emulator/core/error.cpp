#include "core/error.h"

#include <algorithm>
#include <array>

namespace awaken::emulator {
namespace {

struct Entry {
    Error error;
    const char* capital;
    const char* camel;
    const char* words;
};

constexpr std::array kEntries{
    Entry{Error::success, "SUCCESS", "Success", "no error"},
    Entry{Error::invalid_value, "INVALID_VALUE", "ErrorInvalidValue", "invalid argument"},
    Entry{Error::out_of_memory, "OUT_OF_MEMORY", "ErrorMemoryAllocation", "out of memory"},
    Entry{Error::not_initialized, "NOT_INITIALIZED", "ErrorInitializationError", "initialization error"},
    Entry{Error::deinitialized, "DEINITIALIZED", "ErrorCudartUnloading", "driver shutting down"},
    Entry{Error::invalid_device_pointer, "INVALID_DEVICE_POINTER", "ErrorInvalidDevicePointer",
          "invalid device pointer"},
    Entry{Error::invalid_copy_direction, "INVALID_MEMCPY_DIRECTION", "ErrorInvalidMemcpyDirection",
          "invalid copy direction for memcpy"},
    Entry{Error::no_device, "NO_DEVICE", "ErrorNoDevice", "no GPU device is detected"},
    Entry{Error::invalid_device, "INVALID_DEVICE", "ErrorInvalidDevice", "invalid device ordinal"},
    Entry{Error::invalid_image, "INVALID_IMAGE", "ErrorInvalidKernelImage", "device kernel image is invalid"},
    Entry{Error::invalid_context, "INVALID_CONTEXT", "ErrorDeviceUninitialized", "invalid device context"},
    Entry{Error::map_failed, "MAP_FAILED", "ErrorMapBufferObjectFailed", "mapping of buffer object failed"},
    Entry{Error::no_binary_for_device, "NO_BINARY_FOR_GPU", "ErrorNoKernelImageForDevice",
          "no kernel image is available for execution on the device"},
    Entry{Error::peer_access_unsupported, "PEER_ACCESS_UNSUPPORTED", "ErrorPeerAccessUnsupported",
          "peer access is not supported between these two devices"},
    Entry{Error::file_not_found, "FILE_NOT_FOUND", "ErrorFileNotFound", "file not found"},
    Entry{Error::operating_system, "OPERATING_SYSTEM", "ErrorOperatingSystem",
          "OS call failed or operation not supported on this OS"},
    Entry{Error::invalid_handle, "INVALID_HANDLE", "ErrorInvalidResourceHandle", "invalid resource handle"},
    Entry{Error::not_found, "NOT_FOUND", "ErrorSymbolNotFound", "named symbol not found"},
    Entry{Error::not_ready, "NOT_READY", "ErrorNotReady", "device not ready"},
    Entry{Error::launch_out_of_resources, "LAUNCH_OUT_OF_RESOURCES", "ErrorLaunchOutOfResources",
          "too many resources requested for launch"},
    Entry{Error::peer_access_already_enabled, "PEER_ACCESS_ALREADY_ENABLED", "ErrorPeerAccessAlreadyEnabled",
          "peer access is already enabled"},
    Entry{Error::peer_access_not_enabled, "PEER_ACCESS_NOT_ENABLED", "ErrorPeerAccessNotEnabled",
          "peer access has not been enabled"},
    Entry{Error::context_destroyed, "CONTEXT_IS_DESTROYED", "ErrorContextIsDestroyed", "context is destroyed"},
    Entry{Error::host_memory_already_registered, "HOST_MEMORY_ALREADY_REGISTERED", "ErrorHostMemoryAlreadyRegistered",
          "part or all of the requested memory range is already mapped"},
    Entry{Error::host_memory_not_registered, "HOST_MEMORY_NOT_REGISTERED", "ErrorHostMemoryNotRegistered",
          "pointer does not correspond to a registered memory region"},
    Entry{Error::launch_failed, "LAUNCH_FAILED", "ErrorLaunchFailure", "unspecified launch failure"},
    Entry{Error::not_permitted, "NOT_PERMITTED", "ErrorNotPermitted", "operation not permitted"},
    Entry{Error::not_supported, "NOT_SUPPORTED", "ErrorNotSupported", "operation not supported"},
    Entry{Error::capture_unsupported, "STREAM_CAPTURE_UNSUPPORTED", "ErrorStreamCaptureUnsupported",
          "operation not permitted when stream is capturing"},
    Entry{Error::capture_invalidated, "STREAM_CAPTURE_INVALIDATED", "ErrorStreamCaptureInvalidated",
          "operation failed due to a previous error during capture"},
    Entry{Error::capture_isolation, "STREAM_CAPTURE_ISOLATION", "ErrorStreamCaptureIsolation",
          "dependency created on uncaptured work in another stream"},
    Entry{Error::captured_event, "CAPTURED_EVENT", "ErrorCapturedEvent",
          "operation not permitted on an event last recorded in a capturing stream"},
    Entry{Error::capture_implicit, "STREAM_CAPTURE_IMPLICIT", "ErrorStreamCaptureImplicit",
          "operation would make the legacy stream depend on a capturing blocking stream"},
    Entry{Error::unknown, "UNKNOWN", "ErrorUnknown", "unknown error"},
};

const Entry* find(Error error) noexcept {
    const auto at = std::find_if(kEntries.begin(), kEntries.end(), [&](const Entry& e) { return e.error == error; });
    return at == kEntries.end() ? nullptr : &*at;
}

}  // namespace

const char* description(Error error) noexcept {
    const Entry* entry = find(error);
    return entry ? entry->words : "unrecognized error code";
}

const char* capital_name(Error error) noexcept {
    const Entry* entry = find(error);
    return entry ? entry->capital : nullptr;
}

const char* camel_name(Error error) noexcept {
    const Entry* entry = find(error);
    return entry ? entry->camel : nullptr;
}

}  // namespace awaken::emulator
