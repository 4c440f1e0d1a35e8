// SPDX-License-Identifier: Apache-2.0
// Collectives that move data between all members: gather, scatter, allgather and all-to-all in all their forms. An MPI
// function describes its buffers by views (buffer_views.h), and Exchange describes those to each strategy
// (strategies.h).
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>

#include "coll/buffer_views.h"
#include "coll/overlap.h"
#include "coll/strategies.h"

namespace awaken::AWAKEN_ABI {

/// The data of a buffer whose elements lie one after another, as bytes, on which members agree whatever their types.
/// Null when the data has gaps. MPI_IN_PLACE stays MPI_IN_PLACE.
[[nodiscard]] inline std::byte* bytes_at(const void* const buffer, const std::int64_t count, const MPI_Datatype type) {
    auto* const begin = static_cast<std::byte*>(const_cast<void*>(buffer));
    if (buffer == MPI_IN_PLACE) {
        return begin;
    }
    const std::shared_ptr<const Datatype> datatype = layer().datatypes.find(type);
    return datatype->layout.is_contiguous(count) ? begin + datatype->layout.true_begin() : nullptr;
}

/// One call. `Rooted`: data goes to one member or comes from it.
template <bool Rooted, class Send, class Receive>
class Exchange {
  public:
    static constexpr bool kScatters = Rooted && Send::kPerMember;
    static constexpr bool kToEach = !Rooted && Send::kPerMember;
    static constexpr bool kVarying = Send::kVarying || Receive::kVarying;

    Exchange(Call& call, const Send& send, const Receive& receive, const MPI_Comm comm, const int root = 0)
        : _call(call),
          _send(send),
          _receive(receive),
          _communicator(comm),
          _root(root),
          _group(comm),
          _in_place(own_buffer() == MPI_IN_PLACE),
          _is_root(!Rooted || group().is_root(root)),
          _is_leaf(!Rooted || group().is_leaf(root)) {}

    [[nodiscard]] static constexpr coll::Kind kind() {
        return kScatters ? coll::Kind::scatter
               : Rooted  ? coll::Kind::gather
               : kToEach ? coll::Kind::alltoall
                         : coll::Kind::allgather;
    }

    void check() const {
        bool in_other = false;
        if constexpr (Rooted) {
            check_root(_call, group(), _root);
            in_other = is_in_other_buffer(own_buffer(), group(), _root);
        } else {
            in_other = is_in_other_buffer(own_buffer(), _group);
        }
        if (kScatters ? _is_root : _is_leaf && !in_other) {
            _send.check(_call, members_for(_send));
        }
        if (kScatters ? _is_leaf && !in_other : _is_root) {
            _receive.check(_call, members_for(_receive));
        }
        if (!_in_place && _is_root) {
            if (may_send_from_where_it_receives()) {
                check_same_buffer();
            }
            if (layer().settings.check && _is_leaf) {
                check_overlap(_call, parts_of(_send, members_with(_send)), parts_of(_receive, members_with(_receive)));
            }
        }
    }

    void describe(OnNode& here) const {
        coll::Arguments& arguments = here.arguments;
        arguments.root = _root;
        arguments.in_place = _in_place;
        arguments.varying = kVarying;
        if (receives()) {
            here.receives_view(_receive);
        }
        if (sends()) {
            here.sends_view(_send);
        }
        const auto own = static_cast<std::size_t>(here.rank());
        if constexpr (Rooted) {
            if (!_in_place) {
                arguments.own_bytes = kScatters ? bytes_of_whole(here, _receive) : bytes_of_whole(here, _send);
            }
            arguments.bytes = arguments.own_bytes;
            if constexpr (!kVarying) {
                if (_is_root) {
                    arguments.bytes = kScatters ? here.bytes_of(_send.count, _send.type)
                                                : here.bytes_of(_receive.count, _receive.type);
                }
                arguments.block_bytes = arguments.bytes;
            }
        } else if constexpr (!kVarying) {
            arguments.bytes = arguments.block_bytes = arguments.own_bytes =
                here.bytes_of(_receive.count, _receive.type);
            arguments.in_place_offset = _in_place && !kToEach ? arguments.block_bytes * own : 0;
        } else if constexpr (kToEach) {
            if (_in_place) {
                here.sends_received_parts();
            }
        } else {
            arguments.own_bytes = arguments.bytes_from[own];
            arguments.in_place_offset = _in_place ? arguments.receive_offsets[own] : 0;
        }
    }

