// SPDX-License-Identifier: Apache-2.0
// How the members of a communicator agree on a collective that the GPUs of one node cannot do among themselves: the
// communicator spans nodes, or a member passes host memory. Each member sees only its own buffers, and all have to do
// the collective in the same way. So each says in a proposal what it passes and which algorithms it could take, and all
// draw the same conclusion. A proposal is a reduction of one word.
//
// Where the arguments tell all members alike how much is moved, they propose only for what is large. Where parts vary,
// no member knows what the others move, and all propose each time. Proposals become rare as long as nothing comes of
// them.
//
// A nonblocking collective may not wait for a proposal. So the members agree beforehand, by kinds: from then on, those
// of a kind are messages, whatever the buffers are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call/call.h"
#include "coll/device/ccl_communicator.h"
#include "coll/device/plan.h"
#include "coll/device/selection.h"

namespace awaken::AWAKEN_ABI {

class InterNodeCcl;

/// How many collectives pass before the members propose again. The same on all members.
class Pause {
  public:
    /// False: the members do without a proposal. To be asked once for each collective.
    [[nodiscard]] bool is_over() noexcept {
        if (_skip == 0) {
            return true;
        }
        --_skip;
        return false;
    }
    void proposed(const bool something_came, const std::uint64_t most) noexcept {
        _length = something_came ? 0 : std::clamp<std::uint64_t>(_length * 2, 1, most);
        _skip = _length;
    }

  private:
    std::uint64_t _skip = 0, _length = 0;
};

/// What the members of a communicator know alike.
struct Proposals {
    std::uint64_t chunk_bytes = 0;
    int nodes = 1;               ///< the nodes that the members are on
    bool between = false;        ///< an intercommunicator
    bool all_can_track = false;  ///< all members complete nonblocking operations of the layer
    Pause large, varying, barriers;
    std::uint32_t nonblocking = 0;  ///< kinds, as bits, of which nonblocking collectives are messages

    /// Whether bytes in all blocks together are worth a proposal, or messages.
    [[nodiscard]] bool are_many(const std::int64_t bytes) const noexcept {
        return bytes >= static_cast<std::int64_t>(chunk_bytes / 4);
    }
    [[nodiscard]] bool agreed(const coll::Kind kind) const noexcept {
        return all_can_track && (nonblocking >> static_cast<unsigned>(kind) & 1U) != 0;
    }
};

/// One proposal. All members make it, or none does.
class Agreement {
  public:
    /// Whether all members see how much is moved.
    enum class Sizes : std::uint8_t { alike, varying };
    /// `bytes` as in coll::Occasion.
    Agreement(Call& call, MPI_Comm comm, Proposals& proposals, coll::Kind kind, std::uint32_t code, std::uint64_t bytes,
              Sizes sizes);
    ~Agreement();
    Agreement(const Agreement&) = delete;
    Agreement& operator=(const Agreement&) = delete;

    /// What the table chooses, and what it chooses where the library cannot be used.
    [[nodiscard]] coll::Algorithm chosen() const noexcept { return _chosen; }
    [[nodiscard]] coll::Algorithm chosen_without_library() const noexcept { return _otherwise; }

    void passes(bool device_memory, bool host_memory) noexcept;
    /// This member can do it so; staged: in chunks. `worthwhile`: for what this member moves.
    void offer(coll::Algorithm algorithm, bool worthwhile = true) noexcept;
    /// The same for NCCL or RCCL, if this process is ready to use it on that device.
    void offer_library(int device, const coll::CclCommunicator::Operation& operation, bool worthwhile = true);

    /// What all members do: ccl, point_to_point, hierarchical or staged.
    [[nodiscard]] coll::Algorithm reached();
    /// After reached(): whether all can do it in chunks.
    [[nodiscard]] bool in_chunks() const noexcept { return _in_chunks; }
    /// Does the collective, when that was agreed on, and waits for it. `bytes`: as the report counts them. Throws
    /// Error.
    void run_library(std::int64_t bytes);

  private:
    [[nodiscard]] coll::Algorithm conclude(std::uint32_t all);

    Call& _call;
    const MPI_Comm _communicator;
    Proposals& _proposals;
    const coll::Kind _kind;
    const std::uint32_t _code;
    const bool _varying;
    const coll::Algorithm _chosen, _otherwise;
    std::uint32_t _own;
    bool _in_chunks = false;
    InterNodeCcl* _library = nullptr;  ///< set once its begin() has succeeded
    coll::CclCommunicator::Operation _operation;
};

/// What this process has seen of nonblocking exchanges on a communicator that spans nodes.
struct NonblockingSeen {
    std::uint32_t called = 0;       ///< kinds, as bits; the same on all members
    std::uint32_t only_device = 0;  ///< kinds of which the last one passed device memory only
};
/// A barrier that also tells the members which kinds all of them have seen with device memory. Returns the MPI's error
/// code.
[[nodiscard]] int agree_in_barrier(MPI_Comm comm, Proposals& proposals, const NonblockingSeen& seen);

/// Combines what all members pass, by a bitwise or. On an intercommunicator, of both groups. Returns the MPI's error
/// code.
[[nodiscard]] int or_of_all(MPI_Comm comm, bool between, std::uint32_t own, std::uint32_t& all);

}  // namespace awaken::AWAKEN_ABI
