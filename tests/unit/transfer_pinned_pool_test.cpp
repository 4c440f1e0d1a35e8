// SPDX-License-Identifier: Apache-2.0
#include "transfer/pinned_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "base/error.h"
#include "watched_gpu.h"

namespace awaken::transfer {
namespace {

using emulator_test::WatchedGpu;

TEST(PinnedPool, RoundsToPowersOfTwoAndReuses) {
    WatchedGpu gpu;
    PinnedPool pool(1 << 20);
    std::byte* first = nullptr;
    {
        const StagingBlock block = pool.acquire(gpu, 5000);
        EXPECT_TRUE(block.pinned());
        EXPECT_EQ(block.size(), 5000U);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data()) % 64, 0U);
        EXPECT_EQ(pool.statistics().pinned_bytes, 8192U);
        std::memset(block.data(), 1, block.size());
        first = block.data();
    }
    EXPECT_EQ(pool.statistics().pinned_bytes, 8192U) << "free blocks are kept";
    const StagingBlock again = pool.acquire(gpu, 8192);
    EXPECT_EQ(again.data(), first);
    EXPECT_EQ(gpu.calls("allocate_pinned"), 1);
    const StagingBlock small = pool.acquire(gpu, 0);
    EXPECT_NE(small.data(), nullptr);
    EXPECT_EQ(pool.statistics().pinned_bytes, 8192U + 4096U);
}

TEST(PinnedPool, OverflowsIntoOrdinaryMemoryAndComesBack) {
    WatchedGpu gpu;
    PinnedPool pool(16384);
    StagingBlock a = pool.acquire(gpu, 8192);
    StagingBlock b = pool.acquire(gpu, 8192);
    StagingBlock c = pool.acquire(gpu, 100);
    EXPECT_TRUE(a.pinned() && b.pinned());
    EXPECT_FALSE(c.pinned());
    std::memset(c.data(), 1, c.size());
    EXPECT_EQ(pool.statistics().overflow_blocks, 1U);
    EXPECT_EQ(pool.statistics().overflow_bytes, 100U);
    EXPECT_GE(pool.statistics().overflow_peak_bytes, 100U);
    a.release();
    c = pool.acquire(gpu, 100);
    EXPECT_TRUE(c.pinned()) << "the free block of another size made room";
    EXPECT_EQ(pool.statistics().pinned_bytes, 8192U + 4096U);
    EXPECT_EQ(pool.statistics().pinned_peak_bytes, 16384U);
}

TEST(PinnedPool, RequestBeyondTheLimitLeavesTheFreeBlocksAlone) {
    WatchedGpu gpu;
    PinnedPool pool(16384);
    pool.acquire(gpu, 8192).release();
    const StagingBlock big = pool.acquire(gpu, 16385);
    EXPECT_FALSE(big.pinned());
    EXPECT_EQ(gpu.calls("free_pinned"), 0);
    EXPECT_EQ(pool.statistics().pinned_bytes, 8192U);
}

TEST(PinnedPool, BlocksStayWithinTheLimitWhateverIsAskedFor) {
    WatchedGpu gpu;
    constexpr std::size_t kLimit = 256 << 10;
    PinnedPool pool(kLimit);
    std::mt19937 random(7);
    std::vector<StagingBlock> lent;
    for (int i = 0; i < 2000; ++i) {
        if (lent.size() > 20 || (!lent.empty() && random() % 2 == 0)) {
            std::swap(lent[random() % lent.size()], lent.back());
            lent.pop_back();
        } else {
            lent.push_back(pool.acquire(gpu, std::size_t{1} << (random() % 20)));
            lent.back().data()[lent.back().size() - 1] = std::byte{1};
        }
        ASSERT_LE(gpu.live_bytes(gpu::MemoryKind::pinned), kLimit);
        ASSERT_EQ(gpu.live_bytes(gpu::MemoryKind::pinned), pool.statistics().pinned_bytes);
    }
    lent.clear();
    pool.trim();
    EXPECT_EQ(gpu.live_bytes(gpu::MemoryKind::pinned), 0U);
    EXPECT_EQ(pool.statistics().pinned_bytes, 0U);
    pool.trim();
}

TEST(PinnedPool, KnowsWhatItCouldStillLend) {
    WatchedGpu gpu;
    PinnedPool pool(16384);
    EXPECT_EQ(pool.limit_bytes(), 16384U);
    EXPECT_EQ(pool.spare_bytes(), 16384U);
    StagingBlock a = pool.acquire(gpu, 8192);
    const StagingBlock ordinary = pool.acquire_ordinary(8192);
    EXPECT_FALSE(ordinary.pinned());
    EXPECT_EQ(pool.spare_bytes(), 8192U);
    a.release();
    EXPECT_EQ(pool.spare_bytes(), 16384U) << "a free block can be lent again";
    const StagingBlock b = pool.acquire(gpu, 16384);
    EXPECT_TRUE(b.pinned());
    EXPECT_EQ(pool.spare_bytes(), 0U);
}

