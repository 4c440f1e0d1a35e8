// SPDX-License-Identifier: Apache-2.0
// What a collective tries, in order. A collective is a class that describes one call to each strategy; no strategy
// knows another, or which collective it serves.
//   1. the node's GPUs (on_node.h), which the members agree on from what they pass
//   2. what the members of several nodes agree on (agreement.h), for large data, or parts that vary: NCCL or RCCL,
//      messages, hierarchically, or chunks through host memory
//   3. the MPI, with staging buffers
// The nonblocking and persistent forms may not wait for the members. They take the second step for exchanges whose
// kind the members have agreed on before, as messages.
//
// A collective has these members:
//   kAgreement                  how its members agree in the second step
//   kind()                      as the table of strategies knows it
//   check()                     throws ClassedError when an argument is wrong by itself
//   describe(OnNode&)           its buffers and arguments, for the first strategy
//   run_staged<function>(tail)  the last strategy
// and for the second step, by kAgreement:
//   exchange  group(), may_agree(), is_large(), is_on_device(), describe(PointToPoint&)
//   chunks    cut(): what may be cut; describe(Pipelined&): the buffers, and what else could do the collective;
//             run_chunk<function>(chunk): one call of the MPI; run_hierarchically(), where that may be agreed
//   both      all of these: chunks, or messages
#pragma once

#include <cstdint>
#include <optional>

#include "coll/agreement.h"
#include "coll/collective_comm.h"
#include "coll/on_node.h"
#include "coll/pipelined.h"
#include "coll/point_to_point.h"
#include "coll/run.h"

namespace awaken::AWAKEN_ABI {

enum class Agree : std::uint8_t {
    no,        ///< there is no second step
    exchange,  ///< members exchange parts, of which each sees only its own
    chunks,    ///< all members see how much is moved
    both       ///< members exchange parts of one size
};

/// What Pipelined may cut.
struct Cuttable {
    std::int64_t count = 0;
    MPI_Datatype type = MPI_BYTE;
    std::int64_t blocks = 1;
};

template <class Collective>
constexpr bool kIsExchange = Collective::kAgreement == Agree::exchange || Collective::kAgreement == Agree::both;
template <class Collective>
constexpr bool kIsCut = Collective::kAgreement == Agree::chunks || Collective::kAgreement == Agree::both;

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
        case Strategy::library:
            agreement.run_library(messages.moved_bytes());
            return MPI_SUCCESS;
        case Strategy::point_to_point:
            return messages.run();
        default:
            return std::nullopt;
    }
}

/// The same where all members see how much is moved.
template <Function function, class Collective>
std::optional<int> cut_as_agreed(Call& call, Collective& collective, const MPI_Comm comm) {
    const Cuttable cut = collective.cut();
    Pipelined chunks(call, comm, cut.count, cut.type, cut.blocks);
    Proposals* const proposals = chunks.proposals();
    if (proposals == nullptr) {
        return std::nullopt;
    }
    const Pipelined::Alternatives means = collective.describe(chunks);
    Agreement agreement(call, comm, *proposals, collective.kind(), means.code,
                        static_cast<std::uint64_t>(chunks.bytes()), Agreement::Sizes::alike);
    chunks.propose(agreement, means);
    switch (agreement.reached()) {
        case Strategy::whole:
            return std::nullopt;
        case Strategy::library:
            agreement.run_library(chunks.moved_bytes());
            return MPI_SUCCESS;
        case Strategy::point_to_point:
            if constexpr (kIsExchange<Collective>) {
                PointToPoint messages(call, comm, collective.kind(), collective.group());
                collective.describe(messages);
                return messages.run();
            }
            return std::nullopt;
        case Strategy::hierarchical:
            if constexpr (requires { collective.run_hierarchically(); }) {
                if (const std::optional<int> outcome = collective.run_hierarchically()) {
                    return outcome;
                }
            }
            break;
        case Strategy::pipelined:
            break;
    }
    return chunks.run([&](const Pipelined::Chunk& chunk) { return collective.template run_chunk<function>(chunk); });
}

template <Function function, class Collective>
std::optional<int> run_as_agreed(Call& call, Collective& collective, const MPI_Comm comm) {
    if constexpr (kIsExchange<Collective>) {
        if (Collective::kAgreement == Agree::exchange || collective.group().between) {
            return exchange_as_agreed(call, collective, comm);
        }
    }
    if constexpr (kIsCut<Collective>) {
        return cut_as_agreed<function>(call, collective, comm);
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
std::optional<int> run_as_agreed(Call& call, Collective& collective, const MPI_Comm comm, MPI_Request* const request) {
    if constexpr (kIsExchange<Collective>) {
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
std::optional<int> run_as_agreed(Call& call, Collective& collective, const MPI_Comm comm, MPI_Info,
                                 MPI_Request* const request) {
    if constexpr (kIsExchange<Collective>) {
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
    bool second_step = true;
    if (OnNode here(call, comm, collective.kind(), tail...); here) {
        collective.describe(here);
        if (here.run(tail...)) {
            return MPI_SUCCESS;
        }
        second_step = kBlocking && !here.all_host();
    }
    if (second_step) {
        if (const std::optional<int> outcome = run_as_agreed<function>(call, collective, comm, tail...)) {
            return *outcome;
        }
    }
    return collective.template run_staged<function>(tail...);
}

}  // namespace awaken::AWAKEN_ABI
