// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "engine/statistics.h"

namespace awaken::bench {
namespace {

/// 1, 2, ..., count in an order that is none.
std::vector<double> shuffled(std::size_t count) {
    std::vector<double> values(count);
    std::iota(values.begin(), values.end(), 1.0);
    std::shuffle(values.begin(), values.end(), std::mt19937(7));
    return values;
}

TEST(Statistics, NothingOfNothing) {
    const Summary summary = summarize({});
    EXPECT_EQ(summary.count, 0U);
    EXPECT_EQ(summary.median, 0);
    EXPECT_EQ(tail_percentile({}, 50), 0);
    EXPECT_EQ(ratio_of_medians({}, {}).value, 0);
}

TEST(Statistics, SummaryOfKnownValues) {
    const Summary summary = summarize(shuffled(10));
    EXPECT_EQ(summary.count, 10U);
    EXPECT_DOUBLE_EQ(summary.mean, 5.5);
    EXPECT_EQ(summary.minimum, 1);
    EXPECT_EQ(summary.maximum, 10);
    EXPECT_DOUBLE_EQ(summary.median, 5.5);
    EXPECT_EQ(summary.p50, 5);  // nearest rank
    EXPECT_EQ(summary.p90, 9);
    EXPECT_EQ(summary.p99, 10);
    EXPECT_DOUBLE_EQ(summarize(shuffled(11)).median, 6);
}

// The OSU micro-benchmarks divide whole numbers.
TEST(Statistics, TailPercentilesRoundTheRankDown) {
    EXPECT_EQ(tail_percentile(shuffled(100), 1), 1);
    EXPECT_EQ(tail_percentile(shuffled(100), 99), 99);
    EXPECT_EQ(tail_percentile(shuffled(100), 100), 100);
    EXPECT_EQ(tail_percentile(shuffled(7), 50), 3);
    EXPECT_EQ(tail_percentile(shuffled(10), 99), 9);
    EXPECT_EQ(tail_percentile({42}, 1), 42);
}

// The ranks of published tables (e.g. Hollander and Wolfe, table of the sign test): the values between the l-th
// smallest and the l-th largest.
TEST(Statistics, IntervalRanksOfTheSignTest) {
    struct Case {
        std::size_t count;
        double low;
    };
    for (const Case& known :
         {Case{6, 1}, {8, 1}, {9, 2}, {10, 2}, {11, 2}, {12, 3}, {20, 6}, {25, 8}, {30, 10}, {50, 18}, {100, 40}}) {
        const Interval interval = summarize(shuffled(known.count)).median_95;
        EXPECT_EQ(interval.low, known.low) << known.count << " values";
        EXPECT_EQ(interval.high, static_cast<double>(known.count) + 1 - known.low) << known.count << " values";
    }
}

TEST(Statistics, BelowSixValuesTheIntervalIsTheRange) {
    for (std::size_t count = 1; count <= 5; ++count) {
        const Interval interval = summarize(shuffled(count)).median_95;
        EXPECT_EQ(interval.low, 1);
        EXPECT_EQ(interval.high, static_cast<double>(count));
    }
}

TEST(Statistics, TheNormalApproximationContinuesTheExactRanks) {
    const double exact = summarize(shuffled(1000)).median_95.low;
    const double approximate = summarize(shuffled(1001)).median_95.low;
    EXPECT_NEAR(approximate, exact, 1);
    // n/2 - 0.98 sqrt(n)
    EXPECT_NEAR(summarize(shuffled(10000)).median_95.low, 4902, 1);
}

// What the 95 % are about: intervals of many series of a skewed distribution hold its median that often.
TEST(Statistics, IntervalsHoldTheMedianAsOftenAsTheySay) {
    std::mt19937 random(1);
    std::lognormal_distribution<double> times(0, 1);  // median 1
    for (const std::size_t count : {7U, 30U, 1500U}) {
        constexpr int kSeries = 1000;
        int held = 0;
        for (int series = 0; series < kSeries; ++series) {
            std::vector<double> values(count);
            std::generate(values.begin(), values.end(), [&] { return times(random); });
            const Interval interval = summarize(values).median_95;
            held += interval.low <= 1 && 1 <= interval.high ? 1 : 0;
        }
        EXPECT_GE(held, 930) << count << " values";  // 0.95 - 3 standard deviations
    }
}

TEST(Statistics, PairsCancelWhatTheyShare) {
    // Both contenders slow down together; one takes 10 % more throughout.
    std::vector<double> reference;
    std::vector<double> values;
    for (int i = 0; i < 40; ++i) {
        const double disturbance = 1 + 0.5 * std::sin(i);
        reference.push_back(10 * disturbance);
        values.push_back(11 * disturbance);
    }
    const Ratio ratio = ratio_of_medians(values, reference);
    EXPECT_NEAR(ratio.value, 1.1, 1e-12);
    EXPECT_NEAR(ratio.interval.low, 1.1, 1e-12);
    EXPECT_NEAR(ratio.interval.high, 1.1, 1e-12);
}

TEST(Statistics, UnpairedRatiosComeFromABootstrapThatRepeats) {
    std::mt19937 random(3);
    std::normal_distribution<double> noise(0, 0.1);
    std::vector<double> reference(200);
    std::vector<double> values(301);
    for (double& value : reference) {
        value = 1 + noise(random);
    }
    for (double& value : values) {
        value = 2 + 2 * noise(random);
    }
    const Ratio ratio = ratio_of_medians(values, reference);
    EXPECT_NEAR(ratio.value, 2, 0.05);
    EXPECT_LT(ratio.interval.low, ratio.value);
    EXPECT_GT(ratio.interval.high, ratio.value);
    // Standard deviation of a median: 1.253 s / sqrt(n); of the ratio 2 x 0.0114 here, four of them in the interval.
    EXPECT_NEAR(ratio.interval.high - ratio.interval.low, 0.09, 0.035);

    const Ratio again = ratio_of_medians(values, reference);
    EXPECT_EQ(again.interval.low, ratio.interval.low);
    EXPECT_EQ(again.interval.high, ratio.interval.high);
}

TEST(Statistics, TheIntervalHoldsItsRatio) {
    const Ratio ratio = ratio_of_medians(std::vector<double>{1, 2, 30}, std::vector<double>{3, 1, 2});
    EXPECT_DOUBLE_EQ(ratio.value, 1);
    EXPECT_LE(ratio.interval.low, 1);
    EXPECT_GE(ratio.interval.high, 1);
}

TEST(StoppingCriterion, FixedCountsIterations) {
    const StoppingCriterion criterion = StoppingCriterion::fixed(3);
    EXPECT_EQ(criterion.decide(std::vector<double>{1, 1}, 1e9), StoppingCriterion::Reason::running);
    EXPECT_EQ(criterion.decide(std::vector<double>{1, 1, 1}, 0), StoppingCriterion::Reason::iterations_done);
}

TEST(StoppingCriterion, AdaptiveStopsWhenTheIntervalIsTight) {
    const StoppingCriterion criterion = StoppingCriterion::adaptive(0.01, 10, 8);
    const std::vector<double> tight(8, 5.0);
    EXPECT_EQ(criterion.decide(std::span(tight).first(7), 0), StoppingCriterion::Reason::running);
    EXPECT_EQ(criterion.decide(tight, 0), StoppingCriterion::Reason::precise);

    const std::vector<double> wide = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2};
    EXPECT_EQ(criterion.decide(wide, 9.9), StoppingCriterion::Reason::running);
    EXPECT_EQ(criterion.decide(wide, 10), StoppingCriterion::Reason::out_of_time);
    EXPECT_EQ(criterion.decide({}, 10), StoppingCriterion::Reason::running) << "nothing would have been measured";
}

TEST(StoppingCriterion, OutliersDoNotKeepItRunning) {
    std::vector<double> values(30, 5.0);
    values[3] = 500;
    EXPECT_EQ(StoppingCriterion::adaptive(0.01, 10, 6).decide(values, 0), StoppingCriterion::Reason::precise);
}

}  // namespace
}  // namespace awaken::bench
