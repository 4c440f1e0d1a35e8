// Calls of the two run-time libraries, which HIP took over from CUDA's.
//
// Included once by each of their .cpp files, which says what `Api` is, and how names begin (AWAKEN_CALL).
#pragma once

#include "calls/runtime.h"

// ---- errors ----

AWAKEN_EXPORT const char* AWAKEN_CALL(GetErrorString)(int error) {
    return description(static_cast<Error>(error));
}
AWAKEN_EXPORT int AWAKEN_CALL(GetLastError)() {
    return last_error();
}
AWAKEN_EXPORT int AWAKEN_CALL(PeekAtLastError)() {
    return static_cast<int>(thread_state().last_error);
}

// ---- devices ----

AWAKEN_EXPORT int AWAKEN_CALL(GetDeviceCount)(int* count) {
    if (count) {
        *count = 0;
    }
    return device_count<Api>(count);
}

AWAKEN_EXPORT int AWAKEN_CALL(SetDevice)(int device) {
    return on_device<Api>(device, [&](Device&) {
        use_device(device);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(GetDevice)(int* device) {
    return call<Api>([&] {
        const Context* const context = thread_state().current();
        return put(device, context ? context->device : 0);
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(SetDeviceFlags)(unsigned flags) {
    return in_context<Api>([&](Context& context) {
        context.flags = flags;
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(GetDeviceFlags)(unsigned* flags) {
    return context_flags<Api>(flags);
}
AWAKEN_EXPORT int AWAKEN_CALL(DeviceSynchronize)() {
    return synchronize_context<Api>();
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceReset)() {
    return in_context<Api>([](const Context& context) {
        core().reset_primary(context.device);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetStreamPriorityRange)(int* least, int* greatest) {
    return stream_priorities<Api>(least, greatest);
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceEnablePeerAccess)(int peer, unsigned flags) {
    return in_context<Api>([&](Context& context) {
        if (flags != 0) {
            return Error::invalid_value;
        }
        return core().valid_device(peer) ? enable_peer(context, peer) : Error::invalid_device;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceDisablePeerAccess)(int peer) {
    return in_context<Api>([&](Context& context) {
        return core().valid_device(peer) ? disable_peer(context, peer) : Error::invalid_device;
    });
}

// ---- memory ----

AWAKEN_EXPORT int AWAKEN_CALL(MemGetInfo)(std::size_t* free_bytes, std::size_t* total) {
    return memory_info<Api>(free_bytes, total);
}
AWAKEN_EXPORT int AWAKEN_CALL(Malloc)(Address* address, std::size_t bytes) {
    return allocate_memory<Api>(address, bytes);
}

AWAKEN_EXPORT int AWAKEN_CALL(MallocPitch)(Address* address, std::size_t* pitch, std::size_t width,
                                           std::size_t height) {
    if (!pitch) {
        return Api::result(Error::invalid_value);
    }
    *pitch = (width + Api::pitch_alignment - 1) / Api::pitch_alignment * Api::pitch_alignment;
    return allocate_memory<Api>(address, *pitch * height);
}

AWAKEN_EXPORT int AWAKEN_CALL(HostAlloc)(Address* address, std::size_t bytes, unsigned flags) {
    return allocate_pinned<Api>(address, bytes, flags);
}
AWAKEN_EXPORT int AWAKEN_CALL(MallocHost)(Address* address, std::size_t bytes) {
    return allocate_pinned<Api>(address, bytes, 0);
}
AWAKEN_EXPORT int AWAKEN_CALL(HostGetDevicePointer)(Address* device, Address host, unsigned) {
    return device_address<Api>(device, host, 0);
}
AWAKEN_EXPORT int AWAKEN_CALL(HostGetFlags)(unsigned* flags, Address host) {
    return host_memory_flags<Api>(flags, host);
}
AWAKEN_EXPORT int AWAKEN_CALL(HostRegister)(Address address, std::size_t bytes, unsigned flags) {
    return register_memory<Api>(address, bytes, flags);
}
AWAKEN_EXPORT int AWAKEN_CALL(HostUnregister)(Address address) {
    return unregister_memory<Api>(AWAKEN_NAME(HostUnregister), address);
}
AWAKEN_EXPORT int AWAKEN_CALL(MallocManaged)(Address* address, std::size_t bytes, unsigned flags) {
    return allocate_managed<Api>(address, bytes, flags);
}

// ---- memory in the order of a stream ----

AWAKEN_EXPORT int AWAKEN_CALL(MallocFromPoolAsync)(Address* address, std::size_t bytes, void* handle, void* stream) {
    return allocate_from<Api>(handle, address, bytes, stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(MallocAsync)(Address* address, std::size_t bytes, void* handle) {
    return allocate_in_order<Api>(address, bytes, handle);
}
AWAKEN_EXPORT int AWAKEN_CALL(FreeAsync)(Address address, void* handle) {
    return free_memory_in_order<Api>(address, handle);
}

// ---- copies and fills ----

AWAKEN_EXPORT int AWAKEN_CALL(Memcpy)(Address destination, Address source, std::size_t bytes, int kind) {
    return copy_bytes<Api>(destination, source, bytes, kind, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemcpyAsync)(Address destination, Address source, std::size_t bytes, int kind,
                                           void* stream) {
    return copy_bytes<Api>(destination, source, bytes, kind, stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemcpyPeer)(Address destination, int, Address source, int, std::size_t bytes) {
    return copy_bytes<Api>(destination, source, bytes, kAnyDirection, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemcpyPeerAsync)(Address destination, int, Address source, int, std::size_t bytes,
                                               void* stream) {
    return copy_bytes<Api>(destination, source, bytes, kAnyDirection, stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memcpy2D)(Address destination, std::size_t destination_pitch, Address source,
                                        std::size_t source_pitch, std::size_t width, std::size_t height, int kind) {
    return copy_rows<Api>({destination, destination_pitch, source, source_pitch, width, height}, kind, nullptr,
                          Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memcpy2DAsync)(Address destination, std::size_t destination_pitch, Address source,
                                             std::size_t source_pitch, std::size_t width, std::size_t height, int kind,
                                             void* stream) {
    return copy_rows<Api>({destination, destination_pitch, source, source_pitch, width, height}, kind, stream,
                          Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memset)(Address address, int value, std::size_t bytes) {
    return fill_bytes<Api>(address, 0, value, bytes, 1, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemsetAsync)(Address address, int value, std::size_t bytes, void* stream) {
    return fill_bytes<Api>(address, 0, value, bytes, 1, stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memset2D)(Address address, std::size_t pitch, int value, std::size_t width,
                                        std::size_t height) {
    return fill_bytes<Api>(address, pitch, value, width, height, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memset2DAsync)(Address address, std::size_t pitch, int value, std::size_t width,
                                             std::size_t height, void* stream) {
    return fill_bytes<Api>(address, pitch, value, width, height, stream, Synchrony::stream);
}

// ---- streams ----

AWAKEN_EXPORT int AWAKEN_CALL(StreamCreate)(void** stream) {
    return create_stream<Api>(stream, 0, 0);
}
AWAKEN_EXPORT int AWAKEN_CALL(StreamCreateWithFlags)(void** stream, unsigned flags) {
    return create_stream<Api>(stream, flags, 0);
}
AWAKEN_EXPORT int AWAKEN_CALL(StreamDestroy)(void* handle) {
    return destroy_stream<Api>(handle);
}

AWAKEN_EXPORT int AWAKEN_CALL(ThreadExchangeStreamCaptureMode)(int* mode) {
    return call<Api>([&] { return exchange_mode(mode); });
}

// ---- events ----

AWAKEN_EXPORT int AWAKEN_CALL(EventCreate)(void** event) {
    return create_event<Api>(event, 0);
}
AWAKEN_EXPORT int AWAKEN_CALL(EventCreateWithFlags)(void** event, unsigned flags) {
    return create_event<Api>(event, flags);
}
AWAKEN_EXPORT int AWAKEN_CALL(EventDestroy)(void* handle) {
    return destroy_event<Api>(handle);
}
