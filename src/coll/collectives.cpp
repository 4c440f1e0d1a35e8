// SPDX-License-Identifier: Apache-2.0
// Collectives. The GPUs do them if all members can (see on_node.h). Otherwise they take the staged path. Neighbourhood
// collectives are in neighbourhood.cpp.

#include <algorithm>
#include <limits>
#include <numeric>

#include "call/call.h"
#include "call/held_op.h"
#include "call/services.h"
#include "call/stage.h"
#include "coll/arguments.h"
#include "coll/collective_comm.h"
#include "coll/exchange.h"
#include "coll/hierarchical.h"
#include "coll/offer.h"
#include "coll/on_node.h"
#include "coll/rank_order.h"
#include "coll/reduce_local.h"
#include "coll/run.h"
#include "mpi/kernel_code.h"
#include "rma/window.h"

namespace awaken::AWAKEN_ABI {

namespace {

using coll::Kind;
using LibraryCall = coll::CclCommunicator::Operation;

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
        CollectiveComm* const object = CollectiveComm::of(comm);
        if (Proposals* const proposals = object != nullptr ? object->proposals_for_barrier() : nullptr) {
            return agree_in_barrier(comm, *proposals, object->nonblocking_seen());
        }
        return below<function>()(comm);
    }
};

// ---- broadcasts -----------------------------------------------------------------------------------------------------

template <class Count>
class Broadcasting {
  public:
    Broadcasting(Call& call, void* buffer, Count count, MPI_Datatype type, int root, MPI_Comm comm)
        : _call(call),
          _buffer(buffer),
          _count(count),
          _type(type),
          _root(root),
          _communicator(comm),
          _group(group_of(comm)) {}

    [[nodiscard]] static constexpr Kind kind() { return Kind::broadcast; }

    void check() const {
        check_root(_call, _group, _root);
        if (_group.is_root(_root) || _group.is_leaf(_root)) {
            check_buffer(_call, _buffer, _count, _type);
        }
    }

    void describe(OnNode& here) const {
        here.arguments.root = _root;
        here.arguments.elements = here.arguments.bytes = here.bytes_of(_count, _type);
        here.is_root() ? here.sends(_buffer, _count, _type) : here.receives(_buffer, _count, _type);
    }

    /// Members may describe the same bytes by different types, so that bytes are what they agree on.
    [[nodiscard]] Offer offer() const {
        return {_call, _communicator, bytes_of(layer().real, _count, _type), MPI_BYTE};
    }
    void describe(Offer& offer) const {
        _group.is_root(_root) ? offer.reads(_buffer, _count, _type) : offer.writes(_buffer, _count, _type);
        offer.chunks = true;
        if (_group.has(_root)) {  // else the MPI reports the error
            std::byte* const begin = bytes_at(_buffer, _count, _type);
            offer.hierarchical = true;
            offer.library = LibraryCall{.kind = kind(),
                                        .root = _root,
                                        .elements = static_cast<std::uint64_t>(offer.bytes()),
                                        .send = begin,
                                        .receive = begin};
        }
    }

    [[nodiscard]] std::optional<int> run_hierarchically() const {
        const std::int64_t bytes = bytes_of(layer().real, _count, _type);
        if (!can_broadcast_hierarchically(bytes, _root, _communicator)) {
            return std::nullopt;
        }
        return hierarchical_broadcast(_call, bytes_at(_buffer, _count, _type), static_cast<int>(bytes), _root,
                                      _communicator);
    }

    template <Function function>
    int run_chunk(const Offer::Chunk& chunk) const {
        void* const part = chunk.staged != nullptr ? chunk.staged : bytes_at(_buffer, _count, _type) + chunk.first;
        return below<function>()(part, static_cast<Count>(chunk.count), MPI_BYTE, _root, _communicator);
    }

    template <Function function, class... Tail>
    int run_staged(Tail... tail) const {
        Stage stage(_call);
        prepare(stage, tail...);
        Argument<Count> data{_buffer, _count, _type};
        if (_group.is_root(_root)) {
            data = stage.buffer(Access::in, _buffer, _count, _type);
        } else if (_group.is_leaf(_root)) {
            data = stage.buffer(Access::out, _buffer, _count, _type);
        }
        return carry_out(
            stage,
            [&] { return below<function>()(data.address, data.count, data.type, _root, _communicator, tail...); },
            tail...);
    }

