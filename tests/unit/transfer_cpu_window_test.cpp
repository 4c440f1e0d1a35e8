// SPDX-License-Identifier: Apache-2.0
// Copies by the CPU: right bytes, within the bounds of what is mapped, never by way of what an earlier allocation left
// at the address, and off with a reason where something is wrong.
#include "transfer/cpu_window.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "fake_gdrapi.h"
#include "gpu/gpu.h"
#include "watched_gpu.h"

namespace awaken::transfer {
namespace {

using emulator_test::info_of;
using emulator_test::view;
using emulator_test::WatchedGpu;

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// The stand-in for GDRCopy, which this loads; from then on the code under test finds it.
fake_gdrapi& gdrapi() {
    static fake_gdrapi* const controls = [] {
        void* const library = dlopen(AWAKEN_FAKE_GDRAPI, RTLD_NOW | RTLD_LOCAL);
        void* const found = library == nullptr ? nullptr : dlsym(library, "fake_gdrapi");
        if (found == nullptr) {
            std::fprintf(stderr, "%s\n", dlerror());
            std::abort();
        }
        return static_cast<fake_gdrapi*>(found);
    }();
    return *controls;
}

std::vector<std::byte> counted(const std::size_t bytes, const unsigned first) {
    std::vector<std::byte> result(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
        result[i] = static_cast<std::byte>((first + i * 7 + i / 256) & 0xff);
    }
    return result;
}

/// Both vendors' ways have these in common: the driver's own view of device memory is what they are held against.
class CpuWindowTest : public ::testing::Test {
  protected:
    static std::byte* allocate(gpu::Runtime& runtime, const std::size_t bytes, const int device = 0) {
        void* pointer = nullptr;
        EXPECT_TRUE(runtime.allocate(device, bytes, pointer).ok());
        return static_cast<std::byte*>(pointer);
    }
    /// Copies there and back, each compared with what the GPU sees.
    void expect_copies(CpuWindow& window, gpu::Runtime& runtime, std::byte* const memory, const std::size_t bytes,
                       const unsigned seed) {
        const std::vector<std::byte> there = counted(bytes, seed);
        ASSERT_TRUE(window.to_device(memory, info_of(runtime, memory), there.data(), bytes)) << window.description();
        EXPECT_EQ(std::memcmp(view(memory), there.data(), bytes), 0) << bytes;
        const std::vector<std::byte> back = counted(bytes, seed + 1);
        std::memcpy(view(memory), back.data(), bytes);
        std::vector<std::byte> seen(bytes);
        ASSERT_TRUE(window.to_host(seen.data(), memory, info_of(runtime, memory), bytes)) << window.description();
        EXPECT_EQ(seen, back);
    }
};

// ---- GDRCopy --------------------------------------------------------------------------------------------------------

class GdrCopyTest : public CpuWindowTest {
  protected:
    void SetUp() override { gdrapi() = {}; }
    void TearDown() override {
        EXPECT_EQ(gdrapi().pinned, 0);
        EXPECT_EQ(gdrapi().mapped, 0);
        EXPECT_EQ(gdrapi().opened, gdrapi().closed);
        EXPECT_EQ(gdrapi().misuses, 0);
    }

    WatchedGpu gpu;
};

TEST_F(GdrCopyTest, CopiesAnyBytesAnywhere) {
    CpuWindow window(gpu, true);
    ASSERT_TRUE(window.usable()) << window.description();
    EXPECT_EQ(window.description(), "GDRCopy 2.4 (libgdrapi.so.2)");
    std::byte* const memory = allocate(gpu, 3 * kMiB + 100);
    unsigned seed = 0;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{4096}, std::size_t{65537}}) {
        for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, kMiB - 3, 3 * kMiB + 100 - bytes}) {
            expect_copies(window, gpu, memory + offset, bytes, seed += 2);
        }
    }
    EXPECT_TRUE(window.to_device(memory, info_of(gpu, memory), nullptr, 0));
}

