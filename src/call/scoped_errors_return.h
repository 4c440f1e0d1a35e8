// SPDX-License-Identifier: Apache-2.0
// For calls of the layer whose errors the program must not see.
#pragma once

#include <mutex>

#include "loader/loader.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// The error handlers of MPI_COMM_WORLD and MPI_COMM_SELF. They also get the errors that concern no communicator: since
/// MPI-4.0 the handler of MPI_COMM_SELF, before that the handler of MPI_COMM_WORLD. MPICH does so since it has MPI 4.1,
/// and still calls the handler of MPI_COMM_WORLD until somebody sets that of MPI_COMM_SELF, which cannot be undone.
/// Once the layer has set it, the layer keeps both the same.
class DefaultHandlers {
  public:
    DefaultHandlers(const Native& native, const loader::Binding& binding);
    DefaultHandlers(const DefaultHandlers&) = delete;
    DefaultHandlers& operator=(const DefaultHandlers&) = delete;

    /// The program sets one of the two handlers through `native`.
    [[nodiscard]] int set(int (*native)(MPI_Comm, MPI_Errhandler), MPI_Comm communicator, MPI_Errhandler handler);
    /// True when the MPI raises the error of a failed request here, and not where it belongs, even if the caller only
    /// asks about the request.
    [[nodiscard]] bool hear_of_requests() const noexcept { return _mpich; }

  private:
    friend class ScopedErrorsReturn;
    void only_return();
    void restore();

    const Native& _native;
    const bool _mpich;
    std::recursive_mutex _mutex;  ///< held while errors are only returned; a callback may lock it again
    int _depth = 0;
    bool _has_world = false;  ///< a process with sessions only has neither communicator
    bool _asked = false, _with_world = true, _with_self = true;
    bool _program_has_set_self = false, _touched_self = false;
    MPI_Errhandler _world = MPI_ERRHANDLER_NULL, _self = MPI_ERRHANDLER_NULL;
};

/// While it lives, the MPI only returns its errors that concern no object of the program. This holds for all threads,
/// so it should not live long.
class ScopedErrorsReturn {
  public:
    explicit ScopedErrorsReturn(DefaultHandlers& handlers) : _handlers(handlers), _lock(handlers._mutex) {
        _handlers.only_return();
    }
    ScopedErrorsReturn(const ScopedErrorsReturn&) = delete;
    ScopedErrorsReturn& operator=(const ScopedErrorsReturn&) = delete;
    ~ScopedErrorsReturn() { _handlers.restore(); }
    /// False in a process that only has sessions: errors that concern no object end it.
    [[nodiscard]] bool holds() const noexcept { return _handlers._has_world; }

  private:
    DefaultHandlers& _handlers;
    const std::scoped_lock<std::recursive_mutex> _lock;
};

}  // namespace awaken::AWAKEN_ABI
