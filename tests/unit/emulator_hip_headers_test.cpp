// SPDX-License-Identifier: Apache-2.0
// A program written against the HIP headers that are installed, linked with the emulated library of that version.
#include <hip/hip_runtime_api.h>

#include <array>
#include <cstring>

#include "emulator_support.h"

static_assert(hipSuccess == 0 && hipErrorInvalidValue == 1 && hipErrorOutOfMemory == 2 && hipErrorNotInitialized == 3 &&
              hipErrorDeinitialized == 4 && hipErrorInvalidDevicePointer == 17 && hipErrorInvalidMemcpyDirection == 21);
static_assert(hipErrorNoDevice == 100 && hipErrorInvalidDevice == 101 && hipErrorInvalidContext == 201 &&
              hipErrorMapFailed == 205 && hipErrorNoBinaryForGpu == 209 && hipErrorPeerAccessUnsupported == 217);
static_assert(hipErrorInvalidHandle == 400 && hipErrorNotFound == 500 && hipErrorNotReady == 600 &&
              hipErrorPeerAccessAlreadyEnabled == 704 && hipErrorHostMemoryAlreadyRegistered == 712 &&
              hipErrorHostMemoryNotRegistered == 713 && hipErrorLaunchFailure == 719 && hipErrorNotSupported == 801);
static_assert(hipMemcpyHostToDevice == 1 && hipMemcpyDeviceToHost == 2 && hipMemcpyDeviceToDevice == 3 &&
              hipMemcpyDefault == 4);
static_assert(sizeof(hipIpcMemHandle_t) == 64 && sizeof(hip_Memcpy2D) == 128 && sizeof(hipPointerAttribute_t) == 32);
static_assert(HIP_POINTER_ATTRIBUTE_BUFFER_ID == 7 && HIP_POINTER_ATTRIBUTE_IS_LEGACY_HIP_IPC_CAPABLE == 10 &&
              HIP_POINTER_ATTRIBUTE_RANGE_SIZE == 12);
static_assert(hipStreamWaitValueGte == 0 && hipStreamWaitValueEq == 1 && hipStreamWaitValueAnd == 2 &&
              hipStreamWaitValueNor == 3);

namespace {

#if HIP_VERSION_MAJOR >= 6
int type_of(const hipPointerAttribute_t& attributes) {
    return attributes.type;
}
static_assert(sizeof(hipDeviceProp_t) == 1472);
#else
int type_of(const hipPointerAttribute_t& attributes) {
    return attributes.memoryType;
}
static_assert(sizeof(hipDeviceProp_t) == 792);
#endif

}  // namespace

TEST(HipHeaders, PropertiesLieWhereTheHeaderSays) {
    hipDeviceProp_t properties;
    std::memset(&properties, 0xcd, sizeof properties);
    ASSERT_EQ(hipGetDeviceProperties(&properties, 1), hipSuccess);
    EXPECT_STREQ(properties.name, "Awaken emulated GPU (HIP)");
    EXPECT_EQ(properties.totalGlobalMem, std::size_t{4} << 30);
    EXPECT_EQ(properties.pciBusID, 0x11);
    EXPECT_EQ(properties.pciDomainID, 0);
    EXPECT_EQ(properties.warpSize, 64);
    EXPECT_EQ(properties.maxThreadsPerBlock, 1024);
    EXPECT_EQ(properties.maxGridSize[0], 2147483647);
    EXPECT_EQ(properties.multiProcessorCount, 2);
    EXPECT_EQ(properties.major, 9);
    EXPECT_EQ(properties.managedMemory, 1);
    EXPECT_EQ(properties.concurrentKernels, 1);
    EXPECT_EQ(properties.isLargeBar, 0);
    EXPECT_EQ(properties.l2CacheSize, 4 << 20);
    EXPECT_EQ(std::string(properties.gcnArchName).substr(0, 6), "gfx90a");
}