    [[nodiscard]] const Group& group() const { return _group.get(); }
    /// In place, a member of an all-to-all would overwrite what it has yet to send. All ranks pass MPI_IN_PLACE then.
    [[nodiscard]] bool may_agree() const { return !(kToEach && _in_place); }
    /// Whether messages are worth their cost. The same on all members, so that only what all of them see counts.
    [[nodiscard]] bool is_large(const Proposals& proposals) const {
        if constexpr (kVarying) {
            return true;
        } else {
            return group().between || proposals.are_many(block_bytes() * group().size);
        }
    }

    /// Looks at the first part of each buffer only. If others differ from it, messages find out, and the choice is no
    /// worse than another.
    [[nodiscard]] bool is_on_device() const {
        const auto look_at = [this]<class View>(const View& view) {
            const auto part = view.parts();
            const auto members = static_cast<std::size_t>(View::kPerMember ? group().size : 1);
            for (std::size_t member = 0; member < members; ++member) {
                if (const BufferView first = part(member); first.count > 0) {
                    return Stage(_call).locate(first.address, first.count, first.type).served;
                }
            }
            return false;
        };
        return (receives() && look_at(_receive)) || (sends() && look_at(_send));
    }

    void describe(PointToPoint& messages) const {
        const auto add_all = [this]<class View>(const View& view, const auto& add) {
            const auto part = view.parts();
            if (!View::kPerMember && (Rooted || !group().between)) {
                add(Rooted ? _root : group().rank, part(0));
                return;
            }
            for (int member = 0; member < group().size; ++member) {
                add(member, part(View::kPerMember ? static_cast<std::size_t>(member) : 0));
            }
        };
        if (receives()) {
            add_all(_receive, [&](const int from, const BufferView& data) { messages.receives(from, data); });
        }
        if (sends()) {
            add_all(_send, [&](const int to, const BufferView& data) { messages.sends(to, data); });
        }
        if (Rooted && _in_place) {
            messages.leaves_own_part();
        }
    }

    /// Members may describe the same bytes by different types, so that bytes are what they agree on.
    [[nodiscard]] Offer offer() const
        requires(!kVarying)
    {
        return {_call, _communicator, block_bytes(), MPI_BYTE, group().size};
    }
    void describe(Offer& offer) const {
        // The arguments of a side that means nothing here may be anything.
        const std::int64_t sent = sends() ? _send.total(group().size) : 0;
        const std::int64_t received = receives() ? _receive.total(group().size) : 0;
        if (sends()) {
            offer.reads(_send.address, sent, _send.type);
        }
        if (receives()) {
            offer.writes(const_cast<void*>(static_cast<const void*>(_receive.address)), received, _receive.type);
        }
        // Neither the library nor messages can exchange in place.
        offer.messages = Rooted ? group().has(_root) : may_agree();
        if (!Rooted && offer.messages) {
            std::byte* const from = sends() ? bytes_at(_send.address, sent, _send.type) : nullptr;
            std::byte* const to = receives() ? bytes_at(_receive.address, received, _receive.type) : nullptr;
            // In place, a member's own block is where it belongs.
            std::byte* const own = !_in_place || to == nullptr ? from : to + block_bytes() * group().rank;
            offer.library = coll::CclCommunicator::Operation{
                .kind = kind(), .block_bytes = static_cast<std::uint64_t>(block_bytes()), .send = own, .receive = to};
        }
    }

    template <Function function, class... Tail>
    int run_staged(Tail... tail) const {
        Stage stage(_call);
        prepare(stage, tail...);
        auto sent = _send.given();
        auto received = _receive.given();
        if (sends()) {
            sent = _send.placed(stage, Access::in, group().size);
        }
        if (receives()) {
            // In place, this member's own part is already there.
            const Access access = _in_place && !kScatters ? Access::inout : Access::out;
            received = _receive.placed(stage, access, group().size);
        }
        return carry_out(stage, [&] { return native<function>(std::tuple_cat(sent, received), tail...); }, tail...);
    }

