// SPDX-License-Identifier: Apache-2.0
// What each member of a communicator has to do for a collective when all members can reach each other's device memory.
//
// The plan cuts the work so that no two members write to the same bytes, no member reads what another one overwrites,
// and no part waits for another. Once all members have proposed, all may work at once. When all have done their
// partitions, the collective is over. The member that does a reduction folds the members' values in the order of their
// ranks. So the result does not depend on how the work was cut.
//
// Knows neither MPI nor a GPU.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "gpu/kernels/codes.h"

namespace awaken::coll {

enum class Kind : std::uint8_t {
    broadcast,
    reduce,
    allreduce,
    gather,
    scatter,
    allgather,
    reduce_scatter,
    alltoall,
    scan,
    exscan,
    barrier,      ///< over when all have proposed
    neighborhood  ///< messages along the edges of a topology, whatever moves them: nothing is planned
};
inline constexpr int kKinds = 12;

/// Whether the collective combines values, which needs kernels for their type and operation.
[[nodiscard]] constexpr bool is_reduction(const Kind kind) noexcept {
    return kind == Kind::reduce || kind == Kind::allreduce || kind == Kind::reduce_scatter || kind == Kind::scan ||
           kind == Kind::exscan;
}

[[nodiscard]] const char* to_string(Kind kind) noexcept;

/// How a collective is done.
enum class Algorithm : std::uint8_t {
    root_only,  ///< one member's GPU does all the work: fewest things to wait for, good for few bytes
    /// Allreduce: each member reduces everything for itself, and writes to no other GPU. Others: as root_only.
    one_shot,
    two_shot,        ///< each member does a partition of the work
    ccl,             ///< NCCL or RCCL
    hierarchical,    ///< across nodes: within each node, then between the nodes, then within each again
    point_to_point,  ///< across nodes: a message for each part, on the paths that messages take
    staged           ///< through the MPI, in host memory
};
/// The algorithms that are for several nodes only.
[[nodiscard]] constexpr bool needs_nodes(const Algorithm algorithm) noexcept {
    return algorithm == Algorithm::hierarchical || algorithm == Algorithm::point_to_point;
}
/// Whether the algorithm can do a collective whose members are on so many nodes.
[[nodiscard]] constexpr bool spans(const Algorithm algorithm, const int nodes) noexcept {
    return algorithm == Algorithm::ccl || algorithm == Algorithm::staged || needs_nodes(algorithm) == (nodes > 1);
}

/// As the table names them, in the order of Algorithm.
inline constexpr std::array kAlgorithmNames = {"root-only",    "one-shot",       "two-shot", "ccl",
                                               "hierarchical", "point-to-point", "staged"};
[[nodiscard]] const char* to_string(Algorithm algorithm) noexcept;

/// The most members that kernels can serve.
inline constexpr int kMostMembers = static_cast<int>(kernels::kMostPlaces);

/// A place in a member's send or receive buffer.
struct Operand {
    int member = 0;
    bool receives = false;     ///< in its receive buffer
    std::uint64_t offset = 0;  ///< bytes
};

/// Reduces `elements` elements of all sources, in order, and writes the result to all targets. With one source this is
/// a copy.
struct Combination {
    std::array<Operand, kMostMembers> sources;
    std::array<Operand, kMostMembers> targets;
    unsigned source_count = 0;
    unsigned target_count = 0;
    std::uint64_t elements = 0;
};

struct Move {
    Operand target, source;
    std::uint64_t bytes = 0;
};

/// What one member's call says of a collective.
struct Collective {
    Kind kind = Kind::allreduce;
    int root = 0;
    bool in_place = false;       ///< this member's own part already lies where it belongs
    std::uint64_t elements = 0;  ///< reductions: of the whole, reduce_scatter: of this member's part; broadcast: bytes
    /// Bytes of this member's part: gather and allgather: sent, scatter: received, reduce_scatter: received.
    std::uint64_t own_bytes = 0;
    /// reduce_scatter: offset of this member's part in every member's send buffer.
    std::uint64_t own_offset = 0;
    /// Distance between the parts of a buffer, if it is the same everywhere.
    std::uint64_t block_bytes = 0;
};

/// What one member knows of a collective when all have proposed.
struct Shape : Collective {
    int members = 1;
    int own = 0;
    std::uint64_t element_bytes = 1;  ///< 1 if nothing is reduced
    /// alltoall: bytes that come from each member. Empty: block_bytes from each.
    const std::uint64_t* bytes_from = nullptr;
    /// Where parts are not block_bytes apart: by member, the offsets of the parts of its send buffer, then those of its
    /// receive buffer. Null: parts are block_bytes apart.
    std::array<const std::uint64_t*, kMostMembers> offsets{};
};

struct Plan {
    std::vector<Combination> combinations;
    std::vector<Move> moves;

    [[nodiscard]] bool empty() const noexcept { return combinations.empty() && moves.empty(); }
};

/// This member's partition. `algorithm` is root_only, one_shot or two_shot.
[[nodiscard]] Plan make_plan(const Shape& shape, Algorithm algorithm);

}  // namespace awaken::coll