TEST_F(GdrCopyTest, CopiesAcrossPiecesAndChangesNothingElse) {
    CpuWindow window(gpu, true);
    constexpr std::size_t kBytes = 9 * kMiB;
    std::byte* const memory = allocate(gpu, kBytes);
    const std::vector<std::byte> zeros(kBytes);
    for (std::size_t at = kMiB / 2; at + kMiB < kBytes; at += kMiB / 2 + 12345) {
        std::memset(view(memory), 0, kBytes);
        expect_copies(window, gpu, memory + at, kMiB, static_cast<unsigned>(at));
        EXPECT_EQ(std::memcmp(view(memory), zeros.data(), at), 0);
        EXPECT_EQ(std::memcmp(view(memory) + at + kMiB, zeros.data(), kBytes - at - kMiB), 0);
    }
    // Longer ones are left to the GPU, whatever the pieces are.
    std::vector<std::byte> host(3 * kMiB);
    EXPECT_FALSE(window.to_host(host.data(), memory, info_of(gpu, memory), host.size()));
}

TEST_F(GdrCopyTest, WhatIsMappedIsKept) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 1000);
    std::byte* const other = allocate(gpu, 1000);
    expect_copies(window, gpu, memory, 1000, 1);
    expect_copies(window, gpu, other, 1000, 2);
    const int pins = gdrapi().pins;
    for (unsigned round = 0; round < 50; ++round) {
        expect_copies(window, gpu, memory + round, 500, round);
        expect_copies(window, gpu, other + round, 500, round);
    }
    EXPECT_EQ(gdrapi().pins, pins);
}

TEST_F(GdrCopyTest, AnotherAllocationAtTheAddressIsMappedAnew) {
    CpuWindow window(gpu, true);
    std::uintptr_t last = 0;
    int same = 0;
    for (unsigned round = 0; round < 20; ++round) {
        std::byte* const memory = allocate(gpu, 100000);
        same += reinterpret_cast<std::uintptr_t>(memory) == last ? 1 : 0;
        last = reinterpret_cast<std::uintptr_t>(memory);
        expect_copies(window, gpu, memory, 5000, round);
        ASSERT_TRUE(gpu.free(memory).ok());
    }
    EXPECT_GT(same, 0) << "the driver gave no address twice: this test tests nothing";
}

TEST_F(GdrCopyTest, KeepsABoundedNumberOfMappings) {
    CpuWindow window(gpu, true);
    std::vector<std::byte*> memory;
    for (unsigned i = 0; i < 80; ++i) {
        memory.push_back(allocate(gpu, 1000));
        expect_copies(window, gpu, memory.back(), 1000, i);
        expect_copies(window, gpu, memory.front(), 1000, i);
        EXPECT_LE(gdrapi().pinned, 64);
    }
    // The first ones went but for the one that is used again and again, the last ones are there.
    const int pins = gdrapi().pins;
    EXPECT_EQ(pins, 80 + 1) << "each once, and the memory that the device was probed with";
    expect_copies(window, gpu, memory.front(), 1000, 1);
    expect_copies(window, gpu, memory.back(), 1000, 2);
    EXPECT_EQ(gdrapi().pins, pins);
    expect_copies(window, gpu, memory[1], 1000, 3);
    EXPECT_EQ(gdrapi().pins, pins + 1);
}

TEST_F(GdrCopyTest, WhatIsInUseStaysMapped) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 1000);
    expect_copies(window, gpu, memory, 1000, 1);
    // During the copy so many others are made that nothing of before would be left, from the same thread: the copy
    // itself holds no lock.
    static std::function<void()> others;
    others = [&] {
        for (unsigned i = 0; i < 70; ++i) {
            expect_copies(window, gpu, allocate(gpu, 1000), 1000, i);
        }
    };
    gdrapi().during_copy = [] { others(); };
    const std::vector<std::byte> sent = counted(1000, 5);
    EXPECT_TRUE(window.to_device(memory, info_of(gpu, memory), sent.data(), sent.size()));
    EXPECT_EQ(std::memcmp(view(memory), sent.data(), sent.size()), 0);
    others = nullptr;
    EXPECT_LE(gdrapi().pinned, 65);
}

