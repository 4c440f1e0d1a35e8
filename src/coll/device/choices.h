// SPDX-License-Identifier: Apache-2.0
// How this process does its collectives: the table that chooses the algorithms, and, for the report, what was done so
// far.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/settings.h"
#include "coll/device/selection.h"

namespace awaken::coll {

struct Choices {
    explicit Choices(const Settings& settings)
        // If ranks must not read each other's memory, collectives have no way but the MPI's.
        : selection(settings.path == NodePath::ring ? Selection("* : staged", "AWAKEN_PATH=ring")
                                                    : Selection(settings.collectives, "AWAKEN_COLLECTIVES")) {}

    const Selection selection;
    std::atomic<bool> any_node_comms{false};
    std::atomic<std::uint64_t> chunk_bytes{0};  ///< of pipelined collectives; 0: there was none yet
    std::atomic<int> inter_node_comms{0};       ///< inter-node communicators of the last hierarchical one
    /// Reductions that were to fold in the order of the ranks, and did: by kernels, and by exchanged elements.
    std::atomic<std::uint64_t> folded_by_kernels{0}, exchanged_in_rank_order{0};

    /// Whether the table chose the way of any collective.
    [[nodiscard]] bool were_used() const noexcept {
        return any_node_comms.load(std::memory_order_relaxed) || chunk_bytes.load(std::memory_order_relaxed) != 0;
    }
    /// How large collectives are done that span nodes, or pass through host memory, in one line. Empty if there was
    /// none.
    [[nodiscard]] std::string between_nodes() const {
        const std::uint64_t bytes = chunk_bytes.load(std::memory_order_relaxed);
        if (bytes == 0) {
            return {};
        }
        const int groups = inter_node_comms.load(std::memory_order_relaxed);
        return "through host memory : chunks of " + std::to_string(bytes >> 10) + " KiB" +
               (groups > 0 ? ", " + std::to_string(groups) + " inter-node communicators" : std::string());
    }
};

}  // namespace awaken::coll
