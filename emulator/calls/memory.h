// Memory: allocating, asking about it, pools, and sharing it between processes.
#pragma once

#include <cstring>

#include "calls/entry.h"

namespace awaken::emulator::calls {

/// The layout of CUmemPoolProps, cudaMemPoolProps and hipMemPoolProps.
struct MemoryLocation {
    int type;
    int id;
};
constexpr int kLocationDevice = 1;
struct PoolProperties {
    int allocation_type;
    int handle_types;
    MemoryLocation location;
    void* security;
    std::size_t maximum;
    unsigned char reserved[56];
};
static_assert(sizeof(PoolProperties) == 88);

template <FrontEnd Api>
int memory_info(std::size_t* free_bytes, std::size_t* total) {
    return in_context<Api>([&](const Context& context) {
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

/// Writes the address that `allocate` finds, if it does.
template <typename Allocate>
[[nodiscard]] Error put_address(Address* address, Allocate&& allocate) {
    Address found = 0;
    const Error error = allocate(found);
    if (error == Error::success) {
        *address = found;
    }
    return error;
}

/// The same for a front end's ways with memory of no bytes, and with what cannot be had.
template <FrontEnd Api, typename Allocate>
[[nodiscard]] Error put_memory(Address* address, std::size_t bytes, Allocate&& allocate) {
    if (!address) {
        return Error::invalid_value;
    }
    const bool empty = bytes == 0 && Api::has_empty_memory;
    if (empty || Api::clears_address) {
        *address = 0;
    }
    return empty ? Error::success : put_address(address, allocate);
}

template <FrontEnd Api>
int allocate_memory(Address* address, std::size_t bytes) {
    return unless_capturing<Api>([&](Context& context) {
        return put_memory<Api>(address, bytes, [&](Address& found) { return allocate(context, bytes, found); });
    });
}

template <FrontEnd Api>
Error allocate_host_memory(Context& context, MemoryKind kind, Address* address, std::size_t bytes, unsigned flags) {
    return put_memory<Api>(address, bytes, [&](Address& found) {
        return core().memory().allocate_host(context, kind, bytes, flags, found);
    });
}

template <FrontEnd Api>
int allocate_pinned(Address* address, std::size_t bytes, unsigned flags) {
    return unless_capturing<Api>([&](Context& context) {
        return allocate_host_memory<Api>(context, MemoryKind::pinned, address, bytes, flags);
    });
}

template <FrontEnd Api>
int allocate_managed(Address* address, std::size_t bytes, unsigned flags) {
    return in_entered_context<Api>([&](Context& context) {
        if (flags != 1 && flags != 2) {
            return Error::invalid_value;
        }
        return allocate_host_memory<Api>(context, MemoryKind::managed, address, bytes, flags);
    });
}

// `name` is the call's name to the program.

template <FrontEnd Api>
int free_memory(const char* name, Address address) {
    return unless_capturing<Api>([&](Context&) { return free_device(name, address); });
}

template <FrontEnd Api>
int free_pinned_memory(const char* name, Address address) {
    return unless_capturing<Api>(
        [&](Context&) { return address == 0 && Api::has_empty_memory ? Error::success : free_pinned(name, address); });
}

template <FrontEnd Api>
int register_memory(Address address, std::size_t bytes, unsigned flags) {
    return unless_capturing<Api>(
        [&](Context& context) { return core().memory().register_host(context, address, bytes, flags); });
}

template <FrontEnd Api>
int unregister_memory(const char* name, Address address) {
    return unless_capturing<Api>([&](Context&) { return unregister_host(name, address); });
}

/// Does `body` with the allocation at `address` if it is in host memory.
template <FrontEnd Api, typename Body>
int on_host_memory(Address address, Body&& body) {
    return in_context<Api>([&](Context&) {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        return allocation && !allocation->on_device() ? body(*allocation) : Error::invalid_value;
    });
}

template <FrontEnd Api>
int device_address(Address* device, Address host, unsigned flags) {
    return on_host_memory<Api>(host, [&](const Allocation& allocation) {
        return flags == 0 ? put(device, Api::address_for_kernels(allocation, host)) : Error::invalid_value;
    });
}

template <FrontEnd Api>
int host_memory_flags(unsigned* flags, Address host) {
    return on_host_memory<Api>(host, [&](const Allocation& allocation) { return put(flags, allocation.flags); });
}

[[nodiscard]] inline bool is_managed(Address address) {
    const std::shared_ptr<Allocation> allocation = core().memory().find(address);
    return allocation && allocation->kind == MemoryKind::managed;
}

/// Managed memory does not migrate here; the order of the stream is kept.
template <FrontEnd Api>
int prefetch(Address address, void* handle) {
    return work_on_stream<Api>(handle, [&](const auto& stream) {
        if (!is_managed(address)) {
            return Error::invalid_value;
        }
        stream->submit([] {});
        return Error::success;
    });
}

template <FrontEnd Api>
int advise(Address address) {
    return in_context<Api>([&](Context&) { return is_managed(address) ? Error::success : Error::invalid_value; });
}

// ---- attributes of pointers ----

template <FrontEnd Api>
Error put_attribute(const Allocation* allocation, Address address, int attribute, void* data) {
    return put_pointer_attribute(allocation, address, static_cast<PointerAttribute>(attribute), data, Api::host_type(),
                                 allocation ? Api::memory_type(*allocation) : 0);
}

template <FrontEnd Api>
int pointer_attributes(unsigned count, const int* attributes, void** data, Address address) {
    count_pointer_query();
    return call<Api>([&] {
        if (count != 0 && (!attributes || !data)) {
            return Error::invalid_value;
        }
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        for (unsigned position = 0; position < count; ++position) {
            const Error error = put_attribute<Api>(allocation.get(), address, attributes[position], data[position]);
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

// ---- pools ----

template <FrontEnd Api, typename Body>
int on_pool(void* handle, Body&& body) {
    return call<Api>([&] {
        const std::shared_ptr<Pool> pool = core().pools.find(handle);
        return pool ? body(*pool) : Error::invalid_value;
    });
}

template <FrontEnd Api>
int allocate_from(void* handle, Address* address, std::size_t bytes, void* stream_handle) {
    return on_allowed_stream<Api>(stream_handle, [&](const auto& stream) {
        if (const Error error = spoil_capture(*stream, Error::not_supported); error != Error::success) {
            return error;
        }
        const std::shared_ptr<Pool> pool = core().pools.find(handle);
        if (!address || !pool) {
            return Error::invalid_value;
        }
        return put_address(address, [&](Address& found) { return allocate_from_pool(pool, bytes, found); });
    });
}

/// From the pool of the stream's device.
template <FrontEnd Api>
int allocate_in_order(Address* address, std::size_t bytes, void* stream_handle) {
    return on_allowed_stream<Api>(stream_handle, [&](const auto& stream) {
        if (!address) {
            return Error::invalid_value;
        }
        if (const Error error = spoil_capture(*stream, Error::not_supported); error != Error::success) {
            return error;
        }
        const std::shared_ptr<Pool> pool = core().device(stream->context().device).current_pool;
        return put_address(address, [&](Address& found) { return allocate_from_pool(pool, bytes, found); });
    });
}

template <FrontEnd Api>
int free_memory_in_order(Address address, void* handle) {
    return on_allowed_stream<Api>(handle, [&](const auto& stream) { return free_in_order(*stream, address); });
}

/// For what a pool takes and that changes nothing here: pools keep no free memory, and all devices reach them.
template <FrontEnd Api>
int accept_for_pool(void* handle) {
    return on_pool<Api>(handle, [](const Pool&) { return Error::success; });
}

// ---- sharing between processes ----

template <FrontEnd Api>
int export_memory(IpcHandle* handle, Address address) {
    return in_context<Api>([&](Context&) {
        return handle ? Api::ipc_error(core().memory().export_handle(address, *handle)) : Error::invalid_value;
    });
}

template <FrontEnd Api>
int import_memory(Address* address, const IpcHandle& handle, unsigned flags) {
    return in_context<Api>([&](Context& context) {
        constexpr unsigned kLazyEnablePeerAccess = 1;
        if (!address || flags != kLazyEnablePeerAccess) {
            return Error::invalid_value;
        }
        return Api::ipc_error(put_address(
            address, [&](Address& found) { return core().memory().import_handle(context, handle, found); }));
    });
}

template <FrontEnd Api>
int close_memory(const char* name, Address address, bool default_stream_only = false) {
    return in_context<Api>([&](Context&) { return close_import(name, address, default_stream_only); });
}

}  // namespace awaken::emulator::calls
