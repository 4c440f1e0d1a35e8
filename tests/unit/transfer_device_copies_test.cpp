// SPDX-License-Identifier: Apache-2.0
// DeviceCopies on the emulated driver: when copies are over and how that is known, kernels, memory of another process,
// and failures.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transfer/device_copies.h"
#include "transfer_device_copies_checks.h"
#include "watched_gpu.h"

namespace awaken::emulator_test {
namespace {

using transfer::CopyEngine;
using transfer::DeviceCopies;
using transfer::PinnedPool;
using transfer::Tuning;
using transfer::checks::Buffer;
using transfer::checks::Bytes;
using transfer::checks::Place;
using transfer::checks::Random;
using transfer::checks::random_bytes;
using transfer::checks::same;

constexpr std::size_t kPool = std::size_t{64} << 20;

/// Also counts the threads of kernels.
class CountingGpu final : public WatchedGpu {
  public:
    gpu::Status launch(gpu::KernelHandle kernel, gpu::Dim3 grid, gpu::Dim3 block, unsigned shared_bytes,
                       gpu::StreamHandle stream, void** arguments) noexcept override {
        threads += grid.x * block.x;
        return WatchedGpu::launch(kernel, grid, block, shared_bytes, stream, arguments);
    }
    [[nodiscard]] int launches() const { return calls("launch"); }
    void refuse_launches() { fail("launch", 0, 1000); }
    std::atomic<unsigned> threads{0};  ///< of all launches
};

struct EmulatedCopies : ::testing::Test {
    [[nodiscard]] Bytes fill(Buffer& buffer, const std::size_t size) {
        Bytes content = random_bytes(random, size);
        buffer.write(content);
        return content;
    }
    CountingGpu gpu;
    PinnedPool pool{kPool};
    Random random{7};
    DeviceCopies copies{gpu, pool, Tuning{}, CopyEngine::automatic};
};

TEST_F(EmulatedCopies, AllPairsOfPlaces) {
    transfer::checks::check_all_pairs(gpu, CopyEngine::automatic, kPool);
    EXPECT_EQ(gpu.launches(), 0) << "a kernel only where it was measured to be faster";
}

TEST_F(EmulatedCopies, AllPairsOfPlacesByKernels) {
    // Emulated threads are slow. This is enough for all parts of the kernel.
    transfer::checks::check_all_pairs(gpu, CopyEngine::kernel, kPool, 65537);
    EXPECT_GT(gpu.launches(), 0);
}

TEST_F(EmulatedCopies, AllPairsOfPlacesWithoutPinnedMemory) {
    transfer::checks::check_all_pairs(gpu, CopyEngine::engine, 0);
    EXPECT_EQ(gpu.launches(), 0);
}

TEST_F(EmulatedCopies, ManyAtOnceInAnyOrder) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
        transfer::checks::check_many_at_once(gpu, seed);
    }
}

TEST_F(EmulatedCopies, Threads) {
    transfer::checks::check_threads(gpu, 20);
}

// ---- when copies are over -------------------------------------------------------------------------------------------

