// Where calls may wait, for the sake of messages that go on only in calls of this process's.
//
// Most of what a process has under way goes on without it: by GPUs, by a thread that makes no MPI calls, by the MPI.
// Only a large message to another node does not, whose fragments are taken from the GPU and given to the MPI one after
// the other (internode/network.h). A thread that waits in the layer sends them meanwhile. One that is about to wait in
// the MPI itself, where the receiver may be waiting for it in turn, hands all of them over first, and as long as any
// thread may be there, new messages are handed over at once.
#pragma once

#include "call/layer.h"
#include "loader/function_traits.h"

namespace awaken::AWAKEN_ABI {

using loader::Waits;

/// A call that may wait there, while it lasts. Who only looks whether something has happened takes along what else
/// there is to do.
class WaitingCall {
  public:
    WaitingCall(Layer& owner, const Waits where)
        : _owner(owner), _where(where), _counted(waits() && owner.several_threads()) {
        if (where == Waits::nowhere) {
            return;
        }
        owner.node_peers.ask_readiness();
        if (where == Waits::polls && owner.moves_fragments()) {
            owner.requests.advance_progress_ops();
        }
        if (_counted) {
            owner.requests.enter_waiting();
        }
        if (where == Waits::in_the_mpi && owner.has_pending_fragments()) {
            owner.requests.flush_progress_ops();
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
