// SPDX-License-Identifier: Apache-2.0
// Calls that all front ends have under the same name.
//
// CUDA's driver names some otherwise: cuda_driver.cpp has a table.
#pragma once

#include "calls/devices.h"
#include "calls/memory.h"

// ---- devices ----

AWAKEN_EXPORT int AWAKEN_CALL(DeviceCanAccessPeer)(int* can, int device, int peer) {
    return on_device(device, [&](Device&) {
        if (!can) {
            return Error::invalid_value;
        }
        return core().valid_device(peer) ? put(can, can_access_peer(device, peer) ? 1 : 0) : Error::invalid_device;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetAttribute)(int* value, int attribute, int device) {
    return on_device(device, [&](const Device& found) {
        const int answer = Api::attribute(found, attribute);
        return answer < 0 ? Error::invalid_value : put(value, answer);
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetPCIBusId)(char* text, int length, int device) {
    return on_device(device, [&](const Device& found) { return put_device_text(text, length, found.pci_bus_id); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetStreamPriorityRange)(int* least, int* greatest) {
    return in_context([&](Context&) {
        if (least) {
            *least = Api::least_priority;
        }
        if (greatest) {
            *greatest = Api::greatest_priority;
        }
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(GetDeviceFlags)(unsigned* flags) {
    return in_context([&](const Context& context) { return put(flags, context.flags); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceSynchronize)() {
    return in_entered_context([](Context& context) {
        const Error error = whole_context_allowed(context);
        return error == Error::success ? synchronize(context) : error;
    });
}

// ---- memory ----

AWAKEN_EXPORT int AWAKEN_CALL(MemGetInfo)(std::size_t* free_bytes, std::size_t* total) {
    return in_context([&](const Context& context) {
        const std::size_t all = core().device(context.device).memory_bytes;
        if (total) {
            *total = all;
        }
        if (free_bytes) {
            *free_bytes = all - core().memory().used(context.device);
        }
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(Malloc)(Address* address, std::size_t bytes) {
    return unless_capturing([&](Context& context) {
        return put_memory(address, bytes, [&](Address& found) { return allocate(context, bytes, found); });
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(HostAlloc)(Address* address, std::size_t bytes, unsigned flags) {
    return unless_capturing(
        [&](Context& context) { return allocate_host(context, MemoryKind::pinned, address, bytes, flags); });
}

AWAKEN_EXPORT int AWAKEN_CALL(MallocHost)(Address* address, std::size_t bytes) {
    return AWAKEN_CALL(HostAlloc)(address, bytes, 0);
}

AWAKEN_EXPORT int AWAKEN_CALL(HostFree)(Address address) {
    return unless_capturing([&](Context&) {
        const bool nothing = address == 0 && Api::has_empty_memory;
        return nothing ? Error::success : free_pinned(AWAKEN_NAME(HostFree), address);
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(HostGetFlags)(unsigned* flags, Address host) {
    return on_host_memory(host, [&](const Allocation& allocation) { return put(flags, allocation.flags); });
}

AWAKEN_EXPORT int AWAKEN_CALL(HostRegister)(Address address, std::size_t bytes, unsigned flags) {
    return unless_capturing(
        [&](Context& context) { return core().memory().register_host(context, address, bytes, flags); });
}

AWAKEN_EXPORT int AWAKEN_CALL(HostUnregister)(Address address) {
    return unless_capturing([&](Context&) { return unregister_host(AWAKEN_NAME(HostUnregister), address); });
}

AWAKEN_EXPORT int AWAKEN_CALL(MallocManaged)(Address* address, std::size_t bytes, unsigned flags) {
    return unless_capturing([&](Context& context) {
        const bool known = flags == 1 || flags == 2;
        return known ? allocate_host(context, MemoryKind::managed, address, bytes, flags) : Error::invalid_value;
    });
}

// ---- pools, and memory in the order of a stream ----

AWAKEN_EXPORT int AWAKEN_CALL(MallocFromPoolAsync)(Address* address, std::size_t bytes, void* handle, void* stream) {
    return allocate_in_order(address, bytes, stream, [&](const Stream&) { return core().pools.find(handle); });
}

AWAKEN_EXPORT int AWAKEN_CALL(MallocAsync)(Address* address, std::size_t bytes, void* handle) {
    return allocate_in_order(address, bytes, handle,
                             [](const Stream& stream) { return core().device(stream.context().device).current_pool; });
}

AWAKEN_EXPORT int AWAKEN_CALL(FreeAsync)(Address address, void* handle) {
    return on_allowed_stream(handle, [&](const auto& stream) { return free_in_order(*stream, address); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetDefaultMemPool)(void** pool, int device) {
    return on_device(device, [&](const Device& found) { return put(pool, found.default_pool.get()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceGetMemPool)(void** pool, int device) {
    return on_device(device, [&](const Device& found) { return put(pool, found.current_pool.get()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(DeviceSetMemPool)(int device, void* handle) {
    return on_device(device, [&](Device& found) {
        std::shared_ptr<Pool> pool = core().pools.find(handle);
        if (!pool || pool->device != device) {
            return Error::invalid_value;
        }
        found.current_pool = std::move(pool);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(MemPoolCreate)(void** handle, const PoolProperties* properties) {
    return call([&] {
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
    return call([&] {
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
    return on_pool(handle, [&](const Pool& pool) { return get_pool_attribute(pool, attribute, value); });
}

AWAKEN_EXPORT int AWAKEN_CALL(MemPoolSetAttribute)(void* handle, int attribute, void* value) {
    return on_pool(handle, [&](Pool& pool) { return set_pool_attribute(pool, attribute, value); });
}

// Pools keep no free memory.
AWAKEN_EXPORT int AWAKEN_CALL(MemPoolTrimTo)(void* handle, std::size_t) {
    return on_pool(handle, [](const Pool&) { return Error::success; });
}
AWAKEN_EXPORT int AWAKEN_CALL(MemPoolSetAccess)(void* handle, const MemoryAccess* descriptions, std::size_t count) {
    return on_pool(handle, [&](Pool& pool) {
        return give_access(pool.device, descriptions, count, [&](int device, bool on) {
            const std::uint32_t bit = std::uint32_t{1} << device;
            on ? pool.access |= bit : pool.access &= ~bit;
            return Error::success;
        });
    });
}

// ---- sharing ----

AWAKEN_EXPORT int AWAKEN_CALL(IpcOpenMemHandle)(Address* address, IpcHandle handle, unsigned flags) {
    return in_context([&](Context& context) {
        constexpr unsigned kLazyEnablePeerAccess = 1;
        if (!address || flags != kLazyEnablePeerAccess) {
            return Error::invalid_value;
        }
        return Api::ipc_error(
            put_address(address, [&](Address& found) { return open_import(context, handle, found); }));
    });
}

// ---- streams ----

AWAKEN_EXPORT int AWAKEN_CALL(StreamCreateWithPriority)(void** stream, unsigned flags, int priority) {
    return in_entered_context([&](Context& context) {
        constexpr unsigned kNonBlocking = 1;
        if (!stream || flags > kNonBlocking) {
            return Error::invalid_value;
        }
        *stream =
            core().streams.add(context.create_stream(Stream::Role::created, flags != kNonBlocking, flags, priority));
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamCreateWithFlags)(void** stream, unsigned flags) {
    return AWAKEN_CALL(StreamCreateWithPriority)(stream, flags, 0);
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamDestroy)(void* handle) {
    return call([&] {
        const std::shared_ptr<Stream> stream = core().streams.remove(handle);
        if (!stream) {
            return Error::invalid_handle;
        }
        stream->context().enter();
        stream->close();
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamGetFlags)(void* handle, unsigned* flags) {
    return on_stream(handle, [&](const auto& stream) { return put(flags, stream->flags()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamGetPriority)(void* handle, int* priority) {
    return on_stream(handle, [&](const auto& stream) { return put(priority, stream->priority()); });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamQuery)(void* handle) {
    return on_allowed_stream(handle, [](const auto& stream) {
        const Error error = allowed_by_captures();
        return error == Error::success ? query(*stream) : error;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamSynchronize)(void* handle) {
    return on_allowed_stream(handle, [](const auto& stream) {
        const Error error = allowed_by_captures();
        return error == Error::success ? synchronize(*stream) : error;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamWaitEvent)(void* handle, void* event, unsigned) {
    return on_allowed_stream(handle, [&](const auto& stream) {
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
    return work_on_stream(handle, [&](const auto& stream) {
        if (!function) {
            return Error::invalid_value;
        }
        call_in_stream(*stream, [function, argument] { function(argument); });
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamAddCallback)(void* handle, void (*function)(void*, int, void*), void* argument,
                                                 unsigned) {
    return work_on_stream(handle, [&](const auto& stream) {
        if (!function) {
            return Error::invalid_value;
        }
        Context& context = stream->context();
        call_in_stream(*stream, [=, &context] { function(handle, static_cast<int>(context.sticky.load()), argument); });
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamIsCapturing)(void* handle, int* status) {
    return on_stream(handle, [&](const auto& stream) {
        bool capturing = false;
        const Error error = capture_status(*stream, capturing);
        return error == Error::success ? put(status, capturing ? 1 : 0) : error;
    });
}

// ---- events ----

AWAKEN_EXPORT int AWAKEN_CALL(EventCreateWithFlags)(void** event, unsigned flags) {
    return in_entered_context([&](Context& context) {
        if (!event) {
            return Error::invalid_value;
        }
        *event = core().events.add(std::make_shared<Event>(context, flags));
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(EventDestroy)(void* handle) {
    return on_event(handle, [&](const Event& event) {
        event.context().enter();
        return core().events.remove(handle) ? Error::success : Error::invalid_handle;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(EventRecord)(void* handle, void* stream_handle) {
    return work_on_stream(stream_handle, [&](const auto& stream) {
        const std::shared_ptr<Event> event = core().events.find(handle);
        if (!event || &event->context() != &stream->context()) {
            return Error::invalid_handle;
        }
        event->record(*stream);
        return Error::success;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(EventQuery)(void* handle) {
    return on_event(handle, [](const Event& event) {
        const Error error = allowed_by_captures();
        return error == Error::success ? query(event) : error;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(EventSynchronize)(void* handle) {
    return on_event(handle, [](const Event& event) {
        const Error error = allowed_by_captures();
        return error == Error::success ? synchronize(event) : error;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(EventElapsedTime)(float* milliseconds, void* start, void* end) {
    return on_event(start, [&](const Event& from) {
        const std::shared_ptr<Event> to = core().events.find(end);
        if (!to) {
            return Error::invalid_handle;
        }
        return milliseconds ? to->elapsed_since(from, *milliseconds) : Error::invalid_value;
    });
}

// ---- profiling ----

AWAKEN_EXPORT int AWAKEN_CALL(ProfilerStart)() {
    return call([] { return Error::success; });
}
AWAKEN_EXPORT_ALSO(AWAKEN_CALL(ProfilerStop), AWAKEN_CALL(ProfilerStart));