TEST_F(EmulatedCopies, SixtyFourSmallCopiesTakeOneEvent) {
    constexpr std::size_t kCopies = 64, kSize = 8;
    Buffer source(gpu, Place::device, kCopies * kSize), destination(gpu, Place::device, kCopies * kSize);
    const Bytes content = fill(source, kCopies * kSize);
    gpu.reset_calls();
    std::vector<DeviceCopies::Copy> started;
    for (std::size_t i = 0; i < kCopies; ++i) {
        started.push_back(
            copies.start(0, static_cast<unsigned>(i), destination.end(i * kSize), source.end(i * kSize), kSize));
    }
    EXPECT_EQ(gpu.calls("copy"), 64);
    EXPECT_EQ(gpu.calls("create_stream"), 1);
    EXPECT_EQ(gpu.calls("record_event"), 0) << "starting a copy records nothing";
    EXPECT_EQ(gpu.calls("query_event"), 0);
    started.back().wait();
    const int questions = gpu.calls("query_event");
    for (DeviceCopies::Copy& copy : started) {
        EXPECT_TRUE(copy.poll());
    }
    EXPECT_EQ(gpu.calls("query_event"), questions) << "the answer for the last holds for all before it";
    EXPECT_EQ(gpu.calls("record_event"), 1);
    EXPECT_EQ(gpu.calls("create_event"), 1);
    EXPECT_EQ(gpu.calls("query_stream"), 0);
    EXPECT_EQ(gpu.calls("synchronize_stream"), 0);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, CopiesStartedTogetherAreGivenToTheGpuInOneCall) {
    constexpr std::size_t kCopies = 64, kSize = 8;
    constexpr auto kTogether = DeviceCopies::Start::together;
    Buffer source(gpu, Place::device, (kCopies + 2) * kSize), destination(gpu, Place::device, (kCopies + 2) * kSize);
    const Bytes content = fill(source, (kCopies + 2) * kSize);
    DeviceCopies engine(gpu, pool, Tuning{}, CopyEngine::engine);
    gpu.reset_calls();
    std::vector<DeviceCopies::Copy> started;
    const auto start = [&](const DeviceCopies::Start when) {
        const std::size_t at = started.size() * kSize;
        started.push_back(engine.start(0, 0, destination.end(at), source.end(at), kSize, when));
    };
    while (started.size() < kCopies) {
        start(kTogether);
    }
    EXPECT_EQ(gpu.calls("copy") + gpu.calls("copy_batch"), 0) << "held back";
    start(kTogether);
    EXPECT_EQ(gpu.calls("copy_batch"), 1) << "no more than 64 are";
    start(DeviceCopies::Start::now);
    EXPECT_EQ(gpu.calls("copy"), 2) << "what was held back comes first, and one alone is no batch";
    started.back().wait();
    for (DeviceCopies::Copy& copy : started) {
        EXPECT_TRUE(copy.poll());
    }
    EXPECT_EQ(gpu.calls("copy_batch"), 1);
    EXPECT_EQ(gpu.calls("record_event"), 1);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, WhatIsHeldBackIsDoneWhenItIsAskedForOrDropped) {
    constexpr auto kTogether = DeviceCopies::Start::together;
    Buffer source(gpu, Place::device, 24), destination(gpu, Place::device, 24);
    const Bytes content = fill(source, 24);
    DeviceCopies::Copy first = copies.start(0, 0, destination.end(), source.end(), 8, kTogether);
    DeviceCopies::Copy second = copies.start(0, 0, destination.end(8), source.end(8), 8, kTogether);
    DeviceCopies::Copy third = copies.start(0, 0, destination.end(16), source.end(16), 8, kTogether);
    first.wait();
    EXPECT_EQ(gpu.calls("copy_batch"), 1);
    EXPECT_TRUE(second.poll());
    third = {};
    EXPECT_TRUE(same(destination.read(), content.data()));
    DeviceCopies::Copy left = copies.start(0, 0, destination.end(), source.end(8), 8, kTogether);
    copies.shut_down();
    EXPECT_TRUE(left.poll());
    Bytes expected = content;
    std::copy_n(content.begin() + 8, 8, expected.begin());
    EXPECT_TRUE(same(destination.read(), expected.data()));
}

TEST_F(EmulatedCopies, ALongCopyIsNotHeldBack) {
    constexpr std::size_t kSize = (std::size_t{16} << 20) + 1;
    Buffer source(gpu, Place::device, kSize), destination(gpu, Place::device, kSize);
    DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), kSize, DeviceCopies::Start::together);
    EXPECT_EQ(gpu.calls("copy"), 1);
    copy.wait();
}

TEST_F(EmulatedCopies, OfABatchThatIsRefusedOnlyTheBadCopyFails) {
    constexpr auto kTogether = DeviceCopies::Start::together;
    Buffer source(gpu, Place::device, 32), destination(gpu, Place::device, 32);
    const Bytes content = fill(source, 32);
    DeviceCopies::Copy before = copies.start(0, 0, destination.end(), source.end(), 8);
    gpu.fail("copy_batch");
    gpu.fail("copy", 1);  // when they are given one by one: the second
    DeviceCopies::Copy first = copies.start(0, 0, destination.end(8), source.end(8), 8, kTogether);
    DeviceCopies::Copy second = copies.start(0, 0, destination.end(16), source.end(16), 8, kTogether);
    DeviceCopies::Copy flushing = copies.start(0, 0, destination.end(24), source.end(24), 8);
    EXPECT_THROW(second.wait(), Error);
    before.wait();
    first.wait();
    flushing.wait();
    Bytes expected = content;
    const Bytes written = destination.read();
    std::copy_n(written.begin() + 16, 8, expected.begin() + 16);
    EXPECT_TRUE(same(written, expected.data()));
    copies.start(0, 0, destination.end(16), source.end(16), 8).wait();
    EXPECT_TRUE(same(destination.read(), content.data())) << "another stream serves after that";
}

TEST_F(EmulatedCopies, ACopyStartedAfterAMarkerNeedsAnother) {
    Buffer source(gpu, Place::device, 16), destination(gpu, Place::device, 16);
    const Bytes content = fill(source, 16);
    DeviceCopies::Copy first = copies.start(0, 0, destination.end(), source.end(), 8);
    gpu.held = WatchedGpu::always;
    EXPECT_FALSE(first.poll());
    DeviceCopies::Copy second = copies.start(0, 0, destination.end(8), source.end(8), 8);
    gpu.held = nullptr;
    first.wait();
    gpu.held = WatchedGpu::always;
    EXPECT_FALSE(second.poll()) << "the first marker does not cover it";
    gpu.held = nullptr;
    second.wait();
    EXPECT_EQ(gpu.calls("record_event"), 2);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, EventsAreUsedAgain) {
    Buffer source(gpu, Place::device, 8), destination(gpu, Place::device, 8);
    for (int i = 0; i < 100; ++i) {
        copies.start(0, 0, destination.end(), source.end(), 8).wait();
    }
    EXPECT_EQ(gpu.calls("create_event"), 1);
    EXPECT_EQ(gpu.calls("record_event"), 100);
}

