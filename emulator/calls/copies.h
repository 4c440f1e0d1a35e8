// SPDX-License-Identifier: Apache-2.0
// Copies and fills, and how modules are loaded.
#pragma once

#include "calls/entry.h"

namespace awaken::emulator::calls {

inline int copy_rows(const CopyRequest& request, void* handle, Synchrony synchrony) {
    return work_on_stream(handle,
                          [&](const auto& stream) { return copy(stream->context(), request, stream, synchrony); });
}

inline int copy_bytes(Address destination, Address source, std::size_t bytes, void* handle, Synchrony synchrony) {
    return copy_rows({destination, bytes, source, bytes, bytes, 1}, handle, synchrony);
}

inline int copy_described(const Copy2DParameters* parameters, void* handle, Synchrony synchrony) {
    return work_on_stream(handle, [&](const auto& stream) {
        if (!parameters) {
            return Error::invalid_value;
        }
        CopyRequest request;
        const Error error = decode(*parameters, Api::host_type(), request);
        return error == Error::success ? copy(stream->context(), request, stream, synchrony) : error;
    });
}

inline int fill_rows(const FillRequest& request, void* handle, Synchrony synchrony) {
    return work_on_stream(handle,
                          [&](const auto& stream) { return fill(stream->context(), request, stream, synchrony); });
}

/// `count` elements of `element_bytes` bytes.
[[nodiscard]] inline FillRequest elements(Address address, unsigned element_bytes, std::uint32_t value,
                                          std::size_t count) noexcept {
    return {address, 0, value, element_bytes, count, 1};
}

/// `name` is the call's name to the program.
inline int load(const char* name, void** module, const void* image) {
    return in_context([&](Context& context) {
        if (!module || !image) {
            return Error::invalid_value;
        }
        const void* loaded = nullptr;
        const Error error = load_module(name, context, image, loaded);
        if (error == Error::success) {
            *module = const_cast<void*>(loaded);
        }
        return error;
    });
}

inline int launch(void* function, const Launch& shape, void* handle, void** arguments, void** extra) {
    return in_context([&](Context& context) {
        const std::shared_ptr<Function> found = core().functions.find(function);
        const std::shared_ptr<Stream> stream = core().stream(context, handle);
        if (!found || !stream || found->context != &stream->context()) {
            return Error::invalid_handle;
        }
        stream->context().enter();
        const Error error = default_stream_allowed(*stream);
        return error == Error::success ? launch_kernel(function, shape, stream, arguments, extra) : error;
    });
}

}  // namespace awaken::emulator::calls