  private:
    Call& _call;
    void* const _buffer;
    const Count _count;
    const MPI_Datatype _type;
    const int _root;
    const MPI_Comm _communicator;
    const Group _group;
};

struct Broadcast {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, void* buffer, Count count, MPI_Datatype type, int root, MPI_Comm comm, Tail... tail) {
        return run_collective<function>(call, Broadcasting<Count>(call, buffer, count, type, root, comm), comm,
                                        tail...);
    }
};

// ---- reductions -----------------------------------------------------------------------------------------------------

/// What the arguments of all reductions have in common.
struct ReductionArguments {
    ReductionArguments(const void* sent, void* received, MPI_Datatype elements_type, MPI_Op operation,
                       MPI_Comm communicator)
        : send_buffer(sent),
          receive_buffer(received),
          type(elements_type),
          op(operation),
          comm(communicator),
          group(communicator),
          in_place(sent == MPI_IN_PLACE) {}
    [[nodiscard]] bool same() const { return send_buffer == receive_buffer && !in_place; }
    /// Of a member that gets a result. Where the MPI takes one buffer for both, it is as if MPI_IN_PLACE were passed.
    [[nodiscard]] ReductionArguments with_result(const std::int64_t elements) const {
        ReductionArguments given = *this;
        given.same_buffer = same() && elements > 0 && !group.get().between;
        if (given.same_buffer) {
            given.send_buffer = MPI_IN_PLACE;
            given.in_place = true;
        }
        return given;
    }
    void check_same_buffer(const Call& call, const Kind kind, const std::int64_t elements) const {
        if (same_buffer) {
            refuse_same_buffer(call, error_of_same_buffer(layer().binding, kind, receive_buffer, elements));
        }
    }
    void check_overlapping(const Call& call, const std::int64_t sent, const std::int64_t received) const {
        if (!in_place || same_buffer) {
            const void* const from = same_buffer ? receive_buffer : send_buffer;
            check_overlap(call, {{bytes_from(from, 0), sent, type}}, {{bytes_from(receive_buffer, 0), received, type}});
        }
    }
    const void* send_buffer;
    void* receive_buffer;
    MPI_Datatype type;
    MPI_Op op;
    MPI_Comm comm;
    LazyGroup group;
    bool in_place;
    bool same_buffer = false;  ///< the program passed one buffer for both

    /// Where this member's operand is.
    [[nodiscard]] const void* input() const { return in_place ? receive_buffer : send_buffer; }
    /// How the library would do it.
    [[nodiscard]] LibraryCall library_call(const Kind kind, const std::uint32_t code, const int root,
                                           const std::int64_t elements) const {
        return {.kind = kind,
                .code = code,
                .root = root,
                .elements = static_cast<std::uint64_t>(elements),
                .send = bytes_of_buffer(input()),
                .receive = bytes_of_buffer(receive_buffer)};
    }
};

/// MPI_Reduce, MPI_Allreduce, MPI_Scan and MPI_Exscan: each element of the result is one of all members.
template <Kind kKind, class Count>
class Reduction {
  public:
    static constexpr bool kRooted = kKind == Kind::reduce;

    Reduction(Call& call, const ReductionArguments& given, Count count, int root = 0)
        : _call(call),
          _given(!kRooted || given.group.get().is_root(root) ? given.with_result(count) : given),
          _count(count),
          _root(root),
          _is_leaf(!kRooted || given.group.get().is_leaf(root)),
          // MPI_Exscan does not write to the first rank's buffer.
          _has_result(kRooted ? given.group.get().is_root(root)
                              : kKind != Kind::exscan || given.group.get().rank != 0) {}

    [[nodiscard]] static constexpr Kind kind() { return kKind; }