TEST_F(EmulatedCopies, LargeCopiesGoOnFourStreamsByLane) {
    constexpr std::size_t kSize = 65536;
    Buffer source(gpu, Place::device, kSize), destination(gpu, Place::device, kSize);
    gpu.reset_calls();
    for (unsigned lane = 0; lane < 8; ++lane) {
        copies.start(0, lane, destination.end(), source.end(), kSize).wait();
    }
    EXPECT_EQ(gpu.calls("create_stream"), 4);
    for (unsigned lane = 0; lane < 8; ++lane) {
        copies.start(0, lane, destination.end(), source.end(), kSize - 1).wait();
    }
    EXPECT_EQ(gpu.calls("create_stream"), 5);
    copies.start(1, 0, destination.end(), source.end(), 1).wait();
    EXPECT_EQ(gpu.calls("create_stream"), 6) << "a device has its own";
}

TEST_F(EmulatedCopies, NothingIsThereBeforeTheCopyIsOver) {
    constexpr std::size_t kSize = std::size_t{2} << 20;
    Buffer source(gpu, Place::device, kSize), destination(gpu, Place::device, kSize);
    const Bytes content = fill(source, kSize);
    DeviceCopies::Copy copy = copies.start(0, 3, destination.end(), source.end(), kSize);
    EXPECT_EQ(copy.completed(), 0U);
    gpu.held = WatchedGpu::always;
    EXPECT_FALSE(copy.poll());
    EXPECT_EQ(copy.completed(), 0U);
    gpu.held = nullptr;
    copy.wait();
    EXPECT_EQ(copy.completed(), kSize);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, OrdinaryMemoryArrivesBlockByBlock) {
    constexpr std::size_t kSize = (std::size_t{9} << 20) + 5;
    for (const auto& [from, to] : {std::pair{Place::device, Place::ordinary}, {Place::ordinary, Place::device}}) {
        Buffer source(gpu, from, kSize), destination(gpu, to, kSize);
        const Bytes content = fill(source, kSize);
        destination.write(Bytes(kSize));
        // Every second answer is no, so that a poll finds one block over and not more.
        gpu.held = [no = false]() mutable { return no = !no; };
        DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), kSize);
        std::vector<std::size_t> seen;
        while (!copy.poll()) {
            const std::size_t arrived = copy.completed();
            if (!seen.empty() && seen.back() == arrived) {
                continue;
            }
            seen.push_back(arrived);
            const auto held = std::exchange(gpu.held, nullptr);
            ASSERT_TRUE(same(destination.read(arrived), content.data()));
            gpu.held = held;
        }
        gpu.held = nullptr;
        EXPECT_TRUE(same(destination.read(), content.data()));
        EXPECT_GE(seen.size(), 9U) << "blocks of 1 MiB, one after another";
    }
    EXPECT_EQ(pool.statistics().pinned_bytes, std::size_t{4} << 20);
}

TEST_F(EmulatedCopies, AShortMessageTakesASmallBlock) {
    Buffer source(gpu, Place::ordinary, 8), destination(gpu, Place::device, 8);
    const Bytes content = fill(source, 8);
    copies.start(0, 0, destination.end(), source.end(), 8).wait();
    EXPECT_EQ(pool.statistics().pinned_peak_bytes, 4096U);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, TheProgramsEarlierWorkIsWaitedForInItsMemoryOnly) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    copies.start(0, 0, destination.end(), source.end(), 100).wait();
    EXPECT_EQ(gpu.calls("order_after_default_stream"), 2);
    gpu.reset_calls();
    copies.start(0, 0, {destination.data(), nullptr}, {source.data(), nullptr}, 100).wait();
    EXPECT_EQ(gpu.calls("order_after_default_stream"), 0) << "nothing of the program's";
}

TEST_F(EmulatedCopies, HostToHostNeedsNoGpu) {
    constexpr std::size_t kSize = 1'000'000;
    Buffer source(gpu, Place::ordinary, kSize), destination(gpu, Place::pinned, kSize);
    const Bytes content = fill(source, kSize);
    gpu.reset_calls();
    copies.start(-1, 0, destination.end(), source.end(), kSize).wait();
    copies.start(-1, 0, destination.end(), source.end(), 8).wait();
    {
        const DeviceCopies::Copy abandoned = copies.start(-1, 0, destination.end(), source.end(), kSize);
        EXPECT_LT(abandoned.completed(), kSize);
    }
    EXPECT_EQ(gpu.calls("copy"), 0);
    EXPECT_EQ(gpu.calls("create_stream"), 0);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, MemoryWithoutAnOwnerIsCopiedByTheCallersDevice) {
    Buffer source(gpu, Place::managed, 100), destination(gpu, Place::managed, 100);
    const Bytes content = fill(source, 100);
    copies.start(-1, 0, destination.end(), source.end(), 100).wait();
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, NoBytesNoCopy) {
    gpu.reset_calls();
    DeviceCopies::Copy copy = copies.start(0, 0, {nullptr, nullptr}, {nullptr, nullptr}, 0);
    EXPECT_TRUE(copy.poll());
    copy.wait();
    EXPECT_EQ(copy.completed(), 0U);
    DeviceCopies::Copy never;
    EXPECT_TRUE(never.poll());
    EXPECT_EQ(gpu.calls("create_stream"), 0);
}

