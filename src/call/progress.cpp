// SPDX-License-Identifier: Apache-2.0
#include "call/progress.h"

#include <sched.h>

#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

/// Probes for a message that does not exist, since an MPI that finds one may return at once (Open MPI does). The probe
/// names another rank, since for this rank MPICH only looks at memory. The tags are the last ones, in turn.
void progress_mpi(const MPI_Comm communicator, const int rank, const int size, const unsigned turn) {
    const Native& native = layer().real;
    int flag = 0;
    if (layer().fault_tolerance.active()) {
        // Elsewhere there may be failed processes, and each probe would raise that error. An MPI with fault tolerance
        // makes progress also in a probe for messages of this rank.
        native.Iprobe(0, 0, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
        return;
    }
    constexpr unsigned kTags = 5;
    const int other = (rank + 1) % size;
    native.Iprobe(other, greatest_tag() - static_cast<int>(turn / 16 % kTags), communicator, &flag, MPI_STATUS_IGNORE);
}

void progress_mpi(const unsigned turn) {
    const Native& native = layer().real;
    int rank = 0, size = 0;
    native.Comm_rank(MPI_COMM_WORLD, &rank);
    native.Comm_size(MPI_COMM_WORLD, &size);
    progress_mpi(MPI_COMM_WORLD, rank, size, turn);
}

Together::~Together() {
    layer().node_peers.flush();
}

void Together::look() const noexcept {
    layer().node_peers.flush_late();
}

void WaitLoop::turn() {
    Layer& owner = layer();
    if (++_turns % _others == 0) {
        owner.requests.advance_progress_ops();
    } else {
        owner.node_peers.look_at_network();  // else a sender assumes that this process waits in the MPI
    }
    constexpr unsigned kEager = 2000, kBetween = 16;
    if (_turns <= kEager) {
        return;
    }
    if (_turns % kBetween == 0) {
        progress_mpi(_turns);
    }
    sched_yield();
}

}  // namespace awaken::AWAKEN_ABI
