// SPDX-License-Identifier: Apache-2.0
// libcuda.so.1: the CUDA driver API. The calls are listed in docs/emulator.md.
//
// Handles are addresses of the core's objects; numbers of enumerations are those of the driver's ABI. As with the real
// driver each call needs cuInit first, and those that work on a context need a current one.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "core/memory_operations.h"
#include "cuda.h"

namespace awaken::emulator::calls {
namespace {

std::atomic<bool> initialised{false};

struct Api : Cuda {
    static Error ready() {
        if (!initialised.load(std::memory_order_acquire)) {
            return Error::not_initialized;
        }
        if (called_from_host_function()) {
            return Error::not_permitted;
        }
        return core().availability(Vendor::cuda);
    }
    static Error find_context(Context*& current) {
        current = thread_state().current();
        if (!current) {
            return Error::invalid_context;
        }
        return usable(*current) ? Error::success : Error::context_destroyed;
    }
    static int result(Error error) { return static_cast<int>(error); }
    static int host_type() { return 1; }
    static int memory_type(const Allocation&) { return 2; }  // device memory: host memory has its own number
    static constexpr bool has_empty_memory = false;
};

}  // namespace
}  // namespace awaken::emulator::calls

using namespace awaken::emulator;  // the front ends are the core's other half
using namespace awaken::emulator::calls;

// Names that differ from what the headers below call them, mostly by a version, as in cuda.h.
#define cuDeviceGetStreamPriorityRange cuCtxGetStreamPriorityRange
#define cuDeviceSynchronize cuCtxSynchronize
#define cuDeviceTotalMem cuDeviceTotalMem_v2
#define cuGetDeviceFlags cuCtxGetFlags
#define cuCtxPushCurrent cuCtxPushCurrent_v2
#define cuCtxPopCurrent cuCtxPopCurrent_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMalloc cuMemAlloc_v2
#define cuMallocHost cuMemAllocHost_v2
#define cuMallocManaged cuMemAllocManaged
#define cuMallocAsync cuMemAllocAsync
#define cuMallocFromPoolAsync cuMemAllocFromPoolAsync
#define cuFreeAsync cuMemFreeAsync
#define cuHostAlloc cuMemHostAlloc
#define cuHostFree cuMemFreeHost
#define cuHostGetFlags cuMemHostGetFlags
#define cuHostRegister cuMemHostRegister_v2
#define cuHostUnregister cuMemHostUnregister
#define cuDrvPointerGetAttributes cuPointerGetAttributes
#define cuMemcpyHtoD cuMemcpyHtoD_v2
#define cuMemcpyDtoH cuMemcpyDtoH_v2
#define cuMemcpyDtoD cuMemcpyDtoD_v2
#define cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
#define cuMemcpyParam2D cuMemcpy2D_v2
#define cuMemcpyParam2DAsync cuMemcpy2DAsync_v2
#define cuMemsetD8 cuMemsetD8_v2
#define cuMemsetD16 cuMemsetD16_v2
#define cuMemsetD32 cuMemsetD32_v2
#define cuStreamCreateWithFlags cuStreamCreate
#define cuStreamDestroy cuStreamDestroy_v2
#define cuStreamBeginCapture cuStreamBeginCapture_v2
#define cuEventCreateWithFlags cuEventCreate
#define cuEventDestroy cuEventDestroy_v2
#define cuModuleLaunchKernel cuLaunchKernel
#define cuModuleLaunchCooperativeKernel cuLaunchCooperativeKernel
#define cuModuleOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessor

#define AWAKEN_CALL(name) cu##name
#include "calls/common_calls.h"
#include "calls/cuda_calls.h"
#include "calls/driver_calls.h"
#include "calls/graphs.h"
#undef AWAKEN_CALL

namespace {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = Address;
using CUcontext = void*;
using CUstream = void*;
using CUevent = void*;
using CUfunction = void*;
using CUmemoryPool = void*;
struct CUmemAllocationProp {
    int type;
    int handle_types;
    MemoryLocation location;
    void* windows;
    unsigned char flags[8];
};
static_assert(sizeof(CUmemAllocationProp) == 32);
using CUmemGenericAllocationHandle = unsigned long long;

}  // namespace

// ---- the driver ----

