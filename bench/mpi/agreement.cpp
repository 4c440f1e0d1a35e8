// SPDX-License-Identifier: Apache-2.0
// How the ranks come to one end.
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "base/printable.h"
#include "mpi/engine.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a rank with a problem waits for others that may be waiting for its message.
constexpr std::chrono::seconds kPatience{3};

}  // namespace

void agree(MPI_Comm communicator, const std::optional<Error>& problem, const Peers peers) {
    int rank = 0;
    int ranks = 0;
    MPI_Comm_rank(communicator, &rank);
    MPI_Comm_size(communicator, &ranks);
    const int mine = problem ? rank : INT_MAX;
    int first = INT_MAX;
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Iallreduce(&mine, &first, 1, MPI_INT, MPI_MIN, communicator, &request), "MPI_Iallreduce");
    const auto deadline = Clock::now() + kPatience;
    for (int done = 0; done == 0;) {
        check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (done == 0 && problem && peers == Peers::may_wait && Clock::now() > deadline) {
            end_all(communicator, printable_lines(problem->what()));
        }
        if (done == 0) {
            sched_yield();  // on a busy machine it is another rank that all wait for
        }
    }
    if (first == INT_MAX) {
        return;
    }
    const int affected = over_ranks(problem ? 1 : 0, MPI_SUM, communicator);
    const std::string cause = broadcast_text(problem ? problem->cause() : "", first, communicator);
    const std::string remedy = broadcast_text(problem ? problem->remedy() : "", first, communicator);
    throw AgreedError(affected == ranks ? cause : "rank " + std::to_string(first) + ": " + cause, remedy);
}

void agree_to_run(MPI_Comm communicator, const std::optional<Error>& problem) {
    try {
        agree(communicator, problem);
    } catch (const AgreedError& error) {
        throw Unavailable(error.cause(), error.remedy());
    }
}

void end_all(MPI_Comm communicator, const std::string& message) noexcept {
    int rank = 0;
    MPI_Comm_rank(communicator, &rank);
    std::fprintf(stderr, "awaken: rank %d: %s\n", rank, message.c_str());
    std::fflush(stdout);
    std::fflush(stderr);
    // A launcher that hears of the abort first may close our stderr unread: it gets a second to read it.
    const auto enough = Clock::now() + std::chrono::seconds(1);
    int unread = 0;
    while (ioctl(STDERR_FILENO, FIONREAD, &unread) == 0 && unread > 0 && Clock::now() < enough) {
        sched_yield();
    }
    MPI_Abort(communicator, 1);
    std::_Exit(1);
}

}  // namespace awaken::bench
