// SPDX-License-Identifier: Apache-2.0
// What a collective tries, in order. A collective is a class that describes one call to each of these; none knows
// another, or which collective it serves.
//   1. the node's GPUs (on_node.h), which the members agree on from what they pass
//   2. what the members of several nodes agree on (agreement.h), for large data, or parts that vary: NCCL or RCCL,
//      messages, hierarchically, or the MPI in chunks
//   3. the MPI, with staging buffers
// Reductions that fold in the order of the ranks (rank_order.h) do without the second step, and without the MPI's own
// reductions in the third.
// The nonblocking and persistent forms may not wait for the members. They take the second step for exchanges whose
// kind the members have agreed on before, as messages.
//
// A collective has these members:
//   kind()                      as the table of algorithms knows it
//   check()                     throws ClassedError when an argument is wrong by itself
//   describe(OnNode&)           its buffers and arguments, for the first step
//   run_staged<function>(tail)  the last step
// For the second step, where all members see how much is moved:
//   offer()                     how much, as an Offer (offer.h)
//   describe(Offer&)            its buffers, and by what this member could do it
//   run_hierarchically()        where that may be agreed
//   run_chunk<function>(chunk)  where it may be cut: one call of the MPI
// and if it is an exchange, in which each member sees only its own parts:
//   group(), may_agree(), is_large(), is_on_device(), describe(PointToPoint&)
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "coll/agreement.h"
#include "coll/collective_comm.h"
#include "coll/offer.h"
#include "coll/on_node.h"
#include "coll/point_to_point.h"
#include "coll/rank_order.h"
#include "coll/run.h"

