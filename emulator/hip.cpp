// SPDX-License-Identifier: Apache-2.0
// libamdhip64.so.5, .6 and .7: the HIP runtime on AMD. The calls are listed in docs/emulator.md.
//
// Compiled once per major version of ROCm (AWAKEN_HIP_GENERATION): symbols, memory types and the rules of the last
// error differ between them. What differs stands in this file's first part; the calls themselves are the same.
#include <cstring>
#include <string>

#include "core/memory_operations.h"
#include "figures.h"
#include "runtime_state.h"

#ifndef AWAKEN_HIP_GENERATION
#error "AWAKEN_HIP_GENERATION must be 5, 6 or 7"
#endif

namespace awaken::emulator::calls {
namespace {

/// The major version of ROCm that this library is: the one in its file name, unless AWAKEN_EMULATE names another (hip5,
/// hip6, hip7), for programs that load whichever library they find.
int generation() noexcept {
    static const int chosen = core().configuration().hip_generation;
    return chosen != 0 ? chosen : AWAKEN_HIP_GENERATION;
}

/// HIP_VERSION of the release that is emulated: 5.2.21153, 6.2.41133, 7.0.51831.
int version_number() noexcept {
    return generation() == 5 ? 50221153 : (generation() == 6 ? 60241133 : 70051831);
}

/// hipMemoryType. Before ROCm 6 it had no value for memory that the runtime does not know.
constexpr int kTypeUnregistered = 0;
int type_host() noexcept {
    return generation() == 5 ? 0 : 1;
}
int type_device() noexcept {
    return generation() == 5 ? 1 : 2;
}
/// Before ROCm 6 managed memory counts as host memory, marked by isManaged.
int type_managed() noexcept {
    return generation() == 5 ? type_host() : 3;
}

/// By the numbers of hipDeviceAttribute_t. The layouts are that of ROCm 5, which hipGetDeviceProperties without a
/// suffix has kept since, and that of hipDeviceProp_tR0600.
constexpr std::array kFigures{
    Figure{2, {0, 600}, 4, 2},    // copy engines
    Figure{3, {388, 400}, 4, 1},  // can map host memory
    Figure{4, {0, 0}, 4, 1},      // registered memory at the host's address
    Figure{5, {0, 0}, 4, Model::clock_khz},
    Figure{8, {360, 576}, 4, 1},   // concurrent kernels
    Figure{9, {780, 676}, 4, 1},   // concurrent managed access
    Figure{10, {656, 688}, 4, 1},  // cooperative launches
    Figure{19, {340, 616}, 4, Model::l2_bytes},
    Figure{23, {328, 360}, 4, Model::compute_major},
    Figure{24, {772, 652}, 4, 1},  // managed memory
    Figure{25, {0, 712}, 4, Model::blocks_per_multiprocessor},
    Figure{26, {284, 324}, 4, Model::threads_per_block},  // x of a block
    Figure{27, {288, 328}, 4, Model::threads_per_block},
    Figure{28, {292, 332}, 4, Model::threads_per_block},
    Figure{29, {296, 336}, 4, Model::grid_x},
    Figure{30, {300, 340}, 4, Model::grid_yz},
    Figure{31, {304, 344}, 4, Model::grid_yz},
    Figure{56, {280, 320}, 4, Model::threads_per_block},
    Figure{57, {344, 624}, 4, Model::threads_per_multiprocessor},
    Figure{58, {712, 312}, 8, 2147483647},  // pitch
    Figure{59, {316, 612}, 4, Model::bus_width},
    Figure{60, {0, 0}, 4, Model::clock_khz},
    Figure{61, {332, 364}, 4, Model::compute_minor},
    Figure{63, {336, 388}, 4, Model::multiprocessors},
    Figure{71, {272, 304}, 4, Model::registers},
    Figure{72, {0, 0}, 4, Model::registers},
    Figure{74, {264, 296}, 8, Model::shared_bytes_per_block},
    Figure{75, {0, 0}, 4, Model::shared_bytes_per_block},
    Figure{76, {376, 1416}, 8, Model::shared_bytes_per_multiprocessor},
    Figure{78, {0, 0}, 4, 1},        // stream priorities
    Figure{81, {720, 368}, 8, 256},  // texture alignment
    Figure{83, {320, 352}, 8, Model::constant_bytes},
    Figure{85, {0, 604}, 4, 1},            // unified addressing
    Figure{87, {276, 308}, 4, 64},         // wavefront
    Figure{88, {0, 744}, 4, 1},            // pools
    Figure{kNoAttribute, {0, 728}, 4, 1},  // host memory can be registered
    Figure{10002, {0, 0}, 4, Model::shared_bytes_per_multiprocessor},
    Figure{10013, {0, 0}, 4, 1},  // streams can wait for values in memory
    Figure{10015, {0, 0}, 4, Model::multiprocessors},
};

struct Api {
    static Error ready() {
        const Error error = core().availability(Vendor::hip);
        if (error == Error::invalid_value) {
            return Error::not_initialized;
        }
        // HIP forbids these calls and names no error for them; it has none like CUDA's "not permitted".
        return called_from_host_function() ? Error::not_supported : error;
    }
    static Error find_context(Context*& current) {
        current = &runtime_context();
        return Error::success;
    }
    static bool usable(const Context&) { return true; }
    /// Up to ROCm 6 each call leaves its own result as the last error, success included; since 7 only failures do.
    static int result(Error error) {
        if (generation() < 7 || (error != Error::success && error != Error::not_ready)) {
            thread_state().last_error = error;
        }
        return static_cast<int>(error);
    }
    /// Whatever keeps the memory from being attached, HIP blames the pointer.
    static Error ipc_error(Error error) {
        const bool blamed =
            error == Error::invalid_value || error == Error::peer_access_unsupported || error == Error::invalid_device;
        return blamed ? Error::invalid_device_pointer : error;
    }
    static int attribute(const Device& device, int attribute) {
        constexpr int kPageableMemory = 65;
        constexpr int kPciBus = 67;
        constexpr int kHostRegister = 90;
        switch (attribute) {
            case kPageableMemory:
                return core().configuration().pageable_memory ? 1 : 0;
            case kPciBus:
                return device.pci_bus;
            case kHostRegister:
                return generation() >= 6 ? 1 : -1;
            default:
                break;
        }
        const bool known = (attribute >= 0 && attribute < 100) || (attribute >= 10000 && attribute < 10030);
        return attribute_of(kFigures, attribute, known ? 0 : -1);
    }
    static int host_type() { return type_host(); }
    static int memory_type(const Allocation& allocation) {
        return allocation.kind == MemoryKind::managed ? type_managed()
                                                      : (allocation.on_device() ? type_device() : type_host());
    }
    /// See Faults::registered_elsewhere.
    static Address address_for_kernels(const Allocation& allocation, Address address) {
        constexpr Address kElsewhere = Address{1} << 46;
        const bool elsewhere =
            allocation.kind == MemoryKind::registered && core().configuration().faults.registered_elsewhere;
        return elsewhere ? address + kElsewhere : address;
    }
    static bool valid_kind(int kind) {
        constexpr int kLargest = 4;               // hipMemcpyDefault
        constexpr int kWithoutCopyEngine = 1024;  // hipMemcpyDeviceToDeviceNoCU
        return (kind >= 0 && kind <= kLargest) || kind == kWithoutCopyEngine;
    }
    static constexpr std::size_t pitch_alignment = 256;
    static constexpr bool has_empty_memory = true;
    static constexpr bool clears_address = true;
    static constexpr bool needs_room_for_text = true;
    static constexpr int least_priority = 1;
    static constexpr int greatest_priority = -1;
};

}  // namespace
}  // namespace awaken::emulator::calls

