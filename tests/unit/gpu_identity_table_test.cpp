// SPDX-License-Identifier: Apache-2.0
#include "gpu/identity_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace awaken::gpu {
namespace {

using Mark = IdentityTable::Mark;

TEST(IdentityTable, RemembersMarks) {
    IdentityTable table;
    EXPECT_EQ(table.find(7), Mark::absent);
    table.insert(7, Mark::set);
    table.insert(8, Mark::refused);
    EXPECT_EQ(table.find(7), Mark::set);
    EXPECT_EQ(table.find(8), Mark::refused);
    table.insert(7, Mark::refused);
    EXPECT_EQ(table.find(7), Mark::refused);
}

TEST(IdentityTable, NoIdentityIsNeverRemembered) {
    IdentityTable table;
    table.insert(0, Mark::set);
    EXPECT_EQ(table.find(0), Mark::absent);
}

TEST(IdentityTable, MayForgetButNeverConfuses) {
    IdentityTable table;
    constexpr std::uint64_t kMany = 100000;
    for (std::uint64_t id = 1; id <= kMany; ++id) {
        table.insert(id, id % 3 == 0 ? Mark::refused : Mark::set);
    }
    std::uint64_t remembered = 0;
    for (std::uint64_t id = 1; id <= 2 * kMany; ++id) {
        const Mark mark = table.find(id);
        if (mark == Mark::absent) {
            continue;
        }
        ++remembered;
        ASSERT_LE(id, kMany);
        ASSERT_EQ(mark, id % 3 == 0 ? Mark::refused : Mark::set);
    }
    EXPECT_GT(remembered, 1000U);  // the latest ones
    EXPECT_LT(remembered, kMany);  // bounded
}

TEST(IdentityTable, ThreadsNeverSeeAnothersMark) {
    IdentityTable table;
    std::atomic<bool> confused{false};
    std::vector<std::thread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&table, &confused, thread] {
            // All identities fall on few places: those of even threads are set, of odd ones refused.
            for (std::uint64_t round = 0; round < 20000; ++round) {
                const std::uint64_t id = 4096 * (4 * (round % 16) + thread) + 5;
                const Mark mine = thread % 2 == 0 ? Mark::set : Mark::refused;
                table.insert(id, mine);
                const Mark seen = table.find(id);
                if (seen != mine && seen != Mark::absent) {
                    confused = true;
                }
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_FALSE(confused);
}

}  // namespace
}  // namespace awaken::gpu
