// Calls that the two run-time libraries (CUDA's and HIP's) have, and the driver has not, or in another form.
#pragma once

#include "calls/copies.h"
#include "calls/devices.h"
#include "calls/memory.h"
#include "calls/streams.h"
#include "runtime_state.h"

namespace awaken::emulator::calls {

template <typename Api>
concept Runtime = FrontEnd<Api> && requires {
    // Whether it is a direction of a copy.
    { Api::valid_kind(int{}) } -> std::same_as<bool>;
    // Of rows in memory.
    { Api::pitch_alignment } -> std::convertible_to<std::size_t>;
};

inline int last_error() {
    return static_cast<int>(std::exchange(thread_state().last_error, Error::success));
}

// ---- devices ----

template <Runtime Api>
int count_devices(int* count) {
    if (count) {
        *count = 0;
    }
    return device_count<Api>(count);
}

template <Runtime Api>
int set_device(int device) {
    return on_device<Api>(device, [&](Device&) {
        use_device(device);
        return Error::success;
    });
}

template <Runtime Api>
int current_device(int* device) {
    return call<Api>([&] {
        const Context* const context = thread_state().current();
        return put(device, context ? context->device : 0);
    });
}

template <Runtime Api>
int set_context_flags(unsigned flags) {
    return in_context<Api>([&](Context& context) {
        context.flags = flags;
        return Error::success;
    });
}

template <Runtime Api>
int reset_device() {
    return in_context<Api>([](const Context& context) {
        core().reset_primary(context.device);
        return Error::success;
    });
}

template <Runtime Api>
int enable_access(int peer, unsigned flags) {
    return in_context<Api>([&](Context& context) {
        if (flags != 0) {
            return Error::invalid_value;
        }
        return core().valid_device(peer) ? enable_peer(context, peer) : Error::invalid_device;
    });
}

template <Runtime Api>
int disable_access(int peer) {
    return in_context<Api>([&](Context& context) {
        return core().valid_device(peer) ? disable_peer(context, peer) : Error::invalid_device;
    });
}

// ---- memory ----

template <Runtime Api>
int allocate_rows(Address* address, std::size_t* pitch, std::size_t width, std::size_t height) {
    if (!pitch) {
        return Api::result(Error::invalid_value);
    }
    *pitch = (width + Api::pitch_alignment - 1) / Api::pitch_alignment * Api::pitch_alignment;
    return allocate_memory<Api>(address, *pitch * height);
}

// Calls without a stream use the legacy default stream; the forms for a default stream per thread (_ptds, _ptsz, _spt)
// use the calling thread's own.
inline void* const kPerThread = reinterpret_cast<void*>(2);

/// What the handle 0 means in those forms.
[[nodiscard]] inline void* or_per_thread(void* stream) noexcept {
    return stream ? stream : kPerThread;
}

template <Runtime Api>
int copy_rows(const CopyRequest& request, int kind, void* handle, Synchrony synchrony) {
    return work_on_stream<Api>(handle, [&](const auto& stream) {
        return Api::valid_kind(kind) ? copy(stream->context(), request, stream, synchrony)
                                     : Error::invalid_copy_direction;
    });
}

template <Runtime Api>
int copy_bytes(Address destination, Address source, std::size_t bytes, int kind, void* stream, Synchrony synchrony) {
    return copy_rows<Api>({destination, bytes, source, bytes, bytes, 1}, kind, stream, synchrony);
}

/// `rows` rows of `width` bytes that all are the last one of `value`.
template <Runtime Api>
int fill_bytes(Address address, std::size_t pitch, int value, std::size_t width, std::size_t rows, void* stream,
               Synchrony synchrony) {
    return fill_rows<Api>({address, pitch, static_cast<std::uint32_t>(value) & 0xffU, 1, width, rows}, stream,
                          synchrony);
}

}  // namespace awaken::emulator::calls