TEST_F(EmulatedCopies, ADestroyedCopyIsOver) {
    constexpr std::size_t kSize = std::size_t{3} << 20;
    for (const Place from : {Place::device, Place::ordinary}) {
        for (const Place to : {Place::device, Place::ordinary}) {
            for (const int polls : {0, 1, 3}) {
                Buffer source(gpu, from, kSize), destination(gpu, to, kSize);
                const Bytes content = fill(source, kSize);
                {
                    DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), kSize);
                    for (int i = 0; i < polls; ++i) {
                        static_cast<void>(copy.poll());
                    }
                }
                if (from == Place::device && to == Place::device) {
                    EXPECT_TRUE(same(destination.read(), content.data()));
                }
            }
        }
    }
    // Nothing may be left in the streams: both sides are gone.
    copies.shut_down();
    EXPECT_EQ(gpu.abandoned_streams(), 0);
}

TEST_F(EmulatedCopies, AnotherCopyTakesTheFirstOnesPlace) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    const Bytes content = fill(source, 100);
    DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), 50);
    copy = copies.start(0, 0, destination.end(50), source.end(50), 50);
    EXPECT_EQ(std::memcmp(view(destination.data()), content.data(), 50), 0) << "the first was not waited for";
    DeviceCopies::Copy moved(std::move(copy));
    moved.wait();
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, OneBlockIsAllThatIsLeft) {
    constexpr std::size_t kSize = 1'000'000;
    PinnedPool small(std::size_t{256} << 10);
    DeviceCopies poor(gpu, small, Tuning{}, CopyEngine::automatic);
    Buffer source(gpu, Place::device, kSize), destination(gpu, Place::ordinary, kSize);
    const Bytes content = fill(source, kSize);
    gpu.reset_calls();
    poor.start(0, 0, destination.end(), source.end(), kSize).wait();
    EXPECT_EQ(gpu.calls("copy"), 4);
    EXPECT_EQ(small.statistics().pinned_peak_bytes, std::size_t{256} << 10);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

// ---- kernels --------------------------------------------------------------------------------------------------------

TEST_F(EmulatedCopies, KernelAndEngineWriteTheSameBytes) {
    constexpr std::size_t kRoom = 4096;
    Buffer source(gpu, Place::device, kRoom), by_kernel(gpu, Place::device, kRoom),
        by_engine(gpu, Place::device, kRoom);
    source.write(random_bytes(random, kRoom));
    by_kernel.write(Bytes(kRoom));
    by_engine.write(Bytes(kRoom));
    DeviceCopies kernel(gpu, pool, Tuning{}, CopyEngine::kernel), engine(gpu, pool, Tuning{}, CopyEngine::engine);
    for (const std::size_t to : {0, 1, 8, 15}) {
        for (std::size_t from = 0; from < 17; ++from) {
            for (const std::size_t size : {random() % 48 + 1, 1000 + random() % 1000}) {
                const int launches = gpu.launches();
                kernel.start(0, 0, by_kernel.end(to), source.end(from), size).wait();
                EXPECT_EQ(gpu.launches(), launches + 1);
                engine.start(0, 0, by_engine.end(to), source.end(from), size).wait();
                EXPECT_EQ(gpu.launches(), launches + 1);
                ASSERT_TRUE(same(by_kernel.read(), by_engine.read().data()))
                    << size << " bytes from +" << from << " to +" << to;
            }
        }
    }
    EXPECT_EQ(kernel.kernel_refusal(), "");
}

TEST_F(EmulatedCopies, AKernelDoesASingleCopyOnlyWhereItIsAskedFor) {
    Buffer source(gpu, Place::device, 10000), destination(gpu, Place::mapped, 10000),
        other(gpu, Place::other_device, 10000), pinned(gpu, Place::own_pinned, 10000);
    const Bytes content = random_bytes(random, 10000);
    source.write(content);
    DeviceCopies automatic(gpu, pool, Tuning{}, CopyEngine::automatic), kernel(gpu, pool, Tuning{}, CopyEngine::kernel);
    automatic.start(0, 0, destination.end(), source.end(), 8).wait();
    EXPECT_EQ(gpu.launches(), 0);
    kernel.start(0, 0, destination.end(), source.end(), 10000).wait();
    EXPECT_EQ(gpu.launches(), 1);
    EXPECT_TRUE(same(destination.read(), content.data()));
    kernel.start(0, 0, pinned.end(), source.end(), 100).wait();
    kernel.start(0, 0, other.end(), source.end(), 100).wait();
    EXPECT_EQ(gpu.launches(), 1) << "host memory, memory of a device that may be out of reach";
}

TEST_F(EmulatedCopies, OneKernelDoesManySmallCopiesThatStartTogether) {
    constexpr std::size_t kCopies = 30, kRoom = 8000;
    Buffer source(gpu, Place::mapped, kCopies * kRoom), destination(gpu, Place::device, kCopies * kRoom);
    const Bytes content = random_bytes(random, kCopies * kRoom);
    source.write(content);
    const auto check = [&](DeviceCopies& asked, const std::size_t count, const int launches) {
        Bytes expected = random_bytes(random, kCopies * kRoom);
        destination.write(expected);
        const int before = gpu.launches();
        std::vector<DeviceCopies::Copy> started;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t to = i * kRoom + random() % 17, from = i * kRoom + random() % 17;
            const std::size_t size = 1 + random() % (kRoom - 17);
            started.push_back(
                asked.start(0, 0, destination.end(to), source.end(from), size, DeviceCopies::Start::together));
            std::copy_n(content.data() + from, size, expected.data() + to);
        }
        for (DeviceCopies::Copy& copy : started) {
            copy.wait();
        }
        EXPECT_EQ(gpu.launches(), before + launches) << count;
        EXPECT_TRUE(same(destination.read(), expected.data())) << count;
    };
    DeviceCopies engine(gpu, pool, Tuning{}, CopyEngine::engine);
    check(copies, 7, 0);
    check(copies, 8, 1);
    check(copies, kCopies, 1);
    check(engine, kCopies, 0);
    gpu.refuse_launches();
    check(copies, kCopies, 1);
    check(copies, kCopies, 0);
}

