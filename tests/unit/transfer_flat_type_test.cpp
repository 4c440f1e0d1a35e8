// SPDX-License-Identifier: Apache-2.0
// Flattened datatypes against the meaning of their layouts, byte by byte.
#include "transfer/flat_type.h"

#include <gtest/gtest.h>

#include "random_layout.h"

namespace awaken::transfer {
namespace {

using test::expand;
using test::pick;
using test::Random;

LayoutNode leaf(const std::int64_t offset, const std::int64_t length, const std::int64_t count = 1,
                const std::int64_t stride = 0) {
    LayoutNode node;
    node.offset = offset;
    node.length = length;
    node.count = count;
    node.stride = stride;
    return node;
}

LayoutNode loop(std::vector<LayoutNode> children, const std::int64_t offset, const std::int64_t count,
                const std::int64_t stride) {
    LayoutNode node = leaf(offset, 0, count, stride);
    node.children = std::move(children);
    return node;
}

Strided form(const std::int64_t offset, const std::int64_t width, const std::array<std::int64_t, 4>& counts,
             const std::array<std::int64_t, 4>& strides) {
    return {offset, width, counts, strides};
}

/// Offsets of the bytes at positions [begin, end), as the strided form says.
std::vector<std::int64_t> offsets_of(const Strided& strided, const std::int64_t begin, const std::int64_t end) {
    std::vector<std::int64_t> offsets;
    strided.for_each_block(begin, end, [&](const StridedBlock& block, const std::int64_t position) {
        EXPECT_EQ(position, begin + static_cast<std::int64_t>(offsets.size()));
        for (std::int64_t row = 0; row < block.rows; ++row) {
            for (std::int64_t byte = 0; byte < block.width; ++byte) {
                offsets.push_back(block.offset + row * block.pitch + byte);
            }
        }
    });
    return offsets;
}

TEST(StridedForm, Contiguous) {
    EXPECT_EQ(strided_form(Layout::contiguous(24), 5), form(0, 120, {1, 1, 1, 1}, {}));
}

TEST(StridedForm, ColumnOfAMatrix) {
    const Layout column({leaf(0, 8, 16384, 131072)}, 0, std::int64_t{16383} * 131072 + 8);
    EXPECT_EQ(strided_form(column, 1), form(0, 8, {16384, 1, 1, 1}, {131072, 0, 0, 0}));
}

TEST(StridedForm, NeighbouringColumnsAreALoopMore) {
    const Layout column({leaf(0, 8, 100, 800)}, 0, 8);
    EXPECT_EQ(strided_form(column, 7), form(0, 8, {100, 7, 1, 1}, {800, 8, 0, 0}));
}

TEST(StridedForm, LoopsThatContinueEachOtherAreOne) {
    const Layout rows({loop({leaf(0, 4, 10, 16)}, 0, 3, 160)}, 0, 480);
    EXPECT_EQ(strided_form(rows, 2), form(0, 4, {60, 1, 1, 1}, {16, 0, 0, 0}));
}

TEST(StridedForm, RegularIndexedIsAVector) {
    // Blocks of two rows each, at one distance: what MPI_Type_indexed makes of a vector type.
    std::vector<LayoutNode> nodes;
    for (std::int64_t i = 0; i < 5; ++i) {
        nodes.push_back(leaf(100 * i, 8, 2, 24));
    }
    EXPECT_EQ(strided_form(Layout(nodes, 0, 500), 1), form(0, 8, {2, 5, 1, 1}, {24, 100, 0, 0}));
}

TEST(StridedForm, AFaceInEachDirection) {
    // Of 32 x 32 x 32 doubles.
    constexpr std::int64_t kRow = 256, kPlane = 8192;
    const auto face = [](const std::int64_t planes, const std::int64_t rows, const std::int64_t columns) {
        return Layout({loop({loop({leaf(0, 8, columns, 8)}, 0, rows, kRow)}, 0, planes, kPlane)}, 0, 32 * kPlane);
    };
    EXPECT_EQ(strided_form(face(1, 32, 32), 1), form(0, 8192, {1, 1, 1, 1}, {}));
    EXPECT_EQ(strided_form(face(32, 1, 32), 1), form(0, 256, {32, 1, 1, 1}, {kPlane, 0, 0, 0}));
    EXPECT_EQ(strided_form(face(32, 32, 1), 1), form(0, 8, {1024, 1, 1, 1}, {kRow, 0, 0, 0}));
    EXPECT_EQ(strided_form(face(30, 30, 1), 1), form(0, 8, {30, 30, 1, 1}, {kRow, kPlane, 0, 0}));
}

TEST(StridedForm, NothingForIrregularDeepOrEmptyTypes) {
    EXPECT_FALSE(strided_form(Layout({leaf(0, 8), leaf(20, 4)}, 0, 24), 1));
    EXPECT_FALSE(strided_form(Layout({leaf(0, 0)}, 0, 24), 3));
    EXPECT_FALSE(strided_form(Layout::contiguous(8), 0));
    std::vector<LayoutNode> nodes{leaf(0, 1, 2, 3)};
    std::int64_t stride = 7;
    for (int depth = 0; depth < 4; ++depth, stride *= 3) {
        nodes = {loop(std::move(nodes), 0, 2, stride)};
    }
    EXPECT_FALSE(strided_form(Layout(nodes, 0, 1000), 1));
}

TEST(StridedForm, CountsBeyondAnInt) {
    constexpr std::int64_t kMany = std::int64_t{5} << 30;
    const std::optional<Strided> large = strided_form(Layout({leaf(-16, 8, 3, 32)}, -16, 128), kMany);
    EXPECT_EQ(large, form(-16, 8, {3, kMany, 1, 1}, {32, 128, 0, 0}));
    EXPECT_EQ(large->bytes(), 24 * kMany);
    // From the middle of the last element.
    EXPECT_EQ(offsets_of(*large, 24 * kMany - 12, 24 * kMany),
              (std::vector<std::int64_t>{(kMany - 1) * 128 + 20, (kMany - 1) * 128 + 21, (kMany - 1) * 128 + 22,
                                         (kMany - 1) * 128 + 23, (kMany - 1) * 128 + 48, (kMany - 1) * 128 + 49,
                                         (kMany - 1) * 128 + 50, (kMany - 1) * 128 + 51, (kMany - 1) * 128 + 52,
                                         (kMany - 1) * 128 + 53, (kMany - 1) * 128 + 54, (kMany - 1) * 128 + 55}));
}

TEST(FlatType, RandomTypesMeanTheirBytes) {
    Random random(3);
    int strided_seen = 0, lists_seen = 0;
    for (int round = 0; round < 3000; ++round) {
        const std::vector<LayoutNode> nodes = test::random_nodes(random, static_cast<int>(pick(random, 0, 3)));
        const std::int64_t extent = pick(random, -50, 90), count = pick(random, 1, 4);
        const Layout layout(nodes, 0, extent);
        const FlatType flat(layout);
        const std::vector<std::int64_t> expected = expand(nodes, count, extent);
        if (expected.empty()) {
            continue;
        }
        std::vector<std::int64_t> listed;
        for (std::int64_t element = 0; element < count; ++element) {
            std::uint64_t position = 0;
            for (const ListEntry& entry : flat.entries()) {
                EXPECT_EQ(entry.position, position);
                position += entry.bytes();
                for (std::int64_t row = 0; row < entry.rows; ++row) {
                    for (std::int64_t byte = 0; byte < entry.width; ++byte) {
                        listed.push_back(element * extent + entry.offset + row * entry.pitch + byte);
                    }
                }
            }
        }
        ASSERT_EQ(listed, expected) << "round " << round;
        ++lists_seen;
        const std::optional<Strided> strided = strided_form(layout, count);
        if (!strided) {
            continue;
        }
        ++strided_seen;
        const auto size = static_cast<std::int64_t>(expected.size());
        ASSERT_EQ(strided->bytes(), size);
        const std::int64_t begin = pick(random, 0, size - 1), end = pick(random, begin, size);
        ASSERT_EQ(offsets_of(*strided, begin, end),
                  std::vector<std::int64_t>(expected.begin() + begin, expected.begin() + end));
    }
    EXPECT_GT(lists_seen, 1000);
    EXPECT_GT(strided_seen, 300);
}

TEST(FlatType, LongRunsAreShared) {
    const Layout layout({leaf(0, 10 * kEntryBytes + 1), leaf(20 * kEntryBytes, 100, 1000, 200)}, 0, 1);
    const FlatType flat(layout);
    std::int64_t total = 0;
    for (const ListEntry& entry : flat.entries()) {
        EXPECT_LE(entry.bytes(), static_cast<std::uint64_t>(kEntryBytes));
        total += static_cast<std::int64_t>(entry.bytes());
    }
    EXPECT_EQ(total, layout.size());
}

TEST(FlatType, ListsThatWouldBeTooLongAreNotMade) {
    // Two leaves a round, which do not join.
    const Layout layout({loop({leaf(0, 1), leaf(3, 2)}, 0, static_cast<std::int64_t>(kMostEntries), 10)}, 0, 1);
    EXPECT_TRUE(FlatType(layout).entries().empty());
}

}  // namespace
}  // namespace awaken::transfer
