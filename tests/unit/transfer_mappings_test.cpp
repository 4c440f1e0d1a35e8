// SPDX-License-Identifier: Apache-2.0
// Mappings of other processes' memory: reused while their allocation lives, never after, and given back in time.
#include "transfer/mappings.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "forwarding_gpu.h"
#include "gpu/gpu.h"

namespace awaken::transfer {
namespace {

using namespace std::chrono_literals;

/// The none runtime with IPC that maps a handle once at a time, as drivers do.
class IpcGpu final : public test::ForwardingGpu {
  public:
    IpcGpu() : ForwardingGpu(gpu::none()) {}

    std::atomic<int> failing_opens{0};

    [[nodiscard]] std::size_t open_mappings() const {
        const std::scoped_lock lock(_mutex);
        return _open.size();
    }
    [[nodiscard]] int opens() const {
        const std::scoped_lock lock(_mutex);
        return _opens;
    }

    /// Holds back calls that open this handle, until released.
    void hold(const unsigned char handle) {
        const std::scoped_lock lock(_mutex);
        _held = handle;
    }
    /// Holds back questions whether a device is idle, until released.
    void hold_questions() {
        const std::scoped_lock lock(_mutex);
        _holds_questions = true;
    }
    void release() {
        {
            const std::scoped_lock lock(_mutex);
            _held = 0;
            _holds_questions = false;
        }
        _changed.notify_all();
    }
    void wait_until_one_is_held() {
        std::unique_lock lock(_mutex);
        _changed.wait(lock, [this] { return _waiting; });
    }

    gpu::Status ipc_open(const gpu::IpcMemoryHandle& handle, int, void*& base) noexcept override {
        std::unique_lock lock(_mutex);
        if (_held != 0 && static_cast<unsigned char>(handle.bytes[0]) == _held) {
            _waiting = true;
            _changed.notify_all();
            _changed.wait(lock, [this] { return _held == 0; });
        }
        if (failing_opens > 0) {
            --failing_opens;
            return {2, "cuIpcOpenMemHandle", "out of memory"};
        }
        const std::vector<unsigned char> key(std::begin(handle.bytes), std::end(handle.bytes));
        for (const auto& [address, open] : _open) {
            if (open == key) {
                return {1, "cuIpcOpenMemHandle", "already mapped"};
            }
        }
        base = reinterpret_cast<void*>(static_cast<std::uintptr_t>(0x10000) * static_cast<unsigned>(++_opens));
        _open[base] = key;
        return {};
    }
    gpu::Status ipc_close(void* base) noexcept override {
        const std::scoped_lock lock(_mutex);
        if (busy) {
            ++would_wait;
        }
        return _open.erase(base) == 1 ? gpu::Status{} : gpu::Status{1, "cuIpcCloseMemHandle", "not mapped"};
    }

    [[nodiscard]] bool is_idle(int, std::chrono::microseconds) noexcept override {
        std::unique_lock lock(_mutex);
        if (_holds_questions) {
            _waiting = true;
            _changed.notify_all();
            _changed.wait(lock, [this] { return !_holds_questions; });
        }
        return !busy;
    }

    /// As while a kernel runs.
    std::atomic<bool> busy{false};
    std::atomic<int> would_wait{0};  ///< calls that would have waited for it

    [[nodiscard]] gpu::Vendor vendor() const noexcept override { return gpu::Vendor::cuda; }
    [[nodiscard]] int device_count() noexcept override { return 2; }

  private:
    mutable std::mutex _mutex;
    std::condition_variable _changed;
    unsigned char _held = 0;
    bool _holds_questions = false;
    bool _waiting = false;
    std::map<void*, std::vector<unsigned char>> _open;
    int _opens = 0;
};

Location location(unsigned char handle, std::uint64_t allocation, std::uint64_t bytes, std::uint64_t offset = 0) {
    Location result{};
    result.kind = Location::Kind::device;
    result.handle[0] = handle;
    result.allocation_id = allocation;
    result.allocation_bytes = bytes;
    result.offset = offset;
    return result;
}

class MappingsTest : public ::testing::Test {
  protected:
    static constexpr Mappings::Limits kLimits{.bytes = 1000, .count = 4, .idle = std::chrono::milliseconds(50)};
    /// Nothing is idle for so long.
    static constexpr Mappings::Limits kPatient{.bytes = 1000, .count = 4, .idle = std::chrono::hours(1)};