TEST_F(EmulatedCopies, AKernelOfShortCopiesHasFewThreads) {
    constexpr std::size_t kCopies = 20, kRoom = 4096;
    Buffer source(gpu, Place::mapped, kCopies * kRoom), destination(gpu, Place::device, kCopies * kRoom);
    const Bytes content = random_bytes(random, kCopies * kRoom);
    source.write(content);
    struct Case {
        std::size_t bytes;
        unsigned threads;
    };
    for (const Case& each : {Case{1, 32}, Case{64, 32}, Case{512, 32}, Case{513, 64}, Case{kRoom, 256}}) {
        destination.write(Bytes(kCopies * kRoom));
        gpu.threads = 0;
        std::vector<DeviceCopies::Copy> started;
        for (std::size_t i = 0; i < kCopies; ++i) {
            started.push_back(copies.start(0, 0, destination.end(i * kRoom), source.end(i * kRoom), each.bytes,
                                           DeviceCopies::Start::together));
        }
        for (DeviceCopies::Copy& copy : started) {
            copy.wait();
        }
        EXPECT_EQ(gpu.threads, kCopies * each.threads) << each.bytes << " bytes";
        const Bytes copied = destination.read();
        for (std::size_t i = 0; i < kCopies; ++i) {
            EXPECT_TRUE(std::equal(copied.begin() + i * kRoom, copied.begin() + i * kRoom + each.bytes,
                                   content.begin() + i * kRoom))
                << each.bytes << " bytes";
        }
    }
}

TEST_F(EmulatedCopies, AQuestionAboutAnOlderCopyLeavesHeldOnesHeld) {
    constexpr std::size_t kCopies = 5, kSize = 100;
    Buffer source(gpu, Place::mapped, kCopies * kSize), destination(gpu, Place::device, kCopies * kSize);
    const Bytes content = random_bytes(random, kCopies * kSize);
    source.write(content);
    DeviceCopies::Copy older = copies.start(0, 0, destination.end(), source.end(), kSize);
    gpu.reset_calls();
    std::vector<DeviceCopies::Copy> held;
    for (std::size_t i = 1; i < kCopies; ++i) {
        held.push_back(copies.start(0, 0, destination.end(i * kSize), source.end(i * kSize), kSize,
                                    DeviceCopies::Start::together));
    }
    older.wait();
    EXPECT_EQ(gpu.calls("copy") + gpu.calls("copy_batch"), 0);
    for (DeviceCopies::Copy& copy : held) {
        copy.wait();
    }
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, NoKernelCopiesBeyondAnAllocation) {
    constexpr std::size_t kSize = 4096;
    Buffer source(gpu, Place::mapped, 2 * kSize), destination(gpu, Place::device, kSize);
    std::vector<DeviceCopies::Copy> started;
    for (std::size_t i = 0; i < 9; ++i) {
        const std::size_t size = i == 8 ? 1 + kSize : 8;
        started.push_back(copies.start(0, 0, destination.end(i == 8 ? 0 : 8 * i), source.end(8 * i), size,
                                       DeviceCopies::Start::together));
    }
    for (DeviceCopies::Copy& copy : started) {
        try {
            copy.wait();
        } catch (const Error&) {
            EXPECT_EQ(&copy, &started.back()) << "the runtime refuses this one alone";
        }
    }
    EXPECT_EQ(gpu.launches(), 0);
}