  private:
    /// True for few addresses, so that most calls need not ask the MPI.
    [[nodiscard]] bool may_send_from_where_it_receives() const {
        if constexpr (kToEach) {
            return _send.address == _receive.address && !group().between;
        } else {
            const auto [own, all] = own_and_all();
            if (own->count <= 0) {
                return false;
            }
            const std::int64_t distance =
                reinterpret_cast<std::intptr_t>(own->address) - reinterpret_cast<std::intptr_t>(all->address);
            if constexpr (!Rooted && !kVarying) {
                if (all->count <= 0 || distance % static_cast<std::int64_t>(all->count) != 0) {
                    return false;
                }
            }
            if (group().between) {
                return false;
            }
            const std::int64_t before = all->elements_before(group().rank);
            return before == 0 ? distance == 0 : distance % before == 0;
        }
    }
    /// Refuses it if this member sends to itself from where it receives that, or in an all-to-all to anybody.
    void check_same_buffer() const {
        const auto coincide = [](const BufferView& sent, const BufferView& received) {
            return sent.address == received.address && sent.type == received.type && sent.count > 0 &&
                   received.count > 0;
        };
        const auto sent = _send.parts();
        const auto received = _receive.parts();
        if constexpr (kToEach) {
            bool is_refused = refuses_same_buffer(layer().binding) && _send.is_same_as(_receive);
            // Where the MPI takes it, the other members' GPUs would read what this member's overwrites.
            for (std::size_t member = 0; !is_refused && member < static_cast<std::size_t>(group().size); ++member) {
                is_refused = coincide(sent(member), received(member)) && is_on_device();
            }
            refuse_same_buffer(_call, is_refused ? MPI_ERR_BUFFER : MPI_SUCCESS);
        } else if (const auto own = static_cast<std::size_t>(group().rank); coincide(sent(own), received(own))) {
            refuse_same_buffer(_call,
                               error_of_same_buffer(layer().binding, kind(), sent(own).address, sent(own).count));
        }
    }
    /// What this member sends to itself, or receives from itself, and what holds a part for each member.
    [[nodiscard]] auto own_and_all() const {
        if constexpr (kScatters) {
            return std::pair{&_receive, &_send};
        } else {
            return std::pair{&_send, &_receive};
        }
    }
    /// The buffer that MPI_IN_PLACE may stand for.
    [[nodiscard]] const void* own_buffer() const { return kScatters ? _receive.address : _send.address; }
    /// Whether the buffers mean something on this member.
    [[nodiscard]] bool sends() const { return kScatters ? _is_root : _is_leaf && !_in_place; }
    [[nodiscard]] bool receives() const { return kScatters ? _is_leaf && !_in_place : _is_root; }
    /// As many counts as the view has.
    template <class View>
    [[nodiscard]] int members_for(const View&) const {
        return View::kVarying ? group().size : 1;
    }
    /// As many parts as the view has.
    template <class View>
    [[nodiscard]] int members_with(const View&) const {
        return View::kPerMember ? group().size : 1;
    }
    /// Of one member's block.
    [[nodiscard]] std::int64_t block_bytes() const {
        const bool in_send = kScatters ? _in_place : Rooted && !_in_place;
        return in_send ? bytes_of(layer().real, _send.count, _send.type)
                       : bytes_of(layer().real, _receive.count, _receive.type);
    }
    template <class View>
    [[nodiscard]] static std::uint64_t bytes_of_whole(const OnNode& here, const View& view) {
        if constexpr (View::kPerMember) {
            return 0;
        } else {
            return here.bytes_of(view.count, view.type);
        }
    }

    /// Calls the MPI's function with these buffers.
    template <Function function, class Buffers, class... Tail>
    [[nodiscard]] int native(const Buffers& buffers, Tail... tail) const {
        if constexpr (Rooted) {
            return std::apply(below<function>(), std::tuple_cat(buffers, std::tuple{_root, _communicator, tail...}));
        } else {
            return std::apply(below<function>(), std::tuple_cat(buffers, std::tuple{_communicator, tail...}));
        }
    }

    Call& _call;
    const Send _send;
    const Receive _receive;
    const MPI_Comm _communicator;
    const int _root;
    const LazyGroup _group;
    const bool _in_place, _is_root, _is_leaf;
};

// ---- the functions --------------------------------------------------------------------------------------------------

/// The members of a collective without a root: all of the communicator.
struct Everyone {
    template <Function function, class Send, class Receive, class... Tail>
    static int exchange(Call& call, const Send& send, const Receive& receive, const MPI_Comm comm, Tail... tail) {
        return run_collective<function>(call, Exchange<false, Send, Receive>(call, send, receive, comm), comm, tail...);
    }
};

struct Gather {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, int root, MPI_Comm comm, Tail... tail) {
        const WholeView<Count> send{send_buffer, send_count, send_type};
        const BlocksView<Count> receive{receive_buffer, receive_count, receive_type};
        return run_collective<function>(
            call, Exchange<true, WholeView<Count>, BlocksView<Count>>(call, send, receive, comm, root), comm, tail...);
    }
};