AWAKEN_EXPORT CUresult cuInit(unsigned flags) {
    if (flags != 0) {
        return static_cast<CUresult>(Error::invalid_value);
    }
    const Error error = guarded([] { return core().availability(Vendor::cuda); });
    if (error == Error::success) {
        initialised.store(true, std::memory_order_release);
    }
    return static_cast<CUresult>(error);
}

AWAKEN_EXPORT CUresult cuDriverGetVersion(int* version) {
    if (!version) {
        return static_cast<CUresult>(Error::invalid_value);
    }
    *version = kCudaVersion;
    return 0;
}

AWAKEN_EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
    const bool known = capital_name(static_cast<Error>(error)) != nullptr;
    if (!text) {
        return static_cast<CUresult>(Error::invalid_value);
    }
    *text = known ? description(static_cast<Error>(error)) : nullptr;
    return static_cast<CUresult>(known ? Error::success : Error::invalid_value);
}

AWAKEN_EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
    static const auto* const names = [] {
        auto* made = names_of_errors("CUDA_ERROR_", capital_name);
        made->insert_or_assign(0, "CUDA_SUCCESS");
        return made;
    }();
    if (!text) {
        return static_cast<CUresult>(Error::invalid_value);
    }
    *text = name_in(*names, error, nullptr);
    return static_cast<CUresult>(*text ? Error::success : Error::invalid_value);
}

// ---- devices ----

AWAKEN_EXPORT_ALSO(cuDeviceGetUuid_v2, cuDeviceGetUuid);

AWAKEN_EXPORT CUresult cuDeviceGetCount(int* count) {
    return call([&] { return put(count, core().device_count()); });
}
AWAKEN_EXPORT CUresult cuDeviceGetP2PAttribute(int* value, int attribute, CUdevice device, CUdevice peer) {
    return on_device(device, [&](Device&) {
        if (!value || device == peer || !core().valid_device(peer)) {
            return Error::invalid_value;
        }
        // 1: relative performance (0 is best); 2: access; 3: atomics; 4: arrays.
        if (attribute < 1 || attribute > 4) {
            return Error::invalid_value;
        }
        *value = attribute == 2 || attribute == 3 ? (can_access_peer(device, peer) ? 1 : 0) : 0;
        return Error::success;
    });
}

// ---- contexts ----

