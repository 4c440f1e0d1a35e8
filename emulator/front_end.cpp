// SPDX-License-Identifier: Apache-2.0
#include "front_end.h"

#include <cstring>

namespace awaken::emulator {
namespace {

template <typename Value>
Error write(void* data, Value value) noexcept {
    std::memcpy(data, &value, sizeof value);
    return Error::success;
}

}  // namespace

Error get_pool_attribute(const Pool& pool, int attribute, void* value) noexcept {
    if (!value) {
        return Error::invalid_value;
    }
    switch (static_cast<PoolAttribute>(attribute)) {
        case PoolAttribute::reuse_follow_event_dependencies:
        case PoolAttribute::reuse_allow_opportunistic:
        case PoolAttribute::reuse_allow_internal_dependencies:
            return write(value, int{1});
        case PoolAttribute::release_threshold:
            return write(value, pool.release_threshold.load());
        case PoolAttribute::reserved_current:
        case PoolAttribute::used_current:
            return write(value, pool.used.load());
        case PoolAttribute::reserved_high:
        case PoolAttribute::used_high:
            return write(value, pool.used_high.load());
    }
    return Error::invalid_value;
}

Error set_pool_attribute(Pool& pool, int attribute, const void* value) noexcept {
    if (!value) {
        return Error::invalid_value;
    }
    std::uint64_t number = 0;
    switch (static_cast<PoolAttribute>(attribute)) {
        case PoolAttribute::reuse_follow_event_dependencies:
        case PoolAttribute::reuse_allow_opportunistic:
        case PoolAttribute::reuse_allow_internal_dependencies:
            return Error::success;  // reuse is as eager as can be in any case
        case PoolAttribute::release_threshold:
            std::memcpy(&number, value, sizeof number);
            pool.release_threshold = number;
            return Error::success;
        case PoolAttribute::reserved_high:
        case PoolAttribute::used_high:
            std::memcpy(&number, value, sizeof number);
            if (number != 0) {
                return Error::invalid_value;
            }
            pool.used_high = pool.used.load();
            return Error::success;
        case PoolAttribute::reserved_current:
        case PoolAttribute::used_current:
            return Error::invalid_value;
    }
    return Error::invalid_value;
}

Error put_pointer_attribute(const Allocation* allocation, std::uintptr_t address, PointerAttribute attribute,
                            void* data, int host_type, int device_type) noexcept {
    if (!data) {
        return Error::invalid_value;
    }
    const bool known = allocation != nullptr;
    const bool host = known && (allocation->kind == MemoryKind::pinned || allocation->kind == MemoryKind::registered);
    const bool managed = known && allocation->kind == MemoryKind::managed;
    const bool mapped = known && allocation->kind == MemoryKind::mapped;
    const bool out_of_reach = mapped && allocation->access == 0;
    switch (attribute) {
        case PointerAttribute::context:
            return write(data, static_cast<const void*>(known ? allocation->context : nullptr));
        case PointerAttribute::memory_type:
            return write(data, known ? (host ? host_type : device_type) : 0);
        case PointerAttribute::device_pointer:
            write(data, known && !out_of_reach ? std::uint64_t{address} : 0);
            return out_of_reach ? Error::invalid_value : Error::success;
        case PointerAttribute::host_pointer:
            write(data, host || managed ? pointer(address) : nullptr);
            return known && !host && !managed ? Error::invalid_value : Error::success;
        case PointerAttribute::p2p_tokens:
            return Error::not_supported;
        case PointerAttribute::sync_memops:
            return write(data, known && allocation->synchronous ? 1U : 0U);
        case PointerAttribute::buffer_id:
            return write(data, known ? allocation->id : std::uint64_t{0});
        case PointerAttribute::is_managed:
            return write(data, managed ? 1U : 0U);
        case PointerAttribute::device_ordinal:
            return write(data, known ? allocation->device : -2);
        case PointerAttribute::is_legacy_ipc_capable:
            return write(data, known && allocation->kind == MemoryKind::device ? 1U : 0U);
        case PointerAttribute::range_start:
            return write(data, known ? std::uint64_t{mapped ? allocation->reservation_base : allocation->base} : 0);
        case PointerAttribute::range_size:
            return write(data, known ? (mapped ? allocation->reservation_size : allocation->size) : std::size_t{0});
        case PointerAttribute::mapped:
            return write(data, known ? 1U : 0U);
        case PointerAttribute::allowed_handle_types:
            return write(data, mapped ? std::uint64_t{allocation->physical->handle_types} : std::uint64_t{0});
        case PointerAttribute::is_rdma_capable:
            return write(data, 0U);
        case PointerAttribute::access_flags:
            return write(data, known && !out_of_reach ? 3U : 0U);
        case PointerAttribute::pool_handle:
            return write(data, static_cast<const void*>(known ? allocation->pool.get() : nullptr));
        case PointerAttribute::mapping_size:
            return write(data,
                         known ? (allocation->block ? allocation->block->size : allocation->size) : std::size_t{0});
        case PointerAttribute::mapping_base:
            return write(data,
                         known ? std::uint64_t{allocation->block ? allocation->block->base : allocation->base} : 0);
        case PointerAttribute::memory_block_id:
            return write(data, known ? (mapped ? allocation->physical->id : allocation->id) : std::uint64_t{0});
    }
    return Error::invalid_value;
}

Error decode(const Copy2DParameters& parameters, int host_type, CopyRequest& request) noexcept {
    if (parameters.source_array || parameters.destination_array) {
        return Error::not_supported;
    }
    const std::uintptr_t source =
        parameters.source_type == host_type ? number(parameters.source_host) : parameters.source_device;
    const std::uintptr_t destination =
        parameters.destination_type == host_type ? number(parameters.destination_host) : parameters.destination_device;
    // A pitch of 0 means that rows touch.
    request.source_pitch = parameters.source_pitch ? parameters.source_pitch : parameters.width;
    request.destination_pitch = parameters.destination_pitch ? parameters.destination_pitch : parameters.width;
    request.source = source + parameters.source_y * request.source_pitch + parameters.source_x;
    request.destination = destination + parameters.destination_y * request.destination_pitch + parameters.destination_x;
    request.width = parameters.width;
    request.rows = parameters.height;
    return Error::success;
}

}  // namespace awaken::emulator
