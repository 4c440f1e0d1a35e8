// SPDX-License-Identifier: Apache-2.0
// Calls of CUDA's driver that HIP took over.
//
// The driver's own names for some are in a table in cuda_driver.cpp.
#pragma once

#include <algorithm>

#include "calls/copies.h"
#include "calls/devices.h"
#include "calls/memory.h"

// ---- devices ----

/// Devices are their numbers.
AWAKEN_EXPORT int AWAKEN_CALL(DeviceGet)(int* device, int ordinal) {
    return on_device(ordinal, [&](Device&) { return put(device, ordinal); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetName)(char* name, int length, int device) {
    return on_device(device, [&](const Device& found) { return put_device_text(name, length, found.name); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetUuid)(void* uuid, int device) {
    return on_device(device, [&](const Device& found) {
        if (!uuid) {
            return Error::invalid_value;
        }
        std::memcpy(uuid, found.uuid, sizeof found.uuid);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceTotalMem)(std::size_t* bytes, int device) {
    return on_device(device, [&](const Device& found) { return put(bytes, found.memory_bytes); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceComputeCapability)(int* major, int* minor, int device) {
    return on_device(device, [&](Device&) {
        if (!major || !minor) {
            return Error::invalid_value;
        }
        *major = Model::compute_major;
        *minor = Model::compute_minor;
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetByPCIBusId)(int* device, const char* text) {
    return device_at_bus_id(device, text);
}

// ---- contexts ----

AWAKEN_EXPORT int AWAKEN_CALL(DevicePrimaryCtxRetain)(void** context, int device) {
    return on_device(device, [&](Device&) {
        if (!context) {
            return Error::invalid_value;
        }
        core().retain_primary(device);
        *context = &core().primary(device);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxGetCurrent)(void** context) {
    return call([&] { return put(context, thread_state().current()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxSetCurrent)(void* handle) {
    return call([&] {
        Context* const context = handle ? core().find_context(handle) : nullptr;
        if (handle && (!context || !Api::usable(*context))) {
            return Error::invalid_context;
        }
        thread_state().set_current(context);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxPushCurrent)(void* handle) {
    return call([&] {
        Context* const context = core().find_context(handle);
        if (!context || !Api::usable(*context)) {
            return Error::invalid_context;
        }
        thread_state().contexts.push_back(context);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxPopCurrent)(void** popped) {
    return call([&] {
        ThreadState& state = thread_state();
        if (state.contexts.empty()) {
            return Error::invalid_context;
        }
        if (popped) {
            *popped = state.current();
        }
        state.contexts.pop_back();
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxGetDevice)(int* device) {
    return in_context([&](const Context& context) { return put(device, context.device); });
}

// ---- memory ----

AWAKEN_EXPORT int AWAKEN_CALL(MemPrefetchAsync)(Address address, std::size_t, int, void* handle) {
    return prefetch(address, handle);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemAdvise)(Address address, std::size_t, int, int) {
    return advise(address);
}

AWAKEN_EXPORT int AWAKEN_CALL(PointerGetAttribute)(void* data, int attribute, Address address) {
    count_pointer_query();
    return call([&] {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        return allocation ? put_attribute(allocation.get(), address, attribute, data) : Error::invalid_value;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DrvPointerGetAttributes)(unsigned count, const int* attributes, void** data,
                                                       Address address) {
    count_pointer_query();
    return call([&] {
        if (count != 0 && (!attributes || !data)) {
            return Error::invalid_value;
        }
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        for (unsigned position = 0; position < count; ++position) {
            const Error error = put_attribute(allocation.get(), address, attributes[position], data[position]);
            // This form leaves out what does not apply to the memory, where the single one fails.
            const auto attribute = static_cast<PointerAttribute>(attributes[position]);
            const bool may_not_apply =
                attribute == PointerAttribute::host_pointer || attribute == PointerAttribute::device_pointer;
            if (error != Error::success && !may_not_apply) {
                return error;
            }
        }
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(PointerSetAttribute)(const void* value, int attribute, Address address) {
    return call([&] {
        if (!value || attribute != static_cast<int>(PointerAttribute::sync_memops)) {
            return Error::invalid_value;
        }
        unsigned on = 0;
        std::memcpy(&on, value, sizeof on);
        const Error error = allowed_by_captures();
        return error == Error::success ? set_synchronous(address, on != 0) : error;
    });
}

// ---- copies and fills ----

AWAKEN_EXPORT int AWAKEN_CALL(MemcpyHtoD)(Address destination, Address source, std::size_t bytes) {
    return copy_bytes(destination, source, bytes, nullptr, Synchrony::host);
}
AWAKEN_EXPORT_ALSO(AWAKEN_CALL(MemcpyDtoH), AWAKEN_CALL(MemcpyHtoD));
AWAKEN_EXPORT_ALSO(AWAKEN_CALL(MemcpyDtoD), AWAKEN_CALL(MemcpyHtoD));

AWAKEN_EXPORT int AWAKEN_CALL(MemcpyHtoDAsync)(Address destination, Address source, std::size_t bytes, void* stream) {
    return copy_bytes(destination, source, bytes, stream, Synchrony::stream);
}
AWAKEN_EXPORT_ALSO(AWAKEN_CALL(MemcpyDtoHAsync), AWAKEN_CALL(MemcpyHtoDAsync));
AWAKEN_EXPORT_ALSO(AWAKEN_CALL(MemcpyDtoDAsync), AWAKEN_CALL(MemcpyHtoDAsync));

AWAKEN_EXPORT int AWAKEN_CALL(MemcpyParam2D)(const Copy2DParameters* parameters) {
    return copy_described(parameters, nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemcpyParam2DAsync)(const Copy2DParameters* parameters, void* stream) {
    return copy_described(parameters, stream, Synchrony::stream);
}

AWAKEN_EXPORT int AWAKEN_CALL(MemsetD8)(Address address, unsigned char value, std::size_t count) {
    return fill_rows(elements(address, 1, value, count), nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemsetD16)(Address address, unsigned short value, std::size_t count) {
    return fill_rows(elements(address, 2, value, count), nullptr, Synchrony::host);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemsetD32)(Address address, unsigned value, std::size_t count) {
    return fill_rows(elements(address, 4, value, count), nullptr, Synchrony::host);
}

AWAKEN_EXPORT int AWAKEN_CALL(MemsetD8Async)(Address address, unsigned char value, std::size_t count, void* stream) {
    return fill_rows(elements(address, 1, value, count), stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemsetD16Async)(Address address, unsigned short value, std::size_t count, void* stream) {
    return fill_rows(elements(address, 2, value, count), stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemsetD32Async)(Address address, unsigned value, std::size_t count, void* stream) {
    return fill_rows(elements(address, 4, value, count), stream, Synchrony::stream);
}

// ---- streams ----

AWAKEN_EXPORT int AWAKEN_CALL(StreamGetDevice)(void* handle, int* device) {
    return on_stream(handle, [&](const auto& stream) { return put(device, stream->context().device); });
}

// ---- kernels ----

AWAKEN_EXPORT int AWAKEN_CALL(ModuleLoadData)(void** module, const void* image) {
    return load(AWAKEN_NAME(ModuleLoadData), module, image);
}
AWAKEN_EXPORT int AWAKEN_CALL(ModuleLoadDataEx)(void** module, const void* image, unsigned, int*, void**) {
    return load(AWAKEN_NAME(ModuleLoadDataEx), module, image);
}

AWAKEN_EXPORT int AWAKEN_CALL(ModuleUnload)(void* module) {
    return in_context([&](Context&) {
        const Error error = allowed_by_captures();
        return error == Error::success ? unload_module(AWAKEN_NAME(ModuleUnload), module) : error;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(ModuleGetFunction)(void** function, void* module, const char* name) {
    return in_entered_context([&](Context&) {
        if (!function || !name) {
            return Error::invalid_value;
        }
        const void* found = nullptr;
        const Error error = find_function(module, name, found);
        if (error == Error::success) {
            *function = const_cast<void*>(found);
        }
        return error;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(FuncGetAttribute)(int* value, int attribute, void* function) {
    return call([&] {
        if (!core().functions.find(function)) {
            return Error::invalid_handle;
        }
        return put(value, attribute == 0 ? Model::threads_per_block : 0);  // 0: most threads; the rest are sizes
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(ModuleOccupancyMaxActiveBlocksPerMultiprocessor)(int* blocks, void* function,
                                                                               int block_size, std::size_t) {
    return call([&] {
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

AWAKEN_EXPORT int AWAKEN_CALL(ModuleLaunchKernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                                  unsigned block_x, unsigned block_y, unsigned block_z,
                                                  unsigned shared_bytes, void* stream, void** arguments, void** extra) {
    return launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes}, stream, arguments,
                  extra);
}
AWAKEN_EXPORT int AWAKEN_CALL(ModuleLaunchCooperativeKernel)(void* function, unsigned grid_x, unsigned grid_y,
                                                             unsigned grid_z, unsigned block_x, unsigned block_y,
                                                             unsigned block_z, unsigned shared_bytes, void* stream,
                                                             void** arguments) {
    return launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes}, stream, arguments,
                  nullptr);
}
