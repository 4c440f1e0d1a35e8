// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "engine/catalogue.h"

namespace awaken::bench {
namespace {

std::size_t count(Family family, bool neighborhood = false) {
    std::size_t number = 0;
    for (const TestInfo& test : catalogue()) {
        number += test.family == family && test.neighborhood == neighborhood ? 1 : 0;
    }
    return number;
}

TEST(Catalogue, HoldsTheProgramsOfOmb) {
    // 15 blocking, 15 nonblocking, 14 persistent (there is no reduce_scatter_block), 5 + 5 neighbourhood.
    EXPECT_EQ(count(Family::collective), 15U);
    EXPECT_EQ(count(Family::nonblocking_collective), 15U + 1U);  // and isendrecv, which is ours
    EXPECT_EQ(count(Family::persistent_collective), 14U);
    EXPECT_EQ(count(Family::collective, true), 5U);
    EXPECT_EQ(count(Family::nonblocking_collective, true), 5U);
    EXPECT_EQ(count(Family::congestion), 2U);
    EXPECT_EQ(count(Family::startup), 2U);
    EXPECT_EQ(count(Family::one_sided_latency), 6U);
    EXPECT_EQ(count(Family::one_sided_bandwidth), 2U);
    EXPECT_EQ(count(Family::one_sided_bidirectional_bandwidth), 1U);
    EXPECT_EQ(count(Family::first) + count(Family::halo), 2U);  // ours
    EXPECT_EQ(catalogue().size(), 78U + 3U);
    EXPECT_EQ(find_test("reduce_scatter_block_persistent"), nullptr);
}

TEST(Catalogue, NamesAreUniqueAndFoundWithAndWithoutPrefix) {
    std::set<std::string> names;
    for (const TestInfo& test : catalogue()) {
        EXPECT_TRUE(names.insert(test.name).second) << test.name;
        EXPECT_EQ(find_test(test.name), &test);
        EXPECT_EQ(find_test(std::string("osu_") + test.name), &test);
        EXPECT_EQ(nearest_test(test.name), test.name);
    }
    EXPECT_EQ(find_test("osu_"), nullptr);
    EXPECT_EQ(find_test("osu_osu_latency"), nullptr);
}

TEST(Catalogue, AMisspelledNameFindsItsMeaning) {
    EXPECT_EQ(nearest_test("latncy"), "latency");
    EXPECT_EQ(nearest_test("osu_alreduce"), "allreduce");
    EXPECT_EQ(nearest_test("ialltoal"), "ialltoall");
    EXPECT_EQ(nearest_test("something_else"), "");
}

TEST(Catalogue, SummariesNameTheFunctionThatIsMeasured) {
    const auto summary = [](const char* name) { return summary_of(*find_test(name)); };
    EXPECT_EQ(summary("bw"), "bandwidth one way between two ranks");
    EXPECT_EQ(summary("allreduce"), "time of MPI_Allreduce (sum)");
    EXPECT_EQ(summary("neighbor_alltoallw"), "time of MPI_Neighbor_alltoallw");
    EXPECT_EQ(summary("ibcast"), "MPI_Ibcast: time, and overlap with computation");
    EXPECT_EQ(summary("isendrecv"), "MPI_Isend and MPI_Irecv along a ring: time, and overlap with computation");
    EXPECT_EQ(summary("reduce_scatter_persistent"), "time of a started MPI_Reduce_scatter_init (sum)");
}

TEST(Catalogue, TraitsAgreeWithOptions) {
    for (const TestInfo& test : catalogue()) {
        const auto takes = [&](char letter) { return std::strchr(test.options, letter) != nullptr; };
        EXPECT_EQ(test.rooted, takes('k')) << test.name;
        EXPECT_EQ(test.neighborhood, takes('N')) << test.name;
        EXPECT_EQ(test.is_collective(), takes('f')) << test.name;
        EXPECT_EQ(test.is_collective(), takes('M')) << test.name;
        EXPECT_EQ(test.is_one_sided(), takes('s')) << test.name;
        EXPECT_EQ(test.is_one_sided(), takes('w')) << test.name;
        const bool of_omb = test.family != Family::first && test.family != Family::halo;
        EXPECT_EQ(of_omb && test.family != Family::startup, takes('T')) << test.name;
        EXPECT_EQ(test.family != Family::first && test.family != Family::startup, takes('c')) << test.name;
        // OMB gives reductions no derived datatypes: their operations know none. Nor does it give one-sided tests any.
        EXPECT_EQ(of_omb && test.sized && !test.reduction && !test.is_one_sided(), takes('D')) << test.name;
        EXPECT_EQ(test.family == Family::multiple_bandwidth || test.family == Family::congestion, takes('V'))
            << test.name;
        EXPECT_EQ(test.family == Family::persistent_collective || std::strstr(test.name, "_persistent") != nullptr,
                  test.persistent)
            << test.name;
    }
}

TEST(Catalogue, DefaultsAreOmbs) {
    const Defaults latency = defaults_of(*find_test("latency"));
    EXPECT_EQ(latency.iterations_small, 10000U);
    EXPECT_EQ(latency.iterations_large, 1000U);
    EXPECT_EQ(latency.warmup_small, 100U);
    EXPECT_EQ(latency.warmup_large, 10U);
    EXPECT_EQ(latency.maximum_size, std::size_t{4} << 20);

    const Defaults bandwidth = defaults_of(*find_test("bw"));
    EXPECT_EQ(bandwidth.iterations_small, 100U);
    EXPECT_EQ(bandwidth.iterations_large, 20U);
    EXPECT_EQ(bandwidth.warmup_small, 10U);
    EXPECT_EQ(bandwidth.warmup_large, 2U);
    EXPECT_EQ(bandwidth.window_size, 64);

    const Defaults allreduce = defaults_of(*find_test("allreduce"));
    EXPECT_EQ(allreduce.iterations_small, 1000U);
    EXPECT_EQ(allreduce.iterations_large, 100U);
    EXPECT_EQ(allreduce.maximum_size, std::size_t{1} << 20);
}

// An allgather of s bytes a rank moves (n-1) s bytes into each rank, whatever the algorithm.
TEST(Catalogue, BusFactorsAreThoseOfNcclTests) {
    constexpr int kRanks = 8;
    EXPECT_DOUBLE_EQ(bus_factor(Collective::allreduce, kRanks), 2.0 * 7 / 8);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, kRanks), 7.0 / 8);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::allgather, kRanks), 7);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::alltoall, kRanks), 7);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::bcast, kRanks), 1);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce, kRanks), 1);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::ring_shift, kRanks), 1);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::barrier, kRanks), 0);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::neighbor_alltoall, kRanks), 0);
    EXPECT_DOUBLE_EQ(bus_factor(Collective::allreduce, 1), 0);
}

}  // namespace
}  // namespace awaken::bench