    void check() const {
        bool in_other = false;
        if constexpr (kRooted) {
            check_root(_call, _given.group.get(), _root);
            in_other = is_in_other_buffer(_given.send_buffer, _given.group.get(), _root);
        } else {
            in_other = is_in_other_buffer(_given.send_buffer, _given.group);
        }
        if (_is_leaf && !in_other) {
            check_buffer(_call, _given.send_buffer, _count, _given.type);
        }
        // The first rank of MPI_Exscan may pass MPI_IN_PLACE for the buffer that means nothing there.
        const bool reads_result = !kRooted && (_given.in_place || _given.receive_buffer != MPI_IN_PLACE);
        if (_has_result) {
            check_buffer(_call, _given.receive_buffer, _count, _given.type);
        } else if (reads_result) {
            check_elements(_call, _given.receive_buffer, _count, _given.type);
        }
        if (_has_result || _is_leaf) {
            check_operation(_call, _given.op);
        }
        const auto count = static_cast<std::int64_t>(_count);
        _given.check_same_buffer(_call, kKind, count);
        if (layer().settings.check && _is_leaf && _has_result) {
            _given.check_overlapping(_call, count, count);
        }
    }

    void describe(OnNode& here) const {
        const auto count = static_cast<std::int64_t>(_count);
        here.arguments.root = _root;
        here.reduces(_given.op, _given.type, count);
        here.arguments.in_place = _given.in_place && _has_result;
        if (!here.arguments.in_place) {
            here.sends(_given.input(), count, _given.type);
        }
        if (_has_result) {
            here.receives(_given.receive_buffer, count, _given.type);
        }
    }

    [[nodiscard]] Offer offer() const
        requires(kRooted || kKind == Kind::allreduce)
    {
        return {_call, _given.comm, static_cast<std::int64_t>(_count), _given.type};
    }
    void describe(Offer& offer) const {
        const auto count = static_cast<std::int64_t>(_count);
        offer.reads(_given.input(), count, _given.type);
        if (_has_result) {
            offer.writes(_given.receive_buffer, count, _given.type);
        }
        offer.chunks = !kRooted;
        offer.code = kernel_code(layer().real, _given.op, _given.type);
        if (!kRooted || _given.group.get().has(_root)) {
            offer.hierarchical = offer.code != 0;
            offer.library = _given.library_call(kKind, offer.code, _root, count);
        }
    }

    template <Function function>
    int run_chunk(const Offer::Chunk& chunk) const
        requires(kKind == Kind::allreduce)
    {
        const auto count = static_cast<Count>(chunk.count);
        if (chunk.staged != nullptr) {
            return native<function>(MPI_IN_PLACE, chunk.staged, count);
        }
        const BlocksView<Count> sent{_given.send_buffer, 1, _given.type},
            received{_given.receive_buffer, 1, _given.type};
        const auto first = static_cast<std::size_t>(chunk.first);
        return native<function>(_given.in_place ? MPI_IN_PLACE : sent.parts()(first).address,
                                received.parts()(first).address, count);
    }

    [[nodiscard]] std::optional<int> run_hierarchically() const {
        if (static_cast<std::int64_t>(_count) > std::numeric_limits<int>::max()) {
            return std::nullopt;
        }
        const int count = static_cast<int>(_count);
        if constexpr (kRooted) {
            return hierarchical_reduce(_call, _given.input(), _given.receive_buffer, count, _given.type, _given.op,
                                       _root, _given.comm);
        } else {
            return hierarchical_allreduce(_call, _given.send_buffer, _given.receive_buffer, count, _given.type,
                                          _given.op, _given.comm);
        }
    }

    template <Function function, class... Tail>
    int run_staged(Tail... tail) const {
        Stage stage(_call);
        prepare(stage, tail...);
        const auto [sent, received] = placed(stage);
        return carry_out(
            stage, [&, sent = sent, received = received] { return native<function>(sent, received, _count, tail...); },
            tail...);
    }

    template <class... Tail>
    int run_in_rank_order(Tail... tail) const {
        RankOrder::Arguments arguments{kKind,
                                       _given.input(),
                                       _has_result ? _given.receive_buffer : nullptr,
                                       {static_cast<std::int64_t>(_count)},
                                       _given.type,
                                       _given.op,
                                       _root,
                                       _given.comm};
        if constexpr (sizeof...(Tail) == 0) {
            return RankOrder(_call, std::move(arguments)).run();
        } else {
            Stage stage(_call);
            prepare(stage, tail...);
            const auto [sent, received] = placed(stage);
            arguments.input = _given.in_place ? received : sent;
            arguments.result = _has_result ? received : nullptr;
            return carry_out_in_rank_order(_call, stage, std::move(arguments), tail...);
        }
    }

