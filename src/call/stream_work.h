// SPDX-License-Identifier: Apache-2.0
// What other calls ask of the communicators to which MPIX_Stream_comm_create has given a GPU's stream (src/enqueue).
#pragma once

#include <span>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// Thread-safe.
class StreamWork {
  public:
    StreamWork() = default;
    virtual ~StreamWork() = default;
    StreamWork(const StreamWork&) = delete;
    StreamWork& operator=(const StreamWork&) = delete;

    /// Waits until everything is over that the communicator's stream was given, so that the call's own operation comes
    /// after it. Throws the error of an operation that failed meanwhile. Does nothing for other communicators.
    virtual void settle(MPI_Comm communicator) = 0;
    /// Whether settle() would wait.
    [[nodiscard]] virtual bool is_busy(MPI_Comm communicator) = 0;
    /// Waits until the operations are over that the program has requests of, but completes no request.
    virtual void finish(std::span<const MPI_Request> requests) = 0;
    /// The program asks for operations: lets the streams say how far they have come. Cheap when they have said so.
    virtual void announce() = 0;
    /// Messages of the communicator travel as host bytes, whoever sends and receives them: a thread that must not wait
    /// for the driver may be at the other end.
    [[nodiscard]] virtual bool covers(MPI_Comm communicator) = 0;
    /// MPI is about to go down: finishes what the streams have.
    virtual void stop() noexcept = 0;
};

}  // namespace awaken::AWAKEN_ABI
