// SPDX-License-Identifier: Apache-2.0
// Collectives whose members are all on this node, as far as the node's GPUs do them. This file leads from an MPI call's
// arguments to a coll::NodeComm.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "call/call.h"
#include "call/stage.h"
#include "coll/buffer_views.h"
#include "coll/collective_comm.h"
#include "coll/device/node_comm.h"

namespace awaken::AWAKEN_ABI {

/// One collective call. If there is a node communicator, every member goes through this class with its own arguments,
/// whatever they are, since no member can know by itself what the others pass.
class OnNode {
  public:
    /// The last parameters tell the forms of a collective apart, see run.h.
    OnNode(Call& call, MPI_Comm comm, coll::Kind kind) : OnNode(call, comm, kind, node_comm_of(comm)) {}
    OnNode(Call& call, MPI_Comm comm, coll::Kind kind, const MPI_Request*)
        : OnNode(call, comm, kind, known_node_comm_of(comm)) {
        arguments.compulsory = _node_comm != nullptr && _node_comm->agreed(kind);
    }
    OnNode(Call& call, MPI_Comm comm, coll::Kind kind, MPI_Info, const MPI_Request*) : OnNode(call, comm, kind) {
        _persistent = true;
    }

    /// False: there is no node communicator, and nothing else of this object may be used.
    [[nodiscard]] explicit operator bool() const noexcept { return _node_comm != nullptr; }
    [[nodiscard]] int size() const noexcept { return _node_comm->members(); }
    [[nodiscard]] int rank() const noexcept { return _node_comm->own(); }
    [[nodiscard]] bool is_root() const noexcept { return arguments.root == rank(); }

    /// What the collective reduces: `count` elements.
    void reduces(MPI_Op op, MPI_Datatype type, std::int64_t count);
    /// This member's buffers, where the collective uses them: `count` elements of `type` in one stretch.
    void sends(const void* buffer, std::int64_t count, MPI_Datatype type);
    void receives(const void* buffer, std::int64_t count, MPI_Datatype type);
    /// The same for one of the views of buffer_views.h.
    template <class View>
    void sends_view(const View& view) {
        if constexpr (View::kVarying) {
            sends(input_of(view));
        } else {
            sends(view.address, view.total(size()), view.type);
        }
    }
    template <class View>
    void receives_view(const View& view) {
        if constexpr (View::kVarying) {
            receives(input_of(view));
        } else {
            receives(view.address, view.total(size()), view.type);
        }
    }
    /// The parts that this member sends lie where those lie that it receives.
    void sends_received_parts() {
        _sends_received_parts = true;
        arguments.send_offsets = _receive_offsets;
    }
    /// Bytes of `count` elements.
    [[nodiscard]] std::uint64_t bytes_of(std::int64_t count, MPI_Datatype type) const;

    /// All arguments that the functions above do not set.
    coll::Arguments arguments;

    /// Does the collective. False: it is not ours, and the MPI has to do it. Throws Error.
    [[nodiscard]] bool run();
    /// After run(): no member has passed device memory.
    [[nodiscard]] bool all_host() const noexcept { return _all_host; }
    /// Only waits: returns when all members have come, and the MPI has taken in what they had sent before.
    void meet();
    /// The nonblocking form: begins the collective. False: the MPI has to do it.
    [[nodiscard]] bool run(MPI_Request* request);
    /// The persistent form: the members agree on whether each start is to be an operation of ours. False: the MPI has
    /// to do it.
    [[nodiscard]] bool run(MPI_Info info, MPI_Request* request);

  private:
    OnNode(Call& call, MPI_Comm comm, coll::Kind kind, coll::NodeComm* node_comm);
    void try_reach();
    std::unique_ptr<coll::CollectiveOp> finished_operation();
    [[nodiscard]] coll::Buffer look_at(Access access, const void* buffer, std::int64_t count, MPI_Datatype type);

    /// A buffer as the call describes it.
    struct Input {
        enum class Layout : std::uint8_t {
            whole,       ///< one part, for all members
            parts,       ///< of one type, and a whole number of its extents apart
            typed_parts  ///< of types of their own
        };
        std::vector<BufferView> parts;
        Layout layout = Layout::whole;
    };
    class Persistent;

    void sends(Input input);
    void receives(Input input);
    [[nodiscard]] bool asks();
    [[nodiscard]] std::unique_ptr<ProgressOp> begin();
    void refuse();
    void count_rank_order() const noexcept;
    template <class View>
    [[nodiscard]] Input input_of(const View& view) const {
        return {parts_of(view, size()), View::kTyped ? Input::Layout::typed_parts : Input::Layout::parts};
    }
    /// Looks at a buffer in parts, by member. Sets `offsets` to the place of each part in the buffer that takes part,
    /// and `bytes` (if there) to each part's length.
    void look_at_parts(coll::Buffer& all, std::vector<std::uint64_t>& offsets, std::vector<std::uint64_t>* bytes,
                       const Input& input);
    [[nodiscard]] bool is_one_stretch(const std::vector<BufferView>& parts, BufferView& stretch) const;
    [[nodiscard]] bool is_one_memory(const coll::Buffer& stretch, const std::vector<BufferView>& parts) const;
    [[nodiscard]] bool is_one_allocation(const std::vector<BufferView>& parts, coll::Buffer& all) const;
    /// Adds one more piece behind those that the buffer has. `alone`: the buffer has no other piece, and needs no list
    /// if this one is a run of bytes.
    void add_piece(coll::Buffer& all, Access access, const BufferView& part, bool alone);

    Call& _call;
    MPI_Comm _communicator;
    coll::NodeComm* const _node_comm;
    bool _all_host = false;
    Stage _stage;
    std::vector<std::uint64_t> _send_offsets, _receive_offsets, _receive_bytes;
    bool _sends_received_parts = false;
    bool _persistent = false;
    Input _sent, _received;  ///< for the persistent form, which looks at them again at each start
};

}  // namespace awaken::AWAKEN_ABI
