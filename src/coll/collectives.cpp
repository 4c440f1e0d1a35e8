// Collectives: done on the GPUs where all members can (see on_node.h), else on the staged path. Neighbourhood
// collectives are in neighbourhood.cpp.

#include <algorithm>
#include <numeric>

#include "call/call.h"
#include "call/stage.h"
#include "coll/on_node.h"
#include "coll/run.h"
#include "entry/services.h"

namespace awaken::AWAKEN_ABI {

namespace {

using coll::Kind;

/// The members meet without the MPI where they can, which is also where they tell each other what they have seen.
struct Barrier {
    template <Function function>
    static int run(Call& call, MPI_Comm comm) {
        call.on(comm);
        layer().requests.advance_exchanges();
        if (OnNode here(call, comm, Kind::barrier); here) {
            here.meet();
            return MPI_SUCCESS;
        }
        layer().requests.leave_exchanges();
        return below<function>()(comm);
    }
};

struct Broadcast {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int root, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::broadcast, tail...); here) {
                here.arguments.root = root;
                here.arguments.elements = here.arguments.bytes = here.bytes_of(count, type);
                here.is_root() ? here.sends(buffer, count, type) : here.receives(buffer, count, type);
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        Argument<Count> data{buffer, count, type};
        if (group.is_root(root)) {
            data = stage.buffer(Access::in, buffer, count, type);
        } else if (group.is_leaf(root)) {
            data = stage.buffer(Access::out, buffer, count, type);
        }
        return carry_out(
            stage, [&] { return below<function>()(data.address, data.count, data.type, root, comm, tail...); },
            tail...);
    }
};

struct Gather {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, int root, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::gather, tail...); here) {
                here.arguments.root = root;
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.sends(send_buffer, send_count, send_type);
                    here.arguments.own_bytes = here.bytes_of(send_count, send_type);
                }
                if (here.is_root()) {
                    here.receives(receive_buffer, static_cast<std::int64_t>(receive_count) * here.size(), receive_type);
                    here.arguments.bytes = here.bytes_of(receive_count, receive_type);
                } else {
                    here.arguments.bytes = here.arguments.own_bytes;
                }
                here.arguments.block_bytes = here.arguments.bytes;
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        const bool in_place = send_buffer == MPI_IN_PLACE;
        Argument<Count> sent{const_cast<void*>(send_buffer), send_count, send_type};
        Argument<Count> received{receive_buffer, receive_count, receive_type};
        if (!in_place && group.is_leaf(root)) {
            sent = stage.buffer(Access::in, send_buffer, send_count, send_type);
        }
        if (group.is_root(root)) {
            // In place, the root's own part is already there.
            received = stage.buffer(in_place ? Access::inout : Access::out, receive_buffer, receive_count, receive_type,
                                    static_cast<std::int64_t>(receive_count) * group.size);
        }
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, sent.count, sent.type, received.address, received.count,
                                         received.type, root, comm, tail...);
            },
            tail...);
    }
};

struct GatherV {
    template <Function function, class Count, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Counts receive_counts, Displacements displacements, MPI_Datatype receive_type, int root,
                   MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::gather, tail...); here) {
                here.arguments.root = root;
                here.arguments.varying = true;
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.sends(send_buffer, send_count, send_type);
                    here.arguments.own_bytes = here.arguments.bytes = here.bytes_of(send_count, send_type);
                }
                if (here.is_root()) {
                    here.receives_parts(receive_buffer, receive_counts, displacements, receive_type);
                }
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        const bool in_place = send_buffer == MPI_IN_PLACE;
        Argument<Count> sent{const_cast<void*>(send_buffer), send_count, send_type};
        auto received =
            VectorArgument<std::remove_cvref_t<decltype(*displacements)>>{receive_buffer, displacements, receive_type};
        if (!in_place && group.is_leaf(root)) {
            sent = stage.buffer(Access::in, send_buffer, send_count, send_type);
        }
        if (group.is_root(root)) {
            received = stage.blocks(in_place ? Access::inout : Access::out, receive_buffer, receive_counts,
                                    displacements, receive_type, group.size);
        }
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, sent.count, sent.type, received.address, receive_counts,
                                         received.displacements, received.type, root, comm, tail...);
            },
            tail...);
    }
};

