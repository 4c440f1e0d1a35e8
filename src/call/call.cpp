#include "call/call.h"

#include <ctime>

#include "report/totals.h"

namespace awaken::AWAKEN_ABI {

std::uint64_t Call::now_ns() noexcept {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
}

Call::~Call() {
    Layer& owner = layer();
    if (owner.requests.any_adopted()) {
        owner.requests.progress_adopted();
    }
    --depth;
    current = _outer;
    report::last_path = _path;
    if (_path != report::Path::native || _started_ns != 0) {
        report::totals.add(_path, static_cast<std::uint64_t>(_bytes));
    }
    if (_started_ns != 0) {
        owner.ledger.add(name(), _path, static_cast<std::uint64_t>(_bytes), now_ns() - _started_ns);
    }
}

int Call::fail(const int error_class, const Error& error) noexcept {
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