TEST_F(EmulatedCopies, KernelsAreLoadedAgainAfterShutDown) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    DeviceCopies tuned(gpu, pool, Tuning{}, CopyEngine::kernel);
    tuned.start(0, 0, destination.end(), source.end(), 100).wait();
    tuned.shut_down();
    tuned.shut_down();
    const Bytes content = random_bytes(random, 100);
    source.write(content);
    tuned.start(0, 0, destination.end(), source.end(), 100).wait();
    EXPECT_EQ(gpu.launches(), 2);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(EmulatedCopies, ALaunchThatIsRefusedLeavesTheCopyToTheRuntime) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    const Bytes content = random_bytes(random, 100);
    source.write(content);
    DeviceCopies tuned(gpu, pool, Tuning{}, CopyEngine::kernel);
    gpu.refuse_launches();
    for (int i = 0; i < 3; ++i) {
        tuned.start(0, 0, destination.end(), source.end(), 100).wait();
    }
    EXPECT_EQ(gpu.launches(), 1) << "it is not tried again";
    EXPECT_TRUE(same(destination.read(), content.data()));
    EXPECT_NE(tuned.kernel_refusal().find("injected fault"), std::string::npos) << tuned.kernel_refusal();
}

TEST_F(EmulatedCopies, WithoutACompilerTheRuntimeCopies) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::mapped, 100);
    const Bytes content = fill(source, 100);
    gpu.fail("load_kernels", 0, 1000, gpu::kUnsupported);
    DeviceCopies asked(gpu, pool, Tuning{}, CopyEngine::kernel);
    EXPECT_EQ(asked.kernel_refusal(), "");
    asked.start(0, 0, destination.end(), source.end(), 100).wait();
    EXPECT_TRUE(same(destination.read(), content.data()));
    EXPECT_NE(asked.kernel_refusal().find("load_kernels"), std::string::npos) << asked.kernel_refusal();
    EXPECT_EQ(asked.kernel_refusal().find('\n'), std::string::npos);

    DeviceCopies automatic(gpu, pool, Tuning{}, CopyEngine::automatic);
    automatic.start(0, 0, destination.end(), source.end(), 100).wait();
    EXPECT_EQ(automatic.kernel_refusal(), "") << "nobody asked for a kernel";
}

TEST(CopyEngineTest, TheRuntimesOwnSwitchIsSetUnlessTheUserHas) {
    const char* const name = "HSA_ENABLE_SDMA";
    ASSERT_EQ(::unsetenv(name), 0);
    transfer::request_copy_engine(CopyEngine::automatic);
    EXPECT_EQ(std::getenv(name), nullptr);
    transfer::request_copy_engine(CopyEngine::kernel);
    EXPECT_STREQ(std::getenv(name), "0");
    transfer::request_copy_engine(CopyEngine::engine);
    EXPECT_STREQ(std::getenv(name), "0") << "what is set stays";
    ASSERT_EQ(::unsetenv(name), 0);
    transfer::request_copy_engine(CopyEngine::engine);
    EXPECT_STREQ(std::getenv(name), "1");
    ASSERT_EQ(::unsetenv(name), 0);
}

// ---- failures -------------------------------------------------------------------------------------------------------

/// Every call that can fail, failing at its first, second, ... use: an awaken::Error or success, never unfinished work.
class FailingCopies : public ::testing::TestWithParam<const char*> {};

TEST_P(FailingCopies, EndInAnErrorWhenTheGpuIsThrough) {
    constexpr std::size_t kSize = std::size_t{1} << 20;
    int errors = 0;
    for (int after = 0; after < 8; ++after) {
        for (const Place from : {Place::device, Place::ordinary}) {
            for (const Place to : {Place::device, Place::ordinary}) {
                SCOPED_TRACE(transfer::checks::to_string(from) + " to " + transfer::checks::to_string(to) + " after " +
                             std::to_string(after));
                Random random(3);
                WatchedGpu gpu;
                PinnedPool pool(kPool);
                Tuning tuning;
                tuning.ring_chunk_bytes = std::size_t{64} << 10;
                DeviceCopies copies(gpu, pool, tuning, CopyEngine::automatic);
                Buffer source(gpu, from, kSize), destination(gpu, to, kSize);
                const Bytes content = random_bytes(random, kSize);
                source.write(content);
                gpu.fail(GetParam(), after);
                for (int round = 0; round < 3; ++round) {
                    try {
                        DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), kSize);
                        DeviceCopies::Copy sibling = copies.start(0, 0, destination.end(), source.end(), kSize);
                        try {
                            copy.wait();
                            EXPECT_EQ(copy.completed(), kSize);
                        } catch (const Error&) {
                            EXPECT_LT(copy.completed(), kSize);
                            EXPECT_TRUE(copy.poll()) << "it is over, and was reported";
                            throw;
                        }
                        sibling.wait();
                    } catch (const Error& error) {
                        ++errors;
                        EXPECT_NE(error.cause().find("injected fault"), std::string::npos) << error.what();
                        EXPECT_FALSE(error.remedy().empty());
                    }
                }
                // What comes later works, on another lane.
                gpu.fail(GetParam(), 0, 0);
                copies.start(0, 0, destination.end(), source.end(), kSize).wait();
                EXPECT_TRUE(same(destination.read(), content.data()));
                EXPECT_LE(gpu.live_streams(), 2 + 2) << "two of the buffers; a broken one is given back";
                copies.shut_down();
                EXPECT_EQ(gpu.abandoned_streams(), 0);
                EXPECT_EQ(gpu.live_streams(), 2);
                EXPECT_EQ(gpu.live_events(), 0);
            }
        }
    }
    EXPECT_GT(errors, 0) << "the fault never hit";
}