AWAKEN_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return on_device(device,
                     [&](Device&) { return core().release_primary(device) ? Error::success : Error::invalid_context; });
}
AWAKEN_EXPORT_ALSO(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

AWAKEN_EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return on_device(device, [&](Device&) {
        core().reset_primary(device);
        return Error::success;
    });
}
AWAKEN_EXPORT_ALSO(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

AWAKEN_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    return on_device(device, [&](Device&) {
        if (!flags || !active) {
            return Error::invalid_value;
        }
        *flags = core().primary(device).flags;
        *active = core().primary(device).alive ? 1 : 0;
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    return on_device(device, [&](Device&) {
        core().primary(device).flags = flags;
        return Error::success;
    });
}
AWAKEN_EXPORT_ALSO(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

AWAKEN_EXPORT CUresult cuCtxCreate_v2(CUcontext* context, unsigned flags, CUdevice device) {
    return on_device(device, [&](Device&) {
        if (!context) {
            return Error::invalid_value;
        }
        Context& created = core().create_context(device, flags);
        thread_state().contexts.push_back(&created);
        *context = &created;
        return Error::success;
    });
}
/// With a list of execution affinities, which have no meaning here.
AWAKEN_EXPORT CUresult cuCtxCreate_v3(CUcontext* context, void*, int, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}
AWAKEN_EXPORT CUresult cuCtxCreate_v4(CUcontext* context, void*, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(context, flags, device);
}

AWAKEN_EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
    return call([&] {
        Context* const context = core().find_context(handle);
        if (!context || context->primary || !context->alive) {
            return Error::invalid_context;
        }
        core().destroy_context(*context);
        ThreadState& state = thread_state();
        if (state.current() == context) {
            state.contexts.pop_back();
        }
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
    return call([&] {
        const Context* const context = handle ? core().find_context(handle) : thread_state().current();
        if (!context || !id) {
            return Error::invalid_context;
        }
        if (!context->alive) {
            return Error::context_destroyed;
        }
        *id = context->identity;
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuCtxGetApiVersion(CUcontext, unsigned* version) {
    return call([&] { return put(version, 3020); });
}

AWAKEN_EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    return in_context([&](Context& context) {
        const Context* const other = core().find_context(peer);
        if (!other || flags != 0) {
            return other ? Error::invalid_value : Error::invalid_context;
        }
        return enable_peer(context, other->device);
    });
}

AWAKEN_EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer) {
    return in_context([&](Context& context) {
        const Context* const other = core().find_context(peer);
        return other ? disable_peer(context, other->device) : Error::invalid_context;
    });
}

// ---- memory ----

AWAKEN_EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch, std::size_t width,
                                          std::size_t height, unsigned) {
    if (!pitch || width == 0 || height == 0) {
        return static_cast<CUresult>(Error::invalid_value);
    }
    constexpr std::size_t kAlignment = Model::pitch_alignment;
    const std::size_t rounded = (width + kAlignment - 1) / kAlignment * kAlignment;
    const CUresult result = cuMemAlloc_v2(address, rounded * height);
    if (result == 0) {
        *pitch = rounded;
    }
    return result;
}

AWAKEN_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    return free_memory("cuMemFree", address);
}

AWAKEN_EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size, CUdeviceptr address) {
    return in_context([&](Context&) {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        if (!allocation || allocation->kind == MemoryKind::registered) {
            return Error::not_found;
        }
        if (allocation->kind == MemoryKind::mapped && allocation->access == 0) {
            return Error::not_found;
        }
        if (base) {
            *base = allocation->base;
        }
        if (size) {
            *size = allocation->size;
        }
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device, Address host, unsigned flags) {
    return device_address(device, host, flags);
}
// ---- addresses and physical memory apart ----

namespace {

constexpr int kPosixFile = 1;

Error check(const CUmemAllocationProp* properties) {
    constexpr int kPinned = 1;
    if (!properties || properties->type != kPinned) {
        return Error::invalid_value;
    }
    if (properties->location.type != kLocationDevice) {
        return Error::not_supported;
    }
    if (!core().valid_device(properties->location.id)) {
        return Error::invalid_device;
    }
    return properties->handle_types == 0 || properties->handle_types == kPosixFile ? Error::success
                                                                                   : Error::not_supported;
}

CUmemGenericAllocationHandle give_handle(std::shared_ptr<Physical> physical) {
    return number(core().physicals.add(std::move(physical)));
}

template <typename Body>
CUresult on_physical(CUmemGenericAllocationHandle handle, Body&& body) noexcept {
    return call([&] {
        const std::shared_ptr<Physical> physical = core().physicals.find(pointer(handle));
        return physical ? body(physical) : Error::invalid_value;
    });
}

}  // namespace

AWAKEN_EXPORT CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* properties,
                                                     int option) {
    return call([&] {
        if (!granularity || option < 0 || option > 1) {
            return Error::invalid_value;
        }
        if (const Error error = check(properties); error != Error::success) {
            return error;
        }
        *granularity = kPhysicalGranularity;
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr,
                                           unsigned long long flags) {
    return call([&] {
        if (!address || flags != 0) {
            return Error::invalid_value;
        }
        return put_address(address,
                           [&](Address& found) { return core().memory().reserve_addresses(bytes, alignment, found); });
    });
}

AWAKEN_EXPORT CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes) {
    return call([&] { return core().memory().free_addresses(address, bytes); });
}

AWAKEN_EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes,
                                   const CUmemAllocationProp* properties, unsigned long long flags) {
    return call([&] {
        if (!handle || flags != 0) {
            return Error::invalid_value;
        }
        if (const Error error = check(properties); error != Error::success) {
            return error;
        }
        std::shared_ptr<Physical> physical;
        const Error error = core().memory().create_physical(
            properties->location.id, bytes, static_cast<unsigned long long>(properties->handle_types), physical);
        if (error == Error::success) {
            *handle = give_handle(std::move(physical));
        }
        return error;
    });
}

AWAKEN_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return on_physical(handle, [&](const std::shared_ptr<Physical>& physical) {
        if (--physical->references == 0) {
            core().physicals.remove(pointer(handle));
        }
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    return call([&] {
        const std::shared_ptr<Allocation> allocation = core().memory().find(number(address));
        if (!handle || !allocation || allocation->kind != MemoryKind::mapped) {
            return Error::invalid_value;
        }
        // The program may have released its last handle.
        if (allocation->physical->references++ == 0) {
            core().physicals.add(allocation->physical);
        }
        *handle = number(allocation->physical.get());
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                              CUmemGenericAllocationHandle handle) {
    return on_physical(handle, [&](const std::shared_ptr<Physical>& physical) {
        if (!properties) {
            return Error::invalid_value;
        }
        *properties = {1, static_cast<int>(physical->handle_types), {kLocationDevice, physical->device}, nullptr, {}};
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset,
                                CUmemGenericAllocationHandle handle, unsigned long long flags) {
    return on_physical(handle, [&](const std::shared_ptr<Physical>& physical) {
        if (flags != 0 || offset != 0) {
            return Error::invalid_value;
        }
        return core().memory().map(address, bytes, physical);
    });
}

/// The driver waits for nothing here: the program must have seen the end of what uses the memory.
AWAKEN_EXPORT CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes) {
    return call([&] { return core().memory().unmap(address, bytes); });
}

AWAKEN_EXPORT CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const MemoryAccess* descriptions,
                                      std::size_t count) {
    return call([&] {
        const std::shared_ptr<Allocation> first = core().memory().find(address);
        if (!first || first->kind != MemoryKind::mapped) {
            return Error::invalid_value;
        }
        return give_access(first->device, descriptions, count,
                           [&](int device, bool on) { return core().memory().set_access(address, bytes, device, on); });
    });
}

AWAKEN_EXPORT CUresult cuMemGetAccess(unsigned long long* flags, const MemoryLocation* location, CUdeviceptr address) {
    return call([&] {
        const std::shared_ptr<Allocation> allocation = core().memory().find(address);
        if (!flags || !location || location->type != kLocationDevice || !core().valid_device(location->id) ||
            !allocation || allocation->kind != MemoryKind::mapped) {
            return Error::invalid_value;
        }
        *flags = allocation->accessible_by(location->id) ? kAccessReadWrite : kAccessNone;
        return Error::success;
    });
}

AWAKEN_EXPORT CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle, int type,
                                                    unsigned long long flags) {
    return on_physical(handle, [&](const std::shared_ptr<Physical>& physical) {
        if (!shareable || type != kPosixFile || flags != 0) {
            return Error::invalid_value;
        }
        int file = -1;
        const Error error = Memory::export_physical(*physical, file);
        if (error == Error::success) {
            std::memcpy(shareable, &file, sizeof file);
        }
        return error;
    });
}

/// A file descriptor is passed as if it were the pointer.
AWAKEN_EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable, int type) {
    return call([&] {
        if (!handle || type != kPosixFile) {
            return Error::invalid_value;
        }
        std::shared_ptr<Physical> physical;
        const Error error = core().memory().import_physical(static_cast<int>(number(shareable)), physical);
        if (error == Error::success) {
            *handle = give_handle(std::move(physical));
        }
        return error;
    });
}

// ---- pools ----

AWAKEN_EXPORT CUresult cuMemPoolGetAccess(int* flags, CUmemoryPool handle, const MemoryLocation* location) {
    return on_pool(handle, [&](const Pool& pool) {
        if (!location || location->type != kLocationDevice || !core().valid_device(location->id)) {
            return Error::invalid_value;
        }
        return put(flags, pool.accessible_by(location->id) ? kAccessReadWrite : kAccessNone);
    });
}

// ---- copies and fills ----

AWAKEN_EXPORT_ALSO(cuMemcpy, cuMemcpyDtoD_v2);
AWAKEN_EXPORT_ALSO(cuMemcpyAsync, cuMemcpyDtoDAsync_v2);
AWAKEN_EXPORT_ALSO(cuMemcpy2DUnaligned_v2, cuMemcpy2D_v2);

AWAKEN_EXPORT CUresult cuMemcpyPeer(CUdeviceptr destination, CUcontext, CUdeviceptr source, CUcontext,
                                    std::size_t bytes) {
    return copy_bytes(destination, source, bytes, nullptr, Synchrony::host);
}
AWAKEN_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext, CUdeviceptr source, CUcontext,
                                         std::size_t bytes, CUstream stream) {
    return copy_bytes(destination, source, bytes, stream, Synchrony::stream);
}
namespace {

/// CUmemcpyAttributes. Batches are done backwards here: the driver promises no order, and who relies on one is to
/// notice.
struct BatchAttributes {
    unsigned source_order;
    MemoryLocation source, destination;
    unsigned flags;
};
static_assert(sizeof(BatchAttributes) == 24);

CUresult copy_batch(const CUdeviceptr* destinations, const CUdeviceptr* sources, const std::size_t* sizes,
                    const std::size_t count, const BatchAttributes* attributes, const std::size_t* firsts,
                    const std::size_t kinds, CUstream stream) {
    constexpr unsigned kInvalidValue = 1;
    constexpr unsigned kMostOrders = 3;
    bool sound = destinations && sources && sizes && count != 0 && attributes && firsts && kinds != 0 &&
                 kinds <= count && firsts[0] == 0 &&
                 number(stream) > 1;  // not into the legacy default stream, which has two handles
    for (std::size_t i = 0; sound && i < kinds; ++i) {
        sound = attributes[i].source_order >= 1 && attributes[i].source_order <= kMostOrders && firsts[i] < count &&
                (i == 0 || firsts[i] > firsts[i - 1]);
    }
    if (!sound) {
        return static_cast<CUresult>(kInvalidValue);
    }
    for (std::size_t i = count; i-- > 0;) {
        if (const CUresult result = cuMemcpyAsync(destinations[i], sources[i], sizes[i], stream);
            result != CUresult{}) {
            return result;
        }
    }
    return CUresult{};
}

}  // namespace

AWAKEN_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* destinations, CUdeviceptr* sources, std::size_t* sizes,
                                             std::size_t count, BatchAttributes* attributes, std::size_t* firsts,
                                             std::size_t kinds, CUstream stream) {
    return copy_batch(destinations, sources, sizes, count, attributes, firsts, kinds, stream);
}
AWAKEN_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr* destinations, CUdeviceptr* sources, std::size_t* sizes,
                                          std::size_t count, BatchAttributes* attributes, std::size_t* firsts,
                                          std::size_t kinds, std::size_t* failed, CUstream stream) {
    const CUresult result = copy_batch(destinations, sources, sizes, count, attributes, firsts, kinds, stream);
    if (result != CUresult{} && failed) {
        *failed = SIZE_MAX;
    }
    return result;
}
AWAKEN_EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr address, std::size_t pitch, unsigned char value, std::size_t width,
                                       std::size_t height) {
    return fill_rows({address, pitch, value, 1, width, height}, nullptr, Synchrony::host);
}
AWAKEN_EXPORT CUresult cuMemsetD2D16_v2(CUdeviceptr address, std::size_t pitch, unsigned short value, std::size_t width,
                                        std::size_t height) {
    return fill_rows({address, pitch, value, 2, width, height}, nullptr, Synchrony::host);
}
AWAKEN_EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr address, std::size_t pitch, unsigned value, std::size_t width,
                                        std::size_t height) {
    return fill_rows({address, pitch, value, 4, width, height}, nullptr, Synchrony::host);
}
AWAKEN_EXPORT CUresult cuMemsetD2D8Async(CUdeviceptr address, std::size_t pitch, unsigned char value, std::size_t width,
                                         std::size_t height, CUstream stream) {
    return fill_rows({address, pitch, value, 1, width, height}, stream, Synchrony::stream);
}

