// SPDX-License-Identifier: Apache-2.0
// The part of the HIP runtime API that the programs under apps/ use, declared from its public documentation.
//
// A program that includes <hip/hip_runtime.h> compiles with this header and any C or C++ compiler, without ROCm and
// without CUDA, and links with runtime/gpu_runtime.cpp, which forwards each call to the GPU runtime that the machine
// has: libamdhip64 on AMD, libcudart on NVIDIA. Where ROCm's own headers come first in the include path, the same
// source compiles against those instead and links with -lamdhip64.
//
// Functions and enumerators that mean the same in both runtimes are forwarded as they are; gpu_runtime.cpp translates
// the others (device attributes, modules, the run-time compiler's options). Add a call by declaring it below and
// forwarding it there; check its enumerators against both vendors' headers first.
#ifndef AWAKEN_APPS_HIP_RUNTIME_API_H
#define AWAKEN_APPS_HIP_RUNTIME_API_H

#include <stddef.h>

// The forwarding functions bear the names of the real runtime's. Hidden, they cannot be picked up by a real libamdhip64
// in the same process.
#pragma GCC visibility push(hidden)

#ifdef __cplusplus
extern "C" {
#endif

/// Result of every call. Other values than those named here may come through from the runtime; hipGetErrorString knows
/// them.
typedef enum hipError_t {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorNoDevice = 100,  ///< also: no GPU runtime was found; hipGetErrorString then says what was looked for
    hipErrorInvalidDevice = 101,
    hipErrorSharedObjectSymbolNotFound = 302,  ///< the runtime that was found does not have this function
    hipErrorNotReady = 600,
    hipErrorUnknown = 999
} hipError_t;

typedef enum hipMemcpyKind {
    hipMemcpyHostToHost = 0,
    hipMemcpyHostToDevice = 1,
    hipMemcpyDeviceToHost = 2,
    hipMemcpyDeviceToDevice = 3,
    hipMemcpyDefault = 4
} hipMemcpyKind;

enum {
    hipHostMallocDefault = 0,
    hipHostMallocPortable = 1,
    hipMemAttachGlobal = 1,
    hipMemAttachHost = 2,
    hipStreamDefault = 0,
    hipStreamNonBlocking = 1,
    hipEventDefault = 0,
    hipEventBlockingSync = 1,
    hipEventDisableTiming = 2
};

/// What other work may do while a stream is captured: nothing that a capture cannot hold, in any thread; the same in
/// this thread; anything.
typedef enum hipStreamCaptureMode {
    hipStreamCaptureModeGlobal = 0,
    hipStreamCaptureModeThreadLocal = 1,
    hipStreamCaptureModeRelaxed = 2
} hipStreamCaptureMode;

/// HIP's numbers, which are not CUDA's.
typedef enum hipDeviceAttribute_t {
    hipDeviceAttributeConcurrentManagedAccess = 9,  ///< managed memory may be used by CPU and GPU at the same time
    hipDeviceAttributeComputeCapabilityMajor = 23,
    hipDeviceAttributeManagedMemory = 24,
    hipDeviceAttributeMemoryBusWidth = 59,   ///< bits
    hipDeviceAttributeMemoryClockRate = 60,  ///< kHz
    hipDeviceAttributeComputeCapabilityMinor = 61,
    hipDeviceAttributeMultiprocessorCount = 63,
    hipDeviceAttributePageableMemoryAccess = 65,  ///< kernels may use memory from malloc
    hipDeviceAttributeWarpSize = 87
} hipDeviceAttribute_t;

typedef int hipDevice_t;
typedef struct ihipStream_t* hipStream_t;
typedef struct ihipEvent_t* hipEvent_t;
typedef struct ihipGraph* hipGraph_t;
typedef struct hipGraphExec* hipGraphExec_t;
typedef struct ihipModule_t* hipModule_t;
typedef struct ihipModuleSymbol_t* hipFunction_t;

/// Extent of a grid or of a block.
typedef struct dim3 {
    unsigned int x;
    unsigned int y;
    unsigned int z;
#ifdef __cplusplus
    constexpr dim3(unsigned int x_ = 1, unsigned int y_ = 1, unsigned int z_ = 1) : x(x_), y(y_), z(z_) {}
#endif
} dim3;

/// Text for people; valid as long as the process.
const char* hipGetErrorString(hipError_t error);
/// The last error of this thread, which it clears.
hipError_t hipGetLastError(void);

/// The vendor's own number: 60443484 is ROCm 6.4, 12090 is CUDA 12.9.
hipError_t hipRuntimeGetVersion(int* version);
/// hipErrorNoDevice, with *count = 0, where there is no GPU or no GPU runtime.
hipError_t hipGetDeviceCount(int* count);
hipError_t hipSetDevice(int device);
hipError_t hipGetDevice(int* device);
hipError_t hipDeviceSynchronize(void);
hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes);
/// hipErrorInvalidValue for an attribute that the runtime does not know.
hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device);
hipError_t hipDeviceGetName(char* name, int length, hipDevice_t device);
/// "0000:1b:00.0": domain, bus, device and function. At least 13 characters.
hipError_t hipDeviceGetPCIBusId(char* name, int length, int device);
/// Lower numbers are higher priorities.
hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest);