using namespace awaken::emulator;
using namespace awaken::emulator::calls;

#define AWAKEN_CALL(name) hip##name
#include "calls/common_calls.h"
#include "calls/driver_calls.h"
#include "calls/graphs.h"
#include "calls/runtime_calls.h"
#undef AWAKEN_CALL

namespace {

using hipError_t = int;
using hipStream_t = void*;
using hipDevice_t = int;

struct hipPointerAttribute_t {
    int type;
    int device;
    Address devicePointer;
    Address hostPointer;
    int isManaged;
    unsigned allocationFlags;
};
static_assert(sizeof(hipPointerAttribute_t) == 32);

constexpr PropertyLayout kOldLayout{0, 792, 0, 256, 368, 396};
constexpr PropertyLayout kNewLayout{1, 1472, 256, 288, 584, 1160};

}  // namespace

// ---- errors and versions ----

AWAKEN_EXPORT const char* hipGetErrorName(hipError_t error) {
    static const auto* const names = [] {
        auto* made = names_of_errors("hip", camel_name);
        // Where HIP's names are not CUDA's.
        made->insert_or_assign(2, "hipErrorOutOfMemory");
        made->insert_or_assign(3, "hipErrorNotInitialized");
        made->insert_or_assign(4, "hipErrorDeinitialized");
        made->insert_or_assign(200, "hipErrorInvalidImage");
        made->insert_or_assign(201, "hipErrorInvalidContext");
        made->insert_or_assign(205, "hipErrorMapFailed");
        made->insert_or_assign(209, "hipErrorNoBinaryForGpu");
        made->insert_or_assign(400, "hipErrorInvalidHandle");
        made->insert_or_assign(500, "hipErrorNotFound");
        return made;
    }();
    return name_in(*names, error, "hipErrorUnknown");
}

