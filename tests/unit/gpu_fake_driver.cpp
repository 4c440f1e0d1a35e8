// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda that only says how it is: initialised or not, how many devices, how old. Its calls do nothing.
//
// Tests reach its state through the exported `fake_driver`.
#include "gpu_fake_driver.h"

#include <cstddef>

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT FakeDriver fake_driver;

EXPORT int cuInit(unsigned) {
    ++fake_driver.init_calls;
    if (fake_driver.init_result == 0) {
        fake_driver.initialised = true;
    }
    return fake_driver.init_result;
}
EXPORT int cuDeviceGetCount(int* count) {
    ++fake_driver.count_calls;
    if (void (*const hook)() = fake_driver.while_counting) {
        hook();
    }
    if (!fake_driver.initialised) {
        return 3;  // CUDA_ERROR_NOT_INITIALIZED
    }
    *count = fake_driver.devices;
    return fake_driver.devices > 0 ? 0 : 100;  // CUDA_ERROR_NO_DEVICE
}
EXPORT int cuDriverGetVersion(int* version) {
    *version = fake_driver.version;
    return 0;
}
EXPORT int cuGetErrorString(int code, const char** text) {
    *text = code == 100 ? "no CUDA-capable device is detected" : "some error";
    return 0;
}
EXPORT int cuPointerGetAttributes(unsigned, const int*, void**, unsigned long long) {
    ++fake_driver.attribute_calls;
    return fake_driver.attributes_result;
}

// The others are there to be found, not to be called.
#define UNUSED(name)    \
    EXPORT int name() { \
        return 999;     \
    }
UNUSED(cuDeviceGet)
UNUSED(cuDeviceGetName)
UNUSED(cuDeviceGetUuid)
UNUSED(cuDeviceTotalMem_v2)
UNUSED(cuDeviceGetAttribute)
UNUSED(cuDeviceGetPCIBusId)
UNUSED(cuDeviceCanAccessPeer)
UNUSED(cuDevicePrimaryCtxRetain)
UNUSED(cuDevicePrimaryCtxGetState)
UNUSED(cuCtxGetCurrent)
UNUSED(cuCtxSetCurrent)
UNUSED(cuCtxGetDevice)
UNUSED(cuCtxSynchronize)
UNUSED(cuCtxPushCurrent_v2)
UNUSED(cuCtxPopCurrent_v2)
UNUSED(cuCtxEnablePeerAccess)
UNUSED(cuPointerSetAttribute)
UNUSED(cuMemAlloc_v2)
UNUSED(cuMemFree_v2)
UNUSED(cuMemGetAddressRange_v2)
UNUSED(cuMemHostAlloc)
UNUSED(cuMemFreeHost)
UNUSED(cuMemHostRegister_v2)
UNUSED(cuMemHostUnregister)
UNUSED(cuMemcpyAsync)
UNUSED(cuMemcpy2DAsync_v2)
UNUSED(cuMemsetD8Async)
UNUSED(cuCtxGetStreamPriorityRange)
UNUSED(cuStreamCreateWithPriority)
UNUSED(cuStreamDestroy_v2)
UNUSED(cuStreamQuery)
UNUSED(cuStreamIsCapturing)
UNUSED(cuStreamSynchronize)
UNUSED(cuStreamWaitEvent)
UNUSED(cuEventCreate)
UNUSED(cuEventDestroy_v2)
UNUSED(cuEventRecord)
UNUSED(cuEventQuery)
#ifndef AWAKEN_FAKE_DRIVER_LACKS_IPC
UNUSED(cuIpcGetMemHandle)
UNUSED(cuIpcOpenMemHandle_v2)
#endif
UNUSED(cuIpcCloseMemHandle)
UNUSED(cuModuleLoadData)
UNUSED(cuModuleUnload)
UNUSED(cuModuleGetFunction)
UNUSED(cuLaunchKernel)
}
