// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "trace/clocks.h"
#include "trace/trace.h"

namespace awaken::trace {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

/// Rank 0's clock as a function of this rank's.
struct OtherClock {
    std::int64_t offset_ns = 0;  ///< at time 0
    double drift = 0;            ///< seconds per second
    [[nodiscard]] std::uint64_t at(const std::uint64_t time_ns) const {
        return time_ns +
               static_cast<std::uint64_t>(offset_ns + static_cast<std::int64_t>(drift * static_cast<double>(time_ns)));
    }
};

/// Round trips of which each way takes from 1 to 50 us, with a long delay now and then, as on a busy machine.
std::vector<RoundTrip> trips_at(const std::uint64_t begin_ns, const OtherClock& other, std::mt19937& random) {
    std::uniform_int_distribution<std::uint64_t> way_ns(1'000, 50'000);
    std::vector<RoundTrip> trips;
    std::uint64_t now_ns = begin_ns;
    for (int i = 0; i < 24; ++i) {
        RoundTrip trip;
        trip.asked_ns = now_ns;
        now_ns += way_ns(random) + (i % 5 == 0 ? 4'000'000 : 0);
        trip.answer_ns = other.at(now_ns);
        now_ns += way_ns(random);
        trip.heard_ns = now_ns;
        trips.push_back(trip);
    }
    return trips;
}

TEST(Clocks, TheQuickestRoundTripGivesTheOffset) {
    const Offset offset = estimate_offset({{100, 5'900, 1'100}, {2'000, 7'010, 2'020}, {3'000, 8'300, 3'500}});
    EXPECT_EQ(offset.at_ns, 2'010U);
    EXPECT_EQ(offset.offset_ns, 5'000);
    EXPECT_EQ(offset.uncertainty_ns, 10U);
}

TEST(Clocks, AnOffsetIsNeverFurtherOffThanItSays) {
    std::mt19937 random(7);
    for (const std::int64_t true_offset :
         {std::int64_t{0}, std::int64_t{-3} * static_cast<std::int64_t>(kSecond), std::int64_t{123'456'789'012}}) {
        for (int i = 0; i < 200; ++i) {
            const Offset offset = estimate_offset(trips_at(10 * kSecond, {true_offset, 0}, random));
            EXPECT_LE(std::abs(offset.offset_ns - true_offset), static_cast<std::int64_t>(offset.uncertainty_ns));
            EXPECT_LT(offset.uncertainty_ns, 50'000U);
        }
    }
}

TEST(Clocks, DriftIsTakenOutBetweenTheEstimates) {
    std::mt19937 random(11);
    const OtherClock other{-40'000'000, 30e-6};  // 30 ppm: 3 ms in 100 s
    Alignment alignment;
    alignment.first = estimate_offset(trips_at(100 * kSecond, other, random));
    alignment.last = estimate_offset(trips_at(200 * kSecond, other, random));
    for (std::uint64_t time = 90 * kSecond; time <= 210 * kSecond; time += kSecond) {
        EXPECT_NEAR(static_cast<double>(alignment.aligned(time)), static_cast<double>(other.at(time)), 60'000);
    }
    // One estimate alone does not know of it.
    alignment.last.reset();
    EXPECT_GT(std::abs(alignment.aligned(200 * kSecond) - static_cast<std::int64_t>(other.at(200 * kSecond))),
              2'500'000);
}

TEST(Clocks, TheEstimatesThemselvesAreKeptExactly) {
    Alignment alignment;
    EXPECT_EQ(alignment.aligned(5), 5);
    alignment.first = Offset{1'000, -300, 1};
    EXPECT_EQ(alignment.aligned(1'000), 700);
    EXPECT_EQ(alignment.aligned(9'000), 8'700);
    alignment.last = Offset{3'000, -100, 1};
    EXPECT_EQ(alignment.aligned(1'000), 700);
    EXPECT_EQ(alignment.aligned(2'000), 1'800);
    EXPECT_EQ(alignment.aligned(3'000), 2'900);
    alignment.last->at_ns = 1'000;  // two at the same time give no drift
    EXPECT_EQ(alignment.aligned(2'000), 1'700);
    alignment.first.reset();
    EXPECT_EQ(alignment.aligned(2'000), 1'900);
}

TEST(Clocks, OneClockNeedsNoOffset) {
    Alignment alignment;
    alignment.shared = true;
    alignment.first = Offset{1'000, 17, 20};
    EXPECT_EQ(alignment.aligned(2'000), 2'000);
}

TEST(Clocks, TheClockHasAName) {
    const std::string name = clock_name();
    EXPECT_EQ(name, clock_name());
    EXPECT_NE(name.find(':'), std::string::npos) << "this kernel tells neither its boot nor its time namespace";
}

TEST(Clocks, TimeGoesOn) {
    const std::uint64_t before = now_ns();
    EXPECT_GE(now_ns(), before);
    EXPECT_GT(before, 0U);
}

}  // namespace
}  // namespace awaken::trace
