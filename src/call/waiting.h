// Where calls may wait, for the sake of messages that go on only in calls of this process's.
//
// Most of what a process has under way goes on without it: by GPUs, by a thread that makes no MPI calls, by the MPI.
// Only a large message to another node does not, whose chunks are taken from the GPU and given to the MPI one after the
// other (internode/network.h). A thread that waits in the layer sends them meanwhile. One that is about to wait in the
// MPI itself, where the receiver may be waiting for it in turn, hands all of them over first, and as long as any thread
// may be there, new messages are handed over at once.
#pragma once

#include <cstdint>

#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

enum class Waits : std::uint8_t {
    nowhere,       ///< the function is local
    polls,         ///< so it is, but programs call it until something has happened
    in_the_layer,  ///< as long as Layer::owes_chunks(), which the function has to ask; else in the MPI
    in_the_mpi
};

/// Of a function that is served. What is not listed is taken to wait in the MPI, which is always right.
constexpr Waits where_it_waits(const Function function) noexcept {
    switch (function) {
        case Function::Isend:
        case Function::Isend_c:
        case Function::Issend:
        case Function::Issend_c:
        case Function::Irsend:
        case Function::Irsend_c:
        case Function::Bsend:
        case Function::Bsend_c:
        case Function::Ibsend:
        case Function::Ibsend_c:
        case Function::Irecv:
        case Function::Irecv_c:
        case Function::Imrecv:
        case Function::Imrecv_c:
        case Function::Isendrecv:
        case Function::Isendrecv_c:
        case Function::Isendrecv_replace:
        case Function::Isendrecv_replace_c:
        case Function::Send_init:
        case Function::Send_init_c:
        case Function::Ssend_init:
        case Function::Ssend_init_c:
        case Function::Rsend_init:
        case Function::Rsend_init_c:
        case Function::Bsend_init:
        case Function::Bsend_init_c:
        case Function::Recv_init:
        case Function::Recv_init_c:
        case Function::Start:
        case Function::Startall:
        case Function::Psend_init:
        case Function::Precv_init:
        case Function::Pready:
        case Function::Pready_range:
        case Function::Pready_list:
        case Function::Cancel:
        case Function::Request_free:
        case Function::Buffer_attach:
        case Function::Buffer_attach_c:
        case Function::Pack:
        case Function::Pack_c:
        case Function::Unpack:
        case Function::Unpack_c:
        case Function::Pack_external:
        case Function::Pack_external_c:
        case Function::Unpack_external:
        case Function::Unpack_external_c:
        case Function::File_read:
        case Function::File_read_c:
        case Function::File_read_at:
        case Function::File_read_at_c:
        case Function::File_iread:
        case Function::File_iread_c:
        case Function::File_iread_at:
        case Function::File_iread_at_c:
        case Function::File_iread_all:
        case Function::File_iread_all_c:
        case Function::File_iread_at_all:
        case Function::File_iread_at_all_c:
        case Function::File_write:
        case Function::File_write_c:
        case Function::File_write_at:
        case Function::File_write_at_c:
        case Function::File_iwrite:
        case Function::File_iwrite_c:
        case Function::File_iwrite_at:
        case Function::File_iwrite_at_c:
        case Function::File_iwrite_all:
        case Function::File_iwrite_all_c:
        case Function::File_iwrite_at_all:
        case Function::File_iwrite_at_all_c:
        case Function::Reduce_local:
        case Function::Reduce_local_c:
        case Function::Type_free:
        case Function::Comm_set_errhandler:
        case Function::Comm_get_info:
        case Function::Win_get_info:
        case Function::Session_get_info:
        case Function::Win_get_attr:
            return Waits::nowhere;
        case Function::Test:
        case Function::Testall:
        case Function::Testany:
        case Function::Testsome:
        case Function::Request_get_status:
        case Function::Request_get_status_all:
        case Function::Request_get_status_any:
        case Function::Request_get_status_some:
        case Function::Parrived:
        case Function::Iprobe:
        case Function::Improbe:
            return Waits::polls;
        case Function::Send:
        case Function::Send_c:
        case Function::Ssend:
        case Function::Ssend_c:
        case Function::Rsend:
        case Function::Rsend_c:
        case Function::Recv:
        case Function::Recv_c:
        case Function::Mrecv:
        case Function::Mrecv_c:
        case Function::Sendrecv:
        case Function::Sendrecv_c:
        case Function::Sendrecv_replace:
        case Function::Sendrecv_replace_c:
        case Function::Wait:
        case Function::Waitall:
        case Function::Waitany:
        case Function::Waitsome:
        case Function::Probe:
        case Function::Mprobe:
            return Waits::in_the_layer;
        default:
            return Waits::in_the_mpi;
    }
}

/// A call that may wait there, while it lasts. Who only looks whether something has happened takes along what else
/// there is to do.
class WaitingCall {
  public:
    WaitingCall(Layer& owner, const Waits where)
        : _owner(owner), _where(where), _counted(waits() && owner.several_threads()) {
        if (where == Waits::nowhere) {
            return;
        }
        owner.node_peers.settle_sources();
        if (where == Waits::polls && owner.moves_chunks()) {
            owner.requests.advance_exchanges();
        }
        if (_counted) {
            owner.requests.enter_waiting();
        }
        if (where == Waits::in_the_mpi && owner.owes_chunks()) {
            owner.requests.hand_over_exchanges();
        }
    }
    ~WaitingCall() {
        if (_counted) {
            _owner.requests.leave_waiting();
        }
        if (waits()) {
            // Whoever has asked meanwhile where this process is (protocol/reachability.h) is to know that it is back.
            _owner.node_peers.look_at_network();
        }
    }
    WaitingCall(const WaitingCall&) = delete;
    WaitingCall& operator=(const WaitingCall&) = delete;

  private:
    [[nodiscard]] bool waits() const noexcept { return _where >= Waits::in_the_layer; }

    Layer& _owner;
    const Waits _where;
    const bool _counted;
};

}  // namespace awaken::AWAKEN_ABI
