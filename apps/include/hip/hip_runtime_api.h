// The part of the HIP runtime API that the programs under apps/ use, declared from its public documentation.
//
// A program that includes <hip/hip_runtime.h> compiles with this header and any C or C++ compiler, without ROCm and
// without CUDA, and links with runtime/gpu_runtime.cpp, which forwards each call to the GPU runtime that the machine
// has: libamdhip64 on AMD, libcudart on NVIDIA. Where ROCm's own headers come first in the include path, the same
// source compiles against those instead and links with -lamdhip64.
//
// Only functions and enumerators that mean the same in both runtimes are here. Add a call by declaring it below and
// forwarding it in gpu_runtime.cpp; check its enumerators against both vendors' headers first.
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
    hipStreamNonBlocking = 1
};

typedef struct ihipStream_t* hipStream_t;

/// Text for people; valid as long as the process.
const char* hipGetErrorString(hipError_t error);
/// The last error of this thread, which it clears.
hipError_t hipGetLastError(void);

/// hipErrorNoDevice, with *count = 0, where there is no GPU or no GPU runtime.
hipError_t hipGetDeviceCount(int* count);
hipError_t hipSetDevice(int device);
hipError_t hipGetDevice(int* device);
hipError_t hipDeviceSynchronize(void);
hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes);

hipError_t hipMalloc(void** pointer, size_t bytes);
hipError_t hipFree(void* pointer);
/// Memory that both the CPU and the GPU may use.
hipError_t hipMallocManaged(void** pointer, size_t bytes, unsigned int flags);
/// Pinned host memory; freed with hipHostFree.
hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned int flags);
hipError_t hipHostFree(void* pointer);

hipError_t hipMemcpy(void* destination, const void* source, size_t bytes, hipMemcpyKind kind);
hipError_t hipMemcpyAsync(void* destination, const void* source, size_t bytes, hipMemcpyKind kind, hipStream_t stream);
/// Sets each byte to the low eight bits of value. On device memory it may return before it is done.
hipError_t hipMemset(void* destination, int value, size_t bytes);
hipError_t hipMemsetAsync(void* destination, int value, size_t bytes, hipStream_t stream);

hipError_t hipStreamCreate(hipStream_t* stream);
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamSynchronize(hipStream_t stream);
/// hipErrorNotReady while work is pending.
hipError_t hipStreamQuery(hipStream_t stream);

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
