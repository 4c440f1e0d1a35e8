// SPDX-License-Identifier: Apache-2.0
#include "transfer/layout.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "random_layout.h"

namespace awaken::transfer {
namespace {

using Blocks = std::vector<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>>;

Blocks blocks_of(const Layout& layout, const std::int64_t count, const std::int64_t limit = INT64_MAX) {
    Blocks blocks;
    layout.for_each_block(count, limit, [&](const StridedBlock& block) {
        blocks.emplace_back(block.offset, block.width, block.rows, block.pitch);
    });
    return blocks;
}

LayoutNode leaf(const std::int64_t offset, const std::int64_t length, const std::int64_t count = 1,
                const std::int64_t stride = 0) {
    return {offset, length, count, stride, {}};
}

LayoutNode loop(const std::int64_t offset, const std::int64_t count, const std::int64_t stride,
                std::vector<LayoutNode> children) {
    return {offset, 0, count, stride, std::move(children)};
}

TEST(Layout, ContiguousElementsAreOneBlock) {
    const Layout layout = Layout::contiguous(8);
    EXPECT_EQ(layout.size(), 8);
    EXPECT_EQ(layout.extent(), 8);
    EXPECT_EQ(layout.block_count(), 1);
    EXPECT_TRUE(layout.is_contiguous(1000000));
    EXPECT_EQ(blocks_of(layout, 1000), (Blocks{{0, 8000, 1, 0}}));
    EXPECT_EQ(blocks_of(layout, 1000, 17), (Blocks{{0, 17, 1, 0}}));
}

TEST(Layout, LengthsBeyond32Bits) {
    const std::int64_t gigabytes = std::int64_t{5} << 30;
    const Layout layout({leaf(0, gigabytes, 3, 2 * gigabytes)}, 0, 6 * gigabytes);
    EXPECT_EQ(layout.size(), 3 * gigabytes);
    EXPECT_EQ(layout.true_end(), 5 * gigabytes);
    EXPECT_EQ(blocks_of(layout, 2), (Blocks{{0, gigabytes, 6, 2 * gigabytes}}));
    EXPECT_EQ(blocks_of(layout, 1, gigabytes + 8), (Blocks{{0, gigabytes, 1, 0}, {2 * gigabytes, 8, 1, 0}}));
}

TEST(Layout, DenseLoopsBecomeLeaves) {
    // contiguous(4, contiguous(3, double)) with a shift on each level
    const Layout layout({loop(16, 4, 24, {loop(8, 3, 8, {leaf(0, 8)})})}, 0, 120);
    ASSERT_EQ(layout.nodes().size(), 1U);
    EXPECT_TRUE(layout.nodes()[0].children.empty());
    EXPECT_EQ(layout.nodes()[0].offset, 24);
    EXPECT_EQ(layout.nodes()[0].length, 96);
    EXPECT_EQ(layout.nodes()[0].count, 1);
    EXPECT_EQ(layout.true_begin(), 24);
    EXPECT_EQ(layout.true_end(), 120);
}

TEST(Layout, NestedStridedLoopsBecomeOneStridedLeaf) {
    const Layout layout({loop(0, 5, 64, {loop(0, 4, 16, {leaf(0, 8)})})}, 0, 320);
    ASSERT_EQ(layout.nodes().size(), 1U);
    EXPECT_EQ(layout.block_count(), 1);
    EXPECT_EQ(blocks_of(layout, 1), (Blocks{{0, 8, 20, 16}}));
    EXPECT_EQ(blocks_of(layout, 3), (Blocks{{0, 8, 60, 16}})) << "elements continue the pattern";
}

TEST(Layout, SubarrayKeepsOneLoop) {
    // 3 planes of 4 rows of 8 bytes; the planes do not continue the rows' pattern
    const Layout layout({loop(0, 3, 1000, {leaf(8, 8, 4, 16)})}, 0, 3000);
    EXPECT_EQ(layout.block_count(), 3);
    EXPECT_EQ(blocks_of(layout, 1), (Blocks{{8, 8, 4, 16}, {1008, 8, 4, 16}, {2008, 8, 4, 16}}));
}

TEST(Layout, CountOfOneRowIsOneStridedBlock) {
    const Layout layout({leaf(4, 8)}, 0, 32);
    EXPECT_TRUE(layout.is_contiguous(1));
    EXPECT_FALSE(layout.is_contiguous(2));
    EXPECT_EQ(blocks_of(layout, 1000000), (Blocks{{4, 8, 1000000, 32}}));
    EXPECT_EQ(blocks_of(layout, 4, 20), (Blocks{{4, 8, 2, 32}, {68, 4, 1, 0}})) << "the cut row stands alone";
    EXPECT_EQ(blocks_of(layout, 4, 16), (Blocks{{4, 8, 2, 32}}));
    EXPECT_EQ(blocks_of(layout, 4, 3), (Blocks{{4, 3, 1, 0}}));
}

TEST(Layout, AdjacentLeavesJoinInOrder) {
    const Layout joined({leaf(0, 4), leaf(4, 1), leaf(5, 3)}, 0, 8);
    EXPECT_EQ(joined.block_count(), 1);
    EXPECT_TRUE(joined.is_contiguous(9));
    const Layout backwards({leaf(4, 4), leaf(0, 4)}, 0, 8);
    EXPECT_FALSE(backwards.is_contiguous(1)) << "memory order is not travelling order";
    EXPECT_EQ(blocks_of(backwards, 1), (Blocks{{4, 4, 2, -4}}));
}

TEST(Layout, JoinsAcrossElements) {
    // struct {int; double}: the double touches the next element's int
    const Layout layout({leaf(0, 4), leaf(8, 8)}, 0, 16);
    EXPECT_EQ(blocks_of(layout, 3), (Blocks{{0, 4, 1, 0}, {8, 12, 2, 16}, {40, 8, 1, 0}}));
}

TEST(Layout, RegularIndexedTypeIsStrided) {
    std::vector<LayoutNode> nodes;
    for (std::int64_t i = 0; i < 1000; ++i) {
        nodes.push_back(leaf(i * 40, 8));
    }
    const Layout layout(std::move(nodes), 0, 40000);
    EXPECT_EQ(layout.block_count(), 1);
    EXPECT_EQ(blocks_of(layout, 2), (Blocks{{0, 8, 2000, 40}}));
}

TEST(Layout, NegativeStridesAndLowerBounds) {
    const Layout layout({leaf(0, 8, 3, -16)}, -32, 40);
    EXPECT_EQ(layout.lower_bound(), -32);
    EXPECT_EQ(layout.true_begin(), -32);
    EXPECT_EQ(layout.true_end(), 8);
    EXPECT_EQ(layout.span(2).begin, -32);
    EXPECT_EQ(layout.span(2).end, 48);
    const Layout backwards({leaf(0, 8)}, 0, -8);
    EXPECT_FALSE(backwards.is_contiguous(2));
    EXPECT_EQ(backwards.span(3).begin, -16);
    EXPECT_EQ(backwards.span(3).end, 8);
}

TEST(Layout, NothingToMove) {
    const Layout none({}, 0, 0);
    const Layout zero({leaf(8, 0), leaf(0, 4, 0), loop(0, 3, 8, {leaf(0, 0)}), loop(0, 0, 8, {leaf(0, 8)})}, 0, 16);
    for (const Layout* layout : {&none, &zero}) {
        EXPECT_EQ(layout->size(), 0);
        EXPECT_EQ(layout->block_count(), 0);
        EXPECT_EQ(layout->true_begin(), 0);
        EXPECT_EQ(layout->true_end(), 0);
        EXPECT_TRUE(layout->is_contiguous(5));
        EXPECT_TRUE(blocks_of(*layout, 5).empty());
        EXPECT_EQ(layout->span(5).begin, 0);
        EXPECT_EQ(layout->span(5).end, 0);
    }
    EXPECT_EQ(zero.extent(), 16);
    const Layout some = Layout::contiguous(4);
    EXPECT_TRUE(blocks_of(some, 0).empty());
    EXPECT_TRUE(blocks_of(some, -1).empty());
    EXPECT_TRUE(blocks_of(some, 1, 0).empty());
    EXPECT_EQ(some.span(0).end, 0);
}

TEST(Layout, HugeCountsDoNotOverflow) {
    const Layout layout({leaf(0, 8)}, 0, 64);
    EXPECT_FALSE(layout.is_contiguous(INT64_MAX));
    EXPECT_EQ(layout.span(INT64_MAX).end, INT64_MAX);
    EXPECT_EQ(blocks_of(layout, INT64_MAX, 16), (Blocks{{0, 8, 2, 64}}));
}

/// What a layout says of itself, and what pack and unpack do, against the naive list of bytes.
class RandomLayout : public ::testing::TestWithParam<int> {};

TEST_P(RandomLayout, MeansTheSameBytesInTheSameOrder) {
    test::Random random(static_cast<std::uint64_t>(GetParam()));
    for (int round = 0; round < 100; ++round) {
        SCOPED_TRACE("round " + std::to_string(round));
        const auto nodes = test::random_nodes(random, static_cast<int>(test::pick(random, 0, 3)));
        const std::int64_t count = test::pick(random, 0, 5);
        std::int64_t extent = test::pick(random, -200, 200);
        if (test::pick(random, 0, 2) == 0) {
            extent = Layout(nodes, 0, 0).size();
        }
        const Layout layout(nodes, -3, extent);

        const std::vector<std::int64_t> element = test::expand(nodes, 1, extent);
        const std::vector<std::int64_t> bytes = test::expand(nodes, count, extent);
        const auto total = static_cast<std::int64_t>(bytes.size());
        ASSERT_EQ(layout.size(), static_cast<std::int64_t>(element.size()));
        if (!element.empty()) {
            ASSERT_EQ(layout.true_begin(), *std::min_element(element.begin(), element.end()));
            ASSERT_EQ(layout.true_end(), *std::max_element(element.begin(), element.end()) + 1);
        }
        const Layout::Span span = layout.span(count);
        if (bytes.empty()) {
            ASSERT_EQ(span.begin, 0);
            ASSERT_EQ(span.end, 0);
            ASSERT_TRUE(layout.is_contiguous(count));
        } else {
            ASSERT_EQ(span.begin, *std::min_element(bytes.begin(), bytes.end()));
            ASSERT_EQ(span.end, *std::max_element(bytes.begin(), bytes.end()) + 1);
            bool one_run = true;
            for (std::int64_t i = 0; i < total; ++i) {
                one_run = one_run && bytes[static_cast<std::size_t>(i)] == layout.true_begin() + i;
            }
            if (layout.is_contiguous(count)) {
                ASSERT_TRUE(one_run);
            }
        }

        const std::int64_t limit = test::pick(random, 0, 2) == 0 ? INT64_MAX : test::pick(random, 0, total + 3);
        const std::int64_t moved = std::min(limit, total);
        std::vector<std::int64_t> visited;
        layout.for_each_block(count, limit, [&](const StridedBlock& block) {
            ASSERT_GT(block.width, 0);
            ASSERT_GE(block.rows, 1);
            for (std::int64_t row = 0; row < block.rows; ++row) {
                for (std::int64_t i = 0; i < block.width; ++i) {
                    visited.push_back(block.offset + row * block.pitch + i);
                }
            }
        });
        ASSERT_EQ(visited, std::vector<std::int64_t>(bytes.begin(), bytes.begin() + moved));

        // A buffer with room for everything; every byte tells where it is from.
        const std::int64_t room = span.end - span.begin;
        std::vector<std::uint8_t> memory(static_cast<std::size_t>(room));
        for (auto& byte : memory) {
            byte = static_cast<std::uint8_t>(random());
        }
        std::uint8_t* const origin = memory.data() - span.begin;
        std::vector<std::uint8_t> packed(static_cast<std::size_t>(moved) + 8, 0xEE), expected = packed;
        for (std::int64_t i = 0; i < moved; ++i) {
            expected[static_cast<std::size_t>(i)] =
                memory[static_cast<std::size_t>(bytes[static_cast<std::size_t>(i)] - span.begin)];
        }
        pack(layout, origin, count, packed.data(), limit);
        ASSERT_EQ(packed, expected);

        std::vector<std::uint8_t> unpacked = memory, unpacked_expected = memory;
        for (auto& byte : packed) {
            byte = static_cast<std::uint8_t>(random());
        }
        for (std::int64_t i = 0; i < moved; ++i) {
            unpacked_expected[static_cast<std::size_t>(bytes[static_cast<std::size_t>(i)] - span.begin)] =
                packed[static_cast<std::size_t>(i)];
        }
        unpack(layout, unpacked.data() - span.begin, count, packed.data(), limit);
        ASSERT_EQ(unpacked, unpacked_expected) << "gaps must keep what they held";
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLayout, ::testing::Range(0, 30));

}  // namespace
}  // namespace awaken::transfer
