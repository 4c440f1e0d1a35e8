// Lanes: whose turn it is, what may be under way, and what becomes of the window when the receiver does not come.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "protocol/flow_window.h"

namespace awaken::protocol {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kWindow = 3;

/// Starts as many fragments of the message as may be.
std::vector<FlowWindow::Credit> take_all(FlowWindow& flow, const std::uint32_t id, const std::size_t window = kWindow) {
    std::vector<FlowWindow::Credit> shares;
    for (FlowWindow::Credit credit = flow.take(id, window); credit; credit = flow.take(id, window)) {
        shares.push_back(std::move(credit));
    }
    return shares;
}

TEST(FlowWindow, MessagesTakeTheWindowInTheOrderInWhichTheyWereSent) {
    FlowWindow flow;
    flow.join(7);
    flow.join(2);
    EXPECT_TRUE(take_all(flow, 2).empty());
    EXPECT_TRUE(take_all(flow, 99).empty()) << "not in the line";
    std::vector<FlowWindow::Credit> first = take_all(flow, 7);
    EXPECT_EQ(first.size(), kWindow);
    flow.leave(7);
    EXPECT_TRUE(take_all(flow, 2).empty()) << "the window is full";
    first.pop_back();
    EXPECT_EQ(take_all(flow, 2).size(), 1U);
}

TEST(FlowWindow, WhatTheReceiverComesForIsNeverKeptBackByTheRest) {
    FlowWindow flow;
    for (const std::uint32_t id : {0U, 1U, 2U, 3U}) {
        flow.join(id);
    }
    const std::vector<FlowWindow::Credit> ahead = take_all(flow, 0);
    ASSERT_EQ(ahead.size(), kWindow);
    flow.come_for(2);
    flow.come_for(1);
    flow.come_for(1);
    flow.come_for(42);
    EXPECT_TRUE(take_all(flow, 1).empty()) << "the receiver came for 2 before";
    const std::vector<FlowWindow::Credit> second = take_all(flow, 2);
    EXPECT_EQ(second.size(), kWindow);
    flow.leave(2);
    EXPECT_TRUE(take_all(flow, 1).empty()) << "those that it has come for share a window, too";
    flow.leave(1);
    EXPECT_TRUE(take_all(flow, 0).empty());
    EXPECT_TRUE(take_all(flow, 3).empty());
}

TEST(FlowWindow, WhatIsNotWantedYetTakesOnlyWhatIsLeft) {
    FlowWindow flow;
    flow.join(0, true);
    flow.join(1);
    std::vector<FlowWindow::Credit> wanted;
    wanted.push_back(flow.take(0, kWindow));
    EXPECT_FALSE(flow.take(1, kWindow)) << "the first one has more to start";
    flow.leave(0);
    EXPECT_EQ(take_all(flow, 1).size(), kWindow - 1);
}

TEST(FlowWindow, ForcedChunksCountButAreNeverRefused) {
    FlowWindow flow;
    flow.join(0);
    std::vector<FlowWindow::Credit> forced;
    for (std::size_t at = 0; at < 2 * kWindow; ++at) {
        forced.push_back(flow.force());
    }
    EXPECT_TRUE(take_all(flow, 0).empty());
    forced.clear();
    EXPECT_EQ(take_all(flow, 0).size(), kWindow);
}

TEST(FlowWindow, SharesAreGivenBackOnceWhereverTheyAreMoved) {
    FlowWindow flow;
    flow.join(0);
    FlowWindow::Credit kept = flow.take(0, 1);
    FlowWindow::Credit moved = std::move(kept);
    EXPECT_FALSE(kept);
    EXPECT_TRUE(moved);
    EXPECT_FALSE(flow.take(0, 1));
    std::optional<FlowWindow::Credit> last = std::move(moved);
    last.reset();
    EXPECT_TRUE(flow.take(0, 1));
}

TEST(FlowWindow, TheWindowGrowsWhileNothingArrivesAndShrinksWhenSomethingDoes) {
    FlowWindow flow;
    flow.join(0);
    std::vector<FlowWindow::Credit> shares = take_all(flow, 0);
    flow.grow_if_still(1h, kWindow);
    EXPECT_FALSE(flow.stands_still(1h));
    EXPECT_TRUE(take_all(flow, 0).empty()) << "it is too early";
    while (!flow.stands_still(0ns)) {
    }
    flow.grow_if_still(0ns, kWindow);
    for (FlowWindow::Credit& credit : take_all(flow, 0)) {
        shares.push_back(std::move(credit));
    }
    EXPECT_EQ(shares.size(), 2 * kWindow);
    flow.grow_if_still(0ns, kWindow);
    for (FlowWindow::Credit& credit : take_all(flow, 0)) {
        shares.push_back(std::move(credit));
    }
    EXPECT_EQ(shares.size(), 4 * kWindow);
    shares.pop_back();
    EXPECT_TRUE(take_all(flow, 0).empty());
    shares.resize(kWindow - 1);
    EXPECT_EQ(take_all(flow, 0).size(), 1U);
}

TEST(FlowWindow, ThreadsShareIt) {
    FlowWindow flow;
    constexpr std::uint32_t kThreads = 4;
    std::vector<std::thread> threads;
    for (std::uint32_t id = 0; id < kThreads; ++id) {
        flow.join(id);
    }
    for (std::uint32_t id = 0; id < kThreads; ++id) {
        threads.emplace_back([&flow, id] {
            for (int fragment = 0; fragment < 200;) {
                const FlowWindow::Credit credit = flow.take(id, kWindow);
                if (credit) {
                    ++fragment;
                }
                std::this_thread::yield();
            }
            flow.leave(id);
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    flow.join(9);
    EXPECT_EQ(take_all(flow, 9).size(), kWindow) << "all shares are back";
}

}  // namespace
}  // namespace awaken::protocol