hipError_t hipMalloc(void** pointer, size_t bytes);
hipError_t hipFree(void* pointer);
/// Memory that both the CPU and the GPU may use.
hipError_t hipMallocManaged(void** pointer, size_t bytes, unsigned int flags);
/// Pinned host memory; freed with hipHostFree.
hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned int flags);
hipError_t hipHostFree(void* pointer);

hipError_t hipMemcpy(void* destination, const void* source, size_t bytes, hipMemcpyKind kind);
hipError_t hipMemcpyAsync(void* destination, const void* source, size_t bytes, hipMemcpyKind kind, hipStream_t stream);
/// `height` rows of `width` bytes each, `pitch` bytes from one row to the next.
hipError_t hipMemcpy2D(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                       size_t width, size_t height, hipMemcpyKind kind);
hipError_t hipMemcpy2DAsync(void* destination, size_t destination_pitch, const void* source, size_t source_pitch,
                            size_t width, size_t height, hipMemcpyKind kind, hipStream_t stream);
/// Sets each byte to the low eight bits of value. On device memory it may return before it is done.
hipError_t hipMemset(void* destination, int value, size_t bytes);
hipError_t hipMemsetAsync(void* destination, int value, size_t bytes, hipStream_t stream);

hipError_t hipStreamCreate(hipStream_t* stream);
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags);
hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned int flags, int priority);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamSynchronize(hipStream_t stream);
/// hipErrorNotReady while work is pending.
hipError_t hipStreamQuery(hipStream_t stream);
/// What is queued in the stream from now on waits, on the GPU, until the event has happened.
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags);

/// What is queued in the stream between these two calls is not done: it becomes a graph.
hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode);
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph);
/// What can be launched, again and again. The graph itself may be destroyed then.
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* executable, hipGraph_t graph, unsigned long long flags);
hipError_t hipGraphLaunch(hipGraphExec_t executable, hipStream_t stream);
hipError_t hipGraphDestroy(hipGraph_t graph);
hipError_t hipGraphExecDestroy(hipGraphExec_t executable);

hipError_t hipEventCreate(hipEvent_t* event);
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags);
hipError_t hipEventDestroy(hipEvent_t event);
/// The event happens when all that is in the stream now is over.
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream);
/// hipErrorNotReady until it has happened.
hipError_t hipEventQuery(hipEvent_t event);
hipError_t hipEventSynchronize(hipEvent_t event);
hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop);

/// Loads what a compiler made for the current device; see hip/hiprtc.h.
hipError_t hipModuleLoadData(hipModule_t* module, const void* image);
hipError_t hipModuleUnload(hipModule_t module);
hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name);
/// `parameters[i]` points at the i-th argument, which is read before the call returns.
hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                 unsigned int block_x, unsigned int block_y, unsigned int block_z,
                                 unsigned int shared_bytes, hipStream_t stream, void** parameters, void** extra);

#ifdef __cplusplus
}  // extern "C"

// The typed forms and default arguments that HIP has in C++.
template <class T>
inline hipError_t hipMalloc(T** pointer, size_t bytes) {
    return hipMalloc(reinterpret_cast<void**>(pointer), bytes);
}
template <class T>
inline hipError_t hipMallocManaged(T** pointer, size_t bytes, unsigned int flags = hipMemAttachGlobal) {
    return hipMallocManaged(reinterpret_cast<void**>(pointer), bytes, flags);
}
template <class T>
inline hipError_t hipHostMalloc(T** pointer, size_t bytes, unsigned int flags = hipHostMallocDefault) {
    return hipHostMalloc(reinterpret_cast<void**>(pointer), bytes, flags);
}
#endif

#pragma GCC visibility pop

#endif