  private:
    /// The buffers in host memory: what is sent, and what is received.
    [[nodiscard]] std::pair<void*, void*> placed(Stage& stage) const {
        const auto placed = [&](const Access access, const void* const buffer) {
            return stage.buffer(access, buffer, _count, _given.type, -1, Packing::mirror).address;
        };
        void* sent = const_cast<void*>(_given.send_buffer);
        void* received = _given.receive_buffer;
        if (!_given.in_place && _is_leaf) {
            sent = placed(Access::in, _given.send_buffer);
        }
        if (_has_result) {
            received = placed(_given.in_place ? Access::inout : Access::out, _given.receive_buffer);
        } else if (!kRooted && _given.in_place) {
            // The first rank's buffer in MPI_Exscan is input only. Not in place it means nothing: it may be shorter, or
            // no address.
            received = placed(Access::in, _given.receive_buffer);
        }
        return {sent, received};
    }

    template <Function function, class... Tail>
    int native(const void* sent, void* received, Count count, Tail... tail) const {
        if constexpr (kRooted) {
            return below<function>()(sent, received, count, _given.type, _given.op, _root, _given.comm, tail...);
        } else {
            return below<function>()(sent, received, count, _given.type, _given.op, _given.comm, tail...);
        }
    }

    Call& _call;
    const ReductionArguments _given;
    const Count _count;
    const int _root;
    const bool _is_leaf, _has_result;
};

struct Reduce {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Count count, MPI_Datatype type, MPI_Op op,
                   int root, MPI_Comm comm, Tail... tail) {
        const ReductionArguments given(send_buffer, receive_buffer, type, op, comm);
        return run_collective<function>(call, Reduction<Kind::reduce, Count>(call, given, count, root), comm, tail...);
    }
};

template <Kind kind>
struct ReduceAll {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Count count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, Tail... tail) {
        const ReductionArguments given(send_buffer, receive_buffer, type, op, comm);
        return run_collective<function>(call, Reduction<kind, Count>(call, given, count), comm, tail...);
    }
};

/// MPI_Reduce_scatter (`Counts`: one for each member) and MPI_Reduce_scatter_block (one for all).
template <class Counts>
class ScatteredReduction {
  public:
    static constexpr bool kVarying = std::is_pointer_v<Counts>;

    ScatteredReduction(Call& call, const ReductionArguments& given, Counts counts)
        : _call(call),
          _counts(counts),
          _members(members_of(given.comm)),
          _given(given.same() ? given.with_result(total()) : given) {}

    [[nodiscard]] static constexpr Kind kind() { return Kind::reduce_scatter; }

    void check() const {
        const bool in_other = is_in_other_buffer(_given.send_buffer, _given.group);
        const void* const operand = in_other ? _given.receive_buffer : _given.send_buffer;
        for (int member = 0; member < (kVarying ? _members : 1); ++member) {
            check_elements(_call, operand, count_of(member), _given.type);
        }
        if (!kVarying || _given.receive_buffer == MPI_IN_PLACE) {
            check_elements(_call, _given.receive_buffer, count_of(_given.group.get().rank), _given.type);
        }
        check_operation(_call, _given.op);
        _given.check_same_buffer(_call, kind(), 1);
        if (layer().settings.check) {
            _given.check_overlapping(_call, total(), count_of(_given.group.get().rank));
        }
    }

    void describe(OnNode& here) const {
        coll::Arguments& arguments = here.arguments;
        const std::int64_t own = count_of(here.rank());
        std::int64_t before = 0, most = 0;
        for (int member = 0; member < here.size(); ++member) {
            before += member < here.rank() ? count_of(member) : 0;
            most = std::max(most, count_of(member));
            arguments.even = arguments.even && count_of(member) == own;
        }
        here.reduces(_given.op, _given.type, own);
        arguments.bytes = here.bytes_of(most, _given.type);
        arguments.own_offset = here.bytes_of(before, _given.type);
        arguments.in_place = _given.in_place;
        if (!_given.in_place) {
            here.sends(_given.send_buffer, total(), _given.type);
        }
        here.receives(_given.receive_buffer, _given.in_place ? total() : own, _given.type);
    }

