// SPDX-License-Identifier: Apache-2.0
// What one member passes to a collective of which all members see how much is moved, and by what it could do it. The
// members agree on one algorithm (agreement.h) before each such collective that is large.
//
// One that the MPI does may go in chunks: while the MPI works on one chunk, the next ones are copied out of the GPU and
// the ones before into it. All members must give the MPI the same chunks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/error.h"
#include "call/call.h"
#include "coll/agreement.h"
#include "transfer/device_copies.h"

namespace awaken::AWAKEN_ABI {

class Offer {
  public:
    /// A collective of `count` elements of `type`. `blocks`: some buffers hold so many for each of so many members.
    Offer(Call& call, MPI_Comm comm, std::int64_t count, MPI_Datatype type, std::int64_t blocks = 1);

    /// What the members know alike, if they are to agree. Null: the collective is too small, or the communicator is an
    /// intercommunicator, whose groups may see different sizes. To be called once only.
    [[nodiscard]] Proposals* proposals() const;

    /// The buffers that the collective uses on this member. Both may be the same one.
    void reads(const void* buffer, std::int64_t count, MPI_Datatype type) { look_at(_from, buffer, count, type); }
    void writes(void* buffer, std::int64_t count, MPI_Datatype type) { look_at(_to, buffer, count, type); }

    std::uint32_t code = 0;     ///< of a reduction: see kernels::code_of; 0: no kernels for it
    bool chunks = false;        ///< elements of the buffers belong together by their number, so that they can be cut
    bool hierarchical = false;  ///< it could be done hierarchically
    bool messages = false;      ///< it could be done by messages
    /// NCCL or RCCL, with these arguments.
    std::optional<coll::CclCommunicator::Operation> library;

    void propose(Agreement& agreement) const;
    /// Of one member's part, and of this member's larger buffer.
    [[nodiscard]] std::int64_t bytes() const noexcept { return _count * _element_bytes; }
    [[nodiscard]] std::int64_t moved_bytes() const noexcept { return std::max(_from.bytes, _to.bytes); }

    struct Chunk {
        /// The staging buffer, which holds what the MPI reads, and receives what it writes. Null when all of this
        /// member's buffers are host memory, which the MPI may then use itself.
        std::byte* staged;
        std::int64_t first, count;  ///< elements
    };
    /// Calls `native`, which returns an MPI error code, for each chunk in order. Throws Error when this member's copies
    /// failed. It does so after the member has taken part in all chunks, since the others wait for it.
    [[nodiscard]] int run_in_chunks(const Proposals& proposals, const std::function<int(const Chunk&)>& native);

  private:
    struct Side {
        std::byte* address = nullptr;  ///< first byte of data; null: there is none
        std::int64_t bytes = 0;
        gpu::PointerInfo info;
        bool served = false;  ///< not plain host memory
        bool cut = false;     ///< one run of bytes in one memory
    };
    struct InFlight;

    void look_at(Side& side, const void* buffer, std::int64_t count, MPI_Datatype type);
    [[nodiscard]] int device_for_library() const;
    [[nodiscard]] transfer::DeviceCopies::Copy copy(const InFlight& piece, const Side& side, bool to_block);
    [[nodiscard]] InFlight load(std::int64_t first, std::int64_t count);
    void finish(InFlight& piece) noexcept;
    void store(InFlight& piece) noexcept;

    Call& _call;
    const MPI_Comm _communicator;
    const std::int64_t _count, _element_bytes, _blocks;
    std::int64_t _lead = 0;  ///< bytes between an element's address and its data
    Side _from, _to;
    std::optional<Error> _error;
};

}  // namespace awaken::AWAKEN_ABI
