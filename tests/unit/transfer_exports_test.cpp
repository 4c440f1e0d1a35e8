// SPDX-License-Identifier: Apache-2.0
// Device memory for other processes to map: what is said of it is right, remembered no longer than the allocation
// lives, and the layer's own blocks stay within their bound.
#include "transfer/exports.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gpu/gpu.h"
#include "transfer/mappings.h"
#include "watched_gpu.h"

namespace awaken::transfer {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMiB = std::size_t{1} << 20;

using Handle = std::array<std::byte, sizeof(gpu::IpcMemoryHandle)>;

/// The emulated GPU, which remembers what it has exported. Mappings for descriptors are made up.
class ExportingGpu final : public emulator_test::WatchedGpu {
  public:
    std::atomic<int> exports{0};
    std::atomic<bool> anonymous{false};  ///< allocations have no identity, as with some versions of HIP
    std::atomic<std::size_t> lead{0};    ///< what is exported begins so far before the allocation

    /// Where what the handle stands for begins.
    [[nodiscard]] std::uintptr_t start_of(const Location& location) {
        Handle handle;
        std::memcpy(handle.data(), location.handle.data(), sizeof handle);
        const std::scoped_lock lock(_exported_mutex);
        return _exported[handle];
    }

    gpu::Status ipc_export(const void* pointer, gpu::IpcMemoryHandle& handle, std::size_t& offset) noexcept override {
        ++exports;
        const gpu::Status status = WatchedGpu::ipc_export(pointer, handle, offset);
        if (status.ok()) {
            offset += lead;
            Handle key;
            std::memcpy(key.data(), handle.bytes, sizeof key);
            const std::scoped_lock lock(_exported_mutex);
            _exported[key] = reinterpret_cast<std::uintptr_t>(pointer) - offset;
        }
        return status;
    }
    void classify(std::span<const void* const> pointers, gpu::PointerInfo* infos) noexcept override {
        WatchedGpu::classify(pointers, infos);
        for (std::size_t i = 0; anonymous && i < pointers.size(); ++i) {
            infos[i].id = 0;
        }
    }

    // Mappings of kMapping bytes, each with an identity of its own.
    static constexpr std::size_t kMapping = 4096;
    std::map<std::uintptr_t, std::uint64_t> remapped;  ///< mappings that were made anew, with their identities
    std::set<std::uint64_t> open;                      ///< numbers of the handles that are not over
    std::uint64_t handles = 0;
    int holds = 0;

    gpu::Status find_run(int, const void* pointer, const std::size_t bytes, gpu::MappedRun& run) noexcept override {
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);
        run.base = address / kMapping * kMapping;
        run.size = (address + bytes + kMapping - 1) / kMapping * kMapping - run.base;
        run.id = 0;
        for (std::uintptr_t at = run.base; at < run.base + run.size; at += kMapping) {
            run.id = run.id * 31 + (remapped.contains(at) ? remapped[at] : at);
        }
        return {};
    }
    gpu::Status export_run(int, const gpu::MappedRun&, gpu::IpcMemoryHandle& handle) noexcept override {
        ++exports;
        ++holds;
        open.insert(++handles);
        std::memcpy(handle.bytes, &handles, sizeof handles);
        return {};
    }
    bool hold_export(const gpu::IpcMemoryHandle& handle) noexcept override {
        return open.contains(number_of(handle)) && ++holds > 0;
    }
    void release_export(const gpu::IpcMemoryHandle&, std::size_t) noexcept override { --holds; }
    void end_export(const gpu::IpcMemoryHandle& handle) noexcept override { open.erase(number_of(handle)); }
    static std::uint64_t number_of(const gpu::IpcMemoryHandle& handle) {
        std::uint64_t number = 0;
        std::memcpy(&number, handle.bytes, sizeof number);
        return number;
    }

  private:
    std::mutex _exported_mutex;
    std::map<Handle, std::uintptr_t> _exported;
};

class ExportsTest : public ::testing::Test {
  protected:
    std::byte* allocate(const std::size_t bytes) {
        void* pointer = nullptr;
        EXPECT_TRUE(gpu.allocate(0, bytes, pointer).ok());
        return static_cast<std::byte*>(pointer);
    }
    gpu::PointerInfo info_of(const void* pointer) { return emulator_test::info_of(gpu, pointer); }
    gpu::Status describe(const void* pointer) { return exports.describe(pointer, info_of(pointer), location); }

