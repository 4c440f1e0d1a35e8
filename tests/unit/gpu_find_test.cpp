// SPDX-License-Identifier: Apache-2.0
// How find() follows what the program loads and initialises. Each case runs in a process of its own, because what was
// loaded or found stays so.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "gpu/gpu.h"
#include "gpu_fake_driver.h"

namespace awaken::gpu {
namespace {

/// Ends a process that was made for one case, without exit handlers.
[[noreturn]] void leave_process() {
    std::fflush(nullptr);
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

void in_own_process(const std::function<void()>& scenario) {
    const auto run = [&scenario] {
        scenario();
        leave_process();
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

std::string driver_path(const std::string& form) {
    return AWAKEN_FAKE_DRIVERS "/" + form + "/libcuda.so.1";
}

/// As a program would load it.
FakeDriver* load_driver(const std::string& form = "complete") {
    void* const handle = dlopen(driver_path(form).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        ADD_FAILURE() << dlerror();
        std::_Exit(1);
    }
    return static_cast<FakeDriver*>(dlsym(handle, "fake_driver"));
}

TEST(Find, ThereIsNoneUntilTheProgramLoadsOne) {
    in_own_process([] {
        std::string why_not;
        EXPECT_EQ(&find(Choice::automatic, &why_not), &none());
        EXPECT_NE(why_not.find("has loaded no GPU runtime"), std::string::npos) << why_not;
        EXPECT_EQ(&find(Choice::automatic), &none());
    });
}

TEST(Find, WaitsForTheProgramToInitialiseWhatItLoaded) {
    in_own_process([] {
        EXPECT_EQ(find(Choice::automatic).vendor(), Vendor::none);
        FakeDriver* const driver = load_driver();
        std::string why_not;
        EXPECT_EQ(find(Choice::automatic, &why_not).vendor(), Vendor::none);
        EXPECT_NE(why_not.find("has not initialised it"), std::string::npos) << why_not;
        EXPECT_EQ(find(Choice::automatic).vendor(), Vendor::none);
        EXPECT_EQ(driver->init_calls, 0);  // never initialised by us

        driver->initialised = true;  // nothing else is loaded meanwhile
        Runtime& runtime = find(Choice::automatic);
        EXPECT_EQ(runtime.vendor(), Vendor::cuda);
        EXPECT_EQ(runtime.versions().library, driver_path("complete"));
        EXPECT_EQ(runtime.versions().runtime, "CUDA driver 13.0");
        EXPECT_EQ(runtime.versions().driver, 13000);
        EXPECT_EQ(&find(Choice::automatic), &runtime);
        EXPECT_EQ(&find(Choice::cuda), &runtime);
    });
}

TEST(Find, AsksADriverWithoutDevicesOnlyAgainWhenSomethingWasLoaded) {
    in_own_process([] {
        FakeDriver* const driver = load_driver();
        driver->initialised = true;
        driver->devices = 0;
        std::string why_not;
        EXPECT_EQ(find(Choice::automatic, &why_not).vendor(), Vendor::none);
        EXPECT_NE(why_not.find("no CUDA-capable device"), std::string::npos) << why_not;
        const int asked = driver->count_calls.load();
        for (int i = 0; i < 100; ++i) {
            EXPECT_EQ(find(Choice::automatic).vendor(), Vendor::none);
        }
        EXPECT_EQ(driver->count_calls, asked);

        driver->devices = 2;
        ASSERT_NE(dlopen(driver_path("incomplete").c_str(), RTLD_NOW), nullptr) << dlerror();
        EXPECT_EQ(find(Choice::automatic).vendor(), Vendor::cuda);
    });
}

TEST(Find, NamesTheFunctionsThatALibraryLacks) {
    in_own_process([] {
        load_driver("incomplete")->initialised = true;
        std::string why_not;
        EXPECT_EQ(find(Choice::automatic, &why_not).vendor(), Vendor::none);
        EXPECT_NE(why_not.find("lacks cuIpcGetMemHandle, cuIpcOpenMemHandle_v2"), std::string::npos) << why_not;
        EXPECT_NE(why_not.find("/incomplete/libcuda.so.1"), std::string::npos) << why_not;
    });
}

TEST(Find, RefusesADriverThatIsTooOld) {
    in_own_process([] {
        FakeDriver* const driver = load_driver();
        driver->initialised = true;
        driver->version = 10020;
        std::string why_not;
        EXPECT_EQ(find(Choice::automatic, &why_not).vendor(), Vendor::none);
        EXPECT_NE(why_not.find("CUDA 10.2; CUDA 11.0 or newer is needed"), std::string::npos) << why_not;
    });
}

TEST(Find, TheUsersChoiceInitialisesTheDriver) {
    in_own_process([] {
        FakeDriver* const driver = load_driver();
        EXPECT_EQ(find(Choice::cuda).vendor(), Vendor::cuda);
        EXPECT_EQ(driver->init_calls, 1);
        EXPECT_EQ(find(Choice::cuda).vendor(), Vendor::cuda);
        EXPECT_EQ(driver->init_calls, 1);
    });
}

TEST(Find, TheUsersChoiceForAnotherProgramWaitsForThatToInitialiseTheDriver) {
    in_own_process([] {
        FakeDriver* const driver = load_driver();
        std::string why_not;
        EXPECT_TRUE(can_be_loaded(Choice::cuda, why_not)) << why_not;
        EXPECT_EQ(find_in_use(Choice::cuda).vendor(), Vendor::none);
        EXPECT_EQ(driver->init_calls, 0);
        driver->initialised = true;
        EXPECT_EQ(find_in_use(Choice::hip).vendor(), Vendor::none);
        EXPECT_EQ(find_in_use(Choice::cuda).vendor(), Vendor::cuda);
        EXPECT_EQ(driver->init_calls, 0);
    });
}

TEST(Find, TheUsersChoiceForAnotherProgramHasToBeThere) {
    in_own_process([] {
        load_driver("incomplete");
        std::string why_not;
        EXPECT_FALSE(can_be_loaded(Choice::cuda, why_not));
        EXPECT_NE(why_not.find("lacks cuIpcGetMemHandle"), std::string::npos) << why_not;
    });
}

TEST(Find, TheUsersChoiceSaysWhyItCannotBeHad) {
    in_own_process([] {
        FakeDriver* const driver = load_driver();
        driver->init_result = 100;
        std::string why_not;
        EXPECT_EQ(&find(Choice::cuda, &why_not), &none());
        EXPECT_NE(why_not.find("cuInit: no CUDA-capable device is detected (100)"), std::string::npos) << why_not;
        const int tried = driver->init_calls.load();
        EXPECT_EQ(&find(Choice::cuda), &none());
        EXPECT_EQ(driver->init_calls, tried);  // remembered
        EXPECT_EQ(&find(Choice::cuda, &why_not), &none());
        EXPECT_FALSE(why_not.empty());  // but explained each time that somebody asks
    });
}

TEST(Find, NoneIsNone) {
    in_own_process([] {
        load_driver()->initialised = true;
        std::string why_not;
        EXPECT_EQ(&find(Choice::none, &why_not), &none());
        EXPECT_FALSE(why_not.empty());
    });
}

TEST(Find, ManyThreadsFindTheSame) {
    in_own_process([] {
        FakeDriver* const driver = load_driver();
        std::vector<Runtime*> found(8, nullptr);
        std::vector<std::thread> threads;
        for (Runtime*& slot : found) {
            threads.emplace_back([&slot] {
                while (slot == nullptr) {
                    Runtime& runtime = find(Choice::automatic);
                    if (runtime.vendor() != Vendor::none) {
                        slot = &runtime;
                    }
                }
            });
        }
        driver->initialised = true;
        for (std::thread& thread : threads) {
            thread.join();
        }
        for (const Runtime* const runtime : found) {
            EXPECT_EQ(runtime, found.front());
        }
    });
}

// The first thread that asks is still talking to the driver when the second one asks: the second must not take "not yet
// found" for "none", or it would hand a device pointer to the MPI.
TEST(Find, AThreadWaitsForTheAnswerThatAnotherIsGetting) {
    in_own_process([] {
        FakeDriver* const driver = load_driver();
        driver->initialised = true;
        static std::future<Vendor> second;  // static: the hook is a plain function
        driver->while_counting = [] {
            if (second.valid()) {
                return;
            }
            second = std::async(std::launch::async, [] { return find(Choice::automatic).vendor(); });
            // Long enough for an answer that does not wait; one that waits gets it when this returns.
            EXPECT_EQ(second.wait_for(std::chrono::milliseconds(200)), std::future_status::timeout);
        };
        EXPECT_EQ(find(Choice::automatic).vendor(), Vendor::cuda);
        ASSERT_TRUE(second.valid());
        EXPECT_EQ(second.get(), Vendor::cuda);
    });
}

TEST(Find, EveryPointerIsHostMemoryOnceTheDriverHasShutDown) {
    in_own_process([] {
        FakeDriver* const driver = load_driver();
        driver->initialised = true;
        Runtime& runtime = find(Choice::automatic);
        driver->attributes_result = 4;  // CUDA_ERROR_DEINITIALIZED
        const void* const pointer = &runtime;
        PointerInfo info;
        info.kind = MemoryKind::device;
        runtime.classify({&pointer, 1}, &info);
        EXPECT_EQ(info.kind, MemoryKind::host);
        EXPECT_EQ(driver->attribute_calls, 1);
        EXPECT_EQ(runtime.free(&info).code, kShutDown);
        const void* const null = nullptr;
        runtime.classify({&null, 1}, &info);
        EXPECT_EQ(info.kind, MemoryKind::host);
        EXPECT_EQ(driver->attribute_calls, 2);  // one by free, none for null
    });
}

TEST(DriverPresent, KnowsALoadedDriver) {
    in_own_process([] {
        load_driver();
        EXPECT_TRUE(driver_present());
    });
}

TEST(DriverPresent, KnowsTheEmulatedDriver) {
    in_own_process([] {
        setenv("AWAKEN_EMULATE", "cuda:2", 1);
        EXPECT_TRUE(driver_present());
    });
}

TEST(Status, SaysCallReasonAndNumber) {
    EXPECT_EQ((Status{1, "cuIpcOpenMemHandle", "invalid argument"}.message()),
              "cuIpcOpenMemHandle: invalid argument (1)");
    EXPECT_EQ((Status{7, "cuInit", nullptr}.message()), "cuInit: unknown error (7)");
    EXPECT_EQ(Status{}.message(), "");
    EXPECT_TRUE(Status{}.ok());
    EXPECT_FALSE((Status{kShutDown, "cuMemFree", "shutting down"}.ok()));
}

TEST(Names, OfVendorsAndKinds) {
    EXPECT_STREQ(to_string(Vendor::none), "none");
    EXPECT_STREQ(to_string(Vendor::cuda), "cuda");
    EXPECT_STREQ(to_string(Vendor::hip), "hip");
    EXPECT_EQ(choice_of(Vendor::none), Choice::none);
    EXPECT_EQ(choice_of(Vendor::cuda), Choice::cuda);
    EXPECT_EQ(choice_of(Vendor::hip), Choice::hip);
    EXPECT_STREQ(to_string(MemoryKind::host), "host");
    EXPECT_STREQ(to_string(MemoryKind::pinned), "pinned");
    EXPECT_STREQ(to_string(MemoryKind::device), "device");
    EXPECT_STREQ(to_string(MemoryKind::managed), "managed");
}

}  // namespace
}  // namespace awaken::gpu
