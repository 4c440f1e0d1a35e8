// SPDX-License-Identifier: Apache-2.0
// Host mirrors of device memory: what the program stores and what others put meet byte by byte, and neither is lost.
#include "rma/device/host_mirror.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "random_layout.h"
#include "watched_gpu.h"

namespace awaken::rma {
namespace {

using test::pick;
using test::Random;

/// Each run of bytes that others have put is a copy to wait for: there are too many for operations that are late.
gpu::Runtime& prompt_gpu() {
    static const int set = setenv("AWAKEN_TEST_DELAYS", "1:0", 1);
    static_cast<void>(set);
    return emulator_test::emulated();
}

class ShadowTest : public ::testing::Test {
  protected:
    ~ShadowTest() override { copies.shut_down(); }

    /// `bytes` bytes of device memory with random content, `lead` bytes into an allocation.
    void allocate(const std::size_t lead, const std::size_t bytes) {
        void* memory = nullptr;
        ASSERT_TRUE(gpu.allocate(0, lead + bytes, memory).ok());
        allocation = static_cast<std::byte*>(memory);
        device = allocation + lead;
        info = emulator_test::info_of(gpu, device);
        for (std::size_t at = 0; at < bytes; ++at) {
            seen()[at] = static_cast<std::byte>(random());
        }
        expected.assign(seen(), seen() + bytes);
    }
    /// The device memory as the CPU reaches it.
    [[nodiscard]] std::byte* seen() const { return emulator_test::view(device); }
    [[nodiscard]] bool both_are_as_expected(const HostMirror& mirror) const {
        return std::memcmp(seen(), expected.data(), expected.size()) == 0 &&
               std::memcmp(mirror.data(), expected.data(), expected.size()) == 0;
    }

    emulator_test::WatchedGpu gpu{prompt_gpu()};
    transfer::PinnedPool pool{std::size_t{16} << 20};
    transfer::DeviceCopies copies{gpu, pool, transfer::Tuning{}, transfer::CopyEngine::automatic};
    transfer::Copier copier{gpu, copies, pool};
    const HostMirror::Resources resources{gpu, copier, pool};
    Random random{7};
    std::byte* allocation = nullptr;
    std::byte* device = nullptr;
    gpu::PointerInfo info;
    std::vector<std::byte> expected;
};

TEST_F(ShadowTest, BeginsAsTheDeviceMemoryAndIsAlignedLikeIt) {
    allocate(24, 5000);
    const auto mirror = HostMirror::make(resources, device, 5000, info);
    ASSERT_NE(mirror, nullptr);
    EXPECT_TRUE(both_are_as_expected(*mirror));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mirror->data()) % 256, reinterpret_cast<std::uintptr_t>(device) % 256);
}

TEST_F(ShadowTest, ChangesOfBothSidesMeetByteByByte) {
    // Over more than one chunk, not aligned to anything.
    constexpr std::size_t kBytes = (std::size_t{2} << 20) + 4099;
    allocate(3, kBytes);
    const auto mirror = HostMirror::make(resources, device, kBytes, info);
    for (int round = 0; round < 12; ++round) {
        // Stretches of all lengths, in which either side, both or nobody changes bytes.
        for (std::size_t at = static_cast<std::size_t>(pick(random, 0, 60000)); at < kBytes;) {
            const auto end = std::min(kBytes, at + static_cast<std::size_t>(pick(random, 1, 300)));
            const auto who = pick(random, 0, 3);
            for (; at < end; ++at) {
                const bool stores = who == 0 || (who == 2 && random() % 2 == 0);
                const bool puts = !stores && (who == 1 || (who == 2 && random() % 2 == 0));
                if (!stores && !puts) {
                    continue;
                }
                expected[at] = static_cast<std::byte>(random());
                (stores ? seen() : mirror->data())[at] = expected[at];
            }
            at += static_cast<std::size_t>(pick(random, 0, round % 2 == 0 ? 200 : 90000));
        }
        EXPECT_GE(mirror->reconcile(), kBytes);
        ASSERT_TRUE(both_are_as_expected(*mirror)) << "round " << round;
    }
}

TEST_F(ShadowTest, APartIsReconciledAndNothingElse) {
    allocate(0, 3000);
    const auto mirror = HostMirror::make(resources, device, 3000, info);
    seen()[10] = expected[10] = ~expected[10];
    seen()[2000] = ~expected[2000];
    mirror->data()[11] = expected[11] = ~expected[11];
    mirror->data()[2001] = ~expected[2001];
    EXPECT_EQ(mirror->reconcile(5, 100), 95u + 1u);
    EXPECT_EQ(mirror->data()[10], expected[10]);
    EXPECT_EQ(seen()[11], expected[11]);
    EXPECT_EQ(mirror->data()[2000], expected[2000]);
    EXPECT_EQ(seen()[2001], expected[2001]);
    expected[2000] = ~expected[2000];
    expected[2001] = ~expected[2001];
    static_cast<void>(mirror->reconcile());
    EXPECT_TRUE(both_are_as_expected(*mirror));
}

