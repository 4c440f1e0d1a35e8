// SPDX-License-Identifier: Apache-2.0
// The parts of apps/xtx that need neither MPI nor a GPU: sizes, the model of the overlap, products on the host.
#include <gtest/gtest.h>

#include <complex>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "host_blas.h"
#include "host_memory.h"
#include "model.h"
#include "plan.h"

namespace xtx {
namespace {

Problem sized(long long dofs, long long vectors, long long block) {
    Problem problem;
    problem.dofs = dofs;
    problem.vectors = vectors;
    problem.block = block;
    return problem;
}

std::size_t doubles_of(const Problem& problem) {
    std::size_t doubles = 0;
    for (const Block& block : blocks_of(problem)) {
        doubles += layout_of(problem, block).doubles;
    }
    return doubles;
}

TEST(XtxModel, OneBlockIsProductThenCommunication) {
    const std::vector<BlockTime> times = {{3, 2}};
    EXPECT_DOUBLE_EQ(serial_seconds(times), 5);
    EXPECT_DOUBLE_EQ(ideal_seconds(times), 5);
    EXPECT_TRUE(std::isnan(overlap_efficiency(5, 5, 5))) << "nothing can be saved";
}

TEST(XtxModel, TheLongerOfTwoCounts) {
    // 4, then max(5, 1), then max(2, 6), then 3.
    const std::vector<BlockTime> times = {{4, 1}, {5, 6}, {2, 3}};
    EXPECT_DOUBLE_EQ(serial_seconds(times), 21);
    EXPECT_DOUBLE_EQ(ideal_seconds(times), 18);
    EXPECT_DOUBLE_EQ(overlap_efficiency(21, 18, 18), 1);
    EXPECT_DOUBLE_EQ(overlap_efficiency(21, 18, 21), 0);
    EXPECT_DOUBLE_EQ(overlap_efficiency(21, 18, 19.5), 0.5);
    EXPECT_DOUBLE_EQ(overlap_efficiency(21, 18, 24), -1);
}

TEST(XtxModel, WithoutBlocksThereIsNoTime) {
    EXPECT_EQ(ideal_seconds({}), 0);
    EXPECT_EQ(serial_seconds({}), 0);
}

TEST(XtxPlan, TheTrapezoidHasHalfOfTheElements) {
    const Problem original = sized(1, 36600, 732);
    EXPECT_EQ(blocks_of(original).size(), 50U);
    EXPECT_EQ(doubles_of(original), 36600ULL * (36600 + 732) / 2);
    // FP64 diagonal blocks, the rest in FP32.
    Problem mixed = original;
    mixed.precision = Precision::mixed_communication;
    std::size_t bytes = 0;
    for (const Block& block : blocks_of(mixed)) {
        bytes += layout_of(mixed, block).payload_bytes();
    }
    EXPECT_EQ(bytes, 50ULL * 732 * 732 * 8 + (36600ULL * (36600 + 732) / 2 - 50ULL * 732 * 732) * 4);
}

TEST(XtxPlan, BlocksCoverTheColumnsOnce) {
    for (const auto& [vectors, block] :
         std::vector<std::pair<long long, long long>>{{10, 3}, {9, 3}, {2, 5}, {1, 1}, {7, 1}}) {
        long long next = 0;
        for (const Block& one : blocks_of(sized(1, vectors, block))) {
            EXPECT_EQ(one.first, next);
            EXPECT_EQ(one.height, vectors - one.first);
            EXPECT_GE(one.width, 1);
            EXPECT_LE(one.width, block);
            EXPECT_GE(one.rest(), 0);
            next += one.width;
        }
        EXPECT_EQ(next, vectors);
    }
}

TEST(XtxPlan, BlocksAreChosenSoThatTheFewestVectorsFillThem) {
    EXPECT_EQ(chosen_block(1), 1);
    EXPECT_EQ(chosen_block(100), 100);
    EXPECT_EQ(chosen_block(101), 110);   // 110 against 180, 200 and 120
    EXPECT_EQ(chosen_block(180), 90);    // full as it is
    EXPECT_EQ(chosen_block(600), 100);   // 600 also with 120: the first
    EXPECT_EQ(chosen_block(601), 160);   // 640 against 750, 680 and 720
    EXPECT_EQ(chosen_block(1001), 260);  // 1040 against 1200, 1100 and 1200
    EXPECT_EQ(chosen_block(2000), 200);
    EXPECT_EQ(chosen_block(36600), 360);  // 36720 against 36860, 36800 and 36960
}

TEST(XtxPlan, RoundingUpKeepsMultiples) {
    EXPECT_EQ(rounded_up(0, 8), 0);
    EXPECT_EQ(rounded_up(1, 8), 8);
    EXPECT_EQ(rounded_up(8, 8), 8);
    EXPECT_EQ(rounded_up((1LL << 40) - 1, 8), 1LL << 40);
    EXPECT_EQ(rows_in_single({0, 17}), 24);
}

TEST(XtxPlan, RowsAreSpreadEvenly) {
    for (const long long dofs : {1, 2, 7, 8, 1000003}) {
        for (const int ranks : {1, 2, 3, 8}) {
            const Problem problem = sized(dofs, 1, 1);
            long long next = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                const Rows rows = rows_of(problem, rank, ranks);
                EXPECT_EQ(rows.first, next);
                EXPECT_GE(rows.count, dofs / ranks);
                EXPECT_LE(rows.count, dofs / ranks + 1);
                next += rows.count;
            }
            EXPECT_EQ(next, dofs);
        }
    }
}

TEST(XtxPlan, SizesBeyond32BitsStayWhole) {
    const Problem problem = sized(1LL << 40, 3'000'000'000, 3'000'000'000);
    const Block block = blocks_of(problem).front();
    EXPECT_EQ(layout_of(problem, block).doubles, 9'000'000'000'000'000'000ULL);
    EXPECT_EQ(rows_of(problem, 2, 3).first + rows_of(problem, 2, 3).count, 1LL << 40);
    EXPECT_DOUBLE_EQ(operations(problem, block, 2), 3.6e19);
}

TEST(XtxPlan, FloatsOfABlockAreAligned) {
    Problem problem = sized(1, 10, 3);
    problem.precision = Precision::mixed;
    problem.is_complex = true;
    const Layout layout = layout_of(problem, blocks_of(problem).front());
    EXPECT_EQ(layout.doubles, 2U * 3 * 3);
    EXPECT_EQ(layout.floats, 2U * 3 * 7);
    EXPECT_EQ(layout.floats_offset % 256, 0U);
    EXPECT_GE(layout.floats_offset, layout.doubles * sizeof(double));
    EXPECT_EQ(layout.buffer_bytes(), layout.floats_offset + layout.floats * sizeof(float));
}

template <class Value>
std::vector<Value> whole_numbers(std::size_t count) {
    std::mt19937 engine(7);
    std::vector<Value> values(count);
    for (Value& value : values) {
        if constexpr (std::is_floating_point_v<Value>) {
            value = static_cast<Value>(engine() % 9) - 4;
        } else {
            value = Value(static_cast<typename Value::value_type>(engine() % 9) - 4,
                          static_cast<typename Value::value_type>(engine() % 9) - 4);
        }
    }
    return values;
}

/// A part of X times the adjoint of another, with sizes on both sides of the tiles' limits.
template <class Value>
void check_loops(bool single, bool is_complex) {
    constexpr long long m = 300;
    constexpr long long n = 5;
    constexpr long long k = 70;
    constexpr long long leading = 310;
    const auto X = whole_numbers<Value>(leading * k);
    std::vector<Value> C(m * n, Value(99));
    Product product;
    product.single = single;
    product.is_complex = is_complex;
    product.m = m;
    product.n = n;
    product.k = k;
    product.a = X.data() + 10;
    product.b = X.data() + 3;
    product.leading = leading;
    product.c = C.data();
    product.leading_c = m;
    multiply_by_loops(product);
    for (long long j = 0; j < n; ++j) {
        for (long long i = 0; i < m; ++i) {
            Value expected{};
            for (long long l = 0; l < k; ++l) {
                const Value b = X[static_cast<std::size_t>(3 + j + l * leading)];
                const Value a = X[static_cast<std::size_t>(10 + i + l * leading)];
                if constexpr (std::is_floating_point_v<Value>) {
                    expected += a * b;
                } else {
                    expected += a * std::conj(b);
                }
            }
            ASSERT_EQ(C[static_cast<std::size_t>(i + j * m)], expected) << i << ", " << j;
        }
    }
}

TEST(XtxLoops, MultiplyInEachPrecision) {
    check_loops<float>(true, false);
    check_loops<double>(false, false);
    check_loops<std::complex<float>>(true, true);
    check_loops<std::complex<double>>(false, true);
}

class HostMemory : public ::testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = (std::filesystem::temp_directory_path() / "xtx-memory-XXXXXX").string();
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        root = pattern;
        put("/proc/meminfo", "MemTotal:  9000000 kB\nMemFree:  10 kB\nMemAvailable:  1000 kB\n");
    }
    void TearDown() override { std::filesystem::remove_all(root); }

    void put(const std::string& path, const std::string& text) const {
        std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
        std::ofstream(root + path) << text;
    }
    void put_v2(const std::string& group, const std::string& limit, const std::string& use) const {
        put("/sys/fs/cgroup" + group + "/memory.max", limit);
        put("/sys/fs/cgroup" + group + "/memory.current", use);
    }

    std::string root;
};

