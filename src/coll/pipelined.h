// Large collectives that pass through host memory, in chunks. While the MPI works on one chunk, the next ones are
// copied out of the GPU and the ones before into it.
//
// All members must give the MPI the same chunks, though each sees only its own buffers. So they make a proposal before
// each collective that is large enough to be cut. A collective's arguments tell all members alike whether it is. The
// proposal is a reduction of one word, which costs little beside the collective. If no member has device memory, the
// collective is left whole, and proposals become rare.
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
    /// A collective of `count` elements of `type`, which may be cut between elements. `blocks`: some buffers hold a
    /// block of `count` elements for each of so many members, one after another. All blocks are then cut alike, and all
    /// members' memory passes through staging buffers, where the pieces of one chunk lie together.
    Pipelined(Call& call, MPI_Comm comm, std::int64_t count, MPI_Datatype type, std::int64_t blocks = 1);
    ~Pipelined();
    Pipelined(const Pipelined&) = delete;
    Pipelined& operator=(const Pipelined&) = delete;
    /// False: the collective is too small, or there is no proposal. All members come to the same answer. To be called
    /// once only.
    [[nodiscard]] explicit operator bool();

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
        std::optional<coll::Kind> kind = {};  ///< as the table knows it; nothing: the table does not know it
        std::uint32_t code = 0;               ///< of a reduction: see kernels::code_of; 0: no kernels for it
        bool hierarchical = false;            ///< this member could do it hierarchically
        bool messages = false;                ///< this member would do it by messages (see point_to_point.h)
        /// NCCL or RCCL, with these arguments. This class fills in who is in the communicator.
        std::optional<coll::CclCommunicator::Operation> library = {};
    };
    /// How the collective is done. All members ask, or none does.
    enum class Method : std::uint8_t {
        whole,
        chunks,        ///< run()
        hierarchical,  ///< hierarchically (see hierarchical.h); all members pass device memory
        messages,      ///< one for each part
        library        ///< run_library()
    };
    [[nodiscard]] Method agreed(const Alternatives& means);

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
    /// Throws Error.
    void run_library();

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
    InterNodeCcl* _inter_node_ccl = nullptr;  ///< set once begin() has succeeded
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
