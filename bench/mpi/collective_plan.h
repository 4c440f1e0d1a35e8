// SPDX-License-Identifier: Apache-2.0
// What each collective moves: who sends what, and what must have arrived. One function of a few lines and one row of a
// table for each collective; buffers, calls, data and checks all follow from its answer.
//
// Sizes are the OSU micro-benchmarks': the size column is one message, which is what a rank sends to each other rank
// (all to all, scatter), contributes (gather, all forms of reduction) or sends to all (broadcast, allgather).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/catalogue.h"

namespace awaken::bench {

struct Neighbors;

/// A stretch of a buffer, in elements, and what it holds (pattern.h).
struct Region {
    enum class Content : std::uint8_t {
        pattern,     ///< key: the stream
        summand,     ///< key: the rank that contributes it
        sum,         ///< key: the number of contributing ranks, from 0 on
        unspecified  ///< MPI does not say what is there after the call
    };
    Content content;
    std::size_t first;
    std::size_t count;
    std::uint64_t key = 0;
    std::size_t content_first = 0;  ///< where in the pattern or sum the stretch begins
};

/// What one call does at one rank when it is not in place. Positions follow from lengths: blocks lie next to each
/// other.
struct Movement {
    std::vector<Region> sent;              ///< what the send buffer holds
    std::vector<Region> received;          ///< what the receive buffer holds afterwards; all else is untouched
    std::vector<std::size_t> send_blocks;  ///< lengths, in elements
    std::vector<std::size_t> receive_blocks;
};

/// One rank's place in a call.
struct Participant {
    int rank;
    int ranks;
    int root;
    std::size_t elements;        ///< of a message, gaps of a derived type included
    const Neighbors* neighbors;  ///< null unless the collective is one of neighbourhoods
};

/// Where MPI_IN_PLACE may be given.
enum class InPlace : std::uint8_t {
    nowhere,
    everywhere,   ///< as send buffer, on all ranks
    root_send,    ///< as the root's send buffer
    root_receive  ///< as the root's receive buffer
};

struct CollectiveKind {
    Collective collective;
    InPlace in_place;
    bool own_block;  ///< in place, a rank's contribution lies in its own block of the receive buffer, not at its start
    bool one_message;  ///< buffers hold one message however many ranks there are, which is what -M goes by
    void (*movement)(const Participant&, Movement&);
};

/// Throws Error when there is no such collective.
[[nodiscard]] const CollectiveKind& collective_kind(Collective collective);

/// What one call does at one rank, in place or not.
struct Plan {
    std::vector<Region> send;
    std::vector<Region> receive_before;
    std::vector<Region> receive_after;
    std::vector<std::size_t> send_blocks, receive_blocks;
    bool send_in_place = false;
    bool receive_in_place = false;
    std::size_t send_elements = 0;  ///< of the buffer; 0 where there is none
    std::size_t receive_elements = 0;
};

[[nodiscard]] Plan make_plan(const CollectiveKind& kind, const Participant& participant, bool in_place);

}  // namespace awaken::bench
