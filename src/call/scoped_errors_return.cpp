// SPDX-License-Identifier: Apache-2.0
#include "call/scoped_errors_return.h"

namespace awaken::AWAKEN_ABI {

DefaultHandlers::DefaultHandlers(const Native& native, const loader::Binding& binding)
    : _native(native), _mpich(binding.version.find("MPICH") != std::string::npos) {}

int DefaultHandlers::set(int (*const native)(MPI_Comm, MPI_Errhandler), const MPI_Comm communicator,
                         const MPI_Errhandler handler) {
    const std::scoped_lock lock(_mutex);
    const int error = native(communicator, handler);
    if (error != MPI_SUCCESS) {
        return error;
    }
    if (communicator == MPI_COMM_SELF) {
        _program_has_set_self = true;
    } else if (_mpich && _touched_self && !_program_has_set_self) {
        _native.Comm_set_errhandler(MPI_COMM_SELF, handler);
    }
    return error;
}

void DefaultHandlers::only_return() {
    if (_depth++ != 0) {
        return;
    }
    int begun = 0, ended = 0;
    _native.Initialized(&begun);
    _native.Finalized(&ended);
    _has_world = begun != 0 && ended == 0;
    if (!_has_world) {
        return;
    }
    if (!_asked) {
        _asked = true;
        int version = 0, subversion = 0;
        _native.Get_version(&version, &subversion);
        // Tried: MPICH 4.0.2 and 4.1.3, which have MPI 4.0, call that of MPI_COMM_WORLD; 4.2.3 and 5.0.2 do not.
        const bool calls_self = version > 4 || (version == 4 && subversion > 0);
        _with_self = !_mpich || calls_self;
        _with_world = !_mpich || !calls_self;
    }
    if (_with_world) {
        _native.Comm_get_errhandler(MPI_COMM_WORLD, &_world);
        _native.Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    if (_with_self) {
        const bool follows_world = _mpich && !_program_has_set_self && !_touched_self;
        _native.Comm_get_errhandler(follows_world ? MPI_COMM_WORLD : MPI_COMM_SELF, &_self);
        _native.Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        _touched_self = true;
    }
}

void DefaultHandlers::restore() {
    if (--_depth != 0 || !_has_world) {
        return;
    }
    // Comm_get_errhandler() has made one more reference, also to a predefined handler.
    if (_with_world) {
        _native.Comm_set_errhandler(MPI_COMM_WORLD, _world);
        _native.Errhandler_free(&_world);
    }
    if (_with_self) {
        _native.Comm_set_errhandler(MPI_COMM_SELF, _self);
        _native.Errhandler_free(&_self);
    }
}

}  // namespace awaken::AWAKEN_ABI
