// SPDX-License-Identifier: Apache-2.0
// How often a call that waits for very many operations looks at them, counted, and that each is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <vector>

#include "protocol/polling_order.h"

namespace awaken::protocol {
namespace {

using Found = PollingOrder::Found;

constexpr std::size_t kOperations = 100'000;
/// Of one round, beside what it finds.
constexpr std::size_t kLooksOfARound = 10;

/// Operations that arrive in an order, `together` of them before each round, and are over `later` rounds after they
/// were seen to have arrived.
struct Arrivals {
    std::vector<std::size_t> order;
    std::size_t together = 1;
    unsigned later = 0;

    std::size_t looks = 0, rounds = 0;

    /// Looks until all are over.
    void wait() {
        std::vector<bool> arrived(order.size());
        std::vector<unsigned> seen(order.size());
        std::vector<bool> over(order.size());
        PollingOrder all(order.size());
        for (std::size_t at = 0; at < order.size(); ++at) {
            all.add(at, false);
        }
        std::size_t next = 0;
        for (bool done = order.empty(); !done; ++rounds) {
            for (std::size_t each = 0; each < together && next < order.size(); ++each) {
                arrived[order[next++]] = true;
            }
            done = all.round([&](const std::size_t at, bool) {
                EXPECT_FALSE(over[at]) << "one that is over is not looked at again";
                ++looks;
                if (!arrived[at]) {
                    return Found::awaited;
                }
                over[at] = seen[at]++ == later;
                return over[at] ? Found::over : Found::arrived;
            });
            ASSERT_LT(rounds, 2 * order.size() + later + 2) << "some are never found";
        }
        EXPECT_TRUE(std::all_of(over.begin(), over.end(), [](const bool each) { return each; }));
    }
};

std::vector<std::size_t> in_order() {
    std::vector<std::size_t> order(kOperations);
    std::iota(order.begin(), order.end(), std::size_t{0});
    return order;
}

TEST(PollingOrder, GrowWithTheOperationsWhenTheyArriveOneByOne) {
    Arrivals arrivals{in_order()};
    arrivals.wait();
    EXPECT_EQ(arrivals.rounds, kOperations);
    EXPECT_LE(arrivals.looks, arrivals.rounds * kLooksOfARound + kOperations);
}

TEST(PollingOrder, GrowWithTheOperationsWhateverTheOrder) {
    Arrivals backwards{in_order()};
    std::reverse(backwards.order.begin(), backwards.order.end());
    backwards.wait();
    EXPECT_LE(backwards.looks, backwards.rounds * kLooksOfARound + kOperations);

    Arrivals mixed{in_order()};
    std::shuffle(mixed.order.begin(), mixed.order.end(), std::mt19937(7));
    mixed.wait();
    EXPECT_LE(mixed.looks, mixed.rounds * kLooksOfARound + kOperations);
}

TEST(PollingOrder, FindAllThatHaveArrivedInOneRound) {
    Arrivals arrivals{in_order(), kOperations};
    arrivals.wait();
    EXPECT_EQ(arrivals.rounds, 1U);
    EXPECT_EQ(arrivals.looks, kOperations);
}

TEST(PollingOrder, ReturnToWhatGoesOnUntilItIsOver) {
    Arrivals arrivals{in_order(), 1, 3};
    arrivals.wait();
    EXPECT_EQ(arrivals.rounds, kOperations + 3);
    EXPECT_LE(arrivals.looks, arrivals.rounds * kLooksOfARound + 4 * kOperations);
}

TEST(PollingOrder, GrowWithWhatChangesAmongThoseThatHaveArrived) {
    constexpr std::size_t kMany = 20'000, kArrivedLooks = 64, kRounds = 1'000;
    constexpr std::size_t kLooksOfBothRings = 2 * kArrivedLooks + kLooksOfARound;
    PollingOrder all(kMany);
    for (std::size_t at = 0; at < kMany; ++at) {
        all.add(at, true);
    }
    std::size_t looks = 0, over = 0, first_over = kMany;
    const auto look = [&](const std::size_t at, bool) {
        ++looks;
        over += at >= first_over ? 1 : 0;
        return at >= first_over ? Found::over : Found::arrived;
    };
    for (std::size_t round = 0; round < kRounds; ++round) {
        EXPECT_FALSE(all.round(look));
    }
    EXPECT_LE(looks, kRounds * kLooksOfBothRings);
    // The younger half is found although the older ones go on.
    first_over = kMany / 2;
    looks = 0;
    std::size_t rounds = 0;
    for (; over < kMany / 2; ++rounds) {
        ASSERT_LE(rounds, kMany / kArrivedLooks);
        EXPECT_FALSE(all.round(look));
    }
    EXPECT_LE(looks, rounds * kLooksOfBothRings + over);
    first_over = 0;
    EXPECT_TRUE(all.round(look));
    EXPECT_EQ(over, kMany);
}

TEST(PollingOrder, AskTheMpiAboutEachThatDoesNotArriveInTurn) {
    constexpr std::size_t kFew = 5;
    std::vector<unsigned> asked(kFew);
    PollingOrder all(kFew);
    for (std::size_t at = 0; at < kFew; ++at) {
        all.add(at, false);
    }
    for (std::size_t round = 0; round < kFew; ++round) {
        EXPECT_FALSE(all.round([&](const std::size_t at, const bool asks) {
            asked[at] += asks ? 1 : 0;
            return Found::awaited;
        }));
    }
    for (const unsigned times : asked) {
        EXPECT_GE(times, 1U);
    }
    EXPECT_EQ(asked[0], kFew) << "once a round";
}

TEST(PollingOrder, BeginWithWhatHasArrivedBefore) {
    PollingOrder all(3);
    all.add(0, true);
    all.add(1, false);
    all.add(2, true);
    std::vector<std::size_t> order;
    EXPECT_TRUE(all.round([&](const std::size_t at, bool) {
        order.push_back(at);
        return Found::over;
    }));
    EXPECT_EQ(order, (std::vector<std::size_t>{0, 2, 1}));
    EXPECT_TRUE(PollingOrder(0).round([](std::size_t, bool) { return Found::awaited; }));
}

}  // namespace
}  // namespace awaken::protocol
