// Collectives of a communicator whose members are all on this node, as far as its GPUs do them: what stands between an
// MPI call's arguments and a coll::Team.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "call/call.h"
#include "call/stage.h"
#include "coll/team.h"

namespace awaken::AWAKEN_ABI {

/// Whether kernels can do this reduction.
[[nodiscard]] bool has_kernel(MPI_Op op, MPI_Datatype type);
/// The code of the kernels for it (see kernels::code_of); 0 when there are none.
[[nodiscard]] std::uint32_t kernel_code(MPI_Op op, MPI_Datatype type);

/// One collective call. Where there is a team, every member goes through this with its own arguments, whatever they
/// are: nobody can know by itself what the others pass.
class OnNode {
  public:
    /// The tail is what the forms of a collective differ in, see run.h.
    OnNode(Call& call, MPI_Comm comm, coll::Kind kind) : OnNode(call, comm, kind, layer().neighbours.team_of(comm)) {}
    OnNode(Call& call, MPI_Comm comm, coll::Kind kind, const MPI_Request*)
        : OnNode(call, comm, kind, layer().neighbours.known_team_of(comm)) {
        arguments.compulsory = _team != nullptr && _team->agreed(kind);
    }

    /// False: there is no team, and the rest of this must not be used.
    [[nodiscard]] explicit operator bool() const noexcept { return _team != nullptr; }
    [[nodiscard]] int size() const noexcept { return _team->members(); }
    [[nodiscard]] int rank() const noexcept { return _team->own(); }
    [[nodiscard]] bool is_root() const noexcept { return arguments.root == rank(); }

    /// What is reduced: `count` elements.
    void reduces(MPI_Op op, MPI_Datatype type, std::int64_t count);
    /// This member's buffers, as far as they count: `count` elements of `type` in one stretch.
    void sends(const void* buffer, std::int64_t count, MPI_Datatype type);
    void receives(const void* buffer, std::int64_t count, MPI_Datatype type);
    /// Buffers in parts: `counts` elements each, `displacements` extents of `type` from the buffer's begin.
    template <class Count, class Displacement>
    void sends_parts(const void* buffer, const Count* counts, const Displacement* displacements, MPI_Datatype type) {
        parts(arguments.send, _send_offsets, nullptr, buffer, counts, displacements, type);
        arguments.send_offsets = _send_offsets;
    }
    template <class Count, class Displacement>
    void receives_parts(const void* buffer, const Count* counts, const Displacement* displacements, MPI_Datatype type) {
        parts(arguments.receive, _receive_offsets, &_receive_bytes, buffer, counts, displacements, type);
        arguments.receive_offsets = _receive_offsets;
        arguments.bytes_from = _receive_bytes;
    }
    /// Bytes of `count` elements.
    [[nodiscard]] std::uint64_t bytes_of(std::int64_t count, MPI_Datatype type) const;

    /// Whatever is not said by the functions above.
    coll::Arguments arguments;

    /// Does the collective, or finds out that it is not ours: then false, and the MPI has to. Throws Error.
    [[nodiscard]] bool run();
    /// After run(): nobody has passed device memory.
    [[nodiscard]] bool all_host() const noexcept { return _all_host; }
    /// Nothing but that: returns when all have come.
    void meet() { static_cast<void>(run()); }
    /// The nonblocking form: begins it. False: the MPI has to.
    [[nodiscard]] bool run(MPI_Request* request);

  private:
    OnNode(Call& call, MPI_Comm comm, coll::Kind kind, coll::Team* team);
    void leave_to_mpi_what_is_wrong();
    void try_reach();
    void keep_mpi_going(unsigned turn);
    std::unique_ptr<coll::Round> finished_round();
    [[nodiscard]] coll::Buffer look_at(Access access, const void* buffer, std::int64_t count, MPI_Datatype type);
    template <class Count, class Displacement>
    void parts(coll::Buffer& all, std::vector<std::uint64_t>& offsets, std::vector<std::uint64_t>* bytes,
               const void* buffer, const Count* counts, const Displacement* displacements, MPI_Datatype type);

    Call& _call;
    MPI_Comm _communicator;
    coll::Team* const _team;
    bool _all_host = false;
    Stage _stage;
    std::vector<std::uint64_t> _send_offsets, _receive_offsets, _receive_bytes;
};

template <class Count, class Displacement>
void OnNode::parts(coll::Buffer& all, std::vector<std::uint64_t>& offsets, std::vector<std::uint64_t>* const bytes,
                   const void* const buffer, const Count* const counts, const Displacement* const displacements,
                   const MPI_Datatype type) {
    const auto members = static_cast<std::size_t>(size());
    arguments.varying = true;
    offsets.assign(members, 0);
    if (bytes != nullptr) {
        bytes->assign(members, 0);
    }
    if (type == MPI_DATATYPE_NULL) {
        arguments.obstacle = "a rank passes no datatype";
        return;
    }
    MPI_Aint lower_bound = 0, extent = 0;
    layer().real.Type_get_extent(type, &lower_bound, &extent);
    // One stretch from the first part to the end of the last: what lies between them belongs to the program.
    std::int64_t begin = 0, end = 0;
    bool any = false;
    for (std::size_t i = 0; i < members; ++i) {
        const auto count = static_cast<std::int64_t>(counts[i]);
        if (count == 0) {
            continue;
        }
        const auto at = static_cast<std::int64_t>(displacements[i]);
        begin = any ? std::min(begin, at) : at;
        end = any ? std::max(end, at + count) : at + count;
        any = true;
    }
    if (!any) {
        return;
    }
    all = look_at(bytes != nullptr ? Access::inout : Access::in, static_cast<const std::byte*>(buffer) + begin * extent,
                  end - begin, type);
    for (std::size_t i = 0; i < members; ++i) {
        if (counts[i] == 0) {
            continue;
        }
        offsets[i] = static_cast<std::uint64_t>((static_cast<std::int64_t>(displacements[i]) - begin) * extent);
        const std::uint64_t part = bytes_of(static_cast<std::int64_t>(counts[i]), type);
        arguments.bytes = std::max(arguments.bytes, part);
        if (bytes != nullptr) {
            (*bytes)[i] = part;
        }
    }
}

}  // namespace awaken::AWAKEN_ABI
