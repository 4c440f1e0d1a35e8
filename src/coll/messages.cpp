// SPDX-License-Identifier: Apache-2.0
#include "coll/messages.h"

#include <algorithm>
#include <utility>

#include "call/held_type.h"
#include "call/progress.h"

namespace awaken::AWAKEN_ABI {

Messages::Messages(Call& call, const MessageRoute& route, const Errors errors)
    : _call(call), _route(route), _errors(errors) {
    _unprepared.emplace(layer().receive_readiness);
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
    const auto keep = [this](const int error_class, const Error& error) {
        if (!_failure) {
            _failure = error;
            _failure_class = error_class;
        }
        return true;
    };
    try {
        return step();
    } catch (const ClassedError& error) {
        return keep(error.error_class, error);
    } catch (const Error& error) {
        return keep(MPI_ERR_OTHER, error);
    }
}

int Messages::receive(const Leg& leg) {
    const auto& [rank, tag] = leg.end;
    Incoming& in = _incoming.emplace_back(_call);
    const Posted posted = in.recv_operation.prepare(!_unprepared->allowed(), leg.data.address, leg.data.count,
                                                    leg.data.type, rank, _route.messages);
    const int error = start_receive(layer().real, posted, rank, tag, _route.messages, &in.request);
    if (error != MPI_SUCCESS) {
        _incoming.pop_back();
    }
    return error;
}

int Messages::send(const Leg& leg) {
    const auto& [rank, tag] = leg.end;
    Outgoing& out = _outgoing.emplace_back(_call);
    Posted posted{nullptr, 0, MPI_BYTE};  // where the data cannot be had: the receiver waits for a message
    static_cast<void>(attempt([&] {
        posted = out.send_operation.prepare(SendOperation::Mode::offered, leg.data.address, leg.data.count,
                                            leg.data.type, rank, _route.messages);
        return true;
    }));
    const int error = start_send(layer().real, posted, rank, tag, _route.messages, &out.request);
    out.send_operation.posted(error);
    if (error != MPI_SUCCESS) {
        _outgoing.pop_back();
    }
    return error;
}

int Messages::begin(const MessageList& list) {
    _incoming.reserve(list.receives.size());
    _outgoing.reserve(list.sends.size());
    const auto begin_all = [this](const std::vector<Leg>& legs, int (Messages::*post)(const Leg&)) {
        for (const Leg& leg : legs) {
            const int error = leg.end.rank != MPI_PROC_NULL ? (this->*post)(leg) : MPI_SUCCESS;
            _error = _error != MPI_SUCCESS ? _error : error;
        }
    };
    begin_all(list.receives, &Messages::receive);
    begin_all(list.sends, &Messages::send);
    return _error;
}

void Messages::follow_revocation() {
    const FaultTolerance& fault_tolerance = layer().fault_tolerance;
    if (!_revoked && fault_tolerance.is_revoked(_route.program)) {
        _revoked = true;
        fault_tolerance.revoke(_route.messages);
    }
}

bool Messages::advance(const MPI_Status* /*arrived*/, const transport::Patience patience) {
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
    while (!advance(nullptr, transport::Patience::short_)) {
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
            _error = layer().error_code(_failure_class, *_failure);
        }
        if (_error != MPI_SUCCESS && _errors == Errors::raised) {
            layer().real.Comm_call_errhandler(_route.program, _error);
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

bool Messages::needs_calls() const noexcept {
    return std::any_of(_outgoing.begin(), _outgoing.end(),
                       [](const Outgoing& out) { return !out.over && out.send_operation.needs_calls(); });
}

int start_messages(Call& call, const MessageRoute& route, const MessageList& list, MPI_Request* const request) {
    Layer& owner = layer();
    auto messages = std::make_unique<Messages>(call, route, Messages::Errors::raised);
    if (const int error = messages->begin(list); error != MPI_SUCCESS) {
        owner.real.Comm_call_errhandler(route.program, error);
        return error;
    }
    auto operation = make_operation(Operation::Kind::once);
    if (operation->start_own_handle(request) != MPI_SUCCESS) {
        throw Error("the MPI gives no request", "complete some of the program's requests first");
    }
    messages->leave();
    owner.requests.add_progress_op(operation, std::move(messages));
    owner.requests.track(std::move(operation));
    return MPI_SUCCESS;
}

namespace {

/// What a persistent collective keeps.
class PersistentMessages {
  public:
    PersistentMessages(const MessageRoute& route, MessageList list) : _route(route), _list(std::move(list)) {
        for (std::vector<Leg>* const legs : {&_list.receives, &_list.sends}) {
            for (Leg& leg : *legs) {
                leg.data.type = _types.hold(leg.data.type);
            }
        }
    }

    [[nodiscard]] int start(Call& call, const std::shared_ptr<Operation>& operation) const {
        call.on(_route.program);
        Layer& owner = layer();
        owner.fault_tolerance.refuse_revoked(_route.program);
        auto messages = std::make_unique<Messages>(call, _route, Messages::Errors::raised);
        if (const int error = messages->begin(_list); error != MPI_SUCCESS) {
            owner.real.Comm_call_errhandler(_route.program, error);
            return error;
        }
        if (const int error = operation->start_own_native_request(); error != MPI_SUCCESS) {
            return error;
        }
        messages->leave();
        owner.requests.add_progress_op(operation, std::move(messages));
        return MPI_SUCCESS;
    }

  private:
    const MessageRoute _route;
    MessageList _list;
    HeldTypes _types;
};

}  // namespace

int make_persistent_messages(const MessageRoute& route, MessageList list, MPI_Request* const request) {
    if (const int error = make_persistent_handle(request); error != MPI_SUCCESS) {
        return error;
    }
    auto operation = make_operation(Operation::Kind::rebinding);
    operation->handle = operation->native_request = *request;
    operation->launch = [kept = std::make_shared<const PersistentMessages>(route, std::move(list))](
                            Call& start, const std::shared_ptr<Operation>& started, int& outcome) {
        outcome = kept->start(start, started);
        return true;
    };
    layer().requests.track(std::move(operation));
    return MPI_SUCCESS;
}

}  // namespace awaken::AWAKEN_ABI