INSTANTIATE_TEST_SUITE_P(Calls, FailingCopies,
                         ::testing::Values("create_stream", "create_event", "order_after_default_stream", "copy",
                                           "record_event", "query_event"));

TEST_F(EmulatedCopies, ABrokenLaneIsReplacedWhileItsCopiesLive) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    const Bytes content = fill(source, 100);
    gpu.reset_calls();
    DeviceCopies::Copy first = copies.start(0, 0, destination.end(), source.end(), 50);
    gpu.fail("copy");
    EXPECT_THROW(static_cast<void>(copies.start(0, 0, destination.end(), source.end(), 50)), Error);
    DeviceCopies::Copy second = copies.start(0, 0, destination.end(50), source.end(50), 50);
    EXPECT_EQ(gpu.calls("create_stream"), 2);
    second.wait();
    first.wait();
    EXPECT_TRUE(same(destination.read(), content.data())) << "what was accepted before the failure is done";
    second = {};
    first = {};
    // Now the first lane is free, and serves when the second breaks.
    gpu.fail("copy");
    EXPECT_THROW(static_cast<void>(copies.start(0, 0, destination.end(), source.end(), 50)), Error);
    copies.start(0, 0, destination.end(), source.end(), 50).wait();
    EXPECT_EQ(gpu.calls("destroy_stream"), 1);
    EXPECT_EQ(gpu.calls("create_stream"), 3);
}

TEST_F(EmulatedCopies, CopiesThatShareAStreamShareItsFailure) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    DeviceCopies::Copy done = copies.start(0, 0, destination.end(), source.end(), 10);
    done.wait();
    DeviceCopies::Copy first = copies.start(0, 0, destination.end(), source.end(), 10);
    DeviceCopies::Copy second = copies.start(0, 0, destination.end(), source.end(), 10);
    DeviceCopies::Copy dropped = copies.start(0, 0, destination.end(), source.end(), 10);
    gpu.fail("query_event");
    EXPECT_THROW(second.wait(), Error);
    EXPECT_THROW(first.wait(), Error);
    dropped = {};
    EXPECT_TRUE(done.poll());
    EXPECT_EQ(gpu.abandoned_streams(), 0);
}

TEST_F(EmulatedCopies, ARenewedLaneForgetsWhatItHeld) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    const Bytes content = fill(source, 100), before = destination.read();
    DeviceCopies::Copy first = copies.start(0, 0, destination.end(90), source.end(90), 10);
    DeviceCopies::Copy held = copies.start(0, 0, destination.end(), source.end(), 10, DeviceCopies::Start::together);
    gpu.fail("query_event");
    EXPECT_THROW(first.wait(), Error);
    EXPECT_THROW(held.wait(), Error);
    first = {};
    held = {};
    gpu.reset_calls();
    copies.start(0, 0, destination.end(50), source.end(50), 10, DeviceCopies::Start::together).wait();
    EXPECT_EQ(gpu.calls("copy") + gpu.calls("copy_batch"), 1);
    const Bytes after = destination.read();
    EXPECT_TRUE(std::equal(after.begin(), after.begin() + 10, before.begin())) << "its memory may be another's by now";
    EXPECT_TRUE(std::equal(after.begin() + 50, after.begin() + 60, content.begin() + 50));
}

TEST_F(EmulatedCopies, ADriverThatIsGoneIsNotWaitedFor) {
    constexpr std::size_t kSize = std::size_t{1} << 20;
    Buffer source(gpu, Place::device, kSize), ordinary(gpu, Place::ordinary, kSize);
    {
        DeviceCopies::Copy asked = copies.start(0, 0, ordinary.end(), source.end(), kSize);
        const DeviceCopies::Copy dropped = copies.start(0, 0, source.end(), ordinary.end(), kSize);
        gpu.shut_down();
        EXPECT_THROW(asked.wait(), Error);
        EXPECT_LT(asked.completed(), kSize);
        EXPECT_THROW(static_cast<void>(copies.start(0, 0, ordinary.end(), source.end(), kSize)), Error);
    }
    copies.shut_down();
}

