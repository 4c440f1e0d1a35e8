#include "call/progress.h"

#include <sched.h>

#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

/// Asks for a message that there is not, since an MPI that finds one may return at once (Open MPI does): from another
/// rank, since MPICH only looks at memory for one from this rank, with the last tags that there are, in turn.
void progress_mpi(const MPI_Comm communicator, const int rank, const int size, const unsigned turn) {
    const Native& native = layer().real;
    int flag = 0;
    if (layer().fault_tolerance.active()) {
        // Elsewhere there may be failed processes, and each look would raise that error. Such an MPI does not stop at
        // messages of this rank's.
        native.Iprobe(0, 0, MPI_COMM_SELF, &flag, MPI_STATUS_IGNORE);
        return;
    }
    static const int last_tag = [&native] {
        void* value = nullptr;
        int found = 0;
        native.Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found);
        constexpr int kLeastAllowed = 32767;
        return found != 0 ? *static_cast<int*>(value) : kLeastAllowed;
    }();
    constexpr unsigned kTags = 5;
    const int other = (rank + 1) % size;
    native.Iprobe(other, last_tag - static_cast<int>(turn / 16 % kTags), communicator, &flag, MPI_STATUS_IGNORE);
}

void progress_mpi(const unsigned turn) {
    const Native& native = layer().real;
    int rank = 0, size = 0;
    native.Comm_rank(MPI_COMM_WORLD, &rank);
    native.Comm_size(MPI_COMM_WORLD, &size);
    progress_mpi(MPI_COMM_WORLD, rank, size, turn);
}

void WaitLoop::turn() {
    Layer& owner = layer();
    if (++_turns % _others == 0) {
        owner.requests.advance_progress_ops();
    } else {
        owner.node_peers.look_at_network();  // or a sender takes this process for one that waits in the MPI
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
