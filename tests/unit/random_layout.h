// SPDX-License-Identifier: Apache-2.0
// Random datatype layouts and their naive meaning, for property tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "transfer/layout.h"

namespace awaken::test {

using Random = std::mt19937_64;

inline std::int64_t pick(Random& random, const std::int64_t low, const std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

/// Nested, with gaps, overlaps, zero counts, zero lengths, negative strides and offsets.
inline std::vector<transfer::LayoutNode> random_nodes(Random& random, const int depth) {
    std::vector<transfer::LayoutNode> nodes(static_cast<std::size_t>(pick(random, depth == 0 ? 1 : 0, 3)));
    std::int64_t cursor = pick(random, -8, 8);
    for (transfer::LayoutNode& node : nodes) {
        // Half of the nodes continue where the last one ended, so that joining has something to join.
        node.offset = pick(random, 0, 1) == 0 ? cursor : pick(random, -64, 64);
        node.count = pick(random, 0, 5) == 0 ? pick(random, 0, 1) : pick(random, 1, 4);
        if (depth == 0 || pick(random, 0, 2) == 0) {
            node.length = pick(random, 0, 9) == 0 ? 0 : pick(random, 1, 8);
            node.stride = pick(random, 0, 2) == 0 ? node.length : pick(random, -24, 24);
            cursor = node.offset + node.count * node.length;
        } else {
            node.children = random_nodes(random, depth - 1);
            if (node.children.empty()) {
                node.children.emplace_back();  // a loop over nothing
            }
            node.stride = pick(random, -80, 80);
            const transfer::Layout inner(node.children, 0, 0);
            if (pick(random, 0, 1) == 0) {
                node.stride = inner.size();
            }
            cursor = node.offset + node.count * inner.size();
        }
    }
    return nodes;
}

/// The offset of each byte, in travelling order, by the definition of LayoutNode alone.
inline void expand(const std::vector<transfer::LayoutNode>& nodes, const std::int64_t origin,
                   std::vector<std::int64_t>& bytes) {
    for (const transfer::LayoutNode& node : nodes) {
        for (std::int64_t i = 0; i < node.count; ++i) {
            const std::int64_t position = origin + node.offset + i * node.stride;
            if (!node.children.empty()) {
                expand(node.children, position, bytes);
            } else {
                for (std::int64_t byte = 0; byte < node.length; ++byte) {
                    bytes.push_back(position + byte);
                }
            }
        }
    }
}

inline std::vector<std::int64_t> expand(const std::vector<transfer::LayoutNode>& nodes, const std::int64_t count,
                                        const std::int64_t extent) {
    std::vector<std::int64_t> bytes;
    for (std::int64_t i = 0; i < count; ++i) {
        expand(nodes, i * extent, bytes);
    }
    return bytes;
}

}  // namespace awaken::test