struct GatherV {
    template <Function function, class Count, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Counts receive_counts, Displacements displacements, MPI_Datatype receive_type, int root,
                   MPI_Comm comm, Tail... tail) {
        using Receive = PartsView<Counts, Displacements>;
        const WholeView<Count> send{send_buffer, send_count, send_type};
        const Receive receive{receive_buffer, receive_counts, displacements, receive_type};
        return run_collective<function>(
            call, Exchange<true, WholeView<Count>, Receive>(call, send, receive, comm, root), comm, tail...);
    }
};

struct Scatter {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, int root, MPI_Comm comm, Tail... tail) {
        const BlocksView<Count> send{send_buffer, send_count, send_type};
        const WholeView<Count> receive{receive_buffer, receive_count, receive_type};
        return run_collective<function>(
            call, Exchange<true, BlocksView<Count>, WholeView<Count>>(call, send, receive, comm, root), comm, tail...);
    }
};

struct ScatterV {
    template <Function function, class Counts, class Displacements, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements displacements,
                   MPI_Datatype send_type, void* receive_buffer, Count receive_count, MPI_Datatype receive_type,
                   int root, MPI_Comm comm, Tail... tail) {
        using Send = PartsView<Counts, Displacements>;
        const Send send{send_buffer, send_counts, displacements, send_type};
        const WholeView<Count> receive{receive_buffer, receive_count, receive_type};
        return run_collective<function>(call, Exchange<true, Send, WholeView<Count>>(call, send, receive, comm, root),
                                        comm, tail...);
    }
};

// These do the same with all members (Everyone), and along the edges of a topology (Neighbours in neighbourhood.cpp).

template <class Members>
struct AllGather {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        return Members::template exchange<function>(call, WholeView<Count>{send_buffer, send_count, send_type},
                                                    BlocksView<Count>{receive_buffer, receive_count, receive_type},
                                                    comm, tail...);
    }
};

template <class Members>
struct AllToAll {
    template <Function function, class Count, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Count receive_count, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        return Members::template exchange<function>(call, BlocksView<Count>{send_buffer, send_count, send_type},
                                                    BlocksView<Count>{receive_buffer, receive_count, receive_type},
                                                    comm, tail...);
    }
};

template <class Members>
struct AllGatherV {
    template <Function function, class Count, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Count send_count, MPI_Datatype send_type, void* receive_buffer,
                   Counts receive_counts, Displacements displacements, MPI_Datatype receive_type, MPI_Comm comm,
                   Tail... tail) {
        using Receive = PartsView<Counts, Displacements>;
        return Members::template exchange<function>(
            call, WholeView<Count>{send_buffer, send_count, send_type},
            Receive{receive_buffer, receive_counts, displacements, receive_type}, comm, tail...);
    }
};

template <class Members>
struct AllToAllV {
    template <Function function, class Counts, class Displacements, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements send_displacements,
                   MPI_Datatype send_type, void* receive_buffer, Counts receive_counts,
                   Displacements receive_displacements, MPI_Datatype receive_type, MPI_Comm comm, Tail... tail) {
        using View = PartsView<Counts, Displacements>;
        return Members::template exchange<function>(
            call, View{send_buffer, send_counts, send_displacements, send_type},
            View{receive_buffer, receive_counts, receive_displacements, receive_type}, comm, tail...);
    }
};

template <class Members>
struct AllToAllW {
    template <Function function, class Counts, class Displacements, class Types, class... Tail>
    static int run(Call& call, const void* send_buffer, Counts send_counts, Displacements send_displacements,
                   Types send_types, void* receive_buffer, Counts receive_counts, Displacements receive_displacements,
                   Types receive_types, MPI_Comm comm, Tail... tail) {
        using View = TypedPartsView<Counts, Displacements, Types>;
        return Members::template exchange<function>(
            call, View{send_buffer, send_counts, send_displacements, send_types},
            View{receive_buffer, receive_counts, receive_displacements, receive_types}, comm, tail...);
    }
};

}  // namespace awaken::AWAKEN_ABI
