// SPDX-License-Identifier: Apache-2.0
// The emulated CUDA driver, run-time library and run-time compiler, used through dlopen as programs use them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "emulator_support.h"

namespace {

using namespace awaken::emulator_test;
using Clock = std::chrono::steady_clock;
using Pointer = unsigned long long;

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNotInitialized = 3;
constexpr int kDeinitialized = 4;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kMapFailed = 205;
constexpr int kPeerUnsupported = 217;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kPeerAlreadyEnabled = 704;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kLaunchFailed = 719;
constexpr int kNotSupported = 801;
constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Handle {
    unsigned char bytes[64];
};

/// CUmemcpyAttributes.
struct CopyAttributes {
    unsigned order, source[2], destination[2], flags;
};

/// CUDA_MEMCPY2D.
struct Copy2D {
    std::size_t source_x, source_y;
    int source_type;
    const void* source_host;
    Pointer source_device;
    void* source_array;
    std::size_t source_pitch;
    std::size_t destination_x, destination_y;
    int destination_type;
    void* destination_host;
    Pointer destination_device;
    void* destination_array;
    std::size_t destination_pitch;
    std::size_t width, height;
};

/// CUstreamBatchMemOpParams, for waits and writes. A barrier has its flags in the second word.
struct BatchOperation {
    int type;
    unsigned barrier_flags;
    Pointer address;
    std::uint64_t value;
    unsigned flags;
    Pointer alias;
    std::uint64_t padding;
};
static_assert(sizeof(BatchOperation) == 48);

struct Driver {
    Library library{"libcuda.so.1"};
    int (*init)(unsigned);
    int (*device_count)(int*);
    int (*retain)(void**, int);
    int (*release)(int);
    int (*set_current)(void*);
    int (*get_current)(void**);
    int (*push)(void*);
    int (*pop)(void**);
    int (*context_device)(int*);
    int (*synchronize)();
    int (*enable_peer)(void*, unsigned);
    int (*can_access_peer)(int*, int, int);
    int (*allocate)(Pointer*, std::size_t);
    int (*free)(Pointer);
    int (*range)(Pointer*, std::size_t*, Pointer);
    int (*info)(std::size_t*, std::size_t*);
    int (*allocate_managed)(Pointer*, std::size_t, unsigned);
    int (*allocate_host)(void**, std::size_t, unsigned);
    int (*free_host)(void*);
    int (*register_host)(void*, std::size_t, unsigned);
    int (*unregister_host)(void*);
    int (*allocate_async)(Pointer*, std::size_t, void*);
    int (*free_async)(Pointer, void*);
    int (*to_device)(Pointer, const void*, std::size_t);
    int (*to_host)(void*, Pointer, std::size_t);
    int (*between)(Pointer, Pointer, std::size_t);
    int (*copy_async)(Pointer, Pointer, std::size_t, void*);
    int (*copy_2d)(const Copy2D*);
    int (*copy_batch_v2)(Pointer*, Pointer*, std::size_t*, std::size_t, CopyAttributes*, std::size_t*, std::size_t,
                         void*);
    int (*copy_batch)(Pointer*, Pointer*, std::size_t*, std::size_t, CopyAttributes*, std::size_t*, std::size_t,
                      std::size_t*, void*);
    int (*fill)(Pointer, unsigned char, std::size_t);
    int (*fill_async)(Pointer, unsigned char, std::size_t, void*);
    int (*attribute)(void*, int, Pointer);
    int (*attributes)(unsigned, const int*, void**, Pointer);
    int (*set_attribute)(const void*, int, Pointer);
    int (*ipc_get)(Handle*, Pointer);
    int (*ipc_open)(Pointer*, Handle, unsigned);
    int (*ipc_close)(Pointer);
    int (*stream_create)(void**, unsigned);
    int (*stream_destroy)(void*);
    int (*stream_query)(void*);
    int (*stream_synchronize)(void*);
    int (*stream_wait)(void*, void*, unsigned);
    int (*begin_capture)(void*, int);
    int (*end_capture)(void*, void**);
    int (*exchange_capture_mode)(int*);
    int (*is_capturing)(void*, int*);
    int (*host_function)(void*, void (*)(void*), void*);
    int (*event_create)(void**, unsigned);
    int (*event_destroy)(void*);
    int (*event_record)(void*, void*);
    int (*event_query)(void*);
    int (*event_synchronize)(void*);
    int (*record_context)(void*, void*);
    int (*event_elapsed)(float*, void*, void*);
    int (*module_load)(void**, const void*);
    int (*module_unload)(void*);
    int (*module_function)(void**, void*, const char*);
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
    int (*proc_address)(const char*, void**, int, std::uint64_t, int*);
    int (*wait_32)(void*, Pointer, std::uint32_t, unsigned);
    int (*wait_64)(void*, Pointer, std::uint64_t, unsigned);
    int (*write_32)(void*, Pointer, std::uint32_t, unsigned);
    int (*write_64)(void*, Pointer, std::uint64_t, unsigned);
    int (*batch)(void*, unsigned, BatchOperation*, unsigned);

    Driver() {
        library.bind(init, "cuInit");
        library.bind(device_count, "cuDeviceGetCount");
        library.bind(retain, "cuDevicePrimaryCtxRetain");
        library.bind(release, "cuDevicePrimaryCtxRelease_v2");
        library.bind(set_current, "cuCtxSetCurrent");
        library.bind(get_current, "cuCtxGetCurrent");
        library.bind(push, "cuCtxPushCurrent_v2");
        library.bind(pop, "cuCtxPopCurrent_v2");
        library.bind(context_device, "cuCtxGetDevice");
        library.bind(synchronize, "cuCtxSynchronize");
        library.bind(enable_peer, "cuCtxEnablePeerAccess");
        library.bind(can_access_peer, "cuDeviceCanAccessPeer");
        library.bind(allocate, "cuMemAlloc_v2");
        library.bind(free, "cuMemFree_v2");
        library.bind(range, "cuMemGetAddressRange_v2");
        library.bind(info, "cuMemGetInfo_v2");
        library.bind(allocate_managed, "cuMemAllocManaged");
        library.bind(allocate_host, "cuMemHostAlloc");
        library.bind(free_host, "cuMemFreeHost");
        library.bind(register_host, "cuMemHostRegister_v2");
        library.bind(unregister_host, "cuMemHostUnregister");
        library.bind(allocate_async, "cuMemAllocAsync");
        library.bind(free_async, "cuMemFreeAsync");
        library.bind(to_device, "cuMemcpyHtoD_v2");
        library.bind(to_host, "cuMemcpyDtoH_v2");
        library.bind(between, "cuMemcpyDtoD_v2");
        library.bind(copy_async, "cuMemcpyAsync");
        library.bind(copy_2d, "cuMemcpy2D_v2");
        library.bind(copy_batch_v2, "cuMemcpyBatchAsync_v2");
        library.bind(copy_batch, "cuMemcpyBatchAsync");
        library.bind(fill, "cuMemsetD8_v2");
        library.bind(fill_async, "cuMemsetD8Async");
        library.bind(attribute, "cuPointerGetAttribute");
        library.bind(attributes, "cuPointerGetAttributes");
        library.bind(set_attribute, "cuPointerSetAttribute");
        library.bind(ipc_get, "cuIpcGetMemHandle");
        library.bind(ipc_open, "cuIpcOpenMemHandle_v2");
        library.bind(ipc_close, "cuIpcCloseMemHandle");
        library.bind(stream_create, "cuStreamCreate");
        library.bind(stream_destroy, "cuStreamDestroy_v2");
        library.bind(stream_query, "cuStreamQuery");
        library.bind(stream_synchronize, "cuStreamSynchronize");
        library.bind(stream_wait, "cuStreamWaitEvent");
        library.bind(begin_capture, "cuStreamBeginCapture_v2");
        library.bind(end_capture, "cuStreamEndCapture");
        library.bind(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
        library.bind(is_capturing, "cuStreamIsCapturing");
        library.bind(host_function, "cuLaunchHostFunc");
        library.bind(event_create, "cuEventCreate");
        library.bind(event_destroy, "cuEventDestroy_v2");
        library.bind(event_record, "cuEventRecord");
        library.bind(event_query, "cuEventQuery");
        library.bind(event_synchronize, "cuEventSynchronize");
        library.bind(record_context, "cuCtxRecordEvent");
        library.bind(event_elapsed, "cuEventElapsedTime");
        library.bind(module_load, "cuModuleLoadData");
        library.bind(module_unload, "cuModuleUnload");
        library.bind(module_function, "cuModuleGetFunction");
        library.bind(launch, "cuLaunchKernel");
        library.bind(proc_address, "cuGetProcAddress_v2");
        library.bind(wait_32, "cuStreamWaitValue32_v2");
        library.bind(wait_64, "cuStreamWaitValue64_v2");
        library.bind(write_32, "cuStreamWriteValue32_v2");
        library.bind(write_64, "cuStreamWriteValue64_v2");
        library.bind(batch, "cuStreamBatchMemOp_v2");
    }

    /// Initialises and makes device 0's primary context current for the calling thread.
    int start() {
        void* context = nullptr;
        if (const int result = init(0); result != kSuccess) {
            return result;
        }
        if (const int result = retain(&context, 0); result != kSuccess) {
            return result;
        }
        return set_current(context);
    }
};

Driver& driver() {
    static Driver* const instance = new Driver;
    return *instance;
}

constexpr int kContextAttribute = 1;
constexpr int kMemoryType = 2;
constexpr int kHostPointer = 4;
constexpr int kSyncMemops = 6;
constexpr int kBufferId = 7;
constexpr int kIsManaged = 8;
constexpr int kDeviceOrdinal = 9;
constexpr int kIpcCapable = 10;

template <typename Value>
Value attribute_of(Pointer address, int attribute) {
    Value value{};
    EXPECT_EQ(driver().attribute(&value, attribute, address), kSuccess) << "attribute " << attribute;
    return value;
}

class EmulatedCuda : public testing::Test {
  protected:
    void SetUp() override { ASSERT_EQ(driver().start(), kSuccess); }
    void TearDown() override { EXPECT_EQ(driver().synchronize(), kSuccess); }

