// SPDX-License-Identifier: Apache-2.0
// The emulated HIP runtime. Built once per major version of ROCm (AWAKEN_HIP_GENERATION): what is the same in all, and
// what is not.
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "emulator_support.h"

namespace {

using namespace awaken::emulator_test;

constexpr int kGeneration = AWAKEN_HIP_GENERATION;
constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kInvalidDevicePointer = 17;
constexpr int kNoDevice = 100;
constexpr int kInvalidContext = 201;
constexpr int kNotReady = 600;

struct Attributes {
    int type;
    int device;
    void* device_pointer;
    void* host_pointer;
    int managed;
    unsigned flags;
};

struct Handle {
    unsigned char bytes[64];
};

struct Hip {
    Library library{("libamdhip64.so." + std::to_string(kGeneration)).c_str()};
    int (*device_count)(int*);
    int (*set_device)(int);
    int (*get_device)(int*);
    int (*version)(int*);
    int (*allocate)(void**, std::size_t);
    int (*free)(void*);
    int (*allocate_managed)(void**, std::size_t, unsigned);
    int (*allocate_host)(void**, std::size_t, unsigned);
    int (*free_host)(void*);
    int (*allocate_async)(void**, std::size_t, void*);
    int (*free_async)(void*, void*);
    int (*copy)(void*, const void*, std::size_t, int);
    int (*fill)(void*, int, std::size_t);
    int (*synchronize)();
    int (*query)(void*);
    int (*stream_create)(void**, unsigned);
    int (*stream_destroy)(void*);
    int (*stream_synchronize)(void*);
    int (*register_host)(void*, std::size_t, unsigned);
    int (*unregister_host)(void*);
    int (*module_load)(void**, const void*);
    int (*module_unload)(void*);
    int (*host_function)(void*, void (*)(void*), void*);
    int (*attributes)(Attributes*, const void*);
    int (*attribute)(void*, int, void*);
    int (*range)(void**, std::size_t*, void*);
    int (*last_error)();
    int (*peek_error)();
    int (*ipc_get)(Handle*, void*);
    int (*ipc_open)(void**, Handle, unsigned);
    int (*ipc_close)(void*);
    int (*old_properties)(void*, int);
    const char* (*error_name)(int);
    int (*wait_32)(void*, void*, std::uint32_t, unsigned, std::uint32_t);
    int (*wait_64)(void*, void*, std::uint64_t, unsigned, std::uint64_t);
    int (*write_32)(void*, void*, std::uint32_t, unsigned);
    int (*write_64)(void*, void*, std::uint64_t, unsigned);
    int (*fill_async)(void*, int, std::size_t, void*);
    int (*copy_async)(void*, const void*, std::size_t, int, void*);

    Hip() {
        library.bind(device_count, "hipGetDeviceCount");
        library.bind(set_device, "hipSetDevice");
        library.bind(get_device, "hipGetDevice");
        library.bind(version, "hipRuntimeGetVersion");
        library.bind(allocate, "hipMalloc");
        library.bind(free, "hipFree");
        library.bind(allocate_managed, "hipMallocManaged");
        library.bind(allocate_host, "hipHostMalloc");
        library.bind(free_host, "hipHostFree");
        library.bind(allocate_async, "hipMallocAsync");
        library.bind(free_async, "hipFreeAsync");
        library.bind(copy, "hipMemcpy");
        library.bind(fill, "hipMemset");
        library.bind(synchronize, "hipDeviceSynchronize");
        library.bind(query, "hipStreamQuery");
        library.bind(stream_create, "hipStreamCreateWithFlags");
        library.bind(stream_destroy, "hipStreamDestroy");
        library.bind(stream_synchronize, "hipStreamSynchronize");
        library.bind(register_host, "hipHostRegister");
        library.bind(unregister_host, "hipHostUnregister");
        library.bind(module_load, "hipModuleLoadData");
        library.bind(module_unload, "hipModuleUnload");
        library.bind(host_function, "hipLaunchHostFunc");
        library.bind(attributes, "hipPointerGetAttributes");
        library.bind(attribute, "hipPointerGetAttribute");
        library.bind(range, "hipMemGetAddressRange");
        library.bind(last_error, "hipGetLastError");
        library.bind(peek_error, "hipPeekAtLastError");
        library.bind(ipc_get, "hipIpcGetMemHandle");
        library.bind(ipc_open, "hipIpcOpenMemHandle");
        library.bind(ipc_close, "hipIpcCloseMemHandle");
        library.bind(old_properties, "hipGetDeviceProperties");
        library.bind(error_name, "hipGetErrorName");
        library.bind(wait_32, "hipStreamWaitValue32");
        library.bind(wait_64, "hipStreamWaitValue64");
        library.bind(write_32, "hipStreamWriteValue32");
        library.bind(write_64, "hipStreamWriteValue64");
        library.bind(fill_async, "hipMemsetAsync");
        library.bind(copy_async, "hipMemcpyAsync");
    }
};

Hip& hip() {
    static Hip* const instance = new Hip;
    return *instance;
}

Attributes attributes_of(const void* address) {
    Attributes found{};
    EXPECT_EQ(hip().attributes(&found, address), kSuccess);
    return found;
}

}  // namespace