    IpcGpu gpu;
    gpu::Status status;
};

TEST_F(MappingsTest, IsOpenedOnceAndPointsAtTheBytes) {
    Mappings mappings(gpu, kPatient);
    const auto first = mappings.open(1, location(7, 70, 100, 16), 0, status);
    ASSERT_TRUE(first) << status.message();
    const auto second = mappings.open(1, location(7, 70, 100, 32), 0, status);
    ASSERT_TRUE(second);
    EXPECT_EQ(second.data() - first.data(), 16);
    EXPECT_EQ(gpu.opens(), 1);
    EXPECT_EQ(mappings.statistics().reused, 1u);
}

TEST_F(MappingsTest, AnotherAllocationBehindTheSameHandleIsMappedAnew) {
    Mappings mappings(gpu, kPatient);
    mappings.open(1, location(7, 70, 100), 0, status).release();
    EXPECT_TRUE(mappings.open(1, location(7, 71, 100), 0, status)) << status.message();
    EXPECT_EQ(gpu.opens(), 2);
    EXPECT_EQ(gpu.open_mappings(), 1u);
    // The same identity with another size cannot be the same allocation.
    EXPECT_TRUE(mappings.open(1, location(7, 71, 200), 0, status)) << status.message();
    EXPECT_EQ(mappings.statistics().closed_stale, 2u);
}

TEST_F(MappingsTest, OwnersAndDevicesAreKeptApart) {
    Mappings mappings(gpu, kPatient);
    const auto one = mappings.open(1, location(7, 70, 100), 0, status);
    const auto other = mappings.open(2, location(8, 70, 100), 0, status);
    ASSERT_TRUE(one);
    ASSERT_TRUE(other);
    EXPECT_NE(one.data(), other.data());
}

TEST_F(MappingsTest, StaysWithinItsBounds) {
    Mappings mappings(gpu, kPatient);
    for (unsigned char handle = 1; handle <= 20; ++handle) {
        EXPECT_TRUE(mappings.open(1, location(handle, handle, 240), 0, status)) << status.message();
        EXPECT_LE(gpu.open_mappings(), 4u);
    }
    for (unsigned char handle = 100; handle < 120; ++handle) {
        EXPECT_TRUE(mappings.open(1, location(handle, handle, 1), 0, status));
        EXPECT_LE(gpu.open_mappings(), 4u);
    }
    EXPECT_GT(mappings.statistics().closed_for_room, 30u);
}

TEST_F(MappingsTest, TheLeastRecentlyUsedGoesFirst) {
    Mappings mappings(gpu, kPatient);
    for (unsigned char handle = 1; handle <= 4; ++handle) {
        mappings.open(1, location(handle, handle, 10), 0, status).release();
    }
    mappings.open(1, location(1, 1, 10), 0, status).release();
    mappings.open(1, location(5, 5, 10), 0, status).release();  // makes room: 2 goes
    const int opens = gpu.opens();
    mappings.open(1, location(1, 1, 10), 0, status).release();
    EXPECT_EQ(gpu.opens(), opens);
    mappings.open(1, location(2, 2, 10), 0, status).release();
    EXPECT_EQ(gpu.opens(), opens + 1);
}

TEST_F(MappingsTest, WhatIsInUseIsNotClosed) {
    Mappings mappings(gpu, kLimits);
    std::vector<Mappings::Use> uses;
    for (unsigned char handle = 1; handle <= 8; ++handle) {
        uses.push_back(mappings.open(1, location(handle, handle, 200), 0, status));
        ASSERT_TRUE(uses.back());
    }
    EXPECT_EQ(gpu.open_mappings(), 8u);
    mappings.trim();
    EXPECT_EQ(gpu.open_mappings(), 8u);
    uses.clear();
    mappings.trim();
    EXPECT_EQ(gpu.open_mappings(), 0u);
}

TEST_F(MappingsTest, ALargeAllocationIsLetGoAfterItsFirstUseAndKeptAfterItsSecond) {
    Mappings mappings(gpu, kPatient);
    mappings.open(1, location(7, 70, 800), 0, status).release();
    mappings.reclaim();
    EXPECT_EQ(gpu.open_mappings(), 0u);  // its owner may free it now
    mappings.open(1, location(7, 70, 800), 0, status).release();
    EXPECT_EQ(gpu.open_mappings(), 1u);
    mappings.open(1, location(7, 70, 800), 0, status).release();
    EXPECT_EQ(gpu.opens(), 2);
    // One beyond the bound is never kept.
    for (int round = 0; round < 3; ++round) {
        mappings.open(1, location(9, 90, 5000), 0, status).release();
        mappings.reclaim();
        EXPECT_EQ(gpu.open_mappings(), 0u);
    }
}

TEST_F(MappingsTest, IdleOnesAreClosedByCallsForOthers) {
    Mappings mappings(gpu, kLimits);
    mappings.open(1, location(7, 70, 100), 0, status).release();
    const auto all_closed = [&] {
        const auto limit = std::chrono::steady_clock::now() + 60s;
        while (gpu.open_mappings() != 0 && std::chrono::steady_clock::now() < limit) {
            mappings.reclaim();
        }
        return gpu.open_mappings() == 0;
    };
    EXPECT_TRUE(all_closed());
    EXPECT_EQ(mappings.statistics().closed_idle, 1u);
    // And again after there was nothing to do.
    mappings.open(1, location(8, 80, 100), 0, status).release();
    EXPECT_TRUE(all_closed());
}

/// Closing waits for the program's kernels. One of these may wait for what the program does after its MPI call.
TEST_F(MappingsTest, NothingIsClosedWhileTheDeviceIsBusy) {
    Mappings mappings(gpu, kPatient);
    mappings.open(1, location(7, 70, 300), 0, status).release();
    auto other = mappings.open(1, location(8, 80, 10), 0, status);
    gpu.busy = true;
    // What needs none of them closed goes on.
    other.release();
    EXPECT_TRUE(mappings.open(1, location(8, 80, 10), 0, status));
    EXPECT_TRUE(mappings.open(1, location(9, 90, 10), 0, status));
    // The old allocation is gone: the new one cannot be mapped yet, and says so as often as it is asked.
    for (int round = 0; round < 2; ++round) {
        EXPECT_FALSE(mappings.open(1, location(7, 71, 300), 0, status));
        EXPECT_EQ(status.code, gpu::kBusy);
    }
    // No more is mapped than may be.
    EXPECT_FALSE(mappings.open(1, location(10, 100, 900), 0, status));
    EXPECT_EQ(status.code, gpu::kBusy);
    mappings.reclaim();
    mappings.trim();
    EXPECT_EQ(gpu.would_wait, 0);
    gpu.busy = false;
    EXPECT_TRUE(mappings.open(1, location(7, 71, 300), 0, status)) << status.message();
    mappings.shut_down();
    EXPECT_EQ(gpu.open_mappings(), 0u);
}

TEST_F(MappingsTest, WhatCannotBeClosedInTheEndIsLeft) {
    Mappings mappings(gpu, kPatient);
    mappings.open(1, location(7, 70, 100), 0, status).release();
    gpu.busy = true;
    mappings.shut_down();
    EXPECT_EQ(gpu.open_mappings(), 1u);
    EXPECT_EQ(gpu.would_wait, 0);
}

TEST_F(MappingsTest, SaysWhyItCannotBeMapped) {
    Mappings mappings(gpu, kPatient);
    gpu.failing_opens = 1;
    const auto use = mappings.open(1, location(7, 70, 100), 0, status);
    EXPECT_FALSE(use);
    EXPECT_NE(status.message().find("out of memory"), std::string::npos);
    EXPECT_TRUE(mappings.open(1, location(7, 70, 100), 0, status));
}

TEST_F(MappingsTest, ClosesEverythingWhenShutDown) {
    Mappings mappings(gpu, kPatient);
    for (unsigned char handle = 1; handle <= 3; ++handle) {
        mappings.open(1, location(handle, handle, 10), 0, status).release();
    }
    mappings.shut_down();
    mappings.shut_down();
    EXPECT_EQ(gpu.open_mappings(), 0u);
}

TEST_F(MappingsTest, NobodyElseWaitsWhileOneIsOpened) {
    Mappings mappings(gpu, kPatient);
    const auto other = mappings.open(1, location(8, 80, 100), 0, status);
    ASSERT_TRUE(other);
    gpu.hold(7);
    std::vector<std::byte*> found(2);
    const auto open_held = [&](const std::size_t place) {
        gpu::Status own;
        const auto use = mappings.open(1, location(7, 70, 100), 0, own);
        found[place] = use.data();
    };
    std::thread first(open_held, 0);
    gpu.wait_until_one_is_held();
    std::thread second(open_held, 1);  // the runtime would refuse to open the same handle again
    {
        const auto reused = mappings.open(1, location(8, 80, 100), 0, status);
        EXPECT_TRUE(reused) << status.message();
        const auto opened = mappings.open(2, location(9, 90, 100), 0, status);
        EXPECT_TRUE(opened) << status.message();
    }
    gpu.release();
    first.join();
    second.join();
    EXPECT_NE(found[0], nullptr);
    EXPECT_EQ(found[0], found[1]);
    EXPECT_EQ(gpu.opens(), 3);
}

/// Whether the device is idle is asked for up to gpu::kPatience.
TEST_F(MappingsTest, NobodyElseWaitsWhileOneIsClosed) {
    Mappings mappings(gpu, kPatient);
    const auto other = mappings.open(1, location(8, 80, 100), 0, status);
    ASSERT_TRUE(other);
    mappings.open(1, location(7, 70, 100), 0, status).release();
    gpu.hold_questions();
    std::vector<std::byte*> found(2);
    std::vector<std::thread> threads;
    const auto open_another_behind_the_handle = [&](const std::size_t place) {
        gpu::Status own;
        const auto use = mappings.open(1, location(7, 71, 100), 0, own);
        found[place] = use.data();
    };
    threads.emplace_back(open_another_behind_the_handle, 0);
    gpu.wait_until_one_is_held();
    threads.emplace_back(open_another_behind_the_handle, 1);
    EXPECT_TRUE(mappings.open(1, location(8, 80, 100), 0, status)) << status.message();
    EXPECT_TRUE(mappings.open(2, location(9, 90, 100), 0, status)) << status.message();
    mappings.trim();
    mappings.reclaim();
    EXPECT_EQ(gpu.opens(), 3);  // nobody takes the old one for closed
    gpu.release();
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_NE(found[0], nullptr);
    EXPECT_EQ(found[0], found[1]);
    EXPECT_EQ(gpu.opens(), 4);
    EXPECT_EQ(mappings.statistics().closed_stale, 1U);
    mappings.shut_down();
    EXPECT_EQ(gpu.open_mappings(), 1U);  // the one in use
}

TEST_F(MappingsTest, WhoWaitedForAFailedOpeningTriesAgain) {
    Mappings mappings(gpu, kPatient);
    gpu.hold(7);
    gpu.failing_opens = 1;
    std::atomic<int> opened{0};
    const auto open_held = [&] {
        gpu::Status own;
        opened += mappings.open(1, location(7, 70, 100), 0, own) ? 1 : 0;
    };
    std::thread first(open_held);
    gpu.wait_until_one_is_held();
    std::thread second(open_held);
    gpu.release();
    first.join();
    second.join();
    EXPECT_EQ(opened, 1);
    EXPECT_EQ(gpu.opens(), 1);
}

TEST_F(MappingsTest, ManyThreadsAtOnce) {
    Mappings mappings(gpu, kLimits);
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (int round = 0; round < 2000; ++round) {
                gpu::Status own;
                // Handles of their own: what a driver does with one handle in two threads is its own affair.
                const auto handle = static_cast<unsigned char>(1 + thread * 8 + round % 8);
                const auto use = mappings.open(thread, location(handle, handle, 100), 0, own);
                if (!use) {
                    ++failures;
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(failures, 0);
    mappings.shut_down();
    EXPECT_EQ(gpu.open_mappings(), 0u);
}

}  // namespace
}  // namespace awaken::transfer
