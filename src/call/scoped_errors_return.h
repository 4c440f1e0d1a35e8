// Calls of ours whose errors are not the program's to hear of.
#pragma once

#include <mutex>

#include "loader/loader.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// The error handlers of MPI_COMM_WORLD and MPI_COMM_SELF, which also hear of errors that concern no communicator:
/// since MPI-4.0 that of MPI_COMM_SELF, before that of MPI_COMM_WORLD. MPICH asks MPI_COMM_WORLD's as long as nobody
/// has set the other, which cannot be undone: once we have, we keep both the same.
class DefaultHandlers {
  public:
    DefaultHandlers(const Native& native, const loader::Binding& binding);
    DefaultHandlers(const DefaultHandlers&) = delete;
    DefaultHandlers& operator=(const DefaultHandlers&) = delete;

    /// The program sets either of them, by `native`.
    [[nodiscard]] int set(int (*native)(MPI_Comm, MPI_Errhandler), MPI_Comm communicator, MPI_Errhandler handler);
    /// Errors of a failed request that is only asked about are raised here, not where it belongs.
    [[nodiscard]] bool hear_of_requests() const noexcept { return _mpich; }

  private:
    friend class ScopedErrorsReturn;
    void only_return();
    void restore();

    const Native& _native;
    const bool _mpich;
    std::recursive_mutex _mutex;  ///< held while errors are only returned; a callback of the program's may come again
    int _depth = 0;
    bool _asked = false, _with_world = true, _with_self = true;
    bool _program_has_set_self = false, _touched_self = false;
    MPI_Errhandler _world = MPI_ERRHANDLER_NULL, _self = MPI_ERRHANDLER_NULL;
};

/// Errors of the MPI's that concern no object of the program's are only returned while it lives. Those of other threads
/// as well, which is why it should not live long.
class ScopedErrorsReturn {
  public:
    explicit ScopedErrorsReturn(DefaultHandlers& handlers) : _handlers(handlers), _lock(handlers._mutex) {
        _handlers.only_return();
    }
    ScopedErrorsReturn(const ScopedErrorsReturn&) = delete;
    ScopedErrorsReturn& operator=(const ScopedErrorsReturn&) = delete;
    ~ScopedErrorsReturn() { _handlers.restore(); }

  private:
    DefaultHandlers& _handlers;
    const std::scoped_lock<std::recursive_mutex> _lock;
};

}  // namespace awaken::AWAKEN_ABI