TEST(PinnedPool, KeepsAsMuchOrdinaryMemoryAsItMayPin) {
    WatchedGpu gpu;
    PinnedPool pool(16384);
    std::vector<StagingBlock> lent;
    for (int i = 0; i < 3; ++i) {
        lent.push_back(pool.acquire_ordinary(8192));
        std::memset(lent.back().data(), 1 + i, 8192);
    }
    std::byte* const first = lent[0].data();
    std::byte* const second = lent[1].data();
    lent.clear();  // the third one is too much
    const StagingBlock again = pool.acquire_ordinary(8000);
    const StagingBlock another = pool.acquire_ordinary(8192);
    EXPECT_TRUE((again.data() == first && another.data() == second) ||
                (again.data() == second && another.data() == first));
    EXPECT_TRUE(again.data()[0] == std::byte{1} || again.data()[0] == std::byte{2}) << "fresh pages";
    const StagingBlock other_size = pool.acquire_ordinary(100);
    EXPECT_NE(other_size.data(), nullptr);
    EXPECT_EQ(pool.statistics().overflow_blocks, 6U);
}

TEST(PinnedPool, RefusedPinningIsServedFromOrdinaryMemory) {
    WatchedGpu gpu;
    PinnedPool pool(1 << 20);
    gpu.fail("allocate_pinned");
    EXPECT_FALSE(pool.acquire(gpu, 4096).pinned());
    EXPECT_EQ(pool.statistics().pinned_bytes, 0U);
    EXPECT_TRUE(pool.acquire(gpu, 4096).pinned()) << "one refusal is not for ever";
}

TEST(PinnedPool, SurvivesTheRuntime) {
    WatchedGpu gpu;
    {
        PinnedPool pool(1 << 20);
        StagingBlock lent = pool.acquire(gpu, 4096);
        pool.acquire(gpu, 8192).release();
        gpu.shut_down();
        lent.release();
        pool.trim();
        EXPECT_EQ(pool.statistics().pinned_bytes, 0U);
        const StagingBlock ordinary = pool.acquire(gpu, 4096);
        EXPECT_FALSE(ordinary.pinned());
        std::memset(ordinary.data(), 1, ordinary.size());
    }
}

TEST(PinnedPool, MovingLeavesNothingBehind) {
    WatchedGpu gpu;
    PinnedPool pool(8192);
    StagingBlock a = pool.acquire(gpu, 4096);
    StagingBlock b = std::move(a);
    EXPECT_EQ(a.data(), nullptr);
    EXPECT_EQ(a.size(), 0U);
    a.release();
    b = pool.acquire(gpu, 4096);
    StagingBlock& self = b;
    b = std::move(self);
    EXPECT_NE(b.data(), nullptr);
    EXPECT_TRUE(pool.acquire(gpu, 4096).pinned()) << "the overwritten block went back";
}

TEST(PinnedPool, ASecondRuntimeTakesOverWhenTheFirstHasNothingOnLoan) {
    WatchedGpu first, second;
    PinnedPool pool(1 << 20);
    StagingBlock lent = pool.acquire(first, 4096);
    EXPECT_FALSE(pool.acquire(second, 4096).pinned());
    lent.release();
    lent = pool.acquire(second, 4096);
    EXPECT_TRUE(lent.pinned());
    EXPECT_EQ(first.live_bytes(gpu::MemoryKind::pinned), 0U);
}

TEST(PinnedPool, MoreThanTheLimitWhereNothingLessWillDo) {
    WatchedGpu gpu;
    PinnedPool pool(64 << 10);
    {
        const StagingBlock first = pool.acquire(gpu, 40 << 10);
        EXPECT_FALSE(pool.acquire(gpu, 40 << 10).pinned());
        EXPECT_TRUE(pool.acquire(gpu, 40 << 10, true).pinned());
        const StagingBlock large = pool.acquire(gpu, 200 << 10, true);
        EXPECT_TRUE(large.pinned());
        EXPECT_GE(large.size(), 200U << 10);
        EXPECT_EQ(pool.spare_bytes(), 0U);
    }
    // The next request brings the pool back to its limit.
    EXPECT_TRUE(pool.acquire(gpu, 5 << 10).pinned());
    EXPECT_LE(gpu.live_bytes(gpu::MemoryKind::pinned), 64U << 10);
}

TEST(PinnedPool, NoMemoryAtAllIsAnErrorWithARemedy) {
    WatchedGpu gpu;
    PinnedPool pool(4096);
    for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX / 2}) {
        try {
            (void)pool.acquire(gpu, bytes);
            FAIL() << "an impossible request was served";
        } catch (const Error& error) {
            EXPECT_NE(error.cause().find(std::to_string(bytes)), std::string::npos);
            EXPECT_FALSE(error.remedy().empty());
        }
    }
    EXPECT_EQ(pool.statistics().overflow_blocks, 0U);
}

TEST(PinnedPool, ThreadsShareIt) {
    WatchedGpu gpu;
    PinnedPool pool(64 << 10);
    const auto work = [&pool, &gpu](const unsigned seed) {
        std::mt19937 random(seed);
        for (int i = 0; i < 300; ++i) {
            const StagingBlock block = pool.acquire(gpu, 1 + random() % (24 << 10));
            const auto mark = static_cast<std::byte>(random());
            block.data()[0] = block.data()[block.size() - 1] = mark;
            std::this_thread::yield();
            ASSERT_EQ(block.data()[0], mark) << "two threads hold one block";
        }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 4; ++i) {
        threads.emplace_back(work, i);
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_LE(gpu.live_bytes(gpu::MemoryKind::pinned), 64U << 10);
}

}  // namespace
}  // namespace awaken::transfer
