// SPDX-License-Identifier: Apache-2.0
// Calls of the two run-time libraries, which HIP took over from CUDA's.
//
// CUDA's names of the forms for a default stream per thread are in a table in cuda_runtime.cpp.
#pragma once

#include <utility>

#include "calls/copies.h"
#include "calls/memory.h"
#include "runtime_state.h"

namespace awaken::emulator::calls {

template <typename Api>
concept Runtime = requires {
    // Whether it is a direction of a copy.
    { Api::valid_kind(int{}) } -> std::same_as<bool>;
    // Of rows in memory.
    { Api::pitch_alignment } -> std::convertible_to<std::size_t>;
};
static_assert(Runtime<Api>);

// Calls without a stream use the legacy default stream; the forms for a default stream per thread use the calling
// thread's own.
inline void* const kPerThread = reinterpret_cast<void*>(2);

/// What the handle 0 means in those forms.
[[nodiscard]] inline void* or_per_thread(void* stream) noexcept {
    return stream ? stream : kPerThread;
}

constexpr int kAnyDirection = 4;  // cudaMemcpyDefault, hipMemcpyDefault

inline int copy_rows(const CopyRequest& request, int kind, void* handle, Synchrony synchrony) {
    return work_on_stream(handle, [&](const auto& stream) {
        return Api::valid_kind(kind) ? copy(stream->context(), request, stream, synchrony)
                                     : Error::invalid_copy_direction;
    });
}

inline int copy_bytes(Address destination, Address source, std::size_t bytes, int kind, void* stream,
                      Synchrony synchrony) {
    return copy_rows({destination, bytes, source, bytes, bytes, 1}, kind, stream, synchrony);
}

/// `rows` rows of `width` bytes that all are the last one of `value`.
inline int fill_bytes(Address address, std::size_t pitch, int value, std::size_t width, std::size_t rows, void* stream,
                      Synchrony synchrony) {
    return fill_rows({address, pitch, static_cast<std::uint32_t>(value) & 0xffU, 1, width, rows}, stream, synchrony);
}

}  // namespace awaken::emulator::calls

// ---- errors ----

AWAKEN_EXPORT const char* AWAKEN_CALL(GetErrorString)(int error) {
    return description(static_cast<Error>(error));
}
AWAKEN_EXPORT int AWAKEN_CALL(GetLastError)() {
    return static_cast<int>(std::exchange(thread_state().last_error, Error::success));
}
AWAKEN_EXPORT int AWAKEN_CALL(PeekAtLastError)() {
    return static_cast<int>(thread_state().last_error);
}

// ---- devices ----

