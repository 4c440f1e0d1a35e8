// Large collectives that pass through host memory, in chunks: while the MPI works on one, the next ones are copied out
// of the GPU and the ones before into it.
//
// The MPI must be given the same chunks by all members, though each sees only its own buffers. So they propose before
// each collective that is large enough to be cut, which its arguments tell all of them alike: a reduction of one word,
// little beside what follows. Where nobody has device memory, the collective is left whole, and proposals become rare.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "base/error.h"
#include "call/call.h"
#include "call/stage.h"
#include "coll/collective_comm.h"
#include "coll/device/selection.h"
#include "coll/inter_node_ccl.h"
#include "transfer/device_copies.h"

namespace awaken::AWAKEN_ABI {

class Pipelined {
  public:
    /// A collective of `count` elements of `type`, which is where it may be cut. `blocks`: a block of so many elements
    /// for each of so many members lies in some buffers, one after another. Each is then cut alike, and all members'
    /// memory passes through staging buffers, where the pieces of one chunk lie together.
    Pipelined(Call& call, MPI_Comm comm, std::int64_t count, MPI_Datatype type, std::int64_t blocks = 1);
    ~Pipelined();
    Pipelined(const Pipelined&) = delete;
    Pipelined& operator=(const Pipelined&) = delete;
    /// False: it is too small, or there is no proposal. All members come to the same answer. Not to be asked twice.
    [[nodiscard]] explicit operator bool();

    [[nodiscard]] std::int64_t size() const noexcept { return _count; }
    /// This member's buffers, as far as they count; both may be the same one.
    void reads(const void* buffer) { look_at(_from, buffer, 1); }
    void writes(void* buffer) { look_at(_to, buffer, 1); }
    /// The same of a buffer with a block for each member.
    void reads_blocks(const void* buffer) { look_at(_from, buffer, _blocks); }
    void writes_blocks(void* buffer) { look_at(_to, buffer, _blocks); }

    /// What is written comes from a place of its own, not from where was read: MPICH 4.0 crashes in MPI_Reduce of large
    /// data in place.
    void keep_apart() noexcept { _apart = true; }
    /// Instead, where some of this member's buffers has gaps, as others' may not: they cannot be cut, but be sent.
    void has_gaps(const void* buffer, std::int64_t count, MPI_Datatype type);
    /// What else than chunks can do it.
    struct Alternatives {
        std::optional<coll::Kind> kind = {};  ///< as the table knows it; nothing: it does not
        std::uint32_t code = 0;               ///< of a reduction: see kernels::code_of; 0: there are no kernels for it
        bool levels = false;                  ///< this member's part of it
        bool messages = false;                ///< as for levels: this member would do it so (see point_to_point.h)
        /// NCCL or RCCL, with these arguments; who is in the communicator is found out.
        std::optional<coll::CclCommunicator::Operation> library = {};
    };
    /// How it is done; all members ask, or none does.
    enum class Method : std::uint8_t {
        whole,
        chunks,    ///< run()
        levels,    ///< by nodes and inter-node communicators (see hierarchical.h); everybody passes device memory
        messages,  ///< one for each part
        library    ///< run_library()
    };
    [[nodiscard]] Method agreed(const Alternatives& means);

    /// What a chunk is for the MPI.
    struct Chunk {
        /// Where its staging buffer is: what is read was put there, and what is written will be taken from there. Null
        /// when all of this member's buffers are host memory, which the MPI may then use themselves.
        std::byte* staged;
        std::byte* result;  ///< where what is written is taken from: the staging buffer, unless they are kept apart
        std::int64_t first, count;  ///< elements
    };
    /// Calls `native` for each chunk in order; it returns an MPI error code. Throws Error when this member's copies
    /// failed, after it has taken part in all chunks, since the others wait for it.
    [[nodiscard]] int run(const std::function<int(const Chunk&)>& native);
    /// Throws Error.
    void run_library();

  private:
    struct Side {
        std::byte* address = nullptr;  ///< of the first byte of data; null: there is none
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
    [[nodiscard]] coll::Occasion occasion(const Alternatives& means) const;
    [[nodiscard]] bool begin_library(const Alternatives& means);
    [[nodiscard]] InFlight load(std::int64_t first);
    void store(InFlight& piece);
    void finish(InFlight& piece) noexcept;
    void copy(InFlight& piece, const Side& side, bool to_block);

    Call& _call;
    const MPI_Comm _communicator;
    const std::int64_t _count;
    const MPI_Datatype _type;
    const std::int64_t _blocks;
    PipelineProposals* _proposals = nullptr;
    InterNodeCcl* _inter_node_ccl = nullptr;  ///< that has begun
    std::optional<coll::CclCommunicator::Operation> _operation;
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
