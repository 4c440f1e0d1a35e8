// What a collective tries, in order. A collective is a class that describes one call to each strategy; no strategy
// knows another, or which collective it serves.
//   1. the node's GPUs (on_node.h), which the members agree on from what they pass
//   2. what the members of several nodes agree on, for large data, or parts that vary: NCCL or RCCL, hierarchically,
//      messages, or chunks through host memory (pipelined.h, point_to_point.h)
//   3. the MPI, with staging buffers
// Only the blocking form takes the second step, since it waits for the members.
//
// A collective has these members:
//   kAgreement                  how its members agree in the second step
//   kind()                      as the table of strategies knows it
//   check()                     throws ClassedError when an argument is wrong by itself
//   describe(OnNode&)           its buffers and arguments, for the first strategy
//   run_staged<function>(tail)  the last strategy
// and for the second step, by kAgreement:
//   chunks    cut(): what may be cut; describe(Pipelined&): the buffers, and what else could do the collective;
//             run_chunk<function>(chunk): one call of the MPI; run_hierarchically(), where that may be agreed
//   messages  may_agree()
//   both      describe(PointToPoint&), where messages may be agreed
#pragma once

#include <cstdint>
#include <optional>

#include "coll/on_node.h"
#include "coll/pipelined.h"
#include "coll/point_to_point.h"
#include "coll/run.h"

namespace awaken::AWAKEN_ABI {

enum class Agreement : std::uint8_t {
    none,    ///< there is no second step
    chunks,  ///< all members see how much is moved
    messages
};

/// What Pipelined may cut.
struct Cuttable {
    bool may = true;  ///< false on an intercommunicator, for most
    std::int64_t count = 0;
    MPI_Datatype type = MPI_BYTE;
    std::int64_t blocks = 1;
};

/// Nothing: the MPI does it.
template <Function function, class Collective>
std::optional<int> run_as_agreed(Call& call, Collective& collective, const MPI_Comm comm, const bool all_host) {
    if constexpr (Collective::kAgreement == Agreement::messages) {
        PointToPoint messages(call, comm, collective.kind());
        if (!collective.may_agree() || all_host || !messages) {
            return std::nullopt;
        }
        collective.describe(messages);
        return messages.agreed() ? std::optional(messages.run()) : std::nullopt;
    } else if constexpr (Collective::kAgreement == Agreement::chunks) {
        const Cuttable cut = collective.cut();
        Pipelined chunks(call, comm, cut.count, cut.type, cut.blocks);
        if (!cut.may || all_host || !chunks) {
            return std::nullopt;
        }
        switch (chunks.agreed(collective.describe(chunks))) {
            case Pipelined::Method::whole:
                return std::nullopt;
            case Pipelined::Method::library:
                chunks.run_library();
                return MPI_SUCCESS;
            case Pipelined::Method::messages:
                if constexpr (requires(PointToPoint& messages) { collective.describe(messages); }) {
                    PointToPoint messages(call, comm, collective.kind());
                    collective.describe(messages);
                    return messages.run();
                }
                return std::nullopt;
            case Pipelined::Method::hierarchical:
                if constexpr (requires { collective.run_hierarchically(); }) {
                    if (const std::optional<int> outcome = collective.run_hierarchically()) {
                        return outcome;
                    }
                }
                break;
            case Pipelined::Method::chunks:
                break;
        }
        return chunks.run(
            [&](const Pipelined::Chunk& chunk) { return collective.template run_chunk<function>(chunk); });
    } else {
        return std::nullopt;
    }
}

template <Function function, class Collective, class... Tail>
int run_collective(Call& call, Collective&& collective, const MPI_Comm comm, Tail... tail) {
    call.on(comm);
    collective.check();
    bool all_host = false;
    if (OnNode here(call, comm, collective.kind(), tail...); here) {
        collective.describe(here);
        if (here.run(tail...)) {
            return MPI_SUCCESS;
        }
        all_host = here.all_host();
    }
    if constexpr (sizeof...(Tail) == 0) {
        if (const std::optional<int> outcome = run_as_agreed<function>(call, collective, comm, all_host)) {
            return *outcome;
        }
    }
    return collective.template run_staged<function>(tail...);
}

}  // namespace awaken::AWAKEN_ABI
