// Calls of CUDA's driver that HIP took over.
//
// Included once by each of their .cpp files, which says what `Api` is, and how names begin (AWAKEN_CALL).
#pragma once

#include "calls/copies.h"
#include "calls/devices.h"
#include "calls/memory.h"

// ---- devices ----

/// Devices are their numbers.
AWAKEN_EXPORT int AWAKEN_CALL(DeviceGet)(int* device, int ordinal) {
    return on_device<Api>(ordinal, [&](Device&) { return put(device, ordinal); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetName)(char* name, int length, int device) {
    return on_device<Api>(device, [&](const Device& found) { return put_device_text<Api>(name, length, found.name); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetUuid)(void* uuid, int device) {
    return device_uuid<Api>(uuid, device);
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceComputeCapability)(int* major, int* minor, int device) {
    return on_device<Api>(device, [&](Device&) {
        if (!major || !minor) {
            return Error::invalid_value;
        }
        *major = Model::compute_major;
        *minor = Model::compute_minor;
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetByPCIBusId)(int* device, const char* text) {
    return device_at_bus_id<Api>(device, text);
}

// ---- contexts ----

AWAKEN_EXPORT int AWAKEN_CALL(DevicePrimaryCtxRetain)(void** context, int device) {
    return on_device<Api>(device, [&](Device&) {
        if (!context) {
            return Error::invalid_value;
        }
        core().retain_primary(device);
        *context = &core().primary(device);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxGetCurrent)(void** context) {
    return call<Api>([&] { return put(context, thread_state().current()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxSetCurrent)(void* handle) {
    return call<Api>([&] {
        Context* const context = handle ? core().find_context(handle) : nullptr;
        if (handle && (!context || !Api::usable(*context))) {
            return Error::invalid_context;
        }
        thread_state().set_current(context);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxGetDevice)(int* device) {
    return in_context<Api>([&](const Context& context) { return put(device, context.device); });
}

AWAKEN_EXPORT int AWAKEN_CALL(CtxSynchronize)() {
    return synchronize_context<Api>();
}

// ---- memory ----

AWAKEN_EXPORT int AWAKEN_CALL(MemPrefetchAsync)(Address address, std::size_t, int, void* handle) {
    return prefetch<Api>(address, handle);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemAdvise)(Address address, std::size_t, int, int) {
    return advise<Api>(address);
}

AWAKEN_EXPORT int AWAKEN_CALL(PointerGetAttribute)(void* data, int attribute, Address address) {
    count_pointer_query();
    return call<Api>([&] {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        return allocation ? put_attribute<Api>(allocation.get(), address, attribute, data) : Error::invalid_value;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(PointerSetAttribute)(const void* value, int attribute, Address address) {
    return call<Api>([&] {
        if (!value || attribute != static_cast<int>(PointerAttribute::sync_memops)) {
            return Error::invalid_value;
        }
        unsigned on = 0;
        std::memcpy(&on, value, sizeof on);
        const Error error = allowed_by_captures();
        return error == Error::success ? set_synchronous(address, on != 0) : error;
    });
}

// ---- fills ----

AWAKEN_EXPORT int AWAKEN_CALL(MemsetD8Async)(Address address, unsigned char value, std::size_t count, void* stream) {
    return fill_rows<Api>(elements(address, 1, value, count), stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemsetD16Async)(Address address, unsigned short value, std::size_t count, void* stream) {
    return fill_rows<Api>(elements(address, 2, value, count), stream, Synchrony::stream);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemsetD32Async)(Address address, unsigned value, std::size_t count, void* stream) {
    return fill_rows<Api>(elements(address, 4, value, count), stream, Synchrony::stream);
}

// ---- streams ----

AWAKEN_EXPORT int AWAKEN_CALL(StreamGetDevice)(void* handle, int* device) {
    return on_stream<Api>(handle, [&](const auto& stream) { return put(device, stream->context().device); });
}

// ---- kernels ----

AWAKEN_EXPORT int AWAKEN_CALL(ModuleLoadData)(void** module, const void* image) {
    return load<Api>(AWAKEN_NAME(ModuleLoadData), module, image);
}
AWAKEN_EXPORT int AWAKEN_CALL(ModuleLoadDataEx)(void** module, const void* image, unsigned, int*, void**) {
    return load<Api>(AWAKEN_NAME(ModuleLoadDataEx), module, image);
}

AWAKEN_EXPORT int AWAKEN_CALL(ModuleUnload)(void* module) {
    return in_context<Api>([&](Context&) { return unload_module(AWAKEN_NAME(ModuleUnload), module); });
}

AWAKEN_EXPORT int AWAKEN_CALL(ModuleGetFunction)(void** function, void* module, const char* name) {
    return in_entered_context<Api>([&](Context&) {
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
    return call<Api>([&] {
        if (!core().functions.find(function)) {
            return Error::invalid_handle;
        }
        return put(value, attribute == 0 ? Model::threads_per_block : 0);  // 0: most threads; the rest are sizes
    });
}