    [[nodiscard]] Offer offer() const
        requires(!kVarying)
    {
        return {_call, _given.comm, count_of(0), _given.type, _members};
    }
    void describe(Offer& offer) const {
        offer.reads(_given.input(), total(), _given.type);
        offer.code = kernel_code(layer().real, _given.op, _given.type);
        if (!_given.in_place) {  // else the library would put the result elsewhere
            offer.writes(_given.receive_buffer, count_of(0), _given.type);
            offer.library = _given.library_call(kind(), offer.code, 0, count_of(0));
        }
    }

    template <Function function, class... Tail>
    int run_staged(Tail... tail) const {
        Stage stage(_call);
        prepare(stage, tail...);
        const auto [sent, received] = placed(stage);
        return carry_out(
            stage,
            [&, sent = sent, received = received] {
                return below<function>()(sent, received, _counts, _given.type, _given.op, _given.comm, tail...);
            },
            tail...);
    }

    template <class... Tail>
    int run_in_rank_order(Tail... tail) const {
        RankOrder::Arguments arguments{kind(), _given.input(), _given.receive_buffer, {}, _given.type, _given.op,
                                       0,      _given.comm};
        for (int member = 0; member < _members; ++member) {
            arguments.counts.push_back(count_of(member));
        }
        if constexpr (sizeof...(Tail) == 0) {
            return RankOrder(_call, std::move(arguments)).run();
        } else {
            Stage stage(_call);
            prepare(stage, tail...);
            const auto [sent, received] = placed(stage);
            arguments.input = _given.in_place ? received : sent;
            arguments.result = received;
            return carry_out_in_rank_order(_call, stage, std::move(arguments), tail...);
        }
    }

  private:
    [[nodiscard]] std::pair<void*, void*> placed(Stage& stage) const {
        const std::int64_t own = count_of(_given.group.get().rank);
        const auto placed = [&](const Access access, const void* const buffer, const std::int64_t count,
                                const std::int64_t stored = -1) {
            return stage.buffer(access, buffer, count, _given.type, -1, Packing::mirror, stored).address;
        };
        void* sent = const_cast<void*>(_given.send_buffer);
        if (!_given.in_place) {
            sent = placed(Access::in, _given.send_buffer, total());
        }
        // In place, the receive buffer holds the input for all ranks' parts, and the result goes to the first of these
        // places.
        void* const received = _given.in_place ? placed(Access::inout, _given.receive_buffer, total(), own)
                                               : placed(Access::out, _given.receive_buffer, own);
        return {sent, received};
    }

    /// Of the own group, whose members share the result, also on an intercommunicator.
    [[nodiscard]] static int members_of(const MPI_Comm comm) {
        int size = 0;
        layer().real.Comm_size(comm, &size);
        return size;
    }
    [[nodiscard]] std::int64_t count_of(const int member) const {
        if constexpr (kVarying) {
            return static_cast<std::int64_t>(_counts[member]);
        } else {
            return static_cast<std::int64_t>(_counts);
        }
    }
    /// Elements of all parts.
    [[nodiscard]] std::int64_t total() const {
        std::int64_t sum = 0;
        for (int member = 0; member < _members; ++member) {
            sum += count_of(member);
        }
        return sum;
    }

    Call& _call;
    const Counts _counts;
    const int _members;
    const ReductionArguments _given;
};

struct ReduceScatter {
    template <Function function, class Counts, class... Tail>
    static int run(Call& call, const void* send_buffer, void* receive_buffer, Counts counts, MPI_Datatype type,
                   MPI_Op op, MPI_Comm comm, Tail... tail) {
        const ReductionArguments given(send_buffer, receive_buffer, type, op, comm);
        return run_collective<function>(call, ScatteredReduction<Counts>(call, given, counts), comm, tail...);
    }
};