AWAKEN_EXPORT int AWAKEN_CALL(GetDeviceCount)(int* count) {
    if (count) {
        *count = 0;
    }
    return call([&] { return put(count, core().device_count()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(SetDevice)(int device) {
    return on_device(device, [&](Device&) {
        use_device(device);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(GetDevice)(int* device) {
    return call([&] {
        const Context* const context = thread_state().current();
        return put(device, context ? context->device : 0);
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(SetDeviceFlags)(unsigned flags) {
    return in_context([&](Context& context) {
        context.flags = flags;
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceReset)() {
    return in_context([](const Context& context) {
        core().reset_primary(context.device);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceEnablePeerAccess)(int peer, unsigned flags) {
    return in_context([&](Context& context) {
        if (flags != 0) {
            return Error::invalid_value;
        }
        return core().valid_device(peer) ? enable_peer(context, peer) : Error::invalid_device;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceDisablePeerAccess)(int peer) {
    return in_context([&](Context& context) {
        return core().valid_device(peer) ? disable_peer(context, peer) : Error::invalid_device;
    });
}

// ---- memory ----

AWAKEN_EXPORT int AWAKEN_CALL(MallocPitch)(Address* address, std::size_t* pitch, std::size_t width,
                                           std::size_t height) {
    if (!pitch) {
        return Api::result(Error::invalid_value);
    }
    *pitch = (width + Api::pitch_alignment - 1) / Api::pitch_alignment * Api::pitch_alignment;
    return AWAKEN_CALL(Malloc)(address, *pitch * height);
}

AWAKEN_EXPORT int AWAKEN_CALL(HostGetDevicePointer)(Address* device, Address host, unsigned) {
    return device_address(device, host, 0);
}
// ---- copies and fills ----

AWAKEN_EXPORT int AWAKEN_CALL(Memcpy)(Address destination, Address source, std::size_t bytes, int kind) {
    return copy_bytes(destination, source, bytes, kind, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemcpyAsync)(Address destination, Address source, std::size_t bytes, int kind,
                                           void* stream) {
    return copy_bytes(destination, source, bytes, kind, stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemcpyPeer)(Address destination, int, Address source, int, std::size_t bytes) {
    return copy_bytes(destination, source, bytes, kAnyDirection, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemcpyPeerAsync)(Address destination, int, Address source, int, std::size_t bytes,
                                               void* stream) {
    return copy_bytes(destination, source, bytes, kAnyDirection, stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memcpy2D)(Address destination, std::size_t destination_pitch, Address source,
                                        std::size_t source_pitch, std::size_t width, std::size_t height, int kind) {
    return copy_rows({destination, destination_pitch, source, source_pitch, width, height}, kind, nullptr,
                     Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memcpy2DAsync)(Address destination, std::size_t destination_pitch, Address source,
                                             std::size_t source_pitch, std::size_t width, std::size_t height, int kind,
                                             void* stream) {
    return copy_rows({destination, destination_pitch, source, source_pitch, width, height}, kind, stream,
                     Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memset)(Address address, int value, std::size_t bytes) {
    return fill_bytes(address, 0, value, bytes, 1, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemsetAsync)(Address address, int value, std::size_t bytes, void* stream) {
    return fill_bytes(address, 0, value, bytes, 1, stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memset2D)(Address address, std::size_t pitch, int value, std::size_t width,
                                        std::size_t height) {
    return fill_bytes(address, pitch, value, width, height, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memset2DAsync)(Address address, std::size_t pitch, int value, std::size_t width,
                                             std::size_t height, void* stream) {
    return fill_bytes(address, pitch, value, width, height, stream, Synchrony::stream);
}

// ---- the same in a default stream per thread ----

AWAKEN_EXPORT int AWAKEN_CALL(Memcpy_spt)(Address destination, Address source, std::size_t bytes, int kind) {
    return copy_bytes(destination, source, bytes, kind, kPerThread, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemcpyAsync_spt)(Address destination, Address source, std::size_t bytes, int kind,
                                               void* stream) {
    return copy_bytes(destination, source, bytes, kind, or_per_thread(stream), Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(Memset_spt)(Address address, int value, std::size_t bytes) {
    return fill_bytes(address, 0, value, bytes, 1, kPerThread, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(StreamQuery_spt)(void* stream) {
    return AWAKEN_CALL(StreamQuery)(or_per_thread(stream));
}
AWAKEN_EXPORT int AWAKEN_CALL(StreamSynchronize_spt)(void* stream) {
    return AWAKEN_CALL(StreamSynchronize)(or_per_thread(stream));
}
AWAKEN_EXPORT int AWAKEN_CALL(EventRecord_spt)(void* event, void* stream) {
    return AWAKEN_CALL(EventRecord)(event, or_per_thread(stream));
}

// ---- streams ----

AWAKEN_EXPORT int AWAKEN_CALL(StreamCreate)(void** stream) {
    return AWAKEN_CALL(StreamCreateWithPriority)(stream, 0, 0);
}
AWAKEN_EXPORT int AWAKEN_CALL(ThreadExchangeStreamCaptureMode)(int* mode) {
    return call([&] { return exchange_capture_mode(mode); });
}

// ---- events ----

AWAKEN_EXPORT int AWAKEN_CALL(EventCreate)(void** event) {
    return AWAKEN_CALL(EventCreateWithFlags)(event, 0);
}