// ---- sharing ----

AWAKEN_EXPORT_ALSO(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle);

// ---- streams and events ----

AWAKEN_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
    return on_stream(handle, [&](const auto& stream) { return put(context, &stream->context()); });
}

AWAKEN_EXPORT CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
    return on_stream(handle, [&](const auto& stream) { return put(id, number(stream.get())); });
}

AWAKEN_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
    return static_cast<CUresult>(exchange_capture_mode(mode));
}
AWAKEN_EXPORT CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned) {
    return cuEventRecord(handle, stream);
}

AWAKEN_EXPORT CUresult cuCtxRecordEvent(CUcontext context_handle, CUevent handle) {
    return call([&] {
        Context* const context = core().find_context(context_handle);
        if (!context || !context->alive) {
            return Error::invalid_context;
        }
        context->enter();
        const std::shared_ptr<Event> event = core().events.find(handle);
        if (!event || &event->context() != context) {
            return Error::invalid_handle;
        }
        if (const Error error = whole_context_allowed(*context); error != Error::success) {
            return error;
        }
        event->record_context();
        return Error::success;
    });
}

AWAKEN_EXPORT_ALSO(cuEventElapsedTime_v2, cuEventElapsedTime);

// ---- memory operations of streams ----

namespace {

/// CUstreamBatchMemOpParams: waits and writes are laid out alike, barriers and flushes have their flags elsewhere.
struct BatchOperation {
    int type;
    unsigned barrier_flags;
    CUdeviceptr address;
    std::uint64_t value;
    unsigned flags;
    CUdeviceptr alias;
    std::uint64_t unused;
};
static_assert(sizeof(BatchOperation) == 48);

std::optional<MemoryOperation> memory_wait(CUdeviceptr address, unsigned bytes, std::uint64_t value, unsigned flags) {
    // What others have written before the value is visible in any case.
    constexpr unsigned kFlush = 1U << 30;
    const std::optional<Condition> condition = condition_of(flags & ~kFlush);
    return condition ? std::optional(MemoryOperation{address, bytes, value, condition}) : std::nullopt;
}

std::optional<MemoryOperation> memory_write(CUdeviceptr address, unsigned bytes, std::uint64_t value, unsigned flags) {
    constexpr unsigned kNoMemoryBarrier = 1;
    return flags <= kNoMemoryBarrier ? std::optional(MemoryOperation{address, bytes, value, {}}) : std::nullopt;
}

CUresult give_to_stream(CUstream handle, const std::optional<MemoryOperation>& operation) {
    return work_on_stream(handle, [&](const auto& stream) {
        return operation ? operate_on_memory(*stream, {*operation}) : Error::invalid_value;
    });
}

/// Adds what the operation is; false when there is no such operation. A barrier or flush is none: each operation of a
/// batch is visible before the next.
bool add_operation(const BatchOperation& given, bool barriers, std::vector<MemoryOperation>& operations) {
    enum Type : int { kWait32 = 1, kWrite32 = 2, kFlush = 3, kWait64 = 4, kWrite64 = 5, kBarrier = 6 };
    constexpr unsigned kBarrierOfGpu = 1;
    std::optional<MemoryOperation> operation;
    switch (given.type) {
        case kWait32:
            operation = memory_wait(given.address, 4, given.value, given.flags);
            break;
        case kWait64:
            operation = memory_wait(given.address, 8, given.value, given.flags);
            break;
        case kWrite32:
            operation = memory_write(given.address, 4, given.value, given.flags);
            break;
        case kWrite64:
            operation = memory_write(given.address, 8, given.value, given.flags);
            break;
        case kFlush:
            return given.barrier_flags == 0;
        case kBarrier:
            return barriers && given.barrier_flags <= kBarrierOfGpu;
        default:
            break;
    }
    if (operation) {
        operations.push_back(*operation);
    }
    return operation.has_value();
}

CUresult give_batch(CUstream handle, unsigned count, const BatchOperation* given, unsigned flags, bool barriers) {
    return work_on_stream(handle, [&](const auto& stream) {
        constexpr unsigned kMost = 255;
        if (!given || count == 0 || count > kMost || flags != 0) {
            return Error::invalid_value;
        }
        std::vector<MemoryOperation> operations;
        for (const BatchOperation& operation : std::span(given, count)) {
            if (!add_operation(operation, barriers, operations)) {
                return Error::invalid_value;
            }
        }
        return operate_on_memory(*stream, std::move(operations));
    });
}

/// The first version of these calls does nothing unless the driver's module was loaded with EnableStreamMemOPs.
template <typename Body>
CUresult first_version(Body&& body) {
    return core().configuration().faults.first_memory_operations ? body() : call([] { return Error::not_supported; });
}

}  // namespace

