// SPDX-License-Identifier: Apache-2.0
// Memory: allocating, asking about it, pools, and sharing it between processes.
#pragma once

#include <cstring>
#include <span>

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

/// The layout of CUmemAccessDesc, cudaMemAccessDesc and hipMemAccessDesc.
struct MemoryAccess {
    MemoryLocation location;
    int flags;
};
static_assert(sizeof(MemoryAccess) == 12);
constexpr int kAccessNone = 0;
constexpr int kAccessRead = 1;
constexpr int kAccessReadWrite = 3;

/// Does what a program says of the devices that may use memory of `owner`, by `give(device, on)`.
template <typename Give>
[[nodiscard]] Error give_access(int owner, const MemoryAccess* descriptions, std::size_t count, Give&& give) {
    if (!descriptions || count == 0) {
        return Error::invalid_value;
    }
    for (const MemoryAccess& description : std::span(descriptions, count)) {
        const int device = description.location.id;
        if (description.location.type != kLocationDevice || description.flags == kAccessRead) {
            return Error::not_supported;
        }
        if (!core().valid_device(device) || (device != owner && !can_access_peer(device, owner))) {
            return Error::invalid_device;
        }
        if (description.flags != kAccessNone && description.flags != kAccessReadWrite) {
            return Error::invalid_value;
        }
        if (const Error error = give(device, description.flags == kAccessReadWrite); error != Error::success) {
            return error;
        }
    }
    return Error::success;
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
template <typename Allocate>
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

inline Error allocate_host(Context& context, MemoryKind kind, Address* address, std::size_t bytes, unsigned flags) {
    return put_memory(address, bytes, [&](Address& found) {
        return core().memory().allocate_host(context, kind, bytes, flags, found);
    });
}

/// `name` is the call's name to the program.
inline int free_memory(const char* name, Address address) {
    return unless_capturing([&](Context&) { return free_device(name, address); });
}

/// Does `body` with the allocation at `address` if it is in host memory.
template <typename Body>
int on_host_memory(Address address, Body&& body) {
    return in_context([&](Context&) {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        return allocation && !allocation->on_device() ? body(*allocation) : Error::invalid_value;
    });
}

inline int device_address(Address* device, Address host, unsigned flags) {
    return on_host_memory(host, [&](const Allocation& allocation) {
        return flags == 0 ? put(device, Api::address_for_kernels(allocation, host)) : Error::invalid_value;
    });
}

[[nodiscard]] inline bool is_managed(Address address) {
    const std::shared_ptr<Allocation> allocation = core().memory().find(address);
    return allocation && allocation->kind == MemoryKind::managed;
}

/// Managed memory does not migrate here; the order of the stream is kept.
inline int prefetch(Address address, void* handle) {
    return work_on_stream(handle, [&](const auto& stream) {
        if (!is_managed(address)) {
            return Error::invalid_value;
        }
        stream->submit([] {});
        return Error::success;
    });
}

inline int advise(Address address) {
    return in_context([&](Context&) { return is_managed(address) ? Error::success : Error::invalid_value; });
}

// ---- attributes of pointers ----

inline Error put_attribute(const Allocation* allocation, Address address, int attribute, void* data) {
    return put_pointer_attribute(allocation, address, static_cast<PointerAttribute>(attribute), data, Api::host_type(),
                                 allocation ? Api::memory_type(*allocation) : 0);
}

// ---- pools ----

template <typename Body>
int on_pool(void* handle, Body&& body) {
    return call([&] {
        const std::shared_ptr<Pool> pool = core().pools.find(handle);
        return pool ? body(*pool) : Error::invalid_value;
    });
}

/// From the pool that `find_pool` gives for the stream.
template <typename FindPool>
int allocate_in_order(Address* address, std::size_t bytes, void* stream_handle, FindPool&& find_pool) {
    return on_allowed_stream(stream_handle, [&](const auto& stream) {
        const std::shared_ptr<Pool> pool = find_pool(*stream);
        if (!address || !pool) {
            return Error::invalid_value;
        }
        if (const Error error = spoil_capture(*stream, Error::not_supported); error != Error::success) {
            return error;
        }
        if (const Error error = allowed_by_captures(); error != Error::success) {
            return error;
        }
        return put_address(address, [&](Address& found) { return allocate_from_pool(pool, bytes, found); });
    });
}

// ---- sharing between processes ----

inline int export_memory(IpcHandle* handle, Address address) {
    return in_context([&](Context&) {
        return handle ? Api::ipc_error(core().memory().export_handle(address, *handle)) : Error::invalid_value;
    });
}

}  // namespace awaken::emulator::calls
