// SPDX-License-Identifier: Apache-2.0
// What the MPI knows of failed processes and revoked communicators: the extension User Level Failure Mitigation (ULFM).
#pragma once

#include "base/error.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// The headers need not declare the extension. The layer finds its functions by name, and takes its constants from the
/// ABI.
class FaultTolerance {
  public:
    void load(const loader::Binding& binding);
    /// MPI is up: asks whether the job was started with the extension.
    void mpi_started(const Native& native);

    /// True when a program may revoke communicators, and calls that need a failed process return.
    [[nodiscard]] bool active() const noexcept { return _active.load(std::memory_order_relaxed); }
    [[nodiscard]] bool is_revoked(MPI_Comm communicator) const;
    /// Revokes a communicator of the layer's own for all its members.
    void revoke(MPI_Comm communicator) const;

    /// The error of calls on a revoked communicator.
    [[nodiscard]] static Error revocation();
    /// Throws revocation() if the communicator is revoked.
    void refuse_revoked(MPI_Comm communicator) const;

    /// The error class for this kind of error; MPI_ERR_OTHER if the MPI has none.
    [[nodiscard]] int class_of(const Error& error) const noexcept;

  private:
    int (*_is_revoked)(MPI_Comm, int*) = nullptr;
    int (*_revoke)(MPI_Comm) = nullptr;
    int _failed_process_class = MPI_ERR_OTHER, _revoked_class = MPI_ERR_OTHER;
    int _attribute = MPI_KEYVAL_INVALID;
    std::atomic<bool> _active{false};
};

}  // namespace awaken::AWAKEN_ABI
