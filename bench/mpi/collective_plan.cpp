// SPDX-License-Identifier: Apache-2.0
#include "mpi/collective_plan.h"

#include <numeric>

#include "base/error.h"
#include "mpi/collective_topology.h"

namespace awaken::bench {
namespace {

using Content = Region::Content;

/// In the place of a destination: the message is the same for everyone.
constexpr int kEveryone = -1;

/// The stream of pattern.h for a message; `repeat` tells parallel edges of a graph apart.
std::uint64_t message(int source, int destination, int repeat = 0) {
    return (static_cast<std::uint64_t>(source) << 40) | (static_cast<std::uint64_t>(repeat) << 32) |
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(destination + 1));
}

std::size_t index(int rank) {
    return static_cast<std::size_t>(rank);
}

/// A block for each message, one after the other.
void append(std::vector<Region>& regions, std::vector<std::size_t>& blocks, const Participant& at,
            std::uint64_t stream) {
    regions.push_back({Content::pattern, blocks.size() * at.elements, at.elements, stream});
    blocks.push_back(at.elements);
}

void to_everyone(const Participant& at, Movement& movement) {
    append(movement.sent, movement.send_blocks, at, message(at.rank, kEveryone));
}

void from_everyone(const Participant& at, Movement& movement) {
    for (int source = 0; source < at.ranks; ++source) {
        append(movement.received, movement.receive_blocks, at, message(source, kEveryone));
    }
}

void contribute(const Participant& at, Movement& movement) {
    movement.sent = {{Content::summand, 0, at.elements, static_cast<std::uint64_t>(at.rank)}};
    movement.send_blocks = {at.elements};
}

void receive_sum(const Participant& at, Movement& movement, int contributors) {
    movement.received = {{Content::sum, 0, at.elements, static_cast<std::uint64_t>(contributors)}};
    movement.receive_blocks = {at.elements};
}

void nothing_moves(const Participant&, Movement&) {}

void bcast(const Participant& at, Movement& movement) {
    if (at.rank == at.root) {
        to_everyone(at, movement);
    } else {
        append(movement.received, movement.receive_blocks, at, message(at.root, kEveryone));
    }
}

void gather(const Participant& at, Movement& movement) {
    to_everyone(at, movement);
    from_everyone(at, movement);
    if (at.rank != at.root) {
        movement.received.clear();
    }
}

void scatter(const Participant& at, Movement& movement) {
    for (int destination = 0; destination < at.ranks; ++destination) {
        append(movement.sent, movement.send_blocks, at, message(at.rank, destination));
    }
    append(movement.received, movement.receive_blocks, at, message(at.root, at.rank));
}

void allgather(const Participant& at, Movement& movement) {
    to_everyone(at, movement);
    from_everyone(at, movement);
}

void alltoall(const Participant& at, Movement& movement) {
    for (int other = 0; other < at.ranks; ++other) {
        append(movement.sent, movement.send_blocks, at, message(at.rank, other));
        append(movement.received, movement.receive_blocks, at, message(other, at.rank));
    }
}

void allreduce(const Participant& at, Movement& movement) {
    contribute(at, movement);
    receive_sum(at, movement, at.ranks);
}

void reduce(const Participant& at, Movement& movement) {
    allreduce(at, movement);
    if (at.rank != at.root) {
        movement.received.clear();
    }
}

void scan(const Participant& at, Movement& movement) {
    contribute(at, movement);
    receive_sum(at, movement, at.rank + 1);
}

void exscan(const Participant& at, Movement& movement) {
    contribute(at, movement);
    receive_sum(at, movement, at.rank);
    if (at.rank == 0) {
        movement.received.front().content = Content::unspecified;
    }
}

/// This rank's share of a sum whose parts have the lengths of movement.send_blocks.
void receive_part(const Participant& at, Movement& movement) {
    const std::size_t part = movement.send_blocks[index(at.rank)];
    const std::size_t before =
        std::accumulate(movement.send_blocks.begin(), movement.send_blocks.begin() + at.rank, std::size_t{0});
    movement.received = {{Content::sum, 0, part, static_cast<std::uint64_t>(at.ranks), before}};
    movement.receive_blocks = movement.send_blocks;
}

/// The message is what is reduced; the ranks share it, the first ones taking what does not divide.
void reduce_scatter(const Participant& at, Movement& movement) {
    contribute(at, movement);
    movement.send_blocks.clear();
    for (int rank = 0; rank < at.ranks; ++rank) {
        movement.send_blocks.push_back(at.elements / index(at.ranks) + (index(rank) < at.elements % index(at.ranks)));
    }
    receive_part(at, movement);
}

/// The same with equal shares; what does not divide is left out.
void reduce_scatter_block(const Participant& at, Movement& movement) {
    contribute(at, movement);
    movement.send_blocks.assign(index(at.ranks), at.elements / index(at.ranks));
    receive_part(at, movement);
}

void ring_shift(const Participant& at, Movement& movement) {
    append(movement.sent, movement.send_blocks, at, message(at.rank, (at.rank + 1) % at.ranks));
    append(movement.received, movement.receive_blocks, at, message((at.rank + at.ranks - 1) % at.ranks, at.rank));
}

void neighbor_allgather(const Participant& at, Movement& movement) {
    to_everyone(at, movement);
    for (const int source : at.neighbors->sources) {
        append(movement.received, movement.receive_blocks, at, message(source, kEveryone));
    }
}

void neighbor_alltoall(const Participant& at, Movement& movement) {
    const Neighbors& near = *at.neighbors;
    for (std::size_t i = 0; i < near.destinations.size(); ++i) {
        append(movement.sent, movement.send_blocks, at,
               message(at.rank, near.destinations[i], near.destination_repeats[i]));
    }
    for (std::size_t i = 0; i < near.sources.size(); ++i) {
        append(movement.received, movement.receive_blocks, at,
               message(near.sources[i], at.rank, near.source_repeats[i]));
    }
}

// clang-format off
constexpr CollectiveKind kKinds[] = {
    // collective                        in place               own    one      movement
    //                                                          block  message
    {Collective::allgather,              InPlace::everywhere,   true,  false,   allgather},
    {Collective::allgatherv,             InPlace::everywhere,   true,  false,   allgather},
    {Collective::allreduce,              InPlace::everywhere,   false, true,    allreduce},
    {Collective::alltoall,               InPlace::everywhere,   false, false,   alltoall},
    {Collective::alltoallv,              InPlace::everywhere,   false, false,   alltoall},
    {Collective::alltoallw,              InPlace::everywhere,   false, false,   alltoall},
    {Collective::barrier,                InPlace::nowhere,      false, true,    nothing_moves},
    {Collective::bcast,                  InPlace::nowhere,      false, true,    bcast},
    {Collective::gather,                 InPlace::root_send,    true,  false,   gather},
    {Collective::gatherv,                InPlace::root_send,    true,  false,   gather},
    {Collective::reduce,                 InPlace::root_send,    false, true,    reduce},
    {Collective::reduce_scatter,         InPlace::everywhere,   false, true,    reduce_scatter},
    {Collective::reduce_scatter_block,   InPlace::everywhere,   false, true,    reduce_scatter_block},
    {Collective::scatter,                InPlace::root_receive, false, false,   scatter},
    {Collective::scatterv,               InPlace::root_receive, false, false,   scatter},
    {Collective::scan,                   InPlace::everywhere,   false, true,    scan},
    {Collective::exscan,                 InPlace::everywhere,   false, true,    exscan},
    {Collective::ring_shift,             InPlace::nowhere,      false, true,    ring_shift},
    {Collective::neighbor_allgather,     InPlace::nowhere,      false, false,   neighbor_allgather},
    {Collective::neighbor_allgatherv,    InPlace::nowhere,      false, false,   neighbor_allgather},
    {Collective::neighbor_alltoall,      InPlace::nowhere,      false, false,   neighbor_alltoall},
    {Collective::neighbor_alltoallv,     InPlace::nowhere,      false, false,   neighbor_alltoall},
    {Collective::neighbor_alltoallw,     InPlace::nowhere,      false, false,   neighbor_alltoall},
};
// clang-format on

std::size_t end_of(const std::vector<Region>& regions) {
    return regions.empty() ? 0 : regions.back().first + regions.back().count;
}

std::size_t total(const std::vector<std::size_t>& blocks) {
    return std::accumulate(blocks.begin(), blocks.end(), std::size_t{0});
}

bool takes_part_in_place(InPlace where, const Participant& at) {
    switch (where) {
        case InPlace::nowhere:
            return false;
        case InPlace::everywhere:
            return true;
        case InPlace::root_send:
        case InPlace::root_receive:
            return at.rank == at.root;
    }
    return false;
}

}  // namespace