#if AWAKEN_HIP_GENERATION >= 6
AWAKEN_EXPORT_ALSO(hipExtGetLastError, hipGetLastError);
#endif

AWAKEN_EXPORT hipError_t hipInit(unsigned flags) {
    return call([&] { return flags == 0 ? Error::success : Error::invalid_value; });
}

AWAKEN_EXPORT hipError_t hipRuntimeGetVersion(int* version) {
    if (!version) {
        return Api::result(Error::invalid_value);
    }
    *version = version_number();
    return Api::result(Error::success);
}
AWAKEN_EXPORT_ALSO(hipDriverGetVersion, hipRuntimeGetVersion);

// ---- devices ----

AWAKEN_EXPORT hipError_t hipGetDeviceProperties(void* properties, int device) {
    return on_device(device, [&](Device& found) { return put_properties(found, kFigures, kOldLayout, properties); });
}
/// All devices are alike, so the first one suits any wish.
AWAKEN_EXPORT hipError_t hipChooseDevice(int* device, const void* wish) {
    return call([&] {
        if (!device || !wish) {
            return Error::invalid_value;
        }
        *device = 0;
        return Error::success;
    });
}
#if AWAKEN_HIP_GENERATION >= 6
AWAKEN_EXPORT hipError_t hipGetDevicePropertiesR0600(void* properties, int device) {
    return on_device(device, [&](Device& found) { return put_properties(found, kFigures, kNewLayout, properties); });
}
AWAKEN_EXPORT_ALSO(hipGetDevicePropertiesR0000, hipGetDeviceProperties);
AWAKEN_EXPORT_ALSO(hipChooseDeviceR0000, hipChooseDevice);
AWAKEN_EXPORT_ALSO(hipChooseDeviceR0600, hipChooseDevice);
#endif

AWAKEN_EXPORT hipError_t hipExtGetLinkTypeAndHopCount(int device, int peer, std::uint32_t* type, std::uint32_t* hops) {
    return on_device(device, [&](Device&) {
        constexpr std::uint32_t kXgmi = 4;
        if (!type || !hops || device == peer || !core().valid_device(peer)) {
            return Error::invalid_value;
        }
        *type = kXgmi;
        *hops = 1;
        return Error::success;
    });
}

AWAKEN_EXPORT_ALSO(hipCtxSynchronize, hipDeviceSynchronize);

// ---- contexts (deprecated by HIP; each device has one) ----

/// A device's context lives as long as the process.
AWAKEN_EXPORT hipError_t hipDevicePrimaryCtxRelease(hipDevice_t device) {
    return on_device(device, [](Device&) { return Error::success; });
}

AWAKEN_EXPORT hipError_t hipDevicePrimaryCtxGetState(hipDevice_t device, unsigned* flags, int* active) {
    return on_device(device, [&](Device&) {
        const Context* const current = thread_state().current();
        if (flags) {
            *flags = core().primary(device).flags;
        }
        if (active) {
            *active = current == &core().primary(device) ? 1 : 0;
        }
        return Error::success;
    });
}

// ---- memory ----

AWAKEN_EXPORT hipError_t hipExtMallocWithFlags(Address* address, std::size_t bytes, unsigned) {
    return hipMalloc(address, bytes);
}
AWAKEN_EXPORT_ALSO(hipHostMalloc, hipHostAlloc);
AWAKEN_EXPORT_ALSO(hipMemAllocHost, hipMallocHost);
AWAKEN_EXPORT_ALSO(hipFreeHost, hipHostFree);