TEST_F(HostMemory, IsWhatTheSystemHasAvailable) {
    EXPECT_EQ(free_host_bytes(root), 1000U << 10) << "no control groups";
    put("/proc/self/cgroup", "0::/user.slice\n");
    put_v2("/user.slice", "max\n", "4096\n");
    EXPECT_EQ(free_host_bytes(root), 1000U << 10) << "none that is limited";
    put_v2("/user.slice", "8000000\n", "0\n");
    EXPECT_EQ(free_host_bytes(root), 1000U << 10) << "a limit that is further away";
}

TEST_F(HostMemory, IsLimitedByTheGroupAndThoseAboveIt) {
    put("/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    put_v2("/slurm/job_7/step_0", "500000\n", "100000\n");
    EXPECT_EQ(free_host_bytes(root), 400000U);
    put("/sys/fs/cgroup/slurm/job_7/step_0/memory.stat", "anon 20000\ninactive_file 30000\nactive_file 50000\n");
    EXPECT_EQ(free_host_bytes(root), 430000U) << "caches are given back";
    put_v2("/slurm/job_7", "300000\n", "200000\n");
    EXPECT_EQ(free_host_bytes(root), 100000U);
    put_v2("/slurm/job_7", "300000\n", "400000\n");
    EXPECT_EQ(free_host_bytes(root), 0U) << "the limit was lowered";
}

TEST_F(HostMemory, IsLimitedByTheContainerWhosePathIsTheHosts) {
    put("/proc/self/cgroup", "0::/docker/1f2e\n");
    put_v2("", "700000\n", "100000\n");
    EXPECT_EQ(free_host_bytes(root), 600000U);
}

TEST_F(HostMemory, IsLimitedByGroupsOfTheFirstVersion) {
    put("/proc/self/cgroup", "5:cpu,cpuacct:/job\n4:cpuset,memory:/job\n1:name=systemd:/job\n0::/job\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n");
    put("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "600000\n");
    put("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "100000\n");
    put("/sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n");
    EXPECT_EQ(free_host_bytes(root), 550000U);
}

}  // namespace
}  // namespace xtx
