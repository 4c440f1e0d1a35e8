// SPDX-License-Identifier: Apache-2.0
// A gather, scatter, allgather or all-to-all as messages between its members. The messages take their usual paths:
// directly from GPU to GPU on a node, in fragments to other nodes. If parts vary and all members can use it, NCCL or
// RCCL moves them instead.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "call/call.h"
#include "coll/agreement.h"
#include "coll/messages.h"

namespace awaken::AWAKEN_ABI {

class PointToPoint {
  public:
    PointToPoint(Call& call, MPI_Comm comm, coll::Kind kind, const Group& group)
        : _call(call), _communicator(comm), _kind(kind), _group(group) {}

    /// The data that goes to a member and comes from it, this member included. The other member receives or sends as
    /// many bytes. Members that are not named exchange nothing. `member`: of the remote group, where there is one.
    void sends(const int to, const BufferView& data) { add(_sent, to, data); }
    void receives(const int from, const BufferView& data) { add(_received, from, data); }
    /// In place: what this member would send to itself is already where it belongs. To be called after the functions
    /// above.
    void leaves_own_part() noexcept;

    /// The largest part.
    [[nodiscard]] std::uint64_t bytes() const noexcept;
    /// Says what this member passes, where only it knows how much that is.
    void propose(Agreement& agreement, const Proposals& proposals, bool on_device) const;
    /// Of all parts that are sent, or received, whichever are more.
    [[nodiscard]] std::int64_t moved_bytes() const noexcept;

    /// The forms. All return the error code for the program.
    [[nodiscard]] int run();
    [[nodiscard]] int start(MPI_Request* request);
    /// `tag`: of no other persistent request on the communicator.
    [[nodiscard]] int make_persistent(int tag, MPI_Request* request);

  private:
    using Parts = std::vector<BufferView>;  ///< by member; empty: none
    using LibraryBlock = coll::CclCommunicator::Operation::Block;

    void add(Parts& parts, int member, const BufferView& data);
    [[nodiscard]] bool add_parts_of_library(const Parts& parts, std::vector<LibraryBlock>& list, int& device) const;
    void exchange(const MessageList& list);
    [[nodiscard]] MessageRoute route() const;
    [[nodiscard]] MessageList all_at_once(int tag) const;
    void in_turn();
    void around_a_ring();

    Call& _call;
    const MPI_Comm _communicator;
    const coll::Kind _kind;
    const Group _group;
    Parts _sent, _received;
    std::optional<Error> _failure;
    int _error = MPI_SUCCESS;
};

}  // namespace awaken::AWAKEN_ABI
