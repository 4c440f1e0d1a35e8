// SPDX-License-Identifier: Apache-2.0
// The binary interface of the CUDA driver: the types and numbers of cuda.h that cuda.cpp and cuda_runs.cpp rely on, and
// the functions. Addresses of device memory are pointers here; cuda.h has whole numbers of the same size.
#pragma once

#include <cstddef>

#include "gpu/driver_abi.h"
#include "gpu/dynamic_library.h"
#include "gpu/gpu.h"

namespace awaken::gpu::cuda_abi {

using namespace driver_abi;

using Context = void*;
using MemHandle = unsigned long long;

inline constexpr Result kErrorNotInitialized = 3;
inline constexpr Result kErrorInvalidContext = 201;
inline constexpr Result kErrorNotPermitted = 800;

enum PointerAttribute : int {
    kContextAttribute = 1,
    kMemoryTypeAttribute = 2,
    kSyncMemopsAttribute = 6,
    kBufferIdAttribute = 7,
    kIsManagedAttribute = 8,
    kDeviceOrdinalAttribute = 9,
    kIsLegacyIpcCapableAttribute = 10,
    kRangeStartAttribute = 11,
    kRangeSizeAttribute = 12,
    kAllowedHandleTypesAttribute = 14
};

inline constexpr unsigned kPosixFileDescriptor = 1;
inline constexpr int kLocationIsDevice = 1;
inline constexpr int kReadAndWrite = 3;

inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;
inline constexpr unsigned kMemoryTypeUnified = 4;

inline constexpr int kDeviceMaxPitch = 11;
inline constexpr int kDeviceMultiprocessorCount = 16;
inline constexpr int kDeviceComputeCapabilityMajor = 75;
inline constexpr int kDeviceComputeCapabilityMinor = 76;

/// CUmemAccessDesc.
struct MemAccess {
    int location_type;
    int location_id;
    int flags;
};
static_assert(sizeof(MemAccess) == 12, "layout of CUmemAccessDesc");

/// CUmemcpyAttributes.
struct CopyAttributes {
    unsigned source_order;
    unsigned source_location[2];
    unsigned destination_location[2];
    unsigned flags;
};
static_assert(sizeof(CopyAttributes) == 24, "layout of CUmemcpyAttributes");
inline constexpr unsigned kSourceInStreamOrder = 1;

struct Pitched {
    std::size_t source_x;
    std::size_t source_y;
    unsigned source_type;
    const void* source_host;
    const void* source_device;
    void* source_array;
    std::size_t source_pitch;
    std::size_t destination_x;
    std::size_t destination_y;
    unsigned destination_type;
    void* destination_host;
    void* destination_device;
    void* destination_array;
    std::size_t destination_pitch;
    std::size_t width;
    std::size_t height;
};
static_assert(sizeof(Pitched) == 16 * sizeof(void*), "layout of CUDA_MEMCPY2D");

// The attributes 10 to 12 above came with CUDA 11. Everything rests on them.
inline constexpr int kOldestDriver = 11000;

// X(member, symbol, required, result, parameters...)
#define AWAKEN_CUDA_FUNCTIONS(X)                                                                                   \
    X(init, "cuInit", true, Result, unsigned)                                                                      \
    X(driver_version, "cuDriverGetVersion", true, Result, int*)                                                    \
    X(error_string, "cuGetErrorString", true, Result, Result, const char**)                                        \
    X(device_count, "cuDeviceGetCount", true, Result, int*)                                                        \
    X(device_name, "cuDeviceGetName", true, Result, char*, int, int)                                               \
    X(device_uuid_v2, "cuDeviceGetUuid_v2", false, Result, Uuid*, int)                                             \
    X(device_uuid, "cuDeviceGetUuid", true, Result, Uuid*, int)                                                    \
    X(device_memory, "cuDeviceTotalMem_v2", true, Result, std::size_t*, int)                                       \
    X(device_attribute, "cuDeviceGetAttribute", true, Result, int*, int, int)                                      \
    X(device_pci_bus_id, "cuDeviceGetPCIBusId", true, Result, char*, int, int)                                     \
    X(device_can_access_peer, "cuDeviceCanAccessPeer", true, Result, int*, int, int)                               \
    X(primary_retain, "cuDevicePrimaryCtxRetain", true, Result, Context*, int)                                     \
    X(primary_state, "cuDevicePrimaryCtxGetState", true, Result, int, unsigned*, int*)                             \
    X(context_current, "cuCtxGetCurrent", true, Result, Context*)                                                  \
    X(context_set, "cuCtxSetCurrent", true, Result, Context)                                                       \
    X(context_device, "cuCtxGetDevice", true, Result, int*)                                                        \
    X(context_push, "cuCtxPushCurrent_v2", true, Result, Context)                                                  \
    X(context_pop, "cuCtxPopCurrent_v2", true, Result, Context*)                                                   \
    X(context_synchronize, "cuCtxSynchronize", true, Result)                                                       \
    X(context_record_event, "cuCtxRecordEvent", false, Result, Context, Event)                                     \
    X(context_id, "cuCtxGetId", false, Result, Context, unsigned long long*)                                       \
    X(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", false, Result, int*)                             \
    X(context_enable_peer, "cuCtxEnablePeerAccess", true, Result, Context, unsigned)                               \
    X(pointer_attributes, "cuPointerGetAttributes", true, Result, unsigned, const PointerAttribute*, void**,       \
      const void*)                                                                                                 \
    X(set_pointer_attribute, "cuPointerSetAttribute", true, Result, const void*, PointerAttribute, const void*)    \
    X(memory_allocate, "cuMemAlloc_v2", true, Result, void**, std::size_t)                                         \
    X(memory_free, "cuMemFree_v2", true, Result, void*)                                                            \
    X(memory_allocate_managed, "cuMemAllocManaged", false, Result, void**, std::size_t, unsigned)                  \
    X(memory_allocate_async, "cuMemAllocAsync", false, Result, void**, std::size_t, Stream)                        \
    X(memory_prefetch, "cuMemPrefetchAsync", false, Result, const void*, std::size_t, int, Stream)                 \
    X(memory_range, "cuMemGetAddressRange_v2", true, Result, void**, std::size_t*, const void*)                    \
    X(host_allocate, "cuMemHostAlloc", true, Result, void**, std::size_t, unsigned)                                \
    X(host_free, "cuMemFreeHost", true, Result, void*)                                                             \
    X(host_register, "cuMemHostRegister_v2", true, Result, void*, std::size_t, unsigned)                           \
    X(host_unregister, "cuMemHostUnregister", true, Result, void*)                                                 \
    X(copy_async, "cuMemcpyAsync", true, Result, void*, const void*, std::size_t, Stream)                          \
    X(copy_2d_async, "cuMemcpy2DAsync_v2", true, Result, const Pitched*, Stream)                                   \
    X(copy_batch_v2, "cuMemcpyBatchAsync_v2", false, Result, void**, const void**, std::size_t*, std::size_t,      \
      CopyAttributes*, std::size_t*, std::size_t, Stream)                                                          \
    X(copy_batch, "cuMemcpyBatchAsync", false, Result, void**, const void**, std::size_t*, std::size_t,            \
      CopyAttributes*, std::size_t*, std::size_t, std::size_t*, Stream)                                            \
    X(fill_async, "cuMemsetD8Async", true, Result, void*, unsigned char, std::size_t, Stream)                      \
    X(stream_priorities, "cuCtxGetStreamPriorityRange", true, Result, int*, int*)                                  \
    X(stream_create, "cuStreamCreateWithPriority", true, Result, Stream*, unsigned, int)                           \
    X(stream_destroy, "cuStreamDestroy_v2", true, Result, Stream)                                                  \
    X(stream_query, "cuStreamQuery", true, Result, Stream)                                                         \
    X(stream_is_capturing, "cuStreamIsCapturing", true, Result, Stream, int*)                                      \
    X(capture_info, "cuStreamGetCaptureInfo_v2", false, Result, Stream, int*, unsigned long long*, void**,         \
      const void***, std::size_t*)                                                                                 \
    X(user_object_create, "cuUserObjectCreate", false, Result, void**, void*, void (*)(void*), unsigned, unsigned) \
    X(user_object_release, "cuUserObjectRelease", false, Result, void*, unsigned)                                  \
    X(begin_capture, "cuStreamBeginCapture_v2", false, Result, Stream, int)                                        \
    X(end_capture, "cuStreamEndCapture", false, Result, Stream, void**)                                            \
    X(graph_instantiate, "cuGraphInstantiateWithFlags", false, Result, void**, void*, unsigned long long)          \
    X(graph_launch, "cuGraphLaunch", false, Result, void*, Stream)                                                 \
    X(graph_destroy, "cuGraphDestroy", false, Result, void*)                                                       \
    X(graph_exec_destroy, "cuGraphExecDestroy", false, Result, void*)                                              \
    X(graph_retain, "cuGraphRetainUserObject", false, Result, void*, void*, unsigned, unsigned)                    \
    X(stream_synchronize, "cuStreamSynchronize", true, Result, Stream)                                             \
    X(stream_wait_event, "cuStreamWaitEvent", true, Result, Stream, Event, unsigned)                               \
    X(event_create, "cuEventCreate", true, Result, Event*, unsigned)                                               \
    X(event_destroy, "cuEventDestroy_v2", true, Result, Event)                                                     \
    X(event_record, "cuEventRecord", true, Result, Event, Stream)                                                  \
    X(event_query, "cuEventQuery", true, Result, Event)                                                            \
    X(ipc_get, "cuIpcGetMemHandle", true, Result, IpcMemHandle*, void*)                                            \
    X(ipc_open, "cuIpcOpenMemHandle_v2", true, Result, void**, IpcMemHandle, unsigned)                             \
    X(ipc_close, "cuIpcCloseMemHandle", true, Result, void*)                                                       \
    X(address_reserve, "cuMemAddressReserve", false, Result, void**, std::size_t, std::size_t, void*,              \
      unsigned long long)                                                                                          \
    X(address_free, "cuMemAddressFree", false, Result, void*, std::size_t)                                         \
    X(physical_retain, "cuMemRetainAllocationHandle", false, Result, MemHandle*, const void*)                      \
    X(physical_release, "cuMemRelease", false, Result, MemHandle)                                                  \
    X(physical_export, "cuMemExportToShareableHandle", false, Result, void*, MemHandle, int, unsigned long long)   \
    X(physical_import, "cuMemImportFromShareableHandle", false, Result, MemHandle*, void*, int)                    \
    X(memory_map, "cuMemMap", false, Result, void*, std::size_t, std::size_t, MemHandle, unsigned long long)       \
    X(memory_unmap, "cuMemUnmap", false, Result, void*, std::size_t)                                               \
    X(set_access, "cuMemSetAccess", false, Result, void*, std::size_t, const MemAccess*, std::size_t)              \
    X(module_load, "cuModuleLoadData", true, Result, Module*, const void*)                                         \
    X(module_unload, "cuModuleUnload", true, Result, Module)                                                       \
    X(module_function, "cuModuleGetFunction", true, Result, Function*, Module, const char*)                        \
    X(launch_kernel, "cuLaunchKernel", true, Result, Function, unsigned, unsigned, unsigned, unsigned, unsigned,   \
      unsigned, unsigned, Stream, void**, void**)

struct Functions {
    AWAKEN_CUDA_FUNCTIONS(AWAKEN_DECLARE_NAMED_FUNCTION)

    /// The outcome of the named call.
    Status outcome(Result code, const char* call) const noexcept;
};

}  // namespace awaken::gpu::cuda_abi