struct ReduceLocal {
    template <Function function, class Count>
    static int run(Call& call, const void* input, void* inout, Count count, MPI_Datatype type, MPI_Op op) {
        check_buffer(call, input, count, type);
        check_buffer(call, inout, count, type);
        if (input == inout && count > 0 && refuses_same_buffer(layer().binding)) {
            refuse_same_buffer(call, MPI_ERR_BUFFER);
        }
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
    /// The error code for the program. All members tell each other their failures, since each has passed on what came
    /// from others. The MPI was told to return errors on the levels' communicators.
    [[nodiscard]] int outcome() {
        // Parts may be in stream order, and use memory of the layer that goes back when the call ends.
        if (ipc::Link* const link = layer().node_peers.link(); link != nullptr && link->ordering() != nullptr) {
            link->ordering()->finish();
        }
        const int failed = _failure || _error != MPI_SUCCESS ? 1 : 0;
        int any = failed;
        if (const int error = layer().real.Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, _communicator);
            error != MPI_SUCCESS) {
            throw RaisedError(error);
        }
        if (_failure) {
            throw Error(*_failure);
        }
        if (_error != MPI_SUCCESS) {
            layer().real.Comm_call_errhandler(_communicator, _error);
        } else if (any != 0) {
            throw Error("another rank failed in its part of this collective", "see its own error message");
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
    void* const partition = in_place ? partitions.room(receive_buffer)
                                     : BlocksView<int>{receive_buffer, 1, type}
                                           .parts()(static_cast<std::size_t>(partitions.own_displacement()))
                                           .address;
    in.attempt([&] {
        return ReduceScatter::run<Function::Reduce_scatter>(call, in_place ? receive_buffer : send_buffer, partition,
                                                            partitions.counts(), type, op, in.hierarchy.node());
    });
    if (partitions.own_count() > 0) {
        in.attempt([&] {
            return ReduceAll<Kind::allreduce>::run<Function::Allreduce>(
                call, MPI_IN_PLACE, partition, partitions.own_count(), type, op, in.hierarchy.inter_node());
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
        AWAKEN_SERVE_COUNTS(Allreduce, ReduceAll<Kind::allreduce>),
        AWAKEN_SERVE_COUNTS(Scan, ReduceAll<Kind::scan>),
        AWAKEN_SERVE_COUNTS(Exscan, ReduceAll<Kind::exscan>),
        AWAKEN_SERVE_COUNTS(Gather, Gather),
        AWAKEN_SERVE_COUNTS(Gatherv, GatherV),
        AWAKEN_SERVE_COUNTS(Scatter, Scatter),
        AWAKEN_SERVE_COUNTS(Scatterv, ScatterV),
        AWAKEN_SERVE_COUNTS(Allgather, AllGather<Everyone>),
        AWAKEN_SERVE_COUNTS(Allgatherv, AllGatherV<Everyone>),
        AWAKEN_SERVE_COUNTS(Alltoall, AllToAll<Everyone>),
        AWAKEN_SERVE_COUNTS(Alltoallv, AllToAllV<Everyone>),
        AWAKEN_SERVE_COUNTS(Alltoallw, AllToAllW<Everyone>),
        AWAKEN_SERVE_COUNTS(Reduce_scatter_block, ReduceScatter),
        AWAKEN_SERVE(Barrier, Barrier),
        AWAKEN_SERVE_COUNTS(Igather, Gather),
        AWAKEN_SERVE_COUNTS(Igatherv, GatherV),
        AWAKEN_SERVE_COUNTS(Iscatter, Scatter),
        AWAKEN_SERVE_COUNTS(Iscatterv, ScatterV),
        AWAKEN_SERVE_COUNTS(Iallgather, AllGather<Everyone>),
        AWAKEN_SERVE_COUNTS(Iallgatherv, AllGatherV<Everyone>),
        AWAKEN_SERVE_COUNTS(Ialltoall, AllToAll<Everyone>),
        AWAKEN_SERVE_COUNTS(Ialltoallv, AllToAllV<Everyone>),
        AWAKEN_SERVE_COUNTS(Ialltoallw, AllToAllW<Everyone>),
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
        AWAKEN_SERVE_COLLECTIVE(Allreduce, Iallreduce, ReduceAll<Kind::allreduce>),
        AWAKEN_SERVE_COLLECTIVE(Scan, Iscan, ReduceAll<Kind::scan>),
        AWAKEN_SERVE_COLLECTIVE(Exscan, Iexscan, ReduceAll<Kind::exscan>),
        AWAKEN_SERVE_COLLECTIVE(Reduce_scatter, Ireduce_scatter, ReduceScatter),
        AWAKEN_SERVE_COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, ReduceScatter),
        AWAKEN_SERVE_COUNTS(Reduce_local, ReduceLocal),
        AWAKEN_SERVE(Op_free, FreeOp),
    };
}

}  // namespace awaken::AWAKEN_ABI
