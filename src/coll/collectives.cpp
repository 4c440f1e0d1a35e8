// Collectives. The GPUs do them if all members can (see on_node.h). Otherwise they take the staged path. Neighbourhood
// collectives are in neighbourhood.cpp.

#include <algorithm>
#include <limits>
#include <numeric>

#include "call/call.h"
#include "call/services.h"
#include "call/stage.h"
#include "coll/arguments.h"
#include "coll/collective_comm.h"
#include "coll/exchange.h"
#include "coll/hierarchical.h"
#include "coll/on_node.h"
#include "coll/pipelined.h"
#include "coll/reduce_local.h"
#include "coll/run.h"
#include "mpi/kernel_code.h"
#include "rma/window.h"

namespace awaken::AWAKEN_ABI {

namespace {

using coll::Kind;
using LibraryCall = coll::CclCommunicator::Operation;

/// A buffer argument that the MPI gets one part after another.
class Cut {
  public:
    Cut(const void* const buffer, const MPI_Datatype type)
        : _buffer(static_cast<std::byte*>(const_cast<void*>(buffer))) {
        MPI_Aint lower_bound = 0;
        layer().real.Type_get_extent(type, &lower_bound, &_extent);
    }
    [[nodiscard]] void* at(const std::int64_t element) const {
        return static_cast<const void*>(_buffer) == MPI_IN_PLACE ? _buffer : _buffer + element * _extent;
    }

  private:
    std::byte* const _buffer;
    MPI_Aint _extent = 0;
};

std::byte* bytes_of_buffer(const void* const buffer) {
    return static_cast<std::byte*>(const_cast<void*>(buffer));
}

// Hierarchical collectives, see hierarchical.h. Their parts are collectives as programs call them, on the communicators
// of the levels.
[[nodiscard]] bool can_broadcast_hierarchically(std::int64_t bytes, int root, MPI_Comm comm);
int hierarchical_broadcast(Call& call, std::byte* begin, int bytes, int root, MPI_Comm comm);
int hierarchical_allreduce(Call& call, const void* send_buffer, void* receive_buffer, int count, MPI_Datatype type,
                           MPI_Op op, MPI_Comm comm);
int hierarchical_reduce(Call& call, const void* input, void* receive_buffer, int count, MPI_Datatype type, MPI_Op op,
                        int root, MPI_Comm comm);

/// The members meet without the MPI where they can. They also tell each other there what they have seen.
struct Barrier {
    template <Function function>
    static int run(Call& call, MPI_Comm comm) {
        call.on(comm);
        std::optional<Error> failure = windows().reconcile_all(call);
        const int error = meet<function>(call, comm);  // whatever has failed, since others wait
        if (error == MPI_SUCCESS && !failure) {
            failure = windows().reconcile_all(call);
        }
        if (failure) {
            throw Error(*failure);
        }
        return error;
    }