TEST_F(GdrCopyTest, OnlyDeviceMemoryWithinItsAllocation) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 1000);
    const gpu::PointerInfo info = info_of(gpu, memory);
    std::array<std::byte, 1001> host = {};
    EXPECT_FALSE(window.to_device(memory, info, host.data(), 1001));
    EXPECT_FALSE(window.to_device(memory + 1, info, host.data(), 1000));
    EXPECT_FALSE(window.to_device(memory - 1, info, host.data(), 1));
    EXPECT_FALSE(window.to_host(host.data(), host.data(), info_of(gpu, host.data()), 1));
    void* managed = nullptr;
    ASSERT_TRUE(gpu.allocate_managed(0, 1000, managed).ok());
    EXPECT_FALSE(window.to_host(host.data(), managed, info_of(gpu, managed), 1));
    gpu::PointerInfo anonymous = info;
    anonymous.id = 0;
    EXPECT_FALSE(window.to_device(memory, anonymous, host.data(), 1000));
    EXPECT_EQ(gdrapi().pinned, 0);
    EXPECT_TRUE(window.to_device(memory, info, host.data(), 1000));
}

TEST_F(GdrCopyTest, MemoryThatCannotBeMappedIsNotTriedAgain) {
    CpuWindow window(gpu, true);
    std::byte* const other = allocate(gpu, 1000);
    expect_copies(window, gpu, other, 1000, 1);
    for (int* const fault : {&gdrapi().pin_fails, &gdrapi().map_fails}) {
        std::byte* const memory = allocate(gpu, 1000);
        std::array<std::byte, 100> host = {};
        *fault = 1;
        EXPECT_FALSE(window.to_device(memory, info_of(gpu, memory), host.data(), host.size()));
        EXPECT_EQ(*fault, 0);
        EXPECT_FALSE(window.to_host(host.data(), memory, info_of(gpu, memory), host.size()));
        EXPECT_TRUE(window.usable());
        expect_copies(window, gpu, other, 1000, 2);
    }
}

TEST_F(GdrCopyTest, ACopyThatFailsIsToldOf) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 1000);
    expect_copies(window, gpu, memory, 1000, 1);
    std::array<std::byte, 100> host = {};
    gdrapi().copy_fails = 1;
    EXPECT_FALSE(window.to_device(memory, info_of(gpu, memory), host.data(), host.size()));
    gdrapi().copy_fails = 1;
    EXPECT_FALSE(window.to_host(host.data(), memory, info_of(gpu, memory), host.size()));
    expect_copies(window, gpu, memory, 1000, 2);
}

TEST_F(GdrCopyTest, IsOffWithoutItsDriver) {
    gdrapi().open_fails = 1;
    CpuWindow window(gpu, true);
    EXPECT_FALSE(window.usable());
    EXPECT_NE(window.description().find("/dev/gdrdrv"), std::string::npos) << window.description();
    std::byte* const memory = allocate(gpu, 1000);
    std::byte host{};
    EXPECT_FALSE(window.to_device(memory, info_of(gpu, memory), &host, 1));
    window.shut_down();
}

TEST_F(GdrCopyTest, IsOffWhenNotAllowed) {
    CpuWindow window(gpu, false);
    EXPECT_FALSE(window.usable());
    EXPECT_NE(window.description().find("AWAKEN_TEST_CPU_COPY"), std::string::npos) << window.description();
    std::byte* const memory = allocate(gpu, 1000);
    std::byte host{};
    EXPECT_FALSE(window.to_device(memory, info_of(gpu, memory), &host, 1));
    EXPECT_EQ(gdrapi().opened, 0);
}