TEST_F(EmulatedCopies, ShuttingDownTwiceAndWithCopiesAlive) {
    constexpr std::size_t kSize = std::size_t{5} << 20;
    Buffer source(gpu, Place::device, kSize), destination(gpu, Place::device, kSize),
        ordinary(gpu, Place::ordinary, kSize);
    const Bytes content = fill(source, kSize);
    DeviceCopies::Copy small = copies.start(0, 0, destination.end(), source.end(), 8);
    DeviceCopies::Copy large = copies.start(0, 1, destination.end(), source.end(), kSize);
    DeviceCopies::Copy blocks = copies.start(0, 2, ordinary.end(), source.end(), kSize);
    gpu.held = WatchedGpu::always;
    EXPECT_FALSE(large.poll());
    gpu.held = nullptr;
    copies.shut_down();
    copies.shut_down();
    EXPECT_EQ(gpu.abandoned_streams(), 0);
    EXPECT_EQ(gpu.live_streams(), 3) << "those of the buffers";
    EXPECT_EQ(gpu.live_events(), 0);
    EXPECT_TRUE(small.poll());
    EXPECT_TRUE(large.poll());
    EXPECT_TRUE(same(destination.read(), content.data()));
    // What had not been started yet takes a new stream.
    blocks.wait();
    EXPECT_TRUE(same(ordinary.read(), content.data()));
    copies.start(0, 0, destination.end(), source.end(), 8).wait();
    copies.shut_down();
    EXPECT_EQ(gpu.live_streams(), 3);
}

TEST_F(EmulatedCopies, FailuresWhileShuttingDownReachTheCopies) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), 100);
    gpu.fail("query_stream");
    copies.shut_down();
    EXPECT_THROW(static_cast<void>(copy.poll()), Error);
    copy = {};
    copies.start(0, 0, destination.end(), source.end(), 100).wait();
}

// ---- other processes, and the driver's end --------------------------------------------------------------------------

/// Opens memory of the process that started this one, and copies from and to it with both engines.
SCENARIO(copy_mapped_memory) {
    gpu::Runtime& runtime = emulated();
    gpu::IpcMemoryHandle handle;
    from_text(arguments[0], handle.bytes, sizeof handle.bytes);
    const std::size_t size = std::stoul(arguments[1]);
    void* base = nullptr;
    REQUIRE_EQUAL(runtime.ipc_open(handle, 0, base).ok(), true);
    Bytes content(size);
    from_text(arguments[2], content.data(), size);
    PinnedPool pool(kPool);
    for (const CopyEngine engine : {CopyEngine::kernel, CopyEngine::engine}) {
        CountingGpu counting;
        DeviceCopies copies(counting, pool, Tuning{}, engine);
        Buffer own(runtime, Place::device, size);
        copies.start(0, 0, own.end(), {base, nullptr}, size).wait();
        REQUIRE_EQUAL(same(own.read(), content.data()), true);
        // The second half back, one byte further.
        copies.start(0, 0, {static_cast<std::byte*>(base) + size + 1, nullptr}, own.end(), size).wait();
        REQUIRE_EQUAL(counting.launches(), engine == CopyEngine::kernel ? 2 : 0);
    }
    REQUIRE_EQUAL(runtime.ipc_close(base).ok(), true);
    return 0;
}

TEST_F(EmulatedCopies, MemoryOfAnotherProcess) {
    constexpr std::size_t kSize = 1234;
    Buffer exported(gpu, Place::device, std::size_t{2} << 20);
    const Bytes content = random_bytes(random, kSize);
    exported.write(content);
    gpu::IpcMemoryHandle handle;
    std::size_t offset = 0;
    ASSERT_TRUE(gpu.ipc_export(exported.data(), handle, offset).ok());
    ASSERT_EQ(offset, 0U);
    const Outcome outcome = run_scenario(
        "copy_mapped_memory", {},
        {to_text(handle.bytes, sizeof handle.bytes), std::to_string(kSize), to_text(content.data(), kSize)});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    const Bytes now = exported.read();
    EXPECT_TRUE(std::equal(content.begin(), content.end(), now.begin() + kSize + 1));
}

/// As the layer in a process that ends without MPI_Finalize: the driver is gone before the copies are.
SCENARIO(driver_leaves_first) {
    gpu::Runtime& runtime = emulated();
    static PinnedPool pool(kPool);
    static Buffer source(runtime, Place::device, 1 << 20);
    static Bytes target(1 << 20);
    static const gpu::PointerInfo ordinary;
    // Destroyed by exit handlers, after those of the driver have run.
    struct AtExit {
        std::unique_ptr<DeviceCopies> copies;
        DeviceCopies::Copy copy;
        ~AtExit() {
            copy = {};
            copies.reset();
            std::fputs("through\n", stderr);
        }
    };
    static AtExit at_exit;
    at_exit.copies = std::make_unique<DeviceCopies>(runtime, pool, Tuning{}, CopyEngine::automatic);
    at_exit.copy = at_exit.copies->start(0, 0, {target.data(), &ordinary}, source.end(), target.size());
    std::exit(0);
}

TEST_F(EmulatedCopies, TheDriverMayLeaveFirst) {
    const Outcome outcome = run_scenario("driver_leaves_first", {{"AWAKEN_TEST_FAULTS", "shutdown"}});
    EXPECT_TRUE(outcome.succeeded()) << outcome.output;
    EXPECT_NE(outcome.output.find("through"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace awaken::emulator_test