struct Scatter {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, int root, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::scatter, tail...); here) {
                here.arguments.root = root;
                here.arguments.in_place = receive_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.receives(receive_buffer, receive_count, receive_type);
                    here.arguments.own_bytes = here.bytes_of(receive_count, receive_type);
                }
                if (here.is_root()) {
                    here.sends(send_buffer, static_cast<std::int64_t>(send_count) * here.size(), send_type);
                    here.arguments.bytes = here.bytes_of(send_count, send_type);
                } else {
                    here.arguments.bytes = here.arguments.own_bytes;
                }
                here.arguments.block_bytes = here.arguments.bytes;
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        Argument<Count> sent{const_cast<void*>(send_buffer), send_count, send_type};
        Argument<Count> received{receive_buffer, receive_count, receive_type};
        if (group.is_root(root)) {
            sent = stage.buffer(Access::in, send_buffer, send_count, send_type,
                                static_cast<std::int64_t>(send_count) * group.size);
        }
        if (receive_buffer != MPI_IN_PLACE && group.is_leaf(root)) {
            received = stage.buffer(Access::out, receive_buffer, receive_count, receive_type);
        }
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, sent.count, sent.type, received.address, received.count,
                                         received.type, root, comm, tail...);
            },
            tail...);
    }
};

struct ScatterV {
    template <Function function, class Counts, class Displacements, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements displacements,
                   MPI_Datatype send_type, void* receive_buffer, Count receive_count, MPI_Datatype receive_type,
                   int root, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::scatter, tail...); here) {
                here.arguments.root = root;
                here.arguments.varying = true;
                here.arguments.in_place = receive_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.receives(receive_buffer, receive_count, receive_type);
                    here.arguments.own_bytes = here.arguments.bytes = here.bytes_of(receive_count, receive_type);
                }
                if (here.is_root()) {
                    here.sends_parts(send_buffer, send_counts, displacements, send_type);
                }
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        auto sent = VectorArgument<std::remove_cvref_t<decltype(*displacements)>>{const_cast<void*>(send_buffer),
                                                                                  displacements, send_type};
        Argument<Count> received{receive_buffer, receive_count, receive_type};
        if (group.is_root(root)) {
            sent = stage.blocks(Access::in, send_buffer, send_counts, displacements, send_type, group.size);
        }
        if (receive_buffer != MPI_IN_PLACE && group.is_leaf(root)) {
            received = stage.buffer(Access::out, receive_buffer, receive_count, receive_type);
        }
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, send_counts, sent.displacements, sent.type, received.address,
                                         received.count, received.type, root, comm, tail...);
            },
            tail...);
    }
};

/// MPI_Allgather and MPI_Alltoall: they differ in how much is sent.
template <bool to_each>
struct GatherAll {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, to_each ? Kind::alltoall : Kind::allgather, tail...); here) {
                const std::int64_t all = static_cast<std::int64_t>(receive_count) * here.size();
                here.receives(receive_buffer, all, receive_type);
                here.arguments.bytes = here.arguments.block_bytes = here.arguments.own_bytes =
                    here.bytes_of(receive_count, receive_type);
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.sends(send_buffer, static_cast<std::int64_t>(send_count) * (to_each ? here.size() : 1),
                               send_type);
                } else if (!to_each) {
                    here.arguments.in_place_offset =
                        here.arguments.block_bytes * static_cast<std::uint64_t>(here.rank());
                }
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        const bool in_place = send_buffer == MPI_IN_PLACE;
        Argument<Count> sent{const_cast<void*>(send_buffer), send_count, send_type};
        if (!in_place) {
            sent = stage.buffer(Access::in, send_buffer, send_count, send_type,
                                static_cast<std::int64_t>(send_count) * (to_each ? group.size : 1));
        }
        const Argument<Count> received =
            stage.buffer(in_place ? Access::inout : Access::out, receive_buffer, receive_count, receive_type,
                         static_cast<std::int64_t>(receive_count) * group.size);
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, sent.count, sent.type, received.address, received.count,
                                         received.type, comm, tail...);
            },
            tail...);
    }
};
using AllGather = GatherAll<false>;
using AllToAll = GatherAll<true>;