AWAKEN_EXPORT CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, std::uint32_t value,
                                              unsigned flags) {
    return give_to_stream(stream, memory_wait(address, 4, value, flags));
}
AWAKEN_EXPORT CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, std::uint64_t value,
                                              unsigned flags) {
    return give_to_stream(stream, memory_wait(address, 8, value, flags));
}
AWAKEN_EXPORT CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, std::uint32_t value,
                                               unsigned flags) {
    return give_to_stream(stream, memory_write(address, 4, value, flags));
}
AWAKEN_EXPORT CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, std::uint64_t value,
                                               unsigned flags) {
    return give_to_stream(stream, memory_write(address, 8, value, flags));
}
AWAKEN_EXPORT CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned count, const BatchOperation* operations,
                                             unsigned flags) {
    return give_batch(stream, count, operations, flags, true);
}

AWAKEN_EXPORT CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags) {
    return first_version([&] { return cuStreamWaitValue32_v2(stream, address, value, flags); });
}
AWAKEN_EXPORT CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned flags) {
    return first_version([&] { return cuStreamWaitValue64_v2(stream, address, value, flags); });
}
AWAKEN_EXPORT CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, std::uint32_t value, unsigned flags) {
    return first_version([&] { return cuStreamWriteValue32_v2(stream, address, value, flags); });
}
AWAKEN_EXPORT CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, std::uint64_t value, unsigned flags) {
    return first_version([&] { return cuStreamWriteValue64_v2(stream, address, value, flags); });
}
AWAKEN_EXPORT CUresult cuStreamBatchMemOp(CUstream stream, unsigned count, const BatchOperation* operations,
                                          unsigned flags) {
    return first_version([&] { return give_batch(stream, count, operations, flags, false); });
}