    ExportingGpu gpu;
    Exports exports{gpu};
    Location location;
};

// ---- allocations of the program -------------------------------------------------------------------------------------

TEST_F(ExportsTest, SaysWhereAPointerLiesInItsAllocation) {
    void* pointer = nullptr;
    ASSERT_TRUE(gpu.allocate(1, 10000, pointer).ok());
    auto* const memory = static_cast<std::byte*>(pointer);
    ASSERT_TRUE(describe(memory + 4321).ok());
    EXPECT_EQ(location.kind, Location::Kind::device);
    EXPECT_EQ(location.device, 1);
    EXPECT_EQ(location.allocation_id, info_of(memory).id);
    EXPECT_EQ(location.allocation_bytes, 10000u);
    EXPECT_EQ(location.offset, 4321u);
    EXPECT_EQ(gpu.start_of(location), reinterpret_cast<std::uintptr_t>(memory));
}

TEST_F(ExportsTest, CountsFromTheStartOfWhatIsMappedWhenThatIsMoreThanTheAllocation) {
    std::byte* const memory = allocate(10000);
    gpu.lead = 512;
    ASSERT_TRUE(describe(memory + 1000).ok());
    EXPECT_EQ(location.offset, 1512u);
    EXPECT_EQ(gpu.start_of(location) + location.offset, reinterpret_cast<std::uintptr_t>(memory) + 1000);
    EXPECT_LE(location.offset + 9000, location.allocation_bytes);
    EXPECT_GT(location.offset + 9001, location.allocation_bytes);
}

TEST_F(ExportsTest, AsksTheRuntimeOncePerAllocation) {
    std::byte* const memory = allocate(10000);
    std::byte* const other = allocate(10000);
    for (std::size_t offset = 0; offset < 100; ++offset) {
        ASSERT_TRUE(describe(memory + offset).ok());
        EXPECT_EQ(location.offset, offset);
        ASSERT_TRUE(describe(other + offset).ok());
        EXPECT_EQ(gpu.start_of(location), reinterpret_cast<std::uintptr_t>(other));
    }
    EXPECT_EQ(gpu.exports, 2);
}

TEST_F(ExportsTest, AnotherAllocationAtTheSameAddressIsAskedAboutAnew) {
    std::byte* const memory = allocate(10000);
    gpu::PointerInfo info = info_of(memory);
    ASSERT_TRUE(exports.describe(memory, info, location).ok());
    ++info.id;
    ASSERT_TRUE(exports.describe(memory, info, location).ok());
    EXPECT_EQ(location.allocation_id, info.id);
    EXPECT_EQ(gpu.exports, 2);
    info.size = 20000;
    ASSERT_TRUE(exports.describe(memory, info, location).ok());
    EXPECT_EQ(location.allocation_bytes, 20000u);
    EXPECT_EQ(gpu.exports, 3);
    // And the same number at another address is not the allocation that had it.
    std::byte* const other = allocate(10000);
    info.base = reinterpret_cast<std::uintptr_t>(other);
    ASSERT_TRUE(exports.describe(other, info, location).ok());
    EXPECT_EQ(gpu.start_of(location), info.base);
}

TEST_F(ExportsTest, MemoryWithoutAnIdentityIsAskedAboutEachTime) {
    std::byte* const memory = allocate(10000);
    gpu.anonymous = true;
    ASSERT_TRUE(describe(memory).ok());
    ASSERT_TRUE(describe(memory).ok());
    EXPECT_EQ(location.allocation_id, 0u);
    EXPECT_EQ(gpu.exports, 2);
}

/// Memory that descriptors export: mappings side by side.
class MappedExportsTest : public ExportsTest {
  protected:
    MappedExportsTest() {
        info.kind = gpu::MemoryKind::device;
        info.device = 1;
        info.descriptor_capable = true;
    }
    gpu::Status describe(const std::uintptr_t address, const std::size_t bytes) {
        return exports->describe(reinterpret_cast<const void*>(address), bytes, info, location, hold);
    }
    static constexpr std::uintptr_t kBase = std::uintptr_t{1} << 40;
    static constexpr std::size_t kMapping = ExportingGpu::kMapping;
    gpu::PointerInfo info;
    std::optional<Exports> exports{std::in_place, gpu};
    std::unique_ptr<Exports::Hold> hold;
};

