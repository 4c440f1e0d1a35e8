// SPDX-License-Identifier: Apache-2.0
// Room for messages of unknown size: reused, as much address space as asked for, and no memory kept that nobody needs.
#include "transfer/bounce_buffer.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace awaken::transfer {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;

/// Pages of [data, data + bytes) that have memory behind them.
std::size_t resident_pages(std::byte* const data, const std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::vector<unsigned char> pages(bytes / page);
    EXPECT_EQ(mincore(data, bytes, pages.data()), 0) << "not mapped";
    std::size_t count = 0;
    for (const unsigned char state : pages) {
        count += state & 1;
    }
    return count;
}

bool is_mapped(std::byte* const data, const std::size_t bytes) {
    std::vector<unsigned char> pages(bytes / static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
    return mincore(data, bytes, pages.data()) == 0;
}

TEST(BounceBufferTest, HasRoomForWhatWasAskedFor) {
    BounceBufferPool pool;
    for (const std::size_t bytes :
         {std::size_t{0}, std::size_t{1}, 64 * kKiB, 64 * kKiB + 1, kMiB - 1, kMiB, 5 * kMiB + 3}) {
        BounceBuffer bounce_buffer = pool.acquire(bytes);
        ASSERT_TRUE(bounce_buffer);
        std::memset(bounce_buffer.data(), 0x5A, bytes);
        bounce_buffer.used(bytes);
    }
}

TEST(BounceBufferTest, NothingIsOneWithoutARoom) {
    BounceBuffer bounce_buffer;
    EXPECT_FALSE(bounce_buffer);
    EXPECT_EQ(bounce_buffer.data(), nullptr);
    bounce_buffer.release();
    bounce_buffer = BounceBuffer();
    EXPECT_FALSE(bounce_buffer);
}

TEST(BounceBufferTest, CostsAddressSpaceOnly) {
    BounceBufferPool pool;
    // More than this machine may have, since hardly any of it is ever written.
    const BounceBuffer bounce_buffer = pool.acquire(64 * kGiB);
    ASSERT_TRUE(bounce_buffer);
    bounce_buffer.data()[0] = std::byte{1};
    bounce_buffer.data()[64 * kGiB - 1] = std::byte{2};
    EXPECT_EQ(resident_pages(bounce_buffer.data() + kGiB, 64 * kMiB), 0u);
}

TEST(BounceBufferTest, RegionsAreUsedAgainByWhatFitsTheSameSize) {
    BounceBufferPool pool;
    BounceBuffer first = pool.acquire(kMiB);
    std::byte* const data = first.data();
    first.release();
    EXPECT_FALSE(first);
    EXPECT_EQ(first.data(), nullptr);
    BounceBuffer second = pool.acquire(kMiB - 1000);
    EXPECT_EQ(second.data(), data);
    BounceBuffer third = pool.acquire(kMiB);
    EXPECT_NE(third.data(), data) << "it is in use";
    second.release();
    EXPECT_NE(pool.acquire(2 * kMiB).data(), data);
    EXPECT_NE(pool.acquire(64 * kKiB).data(), data);
    EXPECT_EQ(pool.acquire(kMiB).data(), data);
}

TEST(BounceBufferTest, MovesToItsNewOwner) {
    BounceBufferPool pool;
    BounceBuffer first = pool.acquire(kMiB);
    std::byte* const data = first.data();
    BounceBuffer second(std::move(first));
    EXPECT_FALSE(first);
    EXPECT_EQ(second.data(), data);
    BounceBuffer third = pool.acquire(kMiB);
    std::byte* const given_back = third.data();
    third = std::move(second);
    EXPECT_FALSE(second);
    EXPECT_EQ(third.data(), data);
    EXPECT_EQ(pool.acquire(kMiB).data(), given_back) << "what it had before was given back";
    BounceBuffer& itself = third;
    third = std::move(itself);
    EXPECT_EQ(third.data(), data);
}

TEST(BounceBufferTest, WhatALongMessageLeftGoesBackToTheSystem) {
    BounceBufferPool pool;
    BounceBuffer bounce_buffer = pool.acquire(kMiB);
    std::byte* const data = bounce_buffer.data();
    std::memset(data, 0x5A, kMiB);
    bounce_buffer.used(kMiB);
    bounce_buffer.release();
    EXPECT_EQ(resident_pages(data, kMiB), 0u);
    EXPECT_EQ(pool.acquire(kMiB).data(), data);
}

TEST(BounceBufferTest, WhatAShortMessageLeftStays) {
    BounceBufferPool pool;
    BounceBuffer bounce_buffer = pool.acquire(kMiB);
    std::byte* const data = bounce_buffer.data();
    std::memset(data, 0x5A, 64 * kKiB);
    bounce_buffer.used(64 * kKiB);
    bounce_buffer.release();
    // Giving back and faulting in again would cost more than the few pages are worth.
    EXPECT_GT(resident_pages(data, kMiB), 0u);
}

TEST(BounceBufferTest, WhatWasUsedBeforeDoesNotCountForTheNextMessage) {
    BounceBufferPool pool;
    BounceBuffer bounce_buffer = pool.acquire(kMiB);
    bounce_buffer.used(kMiB);
    bounce_buffer.release();
    BounceBuffer again = pool.acquire(kMiB);
    std::memset(again.data(), 0x5A, 4 * kKiB);
    std::byte* const data = again.data();
    again.release();
    EXPECT_GT(resident_pages(data, kMiB), 0u);
}

TEST(BounceBufferTest, TrimmingGivesBackWhatIsFreeAndOnlyThat) {
    BounceBufferPool pool;
    BounceBuffer in_use = pool.acquire(kMiB);
    BounceBuffer other = pool.acquire(kMiB);
    std::byte* const data = other.data();
    in_use.data()[0] = std::byte{7};
    other.release();
    pool.trim();
    EXPECT_FALSE(is_mapped(data, kMiB));
    EXPECT_EQ(in_use.data()[0], std::byte{7});
    pool.trim();
    EXPECT_TRUE(pool.acquire(kMiB));
}

TEST(BounceBufferTest, KeepsABoundedNumberOfRegions) {
    BounceBufferPool pool;
    std::vector<BounceBuffer> bounce_buffers;
    std::vector<std::byte*> regions;
    constexpr std::size_t kMany = 300;
    for (std::size_t i = 0; i < kMany; ++i) {
        bounce_buffers.push_back(pool.acquire(64 * kKiB));
        regions.push_back(bounce_buffers.back().data());
    }
    bounce_buffers.clear();
    std::size_t kept = 0;
    for (std::byte* const region : regions) {
        kept += is_mapped(region, 64 * kKiB) ? 1 : 0;
    }
    EXPECT_GE(kept, 64u) << "as many as a program posts at a time are worth keeping";
    EXPECT_LT(kept, kMany);
}

TEST(BounceBufferTest, ThereIsNoRoomForTooMuch) {
    BounceBufferPool pool;
    // More than the processor can address.
    for (const std::size_t bytes : {std::size_t{1} << 60, std::size_t{1} << 63}) {
        try {
            const BounceBuffer bounce_buffer = pool.acquire(bytes);
            FAIL() << bytes;
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos) << error.what();
        }
    }
    EXPECT_TRUE(pool.acquire(1));
}

TEST(BounceBufferTest, ThereIsNoRoomForMoreThanCanBeCounted) {
    BounceBufferPool pool;
    for (const std::size_t bytes : {(std::size_t{1} << 63) + 1, ~std::size_t{0}}) {
        EXPECT_THROW(static_cast<void>(pool.acquire(bytes)), Error) << bytes;
    }
}

TEST(BounceBufferTest, ManyThreadsAtOnce) {
    BounceBufferPool pool;
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (unsigned round = 0; round < 500; ++round) {
                const std::size_t bytes = (64 * kKiB) << (round % 3);
                BounceBuffer bounce_buffer = pool.acquire(bytes);
                const auto mark = static_cast<std::byte>(thread * 61 + round);
                bounce_buffer.data()[0] = bounce_buffer.data()[bytes - 1] = mark;
                bounce_buffer.used(bytes);
                std::this_thread::yield();
                if (bounce_buffer.data()[0] != mark || bounce_buffer.data()[bytes - 1] != mark) {
                    ++wrong;
                }
                if (round % 100 == 99) {
                    pool.trim();
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace awaken::transfer