const CollectiveKind& collective_kind(Collective collective) {
    for (const CollectiveKind& kind : kKinds) {
        if (kind.collective == collective) {
            return kind;
        }
    }
    throw Error("this test is not a collective", "report it: the table of collectives and the list of tests disagree");
}

Plan make_plan(const CollectiveKind& kind, const Participant& at, bool in_place) {
    Movement movement;
    kind.movement(at, movement);
    Plan plan;
    plan.send_blocks = std::move(movement.send_blocks);
    plan.receive_blocks = std::move(movement.receive_blocks);
    plan.send = std::move(movement.sent);
    plan.receive_after = std::move(movement.received);
    plan.send_elements = end_of(plan.send);
    // The parts of a reduce-scatter name all ranks' shares, of which the buffer holds one. Where the call does not
    // write (gather on ranks other than the root) a buffer is passed all the same, and must stay as it is.
    const bool shares =
        kind.collective == Collective::reduce_scatter || kind.collective == Collective::reduce_scatter_block;
    plan.receive_elements = shares ? end_of(plan.receive_after) : total(plan.receive_blocks);
    if (!in_place || !takes_part_in_place(kind.in_place, at)) {
        return plan;
    }

    if (kind.in_place == InPlace::root_receive) {
        plan.receive_in_place = true;
        plan.receive_after.clear();
        plan.receive_elements = 0;
        return plan;
    }
    plan.send_in_place = true;
    plan.receive_before = std::move(plan.send);
    plan.send.clear();
    if (kind.own_block) {
        for (Region& region : plan.receive_before) {
            region.first += index(at.rank) * at.elements;
        }
    }
    if (shares) {
        // The whole contribution lies there; behind its own part the call may leave anything.
        plan.receive_after.push_back(
            {Content::unspecified, plan.receive_elements, plan.send_elements - plan.receive_elements});
        plan.receive_elements = plan.send_elements;
    }
    plan.send_elements = 0;
    return plan;
}

}  // namespace awaken::bench
