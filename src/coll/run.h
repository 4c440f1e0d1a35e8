// SPDX-License-Identifier: Apache-2.0
// How the blocking, nonblocking and persistent forms of a collective differ. Each collective is written once, with the
// trailing arguments of its form as a parameter pack:
//   blocking     ()                        copy in, call, copy out
//   nonblocking  (MPI_Request*)            copy in, call; copy out when the request completes
//   persistent   (MPI_Info, MPI_Request*)  call; copy in at each start, copy out when it completes
//
// Each rank decides for itself whether its buffers need staging buffers. The MPI gets the same collective on every
// rank, with equivalent arguments, so ranks with host and with device buffers mix. A rank whose GPU fails takes part
// all the same, since the others wait for it, and gets its error when the collective is over.
#pragma once

#include <optional>

#include "call/call.h"
#include "call/stage.h"

namespace awaken::AWAKEN_ABI {

/// To be called before the buffers are placed.
template <class... Tail>
void prepare(Stage& stage, const Tail&...) {
    if constexpr (sizeof...(Tail) == 2) {
        stage.watch();
    }
}

template <class Native>
int carry_out(Stage& stage, Native native) {
    stage.load(Stage::Failure::kept);
    const int error = native();
    if (error == MPI_SUCCESS) {
        stage.store();
    }
    return error;
}

template <class Native>
int carry_out(Stage& stage, Native native, MPI_Request* const request) {
    stage.load(Stage::Failure::kept);
    const int error = native();
    if (error == MPI_SUCCESS && stage.active()) {
        if (Requests::is_over_at_once(*request)) {  // as on a communicator of one rank
            stage.store();
            return error;
        }
        auto operation = make_operation(Operation::Kind::once, std::move(stage));
        operation->handle = operation->native_request = *request;
        layer().requests.track(std::move(operation));
    }
    return error;
}

template <class Native>
int carry_out(Stage& stage, Native native, MPI_Info, MPI_Request* const request) {
    // The staging buffers are filled again at each start. They are filled here too, since MPICH 4 already copies a
    // rank's own part when it builds the schedule.
    stage.load(Stage::Failure::kept);
    const int error = native();
    if (error == MPI_SUCCESS && (stage.active() || layer().gpu().is_present())) {
        auto operation = make_operation(Operation::Kind::bound, std::move(stage));
        operation->handle = operation->native_request = *request;
        layer().requests.track(std::move(operation));
    }
    return error;
}

/// Which arguments of a rooted collective mean something on this rank.
struct Group {
    int rank = 0;
    int size = 0;          ///< the group that data comes from and goes to; for an intercommunicator, the remote one
    bool between = false;  ///< an intercommunicator

    /// Whether the root is a rank of this group. False for an intercommunicator.
    [[nodiscard]] bool has(const int root) const noexcept { return !between && root >= 0 && root < size; }
    [[nodiscard]] bool is_root(const int root) const noexcept { return between ? root == MPI_ROOT : root == rank; }
    /// Whether this rank takes part as a non-root. On an intercommunicator, the ranks of the root's own group do not.
    [[nodiscard]] bool is_leaf(const int root) const noexcept {
        return between ? root != MPI_ROOT && root != MPI_PROC_NULL : true;
    }
};

[[nodiscard]] inline Group group_of(const MPI_Comm comm) {
    const Native& native = layer().real;
    Group group;
    int inter = 0;
    native.Comm_test_inter(comm, &inter);
    native.Comm_rank(comm, &group.rank);
    group.between = inter != 0;
    if (group.between) {
        native.Comm_remote_size(comm, &group.size);
    } else {
        native.Comm_size(comm, &group.size);
    }
    return group;
}

/// Asks the MPI about the group when that is first needed. Many collectives never need it.
class LazyGroup {
  public:
    explicit LazyGroup(const MPI_Comm comm) noexcept : _communicator(comm) {}
    [[nodiscard]] const Group& get() const {
        if (!_group) {
            _group = group_of(_communicator);
        }
        return *_group;
    }

  private:
    const MPI_Comm _communicator;
    mutable std::optional<Group> _group;
};

/// The tables list a collective in all its forms: AWAKEN_SERVE_COLLECTIVE(Bcast, Ibcast, Broadcast) gives Bcast,
/// Ibcast, Bcast_init and their large-count versions.
#define AWAKEN_SERVE_COLLECTIVE(blocking, nonblocking, operation)                          \
    AWAKEN_SERVE_COUNTS(blocking, operation), AWAKEN_SERVE_COUNTS(nonblocking, operation), \
        AWAKEN_SERVE_COUNTS(blocking##_init, operation)

}  // namespace awaken::AWAKEN_ABI
