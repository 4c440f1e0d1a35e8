// SPDX-License-Identifier: Apache-2.0
// What the interface makes of calls that fail, with failures injected into the emulated driver. Each case runs in a
// process of its own, because the driver reads its environment once.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "gpu/gpu.h"

namespace awaken::gpu {
namespace {

/// Ends a process that was made for one case, without exit handlers.
[[noreturn]] void leave_process() {
    std::fflush(nullptr);
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

constexpr std::size_t kBytes = std::size_t{1} << 20;

/// As a program would load the emulated driver: "cuda:2" or "hip6:2".
void load_driver(const std::string& form, const std::string& faults) {
    ::setenv("AWAKEN_EMULATE", form.c_str(), 1);
    ::setenv("AWAKEN_TEST_FAULTS", faults.c_str(), 1);
    const std::string file = form.starts_with("cuda") ? "libcuda.so.1" : "libamdhip64.so." + form.substr(3, 1);
    EXPECT_NE(dlopen((AWAKEN_EMULATOR_DIRECTORY "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
}

class FaultTest : public ::testing::TestWithParam<const char*> {
  protected:
    static bool cuda() { return std::strncmp(GetParam(), "cuda", 4) == 0; }

    /// Runs `scenario` with a runtime that fails as `faults` says.
    static void with_faults(const std::string& faults, const std::function<void(Runtime&)>& scenario) {
        const auto run = [&] {
            load_driver(GetParam(), faults);
            std::string why_not;
            Runtime& runtime = find(cuda() ? Choice::cuda : Choice::hip, &why_not);
            EXPECT_NE(runtime.vendor(), Vendor::none) << why_not;
            if (!HasFailure()) {
                scenario(runtime);
            }
            leave_process();
        };
        EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
    }

    /// A memset that the emulated driver is late with.
    static void work_in_default_stream(Runtime& runtime, const int device) {
        void* memory = nullptr;
        ASSERT_TRUE(runtime.allocate(device, kBytes, memory).ok());
        void* const library = dlopen(runtime.versions().library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        ASSERT_NE(library, nullptr);
        const auto work = [&] {
            if (cuda()) {
                using Memset = int (*)(std::uintptr_t, unsigned char, std::size_t);
                return reinterpret_cast<Memset>(dlsym(library, "cuMemsetD8_v2"))(
                    reinterpret_cast<std::uintptr_t>(memory), 1, kBytes);
            }
            return reinterpret_cast<int (*)(void*, int, std::size_t)>(dlsym(library, "hipMemset"))(memory, 1, kBytes);
        };
        EXPECT_EQ(runtime.run_on(device, [&] { EXPECT_EQ(work(), 0); }).code, 0);
    }

    /// A failure that says which vendor function refused, and why.
    static void expect_refused(const Status& status, const char* function) {
        EXPECT_GT(status.code, 0);
        ASSERT_NE(status.call, nullptr);
        EXPECT_NE(std::string(status.call).find(function), std::string::npos) << status.message();
        ASSERT_NE(status.description, nullptr);
        EXPECT_STRNE(status.description, "");
    }
};

TEST_P(FaultTest, ExportRefused) {
    with_faults("ipc-export", [](Runtime& runtime) {
        void* memory = nullptr;
        ASSERT_TRUE(runtime.allocate(0, kBytes, memory).ok());
        IpcMemoryHandle handle;
        std::size_t offset = 42;
        expect_refused(runtime.ipc_export(memory, handle, offset), "IpcGetMemHandle");
        EXPECT_EQ(offset, 42U);
    });
}

TEST_P(FaultTest, NoPinnedMemory) {
    with_faults("pinned-oom", [](Runtime& runtime) {
        void* memory = nullptr;
        expect_refused(runtime.allocate_pinned(kBytes, memory), cuda() ? "cuMemHostAlloc" : "hipHostMalloc");
        EXPECT_EQ(memory, nullptr);
    });
}

TEST_P(FaultTest, RegisteringRefused) {
    with_faults("register", [](Runtime& runtime) {
        alignas(4096) static char memory[4096];
        expect_refused(runtime.register_host(memory, sizeof memory), "HostRegister");
        const void* const pointer = memory;
        PointerInfo info;
        runtime.classify({&pointer, 1}, &info);
        EXPECT_EQ(info.kind, MemoryKind::host);
    });
}

TEST_P(FaultTest, NoDeviceMemory) {
    with_faults("oom", [](Runtime& runtime) {
        void* memory = nullptr;
        const Status status = runtime.allocate(0, kBytes, memory);
        expect_refused(status, cuda() ? "cuMemAlloc" : "hipMalloc");
        EXPECT_EQ(status.code, 2);
        EXPECT_EQ(memory, nullptr);
    });
}

TEST_P(FaultTest, NoPeerAccess) {
    with_faults("no-peer", [](Runtime& runtime) {
        bool can = true;
        ASSERT_TRUE(runtime.can_access_peer(0, 1, can).ok());
        EXPECT_FALSE(can);
        expect_refused(runtime.enable_peer_access(0, 1), "EnablePeerAccess");
    });
}

TEST_P(FaultTest, AnAsynchronousErrorComesOutOfTheStream) {
    with_faults("copy-error=1", [](Runtime& runtime) {
        void* memory = nullptr;
        void* pinned = nullptr;
        StreamHandle stream;
        ASSERT_TRUE(runtime.allocate(0, kBytes, memory).ok());
        ASSERT_TRUE(runtime.allocate_pinned(kBytes, pinned).ok());
        ASSERT_TRUE(runtime.create_stream(0, true, stream).ok());
        Status status = runtime.copy(memory, pinned, kBytes, stream);
        for (bool done = false; status.ok() && !done;) {
            status = runtime.query_stream(stream, done);
        }
        EXPECT_FALSE(status.ok());
        EXPECT_FALSE(status.message().empty());
    });
}

Runtime* runtime_at_exit = nullptr;
void* memory_at_exit = nullptr;

/// An exit handler that runs after the driver's own.
void after_the_driver() {
    const void* const pointer = memory_at_exit;
    PointerInfo info;
    info.kind = MemoryKind::device;
    runtime_at_exit->classify({&pointer, 1}, &info);
    EXPECT_EQ(info.kind, MemoryKind::host);
    const Status status = runtime_at_exit->free(memory_at_exit);
    EXPECT_EQ(status.code, kShutDown) << status.message();
    leave_process();
}

TEST_P(FaultTest, AfterShutDownThereIsNothingToFree) {
    const auto run = [] {
        std::atexit(&after_the_driver);
        load_driver(GetParam(), "shutdown");
        runtime_at_exit = &find(cuda() ? Choice::cuda : Choice::hip);
        EXPECT_NE(runtime_at_exit->vendor(), Vendor::none);
        EXPECT_TRUE(runtime_at_exit->allocate(0, kBytes, memory_at_exit).ok());
        std::exit(2);  // the handler decides
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

TEST_P(FaultTest, TheProgramsPendingErrorIsNeitherMadeNorSwallowed) {
    if (cuda()) {
        GTEST_SKIP() << "the CUDA driver keeps no pending error";
    }
    with_faults("", [](Runtime& runtime) {
        void* const library = dlopen(runtime.versions().library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        ASSERT_NE(library, nullptr);
        const auto peek = reinterpret_cast<int (*)()>(dlsym(library, "hipPeekAtLastError"));
        const auto get = reinterpret_cast<int (*)()>(dlsym(library, "hipGetLastError"));
        const auto set_device = reinterpret_cast<int (*)(int)>(dlsym(library, "hipSetDevice"));
        int variable = 0;
        const void* const pointer = &variable;
        PointerInfo info;
        IpcMemoryHandle handle;
        void* base = nullptr;
        static_cast<void>(get());

        runtime.classify({&pointer, 1}, &info);  // a failure in HIP 5
        EXPECT_FALSE(runtime.ipc_open(handle, 0, base).ok());
        EXPECT_TRUE(runtime.enable_peer_access(0, 1).ok());
        EXPECT_TRUE(runtime.enable_peer_access(0, 1).ok());  // "already enabled" inside
        EXPECT_EQ(peek(), 0);

        if (runtime.versions().driver < 70000000) {
            return;  // a later call of any kind ends it there
        }
        const int failure = set_device(9999);
        EXPECT_NE(failure, 0);
        runtime.classify({&pointer, 1}, &info);
        EXPECT_TRUE(runtime.enable_peer_access(1, 0).ok());
        EXPECT_EQ(get(), failure);
    });
}

TEST_P(FaultTest, ATrustedDefaultStreamIsNotWaitedFor) {
    // Longer than the test may take, if anything waited for it.
    ::setenv("AWAKEN_TEST_DELAY_US", "60000000", 1);
    with_faults("", [](Runtime& runtime) {
        work_in_default_stream(runtime, 0);
        bool over = true;
        const StreamHandle default_stream{nullptr, 0};
        ASSERT_TRUE(runtime.query_stream(default_stream, over).ok());
        ASSERT_FALSE(over);

        EventHandle mark;
        EXPECT_TRUE(runtime.mark_default_stream(0, mark).ok());
        EXPECT_TRUE(runtime.query_default_stream(mark, over).ok());
        ASSERT_FALSE(over);
        runtime.drop_default_stream(mark);

        runtime.trust_default_stream();
        EXPECT_TRUE(runtime.mark_default_stream(0, mark).ok());
        EXPECT_TRUE(runtime.query_default_stream(mark, over).ok());
        EXPECT_TRUE(over);
        EXPECT_TRUE(runtime.finish_default_stream(0).ok());
        over = true;
        EXPECT_TRUE(runtime.query_stream(default_stream, over).ok());
        EXPECT_FALSE(over);
    });
    ::unsetenv("AWAKEN_TEST_DELAY_US");
}

TEST_P(FaultTest, StreamsOfTheProgramAreItsOwnToWaitFor) {
    ::setenv("AWAKEN_TEST_DELAY_US", "60000000", 1);
    with_faults("", [](Runtime& runtime) {
        void* memory = nullptr;
        ASSERT_TRUE(runtime.allocate(0, kBytes, memory).ok());
        StreamHandle blocking;
        ASSERT_TRUE(runtime.create_stream(0, true, blocking).ok());  // as cudaStreamCreate makes them
        work_in_default_stream(runtime, 1);
        EventHandle over_there;
        ASSERT_TRUE(runtime.create_event(1, over_there).ok());
        StreamHandle other_device;
        ASSERT_TRUE(runtime.create_stream(1, true, other_device).ok());
        ASSERT_TRUE(runtime.record_event(over_there, other_device).ok());
        ASSERT_TRUE(runtime.stream_wait_event(blocking, over_there).ok());
        ASSERT_TRUE(runtime.fill(memory, 1, kBytes, blocking).ok());
        bool over = true;
        ASSERT_TRUE(runtime.query_stream(blocking, over).ok());
        ASSERT_FALSE(over);

        EXPECT_TRUE(runtime.finish_default_stream(0).ok());
        EXPECT_TRUE(runtime.query_stream(blocking, over).ok());
        EXPECT_FALSE(over) << "it was waited for";
    });
    ::unsetenv("AWAKEN_TEST_DELAY_US");
}

TEST_P(FaultTest, RegisteredMemoryElsewhereIsOrdinaryMemory) {
    if (cuda()) {
        GTEST_SKIP() << "CUDA has one address for both";
    }
    with_faults("registered-elsewhere", [](Runtime& runtime) {
        alignas(4096) static std::byte memory[4096];
        EXPECT_EQ(runtime.register_host(memory, sizeof memory).code, kUnsupported);
        EXPECT_FALSE(runtime.unregister_host(memory).ok()) << "it was left registered";
        // What the program has registered itself.
        void* const library = dlopen(runtime.versions().library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        const auto register_host =
            reinterpret_cast<int (*)(void*, std::size_t, unsigned)>(dlsym(library, "hipHostRegister"));
        ASSERT_EQ(register_host(memory, sizeof memory, 0), 0);
        const void* const pointer = memory + 8;
        PointerInfo info;
        runtime.classify({&pointer, 1}, &info);
        EXPECT_EQ(info.kind, MemoryKind::host);
    });
}

/// A program's thread captures a stream into a graph while other threads of the layer ask and allocate.
TEST(Fault, CapturesOfTheProgramAreLeftAlone) {
    const auto run = [] {
        load_driver("cuda:1", "");
        std::string why_not;
        Runtime& runtime = find(Choice::cuda, &why_not);
        ASSERT_NE(runtime.vendor(), Vendor::none) << why_not;
        void* const library = dlopen(runtime.versions().library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        const auto begin = reinterpret_cast<int (*)(void*, int)>(dlsym(library, "cuStreamBeginCapture_v2"));
        const auto end = reinterpret_cast<int (*)(void*, void**)>(dlsym(library, "cuStreamEndCapture"));
        const auto query = reinterpret_cast<int (*)(void*)>(dlsym(library, "cuStreamQuery"));
        constexpr int kUnsupportedInCapture = 900, kInvalidated = 901, kGlobal = 0;
        StreamHandle captured, other;
        EventHandle event;
        ASSERT_TRUE(runtime.create_stream(0, true, captured).ok());
        ASSERT_TRUE(runtime.create_stream(0, false, other).ok());
        ASSERT_TRUE(runtime.create_event(0, event).ok());
        ASSERT_TRUE(runtime.record_event(event, other).ok());
        void* graph = nullptr;
        ASSERT_TRUE(runtime.make_current(0).ok());

        ASSERT_EQ(begin(captured.value, kGlobal), 0);
        std::thread([&] {
            bool done = false;
            void* memory = nullptr;
            EXPECT_TRUE(runtime.allocate(0, kBytes, memory).ok());
            PointerInfo info;
            const void* const pointer = memory;
            runtime.classify({&pointer, 1}, &info);
            EXPECT_TRUE(runtime.order_after_default_stream(memory, info).ok());
            EXPECT_TRUE(runtime.query_event(event, done).ok());
            EXPECT_TRUE(runtime.query_stream(other, done).ok());
            EXPECT_TRUE(runtime.finish_default_stream(0).ok());
            EXPECT_TRUE(runtime.free(memory).ok());
            void* pinned = nullptr;
            EXPECT_TRUE(runtime.allocate_pinned(kBytes, pinned).ok());
            EXPECT_TRUE(runtime.free_pinned(pinned).ok());
        }).join();
        EXPECT_EQ(end(captured.value, &graph), 0) << "the capture was spoiled";

        // The emulated driver would have noticed.
        ASSERT_EQ(begin(captured.value, kGlobal), 0);
        std::thread([&] {
            EXPECT_TRUE(runtime.make_current(0).ok());
            EXPECT_EQ(query(other.value), kUnsupportedInCapture);
        }).join();
        EXPECT_EQ(end(captured.value, &graph), kInvalidated);
        leave_process();
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

/// cudaDeviceReset() and hipDeviceReset() free what we have made. CUDA's driver ends a process that uses it all the
/// same.
TEST_P(FaultTest, AResetDeviceIsNoticed) {
    with_faults("", [](Runtime& runtime) {
        void* const library = dlopen(runtime.versions().library.c_str(), RTLD_LAZY | RTLD_NOLOAD);
        StreamHandle stream;
        ASSERT_TRUE(runtime.create_stream(0, false, stream).ok());
        EXPECT_FALSE(runtime.was_reset());
        if (cuda()) {
            ASSERT_EQ(reinterpret_cast<int (*)(int)>(dlsym(library, "cuDevicePrimaryCtxReset_v2"))(0), 0);
            EXPECT_TRUE(runtime.was_reset());
        } else {
            ASSERT_EQ(reinterpret_cast<int (*)()>(dlsym(library, "hipDeviceReset"))(), 0);
        }
        bool done = false;
        EXPECT_EQ(runtime.query_stream(stream, done).code, kShutDown);
        EXPECT_TRUE(runtime.was_reset());
        void* memory = nullptr;
        const Status status = runtime.allocate(0, kBytes, memory);
        EXPECT_EQ(status.code, kShutDown);
        EXPECT_NE(status.message().find("the program has reset the device"), std::string::npos) << status.message();
    });
}

TEST(Fault, TheUserChoosesARuntimeWithoutDevices) {
    const auto run = [] {
        load_driver("hip6:1", "");
        load_driver("cuda:1", "");  // the first call into either decides what there is
        std::string why_not;
        EXPECT_EQ(&find(Choice::hip, &why_not), &none());
        EXPECT_NE(why_not.find("libamdhip64"), std::string::npos) << why_not;
        EXPECT_EQ(find(Choice::cuda, &why_not).vendor(), Vendor::cuda) << why_not;
        leave_process();
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Vendors, FaultTest, ::testing::Values("cuda:2", "hip5:2", "hip6:2", "hip7:2"),
                         [](const auto& form) {
                             std::string name = form.param;
                             return name.substr(0, name.find(':'));
                         });

}  // namespace
}  // namespace awaken::gpu