struct AllGatherV {
    template <Function function, class Count, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Counts receive_counts, Displacements displacements, MPI_Datatype receive_type, MPI_Comm comm,
                   Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::allgather, tail...); here) {
                here.receives_parts(receive_buffer, receive_counts, displacements, receive_type);
                const auto own = static_cast<std::size_t>(here.rank());
                here.arguments.own_bytes = here.arguments.bytes_from[own];
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (here.arguments.in_place) {
                    here.arguments.in_place_offset = here.arguments.receive_offsets[own];
                } else {
                    here.sends(send_buffer, send_count, send_type);
                }
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        const bool in_place = send_buffer == MPI_IN_PLACE;
        Argument<Count> sent{const_cast<void*>(send_buffer), send_count, send_type};
        if (!in_place) {
            sent = stage.buffer(Access::in, send_buffer, send_count, send_type);
        }
        const auto received = stage.blocks(in_place ? Access::inout : Access::out, receive_buffer, receive_counts,
                                           displacements, receive_type, group.size);
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, sent.count, sent.type, received.address, receive_counts,
                                         received.displacements, received.type, comm, tail...);
            },
            tail...);
    }
};

struct AllToAllV {
    template <Function function, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements send_displacements,
                   MPI_Datatype send_type, void* receive_buffer, Counts receive_counts,
                   Displacements receive_displacements, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::alltoall, tail...); here) {
                here.receives_parts(receive_buffer, receive_counts, receive_displacements, receive_type);
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (here.arguments.in_place) {
                    here.arguments.send_offsets = here.arguments.receive_offsets;
                } else {
                    here.sends_parts(send_buffer, send_counts, send_displacements, send_type);
                }
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        const bool in_place = send_buffer == MPI_IN_PLACE;
        auto sent = VectorArgument<std::remove_cvref_t<decltype(*send_displacements)>>{const_cast<void*>(send_buffer),
                                                                                       send_displacements, send_type};
        if (!in_place) {
            sent = stage.blocks(Access::in, send_buffer, send_counts, send_displacements, send_type, group.size);
        }
        const auto received = stage.blocks(in_place ? Access::inout : Access::out, receive_buffer, receive_counts,
                                           receive_displacements, receive_type, group.size);
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, send_counts, sent.displacements, sent.type, received.address,
                                         receive_counts, received.displacements, received.type, comm, tail...);
            },
            tail...);
    }
};

struct AllToAllW {
    template <Function function, class Counts, class Displacements, class Types, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements send_displacements,
                   Types send_types, void* receive_buffer, Counts receive_counts, Displacements receive_displacements,
                   Types receive_types, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        const bool in_place = send_buffer == MPI_IN_PLACE;
        auto sent = TypedVectorArgument<std::remove_cvref_t<decltype(*send_displacements)>>{
            const_cast<void*>(send_buffer), send_displacements, send_types};
        if (!in_place) {
            sent = stage.typed_blocks(Access::in, send_buffer, send_counts, send_displacements, send_types, group.size);
        }
        const auto received = stage.typed_blocks(in_place ? Access::inout : Access::out, receive_buffer, receive_counts,
                                                 receive_displacements, receive_types, group.size);
        return carry_out(
            stage,
            [&] {
                return below<function>()(sent.address, send_counts, sent.displacements, sent.types, received.address,
                                         receive_counts, received.displacements, received.types, comm, tail...);
            },
            tail...);
    }
};