namespace awaken::AWAKEN_ABI {

/// Whether it consists of parts that members send each other.
template <class Collective>
concept IsExchange = requires(const Collective& collective, PointToPoint& messages) { collective.describe(messages); };
/// Whether all members see how much is moved.
template <class Collective>
concept IsUniform = requires(const Collective& collective) { collective.offer(); };
/// Whether the MPI may do it in chunks.
template <Function function, class Collective>
concept IsCut = requires(const Collective& collective, const Offer::Chunk& chunk) {
    collective.template run_chunk<function>(chunk);
};

/// The second step, where no member knows what the others move. Nothing: the MPI does it.
template <class Collective>
std::optional<int> exchange_as_agreed(Call& call, const Collective& collective, const MPI_Comm comm) {
    Proposals* const proposals = collective.may_agree() ? proposals_of(comm) : nullptr;
    if (proposals == nullptr || !proposals->varying.is_over()) {
        return std::nullopt;
    }
    PointToPoint messages(call, comm, collective.kind(), collective.group());
    collective.describe(messages);
    Agreement agreement(call, comm, *proposals, collective.kind(), 0, messages.bytes(), Agreement::Sizes::varying);
    messages.propose(agreement, *proposals, collective.is_on_device());
    switch (agreement.reached()) {
        case coll::Algorithm::ccl:
            agreement.run_library(messages.moved_bytes());
            return MPI_SUCCESS;
        case coll::Algorithm::point_to_point:
            return messages.run();
        default:
            return std::nullopt;
    }
}

/// The same where all members see how much is moved.
template <Function function, class Collective>
std::optional<int> uniform_as_agreed(Call& call, const Collective& collective, const MPI_Comm comm) {
    Offer offer = collective.offer();
    Proposals* const proposals = offer.proposals();
    if (proposals == nullptr) {
        return std::nullopt;
    }
    collective.describe(offer);
    Agreement agreement(call, comm, *proposals, collective.kind(), offer.code,
                        static_cast<std::uint64_t>(offer.bytes()), Agreement::Sizes::alike);
    offer.propose(agreement);
    switch (agreement.reached()) {
        case coll::Algorithm::ccl:
            agreement.run_library(offer.moved_bytes());
            return MPI_SUCCESS;
        case coll::Algorithm::point_to_point:
            if constexpr (IsExchange<Collective>) {
                PointToPoint messages(call, comm, collective.kind(), collective.group());
                collective.describe(messages);
                return messages.run();
            }
            return std::nullopt;
        case coll::Algorithm::hierarchical:
            if constexpr (requires { collective.run_hierarchically(); }) {
                if (const std::optional<int> outcome = collective.run_hierarchically()) {
                    return outcome;
                }
            }
            break;
        default:
            break;
    }
    if constexpr (IsCut<function, Collective>) {
        if (agreement.in_chunks()) {
            return offer.run_in_chunks(*proposals, [&collective](const Offer::Chunk& chunk) {
                return collective.template run_chunk<function>(chunk);
            });
        }
    }
    return std::nullopt;
}

template <Function function, class Collective>
std::optional<int> run_as_agreed(Call& call, const Collective& collective, const MPI_Comm comm) {
    if constexpr (IsExchange<Collective>) {
        if (!IsUniform<Collective> || collective.group().between) {
            return exchange_as_agreed(call, collective, comm);
        }
    }
    if constexpr (IsUniform<Collective>) {
        return uniform_as_agreed<function>(call, collective, comm);
    }
    return std::nullopt;
}

/// A form that may not wait for the members. `begin` does it as messages, if the members have agreed on the kind.
template <class Collective, class Begin>
std::optional<int> as_agreed_before(Call& call, const Collective& collective, const MPI_Comm comm,
                                    CollectiveComm& object, const Begin& begin) {
    const Proposals* const proposals = object.known_proposals();
    const bool agreed = proposals != nullptr && proposals->agreed(collective.kind());
    if (agreed && !collective.is_large(*proposals)) {
        return std::nullopt;
    }
    if (!agreed) {
        object.saw_nonblocking(collective.kind(), collective.is_on_device());
        return std::nullopt;
    }
    PointToPoint messages(call, comm, collective.kind(), collective.group());
    collective.describe(messages);
    return begin(messages);
}

/// The nonblocking form.
template <Function function, class Collective>
std::optional<int> run_as_agreed(Call& call, const Collective& collective, const MPI_Comm comm,
                                 MPI_Request* const request) {
    if constexpr (IsExchange<Collective>) {
        CollectiveComm* const object = collective.may_agree() ? CollectiveComm::of(comm) : nullptr;
        if (object == nullptr) {
            return std::nullopt;
        }
        return as_agreed_before(call, collective, comm, *object,
                                [request](PointToPoint& messages) { return std::optional(messages.start(request)); });
    }
    return std::nullopt;
}

/// The persistent form.
template <Function function, class Collective>
std::optional<int> run_as_agreed(Call& call, const Collective& collective, const MPI_Comm comm, MPI_Info,
                                 MPI_Request* const request) {
    if constexpr (IsExchange<Collective>) {
        CollectiveComm* const object = collective.may_agree() ? CollectiveComm::of(comm) : nullptr;
        if (object == nullptr) {
            return std::nullopt;
        }
        return as_agreed_before(call, collective, comm, *object, [&](PointToPoint& messages) -> std::optional<int> {
            const std::optional<int> tag = object->next_persistent_tag();
            return tag ? std::optional(messages.make_persistent(*tag, request)) : std::nullopt;
        });
    }
    return std::nullopt;
}

template <Function function, class Collective, class... Tail>
int run_collective(Call& call, Collective&& collective, const MPI_Comm comm, Tail... tail) {
    call.on(comm);
    collective.check();
    constexpr bool kBlocking = sizeof...(Tail) == 0;
    constexpr bool kReduces = coll::is_reduction(std::remove_cvref_t<Collective>::kind());
    const bool in_rank_order = kReduces && folds_in_rank_order(call, comm);
    bool second_step = true;
    if (OnNode here(call, comm, collective.kind(), tail...); here) {
        collective.describe(here);
        here.arguments.in_rank_order = in_rank_order;
        if (here.run(tail...)) {
            return MPI_SUCCESS;
        }
        second_step = kBlocking && !here.all_host();
    }
    if constexpr (kReduces) {
        if (in_rank_order) {
            return collective.run_in_rank_order(tail...);
        }
    }
    if (second_step) {
        if (const std::optional<int> outcome = run_as_agreed<function>(call, collective, comm, tail...)) {
            return *outcome;
        }
    }
    return collective.template run_staged<function>(tail...);
}

}  // namespace awaken::AWAKEN_ABI