    static Pointer allocate(std::size_t bytes) {
        Pointer address = 0;
        EXPECT_EQ(driver().allocate(&address, bytes), kSuccess);
        return address;
    }
    static unsigned char byte_at(Pointer address) {
        unsigned char value = 0;
        EXPECT_EQ(driver().to_host(&value, address, 1), kSuccess);
        return value;
    }
};

}  // namespace

// ---- contexts and initialisation
// ----------------------------------------------------------------------------------------

SCENARIO(uninitialised) {
    int count = 0;
    REQUIRE_EQUAL(driver().device_count(&count), kNotInitialized);
    Pointer address = 0;
    REQUIRE_EQUAL(driver().allocate(&address, 64), kNotInitialized);
    REQUIRE_EQUAL(driver().init(0), kSuccess);
    REQUIRE_EQUAL(driver().device_count(&count), kSuccess);
    REQUIRE_EQUAL(count, 3);
    REQUIRE_EQUAL(driver().allocate(&address, 64), kInvalidContext);
    return 0;
}

TEST(EmulatedCudaProcess, AsksForInitialisationAndForAContext) {
    const Outcome outcome = run_scenario("uninitialised", {{"AWAKEN_EMULATE", "cuda:3"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

SCENARIO(count_devices) {
    const int result = driver().init(0);
    int count = -1;
    if (result == kSuccess) {
        driver().device_count(&count);
    }
    std::printf("init %d count %d\n", result, count);
    return 0;
}

TEST(EmulatedCudaProcess, ObeysTheEnvironment) {
    const auto output = [](const Environment& environment) {
        return run_scenario("count_devices", environment).output;
    };
    EXPECT_EQ(output({{"AWAKEN_EMULATE", "cuda:5"}}), "init 0 count 5\n");
    EXPECT_EQ(output({{"AWAKEN_EMULATE", "cuda"}}), "init 0 count 2\n");
    EXPECT_EQ(output({{"AWAKEN_EMULATE", "hip:2"}}), "init 100 count -1\n");
    EXPECT_EQ(output({{"AWAKEN_EMULATE", ""}}), "init 100 count -1\n");
    EXPECT_EQ(output({{"AWAKEN_EMULATE", "cuda:4"}, {"CUDA_VISIBLE_DEVICES", "2,0"}}), "init 0 count 2\n");
    EXPECT_EQ(output({{"AWAKEN_EMULATE", "cuda:4"}, {"CUDA_VISIBLE_DEVICES", "1,7,0"}}), "init 0 count 1\n");
    EXPECT_EQ(output({{"AWAKEN_EMULATE", "cuda:4"}, {"CUDA_VISIBLE_DEVICES", ""}}), "init 100 count -1\n");
    const std::string wrong = output({{"AWAKEN_EMULATE", "cuda:17"}});
    EXPECT_NE(wrong.find("AWAKEN_EMULATE=cuda:17"), std::string::npos) << wrong;
    EXPECT_NE(wrong.find("init 1"), std::string::npos) << wrong;
    const std::string wrong_fault = output({{"AWAKEN_EMULATE", "cuda:1"}, {"AWAKEN_TEST_FAULTS", "no-peer,opps"}});
    EXPECT_NE(wrong_fault.find("AWAKEN_TEST_FAULTS=no-peer,opps"), std::string::npos) << wrong_fault;
}

TEST_F(EmulatedCuda, EachThreadHasItsOwnContextStack) {
    void* const before = [] {
        void* context = nullptr;
        EXPECT_EQ(driver().get_current(&context), kSuccess);
        return context;
    }();
    std::thread([&] {
        Pointer address = 0;
        void* stream = nullptr;
        EXPECT_EQ(driver().allocate(&address, 64), kInvalidContext);
        EXPECT_EQ(driver().stream_create(&stream, 0), kInvalidContext);
        EXPECT_EQ(driver().push(before), kSuccess);
        int device = -1;
        EXPECT_EQ(driver().context_device(&device), kSuccess);
        EXPECT_EQ(device, 0);
        void* popped = nullptr;
        EXPECT_EQ(driver().pop(&popped), kSuccess);
        EXPECT_EQ(popped, before);
        EXPECT_EQ(driver().pop(&popped), kInvalidContext);
    }).join();
    int value = 0;
    EXPECT_EQ(driver().push(&value), kInvalidContext) << "no context at all";
}

SCENARIO(forked_child) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    Pointer address = 0;
    REQUIRE_EQUAL(driver().allocate(&address, 64), kSuccess);
    REQUIRE_EQUAL(driver().fill(address, 1, 64), kSuccess);
    const pid_t child = fork();
    if (child == 0) {
        _exit(driver().allocate(&address, 64) == kNotInitialized ? 0 : 1);
    }
    int status = 0;
    REQUIRE_EQUAL(waitpid(child, &status, 0), child);
    REQUIRE_EQUAL(status, 0);
    return 0;
}

TEST(EmulatedCudaProcess, AForkedChildHasNoDriver) {
    const Outcome outcome = run_scenario("forked_child", {{"AWAKEN_EMULATE", "cuda:1"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

// ---- memory
// -------------------------------------------------------------------------------------------------------------

SCENARIO(touch_device_memory) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    Pointer address = 0;
    REQUIRE_EQUAL(driver().allocate(&address, 4096), kSuccess);
    std::printf("allocated\n");
    std::fflush(stdout);
    *reinterpret_cast<volatile char*>(address) = 1;
    return 0;
}

TEST(EmulatedCudaProcess, TouchingDeviceMemoryOnTheHostFaults) {
    const Outcome outcome = run_scenario("touch_device_memory", {{"AWAKEN_EMULATE", "cuda:1"}});
    EXPECT_TRUE(outcome.ended_by(SIGSEGV)) << outcome.output;
    EXPECT_NE(outcome.output.find("allocated"), std::string::npos);
}

TEST_F(EmulatedCuda, SmallAllocationsShareABlockAndKnowTheirOwnRange) {
    const Pointer first = allocate(1000);
    const Pointer second = allocate(1000);
    EXPECT_NE(first, second);
    EXPECT_LT(first > second ? first - second : second - first, 2 * kMiB);
    Pointer base = 0;
    std::size_t size = 0;
    ASSERT_EQ(driver().range(&base, &size, second + 999), kSuccess);
    EXPECT_EQ(base, second);
    EXPECT_EQ(size, 1000U);
    EXPECT_NE(driver().range(&base, &size, second + 1000), kSuccess);
    EXPECT_EQ(driver().free(first), kSuccess);
    EXPECT_EQ(driver().free(first), kInvalidValue) << "freed twice";
    EXPECT_EQ(driver().free(second + 8), kInvalidValue) << "not the start";
    EXPECT_EQ(driver().free(second), kSuccess);
}

TEST_F(EmulatedCuda, AReusedAddressHasANewIdentity) {
    for (const std::size_t bytes : {std::size_t{512}, 4 * kMiB}) {
        const Pointer first = allocate(bytes);
        const auto first_id = attribute_of<std::uint64_t>(first, kBufferId);
        ASSERT_EQ(driver().free(first), kSuccess);
        const Pointer second = allocate(bytes);
        EXPECT_EQ(second, first) << "addresses are handed out again at once";
        EXPECT_GT(attribute_of<std::uint64_t>(second, kBufferId), first_id);
        ASSERT_EQ(driver().free(second), kSuccess);
    }
}

TEST_F(EmulatedCuda, CountsMemory) {
    std::size_t free_before = 0;
    std::size_t total = 0;
    ASSERT_EQ(driver().info(&free_before, &total), kSuccess);
    EXPECT_EQ(total, std::size_t{4} << 30);
    const Pointer address = allocate(8 * kMiB);
    std::size_t free_now = 0;
    ASSERT_EQ(driver().info(&free_now, &total), kSuccess);
    EXPECT_EQ(free_before - free_now, 8 * kMiB);
    Pointer other = 0;
    EXPECT_EQ(driver().allocate(&other, total), kOutOfMemory);
    EXPECT_EQ(driver().free(address), kSuccess);
    ASSERT_EQ(driver().info(&free_now, &total), kSuccess);
    EXPECT_EQ(free_now, free_before);
}

TEST_F(EmulatedCuda, PointerAttributesSayWhatMemoryIs) {
    const Pointer device = allocate(256);
    EXPECT_EQ(attribute_of<unsigned>(device, kMemoryType), 2U);
    EXPECT_EQ(attribute_of<int>(device, kDeviceOrdinal), 0);
    EXPECT_EQ(attribute_of<unsigned>(device, kIsManaged), 0U);
    EXPECT_EQ(attribute_of<unsigned>(device, kIpcCapable), 1U);
    EXPECT_NE(attribute_of<void*>(device, kContextAttribute), nullptr);
    void* host_pointer = nullptr;
    EXPECT_EQ(driver().attribute(&host_pointer, kHostPointer, device), kInvalidValue);

    // A local variable is memory that the driver does not know: the single form fails, the other one answers zeros.
    int local = 0;
    const auto unknown = static_cast<Pointer>(reinterpret_cast<std::uintptr_t>(&local));
    unsigned type = 99;
    EXPECT_EQ(driver().attribute(&type, kMemoryType, unknown), kInvalidValue);
    std::uint64_t id = 99;
    const std::array<int, 2> wanted{kMemoryType, kBufferId};
    std::array<void*, 2> places{&type, &id};
    EXPECT_EQ(driver().attributes(2, wanted.data(), places.data(), unknown), kSuccess);
    EXPECT_EQ(type, 0U);
    EXPECT_EQ(id, 0U);

    Pointer managed = 0;
    ASSERT_EQ(driver().allocate_managed(&managed, 4096, 1), kSuccess);
    EXPECT_EQ(attribute_of<unsigned>(managed, kIsManaged), 1U);
    EXPECT_EQ(attribute_of<unsigned>(managed, kIpcCapable), 0U);
    EXPECT_EQ(attribute_of<unsigned>(managed, kMemoryType), 2U);
    *reinterpret_cast<int*>(managed) = 17;  // the host may
    EXPECT_EQ(byte_at(managed), 17);

    void* pinned = nullptr;
    ASSERT_EQ(driver().allocate_host(&pinned, 4096, 0), kSuccess);
    EXPECT_EQ(attribute_of<unsigned>(reinterpret_cast<Pointer>(pinned), kMemoryType), 1U);
    Handle handle{};
    EXPECT_EQ(driver().ipc_get(&handle, managed), kInvalidValue);
    EXPECT_EQ(driver().ipc_get(&handle, reinterpret_cast<Pointer>(pinned)), kInvalidValue);
    EXPECT_EQ(driver().free(managed), kSuccess);
    EXPECT_EQ(driver().free(reinterpret_cast<Pointer>(pinned)), kInvalidValue);
    EXPECT_EQ(driver().free_host(pinned), kSuccess);
    EXPECT_EQ(driver().free(device), kSuccess);
}

TEST_F(EmulatedCuda, RegistersHostMemory) {
    std::vector<char> memory(3 * 4096);
    const auto address = reinterpret_cast<Pointer>(memory.data());
    ASSERT_EQ(driver().register_host(memory.data(), memory.size(), 0), kSuccess);
    EXPECT_EQ(driver().register_host(memory.data() + 4096, 4096, 0), kAlreadyRegistered);
    EXPECT_EQ(attribute_of<unsigned>(address + 100, kMemoryType), 1U);
    EXPECT_EQ(driver().unregister_host(memory.data() + 1), kNotRegistered);
    EXPECT_EQ(driver().unregister_host(memory.data()), kSuccess);
    EXPECT_EQ(driver().unregister_host(memory.data()), kNotRegistered);
    // Where nothing is mapped there is nothing to lock.
    void* const hole = mmap(nullptr, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(hole, MAP_FAILED);
    ASSERT_EQ(munmap(hole, 8192), 0);
    EXPECT_EQ(driver().register_host(hole, 8192, 0), kInvalidValue);
}

TEST_F(EmulatedCuda, PoolMemoryRefusesIpc) {
    void* stream = nullptr;
    ASSERT_EQ(driver().stream_create(&stream, 1), kSuccess);
    Pointer address = 0;
    ASSERT_EQ(driver().allocate_async(&address, kMiB, stream), kSuccess);
    EXPECT_EQ(attribute_of<unsigned>(address, kMemoryType), 2U);
    EXPECT_EQ(attribute_of<unsigned>(address, kIpcCapable), 0U);
    EXPECT_EQ(attribute_of<void*>(address, kContextAttribute), nullptr);
    Handle handle{};
    EXPECT_EQ(driver().ipc_get(&handle, address), kInvalidValue);
    ASSERT_EQ(driver().fill_async(address, 5, kMiB, stream), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
    EXPECT_EQ(byte_at(address + kMiB - 1), 5);
    ASSERT_EQ(driver().free_async(address, stream), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
    unsigned type = 0;
    EXPECT_EQ(driver().attribute(&type, kMemoryType, address), kInvalidValue) << "freed in the stream's order";
    EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
}

TEST_F(EmulatedCuda, CopiesStayInsideTheirAllocations) {
    const Pointer address = allocate(1000);
    std::vector<char> host(2000);
    EXPECT_EQ(driver().to_device(address, host.data(), 1001), kInvalidValue);
    EXPECT_EQ(driver().to_device(address + 500, host.data(), 501), kInvalidValue);
    EXPECT_EQ(driver().to_device(address + 500, host.data(), 500), kSuccess);
    EXPECT_EQ(driver().fill(address + 999, 0, 2), kInvalidValue);
    EXPECT_EQ(driver().fill(reinterpret_cast<Pointer>(host.data()), 0, 8), kInvalidValue) << "pageable memory";
    ASSERT_EQ(driver().free(address), kSuccess);
    EXPECT_EQ(driver().to_host(host.data(), address, 8), kInvalidValue) << "freed";
}

TEST_F(EmulatedCuda, CopiesInBatches) {
    const Pointer address = allocate(64);
    std::vector<char> host(32);
    for (std::size_t i = 0; i < host.size(); ++i) {
        host[i] = static_cast<char>(i + 1);
    }
    ASSERT_EQ(driver().to_device(address, host.data(), 32), kSuccess);
    void* stream = nullptr;
    ASSERT_EQ(driver().stream_create(&stream, 0), kSuccess);
    Pointer targets[] = {address + 32, address + 48}, origins[] = {address + 16, address};
    std::size_t sizes[] = {16, 16}, at = 0, failed = 0;
    CopyAttributes attributes{1, {}, {}, 0};
    ASSERT_EQ(driver().copy_batch_v2(targets, origins, sizes, 2, &attributes, &at, 1, stream), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
    EXPECT_EQ(byte_at(address + 32), 17);
    EXPECT_EQ(byte_at(address + 63), 16);
    EXPECT_EQ(driver().copy_batch_v2(targets, origins, sizes, 2, &attributes, &at, 1, nullptr), kInvalidValue)
        << "default stream";
    void* const legacy = reinterpret_cast<void*>(1);
    EXPECT_EQ(driver().copy_batch_v2(targets, origins, sizes, 2, &attributes, &at, 1, legacy), kInvalidValue);
    // No order is promised within a batch: the second copy does not find what the first one brings.
    Pointer chained_targets[] = {address + 32, address + 48}, chained_origins[] = {address, address + 32};
    ASSERT_EQ(driver().copy_batch_v2(chained_targets, chained_origins, sizes, 2, &attributes, &at, 1, stream),
              kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
    EXPECT_EQ(byte_at(address + 32), 1);
    EXPECT_EQ(byte_at(address + 48), 17);
    CopyAttributes twice[] = {attributes, attributes};
    std::size_t both_at_0[] = {0, 0};
    EXPECT_EQ(driver().copy_batch_v2(targets, origins, sizes, 2, twice, both_at_0, 2, stream), kInvalidValue);
    attributes.order = 0;
    EXPECT_EQ(driver().copy_batch(targets, origins, sizes, 2, &attributes, &at, 1, &failed, stream), kInvalidValue);
    EXPECT_EQ(failed, SIZE_MAX);
    EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
    EXPECT_EQ(driver().free(address), kSuccess);
}

TEST_F(EmulatedCuda, TheDefaultStreamHasNoWorkWhileABlockingOneIsCaptured) {
    constexpr int kGlobal = 0, kRelaxed = 2, kInvalidated = 901, kImplicit = 906;
    const Pointer address = allocate(8);
    std::array<char, 8> host{};
    void *blocking = nullptr, *free_running = nullptr, *event = nullptr, *graph = nullptr;
    ASSERT_EQ(driver().stream_create(&blocking, 0), kSuccess);
    ASSERT_EQ(driver().stream_create(&free_running, 1), kSuccess);
    ASSERT_EQ(driver().event_create(&event, 0), kSuccess);
    int mode = kRelaxed;  // which says nothing of work that the capture would have to wait for
    ASSERT_EQ(driver().exchange_capture_mode(&mode), kSuccess);
    const std::function<int()> refused[] = {
        [&] { return driver().to_device(address, host.data(), host.size()); },
        [&] { return driver().to_host(host.data(), address, host.size()); },
        [&] { return driver().fill(address, 1, host.size()); },
        [&] { return driver().event_record(event, nullptr); },
        [&] { return driver().stream_wait(nullptr, event, 0); },
        [&] { return driver().stream_synchronize(nullptr); },
        [&] { return driver().stream_query(nullptr); },
    };
    for (const auto& work : refused) {
        ASSERT_EQ(driver().begin_capture(blocking, kGlobal), kSuccess);
        EXPECT_EQ(work(), kImplicit) << &work - refused;
        EXPECT_EQ(driver().end_capture(blocking, &graph), kInvalidated) << &work - refused;
    }
    ASSERT_EQ(driver().begin_capture(blocking, kGlobal), kSuccess);
    EXPECT_EQ(driver().event_record(event, free_running), kSuccess);
    EXPECT_EQ(driver().stream_synchronize(free_running), kSuccess);
    int capturing = -1;
    EXPECT_EQ(driver().is_capturing(nullptr, &capturing), kImplicit) << "a question that harms nothing";
    EXPECT_EQ(driver().is_capturing(free_running, &capturing), kSuccess);
    EXPECT_EQ(capturing, 0);
    EXPECT_EQ(driver().end_capture(blocking, &graph), kSuccess) << "other streams are left alone";
    ASSERT_EQ(driver().begin_capture(free_running, kRelaxed), kSuccess);
    EXPECT_EQ(driver().is_capturing(nullptr, &capturing), kSuccess);
    EXPECT_EQ(driver().fill(address, 1, host.size()), kSuccess) << "the default stream does not wait for this one";
    EXPECT_EQ(driver().end_capture(free_running, &graph), kSuccess);
    ASSERT_EQ(driver().exchange_capture_mode(&mode), kSuccess);
    EXPECT_EQ(driver().event_destroy(event), kSuccess);
    EXPECT_EQ(driver().stream_destroy(blocking), kSuccess);
    EXPECT_EQ(driver().stream_destroy(free_running), kSuccess);
    EXPECT_EQ(driver().free(address), kSuccess);
}

TEST_F(EmulatedCuda, CopiesRowsWithPitches) {
    constexpr std::size_t kRows = 5;
    constexpr std::size_t kWidth = 7;
    constexpr std::size_t kPitch = 16;
    const Pointer address = allocate(kRows * kPitch);
    std::vector<unsigned char> source(kRows * kWidth);
    for (std::size_t position = 0; position < source.size(); ++position) {
        source[position] = static_cast<unsigned char>(position + 1);
    }
    ASSERT_EQ(driver().fill(address, 0xee, kRows * kPitch), kSuccess);
    Copy2D copy{};
    copy.source_type = 1;
    copy.source_host = source.data();
    copy.source_pitch = kWidth;
    copy.destination_type = 2;
    copy.destination_device = address;
    copy.destination_pitch = kPitch;
    copy.width = kWidth;
    copy.height = kRows;
    ASSERT_EQ(driver().copy_2d(&copy), kSuccess);
    std::vector<unsigned char> result(kRows * kPitch);
    ASSERT_EQ(driver().to_host(result.data(), address, result.size()), kSuccess);
    for (std::size_t row = 0; row < kRows; ++row) {
        for (std::size_t column = 0; column < kPitch; ++column) {
            const unsigned char expected = column < kWidth ? source[row * kWidth + column] : 0xee;
            ASSERT_EQ(result[row * kPitch + column], expected) << row << "," << column;
        }
    }
    copy.destination_pitch = kWidth - 1;
    EXPECT_EQ(driver().copy_2d(&copy), kInvalidValue);
    ASSERT_EQ(driver().free(address), kSuccess);
}

// ---- order
// --------------------------------------------------------------------------------------------------------------

TEST_F(EmulatedCuda, FillsAndDeviceCopiesAndSmallUploadsReturnEarly) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "looks on purpose at memory that another stream is about to write";
#endif
    void* other = nullptr;
    ASSERT_EQ(driver().stream_create(&other, 1), kSuccess);
    void* pinned = nullptr;
    ASSERT_EQ(driver().allocate_host(&pinned, 4096, 0), kSuccess);
    auto* const seen = static_cast<volatile unsigned char*>(pinned);
    const Pointer address = allocate(4096);
    const Pointer source = allocate(4096);
    ASSERT_EQ(driver().fill(address, 1, 4096), kSuccess);
    ASSERT_EQ(driver().fill(source, 7, 4096), kSuccess);
    ASSERT_EQ(driver().synchronize(), kSuccess);
    // A stream that does not wait for the default stream sees what was there before.
    const auto glimpse = [&] {
        EXPECT_EQ(driver().copy_async(reinterpret_cast<Pointer>(pinned), address, 1, other), kSuccess);
        EXPECT_EQ(driver().stream_synchronize(other), kSuccess);
        return *seen;
    };
    // What returns early does so behind a gate, and does nothing before that is open.
    Gate fill_gate;
    ASSERT_EQ(driver().host_function(nullptr, &Gate::wait, &fill_gate), kSuccess);
    ASSERT_EQ(driver().fill(address, 2, 4096), kSuccess);
    EXPECT_EQ(glimpse(), 1);
    EXPECT_EQ(driver().stream_query(nullptr), kNotReady);
    fill_gate.open = true;
    ASSERT_EQ(driver().synchronize(), kSuccess);
    EXPECT_EQ(glimpse(), 2);

    unsigned char small[64];
    std::memset(small, 3, sizeof small);
    Gate upload_gate;
    ASSERT_EQ(driver().host_function(nullptr, &Gate::wait, &upload_gate), kSuccess);
    ASSERT_EQ(driver().to_device(address, small, sizeof small), kSuccess);
    std::memset(small, 9, sizeof small);  // taken at the call
    EXPECT_EQ(glimpse(), 2);
    upload_gate.open = true;
    ASSERT_EQ(driver().synchronize(), kSuccess);
    EXPECT_EQ(glimpse(), 3);

    Gate copy_gate;
    ASSERT_EQ(driver().host_function(nullptr, &Gate::wait, &copy_gate), kSuccess);
    ASSERT_EQ(driver().between(address, source, 4096), kSuccess);
    EXPECT_EQ(glimpse(), 3);
    copy_gate.open = true;
    ASSERT_EQ(driver().synchronize(), kSuccess);
    EXPECT_EQ(glimpse(), 7);

    // Reading back waits, and so does an allocation that asked for it.
    ASSERT_EQ(driver().fill(address, 4, 4096), kSuccess);
    EXPECT_EQ(byte_at(address), 4);
    ASSERT_EQ(driver().fill(address, 5, 4096), kSuccess);
    const unsigned yes = 1;
    ASSERT_EQ(driver().set_attribute(&yes, kSyncMemops, address), kSuccess);
    EXPECT_EQ(glimpse(), 5) << "setting it waits for what is pending";
    ASSERT_EQ(driver().fill(address, 6, 4096), kSuccess);
    EXPECT_EQ(glimpse(), 6) << "from now on the call itself waits";
    ASSERT_EQ(driver().between(address, source, 4096), kSuccess);
    EXPECT_EQ(glimpse(), 7);

    ASSERT_EQ(driver().free(address), kSuccess);
    ASSERT_EQ(driver().free(source), kSuccess);
    ASSERT_EQ(driver().free_host(pinned), kSuccess);
    ASSERT_EQ(driver().stream_destroy(other), kSuccess);
}

TEST_F(EmulatedCuda, BlockingStreamsAreOrderedAgainstTheDefaultStream) {
    void* blocking = nullptr;
    void* independent = nullptr;
    ASSERT_EQ(driver().stream_create(&blocking, 0), kSuccess);
    ASSERT_EQ(driver().stream_create(&independent, 1), kSuccess);
    Gate gate;
    ASSERT_EQ(driver().host_function(nullptr, &Gate::wait, &gate), kSuccess);
    std::atomic<int> done{0};
    const auto count = [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); };
    ASSERT_EQ(driver().host_function(blocking, count, &done), kSuccess);
    ASSERT_EQ(driver().host_function(independent, count, &done), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(independent), kSuccess);
    EXPECT_EQ(done, 1);
    EXPECT_EQ(driver().stream_query(blocking), kNotReady);
    gate.open = true;
    ASSERT_EQ(driver().stream_synchronize(blocking), kSuccess);
    EXPECT_EQ(done, 2);

    // And the other way round.
    Gate second;
    ASSERT_EQ(driver().host_function(blocking, &Gate::wait, &second), kSuccess);
    ASSERT_EQ(driver().host_function(nullptr, count, &done), kSuccess);
    EXPECT_EQ(driver().stream_query(nullptr), kNotReady);
    EXPECT_EQ(driver().stream_query(independent), kSuccess);
    second.open = true;
    ASSERT_EQ(driver().stream_synchronize(nullptr), kSuccess);
    EXPECT_EQ(done, 3);
    ASSERT_EQ(driver().stream_destroy(blocking), kSuccess);
    ASSERT_EQ(driver().stream_destroy(independent), kSuccess);
    EXPECT_EQ(driver().stream_destroy(independent), kInvalidHandle);
}

TEST_F(EmulatedCuda, EventsOrderStreams) {
    void* first = nullptr;
    void* second = nullptr;
    void* event = nullptr;
    ASSERT_EQ(driver().stream_create(&first, 1), kSuccess);
    ASSERT_EQ(driver().stream_create(&second, 1), kSuccess);
    ASSERT_EQ(driver().event_create(&event, 0), kSuccess);
    EXPECT_EQ(driver().event_query(event), kSuccess) << "never recorded";
    Gate gate;
    ASSERT_EQ(driver().host_function(first, &Gate::wait, &gate), kSuccess);
    ASSERT_EQ(driver().event_record(event, first), kSuccess);
    ASSERT_EQ(driver().stream_wait(second, event, 0), kSuccess);
    std::atomic<int> done{0};
    ASSERT_EQ(driver().host_function(
                  second, [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); }, &done),
              kSuccess);
    EXPECT_EQ(driver().event_query(event), kNotReady);
    EXPECT_EQ(driver().stream_query(second), kNotReady);
    EXPECT_EQ(done, 0);
    gate.open = true;
    ASSERT_EQ(driver().event_synchronize(event), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(second), kSuccess);
    EXPECT_EQ(done, 1);

    void* later = nullptr;
    ASSERT_EQ(driver().event_create(&later, 0), kSuccess);
    ASSERT_EQ(driver().event_record(later, second), kSuccess);
    ASSERT_EQ(driver().event_synchronize(later), kSuccess);
    float milliseconds = -1;
    ASSERT_EQ(driver().event_elapsed(&milliseconds, event, later), kSuccess);
    EXPECT_GE(milliseconds, 0);

    // An event belongs to a context; streams of others cannot record it.
    void* other_context = nullptr;
    ASSERT_EQ(driver().retain(&other_context, 1), kSuccess);
    ASSERT_EQ(driver().push(other_context), kSuccess);
    void* foreign = nullptr;
    ASSERT_EQ(driver().stream_create(&foreign, 0), kSuccess);
    EXPECT_EQ(driver().event_record(event, foreign), kInvalidHandle);
    EXPECT_EQ(driver().stream_wait(foreign, event, 0), kSuccess) << "waiting is allowed";
    ASSERT_EQ(driver().stream_destroy(foreign), kSuccess);
    ASSERT_EQ(driver().pop(nullptr), kSuccess);
    ASSERT_EQ(driver().release(1), kSuccess);
    for (void* made : {event, later}) {
        EXPECT_EQ(driver().event_destroy(made), kSuccess);
    }
    for (void* made : {first, second}) {
        EXPECT_EQ(driver().stream_destroy(made), kSuccess);
    }
}

TEST_F(EmulatedCuda, AStreamIsDoneWhenItsOwnWorkIs) {
    void* blocking = nullptr;
    ASSERT_EQ(driver().stream_create(&blocking, 0), kSuccess);
    Gate gate;
    ASSERT_EQ(driver().host_function(nullptr, &Gate::wait, &gate), kSuccess);
    EXPECT_EQ(driver().stream_query(blocking), kSuccess) << "it has no work that would wait for the default stream";
    EXPECT_EQ(driver().stream_synchronize(blocking), kSuccess);
    EXPECT_EQ(driver().stream_query(nullptr), kNotReady);
    gate.open = true;
    EXPECT_EQ(driver().stream_synchronize(nullptr), kSuccess);
    EXPECT_EQ(driver().stream_query(nullptr), kSuccess);
    EXPECT_EQ(driver().stream_destroy(blocking), kSuccess);
}

TEST_F(EmulatedCuda, AnEventStandsForAllWorkOfAContext) {
    constexpr int kUnsupported = 900, kInvalidated = 901, kRelaxed = 2;
    void *context = nullptr, *other = nullptr;
    ASSERT_EQ(driver().get_current(&context), kSuccess);
    ASSERT_EQ(driver().retain(&other, 1), kSuccess);
    std::array<void*, 2> streams{};
    for (void*& stream : streams) {
        ASSERT_EQ(driver().stream_create(&stream, 1), kSuccess);
    }
    void *event = nullptr, *plain = nullptr, *graph = nullptr;
    ASSERT_EQ(driver().event_create(&event, 0), kSuccess);
    ASSERT_EQ(driver().event_create(&plain, 0), kSuccess);
    ASSERT_EQ(driver().record_context(context, event), kSuccess);
    EXPECT_EQ(driver().event_query(event), kSuccess) << "there is no work";
    std::array<Gate, 2> gates;
    ASSERT_EQ(driver().host_function(streams[0], &Gate::wait, &gates[0]), kSuccess);
    ASSERT_EQ(driver().host_function(streams[1], &Gate::wait, &gates[1]), kSuccess);
    ASSERT_EQ(driver().record_context(context, event), kSuccess);
    Gate later;
    ASSERT_EQ(driver().host_function(streams[0], &Gate::wait, &later), kSuccess);
    EXPECT_EQ(driver().event_query(event), kNotReady);
    void* third = nullptr;
    ASSERT_EQ(driver().stream_create(&third, 1), kSuccess);
    ASSERT_EQ(driver().stream_wait(third, event, 0), kSuccess);
    gates[0].open = true;
    EXPECT_EQ(driver().event_query(event), kNotReady) << "the other stream";
    EXPECT_EQ(driver().stream_query(third), kNotReady);
    gates[1].open = true;
    EXPECT_EQ(driver().event_synchronize(event), kSuccess);
    EXPECT_EQ(driver().event_query(event), kSuccess) << "what came later does not count";
    EXPECT_EQ(driver().stream_synchronize(third), kSuccess);
    float milliseconds = 0;
    ASSERT_EQ(driver().event_record(plain, third), kSuccess);
    ASSERT_EQ(driver().event_synchronize(plain), kSuccess);
    EXPECT_EQ(driver().event_elapsed(&milliseconds, event, plain), kInvalidHandle) << "it has no time";
    later.open = true;

    EXPECT_EQ(driver().record_context(other, event), kInvalidHandle) << "an event of another context";
    EXPECT_EQ(driver().record_context(nullptr, event), kInvalidContext);
    EXPECT_EQ(driver().record_context(context, nullptr), kInvalidHandle);
    ASSERT_EQ(driver().begin_capture(third, kRelaxed), kSuccess);
    EXPECT_EQ(driver().record_context(context, event), kUnsupported);
    EXPECT_EQ(driver().end_capture(third, &graph), kInvalidated);
    EXPECT_EQ(driver().record_context(context, event), kSuccess);
    for (void* const stream : {streams[0], streams[1], third}) {
        EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
    }
    for (void* const made : {event, plain}) {
        EXPECT_EQ(driver().event_destroy(made), kSuccess);
    }
    EXPECT_EQ(driver().release(1), kSuccess);
}

TEST_F(EmulatedCuda, PeerAccessIsCounted) {
    int can = -1;
    ASSERT_EQ(driver().can_access_peer(&can, 0, 1), kSuccess);
    EXPECT_EQ(can, 1);
    ASSERT_EQ(driver().can_access_peer(&can, 1, 1), kSuccess);
    EXPECT_EQ(can, 0);
    void* other = nullptr;
    ASSERT_EQ(driver().retain(&other, 1), kSuccess);
    EXPECT_EQ(driver().enable_peer(other, 0), kSuccess);
    EXPECT_EQ(driver().enable_peer(other, 0), kPeerAlreadyEnabled);
    EXPECT_EQ(driver().release(1), kSuccess);
}

// ---- between processes
// --------------------------------------------------------------------------------------------------

SCENARIO(open_and_answer) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    const std::size_t bytes = std::stoul(arguments.at(1));
    Pointer address = 0;
    REQUIRE_EQUAL(driver().ipc_open(&address, handle, 1), kSuccess);
    Pointer again = 0;
    REQUIRE_EQUAL(driver().ipc_open(&again, handle, 1), kSuccess);
    REQUIRE_EQUAL(again, address);
    std::vector<unsigned char> data(bytes);
    REQUIRE_EQUAL(driver().to_host(data.data(), address, bytes), kSuccess);
    for (std::size_t position = 0; position < bytes; ++position) {
        REQUIRE_EQUAL(static_cast<int>(data[position]), static_cast<int>(position % 251));
    }
    Handle refused{};
    REQUIRE_EQUAL(driver().ipc_get(&refused, address), kInvalidValue);
    REQUIRE_EQUAL(driver().free(address), kInvalidValue);
    REQUIRE_EQUAL(driver().fill(address, 0xab, bytes), kSuccess);
    REQUIRE_EQUAL(driver().synchronize(), kSuccess);
    REQUIRE_EQUAL(mappings().opened, 1U);
    REQUIRE_EQUAL(driver().ipc_close(address), kSuccess);
    REQUIRE_EQUAL(driver().to_host(data.data(), address, 1), kSuccess);  // opened twice
    REQUIRE_EQUAL(mappings().closed, 0U);
    REQUIRE_EQUAL(driver().ipc_close(address), kSuccess);
    REQUIRE_EQUAL(mappings().closed, 1U);
    REQUIRE_EQUAL(driver().ipc_close(address), kInvalidValue);
    REQUIRE_EQUAL(driver().to_host(data.data(), address, 1), kInvalidValue);
    return 0;
}

TEST_F(EmulatedCuda, SharesMemoryBetweenProcesses) {
    for (const std::size_t bytes : {std::size_t{1000}, 3 * kMiB}) {
        const Pointer spacer = allocate(600);  // so that a small allocation is not the first of its block
        const Pointer address = allocate(bytes);
        std::vector<unsigned char> data(bytes);
        for (std::size_t position = 0; position < bytes; ++position) {
            data[position] = static_cast<unsigned char>(position % 251);
        }
        ASSERT_EQ(driver().to_device(address, data.data(), bytes), kSuccess);
        ASSERT_EQ(driver().synchronize(), kSuccess);
        Handle handle{};
        ASSERT_EQ(driver().ipc_get(&handle, address + bytes / 2), kSuccess) << "an interior pointer";
        Pointer own = 0;
        EXPECT_EQ(driver().ipc_open(&own, handle, 1), kInvalidContext) << "not in the exporting process";
        const std::string text = to_text(handle.bytes, sizeof handle.bytes);
        const Outcome outcome = run_scenario("open_and_answer", {}, {text, std::to_string(bytes)});
        EXPECT_TRUE(outcome.succeeded()) << outcome.output;
        ASSERT_EQ(driver().to_host(data.data(), address, bytes), kSuccess);
        EXPECT_EQ(data.front(), 0xab);
        EXPECT_EQ(data.back(), 0xab);
        ASSERT_EQ(driver().free(address), kSuccess);
        ASSERT_EQ(driver().free(spacer), kSuccess);
    }
}

SCENARIO(open_gives) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    Pointer address = 0;
    REQUIRE_EQUAL(driver().ipc_open(&address, handle, 1), std::stoi(arguments.at(1)));
    return 0;
}

TEST_F(EmulatedCuda, RefusesHandlesThatAreStaleOrForgedOrIsolated) {
    const Pointer keeper = allocate(512);
    for (const std::size_t bytes : {std::size_t{512}, 4 * kMiB}) {
        const Pointer address = allocate(bytes);
        Handle handle{};
        ASSERT_EQ(driver().ipc_get(&handle, address), kSuccess);
        const auto opening_gives = [&](const Handle& tried, int result, const Environment& environment) {
            const Outcome outcome = run_scenario("open_gives", environment,
                                                 {to_text(tried.bytes, sizeof tried.bytes), std::to_string(result)});
            EXPECT_TRUE(outcome.succeeded()) << outcome.output;
        };
        opening_gives(handle, kSuccess, {});
        opening_gives(handle, kMapFailed, {{"AWAKEN_TEST_FAULTS", "ipc-open"}});
        opening_gives(handle, kInvalidValue, {{"AWAKEN_TEST_FAULTS", "isolated"}});
        // The scenario opens on the exporter's device, which needs no access to a peer; the next one on another.
        opening_gives(handle, kSuccess, {{"AWAKEN_TEST_FAULTS", "no-peer"}});
        opening_gives(handle, kPeerUnsupported, {{"AWAKEN_TEST_FAULTS", "no-peer"}, {"CUDA_VISIBLE_DEVICES", "1"}});
        opening_gives(handle, kSuccess, {{"CUDA_VISIBLE_DEVICES", "1"}});
        opening_gives(handle, kInvalidDevice, {{"AWAKEN_TEST_FAULTS", "hidden-device"}, {"CUDA_VISIBLE_DEVICES", "1"}});
        opening_gives(handle, kSuccess, {{"AWAKEN_TEST_FAULTS", "hidden-device"}, {"CUDA_VISIBLE_DEVICES", "1,0"}});
        Handle forged = handle;
        forged.bytes[40] ^= 1;
        opening_gives(forged, kInvalidValue, {});
        ASSERT_EQ(driver().free(address), kSuccess);
        opening_gives(handle, kInvalidValue, {});
        const Pointer successor = allocate(bytes);
        ASSERT_EQ(successor, address);
        opening_gives(handle, kInvalidValue, {});
        ASSERT_EQ(driver().free(successor), kSuccess);
    }
    ASSERT_EQ(driver().free(keeper), kSuccess);
}

// ---- addresses and physical memory apart
// ---------------------------------------------------------------------------------

namespace {

/// CUmemAllocationProp and CUmemAccessDesc.
struct PhysicalProperties {
    int type, handle_types, location_type, device;
    void* windows;
    unsigned char flags[8];
};
struct Access {
    int location_type, device, flags;
};
using PhysicalHandle = unsigned long long;

struct VirtualMemory {
    int (*granularity)(std::size_t*, const PhysicalProperties*, int);
    int (*reserve)(Pointer*, std::size_t, std::size_t, Pointer, unsigned long long);
    int (*free)(Pointer, std::size_t);
    int (*create)(PhysicalHandle*, std::size_t, const PhysicalProperties*, unsigned long long);
    int (*release)(PhysicalHandle);
    int (*retain)(PhysicalHandle*, void*);
    int (*properties_of)(PhysicalProperties*, PhysicalHandle);
    int (*map)(Pointer, std::size_t, std::size_t, PhysicalHandle, unsigned long long);
    int (*unmap)(Pointer, std::size_t);
    int (*set_access)(Pointer, std::size_t, const Access*, std::size_t);
    int (*get_access)(unsigned long long*, const int*, Pointer);
    int (*export_handle)(void*, PhysicalHandle, int, unsigned long long);
    int (*import_handle)(PhysicalHandle*, void*, int);

    VirtualMemory() {
        const Library& library = driver().library;
        library.bind(granularity, "cuMemGetAllocationGranularity");
        library.bind(reserve, "cuMemAddressReserve");
        library.bind(free, "cuMemAddressFree");
        library.bind(create, "cuMemCreate");
        library.bind(release, "cuMemRelease");
        library.bind(retain, "cuMemRetainAllocationHandle");
        library.bind(properties_of, "cuMemGetAllocationPropertiesFromHandle");
        library.bind(map, "cuMemMap");
        library.bind(unmap, "cuMemUnmap");
        library.bind(set_access, "cuMemSetAccess");
        library.bind(get_access, "cuMemGetAccess");
        library.bind(export_handle, "cuMemExportToShareableHandle");
        library.bind(import_handle, "cuMemImportFromShareableHandle");
    }
};

constexpr int kPosixFile = 1;
constexpr PhysicalProperties kOnDevice0{1, kPosixFile, 1, 0, nullptr, {}};
constexpr Access kReadWriteByDevice0{1, 0, 3};
constexpr std::size_t kPart = 2 * kMiB;

void* as_pointer(int file) {
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(file));
}

}  // namespace

TEST_F(EmulatedCuda, OnlyItsDeviceReachesAPoolsMemory) {
    int (*default_pool)(void**, int) = nullptr;
    int (*set_access)(void*, const Access*, std::size_t) = nullptr;
    int (*get_access)(int*, void*, const int*) = nullptr;
    driver().library.bind(default_pool, "cuDeviceGetDefaultMemPool");
    driver().library.bind(set_access, "cuMemPoolSetAccess");
    driver().library.bind(get_access, "cuMemPoolGetAccess");
    Pointer address = 0;
    ASSERT_EQ(driver().allocate_async(&address, 64, nullptr), kSuccess);
    ASSERT_EQ(driver().fill(address, 5, 64), kSuccess);
    ASSERT_EQ(byte_at(address), 5);
    void* other = nullptr;
    ASSERT_EQ(driver().retain(&other, 1), kSuccess);
    ASSERT_EQ(driver().push(other), kSuccess);
    unsigned char byte = 0;
    EXPECT_EQ(driver().to_host(&byte, address, 1), kInvalidValue);
    EXPECT_EQ(driver().fill(address, 6, 64), kInvalidValue);
    void* pool = nullptr;
    ASSERT_EQ(default_pool(&pool, 0), kSuccess);
    const int location[] = {1, 1};
    int flags = -1;
    EXPECT_EQ(get_access(&flags, pool, location), kSuccess);
    EXPECT_EQ(flags, 0);
    const Access nobody{1, 99, 3}, readers{1, 1, 1}, device_1{1, 1, 3}, not_device_1{1, 1, 0};
    EXPECT_EQ(set_access(pool, &nobody, 1), kInvalidDevice);
    EXPECT_EQ(set_access(pool, &readers, 1), kNotSupported);
    EXPECT_EQ(set_access(pool, nullptr, 1), kInvalidValue);
    ASSERT_EQ(set_access(pool, &device_1, 1), kSuccess);
    EXPECT_EQ(get_access(&flags, pool, location), kSuccess);
    EXPECT_EQ(flags, 3);
    EXPECT_EQ(driver().to_host(&byte, address, 1), kSuccess);
    EXPECT_EQ(byte, 5);
    ASSERT_EQ(set_access(pool, &not_device_1, 1), kSuccess);
    EXPECT_EQ(driver().to_host(&byte, address, 1), kInvalidValue);
    ASSERT_EQ(driver().pop(nullptr), kSuccess);
    ASSERT_EQ(driver().release(1), kSuccess);
    ASSERT_EQ(driver().free_async(address, nullptr), kSuccess);
}

TEST_F(EmulatedCuda, MapsPhysicalMemoryAtReservedAddresses) {
    constexpr int kNotFound = 500, kRangeStart = 11, kRangeSize = 12, kHandleTypes = 14, kAccessFlags = 16,
                  kMappingSize = 18, kMappingBase = 19, kBlockId = 20, kDevicePointer = 3;
    const VirtualMemory memory;
    std::size_t granularity = 0, free_before = 0, free_now = 0, total = 0;
    ASSERT_EQ(memory.granularity(&granularity, &kOnDevice0, 0), kSuccess);
    EXPECT_EQ(granularity, kPart);
    ASSERT_EQ(driver().info(&free_before, &total), kSuccess);
    Pointer base = 0;
    ASSERT_EQ(memory.reserve(&base, 8 * kPart, 0, 0, 0), kSuccess);
    ASSERT_EQ(driver().info(&free_now, &total), kSuccess);
    EXPECT_EQ(free_now, free_before) << "addresses take no memory";
    std::array<PhysicalHandle, 2> handles{};
    for (PhysicalHandle& handle : handles) {
        ASSERT_EQ(memory.create(&handle, kPart, &kOnDevice0, 0), kSuccess);
    }
    ASSERT_EQ(driver().info(&free_now, &total), kSuccess);
    EXPECT_EQ(free_before - free_now, 2 * kPart);
    PhysicalHandle none = 0;
    EXPECT_EQ(memory.create(&none, kPart + 1, &kOnDevice0, 0), kInvalidValue);
    EXPECT_EQ(memory.create(&none, total + kPart, &kOnDevice0, 0), kOutOfMemory);
    ASSERT_EQ(memory.map(base, kPart, 0, handles[0], 0), kSuccess);
    ASSERT_EQ(memory.map(base + kPart, kPart, 0, handles[1], 0), kSuccess);
    EXPECT_EQ(memory.map(base, kPart, 0, handles[1], 0), kInvalidValue) << "something is there";
    EXPECT_EQ(memory.map(base + 4 * kPart, kPart / 2, 0, handles[0], 0), kNotSupported);
    EXPECT_EQ(memory.map(base + 8 * kPart, kPart, 0, handles[0], 0), kInvalidValue) << "beyond the reservation";

    // Nobody has access yet.
    const Pointer inside = base + kPart + 8;
    Pointer start = 0;
    std::size_t size = 0;
    std::uint64_t value = 0;
    EXPECT_EQ(driver().fill(base, 1, 8), kInvalidValue);
    EXPECT_EQ(driver().range(&start, &size, inside), kNotFound);
    EXPECT_EQ(driver().attribute(&value, kDevicePointer, inside), kInvalidValue);
    EXPECT_EQ(attribute_of<unsigned>(inside, kAccessFlags), 0U);
    EXPECT_EQ(memory.set_access(base, 4 * kPart, &kReadWriteByDevice0, 1), kInvalidValue) << "in part not mapped";
    ASSERT_EQ(memory.set_access(base, 2 * kPart, &kReadWriteByDevice0, 1), kSuccess);

    EXPECT_EQ(attribute_of<void*>(inside, kContextAttribute), nullptr);
    EXPECT_EQ(attribute_of<unsigned>(inside, kMemoryType), 2U);
    EXPECT_EQ(attribute_of<Pointer>(inside, kDevicePointer), inside);
    EXPECT_EQ(attribute_of<unsigned>(inside, kSyncMemops), 1U);
    EXPECT_EQ(attribute_of<unsigned>(inside, kIpcCapable), 0U);
    EXPECT_EQ(attribute_of<int>(inside, kDeviceOrdinal), 0);
    EXPECT_EQ(attribute_of<Pointer>(inside, kRangeStart), base);
    EXPECT_EQ(attribute_of<std::size_t>(inside, kRangeSize), 8 * kPart);
    EXPECT_EQ(attribute_of<std::uint64_t>(inside, kHandleTypes), 1U);
    EXPECT_EQ(attribute_of<unsigned>(inside, kAccessFlags), 3U);
    EXPECT_EQ(attribute_of<std::size_t>(inside, kMappingSize), kPart);
    EXPECT_EQ(attribute_of<Pointer>(inside, kMappingBase), base + kPart);
    EXPECT_NE(attribute_of<std::uint64_t>(inside, kBlockId), attribute_of<std::uint64_t>(base, kBlockId));
    ASSERT_EQ(driver().range(&start, &size, inside), kSuccess);
    EXPECT_EQ(start, base + kPart);
    EXPECT_EQ(size, kPart);
    Handle handle{};
    EXPECT_EQ(driver().ipc_get(&handle, inside), kInvalidValue);
    EXPECT_EQ(driver().attribute(&value, kMemoryType, base + 3 * kPart), kInvalidValue) << "nothing is mapped there";

    // Work may span parts, and nothing else.
    EXPECT_EQ(driver().fill(base + kPart - 8, 7, 16), kSuccess);
    EXPECT_EQ(byte_at(base + kPart - 1), 7);
    EXPECT_EQ(byte_at(base + kPart), 7);
    EXPECT_EQ(driver().fill(base + 2 * kPart - 8, 1, 16), kInvalidValue);
    EXPECT_EQ(driver().fill(base + 3 * kPart, 1, 8), kInvalidValue);
    EXPECT_EQ(driver().free(base), kInvalidValue);
    void* other = nullptr;
    ASSERT_EQ(driver().retain(&other, 1), kSuccess);
    ASSERT_EQ(driver().push(other), kSuccess);
    unsigned char byte = 0;
    EXPECT_EQ(driver().to_host(&byte, base, 1), kInvalidValue) << "the other device has no access";
    const Access both[] = {{1, 0, 3}, {1, 1, 3}};
    ASSERT_EQ(memory.set_access(base, 2 * kPart, both, 2), kSuccess);
    EXPECT_EQ(driver().to_host(&byte, base, 1), kSuccess);
    ASSERT_EQ(driver().pop(nullptr), kSuccess);
    ASSERT_EQ(driver().release(1), kSuccess);
    unsigned long long flags = 0;
    const int location[] = {1, 1};
    EXPECT_EQ(memory.get_access(&flags, location, base), kSuccess);
    EXPECT_EQ(flags, 3U);
    const Access taken_away[] = {{1, 0, 0}, {1, 1, 0}};
    ASSERT_EQ(memory.set_access(base, kPart, taken_away, 2), kSuccess);
    EXPECT_EQ(driver().to_host(&byte, base, 1), kInvalidValue);

    // A handle and a mapping each keep the memory.
    PhysicalHandle again = 0;
    ASSERT_EQ(memory.retain(&again, reinterpret_cast<void*>(base + 8)), kSuccess);
    EXPECT_EQ(again, handles[0]);
    PhysicalProperties properties{};
    ASSERT_EQ(memory.properties_of(&properties, again), kSuccess);
    EXPECT_EQ(properties.handle_types, kPosixFile);
    for (const PhysicalHandle one : {handles[0], handles[0], handles[1]}) {
        EXPECT_EQ(memory.release(one), kSuccess);
    }
    EXPECT_EQ(memory.release(handles[0]), kInvalidValue);
    EXPECT_EQ(byte_at(base + kPart), 7);
    EXPECT_EQ(memory.unmap(base, kPart / 2), kInvalidValue);
    EXPECT_EQ(memory.free(base, 8 * kPart), kInvalidValue) << "in use";
    EXPECT_EQ(memory.unmap(base, 2 * kPart), kSuccess);
    EXPECT_EQ(memory.free(base, 4 * kPart), kInvalidValue) << "not the whole";
    EXPECT_EQ(memory.free(base, 8 * kPart), kSuccess);
    ASSERT_EQ(driver().info(&free_now, &total), kSuccess);
    EXPECT_EQ(free_now, free_before);
    constexpr std::size_t kAlignment = 64 * kMiB;
    ASSERT_EQ(memory.reserve(&base, kPart, kAlignment, 0, 0), kSuccess);
    EXPECT_EQ(base % kAlignment, 0U);
    EXPECT_EQ(memory.free(base, kPart), kSuccess);
}

SCENARIO(import_and_answer) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    const VirtualMemory memory;
    PhysicalHandle handle = 0;
    REQUIRE_EQUAL(memory.import_handle(&handle, as_pointer(std::stoi(arguments.at(0))), kPosixFile), kSuccess);
    Pointer base = 0;
    REQUIRE_EQUAL(memory.reserve(&base, kPart, 0, 0, 0), kSuccess);
    REQUIRE_EQUAL(memory.map(base, kPart, 0, handle, 0), kSuccess);
    REQUIRE_EQUAL(memory.set_access(base, kPart, &kReadWriteByDevice0, 1), kSuccess);
    unsigned char byte = 0;
    REQUIRE_EQUAL(driver().to_host(&byte, base + kPart - 1, 1), kSuccess);
    REQUIRE_EQUAL(static_cast<int>(byte), 0x5a);
    int file = -1;
    REQUIRE_EQUAL(memory.export_handle(&file, handle, kPosixFile, 0), kInvalidValue);  // it is not ours
    REQUIRE_EQUAL(driver().fill(base, 0x77, 1), kSuccess);
    REQUIRE_EQUAL(memory.release(handle), kSuccess);
    REQUIRE_EQUAL(memory.unmap(base, kPart), kSuccess);
    REQUIRE_EQUAL(memory.free(base, kPart), kSuccess);
    return 0;
}

TEST_F(EmulatedCuda, SharesPhysicalMemoryByFileDescriptor) {
    const VirtualMemory memory;
    PhysicalHandle handle = 0, imported = 0, unshared = 0;
    Pointer base = 0;
    ASSERT_EQ(memory.create(&handle, kPart, &kOnDevice0, 0), kSuccess);
    ASSERT_EQ(memory.reserve(&base, 2 * kPart, 0, 0, 0), kSuccess);
    ASSERT_EQ(memory.map(base, kPart, 0, handle, 0), kSuccess);
    ASSERT_EQ(memory.set_access(base, kPart, &kReadWriteByDevice0, 1), kSuccess);
    ASSERT_EQ(driver().fill(base, 0x5a, kPart), kSuccess);
    int file = -1;
    ASSERT_EQ(memory.export_handle(&file, handle, kPosixFile, 0), kSuccess);
    const int inherited = dup(file);
    const Outcome outcome = run_scenario("import_and_answer", {}, {std::to_string(inherited)});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    EXPECT_EQ(byte_at(base), 0x77);
    // In the same process it is the same memory at another address.
    ASSERT_EQ(memory.import_handle(&imported, as_pointer(file), kPosixFile), kSuccess);
    ASSERT_EQ(close(file), 0);
    ASSERT_EQ(close(inherited), 0);
    ASSERT_EQ(memory.map(base + kPart, kPart, 0, imported, 0), kSuccess);
    ASSERT_EQ(memory.set_access(base + kPart, kPart, &kReadWriteByDevice0, 1), kSuccess);
    EXPECT_EQ(byte_at(base + kPart), 0x77);
    const int other = memfd_create("no memory of a device", 0);
    ASSERT_EQ(ftruncate(other, 4096), 0);
    EXPECT_EQ(memory.import_handle(&unshared, as_pointer(other), kPosixFile), kInvalidValue);
    ASSERT_EQ(close(other), 0);
    constexpr PhysicalProperties kNotShared{1, 0, 1, 0, nullptr, {}};
    ASSERT_EQ(memory.create(&unshared, kPart, &kNotShared, 0), kSuccess);
    EXPECT_EQ(memory.export_handle(&file, unshared, kPosixFile, 0), kInvalidValue);
    for (const PhysicalHandle one : {handle, imported, unshared}) {
        EXPECT_EQ(memory.release(one), kSuccess);
    }
    EXPECT_EQ(memory.unmap(base, 2 * kPart), kSuccess);
    EXPECT_EQ(memory.free(base, 2 * kPart), kSuccess);
}

// ---- faults
// -------------------------------------------------------------------------------------------------------------

SCENARIO(faulty) {
    const std::string& fault = arguments.at(0);
    REQUIRE_EQUAL(driver().start(), kSuccess);
    Pointer address = 0;
    if (fault == "oom") {
        REQUIRE_EQUAL(driver().allocate(&address, 1), kOutOfMemory);
        return 0;
    }
    REQUIRE_EQUAL(driver().allocate(&address, kMiB), kSuccess);
    void* host = nullptr;
    Handle handle{};
    int can = -1;
    std::vector<char> bytes(8192);
    if (fault == "oom-after=2M") {
        Pointer second = 0;
        REQUIRE_EQUAL(driver().allocate(&second, 2 * kMiB), kOutOfMemory);
        REQUIRE_EQUAL(driver().allocate(&second, kMiB), kSuccess);
    } else if (fault == "ipc-export") {
        REQUIRE_EQUAL(driver().ipc_get(&handle, address), kNotSupported);
    } else if (fault == "no-peer") {
        REQUIRE_EQUAL(driver().can_access_peer(&can, 0, 1), kSuccess);
        REQUIRE_EQUAL(can, 0);
        void* other = nullptr;
        REQUIRE_EQUAL(driver().retain(&other, 1), kSuccess);
        REQUIRE_EQUAL(driver().enable_peer(other, 0), kPeerUnsupported);
    } else if (fault == "pinned-oom") {
        REQUIRE_EQUAL(driver().allocate_host(&host, 4096, 0), kOutOfMemory);
    } else if (fault == "register") {
        REQUIRE_EQUAL(driver().register_host(bytes.data(), bytes.size(), 0), kOutOfMemory);
    } else if (fault == "copy-error=2") {
        REQUIRE_EQUAL(driver().to_host(bytes.data(), address, 64), kSuccess);
        REQUIRE_EQUAL(driver().to_host(bytes.data(), address, 64), kLaunchFailed);
        REQUIRE_EQUAL(driver().synchronize(), kLaunchFailed);  // the context is lost
    } else {
        return 3;
    }
    return 0;
}

TEST(EmulatedCudaProcess, InjectsFaults) {
    for (const char* fault :
         {"oom", "oom-after=2M", "ipc-export", "no-peer", "pinned-oom", "register", "copy-error=2"}) {
        const Outcome outcome =
            run_scenario("faulty", {{"AWAKEN_EMULATE", "cuda:2"}, {"AWAKEN_TEST_FAULTS", fault}}, {fault});
        EXPECT_TRUE(outcome.succeeded()) << fault << ": " << outcome.output;
    }
}

namespace {

void report_at_exit() {
    Pointer address = 0;
    std::printf("at exit: %d\n", driver().allocate(&address, 64));
    std::fflush(stdout);
}

}  // namespace

SCENARIO(call_at_exit) {
    std::atexit(&report_at_exit);  // before the driver starts, so that it runs after the driver's own handler
    REQUIRE_EQUAL(driver().start(), kSuccess);
    // Work that is not over when the process ends.
    Pointer address = 0;
    REQUIRE_EQUAL(driver().allocate(&address, kMiB), kSuccess);
    REQUIRE_EQUAL(driver().fill(address, 1, kMiB), kSuccess);
    return 0;
}

TEST(EmulatedCudaProcess, EndsWithWorkPendingAndCanBeShutDown) {
    Outcome outcome = run_scenario("call_at_exit", {{"AWAKEN_EMULATE", "cuda:1"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    EXPECT_EQ(outcome.output, "at exit: " + std::to_string(kSuccess) + "\n");
    outcome = run_scenario("call_at_exit", {{"AWAKEN_EMULATE", "cuda:1"}, {"AWAKEN_TEST_FAULTS", "shutdown"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    EXPECT_EQ(outcome.output, "at exit: " + std::to_string(kDeinitialized) + "\n");
}

// ---- kernels
// ------------------------------------------------------------------------------------------------------------

namespace {

struct Compiler {
    Library library{"libnvrtc.so.12"};
    int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*);
    int (*destroy)(void**);
    int (*compile)(void*, int, const char* const*);
    int (*log_size)(void*, std::size_t*);
    int (*log)(void*, char*);
    int (*image_size)(void*, std::size_t*);
    int (*image)(void*, char*);
    Compiler() {
        library.bind(create, "nvrtcCreateProgram");
        library.bind(destroy, "nvrtcDestroyProgram");
        library.bind(compile, "nvrtcCompileProgram");
        library.bind(log_size, "nvrtcGetProgramLogSize");
        library.bind(log, "nvrtcGetProgramLog");
        library.bind(image_size, "nvrtcGetCUBINSize");
        library.bind(image, "nvrtcGetCUBIN");
    }
};

std::string text_of_file(const char* path) {
    std::FILE* const file = std::fopen(path, "r");
    EXPECT_NE(file, nullptr) << path;
    if (!file) {
        return {};
    }
    std::string text;
    char buffer[4096];
    std::size_t length = sizeof buffer;
    while (length == sizeof buffer) {
        length = std::fread(buffer, 1, sizeof buffer, file);
        text.append(buffer, length);
    }
    std::fclose(file);
    return text;
}

}  // namespace

TEST_F(EmulatedCuda, RunsAKernelOfTheProject) {
    const Compiler compiler;
    const std::string source = text_of_file(AWAKEN_KERNEL_DIRECTORY "/fill.h");
    void* program = nullptr;
    ASSERT_EQ(compiler.create(&program, source.c_str(), "fill", 0, nullptr, nullptr), 0);
    ASSERT_EQ(compiler.compile(program, 0, nullptr), 0);
    std::size_t size = 0;
    ASSERT_EQ(compiler.image_size(program, &size), 0);
    std::vector<char> image(size);
    ASSERT_EQ(compiler.image(program, image.data()), 0);
    ASSERT_EQ(compiler.destroy(&program), 0);

    void* module = nullptr;
    void* function = nullptr;
    ASSERT_EQ(driver().module_load(&module, image.data()), kSuccess);
    EXPECT_EQ(driver().module_function(&function, module, "awaken_unheard_of"), 500);
    ASSERT_EQ(driver().module_function(&function, module, "awaken_fill_pattern"), kSuccess);
    void* foreign_module = nullptr;
    EXPECT_EQ(driver().module_load(&foreign_module, "another compiler's image"), 209);

    // Fill by one kernel, count by another; the arguments are gone when the kernels run.
    constexpr unsigned long long kBytes = 100'003;
    Pointer data = allocate(kBytes);
    Pointer mismatches = allocate(8);
    ASSERT_EQ(driver().fill(mismatches, 0, 8), kSuccess);
    void* stream = nullptr;
    ASSERT_EQ(driver().stream_create(&stream, 0), kSuccess);
    const auto launch = [&](std::vector<void*> arguments) {
        return driver().launch(function, 7, 1, 1, 64, 1, 1, 0, stream, arguments.data(), nullptr);
    };
    {
        unsigned long long bytes = kBytes;
        unsigned long long seed = 42;
        unsigned long long first = 5;
        ASSERT_EQ(launch({&data, &bytes, &seed, &first}), kSuccess);
        ASSERT_EQ(driver().module_function(&function, module, "awaken_count_mismatches"), kSuccess);
        ASSERT_EQ(launch({&data, &bytes, &seed, &first, &mismatches}), kSuccess);
        bytes = seed = first = ~0ULL;
    }
    ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
    unsigned long long counted = 99;
    ASSERT_EQ(driver().to_host(&counted, mismatches, sizeof counted), kSuccess);
    EXPECT_EQ(counted, 0U);
    const unsigned char spoiled = static_cast<unsigned char>(byte_at(data + 77) ^ 1);
    ASSERT_EQ(driver().to_device(data + 77, &spoiled, 1), kSuccess);
    unsigned long long bytes = kBytes;
    unsigned long long seed = 42;
    unsigned long long first = 5;
    // The same parameters in one buffer.
    const struct {
        Pointer data;
        unsigned long long bytes, seed, first;
        Pointer mismatches;
    } packed{data, bytes, seed, first, mismatches};
    std::size_t packed_size = sizeof packed;
    void* extra[] = {reinterpret_cast<void*>(1), const_cast<void*>(static_cast<const void*>(&packed)),
                     reinterpret_cast<void*>(2), &packed_size, nullptr};
    ASSERT_EQ(driver().launch(function, 2, 1, 1, 32, 1, 1, 0, stream, nullptr, extra), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
    ASSERT_EQ(driver().to_host(&counted, mismatches, sizeof counted), kSuccess);
    EXPECT_EQ(counted, 1U);

    EXPECT_EQ(driver().launch(function, 1, 1, 1, 2048, 1, 1, 0, stream, nullptr, extra), kInvalidValue)
        << "block too large";
    EXPECT_EQ(driver().launch(function, 1, 1, 1, 32, 1, 1, 0, stream, nullptr, nullptr), kInvalidValue)
        << "no arguments";
    ASSERT_EQ(driver().module_unload(module), kSuccess);
    EXPECT_EQ(driver().launch(function, 2, 1, 1, 32, 1, 1, 0, stream, nullptr, extra), kInvalidHandle);
    ASSERT_EQ(driver().stream_destroy(stream), kSuccess);
    ASSERT_EQ(driver().free(data), kSuccess);
    ASSERT_EQ(driver().free(mismatches), kSuccess);
}

namespace {

/// A kernel of apps/examples/own_kernel.hip, in a module.
struct OwnKernel {
    void* module = nullptr;
    void* function = nullptr;
};
void load_own_kernel(const char* name, OwnKernel& kernel) {
    const Compiler compiler;
    const std::string source = text_of_file(AWAKEN_APPS_DIRECTORY "/examples/own_kernel.hip");
    void* program = nullptr;
    ASSERT_EQ(compiler.create(&program, source.c_str(), "own_kernel.hip", 0, nullptr, nullptr), 0);
    ASSERT_EQ(compiler.compile(program, 0, nullptr), 0);
    std::size_t size = 0;
    ASSERT_EQ(compiler.image_size(program, &size), 0);
    std::vector<char> image(size);
    ASSERT_EQ(compiler.image(program, image.data()), 0);
    ASSERT_EQ(compiler.destroy(&program), 0);
    ASSERT_EQ(driver().module_load(&kernel.module, image.data()), kSuccess);
    ASSERT_EQ(driver().module_function(&kernel.function, kernel.module, name), kSuccess);
}

}  // namespace

TEST_F(EmulatedCuda, RunsAKernelOfAProgram) {
    OwnKernel kernel;
    ASSERT_NO_FATAL_FAILURE(load_own_kernel("own_kernel_double", kernel));

    // Plain pointers to device memory and to host memory that devices may use.
    int count = 70;
    int* source_values = nullptr;
    ASSERT_EQ(driver().allocate_host(reinterpret_cast<void**>(&source_values), 70 * sizeof(int), 0), kSuccess);
    for (int i = 0; i < count; ++i) {
        source_values[i] = i - 3;
    }
    Pointer target = allocate(70 * sizeof(int));
    std::vector<void*> arguments = {&target, static_cast<void*>(&source_values), &count};
    ASSERT_EQ(driver().launch(kernel.function, 3, 1, 1, 32, 1, 1, 0, nullptr, arguments.data(), nullptr), kSuccess);
    std::vector<int> doubled(70);
    ASSERT_EQ(driver().to_host(doubled.data(), target, 70 * sizeof(int)), kSuccess);
    for (int i = 0; i < count; ++i) {
        EXPECT_EQ(doubled[static_cast<std::size_t>(i)], 2 * (i - 3));
    }
    ASSERT_EQ(driver().free_host(source_values), kSuccess);
    ASSERT_EQ(driver().free(target), kSuccess);
    ASSERT_EQ(driver().module_unload(kernel.module), kSuccess);
}

SCENARIO(kernel_on_memory_from_malloc) {
    const bool permitted = arguments.at(0) == "permitted";
    REQUIRE_EQUAL(driver().start(), kSuccess);
    OwnKernel kernel;
    load_own_kernel("own_kernel_count", kernel);
    std::vector<int> values(5);
    int* buffer = values.data();
    int count = 5, first = 7;
    void* parameters[] = {static_cast<void*>(&buffer), &count, &first};
    REQUIRE_EQUAL(driver().launch(kernel.function, 1, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr), kSuccess);
    REQUIRE_EQUAL(driver().synchronize(), permitted ? kSuccess : kLaunchFailed);
    REQUIRE_EQUAL(values[4], permitted ? 11 : 0);
    return 0;
}

TEST(EmulatedCudaProcess, KernelsUseMemoryFromMallocOnlyWherePermitted) {
    // HSA_XNACK is AMD's, and changes nothing for CUDA.
    const Outcome refused =
        run_scenario("kernel_on_memory_from_malloc", {{"AWAKEN_EMULATE", "cuda:1"}, {"HSA_XNACK", "1"}}, {"refused"});
    EXPECT_TRUE(refused.succeeded()) << refused.output;
    EXPECT_NE(refused.output.find("memory from malloc takes AWAKEN_TEST_FAULTS=pageable-memory"), std::string::npos)
        << refused.output;
    const Outcome permitted =
        run_scenario("kernel_on_memory_from_malloc",
                     {{"AWAKEN_EMULATE", "cuda:1"}, {"AWAKEN_TEST_FAULTS", "pageable-memory"}}, {"permitted"});
    EXPECT_TRUE(permitted.succeeded()) << permitted.output;
}

TEST_F(EmulatedCuda, RefusesToCompileWhatItWasNotBuiltWith) {
    const Compiler compiler;
    void* program = nullptr;
    ASSERT_EQ(compiler.create(&program, "extern \"C\" __global__ void foreign(int* p) { *p = 1; }", "foreign.cu", 0,
                              nullptr, nullptr),
              0);
    EXPECT_EQ(compiler.compile(program, 0, nullptr), 6);
    std::size_t size = 0;
    ASSERT_EQ(compiler.log_size(program, &size), 0);
    std::string log(size, '\0');
    ASSERT_EQ(compiler.log(program, log.data()), 0);
    EXPECT_NE(log.find("foreign.cu"), std::string::npos) << log;
    EXPECT_NE(log.find("only kernels that it was built with"), std::string::npos) << log;
    EXPECT_EQ(compiler.destroy(&program), 0);
}

TEST_F(EmulatedCuda, FindsCallsByName) {
    void* found = nullptr;
    int status = -1;
    ASSERT_EQ(driver().proc_address("cuMemAlloc", &found, 12000, 0, &status), kSuccess);
    EXPECT_EQ(found, reinterpret_cast<void*>(driver().allocate));
    EXPECT_EQ(status, 0);
    void* with_flags = nullptr;
    ASSERT_EQ(driver().proc_address("cuGraphInstantiate", &found, 12000, 0, &status), kSuccess);
    ASSERT_EQ(driver().proc_address("cuGraphInstantiateWithFlags", &with_flags, 12000, 0, &status), kSuccess);
    EXPECT_EQ(found, with_flags);
    // Memory operations have had their second version since CUDA 11.7.
    ASSERT_EQ(driver().proc_address("cuStreamWaitValue32", &found, 12000, 0, &status), kSuccess);
    EXPECT_EQ(found, reinterpret_cast<void*>(driver().wait_32));
    ASSERT_EQ(driver().proc_address("cuStreamWaitValue32", &found, 11060, 0, &status), kSuccess);
    EXPECT_NE(found, reinterpret_cast<void*>(driver().wait_32));
    EXPECT_EQ(driver().proc_address("cuNoSuchCall", &found, 12000, 0, &status), 500);
    EXPECT_EQ(status, 1);
    EXPECT_EQ(found, nullptr);
}

// ---- host functions
// -----------------------------------------------------------------------------------------------------------

TEST_F(EmulatedCuda, HostFunctionsMayNotCallTheDriver) {
    constexpr int kNotPermitted = 800;
    int (*runtime_malloc)(void**, std::size_t) = nullptr;
    int (*runtime_host_function)(void*, void (*)(void*), void*) = nullptr;
    int (*runtime_callback)(void*, void (*)(void*, int, void*), void*, unsigned) = nullptr;
    int (*callback)(void*, void (*)(void*, int, void*), void*, unsigned) = nullptr;
    const Library runtime("libcudart.so.12");
    runtime.bind(runtime_malloc, "cudaMalloc");
    runtime.bind(runtime_host_function, "cudaLaunchHostFunc");
    runtime.bind(runtime_callback, "cudaStreamAddCallback");
    driver().library.bind(callback, "cuStreamAddCallback");
    Pointer memory = allocate(64);
    void *stream = nullptr, *event = nullptr;
    ASSERT_EQ(driver().stream_create(&stream, 1), kSuccess);
    ASSERT_EQ(driver().event_create(&event, 0), kSuccess);
    unsigned type = 0;
    const std::array<int, 1> wanted{kMemoryType};
    std::array<void*, 1> places{&type};
    void* made = nullptr;
    int number = 0;
    const std::vector<std::function<int()>> refused{
        [&] { return driver().attribute(&type, kMemoryType, memory); },
        [&] { return driver().attributes(1, wanted.data(), places.data(), memory); },
        [&] { return driver().device_count(&number); },
        [&] { return driver().get_current(&made); },
        [&] { return driver().stream_query(stream); },
        [&] { return driver().event_query(event); },
        [&] { return driver().event_record(event, stream); },
        [&] { return driver().copy_async(memory, memory + 32, 32, stream); },
        [&] { return driver().free(memory); },
        [&] { return runtime_malloc(&made, 64); },
    };
    const std::vector<std::function<int()>> permitted{
        [&] { return driver().init(0); },
        [&] { return driver().exchange_capture_mode(&number); },
    };
    struct Inside {
        const std::vector<std::function<int()>>&refused, &permitted;
        std::vector<int> results;
        void run() {
            for (const auto* const calls : {&refused, &permitted}) {
                for (const auto& call : *calls) {
                    results.push_back(call());
                }
            }
        }
    };
    std::vector<int> expected(refused.size(), kNotPermitted);
    expected.resize(refused.size() + permitted.size(), kSuccess);
    const auto function = [](void* inside) { static_cast<Inside*>(inside)->run(); };
    const auto called_back = [](void*, int, void* inside) { static_cast<Inside*>(inside)->run(); };
    const std::function<int(Inside&)> ways[] = {
        [&](Inside& inside) { return driver().host_function(stream, function, &inside); },
        [&](Inside& inside) { return callback(stream, called_back, &inside, 0); },
        [&](Inside& inside) { return runtime_host_function(stream, function, &inside); },
        [&](Inside& inside) { return runtime_callback(stream, called_back, &inside, 0); },
    };
    for (const auto& way : ways) {
        Inside inside{refused, permitted, {}};
        ASSERT_EQ(way(inside), kSuccess);
        ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
        EXPECT_EQ(inside.results, expected) << &way - ways;
        EXPECT_EQ(driver().fill_async(memory, 1, 64, stream), kSuccess) << "what comes after is permitted";
    }
    ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
    EXPECT_EQ(driver().event_destroy(event), kSuccess);
    EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
    EXPECT_EQ(driver().free(memory), kSuccess);
}

// ---- calls that wait for all work
// ----------------------------------------------------------------------------------------

namespace {

std::vector<char> image_of_a_kernel() {
    const Compiler compiler;
    const std::string source = text_of_file(AWAKEN_KERNEL_DIRECTORY "/fill.h");
    void* program = nullptr;
    std::size_t size = 0;
    EXPECT_EQ(compiler.create(&program, source.c_str(), "fill", 0, nullptr, nullptr), 0);
    EXPECT_EQ(compiler.compile(program, 0, nullptr), 0);
    EXPECT_EQ(compiler.image_size(program, &size), 0);
    std::vector<char> image(size);
    EXPECT_EQ(compiler.image(program, image.data()), 0);
    EXPECT_EQ(compiler.destroy(&program), 0);
    return image;
}

struct NamedCall {
    const char* name;
    std::function<int()> call;
};

/// Calls that wait, each for once.
class WaitingCalls {
  public:
    WaitingCalls() : _image(image_of_a_kernel()) {
        int (*runtime_free)(void*) = nullptr;
        int (*runtime_free_host)(void*) = nullptr;
        int (*runtime_unregister)(void*) = nullptr;
        int (*load_ex)(void**, const void*, unsigned, int*, void**) = nullptr;
        const Library runtime("libcudart.so.13");
        runtime.bind(runtime_free, "cudaFree");
        runtime.bind(runtime_free_host, "cudaFreeHost");
        runtime.bind(runtime_unregister, "cudaHostUnregister");
        driver().library.bind(load_ex, "cuModuleLoadDataEx");
        for (Pointer& memory : _memory) {
            EXPECT_EQ(driver().allocate(&memory, 4096), kSuccess);
        }
        for (void*& memory : _pinned) {
            EXPECT_EQ(driver().allocate_host(&memory, 4096, 0), kSuccess);
        }
        for (std::vector<char>& memory : _registered) {
            memory.resize(64);
            EXPECT_EQ(driver().register_host(memory.data(), memory.size(), 0), kSuccess);
        }
        EXPECT_EQ(driver().module_load(&_module, _image.data()), kSuccess);
        calls = {
            {"cuMemFree", [this] { return driver().free(_memory[0]); }},
            {"cuMemFreeHost", [this] { return driver().free_host(_pinned[0]); }},
            {"cuMemHostUnregister", [this] { return driver().unregister_host(_registered[0].data()); }},
            {"cuModuleLoadData", [this] { return driver().module_load(&_loaded[0], _image.data()); }},
            {"cuModuleLoadDataEx",
             [this, load_ex] { return load_ex(&_loaded[1], _image.data(), 0, nullptr, nullptr); }},
            {"cuModuleUnload", [this] { return driver().module_unload(_module); }},
            {"cudaFree", [this, runtime_free] { return runtime_free(reinterpret_cast<void*>(_memory[1])); }},
            {"cudaFreeHost", [this, runtime_free_host] { return runtime_free_host(_pinned[1]); }},
            {"cudaHostUnregister", [this, runtime_unregister] { return runtime_unregister(_registered[1].data()); }},
        };
    }
    ~WaitingCalls() {
        for (void* const module : _loaded) {
            EXPECT_EQ(driver().module_unload(module), kSuccess);
        }
    }
    WaitingCalls(const WaitingCalls&) = delete;
    WaitingCalls& operator=(const WaitingCalls&) = delete;

    std::vector<NamedCall> calls;

  private:
    std::vector<char> _image;
    std::array<Pointer, 2> _memory{};
    std::array<void*, 2> _pinned{}, _loaded{};
    std::array<std::vector<char>, 2> _registered;
    void* _module = nullptr;
};

/// A call of another thread, in the same context.
std::function<int()> on_this_context(std::function<int()> call) {
    void* context = nullptr;
    EXPECT_EQ(driver().get_current(&context), kSuccess);
    return [context, call = std::move(call)] {
        const int result = driver().set_current(context);
        return result == kSuccess ? call() : result;
    };
}

}  // namespace

TEST_F(EmulatedCuda, WhatWaitsForAllWorkHoldsUpOtherCalls) {
    WaitingCalls waiting;
    const std::vector<char> image = image_of_a_kernel();
    void *busy = nullptr, *stream = nullptr, *event = nullptr, *module = nullptr, *function = nullptr;
    ASSERT_EQ(driver().stream_create(&busy, 1), kSuccess);
    ASSERT_EQ(driver().stream_create(&stream, 1), kSuccess);
    ASSERT_EQ(driver().event_create(&event, 0), kSuccess);
    ASSERT_EQ(driver().module_load(&module, image.data()), kSuccess);
    ASSERT_EQ(driver().module_function(&function, module, "awaken_fill_pattern"), kSuccess);
    void *context = nullptr, *context_event = nullptr, *old_event = nullptr;
    ASSERT_EQ(driver().get_current(&context), kSuccess);
    ASSERT_EQ(driver().event_create(&context_event, 0), kSuccess);
    ASSERT_EQ(driver().event_create(&old_event, 0), kSuccess);
    Pointer memory = allocate(4096);
    std::vector<char> host(64);
    const std::function<int()> held_up[] = {
        [&] { return driver().copy_async(memory, memory + 64, 64, stream); },
        [&] { return driver().to_host(host.data(), memory, 64); },
        [&] { return driver().fill_async(memory + 1024, 1, 64, stream); },
        [&] { return driver().event_record(event, stream); },
        [&] { return driver().record_context(context, context_event); },
        [&] { return driver().host_function(stream, [](void*) {}, nullptr); },
        [&] {
            void* found = nullptr;
            return driver().module_function(&found, module, "awaken_fill_pattern");
        },
        [&] {
            Pointer address = 0;
            const int result = driver().allocate_managed(&address, 64, 1);
            return result == kSuccess ? driver().free(address) : result;
        },
        [&] {
            unsigned long long bytes = 64, seed = 1, first = 0;
            Pointer target = memory + 2048;
            void* arguments[] = {&target, &bytes, &seed, &first};
            return driver().launch(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
        },
        [&] {
            Pointer address = 0;
            const int result = driver().allocate(&address, 64);
            return result == kSuccess ? driver().free(address) : result;
        },
        [&] {
            void* address = nullptr;
            const int result = driver().allocate_host(&address, 64, 0);
            return result == kSuccess ? driver().free_host(address) : result;
        },
        [&] {
            void* made = nullptr;
            const int result = driver().stream_create(&made, 1);
            return result == kSuccess ? driver().stream_destroy(made) : result;
        },
        [&] {
            void* made = nullptr;
            const int result = driver().event_create(&made, 0);
            return result == kSuccess ? driver().event_destroy(made) : result;
        },
    };
    for (const NamedCall& waiter : waiting.calls) {
        SCOPED_TRACE(waiter.name);
        Gate gate;
        ASSERT_EQ(driver().host_function(busy, &Gate::wait, &gate), kSuccess);
        const BackgroundCall call(on_this_context(waiter.call));
        EXPECT_TRUE(waits_for_all_work(call));
        // These do not care.
        Handle handle{};
        Pointer opened = 0;
        EXPECT_EQ(driver().ipc_get(&handle, memory), kSuccess);
        EXPECT_EQ(driver().ipc_open(&opened, handle, 1), kInvalidContext);
        EXPECT_EQ(attribute_of<unsigned>(memory, kMemoryType), 2U);
        EXPECT_EQ(driver().stream_query(stream), kSuccess);
        EXPECT_EQ(driver().stream_query(busy), kNotReady);
        EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
        EXPECT_EQ(driver().event_query(old_event), kSuccess);
        EXPECT_EQ(driver().event_synchronize(old_event), kSuccess);
        EXPECT_EQ(driver().stream_wait(stream, old_event, 0), kSuccess);
        EXPECT_EQ(driver().allocate_async(&opened, 64, stream), kSuccess);
        EXPECT_EQ(driver().free_async(opened, stream), kSuccess);
        std::vector<std::unique_ptr<BackgroundCall>> others;
        for (const std::function<int()>& other : held_up) {
            others.push_back(std::make_unique<BackgroundCall>(on_this_context(other)));
        }
        const auto any_returned = [&] {
            return std::any_of(others.begin(), others.end(), [](const auto& other) { return other->returned(); });
        };
        while (waiting_threads().held_up < others.size() && !any_returned()) {
            std::this_thread::yield();
        }
        for (std::size_t other = 0; other < others.size(); ++other) {
            EXPECT_FALSE(others[other]->returned()) << other;
        }
        EXPECT_FALSE(call.returned());
        gate.open = true;
        EXPECT_EQ(call.result(), kSuccess);
        for (std::size_t other = 0; other < others.size(); ++other) {
            EXPECT_EQ(others[other]->result(), kSuccess) << other;
        }
        ASSERT_EQ(driver().synchronize(), kSuccess);
    }
    // Another context of the device is another matter.
    Gate gate;
    ASSERT_EQ(driver().host_function(busy, &Gate::wait, &gate), kSuccess);
    int (*create_context)(void**, unsigned, int) = nullptr;
    int (*destroy_context)(void*) = nullptr;
    driver().library.bind(create_context, "cuCtxCreate_v2");
    driver().library.bind(destroy_context, "cuCtxDestroy_v2");
    void* own = nullptr;
    ASSERT_EQ(create_context(&own, 0, 0), kSuccess);
    Pointer elsewhere = 0;
    EXPECT_EQ(driver().allocate(&elsewhere, 64), kSuccess);
    EXPECT_EQ(driver().free(elsewhere), kSuccess);
    EXPECT_EQ(destroy_context(own), kSuccess);
    gate.open = true;
    ASSERT_EQ(driver().synchronize(), kSuccess);
    EXPECT_EQ(driver().module_unload(module), kSuccess);
    EXPECT_EQ(driver().free(memory), kSuccess);
    for (void* const made : {event, context_event, old_event}) {
        EXPECT_EQ(driver().event_destroy(made), kSuccess);
    }
    for (void* const made : {busy, stream}) {
        EXPECT_EQ(driver().stream_destroy(made), kSuccess);
    }
}

SCENARIO(close_waits) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    int (*runtime_close)(void*) = nullptr;
    Library("libcudart.so.12").bind(runtime_close, "cudaIpcCloseMemHandle");
    for (const bool by_runtime : {false, true}) {
        Pointer address = 0;
        void* busy = nullptr;
        REQUIRE_EQUAL(driver().ipc_open(&address, handle, 1), kSuccess);
        REQUIRE_EQUAL(driver().stream_create(&busy, 1), kSuccess);
        Gate gate;
        REQUIRE_EQUAL(driver().host_function(busy, &Gate::wait, &gate), kSuccess);
        const BackgroundCall call(on_this_context([&] {
            return by_runtime ? runtime_close(reinterpret_cast<void*>(address)) : driver().ipc_close(address);
        }));
        const bool waited = waits_for_all_work(call);
        gate.open = true;
        REQUIRE_EQUAL(waited, true);
        REQUIRE_EQUAL(call.result(), kSuccess);
    }
    return 0;
}

TEST_F(EmulatedCuda, ClosingAnImportWaitsForAllWork) {
    const Pointer address = allocate(4096);
    Handle handle{};
    ASSERT_EQ(driver().ipc_get(&handle, address), kSuccess);
    const Outcome outcome = run_scenario("close_waits", {}, {to_text(handle.bytes, sizeof handle.bytes)});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    ASSERT_EQ(driver().free(address), kSuccess);
}

SCENARIO(opens_slowly) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    int (*runtime_attributes)(void*, const void*) = nullptr;
    Library("libcudart.so.12").bind(runtime_attributes, "cudaPointerGetAttributes");
    Pointer memory = 0, opened = 0;
    void *event = nullptr, *stream = nullptr;
    REQUIRE_EQUAL(driver().allocate(&memory, 4096), kSuccess);
    REQUIRE_EQUAL(driver().event_create(&event, 0), kSuccess);
    REQUIRE_EQUAL(driver().stream_create(&stream, 1), kSuccess);
    const std::function<int()> open = on_this_context([&] { return driver().ipc_open(&opened, handle, 1); });
    const std::function<int()> close = [&] { return driver().ipc_close(opened); };
    const std::vector<std::function<int()>> others{
        [&] { return driver().event_query(event); },
        [&] { return driver().stream_query(stream); },
        [&] { return driver().fill_async(memory, 1, 4096, stream); },
        [&] {
            alignas(8) unsigned char attributes[64];
            return runtime_attributes(attributes, reinterpret_cast<void*>(memory));
        },
    };
    for (const std::function<int()>& other : others) {
        REQUIRE_EQUAL(driver().stream_synchronize(stream), kSuccess);
        REQUIRE_EQUAL(waits_for_opening(other, open, close), true);
    }
    return 0;
}

TEST_F(EmulatedCuda, OpeningAnImportKeepsOtherCallsOut) {
    const Pointer address = allocate(kMiB);
    Handle handle{};
    ASSERT_EQ(driver().ipc_get(&handle, address), kSuccess);
    for (const char* const time : kSlowOpenings) {
        const Outcome outcome = run_scenario("opens_slowly", {{"AWAKEN_TEST_IPC_OPEN_US", time}},
                                             {to_text(handle.bytes, sizeof handle.bytes)});
        EXPECT_TRUE(outcome.succeeded()) << time << ": " << outcome.output;
    }
    ASSERT_EQ(driver().free(address), kSuccess);
}

SCENARIO(refuses_to_wait) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    WaitingCalls waiting;
    void* busy = nullptr;
    REQUIRE_EQUAL(driver().stream_create(&busy, 1), kSuccess);
    Gate gate;
    REQUIRE_EQUAL(driver().host_function(busy, &Gate::wait, &gate), kSuccess);
    for (int round = 0; round < 2; ++round) {
        for (const NamedCall& waiter : waiting.calls) {
            REQUIRE_EQUAL(waiter.call(), kNotReady);
        }
    }
    gate.open = true;
    REQUIRE_EQUAL(driver().stream_synchronize(busy), kSuccess);
    for (const NamedCall& waiter : waiting.calls) {
        REQUIRE_EQUAL(waiter.call(), kSuccess);
    }
    return 0;
}

TEST(EmulatedCudaProcess, RefusesToWaitForAllWorkWhenAsked) {
    const Outcome outcome =
        run_scenario("refuses_to_wait", {{"AWAKEN_EMULATE", "cuda:1"}, {"AWAKEN_TEST_BUSY", "error"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    std::size_t lines = 0;
    for (const char* name :
         {"cuMemFree", "cuMemFreeHost", "cuMemHostUnregister", "cuModuleLoadData", "cuModuleLoadDataEx",
          "cuModuleUnload", "cudaFree", "cudaFreeHost", "cudaHostUnregister"}) {
        const std::string words = ": " + std::string(name) + " was called while there was unfinished work";
        const std::size_t at = outcome.output.find(words);
        EXPECT_NE(at, std::string::npos) << outcome.output;
        EXPECT_EQ(outcome.output.find(words, at + 1), std::string::npos) << "said twice: " << name;
        ++lines;
    }
    EXPECT_EQ(static_cast<std::size_t>(std::count(outcome.output.begin(), outcome.output.end(), '\n')), lines);
}

// ---- the run-time library
// -----------------------------------------------------------------------------------------------

namespace {

template <std::size_t PropertyBytes, std::size_t AttributeBytes>
void use_runtime(const char* file, const char* properties_name) {
    const Library library(file);
    int (*malloc_)(void**, std::size_t);
    int (*free_)(void*);
    int (*memcpy_)(void*, const void*, std::size_t, int);
    int (*set_device)(int);
    int (*get_device)(int*);
    int (*last_error)();
    int (*properties)(void*, int);
    int (*attributes)(void*, const void*);
    const char* (*text)(int);
    library.bind(malloc_, "cudaMalloc");
    library.bind(free_, "cudaFree");
    library.bind(memcpy_, "cudaMemcpy");
    library.bind(set_device, "cudaSetDevice");
    library.bind(get_device, "cudaGetDevice");
    library.bind(last_error, "cudaGetLastError");
    library.bind(properties, properties_name);
    library.bind(attributes, "cudaPointerGetAttributes");
    library.bind(text, "cudaGetErrorString");

    // On a thread of its own: no context is current, and the runtime makes one.
    std::thread([&] {
        int device = -1;
        EXPECT_EQ(get_device(&device), kSuccess);
        EXPECT_EQ(device, 0);
        EXPECT_EQ(set_device(1), kSuccess);
        void* address = nullptr;
        ASSERT_EQ(malloc_(&address, 64), kSuccess);
        // The driver knows it as memory of the same machine.
        EXPECT_EQ(attribute_of<int>(reinterpret_cast<Pointer>(address), kDeviceOrdinal), 1);
        std::array<int, 16> out{1, 2, 3};
        std::array<int, 16> back{};
        EXPECT_EQ(memcpy_(address, out.data(), 64, 1), kSuccess);
        EXPECT_EQ(memcpy_(back.data(), address, 64, 4), kSuccess);
        EXPECT_EQ(back, out);
        EXPECT_EQ(memcpy_(back.data(), address, 64, 9), 21);
        EXPECT_EQ(last_error(), 21) << "kept until asked for";
        EXPECT_EQ(last_error(), kSuccess);
        EXPECT_EQ(set_device(2), 101);
        EXPECT_STREQ(text(101), "invalid device ordinal");

        std::vector<unsigned char> filled(PropertyBytes + 64, 0xcd);
        ASSERT_EQ(properties(filled.data(), 1), kSuccess);
        EXPECT_EQ(filled[PropertyBytes], 0xcd) << "written beyond the structure";
        EXPECT_STREQ(reinterpret_cast<char*>(filled.data()), "Awaken emulated GPU (CUDA)");
        std::size_t memory = 0;
        std::memcpy(&memory, filled.data() + 288, sizeof memory);
        EXPECT_EQ(memory, std::size_t{4} << 30);

        struct {
            int type;
            int device;
            void* device_pointer;
            void* host_pointer;
            unsigned char rest[AttributeBytes - 24 + 16];
        } found;
        std::memset(&found, 0xcd, sizeof found);
        ASSERT_EQ(attributes(&found, static_cast<char*>(address) + 8), kSuccess);
        EXPECT_EQ(found.type, 2);
        EXPECT_EQ(found.device, 1);
        EXPECT_EQ(found.host_pointer, nullptr);
        EXPECT_EQ(found.rest[AttributeBytes - 24], 0xcd) << "written beyond the structure";
        ASSERT_EQ(attributes(&found, &found), kSuccess);
        EXPECT_EQ(found.type, 0);
        EXPECT_EQ(free_(address), kSuccess);
    }).join();
}

}  // namespace

namespace {

/// Captures and graphs by one of the run-time libraries.
void use_graphs(const char* file) {
    constexpr int kUnsupported = 900, kInvalidated = 901, kIsolation = 905, kImplicit = 906, kCapturedEvent = 907;
    constexpr int kGlobal = 0, kToHost = 2, kWithinDevice = 3;
    const Library library(file);
    int (*malloc_)(void**, std::size_t) = nullptr;
    int (*free_)(void*) = nullptr;
    int (*memcpy_)(void*, const void*, std::size_t, int) = nullptr;
    int (*memcpy_async)(void*, const void*, std::size_t, int, void*) = nullptr;
    int (*memset_async)(void*, int, std::size_t, void*) = nullptr;
    int (*begin)(void*, int) = nullptr;
    int (*end)(void*, void**) = nullptr;
    int (*capturing)(void*, int*) = nullptr;
    int (*instantiate)(void**, void*, unsigned long long) = nullptr;
    int (*launch)(void*, void*) = nullptr;
    int (*destroy_executable)(void*) = nullptr;
    int (*destroy)(void*) = nullptr;
    int (*host_function)(void*, void (*)(void*), void*) = nullptr;
    library.bind(malloc_, "cudaMalloc");
    library.bind(free_, "cudaFree");
    library.bind(memcpy_, "cudaMemcpy");
    library.bind(memcpy_async, "cudaMemcpyAsync");
    library.bind(memset_async, "cudaMemsetAsync");
    library.bind(begin, "cudaStreamBeginCapture");
    library.bind(end, "cudaStreamEndCapture");
    library.bind(capturing, "cudaStreamIsCapturing");
    library.bind(instantiate, "cudaGraphInstantiate");
    library.bind(launch, "cudaGraphLaunch");
    library.bind(destroy_executable, "cudaGraphExecDestroy");
    library.bind(destroy, "cudaGraphDestroy");
    library.bind(host_function, "cudaLaunchHostFunc");
    int (*capture_info)(void*, int*, unsigned long long*, void**, const void***, std::size_t*) = nullptr;
    int (*make_object)(void**, void*, void (*)(void*), unsigned, unsigned) = nullptr;
    int (*release_object)(void*, unsigned) = nullptr;
    int (*retain_object)(void*, void*, unsigned, unsigned) = nullptr;
    library.bind(capture_info, "cudaStreamGetCaptureInfo_v2");
    library.bind(make_object, "cudaUserObjectCreate");
    library.bind(release_object, "cudaUserObjectRelease");
    library.bind(retain_object, "cudaGraphRetainUserObject");
    void *first = nullptr, *second = nullptr, *event = nullptr, *outside = nullptr, *memory = nullptr;
    ASSERT_EQ(driver().stream_create(&first, 0), kSuccess);
    ASSERT_EQ(driver().stream_create(&second, 0), kSuccess);
    ASSERT_EQ(driver().event_create(&event, 0), kSuccess);
    ASSERT_EQ(driver().event_create(&outside, 0), kSuccess);
    ASSERT_EQ(malloc_(&memory, 16), kSuccess);
    auto* const bytes = static_cast<char*>(memory);
    ASSERT_EQ(memset_async(memory, 0, 16, first), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(first), kSuccess);

    // Two streams of one capture: a fill, then a copy of what it filled in the other stream.
    int status = -1, calls = 0;
    void *graph = nullptr, *executable = nullptr;
    ASSERT_EQ(begin(first, kGlobal), kSuccess);
    EXPECT_EQ(begin(first, kGlobal), kInvalidValue);
    ASSERT_EQ(memset_async(bytes, 5, 8, first), kSuccess);
    ASSERT_EQ(driver().event_record(event, first), kSuccess);
    ASSERT_EQ(driver().stream_wait(second, event, 0), kSuccess);
    EXPECT_EQ(capturing(second, &status), kSuccess);
    EXPECT_EQ(status, 1);
    ASSERT_EQ(memcpy_async(bytes + 8, bytes, 8, kWithinDevice, second), kSuccess);
    ASSERT_EQ(host_function(second, [](void* count) { ++*static_cast<int*>(count); }, &calls), kSuccess);
    // An object that goes with the graph, and one that is given back.
    int gone = 0;
    const auto count_up = [](void* count) { ++*static_cast<int*>(count); };
    unsigned long long identity = 0;
    void *growing = nullptr, *object = nullptr;
    ASSERT_EQ(capture_info(second, &status, &identity, &growing, nullptr, nullptr), kSuccess);
    EXPECT_EQ(status, 1);
    EXPECT_NE(identity, 0U);
    constexpr unsigned kMove = 1;
    ASSERT_EQ(make_object(&object, &gone, count_up, 1, 1), kSuccess);
    ASSERT_EQ(retain_object(growing, object, 1, kMove), kSuccess);
    EXPECT_EQ(release_object(object, 1), kInvalidValue) << "the graph has the reference";
    ASSERT_EQ(make_object(&object, &gone, count_up, 1, 1), kSuccess);
    ASSERT_EQ(release_object(object, 1), kSuccess);
    EXPECT_EQ(gone, 1);
    ASSERT_EQ(end(first, &graph), kSuccess);
    EXPECT_EQ(graph, growing);
    ASSERT_EQ(capture_info(second, &status, &identity, &growing, nullptr, nullptr), kSuccess);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(capturing(second, &status), kSuccess);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(driver().event_query(event), kCapturedEvent);
    std::array<char, 16> seen{};
    ASSERT_EQ(memcpy_(seen.data(), memory, 16, kToHost), kSuccess);
    EXPECT_EQ(seen[15], 0) << "nothing is done before the launch";
    ASSERT_EQ(instantiate(&executable, graph, 0), kSuccess);
    ASSERT_EQ(destroy(graph), kSuccess);
    for (int round = 1; round <= 2; ++round) {
        ASSERT_EQ(launch(executable, second), kSuccess);
        ASSERT_EQ(memset_async(memory, 0, 8, second), kSuccess);
        ASSERT_EQ(driver().stream_synchronize(second), kSuccess);
        ASSERT_EQ(memcpy_(seen.data(), memory, 16, kToHost), kSuccess);
        EXPECT_EQ(seen[0], 0) << "after the graph";
        EXPECT_EQ(seen[15], 5);
        EXPECT_EQ(calls, round);
    }
    EXPECT_EQ(gone, 1) << "what was instantiated keeps it";
    ASSERT_EQ(destroy_executable(executable), kSuccess);
    EXPECT_EQ(gone, 2);
    EXPECT_EQ(destroy_executable(executable), kInvalidValue);
    EXPECT_EQ(instantiate(&executable, graph, 0), kInvalidValue);

    // What spoils a capture.
    ASSERT_EQ(driver().event_record(outside, second), kSuccess);
    void* other = nullptr;
    const std::vector<std::pair<int, std::function<int()>>> spoiling{
        {kUnsupported, [&] { return malloc_(&other, 64); }},
        {kUnsupported, [&] { return driver().stream_synchronize(first); }},
        {kUnsupported, [&] { return driver().stream_query(first); }},
        {kImplicit, [&] { return memcpy_(seen.data(), memory, 16, kToHost); }},
        {kIsolation, [&] { return driver().stream_wait(first, outside, 0); }},
    };
    for (const auto& [error, call] : spoiling) {
        ASSERT_EQ(begin(first, kGlobal), kSuccess);
        EXPECT_EQ(call(), error);
        EXPECT_EQ(end(first, &graph), kInvalidated);
        EXPECT_EQ(graph, nullptr);
    }
    EXPECT_EQ(begin(nullptr, kGlobal), kUnsupported) << "the default stream";
    for (void* const made : {event, outside}) {
        EXPECT_EQ(driver().event_destroy(made), kSuccess);
    }
    for (void* const made : {first, second}) {
        EXPECT_EQ(driver().stream_destroy(made), kSuccess);
    }
    EXPECT_EQ(free_(memory), kSuccess);
}

}  // namespace

TEST_F(EmulatedCuda, RecordsStreamsIntoGraphs) {
    use_graphs("libcudart.so.12");
    use_graphs("libcudart.so.13");
}

TEST_F(EmulatedCuda, TheRuntimeLibrariesShareTheDriversMachine) {
    use_runtime<1032, 24>("libcudart.so.12", "cudaGetDeviceProperties_v2");
    use_runtime<1008, 88>("libcudart.so.13", "cudaGetDeviceProperties");
}

// ---- memory operations of streams
// ----------------------------------------------------------------------------------------------

namespace {

constexpr unsigned kNotLess = 0, kEqual = 1, kCommonOne = 2, kCommonZero = 3, kFlush = 1U << 30;
constexpr unsigned kNoMemoryBarrier = 1;

/// Page-locked memory that the test and streams look at together.
class Words {
  public:
    Words() {
        void* memory = nullptr;
        EXPECT_EQ(driver().allocate_host(&memory, kBytes, 0), kSuccess);
        _memory = static_cast<std::uint64_t*>(memory);
    }
    ~Words() { EXPECT_EQ(driver().free_host(_memory), kSuccess); }
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;

    [[nodiscard]] Pointer at(std::size_t number) const { return reinterpret_cast<Pointer>(_memory + number); }
    [[nodiscard]] std::atomic_ref<std::uint64_t> operator[](std::size_t number) const {
        return std::atomic_ref(_memory[number]);
    }
    /// For a stream that writes 32 bits, which is no access to all 64 of them.
    [[nodiscard]] std::atomic_ref<std::uint32_t> half(std::size_t number) const {
        return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(_memory + number));
    }

  private:
    static constexpr std::size_t kBytes = 4096;
    std::uint64_t* _memory = nullptr;
};

class OwnStream {
  public:
    explicit OwnStream(unsigned flags = 1) { EXPECT_EQ(driver().stream_create(&_handle, flags), kSuccess); }
    ~OwnStream() {
        if (_handle) {
            EXPECT_EQ(driver().stream_destroy(_handle), kSuccess);
        }
    }
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    [[nodiscard]] void* handle() const { return _handle; }
    void destroy() { EXPECT_EQ(driver().stream_destroy(std::exchange(_handle, nullptr)), kSuccess); }

  private:
    void* _handle = nullptr;
};

void count_up(void* counter) {
    ++*static_cast<std::atomic<int>*>(counter);
}

/// Work of another stream, again and again: whoever would get on meanwhile has had the chance to.
int let_others_run(void* stream) {
    std::atomic<int> done{0};
    for (int round = 0; round < 200; ++round) {
        if (const int result = driver().host_function(stream, &count_up, &done); result != kSuccess) {
            return result;
        }
        if (const int result = driver().stream_synchronize(stream); result != kSuccess) {
            return result;
        }
    }
    return kSuccess;
}

int attribute_of_device(int attribute) {
    int (*get)(int*, int, int) = nullptr;
    driver().library.bind(get, "cuDeviceGetAttribute");
    int value = -1;
    return get(&value, attribute, 0) == kSuccess ? value : -1;
}

}  // namespace

TEST_F(EmulatedCuda, StreamsWaitForValues) {
    struct Case {
        unsigned bits, flags;
        std::uint64_t before, value, after;
    };
    constexpr std::uint64_t kHigh = std::uint64_t{1} << 32;
    constexpr std::uint64_t kOnes = ~std::uint64_t{0};
    constexpr Case kCases[] = {
        {32, kNotLess, 4, 5, 5},
        {32, kNotLess, 0xfffffff0, 5, 6},           // a counter wraps around
        {32, kNotLess, 0xfffffff0, 0xfffffff1, 3},  // after it, it is greater
        {32, kNotLess | kFlush, 4, 5, 9},
        {32, kEqual, 6, 5, 5},
        {32, kCommonOne, 0x10, 0x0f, 0x18},
        {32, kCommonZero, 0xffff0000, 0x0000ffff, 0xfffe0000},
        {64, kNotLess, 4, kHigh + 1, kHigh + 2},
        {64, kNotLess, kOnes - 1, kOnes, 3},
        {64, kEqual, 5, kHigh + 5, kHigh + 5},
        {64, kCommonOne, 0xffffffff, kHigh, kHigh},
        {64, kCommonZero, kOnes - kHigh, kHigh, kOnes - kHigh - 1},
    };
    const Words words;
    const OwnStream stream, other;
    for (const Case& one : kCases) {
        SCOPED_TRACE(&one - kCases);
        words[0] = one.before;
        std::atomic<int> passed{0};
        ASSERT_EQ(one.bits == 32
                      ? driver().wait_32(stream.handle(), words.at(0), static_cast<std::uint32_t>(one.value), one.flags)
                      : driver().wait_64(stream.handle(), words.at(0), one.value, one.flags),
                  kSuccess);
        ASSERT_EQ(driver().host_function(stream.handle(), &count_up, &passed), kSuccess);
        ASSERT_EQ(let_others_run(other.handle()), kSuccess);
        EXPECT_EQ(driver().stream_query(stream.handle()), kNotReady);
        EXPECT_EQ(passed, 0);
        words[0] = one.after;
        ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
        EXPECT_EQ(passed, 1);
    }
}

TEST_F(EmulatedCuda, StreamsWriteValuesAfterTheirEarlierWork) {
    const Words words;
    const OwnStream stream;
    words[1] = ~std::uint64_t{0};
    words[2] = ~std::uint64_t{0};
    ASSERT_EQ(driver().write_32(stream.handle(), words.at(1), 5, 0), kSuccess);
    ASSERT_EQ(driver().write_32(stream.handle(), words.at(1) + 4, 6, kNoMemoryBarrier), kSuccess);
    ASSERT_EQ(driver().write_64(stream.handle(), words.at(0), 0x123456789, 0), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
    EXPECT_EQ(words[0], 0x123456789U);
    EXPECT_EQ(words[1], (std::uint64_t{6} << 32) + 5);
    EXPECT_EQ(words[2], ~std::uint64_t{0});

    // To whoever sees the value, all is done that was given to the stream before.
    void* memory = nullptr;
    ASSERT_EQ(driver().allocate_host(&memory, kMiB, 0), kSuccess);
    const auto* const bytes = static_cast<const unsigned char*>(memory);
    for (std::uint32_t round = 1; round <= 20; ++round) {
        Gate gate;
        words[3] = 0;
        ASSERT_EQ(driver().host_function(stream.handle(), &Gate::wait, &gate), kSuccess);
        ASSERT_EQ(driver().fill_async(reinterpret_cast<Pointer>(memory), static_cast<unsigned char>(round), kMiB,
                                      stream.handle()),
                  kSuccess);
        ASSERT_EQ(driver().write_32(stream.handle(), words.at(3), round, 0), kSuccess);
        EXPECT_EQ(words.half(3), 0U);
        gate.open = true;
        while (words.half(3).load() != round) {
            std::this_thread::yield();
        }
        EXPECT_EQ(bytes[0], round);
        EXPECT_EQ(bytes[kMiB - 1], round);
    }
    ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
    ASSERT_EQ(driver().free_host(memory), kSuccess);
}

TEST_F(EmulatedCuda, AWaitHoldsUpItsOwnStream) {
    const Words words;
    const OwnStream blocking(0), independent;
    const Pointer flag = allocate(64);  // in device memory
    ASSERT_EQ(driver().fill_async(flag, 0, 64, independent.handle()), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(independent.handle()), kSuccess);

    ASSERT_EQ(driver().wait_32(blocking.handle(), flag + 4, 1, kNotLess), kSuccess);
    ASSERT_EQ(driver().write_32(nullptr, words.at(0), 1, 0), kSuccess);  // after the blocking stream
    ASSERT_EQ(let_others_run(independent.handle()), kSuccess);
    EXPECT_EQ(words.half(0), 0U);
    EXPECT_EQ(driver().stream_query(nullptr), kNotReady);
    // Another stream gives it what it waits for.
    ASSERT_EQ(driver().write_32(independent.handle(), flag + 4, 1, 0), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(nullptr), kSuccess);
    EXPECT_EQ(words.half(0), 1U);

    // And the other way round.
    ASSERT_EQ(driver().wait_32(nullptr, flag + 4, 2, kEqual), kSuccess);
    ASSERT_EQ(driver().write_32(blocking.handle(), words.at(0), 2, 0), kSuccess);
    ASSERT_EQ(let_others_run(independent.handle()), kSuccess);
    EXPECT_EQ(words.half(0), 1U);
    ASSERT_EQ(driver().write_32(independent.handle(), flag + 4, 2, 0), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(blocking.handle()), kSuccess);
    EXPECT_EQ(words.half(0), 2U);
    ASSERT_EQ(driver().free(flag), kSuccess);
}

TEST_F(EmulatedCuda, MemoryOperationsNeedMemoryThatTheGpuReaches) {
    const OwnStream stream;
    const auto write = [&](Pointer address) { return driver().write_32(stream.handle(), address, 7, 0); };
    const auto wait = [&](Pointer address) { return driver().wait_64(stream.handle(), address, 7, kEqual); };
    const auto expect_refused = [&](Pointer address) {
        EXPECT_EQ(write(address), kInvalidValue);
        EXPECT_EQ(wait(address), kInvalidValue);
    };
    const Pointer device = allocate(4096);
    Pointer managed = 0;
    ASSERT_EQ(driver().allocate_managed(&managed, 4096, 1), kSuccess);
    std::vector<std::uint64_t> pageable(16);
    expect_refused(0);
    expect_refused(managed);
    expect_refused(reinterpret_cast<Pointer>(pageable.data()));
    EXPECT_EQ(write(device + 2), kInvalidValue) << "not aligned";
    EXPECT_EQ(wait(device + 4), kInvalidValue) << "not aligned";
    EXPECT_EQ(write(device + 4092), kSuccess);
    EXPECT_EQ(wait(device + 4096), kInvalidValue) << "beyond its end";
    EXPECT_EQ(driver().wait_32(stream.handle(), device, 0, 4), kInvalidValue);
    EXPECT_EQ(driver().write_32(stream.handle(), device, 0, 2), kInvalidValue);
    EXPECT_EQ(driver().wait_32(&managed, device, 0, kNotLess), kInvalidHandle) << "no stream";

    const auto registered = reinterpret_cast<Pointer>(pageable.data());
    ASSERT_EQ(driver().register_host(pageable.data(), 128, 2), kSuccess);
    Pointer by_device = 0;
    int (*device_pointer)(Pointer*, void*, unsigned) = nullptr;
    driver().library.bind(device_pointer, "cuMemHostGetDevicePointer_v2");
    ASSERT_EQ(device_pointer(&by_device, pageable.data(), 0), kSuccess);
    EXPECT_EQ(write(registered), kSuccess);
    EXPECT_EQ(driver().write_64(stream.handle(), by_device + 8, 7, 0), kSuccess);
    EXPECT_EQ(wait(by_device + 8), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
    EXPECT_EQ(pageable[0], 7U);
    EXPECT_EQ(pageable[1], 7U);
    ASSERT_EQ(driver().unregister_host(pageable.data()), kSuccess);
    ASSERT_EQ(driver().free(managed), kSuccess);
    ASSERT_EQ(driver().free(device), kSuccess);
    expect_refused(device);

    EXPECT_EQ(attribute_of_device(98), 1);  // flushes
    EXPECT_EQ(attribute_of_device(122), 1);
    EXPECT_EQ(attribute_of_device(123), 1);
}

TEST_F(EmulatedCuda, MemoryOperationsGoInBatches) {
    enum Type : int { kWait32 = 1, kWrite32 = 2, kFlushWrites = 3, kWait64 = 4, kWrite64 = 5, kBarrier = 6 };
    const Words words;
    const OwnStream stream, other;
    const auto operation = [&](int type, std::size_t word, std::uint64_t value, unsigned flags) {
        return BatchOperation{type, 0, words.at(word), value, flags, 0, 0};
    };
    for (std::size_t word = 0; word < 4; ++word) {
        words[word] = 0;
    }
    // The upper half of a 32-bit value is the program's.
    constexpr std::uint64_t kRubbish = std::uint64_t{0xabcd} << 32;
    std::vector<BatchOperation> batch{
        operation(kWrite32, 0, kRubbish + 1, 0),           {kBarrier, 1, 0, 0, 0, 0, 0},
        operation(kWait32, 1, kRubbish + 1, kEqual),       {kFlushWrites, 0, 0, 0, 0, 0, 0},
        operation(kWrite64, 2, std::uint64_t{3} << 32, 0), operation(kWait64, 3, std::uint64_t{1} << 32, kNotLess),
        operation(kWrite32, 0, 2, kNoMemoryBarrier),
    };
    const auto give = [&] {
        return driver().batch(stream.handle(), static_cast<unsigned>(batch.size()), batch.data(), 0);
    };
    ASSERT_EQ(give(), kSuccess);
    while (words.half(0).load() != 1) {
        std::this_thread::yield();
    }
    ASSERT_EQ(let_others_run(other.handle()), kSuccess);
    EXPECT_EQ(words[2], 0U);
    words.half(1) = 1;
    while (words[2].load() == 0) {
        std::this_thread::yield();
    }
    EXPECT_EQ(words[2], std::uint64_t{3} << 32);
    EXPECT_EQ(words.half(0), 1U);
    words[3] = std::uint64_t{1} << 32;
    ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
    EXPECT_EQ(words[0], 2U);

    // One wrong operation, and none is done.
    const std::vector<BatchOperation> wrong{
        {0, 0, words.at(0), 0, 0, 0, 0},
        {7, 0, words.at(0), 0, 0, 0, 0},
        {kBarrier, 2, 0, 0, 0, 0, 0},
        {kFlushWrites, 1, 0, 0, 0, 0, 0},
        operation(kWait32, 0, 0, 4),
        operation(kWrite64, 0, 0, 2),
        {kWrite32, 0, words.at(0) + 1, 0, 0, 0, 0},
    };
    for (const BatchOperation& one : wrong) {
        batch = {operation(kWrite32, 0, 77, 0), one};
        EXPECT_EQ(give(), kInvalidValue) << one.type;
    }
    EXPECT_EQ(driver().batch(stream.handle(), 0, batch.data(), 0), kInvalidValue);
    EXPECT_EQ(driver().batch(stream.handle(), 1, nullptr, 0), kInvalidValue);
    EXPECT_EQ(driver().batch(stream.handle(), 1, batch.data(), 1), kInvalidValue);
    batch.assign(256, operation(kWrite32, 0, 77, 0));
    EXPECT_EQ(give(), kInvalidValue) << "must be less than 256";
    ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
    EXPECT_EQ(words[0], 2U);
    batch.pop_back();
    EXPECT_EQ(give(), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
    EXPECT_EQ(words[0], 77U);
}

// ---- the first version of these calls

namespace {

/// Calls each of them on the word.
std::vector<int> call_first_version(void* stream, Pointer word) {
    int (*wait_32)(void*, Pointer, std::uint32_t, unsigned) = nullptr;
    int (*wait_64)(void*, Pointer, std::uint64_t, unsigned) = nullptr;
    int (*write_32)(void*, Pointer, std::uint32_t, unsigned) = nullptr;
    int (*write_64)(void*, Pointer, std::uint64_t, unsigned) = nullptr;
    int (*batch)(void*, unsigned, BatchOperation*, unsigned) = nullptr;
    driver().library.bind(wait_32, "cuStreamWaitValue32");
    driver().library.bind(wait_64, "cuStreamWaitValue64");
    driver().library.bind(write_32, "cuStreamWriteValue32");
    driver().library.bind(write_64, "cuStreamWriteValue64");
    driver().library.bind(batch, "cuStreamBatchMemOp");
    BatchOperation operation{2, 0, word, 3, 0, 0, 0};
    return {write_32(stream, word, 1, 0), wait_32(stream, word, 1, kEqual), write_64(stream, word, 2, 0),
            wait_64(stream, word, 2, kEqual), batch(stream, 1, &operation, 0)};
}

}  // namespace

TEST_F(EmulatedCuda, RefusesTheFirstVersionOfMemoryOperations) {
    const Words words;
    const OwnStream stream;
    EXPECT_EQ(call_first_version(stream.handle(), words.at(0)), std::vector<int>(5, kNotSupported));
    EXPECT_EQ(attribute_of_device(92), 0);
}

SCENARIO(use_first_version) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    const Words words;
    const OwnStream stream;
    for (const int result : call_first_version(stream.handle(), words.at(0))) {
        REQUIRE_EQUAL(result, kSuccess);
    }
    int (*batch)(void*, unsigned, BatchOperation*, unsigned) = nullptr;
    driver().library.bind(batch, "cuStreamBatchMemOp");
    BatchOperation barrier{6, 0, 0, 0, 0, 0, 0};
    REQUIRE_EQUAL(batch(stream.handle(), 1, &barrier, 0), kInvalidValue);
    REQUIRE_EQUAL(driver().stream_synchronize(stream.handle()), kSuccess);
    REQUIRE_EQUAL(words[0].load(), 3U);
    REQUIRE_EQUAL(attribute_of_device(92), 1);
    return 0;
}

TEST(EmulatedCudaProcess, TakesTheFirstVersionOfMemoryOperationsWhenAsked) {
    const Outcome outcome = run_scenario("use_first_version", {{"AWAKEN_TEST_FAULTS", "memory-operations-v1"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

// ---- memory operations of two processes

namespace {
constexpr std::uint32_t kTurns = 40;
constexpr std::size_t kMessage = 4096;
}  // namespace

/// Waits for each turn of the other process, takes its message and answers; all of it queued in advance.
SCENARIO(answer_in_stream) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    Pointer shared = 0;
    REQUIRE_EQUAL(driver().ipc_open(&shared, handle, 1), kSuccess);
    void* received = nullptr;
    REQUIRE_EQUAL(driver().allocate_host(&received, kTurns * kMessage, 0), kSuccess);
    const OwnStream stream;
    for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
        REQUIRE_EQUAL(driver().wait_32(stream.handle(), shared, turn, kNotLess), kSuccess);
        REQUIRE_EQUAL(driver().copy_async(reinterpret_cast<Pointer>(received) + (turn - 1) * kMessage,
                                          shared + kMessage, kMessage, stream.handle()),
                      kSuccess);
        REQUIRE_EQUAL(driver().write_32(stream.handle(), shared + 64, turn, 0), kSuccess);
    }
    REQUIRE_EQUAL(driver().stream_synchronize(stream.handle()), kSuccess);
    for (std::size_t position = 0; position < kTurns * kMessage; ++position) {
        REQUIRE_EQUAL(static_cast<std::size_t>(static_cast<const unsigned char*>(received)[position]),
                      position / kMessage + 1);
    }
    REQUIRE_EQUAL(driver().ipc_close(shared), kSuccess);
    return 0;
}

TEST_F(EmulatedCuda, StreamsOfTwoProcessesExchangeMessages) {
    for (const bool late : {false, true}) {
        const Pointer shared = allocate(2 * kMessage);
        const OwnStream stream;
        ASSERT_EQ(driver().fill_async(shared, 0, 2 * kMessage, stream.handle()), kSuccess);
        ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
        Handle handle{};
        ASSERT_EQ(driver().ipc_get(&handle, shared), kSuccess);
        for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
            ASSERT_EQ(
                driver().fill_async(shared + kMessage, static_cast<unsigned char>(turn), kMessage, stream.handle()),
                kSuccess);
            ASSERT_EQ(driver().write_32(stream.handle(), shared, turn, 0), kSuccess);
            ASSERT_EQ(driver().wait_32(stream.handle(), shared + 64, turn, kNotLess), kSuccess);
        }
        EXPECT_EQ(driver().stream_query(stream.handle()), kNotReady);
        // The other process's operations are late by up to 2 ms each.
        const Outcome outcome =
            run_scenario("answer_in_stream", late ? Environment{{"AWAKEN_TEST_DELAYS", "3:2000"}} : Environment{},
                         {to_text(handle.bytes, sizeof handle.bytes)});
        EXPECT_TRUE(outcome.succeeded()) << outcome.output;
        EXPECT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
        ASSERT_EQ(driver().free(shared), kSuccess);
    }
}

/// Writes into a file's memory, without any GPU.
SCENARIO(write_into_file) {
    const int file = open(arguments.at(0).c_str(), O_RDWR | O_CLOEXEC);
    void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE_EQUAL(memory == MAP_FAILED, false);
    std::atomic_ref(*static_cast<std::uint32_t*>(memory)).store(8, std::memory_order_release);
    return 0;
}

TEST_F(EmulatedCuda, AnotherProcessEndsAWaitThroughSharedMemory) {
    const int file = memfd_create("shared", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(file, 4096), 0);
    void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ASSERT_NE(memory, MAP_FAILED);
    ASSERT_EQ(driver().register_host(memory, 4096, 2), kSuccess);
    const OwnStream stream, other;
    ASSERT_EQ(driver().wait_32(stream.handle(), reinterpret_cast<Pointer>(memory), 8, kEqual), kSuccess);
    ASSERT_EQ(let_others_run(other.handle()), kSuccess);
    EXPECT_EQ(driver().stream_query(stream.handle()), kNotReady);
    const Outcome outcome =
        run_scenario("write_into_file", {}, {"/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file)});
    ASSERT_TRUE(outcome.succeeded()) << outcome.output;
    EXPECT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
    ASSERT_EQ(driver().unregister_host(memory), kSuccess);
    munmap(memory, 4096);
    close(file);
}

// ---- memory operations in graphs

TEST_F(EmulatedCuda, GraphsReplayMemoryOperations) {
    int (*instantiate)(void**, void*, unsigned long long) = nullptr;
    int (*launch)(void*, void*) = nullptr;
    int (*destroy_executable)(void*) = nullptr;
    int (*destroy)(void*) = nullptr;
    driver().library.bind(instantiate, "cuGraphInstantiateWithFlags");
    driver().library.bind(launch, "cuGraphLaunch");
    driver().library.bind(destroy_executable, "cuGraphExecDestroy");
    driver().library.bind(destroy, "cuGraphDestroy");
    constexpr int kGlobal = 0;
    const Words words;
    const OwnStream stream, other;
    for (std::size_t word = 0; word < 3; ++word) {
        words[word] = 0;
    }
    void *graph = nullptr, *executable = nullptr;
    BatchOperation last{2, 0, words.at(2), 1, 0, 0, 0};
    ASSERT_EQ(driver().begin_capture(stream.handle(), kGlobal), kSuccess);
    ASSERT_EQ(driver().write_32(stream.handle(), words.at(0), 1, 0), kSuccess);
    ASSERT_EQ(driver().wait_32(stream.handle(), words.at(1), 1, kEqual), kSuccess);
    EXPECT_EQ(driver().write_32(stream.handle(), words.at(2) + 1, 1, 0), kInvalidValue);
    ASSERT_EQ(driver().batch(stream.handle(), 1, &last, 0), kSuccess);
    ASSERT_EQ(driver().end_capture(stream.handle(), &graph), kSuccess);
    ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
    EXPECT_EQ(words[0], 0U) << "nothing is done before the launch";
    ASSERT_EQ(instantiate(&executable, graph, 0), kSuccess);
    for (int replay = 0; replay < 3; ++replay) {
        ASSERT_EQ(launch(executable, stream.handle()), kSuccess);
        while (words.half(0).load() != 1) {
            std::this_thread::yield();
        }
        ASSERT_EQ(let_others_run(other.handle()), kSuccess);
        EXPECT_EQ(driver().stream_query(stream.handle()), kNotReady);
        EXPECT_EQ(words.half(2), 0U);
        words.half(1) = 1;
        ASSERT_EQ(driver().stream_synchronize(stream.handle()), kSuccess);
        EXPECT_EQ(words.half(2), 1U);
        for (std::size_t word = 0; word < 3; ++word) {
            words[word] = 0;
        }
    }
    ASSERT_EQ(destroy_executable(executable), kSuccess);
    ASSERT_EQ(destroy(graph), kSuccess);
}

// ---- the end of streams, contexts and processes

TEST_F(EmulatedCuda, AStreamMayBeDestroyedWhileItWaits) {
    const Words words;
    OwnStream stream;
    words[0] = 0;
    words[1] = 0;
    ASSERT_EQ(driver().wait_32(stream.handle(), words.at(0), 1, kEqual), kSuccess);
    ASSERT_EQ(driver().write_32(stream.handle(), words.at(1), 1, 0), kSuccess);
    stream.destroy();
    EXPECT_EQ(words.half(1), 0U);
    words.half(0) = 1;
    ASSERT_EQ(driver().synchronize(), kSuccess);
    EXPECT_EQ(words.half(1), 1U);
}

TEST_F(EmulatedCuda, AContextMayBeDestroyedWhileItsStreamsWait) {
    int (*create)(void**, unsigned, int) = nullptr;
    int (*destroy)(void*) = nullptr;
    driver().library.bind(create, "cuCtxCreate_v2");
    driver().library.bind(destroy, "cuCtxDestroy_v2");
    const Words words;  // of the context that stays
    words[0] = 0;
    words[1] = 0;
    words[2] = 0;
    void *context = nullptr, *stream = nullptr, *other = nullptr, *event = nullptr;
    ASSERT_EQ(create(&context, 0, 0), kSuccess);
    ASSERT_EQ(driver().stream_create(&stream, 1), kSuccess);
    ASSERT_EQ(driver().stream_create(&other, 1), kSuccess);
    ASSERT_EQ(driver().event_create(&event, 0), kSuccess);
    ASSERT_EQ(driver().wait_32(stream, words.at(0), 1, kEqual), kSuccess);
    ASSERT_EQ(driver().write_32(stream, words.at(1), 1, 0), kSuccess);
    ASSERT_EQ(driver().event_record(event, stream), kSuccess);
    ASSERT_EQ(driver().stream_wait(other, event, 0), kSuccess);
    ASSERT_EQ(driver().write_32(other, words.at(2), 1, 0), kSuccess);
    ASSERT_EQ(destroy(context), kSuccess);
    EXPECT_EQ(words.half(1), 0U) << "what comes after the wait is not done";
    EXPECT_EQ(words.half(2), 0U) << "nor is it in other streams";
}

SCENARIO(end_while_waiting) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    const Pointer address = [] {
        Pointer made = 0;
        EXPECT_EQ(driver().allocate(&made, 64), kSuccess);
        return made;
    }();
    void* stream = nullptr;
    REQUIRE_EQUAL(driver().stream_create(&stream, 1), kSuccess);
    REQUIRE_EQUAL(driver().wait_32(stream, address, 1, kEqual), kSuccess);
    REQUIRE_EQUAL(driver().stream_query(stream), kNotReady);
    return 0;
}

TEST(EmulatedCudaProcess, EndsWhileAStreamWaits) {
    const Outcome outcome = run_scenario("end_while_waiting", {});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

// ---- connections, full queues, and delays

/// What a waiting stream holds up, with so many connections.
SCENARIO(wait_with_connections) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    const bool single = std::stoi(arguments.at(0)) == 1;
    void *elsewhere = nullptr, *other_device = nullptr;
    REQUIRE_EQUAL(driver().retain(&other_device, 1), kSuccess);
    REQUIRE_EQUAL(driver().push(other_device), kSuccess);
    REQUIRE_EQUAL(driver().stream_create(&elsewhere, 1), kSuccess);
    REQUIRE_EQUAL(driver().pop(nullptr), kSuccess);
    const Words words;
    const OwnStream waiting, before, after;
    for (const bool by_graph : {false, true}) {
        words[0] = 0;
        std::atomic<int> early{0}, late{0};
        Gate gate;
        REQUIRE_EQUAL(driver().host_function(before.handle(), &Gate::wait, &gate), kSuccess);
        REQUIRE_EQUAL(driver().host_function(before.handle(), &count_up, &early), kSuccess);
        if (by_graph) {
            int (*instantiate)(void**, void*, unsigned long long) = nullptr;
            int (*launch)(void*, void*) = nullptr;
            driver().library.bind(instantiate, "cuGraphInstantiateWithFlags");
            driver().library.bind(launch, "cuGraphLaunch");
            void *graph = nullptr, *executable = nullptr;
            REQUIRE_EQUAL(driver().begin_capture(waiting.handle(), 2), kSuccess);
            REQUIRE_EQUAL(driver().wait_32(waiting.handle(), words.at(0), 1, kEqual), kSuccess);
            REQUIRE_EQUAL(driver().end_capture(waiting.handle(), &graph), kSuccess);
            REQUIRE_EQUAL(instantiate(&executable, graph, 0), kSuccess);
            REQUIRE_EQUAL(launch(executable, waiting.handle()), kSuccess);
        } else {
            REQUIRE_EQUAL(driver().wait_32(waiting.handle(), words.at(0), 1, kEqual), kSuccess);
        }
        REQUIRE_EQUAL(driver().host_function(after.handle(), &count_up, &late), kSuccess);
        // What was given before the wait is not held up, nor is another device.
        gate.open = true;
        REQUIRE_EQUAL(driver().stream_synchronize(before.handle()), kSuccess);
        REQUIRE_EQUAL(early.load(), 1);
        REQUIRE_EQUAL(let_others_run(elsewhere), kSuccess);
        if (single) {
            REQUIRE_EQUAL(driver().stream_query(after.handle()), kNotReady);
            REQUIRE_EQUAL(late.load(), 0);
        } else {
            REQUIRE_EQUAL(driver().stream_synchronize(after.handle()), kSuccess);
        }
        words.half(0) = 1;
        REQUIRE_EQUAL(driver().stream_synchronize(after.handle()), kSuccess);
        REQUIRE_EQUAL(late.load(), 1);
        REQUIRE_EQUAL(driver().synchronize(), kSuccess);
    }
    return 0;
}

TEST(EmulatedCudaProcess, AWaitHoldsUpAllStreamsOfASingleConnection) {
    for (const char* const connections : {"1", "2", "8"}) {
        const Outcome outcome =
            run_scenario("wait_with_connections", {{"AWAKEN_EMULATE_CONNECTIONS", connections}}, {connections});
        EXPECT_TRUE(outcome.succeeded()) << connections << ": " << outcome.output;
    }
}

namespace {

/// Whether a stream takes `length` operations while the first of them waits, and the next call returns only when there
/// is room. Other threads go on.
int fill_queue(unsigned length) {
    const Words words;
    const OwnStream stream, other;
    words[0] = 0;
    words[1] = 0;
    REQUIRE_EQUAL(driver().wait_32(stream.handle(), words.at(0), 1, kEqual), kSuccess);
    for (std::uint32_t operation = 1; operation < length; ++operation) {
        REQUIRE_EQUAL(driver().write_32(stream.handle(), words.at(1), operation, 0), kSuccess);
    }
    void* context = nullptr;
    REQUIRE_EQUAL(driver().get_current(&context), kSuccess);
    std::atomic<bool> started{false};
    const BackgroundCall call([&] {
        const int result = driver().set_current(context);
        started = true;
        return result == kSuccess ? driver().write_32(stream.handle(), words.at(1), length, 0) : result;
    });
    while (!started) {
        std::this_thread::yield();
    }
    const int others = let_others_run(other.handle());
    const bool returned = call.returned();
    words.half(0) = 1;
    const int result = call.result();
    REQUIRE_EQUAL(others, kSuccess);
    REQUIRE_EQUAL(returned, false);
    REQUIRE_EQUAL(result, kSuccess);
    REQUIRE_EQUAL(driver().stream_synchronize(stream.handle()), kSuccess);
    REQUIRE_EQUAL(words.half(1).load(), length);
    return 0;
}

}  // namespace

TEST_F(EmulatedCuda, AFullQueueHoldsUpTheCall) {
    EXPECT_EQ(fill_queue(1024), 0);
}

SCENARIO(fill_short_queue) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    return fill_queue(5);
}

TEST(EmulatedCudaProcess, QueuesMayBeShort) {
    const Outcome outcome = run_scenario("fill_short_queue", {{"AWAKEN_TEST_QUEUE", "5"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}

SCENARIO(be_late) {
    REQUIRE_EQUAL(driver().start(), kSuccess);
    const OwnStream stream;
    std::atomic<int> done{0};
    const Clock::time_point start = Clock::now();
    for (int operation = 0; operation < 20; ++operation) {
        REQUIRE_EQUAL(driver().host_function(stream.handle(), &count_up, &done), kSuccess);
    }
    REQUIRE_EQUAL(driver().stream_synchronize(stream.handle()), kSuccess);
    REQUIRE_EQUAL(done.load(), 20);
    // 20 delays of up to 20 ms, which come to 200 ms on average; the seed makes them the same each time.
    REQUIRE_EQUAL(Clock::now() - start > std::chrono::milliseconds(100), true);
    return 0;
}

TEST(EmulatedCudaProcess, LetsStreamsBeLateAtRandom) {
    const Outcome outcome = run_scenario("be_late", {{"AWAKEN_TEST_DELAYS", "1:20000"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
}
