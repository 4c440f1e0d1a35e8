// Calls that all front ends have under the same name.
//
// Included once by each of their .cpp files, which says what `Api` is, and how names begin (AWAKEN_CALL).
#pragma once

#include "calls/devices.h"
#include "calls/memory.h"
#include "calls/streams.h"

// ---- devices ----

AWAKEN_EXPORT int AWAKEN_CALL(DeviceCanAccessPeer)(int* can, int device, int peer) {
    return on_device<Api>(device, [&](Device&) {
        if (!can) {
            return Error::invalid_value;
        }
        return core().valid_device(peer) ? put(can, can_access_peer(device, peer) ? 1 : 0) : Error::invalid_device;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetAttribute)(int* value, int attribute, int device) {
    return on_device<Api>(device, [&](const Device& found) {
        const int answer = Api::attribute(found, attribute);
        return answer < 0 ? Error::invalid_value : put(value, answer);
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetPCIBusId)(char* text, int length, int device) {
    return on_device<Api>(device,
                          [&](const Device& found) { return put_device_text<Api>(text, length, found.pci_bus_id); });
}

// ---- pools ----

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetDefaultMemPool)(void** pool, int device) {
    return on_device<Api>(device, [&](const Device& found) { return put(pool, found.default_pool.get()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetMemPool)(void** pool, int device) {
    return on_device<Api>(device, [&](const Device& found) { return put(pool, found.current_pool.get()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceSetMemPool)(int device, void* handle) {
    return on_device<Api>(device, [&](Device& found) {
        std::shared_ptr<Pool> pool = core().pools.find(handle);
        if (!pool || pool->device != device) {
            return Error::invalid_value;
        }
        found.current_pool = std::move(pool);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(MemPoolCreate)(void** handle, const PoolProperties* properties) {
    return call<Api>([&] {
        if (!handle || !properties) {
            return Error::invalid_value;
        }
        if (properties->location.type != kLocationDevice || properties->handle_types != 0) {
            return Error::not_supported;
        }
        if (!core().valid_device(properties->location.id)) {
            return Error::invalid_device;
        }
        auto pool = std::make_shared<Pool>();
        pool->device = properties->location.id;
        *handle = core().pools.add(std::move(pool));
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(MemPoolDestroy)(void* handle) {
    return call<Api>([&] {
        for (int device = 0; device < core().device_count(); ++device) {
            if (core().device(device).default_pool.get() == handle) {
                return Error::invalid_value;
            }
        }
        const std::shared_ptr<Pool> pool = core().pools.remove(handle);
        if (!pool) {
            return Error::invalid_value;
        }
        Device& device = core().device(pool->device);
        if (device.current_pool == pool) {
            device.current_pool = device.default_pool;
        }
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(MemPoolGetAttribute)(void* handle, int attribute, void* value) {
    return on_pool<Api>(handle, [&](const Pool& pool) { return get_pool_attribute(pool, attribute, value); });
}

AWAKEN_EXPORT int AWAKEN_CALL(MemPoolSetAttribute)(void* handle, int attribute, void* value) {
    return on_pool<Api>(handle, [&](Pool& pool) { return set_pool_attribute(pool, attribute, value); });
}

AWAKEN_EXPORT int AWAKEN_CALL(MemPoolTrimTo)(void* handle, std::size_t) {
    return accept_for_pool<Api>(handle);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemPoolSetAccess)(void* handle, const void*, std::size_t) {
    return accept_for_pool<Api>(handle);
}

// ---- sharing ----

AWAKEN_EXPORT int AWAKEN_CALL(IpcOpenMemHandle)(Address* address, IpcHandle handle, unsigned flags) {
    return import_memory<Api>(address, handle, flags);
}

// ---- streams ----

AWAKEN_EXPORT int AWAKEN_CALL(StreamCreateWithPriority)(void** stream, unsigned flags, int priority) {
    return create_stream<Api>(stream, flags, priority);
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamGetFlags)(void* handle, unsigned* flags) {
    return on_stream<Api>(handle, [&](const auto& stream) { return put(flags, stream->flags()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamGetPriority)(void* handle, int* priority) {
    return on_stream<Api>(handle, [&](const auto& stream) { return put(priority, stream->priority()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamQuery)(void* handle) {
    return on_allowed_stream<Api>(handle, [](const auto& stream) {
        const Error error = allowed_by_captures();
        return error == Error::success ? query(*stream) : error;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamSynchronize)(void* handle) {
    return on_allowed_stream<Api>(handle, [](const auto& stream) { return synchronize(*stream); });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamWaitEvent)(void* handle, void* event, unsigned) {
    return on_allowed_stream<Api>(handle, [&](const auto& stream) {
        const std::shared_ptr<Event> found = core().events.find(event);
        if (!found) {
            return Error::invalid_handle;
        }
        if (!found->done()) {
            stream->context().enter();
        }
        return wait_in_stream(*stream, *found);
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(LaunchHostFunc)(void* handle, void (*function)(void*), void* argument) {
    return work_on_stream<Api>(handle, [&](const auto& stream) {
        if (!function) {
            return Error::invalid_value;
        }
        call_in_stream(*stream, [function, argument] { function(argument); });
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamAddCallback)(void* handle, void (*function)(void*, int, void*), void* argument,
                                                 unsigned) {
    return work_on_stream<Api>(handle, [&](const auto& stream) {
        if (!function) {
            return Error::invalid_value;
        }
        Context& context = stream->context();
        call_in_stream(*stream, [=, &context] { function(handle, static_cast<int>(context.sticky.load()), argument); });
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamIsCapturing)(void* handle, int* status) {
    return on_stream<Api>(handle, [&](const auto& stream) { return put(status, is_capturing(*stream) ? 1 : 0); });
}

// ---- events ----

AWAKEN_EXPORT int AWAKEN_CALL(EventRecord)(void* handle, void* stream_handle) {
    return work_on_stream<Api>(stream_handle, [&](const auto& stream) {
        const std::shared_ptr<Event> event = core().events.find(handle);
        if (!event || &event->context() != &stream->context()) {
            return Error::invalid_handle;
        }
        event->record(*stream);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(EventQuery)(void* handle) {
    return on_event<Api>(handle, [](const Event& event) {
        const Error error = allowed_by_captures();
        return error == Error::success ? query(event) : error;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(EventSynchronize)(void* handle) {
    return on_event<Api>(handle, [](const Event& event) { return synchronize(event); });
}

AWAKEN_EXPORT int AWAKEN_CALL(EventElapsedTime)(float* milliseconds, void* start, void* end) {
    return on_event<Api>(start, [&](const Event& from) {
        const std::shared_ptr<Event> to = core().events.find(end);
        if (!to) {
            return Error::invalid_handle;
        }
        return milliseconds ? to->elapsed_since(from, *milliseconds) : Error::invalid_value;
    });
}

// ---- profiling ----

AWAKEN_EXPORT int AWAKEN_CALL(ProfilerStart)() {
    return succeed<Api>();
}
AWAKEN_EXPORT int AWAKEN_CALL(ProfilerStop)() {
    return succeed<Api>();
}
