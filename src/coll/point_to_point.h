// A gather, scatter, allgather or all-to-all as messages between its members. The messages take their usual paths:
// directly from GPU to GPU on a node, in fragments to other nodes. If parts vary and all members can use it, NCCL or
// RCCL moves them instead.
//
// All members have to do the collective in the same way. If all of them see how much is moved, the proposals on large
// collectives decide (see pipelined.h). If the parts vary, no member knows what the others move, so the members make a
// proposal before each collective. As long as nothing comes of the proposals, they become rare.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/error.h"
#include "call/call.h"
#include "coll/collective_comm.h"
#include "coll/device/plan.h"
#include "coll/inter_node_ccl.h"
#include "coll/messages.h"

namespace awaken::AWAKEN_ABI {

class PointToPoint {
  public:
    PointToPoint(Call& call, MPI_Comm comm, coll::Kind kind);
    ~PointToPoint();
    PointToPoint(const PointToPoint&) = delete;
    PointToPoint& operator=(const PointToPoint&) = delete;
    /// False: there is no proposal before this collective of varying parts, and the MPI does it. All members come to
    /// the same answer. To be called once only.
    [[nodiscard]] explicit operator bool();

    [[nodiscard]] int rank() const noexcept { return _rank; }

    /// The data that goes to a member and comes from it, this member included. The other member receives or sends as
    /// many bytes. Members that are not named exchange nothing.
    void sends(int to, const void* buffer, std::int64_t count, MPI_Datatype type) {
        add(_sent, to, buffer, count, type);
    }
    void receives(int from, const void* buffer, std::int64_t count, MPI_Datatype type) {
        add(_received, from, buffer, count, type);
    }
    /// The same for a buffer with a part for each member, `displacements` in extents of the type.
    template <class Counts, class Displacements>
    void sends_parts(const void* buffer, Counts counts, Displacements displacements, MPI_Datatype type) {
        add_parts(_sent, buffer, counts, displacements, type);
    }
    template <class Counts, class Displacements>
    void receives_parts(const void* buffer, Counts counts, Displacements displacements, MPI_Datatype type) {
        add_parts(_received, buffer, counts, displacements, type);
    }
    /// The same with a type for each part, and displacements in bytes.
    template <class Counts, class Displacements, class Types>
    void sends_typed_parts(const void* buffer, Counts counts, Displacements displacements, Types types) {
        add_typed_parts(_sent, buffer, counts, displacements, types);
    }
    template <class Counts, class Displacements, class Types>
    void receives_typed_parts(const void* buffer, Counts counts, Displacements displacements, Types types) {
        add_typed_parts(_received, buffer, counts, displacements, types);
    }
    /// The same for parts of one size that lie one after another.
    void sends_blocks(const void* buffer, std::int64_t count, MPI_Datatype type) {
        add_blocks(_sent, buffer, count, type);
    }
    void receives_blocks(const void* buffer, std::int64_t count, MPI_Datatype type) {
        add_blocks(_received, buffer, count, type);
    }
    /// In place: what this member would send to itself is already where it belongs. To be called after the functions
    /// above.
    void leaves_own_part() noexcept;

    /// To be called when some argument is wrong, so that the MPI reports the error.
    void leave_to_mpi() noexcept { _left_to_mpi = true; }
    /// Whether all members do the collective by messages or by the library. All ask, or none does.
    [[nodiscard]] bool agreed();
    /// Returns the error code for the program.
    [[nodiscard]] int run();

  private:
    struct Block {
        std::byte* address = nullptr;
        std::int64_t count = 0;
        MPI_Datatype type = MPI_DATATYPE_NULL;
        std::uint64_t bytes = 0;
    };
    using Blocks = std::vector<Block>;  ///< by member; empty: none
    using LibraryBlock = coll::CclCommunicator::Operation::Block;
    struct Leg {
        int member;
        Block part;
    };

    void add(Blocks& parts, int member, const void* buffer, std::int64_t count, MPI_Datatype type);
    void add_blocks(Blocks& parts, const void* buffer, std::int64_t count, MPI_Datatype type);
    template <class Counts, class Displacements>
    void add_parts(Blocks& parts, const void* buffer, Counts counts, Displacements displacements, MPI_Datatype type);
    template <class Counts, class Displacements, class Types>
    void add_typed_parts(Blocks& parts, const void* buffer, Counts counts, Displacements displacements, Types types);
    [[nodiscard]] static std::int64_t extent_of(MPI_Datatype type);
    [[nodiscard]] bool is_device_memory(const Blocks& parts) const;
    [[nodiscard]] bool begin_library();
    [[nodiscard]] bool add_parts_of_library(const Blocks& parts, std::vector<LibraryBlock>& list, int& device) const;
    void note(const int error) noexcept { _error = _error != MPI_SUCCESS ? _error : error; }
    [[nodiscard]] static const Block& block_of(const Blocks& parts, int member);
    void exchange(const std::vector<Leg>& receives, const std::vector<Leg>& sends);
    void in_turn();
    void around_a_ring();

    Call& _call;
    const MPI_Comm _communicator;
    const coll::Kind _kind;
    int _rank = 0, _size = 0;
    PipelineProposals* _proposals = nullptr;
    MPI_Comm _own = MPI_COMM_NULL;  ///< the communicator for the messages
    Blocks _sent, _received;
    InterNodeCcl* _inter_node_ccl = nullptr;  ///< set once its begin() has succeeded
    coll::CclCommunicator::Operation _operation;
    bool _left_to_mpi = false;
    std::optional<Error> _failure;
    int _error = MPI_SUCCESS;
};

template <class Counts, class Displacements>
void PointToPoint::add_parts(Blocks& parts, const void* const buffer, const Counts counts,
                             const Displacements displacements, const MPI_Datatype type) {
    const std::int64_t extent = extent_of(type);
    for (int member = 0; member < _size; ++member) {
        add(parts, member, static_cast<const std::byte*>(buffer) + displacements[member] * extent,
            static_cast<std::int64_t>(counts[member]), type);
    }
}

template <class Counts, class Displacements, class Types>
void PointToPoint::add_typed_parts(Blocks& parts, const void* const buffer, const Counts counts,
                                   const Displacements displacements, const Types types) {
    for (int member = 0; member < _size; ++member) {
        add(parts, member, static_cast<const std::byte*>(buffer) + displacements[member],
            static_cast<std::int64_t>(counts[member]), types[member]);
    }
}

}  // namespace awaken::AWAKEN_ABI
