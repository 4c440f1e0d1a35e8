// SPDX-License-Identifier: Apache-2.0
// What the front ends share: exporting, and the way a call enters the core.
#pragma once

#include <cstdint>
#include <new>
#include <type_traits>

#include "core/core.h"
#include "core/operations.h"

/// A symbol of the vendor's library.
#define AWAKEN_EXPORT extern "C" __attribute__((visibility("default")))

/// One more name of a symbol, which has been defined above.
#define AWAKEN_EXPORT_ALSO(name, defined) \
    extern "C" __attribute__((visibility("default"), alias(AWAKEN_TEXT(defined)))) decltype(defined) name

#define AWAKEN_TEXT(words) AWAKEN_QUOTED(words)
#define AWAKEN_QUOTED(words) #words

namespace awaken::emulator {

/// Nothing may be thrown through a C interface; what the core can throw is lack of memory.
template <typename Body>
[[nodiscard]] Error guarded(Body&& body) noexcept {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return Error::out_of_memory;
    } catch (...) {
        return Error::unknown;
    }
}

/// An address as the program passes it: CUdeviceptr or a pointer, which the ABI passes alike.
using Address = std::uintptr_t;
static_assert(sizeof(Address) == sizeof(void*) && sizeof(Address) == sizeof(unsigned long long));

/// Answers a question, if the program gave a place for that.
template <typename Value>
[[nodiscard]] Error put(Value* place, const std::type_identity_t<Value>& value) noexcept {
    if (!place) {
        return Error::invalid_value;
    }
    *place = value;
    return Error::success;
}

[[nodiscard]] inline std::uintptr_t number(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}
[[nodiscard]] inline void* pointer(std::uintptr_t number) noexcept {
    return reinterpret_cast<void*>(number);
}

/// Copies a string into the program's buffer as the drivers do: cut to fit, always ended.
inline void put_text(char* buffer, int length, std::string_view text) noexcept {
    if (length <= 0) {
        return;
    }
    const std::size_t count =
        text.size() < static_cast<std::size_t>(length) - 1 ? text.size() : static_cast<std::size_t>(length) - 1;
    for (std::size_t position = 0; position < count; ++position) {
        buffer[position] = text[position];
    }
    buffer[count] = '\0';
}

/// Attributes of a memory pool: the same numbers for both vendors.
enum class PoolAttribute : int {
    reuse_follow_event_dependencies = 1,
    reuse_allow_opportunistic = 2,
    reuse_allow_internal_dependencies = 3,
    release_threshold = 4,
    reserved_current = 5,
    reserved_high = 6,
    used_current = 7,
    used_high = 8
};
[[nodiscard]] Error get_pool_attribute(const Pool& pool, int attribute, void* value) noexcept;
[[nodiscard]] Error set_pool_attribute(Pool& pool, int attribute, const void* value) noexcept;

/// cuPointerGetAttribute's numbers, which HIP took over.
enum class PointerAttribute : int {
    context = 1,
    memory_type = 2,
    device_pointer = 3,
    host_pointer = 4,
    p2p_tokens = 5,
    sync_memops = 6,
    buffer_id = 7,
    is_managed = 8,
    device_ordinal = 9,
    is_legacy_ipc_capable = 10,
    range_start = 11,
    range_size = 12,
    mapped = 13,
    allowed_handle_types = 14,
    is_rdma_capable = 15,
    access_flags = 16,
    pool_handle = 17,
    mapping_size = 18,
    mapping_base = 19,
    memory_block_id = 20
};
/// Writes one attribute of `address` as the driver does. `allocation` is null for memory that the driver does not know:
/// then all attributes are zero and the device is -2. `host_type` and `device_type` are the vendor's memory types.
[[nodiscard]] Error put_pointer_attribute(const Allocation* allocation, std::uintptr_t address,
                                          PointerAttribute attribute, void* data, int host_type,
                                          int device_type) noexcept;

/// The 128 bytes that describe a 2-D copy: CUDA_MEMCPY2D and hip_Memcpy2D agree in layout.
struct Copy2DParameters {
    std::size_t source_x, source_y;
    int source_type;
    const void* source_host;
    std::uintptr_t source_device;
    void* source_array;
    std::size_t source_pitch;
    std::size_t destination_x, destination_y;
    int destination_type;
    void* destination_host;
    std::uintptr_t destination_device;
    void* destination_array;
    std::size_t destination_pitch;
    std::size_t width, height;
};
static_assert(sizeof(Copy2DParameters) == 128);
/// `host_type` is the vendor's "host memory"; arrays are not supported.
[[nodiscard]] Error decode(const Copy2DParameters& parameters, int host_type, CopyRequest& request) noexcept;

}  // namespace awaken::emulator
