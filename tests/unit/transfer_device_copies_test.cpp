#include "transfer/device_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "fake_gpu.h"
#include "transfer_device_copies_checks.h"

namespace awaken::transfer {
namespace {

using checks::Buffer;
using checks::Bytes;
using checks::Place;
using checks::Random;
using checks::random_bytes;
using checks::same;
using test::FakeGpu;

constexpr std::size_t kPool = std::size_t{64} << 20;

/// A GPU, and copies on it.
struct DeviceCopiesTest : ::testing::Test {
    [[nodiscard]] Bytes fill(Buffer& buffer, const std::size_t size) {
        Bytes content = random_bytes(random, size);
        buffer.write(content);
        return content;
    }
    Random random{1};
    FakeGpu gpu{2};
    PinnedPool pool{kPool};
    DeviceCopies copies{gpu, pool, Tuning{}, CopyEngine::automatic};
};

TEST_F(DeviceCopiesTest, SixtyFourSmallCopiesTakeOneEvent) {
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
    // The fake carries out one operation for each query.
    EXPECT_EQ(gpu.calls("query_event"), 65);
    for (DeviceCopies::Copy& copy : started) {
        EXPECT_TRUE(copy.poll());
    }
    EXPECT_EQ(gpu.calls("query_event"), 65) << "the answer for the last holds for all before it";
    EXPECT_EQ(gpu.calls("record_event"), 1);
    EXPECT_EQ(gpu.calls("create_event"), 1);
    EXPECT_EQ(gpu.calls("query_stream"), 0);
    EXPECT_EQ(gpu.calls("synchronize_stream"), 0);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(DeviceCopiesTest, CopiesStartedTogetherAreGivenToTheGpuInOneCall) {
    constexpr std::size_t kCopies = 64, kSize = 8;
    constexpr auto kTogether = DeviceCopies::Start::together;
    Buffer source(gpu, Place::device, (kCopies + 2) * kSize), destination(gpu, Place::device, (kCopies + 2) * kSize);
    const Bytes content = fill(source, (kCopies + 2) * kSize);
    gpu.reset_calls();
    std::vector<DeviceCopies::Copy> started;
    const auto start = [&](const DeviceCopies::Start when) {
        const std::size_t at = started.size() * kSize;
        started.push_back(copies.start(0, 0, destination.end(at), source.end(at), kSize, when));
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

TEST_F(DeviceCopiesTest, WhatIsHeldBackIsDoneWhenItIsAskedForOrDropped) {
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

TEST_F(DeviceCopiesTest, ALongCopyIsNotHeldBack) {
    constexpr std::size_t kSize = (std::size_t{16} << 20) + 1;
    Buffer source(gpu, Place::device, kSize), destination(gpu, Place::device, kSize);
    DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), kSize, DeviceCopies::Start::together);
    EXPECT_EQ(gpu.calls("copy"), 1);
    copy.wait();
}

TEST_F(DeviceCopiesTest, OfABatchThatIsRefusedOnlyTheBadCopyFails) {
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

TEST_F(DeviceCopiesTest, ACopyStartedAfterAMarkerNeedsAnother) {
    Buffer source(gpu, Place::device, 16), destination(gpu, Place::device, 16);
    const Bytes content = fill(source, 16);
    DeviceCopies::Copy first = copies.start(0, 0, destination.end(), source.end(), 8);
    EXPECT_FALSE(first.poll());
    DeviceCopies::Copy second = copies.start(0, 0, destination.end(8), source.end(8), 8);
    EXPECT_TRUE(first.poll());
    EXPECT_FALSE(second.poll()) << "the first marker does not cover it";
    second.wait();
    EXPECT_EQ(gpu.calls("record_event"), 2);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(DeviceCopiesTest, EventsAreUsedAgain) {
    Buffer source(gpu, Place::device, 8), destination(gpu, Place::device, 8);
    for (int i = 0; i < 100; ++i) {
        copies.start(0, 0, destination.end(), source.end(), 8).wait();
    }
    EXPECT_EQ(gpu.calls("create_event"), 1);
    EXPECT_EQ(gpu.calls("record_event"), 100);
}

TEST_F(DeviceCopiesTest, LargeCopiesGoOnFourStreamsByLane) {
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

TEST_F(DeviceCopiesTest, NothingIsThereBeforeTheCopyIsOver) {
    constexpr std::size_t kSize = std::size_t{2} << 20;
    Buffer source(gpu, Place::device, kSize), destination(gpu, Place::device, kSize);
    const Bytes content = fill(source, kSize);
    DeviceCopies::Copy copy = copies.start(0, 3, destination.end(), source.end(), kSize);
    EXPECT_EQ(copy.completed(), 0U);
    EXPECT_FALSE(copy.poll());
    EXPECT_EQ(copy.completed(), 0U);
    EXPECT_TRUE(copy.poll());
    EXPECT_EQ(copy.completed(), kSize);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(DeviceCopiesTest, OrdinaryMemoryArrivesBlockByBlock) {
    constexpr std::size_t kSize = (std::size_t{9} << 20) + 5;
    for (const auto& [from, to] : {std::pair{Place::device, Place::ordinary}, {Place::ordinary, Place::device}}) {
        Buffer source(gpu, from, kSize), destination(gpu, to, kSize);
        const Bytes content = fill(source, kSize);
        destination.write(Bytes(kSize));
        DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), kSize);
        std::vector<std::size_t> seen;
        while (!copy.poll()) {
            const std::size_t arrived = copy.completed();
            if (!seen.empty() && seen.back() == arrived) {
                continue;
            }
            seen.push_back(arrived);
            ASSERT_TRUE(same(destination.read(arrived), content.data()));
        }
        EXPECT_TRUE(same(destination.read(), content.data()));
        EXPECT_GE(seen.size(), 9U) << "blocks of 1 MiB, one after another";
    }
    EXPECT_EQ(pool.statistics().pinned_bytes, std::size_t{4} << 20);
}

TEST_F(DeviceCopiesTest, AShortMessageTakesASmallBlock) {
    Buffer source(gpu, Place::ordinary, 8), destination(gpu, Place::device, 8);
    const Bytes content = fill(source, 8);
    copies.start(0, 0, destination.end(), source.end(), 8).wait();
    EXPECT_EQ(pool.statistics().pinned_peak_bytes, 4096U);
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(DeviceCopiesTest, TheProgramsEarlierWorkComesFirst) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    gpu.delay(source.data(), [&] { std::memset(gpu.view(source.data()), 7, 100); });
    copies.start(0, 0, destination.end(), source.end(), 100).wait();
    EXPECT_EQ(destination.read(), Bytes(100, std::byte{7}));
    gpu.reset_calls();
    copies.start(0, 0, {destination.data(), nullptr}, {source.data(), nullptr}, 100).wait();
    EXPECT_EQ(gpu.calls("order_after_default_stream"), 0) << "nothing of the program's";
}

TEST_F(DeviceCopiesTest, HostToHostNeedsNoGpu) {
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

TEST_F(DeviceCopiesTest, MemoryWithoutAnOwnerIsCopiedByTheCallersDevice) {
    Buffer source(gpu, Place::managed, 100), destination(gpu, Place::managed, 100);
    const Bytes content = fill(source, 100);
    copies.start(-1, 0, destination.end(), source.end(), 100).wait();
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(DeviceCopiesTest, NoBytesNoCopy) {
    gpu.reset_calls();
    DeviceCopies::Copy copy = copies.start(0, 0, {nullptr, nullptr}, {nullptr, nullptr}, 0);
    EXPECT_TRUE(copy.poll());
    copy.wait();
    EXPECT_EQ(copy.completed(), 0U);
    DeviceCopies::Copy never;
    EXPECT_TRUE(never.poll());
    EXPECT_EQ(gpu.calls("create_stream"), 0);
}

TEST_F(DeviceCopiesTest, ADestroyedCopyIsOver) {
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
    EXPECT_EQ(gpu.abandoned_operations(), 0);
}

TEST_F(DeviceCopiesTest, AnotherCopyTakesTheFirstOnesPlace) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    const Bytes content = fill(source, 100);
    DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), 50);
    copy = copies.start(0, 0, destination.end(50), source.end(50), 50);
    EXPECT_EQ(std::memcmp(gpu.view(destination.data()), content.data(), 50), 0) << "the first was not waited for";
    DeviceCopies::Copy moved(std::move(copy));
    moved.wait();
    EXPECT_TRUE(same(destination.read(), content.data()));
}

TEST_F(DeviceCopiesTest, AllPairsOfPlaces) {
    checks::check_all_pairs(gpu, CopyEngine::automatic, kPool);
    EXPECT_EQ(gpu.abandoned_operations(), 0);
}

TEST_F(DeviceCopiesTest, AllPairsOfPlacesWithoutPinnedMemory) {
    checks::check_all_pairs(gpu, CopyEngine::engine, 0);
}

TEST_F(DeviceCopiesTest, OneBlockIsAllThatIsLeft) {
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

TEST_F(DeviceCopiesTest, ManyAtOnceInAnyOrder) {
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
        checks::check_many_at_once(gpu, seed);
    }
}

TEST_F(DeviceCopiesTest, Threads) {
    checks::check_threads(gpu, 30);
}

// ---- failures -------------------------------------------------------------------------------------------------------

/// Every call that can fail, failing at its first, second, ... use: an awaken::Error or success, never unfinished work.
class DeviceCopiesFailures : public ::testing::TestWithParam<const char*> {};

TEST_P(DeviceCopiesFailures, EndInAnErrorWhenTheGpuIsThrough) {
    constexpr std::size_t kSize = std::size_t{1} << 20;
    int errors = 0;
    for (int after = 0; after < 8; ++after) {
        for (const Place from : {Place::device, Place::ordinary}) {
            for (const Place to : {Place::device, Place::ordinary}) {
                SCOPED_TRACE(to_string(from) + " to " + to_string(to) + " after " + std::to_string(after));
                Random random(3);
                FakeGpu gpu;
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
                EXPECT_EQ(gpu.abandoned_operations(), 0);
                EXPECT_EQ(gpu.live_streams(), 2);
                EXPECT_EQ(gpu.live_events(), 0);
            }
        }
    }
    EXPECT_GT(errors, 0) << "the fault never hit";
}

INSTANTIATE_TEST_SUITE_P(Calls, DeviceCopiesFailures,
                         ::testing::Values("create_stream", "create_event", "order_after_default_stream", "copy",
                                           "record_event", "query_event"));

TEST_F(DeviceCopiesTest, ABrokenLaneIsReplacedWhileItsCopiesLive) {
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

TEST_F(DeviceCopiesTest, CopiesThatShareAStreamShareItsFailure) {
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
    EXPECT_EQ(gpu.abandoned_operations(), 0);
}

TEST_F(DeviceCopiesTest, ADriverThatIsGoneIsNotWaitedFor) {
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

TEST_F(DeviceCopiesTest, ShuttingDownTwiceAndWithCopiesAlive) {
    constexpr std::size_t kSize = std::size_t{5} << 20;
    Buffer source(gpu, Place::device, kSize), destination(gpu, Place::device, kSize),
        ordinary(gpu, Place::ordinary, kSize);
    const Bytes content = fill(source, kSize);
    DeviceCopies::Copy small = copies.start(0, 0, destination.end(), source.end(), 8);
    DeviceCopies::Copy large = copies.start(0, 1, destination.end(), source.end(), kSize);
    DeviceCopies::Copy blocks = copies.start(0, 2, ordinary.end(), source.end(), kSize);
    EXPECT_FALSE(large.poll());
    copies.shut_down();
    copies.shut_down();
    EXPECT_EQ(gpu.abandoned_operations(), 0);
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

TEST_F(DeviceCopiesTest, FailuresWhileShuttingDownReachTheCopies) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::device, 100);
    DeviceCopies::Copy copy = copies.start(0, 0, destination.end(), source.end(), 100);
    gpu.fail("query_stream");
    copies.shut_down();
    EXPECT_THROW(static_cast<void>(copy.poll()), Error);
    copy = {};
    copies.start(0, 0, destination.end(), source.end(), 100).wait();
}

// ---- engines --------------------------------------------------------------------------------------------------------

TEST_F(DeviceCopiesTest, WithoutACompilerTheRuntimeCopies) {
    Buffer source(gpu, Place::device, 100), destination(gpu, Place::mapped, 100);
    const Bytes content = fill(source, 100);
    DeviceCopies asked(gpu, pool, Tuning{}, CopyEngine::kernel);
    EXPECT_EQ(asked.kernel_refusal(), "");
    asked.start(0, 0, destination.end(), source.end(), 100).wait();
    EXPECT_TRUE(same(destination.read(), content.data()));
    EXPECT_NE(asked.kernel_refusal().find("load_kernels"), std::string::npos) << asked.kernel_refusal();
    EXPECT_EQ(asked.kernel_refusal().find('\n'), std::string::npos);

    Tuning tuning;
    tuning.kernel_copy_bytes = 1000;
    DeviceCopies automatic(gpu, pool, tuning, CopyEngine::automatic);
    automatic.start(0, 0, destination.end(), source.end(), 100).wait();
    EXPECT_EQ(automatic.kernel_refusal(), "") << "nobody asked for a kernel";
}

TEST(DeviceCopiesEngine, TheRuntimesOwnSwitchIsSetUnlessTheUserHas) {
    const char* const name = "HSA_ENABLE_SDMA";
    ASSERT_EQ(::unsetenv(name), 0);
    request_copy_engine(CopyEngine::automatic);
    EXPECT_EQ(std::getenv(name), nullptr);
    request_copy_engine(CopyEngine::kernel);
    EXPECT_STREQ(std::getenv(name), "0");
    request_copy_engine(CopyEngine::engine);
    EXPECT_STREQ(std::getenv(name), "0") << "what is set stays";
    ASSERT_EQ(::unsetenv(name), 0);
    request_copy_engine(CopyEngine::engine);
    EXPECT_STREQ(std::getenv(name), "1");
    ASSERT_EQ(::unsetenv(name), 0);
}

}  // namespace
}  // namespace awaken::transfer
