// SPDX-License-Identifier: Apache-2.0
// A communicator of the layer's own beside one of the program's, for messages that the program must not see.
#pragma once

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// Has the members of another communicator, in their order.
class OwnCommunicator {
  public:
    /// Collective over the communicator `like`.
    OwnCommunicator(const Native& native, MPI_Comm like);
    ~OwnCommunicator();
    OwnCommunicator(const OwnCommunicator&) = delete;
    OwnCommunicator& operator=(const OwnCommunicator&) = delete;

    /// MPI_COMM_NULL when the MPI gave none. The MPI returns errors on it, and the layer reports them on the program's
    /// communicator.
    [[nodiscard]] MPI_Comm handle() const noexcept { return _comm; }
    /// Called before MPI goes down, which frees the communicator itself.
    void give_up() noexcept { _comm = MPI_COMM_NULL; }

  private:
    const Native& _native;
    MPI_Comm _comm = MPI_COMM_NULL;
};

}  // namespace awaken::AWAKEN_ABI
