// SPDX-License-Identifier: Apache-2.0
// Large collectives that pass through host memory, in chunks. While the MPI works on one chunk, the next ones are
// copied out of the GPU and the ones before into it.
//
// All members must give the MPI the same chunks, so they agree before each collective that is large enough to be cut
// (agreement.h). A collective's arguments tell all members alike whether it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "base/error.h"
#include "call/call.h"
#include "call/stage.h"
#include "coll/agreement.h"
#include "transfer/device_copies.h"

namespace awaken::AWAKEN_ABI {

class Pipelined {
  public:
    /// A collective of `count` elements of `type`, which may be cut between elements. `blocks`: some buffers hold a
    /// block of `count` elements for each of so many members, one after another. All blocks are then cut alike, and all
    /// members' memory passes through staging buffers, where the pieces of one chunk lie together.
    Pipelined(Call& call, MPI_Comm comm, std::int64_t count, MPI_Datatype type, std::int64_t blocks = 1);
    Pipelined(const Pipelined&) = delete;
    Pipelined& operator=(const Pipelined&) = delete;
    /// What the members know alike, if they are to agree. Null: the collective is too small, it is none of those with a
    /// proposal, or the communicator is an intercommunicator, whose groups may see different sizes. To be called once
    /// only.
    [[nodiscard]] Proposals* proposals();

    [[nodiscard]] std::int64_t size() const noexcept { return _count; }
    /// This member's buffers, where the collective uses them. Both may be the same one.
    void reads(const void* buffer) { look_at(_from, buffer, 1); }
    void writes(void* buffer) { look_at(_to, buffer, 1); }
    /// The same for a buffer with a block for each member.
    void reads_blocks(const void* buffer) { look_at(_from, buffer, _blocks); }
    void writes_blocks(void* buffer) { look_at(_to, buffer, _blocks); }

    /// The MPI writes to memory apart from what it reads, since MPICH 4.0 crashes in MPI_Reduce of large data in place.
    void keep_apart() noexcept { _apart = true; }
    /// To be called in place of these when one of this member's buffers has gaps, which other members' buffers may not
    /// have. Such buffers cannot be cut, but they can be sent.
    void has_gaps(const void* buffer, std::int64_t count, MPI_Datatype type);
    /// What can do the collective besides chunks.
    struct Alternatives {
        std::uint32_t code = 0;     ///< of a reduction: see kernels::code_of; 0: no kernels for it
        bool hierarchical = false;  ///< this member could do it hierarchically
        bool messages = false;      ///< this member would do it by messages (see point_to_point.h)
        /// NCCL or RCCL, with these arguments.
        std::optional<coll::CclCommunicator::Operation> library = {};
    };
    /// Says what this member passes, and what it could do.
    void propose(Agreement& agreement, const Alternatives& means);
    /// Of one member's part, and of this member's larger buffer.
    [[nodiscard]] std::int64_t bytes() const noexcept { return _count * _element_bytes; }
    [[nodiscard]] std::int64_t moved_bytes() const noexcept { return bytes() * std::max(_from.rows, _to.rows); }

    /// What the MPI gets for one chunk.
    struct Chunk {
        /// The staging buffer, which holds what the MPI reads, and receives what it writes. Null when all of this
        /// member's buffers are host memory, which the MPI may then use itself.
        std::byte* staged;
        std::byte* result;          ///< where the MPI writes: the staging buffer, unless keep_apart() was called
        std::int64_t first, count;  ///< elements
    };
    /// Calls `native`, which returns an MPI error code, for each chunk in order. Throws Error when this member's copies
    /// failed. It does so after the member has taken part in all chunks, since the others wait for it.
    [[nodiscard]] int run(const std::function<int(const Chunk&)>& native);

  private:
    struct Side {
        std::byte* address = nullptr;  ///< first byte of data; null: there is none
        std::int64_t rows = 0;         ///< blocks
        gpu::PointerInfo info;
        bool served = false;
    };
    struct InFlight {
        std::int64_t first = 0, count = 0;
        transfer::StagingBlock block, result;
        std::vector<transfer::DeviceCopies::Copy> copies;
    };

    void look_at(Side& side, const void* buffer, std::int64_t rows);
    [[nodiscard]] int device_for_library(std::uint32_t code) const;
    [[nodiscard]] InFlight load(std::int64_t first);
    void store(InFlight& piece);
    void finish(InFlight& piece) noexcept;
    void copy(InFlight& piece, const Side& side, bool to_block);

    Call& _call;
    const MPI_Comm _communicator;
    const std::int64_t _count;
    const MPI_Datatype _type;
    const std::int64_t _blocks;
    std::int64_t _element_bytes = 0;
    std::int64_t _lead = 0;  ///< bytes between an element's address and its data
    std::int64_t _chunk_elements = 0;
    transfer::DeviceCopies* _copies = nullptr;
    bool _impossible = false;
    bool _gaps_on_device = false;
    bool _apart = false;
    Side _from, _to;
    std::optional<Error> _error;
};

}  // namespace awaken::AWAKEN_ABI
