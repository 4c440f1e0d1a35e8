// Lanes: whose turn it is, what may be under way, and what becomes of the window when the receiver does not come.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "protocol/flow_window.h"

namespace awaken::p2p {
namespace {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ns;

constexpr std::size_t kWindow = 3;

/// Starts as many chunks of the message as may be.
std::vector<Lane::Share> take_all(Lane& lane, const std::uint32_t id, const std::size_t window = kWindow) {
    std::vector<Lane::Share> shares;
    for (Lane::Share share = lane.take(id, window); share; share = lane.take(id, window))
        shares.push_back(std::move(share));
    return shares;
}

TEST(Lane, MessagesTakeTheWindowInTheOrderInWhichTheyWereSent) {
    Lane lane;
    lane.join(7);
    lane.join(2);
    EXPECT_TRUE(take_all(lane, 2).empty());
    EXPECT_TRUE(take_all(lane, 99).empty()) << "not in the line";
    std::vector<Lane::Share> first = take_all(lane, 7);
    EXPECT_EQ(first.size(), kWindow);
    lane.leave(7);
    EXPECT_TRUE(take_all(lane, 2).empty()) << "the window is full";
    first.pop_back();
    EXPECT_EQ(take_all(lane, 2).size(), 1U);
}

TEST(Lane, WhatTheReceiverComesForIsNeverKeptBackByTheRest) {
    Lane lane;
    for (const std::uint32_t id : {0U, 1U, 2U, 3U})
        lane.join(id);
    const std::vector<Lane::Share> ahead = take_all(lane, 0);
    ASSERT_EQ(ahead.size(), kWindow);
    lane.come_for(2);
    lane.come_for(1);
    lane.come_for(1);
    lane.come_for(42);
    EXPECT_TRUE(take_all(lane, 1).empty()) << "the receiver came for 2 before";
    const std::vector<Lane::Share> second = take_all(lane, 2);
    EXPECT_EQ(second.size(), kWindow);
    lane.leave(2);
    EXPECT_TRUE(take_all(lane, 1).empty()) << "those that it has come for share a window, too";
    lane.leave(1);
    EXPECT_TRUE(take_all(lane, 0).empty());
    EXPECT_TRUE(take_all(lane, 3).empty());
}

TEST(Lane, WhatIsNotWantedYetTakesOnlyWhatIsLeft) {
    Lane lane;
    lane.join(0, true);
    lane.join(1);
    std::vector<Lane::Share> wanted;
    wanted.push_back(lane.take(0, kWindow));
    EXPECT_FALSE(lane.take(1, kWindow)) << "the first one has more to start";
    lane.leave(0);
    EXPECT_EQ(take_all(lane, 1).size(), kWindow - 1);
}

TEST(Lane, ForcedChunksCountButAreNeverRefused) {
    Lane lane;
    lane.join(0);
    std::vector<Lane::Share> forced;
    for (std::size_t at = 0; at < 2 * kWindow; ++at)
        forced.push_back(lane.force());
    EXPECT_TRUE(take_all(lane, 0).empty());
    forced.clear();
    EXPECT_EQ(take_all(lane, 0).size(), kWindow);
}

TEST(Lane, SharesAreGivenBackOnceWhereverTheyAreMoved) {
    Lane lane;
    lane.join(0);
    Lane::Share kept = lane.take(0, 1);
    Lane::Share moved = std::move(kept);
    EXPECT_FALSE(kept);  // NOLINT(bugprone-use-after-move): the empty state is what is tested
    EXPECT_TRUE(moved);
    EXPECT_FALSE(lane.take(0, 1));
    std::optional<Lane::Share> last = std::move(moved);
    last.reset();
    EXPECT_TRUE(lane.take(0, 1));
}

TEST(Lane, TheWindowGrowsWhileNothingArrivesAndShrinksWhenSomethingDoes) {
    Lane lane;
    lane.join(0);
    std::vector<Lane::Share> shares = take_all(lane, 0);
    lane.grow_if_still(1h, kWindow);
    EXPECT_FALSE(lane.stands_still(1h));
    EXPECT_TRUE(take_all(lane, 0).empty()) << "it is too early";
    while (!lane.stands_still(0ns)) {
    }
    lane.grow_if_still(0ns, kWindow);
    for (Lane::Share& share : take_all(lane, 0))
        shares.push_back(std::move(share));
    EXPECT_EQ(shares.size(), 2 * kWindow);
    lane.grow_if_still(0ns, kWindow);
    for (Lane::Share& share : take_all(lane, 0))
        shares.push_back(std::move(share));
    EXPECT_EQ(shares.size(), 4 * kWindow);
    shares.pop_back();
    EXPECT_TRUE(take_all(lane, 0).empty());
    shares.resize(kWindow - 1);
    EXPECT_EQ(take_all(lane, 0).size(), 1U);
}

TEST(Lane, ThreadsShareIt) {
    Lane lane;
    constexpr std::uint32_t kThreads = 4;
    std::vector<std::thread> threads;
    for (std::uint32_t id = 0; id < kThreads; ++id)
        lane.join(id);
    for (std::uint32_t id = 0; id < kThreads; ++id) {
        threads.emplace_back([&lane, id] {
            for (int chunk = 0; chunk < 200;) {
                const Lane::Share share = lane.take(id, kWindow);
                if (share) ++chunk;
                std::this_thread::yield();
            }
            lane.leave(id);
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    lane.join(9);
    EXPECT_EQ(take_all(lane, 9).size(), kWindow) << "all shares are back";
}

}  // namespace
}  // namespace awaken::p2p
