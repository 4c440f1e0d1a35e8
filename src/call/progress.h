// Waiting inside a call of the program's for something of ours.
//
// MPI promises that a process that waits in one call goes on with all others that it has begun. What we wait for is
// often done by another process or by a GPU, so the MPI below would stand still meanwhile: a synchronous send to this
// process would not be acknowledged, and its sender may be the one that we wait for.
#pragma once

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// Lets the MPI go on with what it has under way, while this rank of `size` waits for others in turn after turn.
void progress_mpi(MPI_Comm communicator, int rank, int size, unsigned turn);

/// The same where no communicator is at hand.
void progress_mpi(unsigned turn = 0);

/// A loop that waits for a message of ours: once round for each look.
class WaitLoop {
  public:
    /// @param others once in so many turns this process's other messages go on.
    explicit WaitLoop(const unsigned others = 1) noexcept : _others(others) {}
    /// Goes on with other messages of this process; with the MPI and other processes once this takes long.
    void turn();

  private:
    const unsigned _others;
    unsigned _turns = 0;
};

}  // namespace awaken::AWAKEN_ABI
