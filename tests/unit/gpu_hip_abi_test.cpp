// SPDX-License-Identifier: Apache-2.0
// The numbers and layouts of src/gpu/hip_abi.h against the header of the installed HIP.
#include "gpu/hip_abi.h"

#include <gtest/gtest.h>
#include <hip/hip_runtime_api.h>

#include <cstddef>

namespace awaken::gpu::hip_abi {
namespace {

// Up to HIP 5 the structure and function have no suffix; from 6 on the plain names are macros for the newer layout.
#if HIP_VERSION_MAJOR >= 6
using Properties = DevicePropertiesR0600;
#else
using Properties = DeviceProperties;
#endif

static_assert(kSuccess == hipSuccess);
static_assert(kErrorInvalidValue == hipErrorInvalidValue);
static_assert(kErrorDeinitialized == hipErrorDeinitialized);
static_assert(kErrorInvalidDevice == hipErrorInvalidDevice);
static_assert(kErrorNotReady == hipErrorNotReady);
static_assert(kErrorPeerAccessAlreadyEnabled == hipErrorPeerAccessAlreadyEnabled);
static_assert(kErrorContextIsDestroyed == hipErrorContextIsDestroyed);
static_assert(kErrorCaptureUnsupported == hipErrorStreamCaptureUnsupported);
static_assert(kErrorCaptureImplicit == hipErrorStreamCaptureImplicit);
static_assert(kCaptureModeGlobal == hipStreamCaptureModeGlobal);
static_assert(kCaptureModeRelaxed == hipStreamCaptureModeRelaxed);
static_assert(kNotCapturing == hipStreamCaptureStatusNone);

#if HIP_VERSION_MAJOR >= 6
static_assert(kNoDestructorSync == hipUserObjectNoDestructorSync);
static_assert(kUserObjectMove == hipGraphUserObjectMove);
static_assert(MemoryType6::kUnregistered == hipMemoryTypeUnregistered);
static_assert(MemoryType6::kHost == hipMemoryTypeHost);
static_assert(MemoryType6::kDevice == hipMemoryTypeDevice);
static_assert(MemoryType6::kManaged == hipMemoryTypeManaged);
static_assert(MemoryType6::kArray == hipMemoryTypeArray);
static_assert(MemoryType6::kUnified == hipMemoryTypeUnified);
static_assert(offsetof(PointerAttributes, type) == offsetof(hipPointerAttribute_t, type));
#else
static_assert(MemoryType5::kHost == hipMemoryTypeHost);
static_assert(MemoryType5::kDevice == hipMemoryTypeDevice);
static_assert(MemoryType5::kArray == hipMemoryTypeArray);
static_assert(MemoryType5::kUnified == hipMemoryTypeUnified);
static_assert(offsetof(PointerAttributes, type) == offsetof(hipPointerAttribute_t, memoryType));
#endif
static_assert(sizeof(PointerAttributes) == sizeof(hipPointerAttribute_t));
static_assert(offsetof(PointerAttributes, device) == offsetof(hipPointerAttribute_t, device));
static_assert(offsetof(PointerAttributes, device_pointer) == offsetof(hipPointerAttribute_t, devicePointer));
static_assert(offsetof(PointerAttributes, host_pointer) == offsetof(hipPointerAttribute_t, hostPointer));
static_assert(offsetof(PointerAttributes, is_managed) == offsetof(hipPointerAttribute_t, isManaged));
static_assert(offsetof(PointerAttributes, allocation_flags) == offsetof(hipPointerAttribute_t, allocationFlags));

static_assert(kPointerBufferId == HIP_POINTER_ATTRIBUTE_BUFFER_ID);
static_assert(kPointerIsLegacyIpcCapable == HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE);
static_assert(kDeviceMultiprocessorCount == hipDeviceAttributeMultiprocessorCount);
static_assert(kDeviceIsLargeBar == hipDeviceAttributeIsLargeBar);

static_assert(kCopyDefault == hipMemcpyDefault);
static_assert(kStreamDefault == hipStreamDefault);
static_assert(kStreamNonBlocking == hipStreamNonBlocking);
static_assert(kEventDisableTiming == hipEventDisableTiming);
static_assert(kHostPortable == hipHostMallocPortable);
static_assert(kHostMapped == hipHostMallocMapped);
static_assert(kAttachGlobal == hipMemAttachGlobal);
static_assert(kHostPortable == hipHostRegisterPortable);
static_assert(kHostMapped == hipHostRegisterMapped);

static_assert(sizeof(Uuid) == sizeof(hipUUID));
static_assert(sizeof(IpcMemHandle) == sizeof(hipIpcMemHandle_t));
static_assert(Properties::kSize == sizeof(hipDeviceProp_t));
static_assert(Properties::kArchitectureOffset == offsetof(hipDeviceProp_t, gcnArchName));
static_assert(kArchitectureLength == sizeof(hipDeviceProp_t::gcnArchName));

TEST(HipAbi, TheFlagForOpeningIpcMemoryIsOneOfTheTwoThatAreTried) {
    const unsigned flag = hipIpcMemLazyEnablePeerAccess;
    EXPECT_TRUE(flag == kIpcLazyEnablePeerAccess || flag == kIpcLazyEnablePeerAccessEarly) << flag;
}

TEST(HipAbi, VersionNumbersAreTakenApart) {
    EXPECT_EQ(major_version(HIP_VERSION), HIP_VERSION_MAJOR);
    EXPECT_EQ(minor_version(HIP_VERSION), HIP_VERSION_MINOR);
    EXPECT_EQ(major_version(60241133), 6);
    EXPECT_EQ(minor_version(60241133), 2);
}

}  // namespace
}  // namespace awaken::gpu::hip_abi