TEST_F(ShadowTest, WritesToTheDeviceOnlyWhatOthersHavePut) {
    allocate(0, 8192);
    const auto mirror = HostMirror::make(resources, device, 8192, info);
    gpu.reset_calls();
    static_cast<void>(mirror->reconcile());
    EXPECT_EQ(gpu.calls("copy"), 1) << "with nothing to write it is read, and no more";
    seen()[7] = expected[7] = ~expected[7];
    gpu.reset_calls();
    static_cast<void>(mirror->reconcile());
    EXPECT_EQ(gpu.calls("copy"), 1) << "what the program stores is not written back";
    std::memset(mirror->data() + 100, 1, 50);
    std::memset(expected.data() + 100, 1, 50);
    static_cast<void>(mirror->reconcile());
    EXPECT_TRUE(both_are_as_expected(*mirror));
}

TEST_F(ShadowTest, FindsTheShadowOfAnAddress) {
    allocate(64, 1000);
    const auto mirror = HostMirror::make(resources, device, 1000, info);
    EXPECT_EQ(mirror->of(device, 1000), mirror->data());
    EXPECT_EQ(mirror->of(device + 990, 10), mirror->data() + 990);
    EXPECT_EQ(mirror->of(device + 990, 11), nullptr);
    EXPECT_EQ(mirror->of(device - 1, 1), nullptr);
}

TEST_F(ShadowTest, MemoryThatComesLaterGoesBeforeTheDevices) {
    allocate(0, 4096);
    const auto mirror = HostMirror::make_for_later(resources, device, 4096, info);
    ASSERT_NE(mirror, nullptr);
    std::vector<std::byte> memory(4096, std::byte{5});
    mirror->stand_in(memory.data());
    static_cast<void>(mirror->reconcile());
    expected = memory;
    EXPECT_TRUE(both_are_as_expected(*mirror));
}

TEST_F(ShadowTest, LosesNothingWhenTheGpuRefuses) {
    allocate(0, 4096);
    const auto mirror = HostMirror::make(resources, device, 4096, info);
    seen()[1] = expected[1] = ~expected[1];
    for (const std::size_t put : {2, 900, 1000}) {
        mirror->data()[put] = expected[put] = ~expected[put];
    }
    for (const int succeeding : {0, 1}) {
        gpu.fail("copy", succeeding);  // reading the device, and writing to it
        EXPECT_THROW(static_cast<void>(mirror->reconcile()), Error);
    }
    static_cast<void>(mirror->reconcile());
    EXPECT_TRUE(both_are_as_expected(*mirror));
}

TEST_F(ShadowTest, NothingIsLostThatIsPutMeanwhile) {
    // Others count in every second number; the program counts in those between, half a word apart.
    constexpr std::size_t kNumbers = 64, kTimes = 200000;  // few: to meet often
    allocate(0, kNumbers * sizeof(std::uint32_t));
    std::memset(seen(), 0, kNumbers * sizeof(std::uint32_t));
    const auto mirror = HostMirror::make(resources, device, kNumbers * sizeof(std::uint32_t), info);
    auto* const numbers = reinterpret_cast<std::uint32_t*>(mirror->data());
    std::atomic<bool> done{false};
    std::thread others([&] {
        for (std::size_t time = 0; time < kTimes; ++time) {
            for (std::size_t at = 1; at < kNumbers; at += 2) {
                std::atomic_ref(numbers[at]).fetch_add(1);
            }
        }
        done = true;
    });
    auto* const own = reinterpret_cast<std::uint32_t*>(seen());
    std::uint32_t stored = 0;
    while (!done) {
        ++stored;
        for (std::size_t at = 0; at < kNumbers; at += 2) {
            own[at] = stored;
        }
        static_cast<void>(mirror->reconcile());
    }
    others.join();
    static_cast<void>(mirror->reconcile());
    for (std::size_t at = 0; at < kNumbers; ++at) {
        ASSERT_EQ(own[at], at % 2 == 0 ? stored : kTimes) << at;
        ASSERT_EQ(numbers[at], own[at]) << at;
    }
}

}  // namespace
}  // namespace awaken::rma