struct Reduce {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Count count, MPI_Datatype type, MPI_Op op,
                   int root, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::reduce, tail...); here) {
                here.arguments.root = root;
                here.reduces(op, type, static_cast<std::int64_t>(count));
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.sends(send_buffer, static_cast<std::int64_t>(count), type);
                }
                if (here.is_root()) {
                    here.receives(receive_buffer, static_cast<std::int64_t>(count), type);
                }
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const Group group = group_of(comm);
        const bool in_place = send_buffer == MPI_IN_PLACE;
        Argument<Count> sent{const_cast<void*>(send_buffer), count, type};
        Argument<Count> received{receive_buffer, count, type};
        if (!in_place && group.is_leaf(root)) {
            sent = stage.buffer(Access::in, send_buffer, count, type, -1, Form::mirror);
        }
        if (group.is_root(root)) {
            received =
                stage.buffer(in_place ? Access::inout : Access::out, receive_buffer, count, type, -1, Form::mirror);
        }
        return carry_out(
            stage,
            [&] { return below<function>()(sent.address, received.address, count, type, op, root, comm, tail...); },
            tail...);
    }
};

/// MPI_Allreduce, MPI_Scan, MPI_Exscan.
struct ReduceAll {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Count count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (function == Function::Allreduce || function == Function::Allreduce_c ||
                      function == Function::Iallreduce || function == Function::Iallreduce_c) {
            if (OnNode here(call, comm, Kind::allreduce, tail...); here) {
                here.reduces(op, type, static_cast<std::int64_t>(count));
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.sends(send_buffer, static_cast<std::int64_t>(count), type);
                }
                here.receives(receive_buffer, static_cast<std::int64_t>(count), type);
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const bool in_place = send_buffer == MPI_IN_PLACE;
        Argument<Count> sent{const_cast<void*>(send_buffer), count, type};
        if (!in_place) {
            sent = stage.buffer(Access::in, send_buffer, count, type, -1, Form::mirror);
        }
        // MPI_Exscan leaves the first rank's buffer alone, so what was there must come back.
        constexpr bool partial = function == Function::Exscan || function == Function::Iexscan ||
                                 function == Function::Exscan_c || function == Function::Iexscan_c ||
                                 function == Function::Exscan_init || function == Function::Exscan_init_c;
        const Argument<Count> received = stage.buffer(in_place || partial ? Access::inout : Access::out, receive_buffer,
                                                      count, type, -1, Form::mirror);
        return carry_out(
            stage, [&] { return below<function>()(sent.address, received.address, count, type, op, comm, tail...); },
            tail...);
    }
};

struct ReduceScatter {
    template <Function function, class Counts, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Counts receive_counts, MPI_Datatype type,
                   MPI_Op op, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::reduce_scatter, tail...); here) {
                const auto begin = receive_counts + here.rank();
                const auto total = std::accumulate(receive_counts, receive_counts + here.size(), std::int64_t{0});
                const auto mine = static_cast<std::int64_t>(*begin);
                here.reduces(op, type, mine);
                const auto end = receive_counts + here.size();
                here.arguments.bytes = here.bytes_of(*std::max_element(receive_counts, end), type);
                here.arguments.even = std::all_of(receive_counts, end, [=](const auto each) { return each == *begin; });
                here.arguments.own_offset =
                    here.bytes_of(std::accumulate(receive_counts, begin, std::int64_t{0}), type);
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.sends(send_buffer, total, type);
                }
                here.receives(receive_buffer, here.arguments.in_place ? total : mine, type);
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        int size = 0, rank = 0;
        layer().real.Comm_size(comm, &size);
        layer().real.Comm_rank(comm, &rank);
        const std::int64_t total = std::accumulate(receive_counts, receive_counts + size, std::int64_t{0});
        return reduce_scatter<function>(stage, send_buffer, receive_buffer, receive_counts, total,
                                        static_cast<std::int64_t>(receive_counts[rank]), type, op, comm, tail...);
    }

    template <Function function, class Counts, class... Tail>
    static int reduce_scatter(Stage& stage, const void* send_buffer, void* receive_buffer, Counts counts,
                              std::int64_t total, std::int64_t mine, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                              Tail... tail) {
        const bool in_place = send_buffer == MPI_IN_PLACE;
        void* sent = const_cast<void*>(send_buffer);
        if (!in_place) {
            sent = stage.buffer(Access::in, send_buffer, total, type, -1, Form::mirror).address;
        }
        // In place, the receive buffer holds the input of all ranks' parts, and the result takes the first of them.
        void* const received =
            in_place ? stage.buffer(Access::inout, receive_buffer, total, type, -1, Form::mirror, mine).address
                     : stage.buffer(Access::out, receive_buffer, mine, type, -1, Form::mirror).address;
        return carry_out(
            stage, [&] { return below<function>()(sent, received, counts, type, op, comm, tail...); }, tail...);
    }
};

