// Copies, fills and kernels.
#pragma once

#include <algorithm>

#include "calls/entry.h"

namespace awaken::emulator::calls {

template <FrontEnd Api>
int copy_rows(const CopyRequest& request, void* handle, Synchrony synchrony) {
    return work_on_stream<Api>(handle,
                               [&](const auto& stream) { return copy(stream->context(), request, stream, synchrony); });
}

template <FrontEnd Api>
int fill_rows(const FillRequest& request, void* handle, Synchrony synchrony) {
    return work_on_stream<Api>(handle,
                               [&](const auto& stream) { return fill(stream->context(), request, stream, synchrony); });
}

/// `count` elements of `element_bytes` bytes.
[[nodiscard]] inline FillRequest elements(Address address, unsigned element_bytes, std::uint32_t value,
                                          std::size_t count) noexcept {
    return {address, 0, value, element_bytes, count, 1};
}

template <FrontEnd Api>
Error copy_described(const Copy2DParameters* parameters, const std::shared_ptr<Stream>& stream, Synchrony synchrony) {
    if (!parameters) {
        return Error::invalid_value;
    }
    CopyRequest request;
    const Error error = decode(*parameters, Api::host_type(), request);
    return error == Error::success ? copy(stream->context(), request, stream, synchrony) : error;
}

template <FrontEnd Api>
int copy_2d(const Copy2DParameters* parameters, void* handle, Synchrony synchrony) {
    return work_on_stream<Api>(handle,
                               [&](const auto& stream) { return copy_described<Api>(parameters, stream, synchrony); });
}

// ---- kernels ----

/// `name` is the call's name to the program.
template <FrontEnd Api>
int load(const char* name, void** module, const void* image) {
    return in_context<Api>([&](Context& context) {
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

template <FrontEnd Api>
int launch(void* function, const Launch& shape, void* handle, void** arguments, void** extra) {
    return in_context<Api>([&](Context& context) {
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

template <FrontEnd Api>
int most_active_blocks(int* blocks, void* function, int block_size) {
    return call<Api>([&] {
        if (!core().functions.find(function)) {
            return Error::invalid_handle;
        }
        if (!blocks || block_size <= 0) {
            return Error::invalid_value;
        }
        *blocks = block_size > Model::threads_per_block
                      ? 0
                      : std::min(Model::threads_per_multiprocessor / block_size, Model::blocks_per_multiprocessor);
        return Error::success;
    });
}

}  // namespace awaken::emulator::calls
