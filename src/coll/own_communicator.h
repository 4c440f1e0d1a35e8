// A communicator of the layer's own beside one of the program's, for what the program is not to see.
#pragma once

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// A communicator of the layer's own with the members of another one, in their order.
class OwnCommunicator {
  public:
    /// Collective over the communicator.
    OwnCommunicator(const Native& native, MPI_Comm like);
    ~OwnCommunicator();
    OwnCommunicator(const OwnCommunicator&) = delete;
    OwnCommunicator& operator=(const OwnCommunicator&) = delete;

    /// MPI_COMM_NULL when there was none to be had. Errors on it are returned: what goes wrong is reported on the
    /// program's communicator.
    [[nodiscard]] MPI_Comm handle() const noexcept { return _comm; }
    /// Before MPI goes down: it frees what is left itself.
    void give_up() noexcept { _comm = MPI_COMM_NULL; }

  private:
    const Native& _native;
    MPI_Comm _comm = MPI_COMM_NULL;
};

}  // namespace awaken::AWAKEN_ABI