struct ReduceScatterBlock {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Count receive_count, MPI_Datatype type,
                   MPI_Op op, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if constexpr (sizeof...(Tail) <= 1) {
            if (OnNode here(call, comm, Kind::reduce_scatter, tail...); here) {
                const auto mine = static_cast<std::int64_t>(receive_count);
                const std::int64_t total = mine * here.size();
                here.reduces(op, type, mine);
                here.arguments.own_offset = here.arguments.bytes * static_cast<std::uint64_t>(here.rank());
                here.arguments.in_place = send_buffer == MPI_IN_PLACE;
                if (!here.arguments.in_place) {
                    here.sends(send_buffer, total, type);
                }
                here.receives(receive_buffer, here.arguments.in_place ? total : mine, type);
                if (here.run(tail...)) {
                    return MPI_SUCCESS;
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        int size = 0;
        layer().real.Comm_size(comm, &size);
        const auto mine = static_cast<std::int64_t>(receive_count);
        return ReduceScatter::reduce_scatter<function>(stage, send_buffer, receive_buffer, receive_count, mine * size,
                                                       mine, type, op, comm, tail...);
    }
};

struct ReduceLocal {
    template <Function function, class Count>
    static int run(Call& call, const void* input, void* inout, Count count, MPI_Datatype type, MPI_Op op) {
        Stage stage(call);
        const auto left = stage.buffer(Access::in, input, count, type, -1, Form::mirror);
        const auto right = stage.buffer(Access::inout, inout, count, type, -1, Form::mirror);
        return carry_out(stage, [&] { return below<function>()(left.address, right.address, count, type, op); });
    }
};

}  // namespace

Services collective_services() {
    return {
        AWAKEN_SERVE(Barrier, Barrier),
        AWAKEN_SERVE_COLLECTIVE(Bcast, Ibcast, Broadcast),
        AWAKEN_SERVE_COLLECTIVE(Gather, Igather, Gather),
        AWAKEN_SERVE_COLLECTIVE(Gatherv, Igatherv, GatherV),
        AWAKEN_SERVE_COLLECTIVE(Scatter, Iscatter, Scatter),
        AWAKEN_SERVE_COLLECTIVE(Scatterv, Iscatterv, ScatterV),
        AWAKEN_SERVE_COLLECTIVE(Allgather, Iallgather, AllGather),
        AWAKEN_SERVE_COLLECTIVE(Allgatherv, Iallgatherv, AllGatherV),
        AWAKEN_SERVE_COLLECTIVE(Alltoall, Ialltoall, AllToAll),
        AWAKEN_SERVE_COLLECTIVE(Alltoallv, Ialltoallv, AllToAllV),
        AWAKEN_SERVE_COLLECTIVE(Alltoallw, Ialltoallw, AllToAllW),
        AWAKEN_SERVE_COLLECTIVE(Reduce, Ireduce, Reduce),
        AWAKEN_SERVE_COLLECTIVE(Allreduce, Iallreduce, ReduceAll),
        AWAKEN_SERVE_COLLECTIVE(Scan, Iscan, ReduceAll),
        AWAKEN_SERVE_COLLECTIVE(Exscan, Iexscan, ReduceAll),
        AWAKEN_SERVE_COLLECTIVE(Reduce_scatter, Ireduce_scatter, ReduceScatter),
        AWAKEN_SERVE_COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, ReduceScatterBlock),
        AWAKEN_SERVE(Reduce_local, ReduceLocal),
        AWAKEN_SERVE(Reduce_local_c, ReduceLocal),
    };
}

}  // namespace awaken::AWAKEN_ABI