/// Also takes page-locked host memory, as the real one does.
AWAKEN_EXPORT hipError_t hipFree(Address address) {
    return in_context([&](Context&) {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        return allocation && allocation->kind == MemoryKind::pinned ? free_pinned("hipFree", address)
                                                                    : free_device("hipFree", address);
    });
}

AWAKEN_EXPORT hipError_t hipMemGetAddressRange(Address* base, std::size_t* size, Address address) {
    return in_context([&](Context&) {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        if (!base || !size) {
            return Error::invalid_value;
        }
        if (!allocation) {
            return Error::invalid_device_pointer;
        }
        *base = allocation->base;
        *size = allocation->size;
        return Error::success;
    });
}

AWAKEN_EXPORT hipError_t hipMemPtrGetInfo(Address address, std::size_t* size) {
    return in_context([&](Context&) {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        return allocation ? put(size, allocation->size) : Error::invalid_value;
    });
}

// ---- pointers ----

AWAKEN_EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, Address address) {
    return call([&] {
        count_pointer_query();
        if (!attributes || address == 0) {
            return Error::invalid_value;
        }
        *attributes = {};
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        if (!allocation) {
            attributes->type = kTypeUnregistered;
            const bool refused = generation() == 5 || core().memory().in_device_range(address);
            return refused ? Error::invalid_value : Error::success;
        }
        attributes->type = Api::memory_type(*allocation);
        attributes->device = allocation->device;
        attributes->devicePointer = Api::address_for_kernels(*allocation, address);
        attributes->hostPointer = allocation->on_device() ? 0 : address;
        attributes->isManaged = allocation->kind == MemoryKind::managed ? 1 : 0;
        attributes->allocationFlags = allocation->flags;
        return Error::success;
    });
}

// ---- copies and fills ----

AWAKEN_EXPORT hipError_t hipMemcpyWithStream(Address destination, Address source, std::size_t bytes, int kind,
                                             hipStream_t stream) {
    return copy_bytes(destination, source, bytes, kind, stream, Synchrony::host);
}

// ---- sharing ----

AWAKEN_EXPORT hipError_t hipIpcGetMemHandle(IpcHandle* handle, Address address) {
    return export_memory(address == 0 ? nullptr : handle, address);
}
AWAKEN_EXPORT hipError_t hipIpcCloseMemHandle(Address address) {
    return in_context([&](Context&) { return close_import("hipIpcCloseMemHandle", address, generation() >= 6); });
}

// ---- memory operations of streams ----

namespace {

hipError_t wait_for_value(hipStream_t handle, Address address, unsigned bytes, std::uint64_t value, unsigned flags,
                          std::uint64_t mask) {
    return work_on_stream(handle, [&](const auto& stream) {
        const std::optional<Condition> condition = condition_of(flags);
        return condition ? operate_on_memory(*stream, {{address, bytes, value, condition, mask}})
                         : Error::invalid_value;
    });
}

hipError_t write_value(hipStream_t handle, Address address, unsigned bytes, std::uint64_t value) {
    return work_on_stream(
        handle, [&](const auto& stream) { return operate_on_memory(*stream, {{address, bytes, value, {}}}); });
}

}  // namespace

AWAKEN_EXPORT hipError_t hipStreamWaitValue32(hipStream_t stream, Address address, std::uint32_t value, unsigned flags,
                                              std::uint32_t mask) {
    return wait_for_value(stream, address, 4, value, flags, mask);
}
AWAKEN_EXPORT hipError_t hipStreamWaitValue64(hipStream_t stream, Address address, std::uint64_t value, unsigned flags,
                                              std::uint64_t mask) {
    return wait_for_value(stream, address, 8, value, flags, mask);
}
/// HIP's headers reserve the flags of writes and say that they are ignored.
AWAKEN_EXPORT hipError_t hipStreamWriteValue32(hipStream_t stream, Address address, std::uint32_t value, unsigned) {
    return write_value(stream, address, 4, value);
}
AWAKEN_EXPORT hipError_t hipStreamWriteValue64(hipStream_t stream, Address address, std::uint64_t value, unsigned) {
    return write_value(stream, address, 8, value);
}
