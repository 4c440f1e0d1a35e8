// Where calls may wait. Some messages go on only in calls of this process, so a wait must not stop them.
//
// Most operations of a process go on without its calls: GPUs, a thread that makes no MPI calls, or the MPI move the
// data. Only a large message to another node does not. Its fragments come from the GPU and go to the MPI one after the
// other (internode/network.h). A thread that waits in the layer sends them meanwhile. A thread that is about to wait in
// the MPI gives all of them to the MPI first, since the receiver may be waiting for them. While any thread may wait in
// the MPI, a sender gives all fragments of a new message to the MPI at once.
#pragma once

#include "call/layer.h"
#include "loader/function_traits.h"

namespace awaken::AWAKEN_ABI {

using loader::Waits;

/// A call that may wait, while it lasts. A call that only polls advances the other operations too.
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
            // Another process may have asked meanwhile where this one is (protocol/reachability.h). It must learn that
            // it is back.
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