TEST_F(GdrCopyTest, ADeviceWhereCopiesDoNotArriveIsOff) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 1000, 0);
    std::byte* const other = allocate(gpu, 1000, 1);
    std::byte host{7};
    gdrapi().loses_writes = 1;
    EXPECT_FALSE(window.to_device(memory, info_of(gpu, memory), &host, 1));
    EXPECT_TRUE(window.usable());  // the other device was not tried yet
    gdrapi().loses_writes = 0;
    const int pins = gdrapi().pins;
    EXPECT_FALSE(window.to_host(&host, memory, info_of(gpu, memory), 1));
    EXPECT_EQ(gdrapi().pins, pins);
    gdrapi().spoils_reads = 1;
    EXPECT_FALSE(window.to_host(&host, other, info_of(gpu, other), 1));
    EXPECT_EQ(host, std::byte{7});
    EXPECT_FALSE(window.usable());
    EXPECT_NE(window.description().find("GDRCopy 2.4"), std::string::npos) << window.description();
    EXPECT_NE(window.description().find("device 1"), std::string::npos) << window.description();
    EXPECT_NE(window.description().find("checked copy"), std::string::npos) << window.description();
}

TEST_F(GdrCopyTest, ADeviceThatCannotBeProbedIsOffAndSaysWhy) {
    class SingleGpu final : public WatchedGpu {
      public:
        [[nodiscard]] int device_count() noexcept override { return 1; }
    };
    SingleGpu single;
    for (const char* const function : {"allocate", "create_stream", "copy", "query_stream"}) {
        CpuWindow window(single, true);
        std::byte* const memory = allocate(single, 1000);
        std::byte host{};
        single.fail(function);
        EXPECT_FALSE(window.to_device(memory, info_of(single, memory), &host, 1)) << function;
        EXPECT_FALSE(window.usable());
        EXPECT_NE(window.description().find("injected fault"), std::string::npos) << window.description();
        EXPECT_EQ(single.live_streams(), 0);
        ASSERT_TRUE(single.free(memory).ok());
    }
    CpuWindow window(single, true);
    std::byte* const memory = allocate(single, 1000);
    std::byte host{};
    gdrapi().pin_fails = 1;
    EXPECT_FALSE(window.to_device(memory, info_of(single, memory), &host, 1));
    EXPECT_NE(window.description().find("gdr_pin_buffer: Cannot allocate memory"), std::string::npos)
        << window.description();
    ASSERT_TRUE(single.free(memory).ok());
    window.shut_down();
    EXPECT_EQ(single.live_bytes(gpu::MemoryKind::device), 0u);
}

TEST_F(GdrCopyTest, GivesEverythingBackWhenShutDown) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 1000);
    expect_copies(window, gpu, memory, 1000, 1);
    EXPECT_GT(gdrapi().pinned, 0);
    window.shut_down();
    window.shut_down();
    EXPECT_EQ(gdrapi().pinned, 0);
    EXPECT_EQ(gdrapi().closed, 1);
    EXPECT_FALSE(window.usable());
    std::byte host{};
    EXPECT_FALSE(window.to_host(&host, memory, info_of(gpu, memory), 1));
    EXPECT_EQ(gpu.live_bytes(gpu::MemoryKind::device), 1000u);
}

TEST_F(GdrCopyTest, ADriverThatIsGoneIsNoMatter) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 1000);
    expect_copies(window, gpu, memory, 1000, 1);
    gpu.shut_down();
    std::byte host{};
    EXPECT_FALSE(window.to_host(&host, memory, info_of(gpu, memory), 1));
    window.shut_down();
}

