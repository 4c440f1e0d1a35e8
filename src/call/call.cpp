#include "call/call.h"

#include "report/totals.h"

namespace awaken::AWAKEN_ABI {

Call::~Call() {
    Layer& owner = layer();
    --depth;
    current = _outer;
    report::last_path = _path;
    if (_path != report::Path::native || _started_ns != 0) {
        report::totals.add(_path, static_cast<std::uint64_t>(_bytes));
    }
    if (_started_ns != 0) {
        const std::uint64_t ended_ns = _ended_ns != 0 ? _ended_ns : trace::now_ns();
        if (owner.settings.report) {
            owner.ledger.add(name(), _path, static_cast<std::uint64_t>(_bytes), ended_ns - _started_ns);
        }
        tell(ended_ns);
    }
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

namespace {

/// Calls that say at once whether something is there.
bool is_poll(const Function function) noexcept {
    switch (function) {
        case Function::Test:
        case Function::Testall:
        case Function::Testany:
        case Function::Testsome:
        case Function::Iprobe:
        case Function::Improbe:
        case Function::Request_get_status:
        case Function::Parrived:
            return true;
        default:
            return false;
    }
}

}  // namespace

trace::Event Call::event() const noexcept {
    trace::Event event;
    event.is_poll = is_poll(_function);
    event.begin_ns = _started_ns;
    event.name = name();
    event.bytes = static_cast<std::uint64_t>(_bytes);
    event.path = static_cast<std::uint8_t>(_path);
    if (_peer != trace::kNoPeer) {
        event.peer = _peer == MPI_ANY_SOURCE ? trace::kAnyPeer : _peer == MPI_PROC_NULL ? trace::kNullPeer : _peer;
    }
    // Of a call that failed it is not certain that there is such a communicator.
    if (_target == Target::communicator && _succeeded) {
        layer().real.Comm_size(_communicator, &event.members);
    }
    return event;
}

int Call::fail(const int error_class, const Error& error) {
    Layer& owner = layer();
    _path = report::Path::refused;
    const int code = owner.error_code(error_class, error);
    switch (_target) {
        case Target::communicator:
            owner.real.Comm_call_errhandler(_communicator, code);
            break;
        case Target::window:
            owner.real.Win_call_errhandler(_window, code);
            break;
        case Target::file:
            owner.real.File_call_errhandler(_file, code);
            break;
        case Target::self:
            owner.real.Comm_call_errhandler(MPI_COMM_SELF, code);
            break;
    }
    return code;
}

}  // namespace awaken::AWAKEN_ABI