TEST_F(MappedExportsTest, TheMappingsThatHoldTheBytesAreExported) {
    ASSERT_TRUE(describe(kBase + kMapping + 10, 2 * kMapping).ok());
    EXPECT_EQ(location.kind, Location::Kind::device);
    EXPECT_EQ(location.device, 1);
    EXPECT_EQ(location.by_descriptors, 1u);
    EXPECT_EQ(location.offset, 10u);
    EXPECT_EQ(location.allocation_bytes, 3 * kMapping);
    EXPECT_EQ(location.address, 0u) << "overlapping runs must not displace each other";
    // The same mappings, other bytes of them, and other mappings.
    const std::uint64_t id = location.allocation_id;
    ASSERT_TRUE(describe(kBase + kMapping + 90, 2 * kMapping).ok());
    EXPECT_EQ(location.allocation_id, id);
    EXPECT_EQ(location.offset, 90u);
    EXPECT_EQ(gpu.exports, 1);
    ASSERT_TRUE(describe(kBase + kMapping + 10, 10).ok());
    EXPECT_NE(location.allocation_id, id);
    EXPECT_EQ(location.allocation_bytes, kMapping);
    EXPECT_EQ(gpu.exports, 2);
    EXPECT_EQ(gpu.open.size(), 2u);
    EXPECT_EQ(gpu.holds, 1) << "of the last description";
    hold.reset();
    EXPECT_EQ(gpu.holds, 0);
    exports.reset();
    EXPECT_TRUE(gpu.open.empty()) << "nothing stays open";
}

TEST_F(MappedExportsTest, AMappingThatWasMadeAnewIsExportedAnewAndTheOldOneClosed) {
    ASSERT_TRUE(describe(kBase, 3 * kMapping).ok());
    const Location before = location;
    gpu.remapped[kBase + 2 * kMapping] = 77;
    ASSERT_TRUE(describe(kBase, 3 * kMapping).ok());
    EXPECT_NE(location.allocation_id, before.allocation_id);
    EXPECT_NE(location.handle, before.handle);
    EXPECT_EQ(gpu.exports, 2);
    EXPECT_EQ(gpu.open.size(), 1u);
}

TEST_F(MappedExportsTest, AHandleThatTheRuntimeHasClosedIsMadeAnew) {
    ASSERT_TRUE(describe(kBase, 10).ok());
    const Location before = location;
    gpu.open.clear();
    ASSERT_TRUE(describe(kBase, 10).ok());
    EXPECT_EQ(location.allocation_id, before.allocation_id);
    EXPECT_NE(location.handle, before.handle);
    EXPECT_EQ(gpu.open.size(), 1u);
}

TEST_F(ExportsTest, WhatCannotBeExportedIsToldWithoutAskingTheRuntime) {
    const std::vector<std::byte> host(100);
    location.offset = 77;
    EXPECT_FALSE(describe(host.data()).ok());
    void* managed = nullptr;
    ASSERT_TRUE(gpu.allocate_managed(0, 100, managed).ok());
    const gpu::Status status = describe(managed);
    EXPECT_EQ(status.code, gpu::kUnsupported);
    EXPECT_NE(status.message().find("cannot be exported"), std::string::npos) << status.message();
    EXPECT_EQ(gpu.exports, 0);
    EXPECT_EQ(location.offset, 77u);
}

TEST_F(ExportsTest, ARefusalIsRememberedForTheAllocation) {
    std::byte* const memory = allocate(10000);
    gpu.fail("ipc_export", 0, 1, 801);
    for (int round = 0; round < 3; ++round) {
        const gpu::Status status = describe(memory + round);
        EXPECT_EQ(status.code, 801);
        EXPECT_NE(status.message().find("injected fault"), std::string::npos) << status.message();
    }
    EXPECT_EQ(gpu.exports, 1);
    EXPECT_EQ(location.kind, Location::Kind::none);
    EXPECT_TRUE(describe(allocate(10000)).ok());
}

