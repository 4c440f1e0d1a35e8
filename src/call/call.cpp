// SPDX-License-Identifier: Apache-2.0
#include "call/call.h"

#include <new>

#include "report/totals.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// The others would hide those that do in the report.
bool carries_data(const Function function) noexcept {
    const loader::FunctionTraits traits = loader::traits_of(function);
    return !traits.is_inquiry && !traits.handles_objects;
}

}  // namespace

Call::~Call() {
    Layer& owner = layer();
    --depth;
    current = _outer;
    report::last_path = _path;
    const bool is_counted = _path != report::Path::native || (_started_ns != 0 && carries_data(_function));
    if (is_counted) {
        report::totals.add(_path, static_cast<std::uint64_t>(_bytes));
    }
    if (_started_ns != 0) {
        const std::uint64_t ended_ns = _ended_ns != 0 ? _ended_ns : trace::now_ns();
        if (owner.settings.report && is_counted) {
            owner.ledger.add(name(), _path, static_cast<std::uint64_t>(_bytes), ended_ns - _started_ns);
        }
        tell(ended_ns);
    }
}

int Call::returns(const int error) {
    if (Requests& requests = layer().requests; requests.any_orphaned()) {
        requests.progress_orphaned();  // an error handler may throw, so the destructor cannot do this
    }
    _succeeded = error == MPI_SUCCESS;
    return error;
}

void Call::tell(const std::uint64_t ended_ns) noexcept {
    trace::Sink* const to = traced() && !_told ? trace::sink() : nullptr;
    if (to != nullptr) {
        _told = true;
        trace::Event whole = event();
        whole.end_ns = ended_ns;
        to->add(whole);
    }
}

void Call::end_in_trace() noexcept {
    if (_started_ns != 0) {
        tell(trace::now_ns());
    }
}

trace::Event Call::event() const noexcept {
    trace::Event event;
    event.is_poll = loader::traits_of(_function).waits == loader::Waits::polls;
    event.begin_ns = _started_ns;
    event.name = name();
    event.bytes = static_cast<std::uint64_t>(_bytes);
    event.path = static_cast<std::uint8_t>(_path);
    if (_peer != trace::kNoPeer) {
        event.peer = _peer == MPI_ANY_SOURCE ? trace::kAnyPeer : _peer == MPI_PROC_NULL ? trace::kNullPeer : _peer;
    }
    // After a failed call, the communicator may not exist.
    if (_object.type == NamedObject::Type::communicator && _succeeded) {
        layer().real.Comm_size(_object.as<MPI_Comm>(), &event.members);
    }
    return event;
}

int Call::fail(const int error_class, const Error& error) {
    Layer& owner = layer();
    _path = report::Path::refused;
    const int code = owner.error_code(error_class, error);
    switch (_object.type) {
        case NamedObject::Type::communicator:
            owner.real.Comm_call_errhandler(_object.as<MPI_Comm>(), code);
            break;
        case NamedObject::Type::window:
            owner.real.Win_call_errhandler(_object.as<MPI_Win>(), code);
            break;
        case NamedObject::Type::file:
            owner.real.File_call_errhandler(_object.as<MPI_File>(), code);
            break;
        case NamedObject::Type::none:
        case NamedObject::Type::session:
        case NamedObject::Type::group:
            owner.real.Comm_call_errhandler(MPI_COMM_SELF, code);
            break;
    }
    return code;
}

trace::Event event_of(const Call& call) noexcept {
    return call.event();
}

void trace_new_request(const Call& call, const int error, const MPI_Request* const request) {
    if (!call.traced() || error != MPI_SUCCESS) {
        return;
    }
    switch (loader::traits_of(call.function()).requests) {
        case loader::RequestRole::starts:
            layer().trace.operations.began(*request, call.event());
            break;
        case loader::RequestRole::makes:
            layer().trace.operations.described(*request, call.event());
            break;
        case loader::RequestRole::takes:
        case loader::RequestRole::none:
            break;
    }
}

bool passes_through(const void* const return_address) noexcept {
    return loader::from_inside_mpi(layer().binding, return_address) ||
           (Call::depth > 0 && loader::from_tool(return_address));
}

int serve(const ServedCall& served) {
    Call call(served.function);
    try {
        Layer& owner = layer();
        if (served.where != loader::Waits::nowhere) {
            owner.node_peers.ask_readiness();
            owner.node_peers.reclaim();
        }
        if (served.where == loader::Waits::polls && owner.takes_fragments()) {
            owner.requests.advance_progress_ops();
        }
        return served.body(served.arguments, call);
    } catch (const RaisedError& error) {
        return error.code;
    } catch (const ClassedError& error) {
        return call.fail(error.error_class, error);
    } catch (const Error& error) {
        return call.fail(MPI_ERR_OTHER, error);
    } catch (const std::bad_alloc&) {
        return call.fail(MPI_ERR_NO_MEM, Error(std::string(call.name()) + ": out of host memory",
                                               "free memory, or send smaller messages"));
    }
}

}  // namespace awaken::AWAKEN_ABI
