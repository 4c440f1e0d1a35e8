#include "coll/messages.h"

#include "call/progress.h"

namespace awaken::AWAKEN_ABI {

Messages::Messages(Call& call, const MPI_Comm comm, const MPI_Comm program, const Errors errors,
                   const std::size_t receives, const std::size_t sends)
    : _call(call), _comm(comm), _program(program), _errors(errors) {
    _unprepared.emplace(layer().receive_readiness);
    _incoming.reserve(receives);
    _outgoing.reserve(sends);
}

Messages::~Messages() {
    const Native& native = layer().real;
    for (Incoming& each : _incoming) {
        if (each.request != MPI_REQUEST_NULL) {
            native.Cancel(&each.request);
            native.Wait(&each.request, MPI_STATUS_IGNORE);  // until then the MPI writes to memory of ours
        }
    }
    for (Outgoing& each : _outgoing) {
        if (each.request != MPI_REQUEST_NULL) {
            native.Request_free(&each.request);
        }
    }
}

template <class Step>
bool Messages::attempt(const Step& step) {
    try {
        return step();
    } catch (const Error& error) {
        if (!_failure) {
            _failure = error;
        }
        return true;
    }
}

void Messages::follow_revocation() {
    const FaultTolerance& fault_tolerance = layer().fault_tolerance;
    if (!_revoked && fault_tolerance.is_revoked(_program)) {
        _revoked = true;
        fault_tolerance.revoke(_comm);
    }
}

bool Messages::advance(const MPI_Status* /*arrived*/, const ipc::Patience patience) {
    follow_revocation();
    const Native& native = layer().real;
    bool all = true;
    for (Incoming& in : _incoming) {
        if (!in.arrived) {
            int done = 0;
            in.error = native.Test(&in.request, &done, &in.status);
            if (in.error == MPI_SUCCESS && done == 0) {
                all = false;
                continue;
            }
            in.arrived = true;
            in.request = MPI_REQUEST_NULL;
            in.over = in.error != MPI_SUCCESS || attempt([&] {
                          in.recv_operation.arrived(in.status, true);
                          return false;
                      });
        }
        in.over = in.over || attempt([&] { return in.recv_operation.advance(); });
        all = all && in.over;
    }
    for (Outgoing& out : _outgoing) {
        if (out.request != MPI_REQUEST_NULL) {
            int done = 0;
            const int error = native.Test(&out.request, &done, MPI_STATUS_IGNORE);
            if (error != MPI_SUCCESS) {
                out.request = MPI_REQUEST_NULL;  // nothing more will come of the request
                _error = _error != MPI_SUCCESS ? _error : error;
            }
        }
        out.over = out.over || attempt([&] { return out.send_operation.advance(patience); });
        all = all && out.over && out.request == MPI_REQUEST_NULL;
    }
    return all;
}

int Messages::finish() {
    WaitLoop waiting;
    while (!advance(nullptr, ipc::Patience::short_)) {
        waiting.turn();
    }
    MPI_Status ignored{};
    int error = MPI_SUCCESS;
    conclude(ignored, error);
    return error;
}

void Messages::conclude(MPI_Status&, int& error) {
    if (!_concluded) {
        _concluded = true;
        for (Incoming& in : _incoming) {
            if (!in.arrived) {
                continue;
            }
            // A message's errors are its own. The first one is the collective's.
            static_cast<void>(attempt([&] {
                in.recv_operation.conclude(in.status, in.error);
                return true;
            }));
            _error = _error != MPI_SUCCESS ? _error : in.error;
        }
        _unprepared.reset();
        if (_failure) {
            _error = layer().error_code(MPI_ERR_OTHER, *_failure);
        }
        if (_error != MPI_SUCCESS && _errors == Errors::raised) {
            layer().real.Comm_call_errhandler(_program, _error);
        }
    }
    error = _error != MPI_SUCCESS ? _error : error;
}

void Messages::leave() {
    for (Incoming& in : _incoming) {
        if (in.arrived && !in.over) {
            in.recv_operation.leave();
        }
    }
    for (Outgoing& out : _outgoing) {
        if (!out.over) {
            out.send_operation.leave();
        }
    }
}

bool Messages::flush_to_native() {
    leave();
    bool all = true;
    for (Outgoing& out : _outgoing) {
        all = (out.over || out.send_operation.flush_to_native()) && all;
    }
    return all;
}

}  // namespace awaken::AWAKEN_ABI