TEST_F(ExportsTest, RemembersABoundedNumberTheLeastRecentlyUsedGoesFirst) {
    std::vector<std::byte*> memory;
    const auto ask = [&](const unsigned number) {
        while (memory.size() <= number) {
            memory.push_back(allocate(100));
        }
        ASSERT_TRUE(describe(memory[number]).ok());
        EXPECT_EQ(gpu.start_of(location), reinterpret_cast<std::uintptr_t>(memory[number]));
    };
    for (unsigned number = 0; number < 1024; ++number) {
        ask(number);
    }
    ask(0);
    EXPECT_EQ(gpu.exports, 1024);
    ask(1024);  // takes the place of number 1
    ask(0);
    EXPECT_EQ(gpu.exports, 1025);
    ask(1);
    EXPECT_EQ(gpu.exports, 1026);
}

TEST_F(ExportsTest, ManyThreadsAtOnce) {
    std::vector<std::byte*> memory;
    for (int i = 0; i < 8; ++i) {
        memory.push_back(allocate(4096));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (unsigned round = 0; round < 2000; ++round) {
                std::byte* const pointer = memory[(round + thread) % memory.size()];
                gpu::PointerInfo info = info_of(pointer);
                info.id += round / 100 % 2 * 100;  // freed and allocated again, now and then
                Location own;
                if (!exports.describe(pointer + round % 4096, info, own).ok() || own.offset != round % 4096 ||
                    own.allocation_id != info.id || gpu.start_of(own) != reinterpret_cast<std::uintptr_t>(pointer)) {
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

// ---- the pool -------------------------------------------------------------------------------------------------------

class ExportedPoolTest : public ExportsTest {
  protected:
    /// Nothing is idle for so long.
    static constexpr ExportedPool::Limits kPatient{.bytes = 32 * kMiB, .idle = std::chrono::hours(1)};
    static constexpr ExportedPool::Limits kImpatient{.bytes = 32 * kMiB, .idle = std::chrono::milliseconds(0)};

    [[nodiscard]] std::size_t allocated_bytes() const { return gpu.live_bytes(gpu::MemoryKind::device); }
};

TEST_F(ExportedPoolTest, LendsBlocksThatOthersCanMap) {
    ExportedPool pool(gpu, exports, kPatient);
    const ExportedPool::Block block = pool.acquire(1, 3 * kMiB);
    ASSERT_TRUE(block);
    EXPECT_EQ(block.location().kind, Location::Kind::device);
    EXPECT_EQ(block.location().device, 1);
    EXPECT_EQ(block.location().offset, 0u);
    EXPECT_EQ(block.location().allocation_bytes, 4 * kMiB);
    EXPECT_EQ(block.location().allocation_id, info_of(block.data()).id);
    EXPECT_EQ(gpu.start_of(block.location()), reinterpret_cast<std::uintptr_t>(block.data()));
    EXPECT_EQ(pool.statistics().lent_bytes, 4 * kMiB);
    EXPECT_EQ(pool.statistics().allocated, 1u);
}

TEST_F(ExportedPoolTest, SmallBlocksAreTwoMebibytes) {
    ExportedPool pool(gpu, exports, kPatient);
    EXPECT_EQ(pool.acquire(0, 0).location().allocation_bytes, 2 * kMiB);
    EXPECT_EQ(pool.acquire(0, 1).location().allocation_bytes, 2 * kMiB);
    EXPECT_EQ(pool.acquire(0, 2 * kMiB + 1).location().allocation_bytes, 4 * kMiB);
}

TEST_F(ExportedPoolTest, BlocksAreUsedAgain) {
    ExportedPool pool(gpu, exports, kPatient);
    ExportedPool::Block block = pool.acquire(0, kMiB);
    std::byte* const data = block.data();
    const std::uint64_t id = block.location().allocation_id;
    block.release();
    EXPECT_FALSE(block);
    EXPECT_EQ(block.data(), nullptr);
    EXPECT_EQ(pool.statistics().free_bytes, 2 * kMiB);
    EXPECT_EQ(pool.statistics().lent_bytes, 0u);
    const ExportedPool::Block again = pool.acquire(0, 2 * kMiB);
    EXPECT_EQ(again.data(), data);
    EXPECT_EQ(again.location().allocation_id, id);
    EXPECT_EQ(gpu.start_of(again.location()), reinterpret_cast<std::uintptr_t>(data));
    EXPECT_EQ(gpu.exports, 1);
    // Of the other device, and of another size.
    EXPECT_NE(pool.acquire(1, 2 * kMiB).data(), data);
    EXPECT_EQ(pool.statistics().allocated, 2u);
}

TEST_F(ExportedPoolTest, ABlockMovesToItsNewOwner) {
    ExportedPool pool(gpu, exports, kPatient);
    ExportedPool::Block first = pool.acquire(0, kMiB);
    std::byte* const data = first.data();
    ExportedPool::Block second(std::move(first));
    EXPECT_FALSE(first);
    EXPECT_EQ(second.data(), data);
    ExportedPool::Block third = pool.acquire(0, kMiB);
    third = std::move(second);  // gives its own back
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(third.location().kind, Location::Kind::device);
    EXPECT_EQ(pool.statistics().lent_bytes, 2 * kMiB);
    EXPECT_EQ(pool.statistics().free_bytes, 2 * kMiB);
}

TEST_F(ExportedPoolTest, StaysWithinItsBound) {
    ExportedPool pool(gpu, exports, kPatient);
    std::vector<ExportedPool::Block> blocks;
    for (int i = 0; i < 4; ++i) {
        blocks.push_back(pool.acquire(i % 2, 8 * kMiB));
        ASSERT_TRUE(blocks.back());
    }
    EXPECT_FALSE(pool.acquire(0, 1));
    EXPECT_EQ(pool.statistics().refused, 1u);
    EXPECT_EQ(allocated_bytes(), 32 * kMiB);
    blocks.pop_back();
    EXPECT_TRUE(pool.acquire(1, 8 * kMiB));
    EXPECT_FALSE(pool.acquire(1, 33 * kMiB));
    EXPECT_FALSE(pool.acquire(1, ~std::size_t{0}));
    EXPECT_EQ(pool.statistics().refused, 3u);
    EXPECT_EQ(pool.statistics().allocated, 4u);
}

TEST_F(ExportedPoolTest, FreeBlocksOfOtherSizesMakeRoomTheOldestFirst) {
    ExportedPool pool(gpu, exports, kPatient);
    ExportedPool::Block oldest = pool.acquire(0, 16 * kMiB);
    ExportedPool::Block newer = pool.acquire(0, 8 * kMiB);
    const ExportedPool::Block lent = pool.acquire(0, 8 * kMiB);
    oldest.release();
    newer.release();
    ASSERT_TRUE(pool.acquire(0, 4 * kMiB));
    EXPECT_EQ(allocated_bytes(), 20 * kMiB);  // the 16 MiB went, the free 8 MiB are there
    EXPECT_EQ(pool.statistics().free_bytes, 12 * kMiB);
    // What all free blocks together do not make room for costs none of them.
    EXPECT_FALSE(pool.acquire(0, 32 * kMiB));
    EXPECT_EQ(pool.statistics().free_bytes, 12 * kMiB);
    EXPECT_TRUE(pool.acquire(1, 16 * kMiB));
    EXPECT_LE(allocated_bytes(), 32 * kMiB);
}

TEST_F(ExportedPoolTest, AFullCardGetsItsFreeBlocksBackBeforeTheSecondTry) {
    ExportedPool pool(gpu, exports, kPatient);
    pool.acquire(0, 8 * kMiB).release();
    pool.acquire(1, 8 * kMiB).release();
    gpu.fail("allocate");
    EXPECT_TRUE(pool.acquire(0, 4 * kMiB));
    EXPECT_EQ(allocated_bytes(), 12 * kMiB);  // the other device's block does not help and stays
    gpu.fail("allocate", 0, 2);
    EXPECT_FALSE(pool.acquire(0, 2 * kMiB));
    EXPECT_EQ(pool.statistics().refused, 1u);
    EXPECT_EQ(pool.statistics().lent_bytes, 0u);
    EXPECT_EQ(allocated_bytes(), 8 * kMiB);
    EXPECT_TRUE(pool.acquire(0, 2 * kMiB));
}

TEST_F(ExportedPoolTest, ADeviceThatRefusesToExportIsNotAskedAgain) {
    ExportedPool pool(gpu, exports, kPatient);
    gpu.fail("ipc_export", 0, 1, 801);
    EXPECT_FALSE(pool.acquire(0, kMiB));
    EXPECT_EQ(allocated_bytes(), 0u);
    EXPECT_FALSE(pool.acquire(0, kMiB));
    EXPECT_EQ(gpu.calls("allocate"), 1);
    EXPECT_EQ(pool.statistics().refused, 2u);
    EXPECT_EQ(pool.statistics().lent_bytes, 0u);
    EXPECT_TRUE(pool.acquire(1, kMiB));
}

TEST_F(ExportedPoolTest, BlocksWithoutAnIdentityGetOneOfTheirOwn) {
    ExportedPool pool(gpu, exports, kImpatient);
    gpu.anonymous = true;
    const ExportedPool::Block one = pool.acquire(0, kMiB);
    ExportedPool::Block other = pool.acquire(0, kMiB);
    EXPECT_NE(one.location().allocation_id, 0u);
    EXPECT_NE(one.location().allocation_id, other.location().allocation_id);
    const std::uint64_t id = other.location().allocation_id;
    other.release();
    other = pool.acquire(0, kMiB);
    EXPECT_EQ(other.location().allocation_id, id);
    other.release();
    // Another allocation has another, also when it gets the same address.
    pool.trim_idle();
    other = pool.acquire(0, kMiB);
    EXPECT_NE(other.location().allocation_id, id);
}

TEST_F(ExportedPoolTest, IdleBlocksGoBack) {
    ExportedPool patient(gpu, exports, kPatient);
    patient.acquire(0, kMiB).release();
    patient.trim_idle();
    EXPECT_EQ(patient.statistics().free_bytes, 2 * kMiB);

    ExportedPool pool(gpu, exports, kImpatient);
    ExportedPool::Block kept = pool.acquire(0, kMiB);
    pool.acquire(0, kMiB).release();
    pool.acquire(0, 4 * kMiB).release();
    pool.trim_idle();
    EXPECT_EQ(pool.statistics().free_bytes, 0u);
    EXPECT_EQ(pool.statistics().lent_bytes, 2 * kMiB);
    EXPECT_EQ(allocated_bytes(), 4 * kMiB);
    // And again after there was nothing to do.
    pool.trim_idle();
    kept.release();
    pool.trim_idle();
    EXPECT_EQ(allocated_bytes(), 2 * kMiB);
}

/// A moment that is after all before, and before all after.
std::chrono::steady_clock::time_point a_moment() {
    using Clock = std::chrono::steady_clock;
    const auto wait_for_the_next = [](const Clock::time_point time) {
        while (Clock::now() == time) {
            std::this_thread::yield();
        }
    };
    wait_for_the_next(Clock::now());
    const Clock::time_point moment = Clock::now();
    wait_for_the_next(moment);
    return moment;
}

TEST_F(ExportedPoolTest, OnlyThoseThatWereIdleLongEnoughGoBack) {
    ExportedPool pool(gpu, exports, kPatient);
    const auto before = a_moment();
    pool.acquire(0, kMiB).release();
    const auto after = a_moment();
    pool.trim_idle();
    pool.trim_idle(before + kPatient.idle);
    EXPECT_EQ(pool.statistics().free_bytes, 2 * kMiB);
    pool.trim_idle(after + kPatient.idle);
    EXPECT_EQ(pool.statistics().free_bytes, 0);
}

TEST_F(ExportedPoolTest, EachGoesBackInItsOwnTime) {
    ExportedPool pool(gpu, exports, kPatient);
    ExportedPool::Block second = pool.acquire(0, kMiB);
    pool.acquire(0, 4 * kMiB).release();
    const auto between = a_moment();
    second.release();
    const auto after = a_moment();
    pool.trim_idle(between + kPatient.idle);
    EXPECT_EQ(pool.statistics().free_bytes, 2 * kMiB);
    pool.trim_idle(between + kPatient.idle);
    EXPECT_EQ(pool.statistics().free_bytes, 2 * kMiB);
    pool.trim_idle(after + kPatient.idle);
    EXPECT_EQ(pool.statistics().free_bytes, 0);
}

TEST_F(ExportedPoolTest, ABlockMayOutliveTheShutDown) {
    ExportedPool pool(gpu, exports, kPatient);
    ExportedPool::Block lent = pool.acquire(0, kMiB);
    pool.acquire(0, 4 * kMiB).release();
    pool.shut_down();
    pool.shut_down();
    EXPECT_EQ(allocated_bytes(), 2 * kMiB);
    EXPECT_FALSE(pool.acquire(0, kMiB));
    lent.release();
    EXPECT_EQ(allocated_bytes(), 0u);
    EXPECT_EQ(pool.statistics().lent_bytes, 0u);
}

TEST_F(ExportedPoolTest, ADriverThatIsGoneIsNoMatter) {
    ExportedPool pool(gpu, exports, kImpatient);
    ExportedPool::Block lent = pool.acquire(0, kMiB);
    pool.acquire(0, 4 * kMiB).release();
    gpu.shut_down();
    pool.trim_idle();
    lent.release();
    EXPECT_FALSE(pool.acquire(0, 8 * kMiB));
    pool.shut_down();
    EXPECT_EQ(pool.statistics().free_bytes, 0u);
}

TEST_F(ExportedPoolTest, ManyThreadsAtOnce) {
    std::atomic<bool> beyond{false};
    {
        ExportedPool pool(gpu, exports, {.bytes = 16 * kMiB, .idle = 0ms});
        std::mutex mutex;
        std::map<std::byte*, int> holders;
        std::atomic<int> shared{0};
        std::vector<std::thread> threads;
        for (unsigned thread = 0; thread < 4; ++thread) {
            threads.emplace_back([&, thread] {
                for (unsigned round = 0; round < 300; ++round) {
                    ExportedPool::Block block = pool.acquire(static_cast<int>(round % 2), kMiB << (round + thread) % 4);
                    if (allocated_bytes() > 16 * kMiB) {
                        beyond = true;
                    }
                    if (block) {
                        const std::scoped_lock lock(mutex);
                        if (++holders[block.data()] != 1) {
                            ++shared;
                        }
                    }
                    if (round % 16 == thread) {
                        pool.trim_idle();
                    }
                    if (block) {
                        const std::scoped_lock lock(mutex);
                        --holders[block.data()];
                    }
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        EXPECT_EQ(shared, 0);
        EXPECT_EQ(pool.statistics().lent_bytes, 0u);
    }
    EXPECT_FALSE(beyond);
    EXPECT_EQ(allocated_bytes(), 0u);
}

// ---- between processes ----------------------------------------------------------------------------------------------

/// What one process tells another: where bytes are, and what they are.
struct Told {
    Location location;
    std::size_t bytes = 0;
    unsigned char first = 0;
};

void send(const int pipe_end, const Told& told) {
    ASSERT_EQ(write(pipe_end, &told, sizeof told), static_cast<ssize_t>(sizeof told));
}

[[noreturn]] void leave_process() {
    std::fflush(nullptr);
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

std::vector<unsigned char> counted(const std::size_t bytes, const unsigned char first) {
    std::vector<unsigned char> result(bytes);
    std::iota(result.begin(), result.end(), first);
    return result;
}

void copy_and_wait(gpu::Runtime& runtime, const int device, void* destination, const void* source,
                   const std::size_t bytes) {
    gpu::StreamHandle stream;
    ASSERT_TRUE(runtime.create_stream(device, true, stream).ok());
    ASSERT_TRUE(runtime.copy(destination, source, bytes, stream).ok());
    ASSERT_TRUE(runtime.synchronize_stream(stream).ok());
    ASSERT_TRUE(runtime.destroy_stream(stream).ok());
}

class ExportsBetweenProcesses : public ::testing::TestWithParam<const char*> {
  protected:
    /// In a process that was started anew: a driver does not survive a fork.
    void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

    /// As a program would load the emulated driver: "cuda:2" or "hip6:2".
    static gpu::Runtime& load() {
        const std::string form = GetParam();
        ::setenv("AWAKEN_EMULATE", form.c_str(), 1);
        const bool cuda = form.starts_with("cuda");
        const std::string file = cuda ? "libcuda.so.1" : "libamdhip64.so." + form.substr(3, 1);
        EXPECT_NE(dlopen((AWAKEN_EMULATOR_DIRECTORY "/" + file).c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
        std::string why_not;
        gpu::Runtime& runtime = gpu::find(cuda ? gpu::Choice::cuda : gpu::Choice::hip, &why_not);
        EXPECT_NE(runtime.vendor(), gpu::Vendor::none) << why_not;
        return runtime;
    }

    /// Maps what it is told of and looks at it, until the other side has nothing more to tell.
    static void check_what_is_told(const int told_by, const int answer_to) {
        gpu::Runtime& runtime = load();
        Mappings mappings(runtime, {});
        Told told;
        while (read(told_by, &told, sizeof told) == static_cast<ssize_t>(sizeof told)) {
            gpu::Status status;
            EXPECT_LE(told.location.offset + told.bytes, told.location.allocation_bytes);
            const Mappings::Use use = mappings.open(0, told.location, 1, status);
            std::vector<unsigned char> seen(told.bytes);
            EXPECT_TRUE(use) << status.message();
            if (use) {
                copy_and_wait(runtime, 1, seen.data(), use.data(), told.bytes);
            }
            EXPECT_EQ(seen, counted(told.bytes, told.first));
            EXPECT_EQ(write(answer_to, "x", 1), 1);
        }
        mappings.shut_down();
    }
};

TEST_P(ExportsBetweenProcesses, ShowThePointersBytes) {
    const auto run = [] {
        int tell[2];
        int answer[2];
        EXPECT_EQ(pipe(tell), 0);
        EXPECT_EQ(pipe(answer), 0);
        const pid_t reader = fork();  // before either has a driver
        if (reader == 0) {
            close(tell[1]);
            check_what_is_told(tell[0], answer[1]);
            leave_process();
        }
        close(answer[1]);  // a reader that ends shows
        gpu::Runtime& runtime = load();
        Exports exports(runtime);
        ExportedPool pool(runtime, exports, {});
        unsigned char first = 1;
        const auto show = [&](std::byte* const data, const Location& location, const std::size_t bytes) {
            Told told;
            told.location = location;
            told.bytes = bytes;
            told.first = first;
            const std::vector<unsigned char> content = counted(bytes, first++);
            copy_and_wait(runtime, 0, data, content.data(), bytes);
            send(tell[1], told);
            char done = 0;
            EXPECT_EQ(read(answer[0], &done, 1), 1);
        };
        // Small allocations share a block; the large one is alone. Each is freed and allocated again, at once.
        for (const std::size_t bytes : {std::size_t{1000}, std::size_t{70000}, 3 * kMiB}) {
            void* neighbour = nullptr;
            EXPECT_TRUE(runtime.allocate(0, 1000, neighbour).ok());
            for (int round = 0; round < 3; ++round) {
                void* memory = nullptr;
                EXPECT_TRUE(runtime.allocate(0, bytes, memory).ok());
                for (const std::size_t offset : {std::size_t{0}, std::size_t{777}}) {
                    auto* const data = static_cast<std::byte*>(memory) + offset;
                    const void* const pointer = data;
                    gpu::PointerInfo info;
                    runtime.classify({&pointer, 1}, &info);
                    Location location;
                    const gpu::Status status = exports.describe(pointer, info, location);
                    EXPECT_TRUE(status.ok()) << status.message();
                    show(data, location, bytes - offset);
                }
                EXPECT_TRUE(runtime.free(memory).ok());
            }
            EXPECT_TRUE(runtime.free(neighbour).ok());
        }
        for (int round = 0; round < 2; ++round) {
            const ExportedPool::Block block = pool.acquire(0, 5 * kMiB);
            EXPECT_TRUE(block);
            if (block) {
                show(block.data(), block.location(), 5 * kMiB);
            }
        }
        EXPECT_EQ(pool.statistics().allocated, 1u);
        close(tell[1]);
        int status = 0;
        EXPECT_EQ(waitpid(reader, &status, 0), reader);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the reader saw other bytes";
        pool.shut_down();
        leave_process();
    };
    EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Emulated, ExportsBetweenProcesses, ::testing::Values("cuda:2", "hip5:2", "hip6:2", "hip7:2"),
                         [](const auto& form) {
                             return std::string(form.param).substr(0, std::strlen(form.param) - 2);
                         });

}  // namespace
}  // namespace awaken::transfer