TEST_F(GdrCopyTest, ManyThreadsAtOnce) {
    CpuWindow window(gpu, true);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            // More allocations than mappings are kept, so that they come and go while others are in use.
            std::vector<std::byte*> memory;
            for (int i = 0; i < 24; ++i) {
                memory.push_back(allocate(gpu, 5000));
            }
            std::vector<std::byte> seen(3000);
            for (unsigned round = 0; round < 60; ++round) {
                std::byte* const at = memory[round % memory.size()] + round;
                const std::vector<std::byte> sent = counted(seen.size(), round + thread);
                if (!window.to_device(at, info_of(gpu, at), sent.data(), sent.size()) ||
                    !window.to_host(seen.data(), at, info_of(gpu, at), seen.size()) || seen != sent) {
                    ++wrong;
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
}

TEST_F(GdrCopyTest, ShutDownWhileOthersCopy) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 3 * kMiB);
    const gpu::PointerInfo info = info_of(gpu, memory);
    std::atomic<int> copies{0};
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&] {
            std::vector<std::byte> host(kMiB);
            while (window.to_host(host.data(), memory + kMiB, info, host.size())) {
                ++copies;
            }
        });
    }
    while (copies < 10) {
        std::this_thread::yield();
    }
    window.shut_down();
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(gdrapi().closed, 1);
}

TEST(NoGdrCopyTest, IsOffWithoutTheLibrary) {
    // In a process that was started anew, so that the stand-in is not loaded.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto run = [] {
        WatchedGpu gpu;
        CpuWindow window(gpu, true);
        void* memory = nullptr;
        EXPECT_TRUE(gpu.allocate(0, 1000, memory).ok());
        std::byte host{};
        // A machine may have the real library, which cannot map the emulated GPU's memory.
        EXPECT_FALSE(window.to_device(memory, info_of(gpu, memory), &host, 1));
        EXPECT_FALSE(window.usable());
        const char* const missing = ::access("/dev/gdrdrv", F_OK) == 0 ? "libgdrapi.so" : "/dev/gdrdrv";
        EXPECT_NE(window.description().find(missing), std::string::npos) << window.description();
        std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

// ---- a large BAR ----------------------------------------------------------------------------------------------------

/// A GPU whose device 0 has its memory in the CPU's address space. Each allocation has a block of the driver's to
/// itself, whose memory is mapped a further time, at the address that the program has.
class VisibleGpu final : public WatchedGpu {
  public:
    ~VisibleGpu() override {
        for (const auto& [pointer, bytes] : _shown) {
            hide(pointer, bytes);
        }
    }

    std::atomic<bool> anonymous{false};  ///< allocations have no identity
    std::atomic<bool> hidden{false};     ///< what is allocated now cannot be touched by the CPU after all

    [[nodiscard]] bool works_with_gdrcopy() const noexcept override { return false; }
    gpu::Status device_info(const int device, gpu::DeviceInfo& info) override {
        const gpu::Status status = WatchedGpu::device_info(device, info);
        info.host_visible_memory = device == 0;
        return status;
    }
    gpu::Status allocate(const int device, const std::size_t bytes, void*& pointer) noexcept override {
        const std::size_t whole = (bytes + 2 * kMiB) / (2 * kMiB) * 2 * kMiB;
        const gpu::Status status = WatchedGpu::allocate(device, whole, pointer);
        if (status.ok() && !hidden) {
            EXPECT_EQ(mremap(view(pointer), 0, whole, MREMAP_MAYMOVE | MREMAP_FIXED, pointer), pointer);
            _shown[pointer] = whole;
        }
        return status;
    }
    gpu::Status free(void* const pointer) noexcept override {
        if (const auto shown = _shown.extract(pointer)) {
            hide(pointer, shown.mapped());
        }
        return WatchedGpu::free(pointer);
    }
    void classify(std::span<const void* const> pointers, gpu::PointerInfo* infos) noexcept override {
        WatchedGpu::classify(pointers, infos);
        for (std::size_t i = 0; anonymous && i < pointers.size(); ++i) {
            infos[i].id = 0;
        }
    }

  private:
    static void hide(void* const pointer, const std::size_t bytes) {
        constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
        EXPECT_EQ(mmap(pointer, bytes, PROT_NONE, kFlags, -1, 0), pointer);
    }
    std::map<void*, std::size_t> _shown;
};

class LargeBarTest : public CpuWindowTest {
  protected:
    VisibleGpu gpu;
};

TEST_F(LargeBarTest, CopiesAnyBytesAnywhere) {
    CpuWindow window(gpu, true);
    ASSERT_TRUE(window.usable()) << window.description();
    EXPECT_EQ(window.description(), "large BAR");
    std::byte* const memory = allocate(gpu, 3 * kMiB + 100);
    unsigned seed = 0;
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{4096}, 3 * kMiB}) {
        for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, 3 * kMiB + 100 - bytes}) {
            if (offset + bytes <= 3 * kMiB + 100) {
                expect_copies(window, gpu, memory + offset, bytes, seed += 2);
            }
        }
    }
}