TEST(EmulatedHip, SaysItsVersionWithoutBeingInitialised) {
    int version = 0;
    ASSERT_EQ(hip().version(&version), kSuccess);
    EXPECT_EQ(version / 10'000'000, kGeneration);
    int count = 0;
    ASSERT_EQ(hip().device_count(&count), kSuccess);
    EXPECT_EQ(count, 2);
    EXPECT_STREQ(hip().error_name(400), "hipErrorInvalidHandle");
}

TEST(EmulatedHip, MemoryTypesAreThoseOfTheVersion) {
    constexpr int kHost = kGeneration == 5 ? 0 : 1;
    constexpr int kDevice = kGeneration == 5 ? 1 : 2;
    constexpr int kManaged = kGeneration == 5 ? 0 : 3;
    ASSERT_EQ(hip().set_device(1), kSuccess);
    void* device = nullptr;
    void* managed = nullptr;
    void* pinned = nullptr;
    ASSERT_EQ(hip().allocate(&device, 4096), kSuccess);
    ASSERT_EQ(hip().allocate_managed(&managed, 4096, 1), kSuccess);
    ASSERT_EQ(hip().allocate_host(&pinned, 4096, 0), kSuccess);
    EXPECT_EQ(attributes_of(static_cast<char*>(device) + 5).type, kDevice);
    EXPECT_EQ(attributes_of(device).device, 1);
    EXPECT_EQ(attributes_of(device).managed, 0);
    EXPECT_EQ(attributes_of(managed).type, kManaged);
    EXPECT_EQ(attributes_of(managed).managed, 1);
    EXPECT_EQ(attributes_of(pinned).type, kHost);
    EXPECT_EQ(attributes_of(pinned).managed, 0);
    static_cast<int*>(managed)[1] = 4;  // the host may
    EXPECT_EQ(hip().free(device), kSuccess);
    EXPECT_EQ(hip().free(managed), kSuccess);
    EXPECT_EQ(hip().free_host(pinned), kSuccess);
    ASSERT_EQ(hip().set_device(0), kSuccess);
}

TEST(EmulatedHip, UnknownHostMemoryAndTheLastErrorAreThoseOfTheVersion) {
    int local = 0;
    Attributes found{};
    EXPECT_EQ(hip().attributes(&found, &local), kGeneration == 5 ? kInvalidValue : kSuccess);
    EXPECT_EQ(hip().peek_error(), kGeneration == 5 ? kInvalidValue : kSuccess);
    EXPECT_EQ(found.type, 0);

    unsigned type = 0;
    EXPECT_EQ(hip().attribute(&type, 2, &local), kInvalidValue);
    EXPECT_EQ(hip().peek_error(), kInvalidValue);
    int device = 0;
    ASSERT_EQ(hip().get_device(&device), kSuccess);
    // Up to ROCm 6 a success takes an earlier error's place.
    EXPECT_EQ(hip().last_error(), kGeneration < 7 ? kSuccess : kInvalidValue);
    EXPECT_EQ(hip().last_error(), kSuccess);
}