// ---- kernels ----

AWAKEN_EXPORT CUresult cuFuncSetAttribute(CUfunction function, int, int) {
    return call([&] { return core().functions.find(function) ? Error::success : Error::invalid_handle; });
}

AWAKEN_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction function,
                                                                            int block_size, std::size_t, unsigned) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, block_size, 0);
}
// ---- finding calls by name ----

AWAKEN_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, std::uint64_t,
                                           int* status) {
    // What each plain name means follows from the version that the caller was built for; these changed their
    // parameters.
    struct Change {
        const char* name;
        int since;
        const char* means;
    };
    static constexpr std::array kChanges{
        Change{"cuCtxCreate", 13000, "cuCtxCreate_v4"},
        Change{"cuCtxCreate", 11040, "cuCtxCreate_v3"},
        Change{"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
        Change{"cuMemAdvise", 13000, "cuMemAdvise_v2"},
        Change{"cuMemAdvise", 0, "cuMemAdvise"},
        Change{"cuMemPrefetchAsync", 13000, "cuMemPrefetchAsync_v2"},
        Change{"cuMemPrefetchAsync", 0, "cuMemPrefetchAsync"},
        Change{"cuStreamBatchMemOp", 11070, "cuStreamBatchMemOp_v2"},
        Change{"cuStreamBatchMemOp", 0, "cuStreamBatchMemOp"},
        Change{"cuStreamWaitValue32", 11070, "cuStreamWaitValue32_v2"},
        Change{"cuStreamWaitValue32", 0, "cuStreamWaitValue32"},
        Change{"cuStreamWaitValue64", 11070, "cuStreamWaitValue64_v2"},
        Change{"cuStreamWaitValue64", 0, "cuStreamWaitValue64"},
        Change{"cuStreamWriteValue32", 11070, "cuStreamWriteValue32_v2"},
        Change{"cuStreamWriteValue32", 0, "cuStreamWriteValue32"},
        Change{"cuStreamWriteValue64", 11070, "cuStreamWriteValue64_v2"},
        Change{"cuStreamWriteValue64", 0, "cuStreamWriteValue64"},
        Change{"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
        Change{"cuGetProcAddress", 0, "cuGetProcAddress"},
    };
    constexpr int kFound = 0;
    constexpr int kNotFound = 1;
    if (!symbol || !function) {
        return static_cast<CUresult>(Error::invalid_value);
    }
    *function = nullptr;
    Dl_info self{};
    if (dladdr(reinterpret_cast<void*>(&cuInit), &self) == 0) {
        return static_cast<CUresult>(Error::operating_system);
    }
    void* const library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) {
        return static_cast<CUresult>(Error::operating_system);
    }
    const auto change = std::find_if(kChanges.begin(), kChanges.end(), [&](const Change& candidate) {
        return std::strcmp(candidate.name, symbol) == 0 && version >= candidate.since;
    });
    if (change != kChanges.end()) {
        *function = dlsym(library, change->means);
    } else {
        *function = dlsym(library, (std::string(symbol) + "_v2").c_str());
        if (!*function) {
            *function = dlsym(library, symbol);
        }
    }
    dlclose(library);
    if (status) {
        *status = *function ? kFound : kNotFound;
    }
    return static_cast<CUresult>(*function ? Error::success : Error::not_found);
}

AWAKEN_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version, std::uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