  private:
    template <Function function>
    static int meet(Call& call, MPI_Comm comm) {
        layer().requests.advance_progress_ops();
        if (OnNode here(call, comm, Kind::barrier); here) {
            here.meet();
            return MPI_SUCCESS;
        }
        layer().requests.leave_progress_ops();
        return below<function>()(comm);
    }
};

struct Broadcast {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int root, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        const Group group = group_of(comm);
        check_root(call, group, root);
        if (group.is_root(root) || group.is_leaf(root)) {
            check_elements(call, buffer, count, type);
        }
        bool all_host = false;
        if (OnNode here(call, comm, Kind::broadcast, tail...); here) {
            here.arguments.root = root;
            here.arguments.elements = here.arguments.bytes = here.bytes_of(count, type);
            here.is_root() ? here.sends(buffer, count, type) : here.receives(buffer, count, type);
            if (here.run(tail...)) {
                return MPI_SUCCESS;
            }
            all_host = here.all_host();
        }
        if constexpr (sizeof...(Tail) == 0) {
            // Members may describe the same bytes by different types, so the bytes are cut.
            if (Pipelined chunks(call, comm, bytes_of(layer().real, count, type), MPI_BYTE); !all_host && chunks) {
                std::byte* const begin = bytes_at(buffer, count, type);
                if (begin == nullptr) {
                    chunks.has_gaps(buffer, count, type);
                } else if (group.is_root(root)) {
                    chunks.reads(begin);
                } else {
                    chunks.writes(begin);
                }
                Pipelined::Alternatives means{.kind = Kind::broadcast, .hierarchical = group.has(root)};
                if (group.has(root)) {  // else the MPI reports the error
                    means.library = LibraryCall{.kind = Kind::broadcast,
                                                .root = root,
                                                .elements = static_cast<std::uint64_t>(chunks.size()),
                                                .send = begin,
                                                .receive = begin};
                }
                const Pipelined::Method way = chunks.agreed(means);
                if (way == Pipelined::Method::library) {
                    chunks.run_library();
                    return MPI_SUCCESS;
                }
                if (way == Pipelined::Method::hierarchical && can_broadcast_hierarchically(chunks.size(), root, comm)) {
                    return hierarchical_broadcast(call, begin, static_cast<int>(chunks.size()), root, comm);
                }
                if (way != Pipelined::Method::whole) {
                    return chunks.run([&](const Pipelined::Chunk& chunk) {
                        void* const part = chunk.staged != nullptr ? chunk.staged : begin + chunk.first;
                        return below<function>()(part, static_cast<Count>(chunk.count), MPI_BYTE, root, comm);
                    });
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
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

struct Reduce {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Count count, MPI_Datatype type, MPI_Op op,
                   int root, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        const Group group = group_of(comm);
        check_root(call, group, root);
        if (group.is_leaf(root) && !is_in_other_buffer(send_buffer, group, root)) {
            check_elements(call, send_buffer, count, type);
        }
        if (group.is_root(root)) {
            check_elements(call, receive_buffer, count, type);
        }
        if (group.is_root(root) || group.is_leaf(root)) {
            check_operation(call, op);
        }
        bool all_host = false;
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
            all_host = here.all_host();
        }
        const bool in_place = send_buffer == MPI_IN_PLACE;
        if constexpr (sizeof...(Tail) == 0) {
            if (Pipelined chunks(call, comm, static_cast<std::int64_t>(count), type); !all_host && chunks) {
                const bool is_root = group.is_root(root);
                chunks.reads(in_place ? receive_buffer : send_buffer);
                if (is_root) {
                    chunks.writes(receive_buffer);
                    chunks.keep_apart();
                }
                const std::uint32_t code = kernel_code(layer().real, op, type);
                Pipelined::Alternatives means{
                    .kind = Kind::reduce, .code = code, .hierarchical = code != 0 && group.has(root)};
                if (group.has(root)) {
                    means.library = LibraryCall{.kind = Kind::reduce,
                                                .code = code,
                                                .root = root,
                                                .elements = static_cast<std::uint64_t>(count),
                                                .send = bytes_of_buffer(in_place ? receive_buffer : send_buffer),
                                                .receive = bytes_of_buffer(receive_buffer)};
                }
                const Pipelined::Method way = chunks.agreed(means);
                if (way == Pipelined::Method::library) {
                    chunks.run_library();
                    return MPI_SUCCESS;
                }
                if (way == Pipelined::Method::hierarchical && chunks.size() <= std::numeric_limits<int>::max()) {
                    return hierarchical_reduce(call, in_place ? receive_buffer : send_buffer, receive_buffer,
                                               static_cast<int>(count), type, op, root, comm);
                }
                if (way != Pipelined::Method::whole) {
                    const Cut sent(send_buffer, type), received(receive_buffer, type);
                    return chunks.run([&](const Pipelined::Chunk& chunk) {
                        const bool own = chunk.staged == nullptr;
                        const void* const input = own ? sent.at(chunk.first) : chunk.staged;
                        void* const output = !is_root ? nullptr : own ? received.at(chunk.first) : chunk.result;
                        return below<function>()(input, output, static_cast<Count>(chunk.count), type, op, root, comm);
                    });
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        Argument<Count> sent{const_cast<void*>(send_buffer), count, type};
        Argument<Count> received{receive_buffer, count, type};
        if (!in_place && group.is_leaf(root)) {
            sent = stage.buffer(Access::in, send_buffer, count, type, -1, Packing::mirror);
        }
        if (group.is_root(root)) {
            received =
                stage.buffer(in_place ? Access::inout : Access::out, receive_buffer, count, type, -1, Packing::mirror);
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
        // MPI_Exscan does not write to the first rank's buffer.
        constexpr bool partial = function == Function::Exscan || function == Function::Iexscan ||
                                 function == Function::Exscan_c || function == Function::Iexscan_c ||
                                 function == Function::Exscan_init || function == Function::Exscan_init_c;
        constexpr bool total = function == Function::Allreduce || function == Function::Allreduce_c ||
                               function == Function::Iallreduce || function == Function::Iallreduce_c ||
                               function == Function::Allreduce_init || function == Function::Allreduce_init_c;
        const bool in_place = send_buffer == MPI_IN_PLACE;
        if (!is_in_other_buffer(send_buffer, comm)) {
            check_elements(call, send_buffer, count, type);
        }
        if (in_place || !partial || receive_buffer != MPI_IN_PLACE || group_of(comm).rank != 0) {
            check_elements(call, receive_buffer, count, type);
        }
        check_operation(call, op);
        bool all_host = false;
        if (OnNode here(call, comm, total ? Kind::allreduce : partial ? Kind::exscan : Kind::scan, tail...); here) {
            const bool only_sends = partial && here.rank() == 0;
            here.reduces(op, type, static_cast<std::int64_t>(count));
            here.arguments.in_place = in_place && !only_sends;
            if (!here.arguments.in_place) {
                here.sends(in_place ? receive_buffer : send_buffer, static_cast<std::int64_t>(count), type);
            }
            if (!only_sends) {
                here.receives(receive_buffer, static_cast<std::int64_t>(count), type);
            }
            if (here.run(tail...)) {
                return MPI_SUCCESS;
            }
            all_host = here.all_host();
        }
        if constexpr (sizeof...(Tail) == 0) {
            if (Pipelined chunks(call, comm, static_cast<std::int64_t>(count), type); !all_host && chunks) {
                chunks.reads(in_place ? receive_buffer : send_buffer);
                if (!partial || group_of(comm).rank != 0) {
                    chunks.writes(receive_buffer);
                }
                Pipelined::Alternatives means;
                if constexpr (function == Function::Allreduce || function == Function::Allreduce_c) {
                    const std::uint32_t code = kernel_code(layer().real, op, type);
                    means = {.kind = Kind::allreduce,
                             .code = code,
                             .hierarchical = code != 0,
                             .library = LibraryCall{.kind = Kind::allreduce,
                                                    .code = code,
                                                    .elements = static_cast<std::uint64_t>(count),
                                                    .send = bytes_of_buffer(in_place ? receive_buffer : send_buffer),
                                                    .receive = bytes_of_buffer(receive_buffer)}};
                }
                const Pipelined::Method way = chunks.agreed(means);
                if (way == Pipelined::Method::library) {
                    chunks.run_library();
                    return MPI_SUCCESS;
                }
                if (way == Pipelined::Method::hierarchical && chunks.size() <= std::numeric_limits<int>::max()) {
                    return hierarchical_allreduce(call, send_buffer, receive_buffer, static_cast<int>(count), type, op,
                                                  comm);
                }
                if (way != Pipelined::Method::whole) {
                    const Cut sent(send_buffer, type), received(receive_buffer, type);
                    return chunks.run([&](const Pipelined::Chunk& chunk) {
                        const bool own = chunk.staged == nullptr;
                        return below<function>()(own ? sent.at(chunk.first) : MPI_IN_PLACE,
                                                 own ? received.at(chunk.first) : chunk.staged,
                                                 static_cast<Count>(chunk.count), type, op, comm);
                    });
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        Argument<Count> sent{const_cast<void*>(send_buffer), count, type};
        if (!in_place) {
            sent = stage.buffer(Access::in, send_buffer, count, type, -1, Packing::mirror);
        }
        // In MPI_Exscan, the first rank's buffer is input only, or means nothing: it may be shorter, or no address.
        Argument<Count> received{receive_buffer, count, type};
        if (!partial || group_of(comm).rank != 0) {
            received =
                stage.buffer(in_place ? Access::inout : Access::out, receive_buffer, count, type, -1, Packing::mirror);
        } else if (in_place) {
            received = stage.buffer(Access::in, receive_buffer, count, type, -1, Packing::mirror);
        }
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
        int size = 0;
        layer().real.Comm_size(comm, &size);
        if (is_in_other_buffer(send_buffer, comm)) {
            check_parts(call, receive_buffer, receive_counts, type, size);
        } else {
            check_parts(call, send_buffer, receive_counts, type, size);
            if (receive_buffer == MPI_IN_PLACE) {
                check_elements(call, receive_buffer, receive_counts[group_of(comm).rank], type);
            }
        }
        check_operation(call, op);
        if (OnNode here(call, comm, Kind::reduce_scatter, tail...); here) {
            const auto begin = receive_counts + here.rank();
            const auto total = std::accumulate(receive_counts, receive_counts + here.size(), std::int64_t{0});
            const auto mine = static_cast<std::int64_t>(*begin);
            here.reduces(op, type, mine);
            const auto end = receive_counts + here.size();
            here.arguments.bytes = here.bytes_of(*std::max_element(receive_counts, end), type);
            here.arguments.even = std::all_of(receive_counts, end, [=](const auto each) { return each == *begin; });
            here.arguments.own_offset = here.bytes_of(std::accumulate(receive_counts, begin, std::int64_t{0}), type);
            here.arguments.in_place = send_buffer == MPI_IN_PLACE;
            if (!here.arguments.in_place) {
                here.sends(send_buffer, total, type);
            }
            here.receives(receive_buffer, here.arguments.in_place ? total : mine, type);
            if (here.run(tail...)) {
                return MPI_SUCCESS;
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        int rank = 0;
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
            sent = stage.buffer(Access::in, send_buffer, total, type, -1, Packing::mirror).address;
        }
        // In place, the receive buffer holds the input for all ranks' parts, and the result goes to the first of these
        // places.
        void* const received =
            in_place ? stage.buffer(Access::inout, receive_buffer, total, type, -1, Packing::mirror, mine).address
                     : stage.buffer(Access::out, receive_buffer, mine, type, -1, Packing::mirror).address;
        return carry_out(
            stage, [&] { return below<function>()(sent, received, counts, type, op, comm, tail...); }, tail...);
    }
};

struct ReduceScatterBlock {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Count receive_count, MPI_Datatype type,
                   MPI_Op op, MPI_Comm comm, Tail... tail) {
        call.on(comm);
        if (!is_in_other_buffer(send_buffer, comm)) {
            check_elements(call, send_buffer, receive_count, type);
        }
        check_elements(call, receive_buffer, receive_count, type);
        check_operation(call, op);
        bool all_host = false;
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
            all_host = here.all_host();
        }
        int size = 0;
        layer().real.Comm_size(comm, &size);
        if constexpr (sizeof...(Tail) == 0) {
            if (Pipelined chunks(call, comm, static_cast<std::int64_t>(receive_count), type, size);
                !all_host && chunks) {
                chunks.reads_blocks(send_buffer == MPI_IN_PLACE ? receive_buffer : send_buffer);
                chunks.writes(receive_buffer);
                chunks.keep_apart();
                const std::uint32_t code = kernel_code(layer().real, op, type);
                Pipelined::Alternatives means{.kind = Kind::reduce_scatter, .code = code};
                if (send_buffer != MPI_IN_PLACE) {  // else the library would put the result elsewhere
                    means.library = LibraryCall{.kind = Kind::reduce_scatter,
                                                .code = code,
                                                .elements = static_cast<std::uint64_t>(receive_count),
                                                .send = bytes_of_buffer(send_buffer),
                                                .receive = bytes_of_buffer(receive_buffer)};
                }
                const Pipelined::Method way = chunks.agreed(means);
                if (way == Pipelined::Method::library) {
                    chunks.run_library();
                    return MPI_SUCCESS;
                }
                if (way == Pipelined::Method::chunks) {
                    return chunks.run([&](const Pipelined::Chunk& chunk) {
                        return below<function>()(chunk.staged, chunk.result, static_cast<Count>(chunk.count), type, op,
                                                 comm);
                    });
                }
            }
        }
        Stage stage(call);
        prepare(stage, tail...);
        const auto mine = static_cast<std::int64_t>(receive_count);
        return ReduceScatter::reduce_scatter<function>(stage, send_buffer, receive_buffer, receive_count, mine * size,
                                                       mine, type, op, comm, tail...);
    }
};

struct ReduceLocal {
    template <Function function, class Count>
    static int run(Call& call, const void* input, void* inout, Count count, MPI_Datatype type, MPI_Op op) {
        if (reduce_on_gpu(call, input, inout, static_cast<std::int64_t>(count), type, op)) {
            return MPI_SUCCESS;
        }
        Stage stage(call);
        const auto left = stage.buffer(Access::in, input, count, type, -1, Packing::mirror);
        const auto right = stage.buffer(Access::inout, inout, count, type, -1, Packing::mirror);
        return carry_out(stage, [&] { return below<function>()(left.address, right.address, count, type, op); });
    }
};

/// What a hierarchical collective needs besides its parts.
class Hierarchical {
  public:
    Hierarchical(Call& call, const MPI_Comm comm, const std::int64_t bytes)
        : hierarchy(*hierarchy_of(comm)), _call(call), _communicator(comm), _bytes(call.accounted_bytes() + bytes) {}
    ~Hierarchical() {
        // Errors, also those that are thrown, belong to the program's communicator.
        _call.on(_communicator);
        _call.account_bytes(_bytes);
    }
    Hierarchical(const Hierarchical&) = delete;
    Hierarchical& operator=(const Hierarchical&) = delete;

    /// Does a part of the collective. Whatever fails, the next ones follow, since the members of another level wait for
    /// this one there.
    template <class Part>
    void attempt(const Part& part) {
        try {
            const int error = part();
            _error = _error != MPI_SUCCESS ? _error : error;
        } catch (const Error& failure) {
            _failure = _failure ? _failure : failure;
        }
    }
    /// The error code for the program. The members of a node tell each other their failures, since each passed on to
    /// the others what came from other nodes. The MPI was told to return errors on the levels' communicators.
    [[nodiscard]] int outcome() {
        const int failed = _failure || _error != MPI_SUCCESS ? 1 : 0;
        int any = failed;
        const int error = layer().real.Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, hierarchy.node());
        _error = _error != MPI_SUCCESS ? _error : error;
        if (_failure) {
            throw Error(*_failure);
        }
        if (_error != MPI_SUCCESS) {
            layer().real.Comm_call_errhandler(_communicator, _error);
        } else if (any != 0) {
            throw Error("another rank of this node failed in its part of this collective", "see its own error message");
        }
        return _error;
    }

    Hierarchy& hierarchy;

  private:
    Call& _call;
    const MPI_Comm _communicator;
    const std::int64_t _bytes;
    std::optional<Error> _failure;
    int _error = MPI_SUCCESS;
};

/// Whether the root is in an inter-node communicator. Not all members are if nodes have different numbers of members.
bool can_broadcast_hierarchically(const std::int64_t bytes, const int root, const MPI_Comm comm) {
    return bytes <= std::numeric_limits<int>::max() && hierarchy_of(comm)->position_of(root).in_inter_node >= 0;
}

/// Broadcasts first in the root's inter-node communicator, then on each node.
int hierarchical_broadcast(Call& call, std::byte* const begin, const int bytes, const int root, const MPI_Comm comm) {
    Hierarchical in(call, comm, bytes);
    const Hierarchy::Position place = in.hierarchy.position_of(root);
    if (in.hierarchy.rank_on_node() == place.on_node) {
        in.attempt([&] {
            return Broadcast::run<Function::Bcast>(call, begin, bytes, MPI_BYTE, place.in_inter_node,
                                                   in.hierarchy.inter_node());
        });
    }
    in.attempt([&] {
        return Broadcast::run<Function::Bcast>(call, begin, bytes, MPI_BYTE, place.on_node, in.hierarchy.node());
    });
    return in.outcome();
}

/// The partitions of a reduction among the members of a node: one for each inter-node communicator.
class Partitions {
  public:
    Partitions(const Hierarchy& hierarchy, const int count, const MPI_Datatype type)
        : _own(static_cast<std::size_t>(hierarchy.rank_on_node())),
          _type(type),
          _counts(static_cast<std::size_t>(hierarchy.size_of_node())),
          _displacements(_counts.size()) {
        const int inter_node_comms = hierarchy.inter_node_comms();
        int begin = 0;
        for (std::size_t i = 0; i < _counts.size(); ++i) {
            const int inter_node = static_cast<int>(i);
            _counts[i] = inter_node < inter_node_comms
                             ? count / inter_node_comms + (inter_node < count % inter_node_comms ? 1 : 0)
                             : 0;
            _displacements[i] = begin;
            begin += _counts[i];
        }
    }

    [[nodiscard]] const int* counts() const noexcept { return _counts.data(); }
    [[nodiscard]] const int* displacements() const noexcept { return _displacements.data(); }
    [[nodiscard]] int own_count() const noexcept { return _counts[_own]; }
    [[nodiscard]] int own_displacement() const noexcept { return _displacements[_own]; }

    /// Memory for this member's partition: of the same GPU as `like`, if that is device memory, else of the host. Null:
    /// the member has no partition.
    [[nodiscard]] void* room(const void* const like) {
        if (own_count() == 0) {
            return nullptr;
        }
        const auto bytes = static_cast<std::size_t>(bytes_of(layer().real, own_count(), _type));
        gpu::Runtime& runtime = layer().gpu();
        gpu::PointerInfo info;
        runtime.classify({&like, 1}, &info);
        if (ipc::Link* const link = layer().node_peers.link(); link != nullptr && info.device >= 0) {
            _exported = link->exported().acquire(info.device, bytes);
        }
        if (!_exported) {
            _staging = layer().pool.acquire(runtime, bytes);
        }
        return _exported ? _exported.data() : _staging.data();
    }

  private:
    const std::size_t _own;
    const MPI_Datatype _type;
    std::vector<int> _counts, _displacements;
    transfer::ExportedPool::Block _exported;
    transfer::StagingBlock _staging;
};

/// Each node adds up and gives each of its members a partition. Each inter-node communicator adds up its partition.
/// Each node puts the partitions together again.
int hierarchical_allreduce(Call& call, const void* const send_buffer, void* const receive_buffer, const int count,
                           const MPI_Datatype type, const MPI_Op op, const MPI_Comm comm) {
    Hierarchical in(call, comm, bytes_of(layer().real, count, type));
    Partitions partitions(in.hierarchy, count, type);
    const bool in_place = send_buffer == MPI_IN_PLACE;
    // In place, the other members still read this memory.
    void* const partition =
        in_place ? partitions.room(receive_buffer) : Cut(receive_buffer, type).at(partitions.own_displacement());
    in.attempt([&] {
        return ReduceScatter::run<Function::Reduce_scatter>(call, in_place ? receive_buffer : send_buffer, partition,
                                                            partitions.counts(), type, op, in.hierarchy.node());
    });
    if (partitions.own_count() > 0) {
        in.attempt([&] {
            return ReduceAll::run<Function::Allreduce>(call, MPI_IN_PLACE, partition, partitions.own_count(), type, op,
                                                       in.hierarchy.inter_node());
        });
    }
    in.attempt([&] {
        return AllGatherV<Everyone>::run<Function::Allgatherv>(
            call, in_place ? partition : MPI_IN_PLACE, in_place ? partitions.own_count() : 0, type, receive_buffer,
            partitions.counts(), partitions.displacements(), type, in.hierarchy.node());
    });
    return in.outcome();
}

/// Each node adds up and gives each of its members a partition. Each inter-node communicator adds up its partition on
/// the root's node. The root collects the partitions there. `input`: what this member sends.
int hierarchical_reduce(Call& call, const void* const input, void* const receive_buffer, const int count,
                        const MPI_Datatype type, const MPI_Op op, const int root, const MPI_Comm comm) {
    Hierarchical in(call, comm, bytes_of(layer().real, count, type));
    const Hierarchy::Position place = in.hierarchy.position_of(root);
    Partitions partitions(in.hierarchy, count, type);
    void* const partition = partitions.room(input);
    in.attempt([&] {
        return ReduceScatter::run<Function::Reduce_scatter>(call, input, partition, partitions.counts(), type, op,
                                                            in.hierarchy.node());
    });
    const bool near_root = in.hierarchy.is_on(place.node);
    if (partitions.own_count() > 0) {
        in.attempt([&] {
            return Reduce::run<Function::Reduce>(
                call, near_root ? MPI_IN_PLACE : partition, partition, partitions.own_count(), type, op,
                in.hierarchy.in_inter_node_from(place.node), in.hierarchy.inter_node());
        });
    }
    if (near_root) {
        in.attempt([&] {
            return GatherV::run<Function::Gatherv>(call, partition, partitions.own_count(), type, receive_buffer,
                                                   partitions.counts(), partitions.displacements(), type, place.on_node,
                                                   in.hierarchy.node());
        });
    }
    return in.outcome();
}

}  // namespace

Services proposing_services() {
    return {
        AWAKEN_SERVE_COUNTS(Bcast, Broadcast),
        AWAKEN_SERVE_COUNTS(Reduce, Reduce),
        AWAKEN_SERVE_COUNTS(Allreduce, ReduceAll),
        AWAKEN_SERVE_COUNTS(Scan, ReduceAll),
        AWAKEN_SERVE_COUNTS(Exscan, ReduceAll),
        AWAKEN_SERVE_COUNTS(Gather, Gather),
        AWAKEN_SERVE_COUNTS(Gatherv, GatherV),
        AWAKEN_SERVE_COUNTS(Scatter, Scatter),
        AWAKEN_SERVE_COUNTS(Scatterv, ScatterV),
        AWAKEN_SERVE_COUNTS(Allgather, AllGather<Everyone>),
        AWAKEN_SERVE_COUNTS(Allgatherv, AllGatherV<Everyone>),
        AWAKEN_SERVE_COUNTS(Alltoall, AllToAll<Everyone>),
        AWAKEN_SERVE_COUNTS(Alltoallv, AllToAllV<Everyone>),
        AWAKEN_SERVE_COUNTS(Alltoallw, AllToAllW<Everyone>),
        AWAKEN_SERVE_COUNTS(Reduce_scatter_block, ReduceScatterBlock),
    };
}

Services collective_services() {
    return {
        AWAKEN_SERVE(Barrier, Barrier),
        AWAKEN_SERVE_COLLECTIVE(Bcast, Ibcast, Broadcast),
        AWAKEN_SERVE_COLLECTIVE(Gather, Igather, Gather),
        AWAKEN_SERVE_COLLECTIVE(Gatherv, Igatherv, GatherV),
        AWAKEN_SERVE_COLLECTIVE(Scatter, Iscatter, Scatter),
        AWAKEN_SERVE_COLLECTIVE(Scatterv, Iscatterv, ScatterV),
        AWAKEN_SERVE_COLLECTIVE(Allgather, Iallgather, AllGather<Everyone>),
        AWAKEN_SERVE_COLLECTIVE(Allgatherv, Iallgatherv, AllGatherV<Everyone>),
        AWAKEN_SERVE_COLLECTIVE(Alltoall, Ialltoall, AllToAll<Everyone>),
        AWAKEN_SERVE_COLLECTIVE(Alltoallv, Ialltoallv, AllToAllV<Everyone>),
        AWAKEN_SERVE_COLLECTIVE(Alltoallw, Ialltoallw, AllToAllW<Everyone>),
        AWAKEN_SERVE_COLLECTIVE(Reduce, Ireduce, Reduce),
        AWAKEN_SERVE_COLLECTIVE(Allreduce, Iallreduce, ReduceAll),
        AWAKEN_SERVE_COLLECTIVE(Scan, Iscan, ReduceAll),
        AWAKEN_SERVE_COLLECTIVE(Exscan, Iexscan, ReduceAll),
        AWAKEN_SERVE_COLLECTIVE(Reduce_scatter, Ireduce_scatter, ReduceScatter),
        AWAKEN_SERVE_COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, ReduceScatterBlock),
        AWAKEN_SERVE_COUNTS(Reduce_local, ReduceLocal),
    };
}

}  // namespace awaken::AWAKEN_ABI