TEST(EmulatedHip, RangesAndIdentities) {
    void* address = nullptr;
    ASSERT_EQ(hip().allocate(&address, 10'000), kSuccess);
    void* base = nullptr;
    std::size_t size = 0;
    ASSERT_EQ(hip().range(&base, &size, static_cast<char*>(address) + 9'999), kSuccess);
    EXPECT_EQ(base, address);
    EXPECT_EQ(size, 10'000U);
    int local = 0;
    EXPECT_EQ(hip().range(&base, &size, &local), kInvalidDevicePointer);
    std::uint64_t first = 0;
    ASSERT_EQ(hip().attribute(&first, 7, address), kSuccess);
    ASSERT_EQ(hip().free(address), kSuccess);
    void* again = nullptr;
    ASSERT_EQ(hip().allocate(&again, 10'000), kSuccess);
    EXPECT_EQ(again, address);
    std::uint64_t second = 0;
    ASSERT_EQ(hip().attribute(&second, 7, again), kSuccess);
    EXPECT_GT(second, first);
    ASSERT_EQ(hip().free(again), kSuccess);
}

TEST(EmulatedHip, MemsetReturnsEarlyAndTheNullStreamKnows) {
    void* address = nullptr;
    ASSERT_EQ(hip().allocate(&address, 4096), kSuccess);
    // Behind a gate: nothing is over before that is open.
    Gate gate;
    ASSERT_EQ(hip().host_function(nullptr, &Gate::wait, &gate), kSuccess);
    ASSERT_EQ(hip().fill(address, 3, 4096), kSuccess);
    EXPECT_EQ(hip().query(nullptr), kNotReady);
    gate.open = true;
    ASSERT_EQ(hip().synchronize(), kSuccess);
    EXPECT_EQ(hip().query(nullptr), kSuccess);
    std::array<unsigned char, 4096> data{};
    ASSERT_EQ(hip().copy(data.data(), address, data.size(), 2), kSuccess);
    EXPECT_EQ(data[4095], 3);
    ASSERT_EQ(hip().free(address), kSuccess);
}

TEST(EmulatedHip, FillsInPropertiesInsideTheirStructures) {
    const auto check = [](int (*properties)(void*, int), std::size_t bytes, std::size_t memory_at,
                          std::size_t name_at) {
        std::vector<unsigned char> filled(bytes + 64, 0xcd);
        ASSERT_EQ(properties(filled.data(), 0), kSuccess);
        EXPECT_EQ(filled[bytes], 0xcd) << "written beyond the structure";
        std::size_t memory = 0;
        std::memcpy(&memory, filled.data() + memory_at, sizeof memory);
        EXPECT_EQ(memory, std::size_t{4} << 30);
        EXPECT_EQ(std::string(reinterpret_cast<char*>(filled.data()) + name_at).substr(0, 6), "gfx90a");
    };
    check(hip().old_properties, 792, 256, 396);
    EXPECT_EQ(hip().library.has("hipGetDevicePropertiesR0600"), kGeneration >= 6);
    if constexpr (kGeneration >= 6) {
        int (*properties)(void*, int) = nullptr;
        hip().library.bind(properties, "hipGetDevicePropertiesR0600");
        check(properties, 1472, 288, 1160);
    }
}

TEST(EmulatedHip, CarriesItsRunTimeCompiler) {
    const Library compiler(kGeneration == 5 ? "libamdhip64.so.5"
                                            : ("libhiprtc.so." + std::to_string(kGeneration)).c_str());
    int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
    int (*compile)(void*, int, const char* const*) = nullptr;
    int (*destroy)(void**) = nullptr;
    compiler.bind(create, "hiprtcCreateProgram");
    compiler.bind(compile, "hiprtcCompileProgram");
    compiler.bind(destroy, "hiprtcDestroyProgram");
    void* program = nullptr;
    ASSERT_EQ(create(&program, "AWAKEN_KERNEL(awaken_fill_pattern, u64 bytes) {}", "fill.h", 0, nullptr, nullptr), 0);
    EXPECT_EQ(compile(program, 0, nullptr), 0);
    EXPECT_EQ(destroy(&program), 0);
    EXPECT_NE(destroy(&program), 0);
}

namespace {

std::vector<char> image_of_a_kernel() {
    const Library compiler(kGeneration == 5 ? "libamdhip64.so.5"
                                            : ("libhiprtc.so." + std::to_string(kGeneration)).c_str());
    int (*create)(void**, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
    int (*compile)(void*, int, const char* const*) = nullptr;
    int (*destroy)(void**) = nullptr;
    int (*size_of)(void*, std::size_t*) = nullptr;
    int (*code)(void*, char*) = nullptr;
    compiler.bind(create, "hiprtcCreateProgram");
    compiler.bind(compile, "hiprtcCompileProgram");
    compiler.bind(destroy, "hiprtcDestroyProgram");
    compiler.bind(size_of, "hiprtcGetCodeSize");
    compiler.bind(code, "hiprtcGetCode");
    void* program = nullptr;
    std::size_t size = 0;
    EXPECT_EQ(create(&program, "AWAKEN_KERNEL(awaken_fill_pattern, u64 bytes) {}", "fill.h", 0, nullptr, nullptr), 0);
    EXPECT_EQ(compile(program, 0, nullptr), 0);
    EXPECT_EQ(size_of(program, &size), 0);
    std::vector<char> image(size);
    EXPECT_EQ(code(program, image.data()), 0);
    EXPECT_EQ(destroy(&program), 0);
    return image;
}

}  // namespace

TEST(EmulatedHip, WhatWaitsForAllWorkLocksNothing) {
    const std::vector<char> image = image_of_a_kernel();
    std::vector<char> registered(64);
    void *memory = nullptr, *pinned = nullptr, *freed_pinned = nullptr, *module = nullptr, *busy = nullptr,
         *kept = nullptr;
    ASSERT_EQ(hip().allocate(&memory, 4096), kSuccess);
    ASSERT_EQ(hip().allocate(&kept, 4096), kSuccess);
    ASSERT_EQ(hip().allocate_host(&pinned, 4096, 0), kSuccess);
    ASSERT_EQ(hip().allocate_host(&freed_pinned, 4096, 0), kSuccess);
    ASSERT_EQ(hip().register_host(registered.data(), registered.size(), 0), kSuccess);
    ASSERT_EQ(hip().module_load(&module, image.data()), kSuccess);
    ASSERT_EQ(hip().stream_create(&busy, 1), kSuccess);
    const std::function<int()> waiting[] = {
        [&] { return hip().free(memory); },          [&] { return hip().free_host(pinned); },
        [&] { return hip().free(freed_pinned); },    [&] { return hip().unregister_host(registered.data()); },
        [&] { return hip().module_unload(module); },
    };
    for (const std::function<int()>& waiter : waiting) {
        Gate gate;
        ASSERT_EQ(hip().host_function(busy, &Gate::wait, &gate), kSuccess);
        const BackgroundCall call(waiter);
        EXPECT_TRUE(waits_for_all_work(call)) << &waiter - waiting;
        // Other threads go on, and loading a module does not wait.
        void *loaded = nullptr, *allocated = nullptr;
        char byte = 0;
        EXPECT_EQ(hip().module_load(&loaded, image.data()), kSuccess);
        EXPECT_EQ(hip().allocate(&allocated, 64), kSuccess);
        EXPECT_EQ(hip().copy(&byte, kept, 1, 2), kSuccess);
        EXPECT_EQ(hip().query(nullptr), kSuccess);
        EXPECT_EQ(hip().query(busy), kNotReady);
        EXPECT_FALSE(call.returned());
        gate.open = true;
        EXPECT_EQ(call.result(), kSuccess);
        EXPECT_EQ(hip().free(allocated), kSuccess);
        EXPECT_EQ(hip().module_unload(loaded), kSuccess);
    }
    EXPECT_EQ(hip().free(kept), kSuccess);
    EXPECT_EQ(hip().stream_destroy(busy), kSuccess);
}

TEST(EmulatedHip, HostFunctionsMayNotCallTheRuntime) {
    constexpr int kNotSupported = 801;
    int (*callback)(void*, void (*)(void*, int, void*), void*, unsigned) = nullptr;
    hip().library.bind(callback, "hipStreamAddCallback");
    void *memory = nullptr, *stream = nullptr;
    ASSERT_EQ(hip().allocate(&memory, 64), kSuccess);
    ASSERT_EQ(hip().stream_create(&stream, 1), kSuccess);
    struct Inside {
        void *memory, *stream;
        int query = -1, attributes = -1, free = -1;
        void run() {
            Attributes found{};
            query = hip().query(stream);
            attributes = hip().attributes(&found, memory);
            free = hip().free(memory);
        }
    };
    Inside by_function{memory, stream}, by_callback{memory, stream};
    ASSERT_EQ(
        hip().host_function(stream, [](void* inside) { static_cast<Inside*>(inside)->run(); }, &by_function), kSuccess);
    ASSERT_EQ(callback(
                  stream, [](void*, int, void* inside) { static_cast<Inside*>(inside)->run(); }, &by_callback, 0),
              kSuccess);
    ASSERT_EQ(hip().stream_synchronize(stream), kSuccess);
    for (const Inside& inside : {by_function, by_callback}) {
        EXPECT_EQ(inside.query, kNotSupported);
        EXPECT_EQ(inside.attributes, kNotSupported);
        EXPECT_EQ(inside.free, kNotSupported);
    }
    EXPECT_EQ(hip().stream_destroy(stream), kSuccess);
    EXPECT_EQ(hip().free(memory), kSuccess);
}

SCENARIO(close_waits) {
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    // A blocking stream, for which the default stream waits, and one that has nothing to do with it.
    for (const unsigned flags : {0U, 1U}) {
        void *address = nullptr, *busy = nullptr;
        REQUIRE_EQUAL(hip().ipc_open(&address, handle, 1), kSuccess);
        REQUIRE_EQUAL(hip().stream_create(&busy, flags), kSuccess);
        Gate gate;
        REQUIRE_EQUAL(hip().host_function(busy, &Gate::wait, &gate), kSuccess);
        const BackgroundCall call([&] { return hip().ipc_close(address); });
        const bool waited = waits_for_all_work(call);
        gate.open = true;
        REQUIRE_EQUAL(waited, flags == 0 || kGeneration == 5);
        REQUIRE_EQUAL(call.result(), kSuccess);
        REQUIRE_EQUAL(hip().stream_synchronize(busy), kSuccess);
    }
    return 0;
}

TEST(EmulatedHip, ClosingAnImportWaits) {
    void* address = nullptr;
    ASSERT_EQ(hip().allocate(&address, 4096), kSuccess);
    Handle handle{};
    ASSERT_EQ(hip().ipc_get(&handle, address), kSuccess);
    const Outcome outcome = run_scenario("close_waits", {}, {to_text(handle.bytes, sizeof handle.bytes)});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    ASSERT_EQ(hip().free(address), kSuccess);
}

SCENARIO(opens_slowly) {
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    void *memory = nullptr, *stream = nullptr, *opened = nullptr;
    REQUIRE_EQUAL(hip().allocate(&memory, 4096), kSuccess);
    REQUIRE_EQUAL(hip().stream_create(&stream, 1), kSuccess);
    const std::vector<std::function<int()>> others{
        [&] { return hip().query(stream); },
        [&] { return hip().fill(memory, 1, 4096); },
        [&] {
            Attributes attributes{};
            return hip().attributes(&attributes, memory);
        },
    };
    for (const std::function<int()>& other : others) {
        REQUIRE_EQUAL(
            waits_for_opening(
                other, [&] { return hip().ipc_open(&opened, handle, 1); }, [&] { return hip().ipc_close(opened); }),
            true);
    }
    return 0;
}

TEST(EmulatedHip, OpeningAnImportKeepsOtherCallsOut) {
    void* address = nullptr;
    ASSERT_EQ(hip().allocate(&address, std::size_t{1} << 20), kSuccess);
    Handle handle{};
    ASSERT_EQ(hip().ipc_get(&handle, address), kSuccess);
    for (const char* const time : kSlowOpenings) {
        const Outcome outcome = run_scenario("opens_slowly", {{"AWAKEN_TEST_IPC_OPEN_US", time}},
                                             {to_text(handle.bytes, sizeof handle.bytes)});
        EXPECT_TRUE(outcome.succeeded()) << time << ": " << outcome.output;
    }
    ASSERT_EQ(hip().free(address), kSuccess);
}

SCENARIO(refuses_to_wait) {
    void *memory = nullptr, *busy = nullptr;
    REQUIRE_EQUAL(hip().allocate(&memory, 4096), kSuccess);
    REQUIRE_EQUAL(hip().stream_create(&busy, 1), kSuccess);
    Gate gate;
    REQUIRE_EQUAL(hip().host_function(busy, &Gate::wait, &gate), kSuccess);
    REQUIRE_EQUAL(hip().free(memory), kNotReady);
    REQUIRE_EQUAL(hip().free(memory), kNotReady);
    gate.open = true;
    REQUIRE_EQUAL(hip().stream_synchronize(busy), kSuccess);
    REQUIRE_EQUAL(hip().free(memory), kSuccess);
    return 0;
}

TEST(EmulatedHipProcess, RefusesToWaitForAllWorkWhenAsked) {
    const Outcome outcome = run_scenario("refuses_to_wait", {{"AWAKEN_TEST_BUSY", "error"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    const std::size_t at = outcome.output.find(": hipFree was called while there was unfinished work");
    EXPECT_NE(at, std::string::npos) << outcome.output;
    EXPECT_EQ(outcome.output.find("hipFree", at + 10), std::string::npos) << outcome.output;
}

SCENARIO(touch_device_memory) {
    void* address = nullptr;
    REQUIRE_EQUAL(hip().allocate(&address, 64), kSuccess);
    return *static_cast<volatile char*>(address);
}

SCENARIO(no_device) {
    int count = 9;
    REQUIRE_EQUAL(hip().device_count(&count), kNoDevice);
    REQUIRE_EQUAL(count, 0);
    void* address = nullptr;
    REQUIRE_EQUAL(hip().allocate(&address, 64), kNoDevice);
    return 0;
}

SCENARIO(visible_devices) {
    int count = 0;
    REQUIRE_EQUAL(hip().device_count(&count), kSuccess);
    REQUIRE_EQUAL(count, std::stoi(arguments.at(0)));
    return 0;
}

SCENARIO(version_as_asked) {
    int version = 0;
    REQUIRE_EQUAL(hip().version(&version), kSuccess);
    REQUIRE_EQUAL(version / 10'000'000, std::stoi(arguments.at(0)));
    return 0;
}

TEST(EmulatedHipProcess, FaultsOnHostAccessAndObeysTheEnvironment) {
    EXPECT_TRUE(run_scenario("touch_device_memory", {}).ended_by(SIGSEGV));
    for (const char* other : {"cuda:2", ""}) {
        const Outcome outcome = run_scenario("no_device", {{"AWAKEN_EMULATE", other}});
        EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    }
    const Environment both{
        {"AWAKEN_EMULATE", "hip:8"}, {"ROCR_VISIBLE_DEVICES", "4,5,6"}, {"HIP_VISIBLE_DEVICES", "0,2"}};
    EXPECT_TRUE(run_scenario("visible_devices", both, {"2"}).succeeded());
    for (const char* generation : {"5", "6", "7"}) {
        const Outcome outcome = run_scenario(
            "version_as_asked", {{"AWAKEN_EMULATE", std::string("hip") + generation + ":1"}}, {generation});
        EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    }
}

SCENARIO(open_and_answer) {
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    void* address = nullptr;
    REQUIRE_EQUAL(hip().ipc_open(&address, handle, 1), kSuccess);
    std::array<unsigned char, 5000> data{};
    REQUIRE_EQUAL(hip().copy(data.data(), address, data.size(), 2), kSuccess);
    REQUIRE_EQUAL(static_cast<int>(data[4999]), 0x5a);
    REQUIRE_EQUAL(hip().fill(address, 0x77, data.size()), kSuccess);
    REQUIRE_EQUAL(hip().synchronize(), kSuccess);
    REQUIRE_EQUAL(hip().ipc_close(address), kSuccess);
    return 0;
}

SCENARIO(open_fails) {
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    void* address = nullptr;
    REQUIRE_EQUAL(hip().ipc_open(&address, handle, 1), kInvalidDevicePointer);
    return 0;
}

TEST(EmulatedHip, SharesMemoryBetweenProcesses) {
    void* address = nullptr;
    ASSERT_EQ(hip().allocate(&address, 5000), kSuccess);
    ASSERT_EQ(hip().fill(address, 0x5a, 5000), kSuccess);
    ASSERT_EQ(hip().synchronize(), kSuccess);
    Handle handle{};
    ASSERT_EQ(hip().ipc_get(&handle, address), kSuccess);
    void* own = nullptr;
    EXPECT_EQ(hip().ipc_open(&own, handle, 1), kInvalidContext);
    const std::string text = to_text(handle.bytes, sizeof handle.bytes);
    const Outcome outcome = run_scenario("open_and_answer", {}, {text});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    unsigned char answered = 0;
    ASSERT_EQ(hip().copy(&answered, static_cast<char*>(address) + 4999, 1, 2), kSuccess);
    EXPECT_EQ(answered, 0x77);
    const Outcome without_peers =
        run_scenario("open_fails", {{"AWAKEN_TEST_FAULTS", "no-peer"}, {"HIP_VISIBLE_DEVICES", "1"}}, {text});
    EXPECT_TRUE(without_peers.succeeded()) << without_peers.output;
    for (const char* const variable : {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}) {
        const Outcome hidden =
            run_scenario("open_fails", {{"AWAKEN_TEST_FAULTS", "hidden-device"}, {variable, "1"}}, {text});
        EXPECT_TRUE(hidden.succeeded()) << hidden.output;
    }
    ASSERT_EQ(hip().free(address), kSuccess);
    EXPECT_TRUE(run_scenario("open_fails", {}, {text}).succeeded());
    void* pool = nullptr;
    ASSERT_EQ(hip().allocate_async(&pool, 4096, nullptr), kSuccess);
    EXPECT_EQ(hip().ipc_get(&handle, pool), kInvalidDevicePointer);
    ASSERT_EQ(hip().free_async(pool, nullptr), kSuccess);
}

// ---- memory operations of streams

namespace {

constexpr unsigned kNotLess = 0, kEqual = 1, kCommonOne = 2, kCommonZero = 3;
constexpr std::uint64_t kAllBits = ~std::uint64_t{0};

/// Page-locked memory that the test and streams look at together.
class Words {
  public:
    Words() {
        void* memory = nullptr;
        EXPECT_EQ(hip().allocate_host(&memory, 4096, 0), kSuccess);
        _memory = static_cast<std::uint64_t*>(memory);
    }
    ~Words() { EXPECT_EQ(hip().free_host(_memory), kSuccess); }
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;
    [[nodiscard]] void* at(std::size_t number) const { return _memory + number; }
    [[nodiscard]] std::atomic_ref<std::uint64_t> operator[](std::size_t number) const {
        return std::atomic_ref(_memory[number]);
    }
    /// For a stream that writes 32 bits, which is no access to all 64 of them.
    [[nodiscard]] std::atomic_ref<std::uint32_t> half(std::size_t number) const {
        return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(_memory + number));
    }

  private:
    std::uint64_t* _memory = nullptr;
};

class OwnStream {
  public:
    explicit OwnStream(unsigned flags = 1) { EXPECT_EQ(hip().stream_create(&_handle, flags), kSuccess); }
    ~OwnStream() { EXPECT_EQ(hip().stream_destroy(_handle), kSuccess); }
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    [[nodiscard]] void* handle() const { return _handle; }

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
        if (const int result = hip().host_function(stream, &count_up, &done); result != kSuccess) {
            return result;
        }
        if (const int result = hip().stream_synchronize(stream); result != kSuccess) {
            return result;
        }
    }
    return kSuccess;
}

}  // namespace

TEST(EmulatedHip, StreamsWaitForMaskedValues) {
    struct Case {
        unsigned bits, flags;
        std::uint64_t before, value, after, mask;
    };
    constexpr std::uint64_t kHigh = std::uint64_t{1} << 32;
    constexpr Case kCases[] = {
        {32, kNotLess, 4, 5, 5, kAllBits},
        {32, kNotLess, 3, 0xfffffff0, 0xfffffff1, kAllBits},  // numbers are unsigned, nothing wraps around
        {32, kNotLess, 0xf4, 5, 0x06, 0x0f},
        {32, kEqual, 0x16, 5, 0xf5, 0x0f},
        {32, kCommonOne, 0x0f, 0xff, 0x10, 0xf0},
        {32, kCommonZero, 0xffff0000, 0x0000ffff, 0xfffe0000, kAllBits},
        {32, kCommonZero, 0x00f0, 0x000f, 0x0070, 0x00ff},  // zeros outside the mask do not count
        {64, kNotLess, 4, kHigh, kHigh, kAllBits},
        {64, kNotLess, kHigh + 4, 5, kHigh + 5, 0xffff},
        {64, kEqual, 5, kHigh + 5, kHigh + 5, kAllBits},
        {64, kCommonOne, 0xffffffff, kAllBits, kHigh, kHigh},
        {64, kCommonZero, kAllBits - kHigh, kHigh, kAllBits - kHigh - 1, kAllBits},
    };
    const Words words;
    const OwnStream stream, other;
    for (const Case& one : kCases) {
        SCOPED_TRACE(&one - kCases);
        words[0] = one.before;
        std::atomic<int> passed{0};
        ASSERT_EQ(one.bits == 32 ? hip().wait_32(stream.handle(), words.at(0), static_cast<std::uint32_t>(one.value),
                                                 one.flags, static_cast<std::uint32_t>(one.mask))
                                 : hip().wait_64(stream.handle(), words.at(0), one.value, one.flags, one.mask),
                  kSuccess);
        ASSERT_EQ(hip().host_function(stream.handle(), &count_up, &passed), kSuccess);
        ASSERT_EQ(let_others_run(other.handle()), kSuccess);
        EXPECT_EQ(hip().query(stream.handle()), kNotReady);
        EXPECT_EQ(passed, 0);
        words[0] = one.after;
        ASSERT_EQ(hip().stream_synchronize(stream.handle()), kSuccess);
        EXPECT_EQ(passed, 1);
    }
}

TEST(EmulatedHip, AWaitHoldsUpWhatComesAfterIt) {
    const Words words;
    const OwnStream blocking(0), independent;
    void* flag = nullptr;
    ASSERT_EQ(hip().allocate(&flag, 64), kSuccess);
    ASSERT_EQ(hip().fill_async(flag, 0, 64, independent.handle()), kSuccess);
    ASSERT_EQ(hip().stream_synchronize(independent.handle()), kSuccess);
    words[0] = 0;
    ASSERT_EQ(hip().wait_64(blocking.handle(), flag, 1, kEqual, kAllBits), kSuccess);
    ASSERT_EQ(hip().write_32(nullptr, words.at(0), 1, 0), kSuccess);  // the default stream comes after it
    ASSERT_EQ(let_others_run(independent.handle()), kSuccess);
    EXPECT_EQ(words.half(0), 0U);
    ASSERT_EQ(hip().write_64(independent.handle(), flag, 1, 0), kSuccess);
    ASSERT_EQ(hip().stream_synchronize(nullptr), kSuccess);
    EXPECT_EQ(words.half(0), 1U);
    ASSERT_EQ(hip().free(flag), kSuccess);
}

TEST(EmulatedHip, MemoryOperationsNeedMemoryThatTheRuntimeKnows) {
    const OwnStream stream;
    alignas(8) std::array<std::uint64_t, 8> pageable{};
    void* device = nullptr;
    void* managed = nullptr;
    ASSERT_EQ(hip().allocate(&device, 64), kSuccess);
    ASSERT_EQ(hip().allocate_managed(&managed, 64, 1), kSuccess);
    EXPECT_EQ(hip().write_32(stream.handle(), nullptr, 1, 0), kInvalidValue);
    EXPECT_EQ(hip().write_32(stream.handle(), pageable.data(), 1, 0), kInvalidValue);
    EXPECT_EQ(hip().wait_64(stream.handle(), pageable.data(), 0, kEqual, kAllBits), kInvalidValue);
    EXPECT_EQ(hip().write_64(stream.handle(), static_cast<char*>(device) + 4, 1, 0), kInvalidValue);
    EXPECT_EQ(hip().wait_32(stream.handle(), device, 0, 4, 1), kInvalidValue);
    ASSERT_EQ(hip().register_host(pageable.data(), sizeof pageable, 0), kSuccess);
    EXPECT_EQ(hip().write_64(stream.handle(), &pageable[1], 9, 0), kSuccess);
    EXPECT_EQ(hip().write_32(stream.handle(), managed, 8, 0), kSuccess);
    ASSERT_EQ(hip().stream_synchronize(stream.handle()), kSuccess);
    EXPECT_EQ(pageable[0], 0U);
    EXPECT_EQ(pageable[1], 9U);
    EXPECT_EQ(*static_cast<std::uint32_t*>(managed), 8U);
    ASSERT_EQ(hip().unregister_host(pageable.data()), kSuccess);
    ASSERT_EQ(hip().free(managed), kSuccess);
    ASSERT_EQ(hip().free(device), kSuccess);
    int (*attribute_of_device)(int*, int, int) = nullptr;
    hip().library.bind(attribute_of_device, "hipDeviceGetAttribute");
    constexpr int kCanWaitForValues = 10013;
    int value = 0;
    ASSERT_EQ(attribute_of_device(&value, kCanWaitForValues, 0), kSuccess);
    EXPECT_EQ(value, 1);
}

namespace {
constexpr std::uint32_t kTurns = 40;
constexpr std::size_t kMessage = 4096;
}  // namespace

/// Waits for each turn of the other process, takes its message and answers; all of it queued in advance.
SCENARIO(answer_in_stream) {
    Handle handle{};
    from_text(arguments.at(0), handle.bytes, sizeof handle.bytes);
    void* mapped = nullptr;
    REQUIRE_EQUAL(hip().ipc_open(&mapped, handle, 1), kSuccess);
    char* const shared = static_cast<char*>(mapped);
    void* received = nullptr;
    REQUIRE_EQUAL(hip().allocate_host(&received, kTurns * kMessage, 0), kSuccess);
    const OwnStream stream;
    for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
        REQUIRE_EQUAL(hip().wait_32(stream.handle(), shared, turn, kNotLess, ~0U), kSuccess);
        REQUIRE_EQUAL(hip().copy_async(static_cast<char*>(received) + (turn - 1) * kMessage, shared + kMessage,
                                       kMessage, 2, stream.handle()),
                      kSuccess);
        REQUIRE_EQUAL(hip().write_32(stream.handle(), shared + 64, turn, 0), kSuccess);
    }
    REQUIRE_EQUAL(hip().stream_synchronize(stream.handle()), kSuccess);
    for (std::size_t position = 0; position < kTurns * kMessage; ++position) {
        REQUIRE_EQUAL(static_cast<std::size_t>(static_cast<const unsigned char*>(received)[position]),
                      position / kMessage + 1);
    }
    REQUIRE_EQUAL(hip().ipc_close(mapped), kSuccess);
    return 0;
}

TEST(EmulatedHip, StreamsOfTwoProcessesExchangeMessages) {
    void* memory = nullptr;
    ASSERT_EQ(hip().allocate(&memory, 2 * kMessage), kSuccess);
    char* const shared = static_cast<char*>(memory);
    const OwnStream stream;
    ASSERT_EQ(hip().fill_async(shared, 0, 2 * kMessage, stream.handle()), kSuccess);
    ASSERT_EQ(hip().stream_synchronize(stream.handle()), kSuccess);
    Handle handle{};
    ASSERT_EQ(hip().ipc_get(&handle, shared), kSuccess);
    for (std::uint32_t turn = 1; turn <= kTurns; ++turn) {
        ASSERT_EQ(hip().fill_async(shared + kMessage, static_cast<int>(turn), kMessage, stream.handle()), kSuccess);
        ASSERT_EQ(hip().write_32(stream.handle(), shared, turn, 0), kSuccess);
        ASSERT_EQ(hip().wait_32(stream.handle(), shared + 64, turn, kNotLess, ~0U), kSuccess);
    }
    EXPECT_EQ(hip().query(stream.handle()), kNotReady);
    const Outcome outcome = run_scenario("answer_in_stream", {{"AWAKEN_TEST_DELAYS", "5:1000"}},
                                         {to_text(handle.bytes, sizeof handle.bytes)});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    EXPECT_EQ(hip().stream_synchronize(stream.handle()), kSuccess);
    ASSERT_EQ(hip().free(memory), kSuccess);
}

SCENARIO(wait_with_connections) {
    const bool single = std::stoi(arguments.at(0)) == 1;
    REQUIRE_EQUAL(hip().set_device(1), kSuccess);
    const OwnStream elsewhere;
    REQUIRE_EQUAL(hip().set_device(0), kSuccess);
    const Words words;
    const OwnStream waiting, after;
    words[0] = 0;
    std::atomic<int> done{0};
    REQUIRE_EQUAL(hip().wait_32(waiting.handle(), words.at(0), 1, kEqual, ~0U), kSuccess);
    REQUIRE_EQUAL(hip().host_function(after.handle(), &count_up, &done), kSuccess);
    REQUIRE_EQUAL(let_others_run(elsewhere.handle()), kSuccess);
    if (single) {
        REQUIRE_EQUAL(hip().query(after.handle()), kNotReady);
        REQUIRE_EQUAL(done.load(), 0);
    } else {
        REQUIRE_EQUAL(hip().stream_synchronize(after.handle()), kSuccess);
    }
    words.half(0) = 1;
    REQUIRE_EQUAL(hip().stream_synchronize(after.handle()), kSuccess);
    REQUIRE_EQUAL(done.load(), 1);
    return 0;
}

TEST(EmulatedHipProcess, AWaitHoldsUpAllStreamsOfASingleConnection) {
    for (const char* const connections : {"1", "8"}) {
        const Outcome outcome =
            run_scenario("wait_with_connections", {{"AWAKEN_EMULATE_CONNECTIONS", connections}}, {connections});
        EXPECT_TRUE(outcome.succeeded()) << connections << ": " << outcome.output;
    }
}

SCENARIO(fill_short_queue) {
    const Words words;
    const OwnStream stream, other;
    words[0] = 0;
    words[1] = 0;
    REQUIRE_EQUAL(hip().wait_32(stream.handle(), words.at(0), 1, kEqual, ~0U), kSuccess);
    REQUIRE_EQUAL(hip().write_32(stream.handle(), words.at(1), 1, 0), kSuccess);
    std::atomic<bool> started{false};
    const BackgroundCall call([&] {
        started = true;
        return hip().write_32(stream.handle(), words.at(1), 2, 0);
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
    REQUIRE_EQUAL(hip().stream_synchronize(stream.handle()), kSuccess);
    REQUIRE_EQUAL(words.half(1).load(), 2U);
    return 0;
}

SCENARIO(end_while_waiting) {
    void* flag = nullptr;
    void* stream = nullptr;
    REQUIRE_EQUAL(hip().allocate(&flag, 64), kSuccess);
    REQUIRE_EQUAL(hip().stream_create(&stream, 1), kSuccess);
    REQUIRE_EQUAL(hip().wait_32(stream, flag, 1, kEqual, ~0U), kSuccess);
    return 0;
}

TEST(EmulatedHipProcess, HoldsUpCallsByFullQueuesAndEndsWhileAStreamWaits) {
    const Outcome full = run_scenario("fill_short_queue", {{"AWAKEN_TEST_QUEUE", "2"}});
    EXPECT_TRUE(full.succeeded()) << full.output;
    const Outcome ended = run_scenario("end_while_waiting", {});
    EXPECT_TRUE(ended.succeeded()) << ended.output;
}
