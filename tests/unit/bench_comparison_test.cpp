// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "engine/printer.h"

namespace awaken::bench {
namespace {

using Reason = StoppingCriterion::Reason;

Measurement measurement(std::size_t size, std::vector<double> samples, Reason stopped = Reason::precise) {
    Measurement result;
    result.size = size;
    result.samples = std::move(samples);
    result.summary = summarize(result.samples);
    result.stopped = stopped;
    result.validated = true;
    return result;
}

RunResult allreduce() {
    RunResult run;
    run.test = find_test("allreduce");
    run.type = ElementType::int_;
    run.ranks = 4;
    ContenderResult native{"native", Mode::waited, "", "MPICH 5.0.2", {}};
    native.measurements = {measurement(4, {10, 10, 10, 10, 10, 10}),
                           measurement(1000000, {100, 100, 100, 100, 100, 100, 100})};
    ContenderResult awaken{"awaken", Mode::waited, "", "MPICH 5.0.2 through Awaken", {}};
    awaken.measurements = {measurement(4, {11, 11, 11, 12, 12, 12}),
                           measurement(1000000, {50, 50, 50, 50, 50, 50, 50}, Reason::out_of_time)};
    run.contenders = {native, awaken, {"xccl", Mode::waited, "there is no libnccl.so.2", "", {}}};
    return run;
}

TEST(Comparison, TheWholeTable) {
    EXPECT_EQ(comparison_table(allreduce(), {}),
              "# Allreduce Latency Test: 4 ranks, MPI_INT\n"
              "# native: MPICH 5.0.2\n"
              "# awaken: MPICH 5.0.2 through Awaken\n"
              "\n"
              "# Median time of an operation, us [95 % interval]\n"
              "# Size                  native                 awaken\n"
              "4         10.00 [10.00, 10.00]   11.50 [11.00, 12.00]\n"
              "1000000   100.0 [100.0, 100.0]   50.00 [50.00, 50.00]\n"
              "\n"
              "# Ratio of times to native's [95 % interval]; below 1 is faster\n"
              "# Size    native                 awaken\n"
              "4              1   1.150 [1.100, 1.200]\n"
              "1000000        1   0.500 [0.500, 0.500]\n"
              "\n"
              "# Bandwidth, GB/s (10^9 bytes); bus bandwidth in parentheses\n"
              "# Size               native              awaken\n"
              "4         0.00040 (0.00060)   0.00035 (0.00052)\n"
              "1000000     10.000 (15.000)     20.000 (30.000)\n"
              "\n"
              "# native stopped: precise at all sizes, after 6 to 7 samples\n"
              "# awaken stopped: out of time at 1000000; precise at 4, after 6 to 7 samples\n"
              "# xccl could not run: there is no libnccl.so.2\n");
}

/// Every line of a block has its columns end at the same place.
TEST(Comparison, OnePairIsNoPairs) {
    RunResult run = allreduce();
    run.test = find_test("mbw_mr");
    run.pairs = 1;
    EXPECT_NE(comparison_table(run, {}).find("4 ranks, MPI_INT, 1 pair\n"), std::string::npos);
    run.pairs = 2;
    EXPECT_NE(comparison_table(run, {}).find("4 ranks, MPI_INT, 2 pairs\n"), std::string::npos);
}

TEST(Comparison, ColumnsAreAligned) {
    std::istringstream lines(comparison_table(allreduce(), {}));
    std::string line;
    std::size_t width = 0;
    int rows = 0;
    while (std::getline(lines, line)) {
        if (line.starts_with("# Size")) {
            width = line.size();
        } else if (line.empty()) {
            width = 0;
        } else if (width > 0) {
            EXPECT_EQ(line.size(), width) << line;
            ++rows;
        }
    }
    EXPECT_EQ(rows, 6);
}

TEST(Comparison, MissingSizesAndWrongData) {
    RunResult run = allreduce();
    run.contenders[1].measurements.erase(run.contenders[1].measurements.begin());
    run.contenders[1].measurements[0].errors = 3;
    run.contenders[1].measurements[0].first_error = "rank 1, element 17: 3 instead of 5";
    run.contenders[0].measurements[0].validated = false;
    const std::string table = comparison_table(run, {});
    EXPECT_NE(table.find("4         10.00 [10.00, 10.00]                      -\n"), std::string::npos) << table;
    EXPECT_NE(table.find("# awaken WRONG DATA at 1000000 bytes: 3 elements; rank 1, element 17: 3 instead of 5\n"),
              std::string::npos)
        << table;
    EXPECT_NE(table.find("# native: data not checked at 1 of 2 sizes\n"), std::string::npos) << table;
}

TEST(Comparison, EachModeHasItsOwnReference) {
    RunResult run = allreduce();
    run.contenders.pop_back();
    for (const std::size_t i : {0U, 1U}) {
        ContenderResult queued = run.contenders[i];
        queued.mode = Mode::queued;
        for (Measurement& m : queued.measurements) {
            m = measurement(m.size, std::vector<double>(6, i == 0 ? 5 : 6));
        }
        run.contenders.push_back(queued);
    }
    Options options;
    options.modes = {Mode::waited, Mode::queued};
    const std::string table = comparison_table(run, options);
    EXPECT_NE(table.find("native waited"), std::string::npos);
    EXPECT_NE(table.find("# Ratio of times to native's in the same mode"), std::string::npos) << table;
    EXPECT_NE(table.find("1.200 [1.200, 1.200]"), std::string::npos) << table;
}

/// Of 2 streams: twice the size in the median time, whatever a few slow samples make of the mean.
TEST(Comparison, BandwidthsOfBandwidthTestsAreThoseOfTheirMedians) {
    RunResult run = allreduce();
    run.test = find_test("bibw");
    run.window_size = 64;
    for (ContenderResult& contender : run.contenders) {
        for (Measurement& m : contender.measurements) {
            m.average = 400;
            m.bandwidth = 2 * static_cast<double>(m.size) / m.average;
        }
    }
    const std::string table = comparison_table(run, {});
    EXPECT_NE(table.find("1000000    20.000    40.000\n"), std::string::npos) << table;
    EXPECT_EQ(table.find("bus bandwidth"), std::string::npos) << table;
    EXPECT_NE(table.find("window of 64"), std::string::npos) << table;
}

/// The mean over ranks of a collective is not its median; of a nonblocking one it is even that of another thing.
TEST(Comparison, BandwidthsOfCollectivesAreThoseOfTheirMedians) {
    RunResult run = allreduce();
    run.test = find_test("iallreduce");
    for (ContenderResult& contender : run.contenders) {
        for (Measurement& m : contender.measurements) {
            m.average = 1000;
            m.overlap.emplace().overlap_percent = 87.5;
        }
    }
    const std::string table = comparison_table(run, {});
    EXPECT_NE(table.find("1000000     10.000 (15.000)     20.000 (30.000)\n"), std::string::npos) << table;
    EXPECT_NE(table.find("# Median time of an operation without computation, us"), std::string::npos) << table;
    EXPECT_NE(table.find("1000000     87.5     87.5\n"), std::string::npos) << table;
}

TEST(Comparison, WrongDataHaveNoTimes) {
    RunResult run = allreduce();
    ContenderResult& wrong = run.contenders[1];
    wrong.unavailable = "wrong data at 4 bytes";
    Measurement without_times;
    without_times.size = 4;
    without_times.errors = 1;
    wrong.measurements = {without_times};
    const std::string table = comparison_table(run, {});
    EXPECT_NE(table.find("4         10.00 [10.00, 10.00]        -\n"), std::string::npos) << table;
    EXPECT_NE(table.find("# awaken could not run: wrong data at 4 bytes\n"), std::string::npos) << table;
    EXPECT_EQ(table.find("awaken stopped"), std::string::npos) << table;
}

TEST(Comparison, NothingRan) {
    RunResult run = allreduce();
    run.contenders.erase(run.contenders.begin(), run.contenders.begin() + 2);
    EXPECT_EQ(comparison_table(run, {}),
              "# Allreduce Latency Test: 4 ranks, MPI_INT\n"
              "\n"
              "# xccl could not run: there is no libnccl.so.2\n");
}

TEST(Comparison, ABarrierHasNoSizesAndNoBandwidth) {
    RunResult run = allreduce();
    run.test = find_test("barrier");
    for (ContenderResult& contender : run.contenders) {
        if (!contender.measurements.empty()) {
            contender.measurements = {measurement(0, std::vector<double>(6, 2.0))};
        }
    }
    const std::string table = comparison_table(run, {});
    EXPECT_EQ(table.find("Bandwidth"), std::string::npos) << table;
    EXPECT_NE(table.find("2.00 [2.00, 2.00]"), std::string::npos) << table;
}

TEST(Comparison, TheWholeTableOfFirst) {
    RunResult first;
    first.test = find_test("first");
    first.ranks = 2;
    first.operation = "first message";
    first.allocation = 163840;
    ContenderResult awaken{"awaken", Mode::waited, "", "MPICH 5.0.2 through Awaken", {}};
    awaken.measurements = {measurement(163840, {3500, 2800, 3000})};
    ContenderResult staged{"staged", Mode::waited, "", "MPICH 5.0.2 with copies by hand", {}};
    staged.measurements = {measurement(163840, {500, 450, 600})};
    staged.measurements.front().validated = false;
    first.contenders = {awaken, staged, {"xccl", Mode::waited, "there is no libnccl.so.2", "", {}}};
    RunResult second = first;
    second.operation = "second message";
    second.contenders[0].measurements = {measurement(163840, {10, 9, 12})};
    second.contenders[1].measurements = {measurement(163840, {90, 80, 99})};
    EXPECT_EQ(
        first_table({first, second}),
        "# First Communication Test: 2 ranks\n"
        "# awaken: MPICH 5.0.2 through Awaken\n"
        "# staged: MPICH 5.0.2 with copies by hand\n"
        "\n"
        "# Median time over launches [least, greatest], us: the first of a process, and the same again\n"
        "# Operation     Size   Allocation   Contender                     First                 Second   Ratio   "
        "Launches\n"
        "message       163840       163840      awaken   3000.0 [2800.0, 3500.0]    10.00 [9.00, 12.00]   300.0   "
        "       3\n"
        "message       163840       163840      staged      500.0 [450.0, 600.0]   90.00 [80.00, 99.00]    5.56   "
        "       3\n"
        "\n"
        "# xccl could not run: there is no libnccl.so.2\n"
        "# staged: data not checked\n");
    first.contenders[0].measurements.front().errors = 3;
    first.contenders[0].measurements.front().first_error = "rank 1, element 17: 3 instead of 5";
    EXPECT_NE(first_table({first, second})
                  .find("# awaken WRONG DATA: message of 163840 bytes: 3 elements; rank 1, element 17: 3 instead of 5"),
              std::string::npos);
}

}  // namespace
}  // namespace awaken::bench