TEST_F(LargeBarTest, MemoryThatIsNotMappedAfterAllIsRefusedNotTouched) {
    CpuWindow window(gpu, true);
    std::byte* const memory = allocate(gpu, 1000);
    expect_copies(window, gpu, memory, 1000, 1);
    gpu.hidden = true;
    std::byte* const unreachable = allocate(gpu, 1000);
    std::array<std::byte, 100> host = {};
    for (int round = 0; round < 2; ++round) {
        EXPECT_FALSE(window.to_device(unreachable, info_of(gpu, unreachable), host.data(), host.size()));
        EXPECT_FALSE(window.to_host(host.data(), unreachable, info_of(gpu, unreachable), host.size()));
    }
    EXPECT_TRUE(window.usable());
    expect_copies(window, gpu, memory, 1000, 2);
}

TEST_F(LargeBarTest, ADeviceWhoseMemoryIsNotMappedAfterAllIsOff) {
    gpu.hidden = true;
    CpuWindow window(gpu, true);
    ASSERT_TRUE(window.usable());
    std::byte* const memory = allocate(gpu, 1000);
    std::byte host{};
    EXPECT_FALSE(window.to_device(memory, info_of(gpu, memory), &host, 1));
    EXPECT_FALSE(window.usable());  // the other device has no large BAR
    EXPECT_NE(window.description().find("not mapped for the CPU"), std::string::npos) << window.description();
}

TEST_F(LargeBarTest, OfDevicesThatHaveOneOnly) {
    CpuWindow window(gpu, true);
    std::byte* const other = allocate(gpu, 1000, 1);
    std::byte host{};
    EXPECT_FALSE(window.to_device(other, info_of(gpu, other), &host, 1));
    EXPECT_TRUE(window.usable());
    expect_copies(window, gpu, allocate(gpu, 1000, 0), 1000, 1);
}

TEST_F(LargeBarTest, MemoryWithoutAnIdentityIsLookedAtEachTime) {
    CpuWindow window(gpu, true);
    gpu.anonymous = true;
    std::byte* memory = allocate(gpu, 1000);
    expect_copies(window, gpu, memory, 1000, 1);
    ASSERT_TRUE(gpu.free(memory).ok());
    gpu.hidden = true;
    memory = allocate(gpu, 1000);
    std::byte host{};
    EXPECT_FALSE(window.to_host(&host, memory, info_of(gpu, memory), 1));
}

TEST_F(LargeBarTest, IsOffWhereThereIsNone) {
    class HiddenGpu final : public WatchedGpu {
      public:
        [[nodiscard]] bool works_with_gdrcopy() const noexcept override { return false; }
    };
    HiddenGpu hidden;
    const CpuWindow window(hidden, true);
    EXPECT_FALSE(window.usable());
    EXPECT_NE(window.description().find("no large BAR"), std::string::npos) << window.description();
    const CpuWindow none(gpu::none(), true);
    EXPECT_FALSE(none.usable());
    EXPECT_EQ(none.description(), "no GPU");
}

}  // namespace
}  // namespace awaken::transfer
