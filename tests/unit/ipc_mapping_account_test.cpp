// SPDX-License-Identifier: Apache-2.0
// When a message from a large allocation is copied, and when its receiver had better map the allocation.
#include "ipc/mapping_account.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace awaken::ipc {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMiB = std::size_t{1} << 20, kGiB = kMiB << 10;
const MappingAccount::Clock::time_point kNow{1h};

gpu::PointerInfo allocation(const std::uint64_t id, const std::size_t bytes) {
    gpu::PointerInfo info;
    info.kind = gpu::MemoryKind::device;
    info.id = id;
    info.size = bytes;
    info.ipc_capable = true;
    return info;
}

/// How many copies that take 10 us each are made before mapping pays.
int copies(MappingAccount& account, const int peer, const gpu::PointerInfo& info,
           const MappingAccount::Clock::time_point now = kNow) {
    int count = 0;
    for (; count < 100'000 && !account.pays(peer, info, now); ++count) {
        account.copied(peer, info, 10us);
    }
    return count;
}

TEST(MappingAccount, SmallAllocationsAndThoseWithoutIdentityDoNotCount) {
    EXPECT_TRUE(MappingAccount::counts(allocation(1, 65 * kMiB)));
    EXPECT_FALSE(MappingAccount::counts(allocation(1, 64 * kMiB)));
    EXPECT_FALSE(MappingAccount::counts(allocation(0, kGiB)));
    gpu::PointerInfo pool = allocation(1, kGiB);
    pool.ipc_capable = false;
    EXPECT_FALSE(MappingAccount::counts(pool));
}

TEST(MappingAccount, CopiesCostAsMuchAsTheMapping) {
    MappingAccount account;
    // 0.2 ms, and 5.2 us for each of 960 MiB.
    EXPECT_EQ(copies(account, 1, allocation(1, kGiB)), 520);
    EXPECT_EQ(copies(account, 1, allocation(1, kGiB)), 0) << "it is mapped now";
}

TEST(MappingAccount, EachReceiverMapsForItself) {
    MappingAccount account;
    const int first = copies(account, 1, allocation(1, kGiB));
    EXPECT_EQ(copies(account, 2, allocation(1, kGiB)), first);
    EXPECT_EQ(copies(account, 1, allocation(1, kGiB)), 0);
}

TEST(MappingAccount, BeginsAgainWhenTheReceiverHasClosedItsMapping) {
    MappingAccount account;
    const int first = copies(account, 1, allocation(1, kGiB));
    EXPECT_EQ(copies(account, 1, allocation(1, kGiB), kNow + 4s), 0);
    EXPECT_EQ(copies(account, 1, allocation(1, kGiB), kNow + 10s), first);
}

TEST(MappingAccount, ForgetsTheAllocationThatWasIdleLongest) {
    MappingAccount account;
    for (std::uint64_t id = 1; id <= 64; ++id) {
        static_cast<void>(copies(account, 1, allocation(id, kGiB)));
    }
    EXPECT_TRUE(account.pays(1, allocation(1, kGiB), kNow)) << "64 fit";
    EXPECT_FALSE(account.pays(1, allocation(65, kGiB), kNow));
    EXPECT_TRUE(account.pays(1, allocation(1, kGiB), kNow)) << "used lately";
    EXPECT_FALSE(account.pays(1, allocation(2, kGiB), kNow));
}

}  // namespace
}  // namespace awaken::ipc