TEST(HipHeaders, DeviceAttributesHaveTheHeadersNumbers) {
    const auto value = [](hipDeviceAttribute_t attribute) {
        int answer = -1;
        EXPECT_EQ(hipDeviceGetAttribute(&answer, attribute, 1), hipSuccess);
        return answer;
    };
    EXPECT_EQ(value(hipDeviceAttributePciBusId), 0x11);
    EXPECT_EQ(value(hipDeviceAttributeMultiprocessorCount), 2);
    EXPECT_EQ(value(hipDeviceAttributeWarpSize), 64);
    EXPECT_EQ(value(hipDeviceAttributeMaxThreadsPerBlock), 1024);
    EXPECT_EQ(value(hipDeviceAttributeMaxGridDimX), 2147483647);
    EXPECT_EQ(value(hipDeviceAttributeComputeCapabilityMajor), 9);
    EXPECT_EQ(value(hipDeviceAttributeManagedMemory), 1);
    EXPECT_EQ(value(hipDeviceAttributeMemoryPoolsSupported), 1);
    EXPECT_EQ(value(hipDeviceAttributeStreamPrioritiesSupported), 1);
    EXPECT_EQ(value(hipDeviceAttributeIsLargeBar), 0);
    EXPECT_EQ(value(hipDeviceAttributeUnifiedAddressing), 1);
    EXPECT_EQ(value(hipDeviceAttributeIntegrated), 0);
    EXPECT_EQ(value(hipDeviceAttributeCanUseStreamWaitValue), 1);
}

TEST(HipHeaders, MemoryTypesAndRowCopies) {
    constexpr std::size_t kRows = 3;
    constexpr std::size_t kWidth = 5;
    constexpr std::size_t kPitch = 8;
    void* device = nullptr;
    ASSERT_EQ(hipMalloc(&device, kRows * kPitch), hipSuccess);
    hipPointerAttribute_t attributes;
    ASSERT_EQ(hipPointerGetAttributes(&attributes, device), hipSuccess);
    EXPECT_EQ(type_of(attributes), hipMemoryTypeDevice);
    void* pinned = nullptr;
    ASSERT_EQ(hipHostMalloc(&pinned, 64, hipHostMallocDefault), hipSuccess);
    ASSERT_EQ(hipPointerGetAttributes(&attributes, pinned), hipSuccess);
    EXPECT_EQ(type_of(attributes), hipMemoryTypeHost);

    const std::array<char, kRows * kWidth> source{"fourteen chars"};
    hip_Memcpy2D copy{};
    copy.srcMemoryType = hipMemoryTypeHost;
    copy.srcHost = source.data();
    copy.srcPitch = kWidth;
    copy.dstMemoryType = hipMemoryTypeDevice;
    copy.dstDevice = device;
    copy.dstPitch = kPitch;
    copy.WidthInBytes = kWidth;
    copy.Height = kRows;
    ASSERT_EQ(hipMemcpyParam2D(&copy), hipSuccess);
    std::array<char, kRows * kWidth> back{};
    ASSERT_EQ(hipMemcpy2D(back.data(), kWidth, device, kPitch, kWidth, kRows, hipMemcpyDeviceToHost), hipSuccess);
    EXPECT_EQ(back, source);
    EXPECT_EQ(hipFree(device), hipSuccess);
    EXPECT_EQ(hipHostFree(pinned), hipSuccess);
}

TEST(HipHeaders, MemoryOperationsHaveTheHeadersParameters) {
    hipStream_t stream = nullptr;
    void* memory = nullptr;
    ASSERT_EQ(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking), hipSuccess);
    ASSERT_EQ(hipHostMalloc(&memory, 64, hipHostMallocDefault), hipSuccess);
    auto* const words = static_cast<std::uint64_t*>(memory);
    ASSERT_EQ(hipStreamWriteValue32(stream, words, 5, 0), hipSuccess);
    ASSERT_EQ(hipStreamWaitValue32(stream, words, 5, hipStreamWaitValueEq), hipSuccess);
    ASSERT_EQ(hipStreamWriteValue64(stream, words + 1, std::uint64_t{6} << 32, 0), hipSuccess);
    ASSERT_EQ(hipStreamWaitValue64(stream, words + 1, std::uint64_t{6} << 32, hipStreamWaitValueGte), hipSuccess);
    ASSERT_EQ(hipStreamWaitValue32(stream, words, 1, hipStreamWaitValueEq, 1), hipSuccess);
    ASSERT_EQ(hipStreamSynchronize(stream), hipSuccess);
    EXPECT_EQ(words[0], 5U);
    EXPECT_EQ(words[1], std::uint64_t{6} << 32);
    ASSERT_EQ(hipStreamDestroy(stream), hipSuccess);
    ASSERT_EQ(hipHostFree(memory), hipSuccess);
}
