// SPDX-License-Identifier: Apache-2.0
// Waits for an operation of the layer inside a call of the program.
//
// MPI promises that a process that waits in one call goes on with all other operations that it has begun. The layer
// often waits for another process or a GPU. The MPI would stand still meanwhile: it would not acknowledge a synchronous
// send to this process, although the layer may wait for that very sender.
#pragma once

#include "mpi/native.h"
#include "transport/transport.h"

namespace awaken::AWAKEN_ABI {

/// Lets the MPI go on while this rank of `size` waits for other ranks. `turn` counts the calls in one wait.
void progress_mpi(MPI_Comm communicator, int rank, int size, unsigned turn);

/// The same without a communicator.
void progress_mpi(unsigned turn = 0);

/// While one lives, what messages of this thread give to a GPU goes there together: at the end, or before that when it
/// has waited for some time.
class Together {
  public:
    Together() = default;
    ~Together();
    Together(const Together&) = delete;
    Together& operator=(const Together&) = delete;
    /// Call now and then while messages are awaited.
    void look() const noexcept;

  private:
    transport::Gathering _gathering;
};

/// A loop that waits for a message of the layer: one turn for each look at it.
class WaitLoop {
  public:
    /// @param others the other messages of this process go on once in this many turns.
    explicit WaitLoop(const unsigned others = 1) noexcept : _others(others) {}
    /// Advances other messages of this process. After a long wait, lets the MPI and other processes go on too.
    void turn();

  private:
    const unsigned _others;
    unsigned _turns = 0;
};

}  // namespace awaken::AWAKEN_ABI
