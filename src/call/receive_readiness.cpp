// SPDX-License-Identifier: Apache-2.0
#include "call/receive_readiness.h"

#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

void ReceiveReadiness::want(std::function<void()> say_so) {
    const std::scoped_lock lock(_mutex);
    _say_so = std::move(say_so);
    _wants.store(true, std::memory_order_release);
}

void ReceiveReadiness::end() noexcept {
    _wants.store(false, std::memory_order_relaxed);
    _world_up.store(false, std::memory_order_relaxed);
}

void ReceiveReadiness::try_to_take_rts() {
    const std::scoped_lock lock(_mutex);
    if (!_wants.load(std::memory_order_relaxed)) {
        return;
    }
    // First the flag is set for this process's own threads, and then the count is read. A receive that starts meanwhile
    // is either counted, or sees that it must be prepared.
    _takes.store(true, std::memory_order_seq_cst);
    if (_unprepared.load(std::memory_order_seq_cst) != 0) {
        _takes.store(false, std::memory_order_seq_cst);
        return;
    }
    _wants.store(false, std::memory_order_relaxed);
    _say_so();
}

ReceiveReadiness::Unprepared::Unprepared(ReceiveReadiness& readiness) : _readiness(readiness) {
    if (!readiness._world_up.load(std::memory_order_acquire)) {
        return;  // no RTS will arrive
    }
    if (!readiness.takes_rts()) {
        static_cast<void>(layer().gpu());
        readiness.say_when_ready();
    }
    if (!readiness.takes_rts()) {
        readiness._unprepared.fetch_add(1, std::memory_order_seq_cst);
        if (!readiness.takes_rts()) {
            _counted = true;
            return;
        }
        readiness._unprepared.fetch_sub(1, std::memory_order_seq_cst);
    }
    _allowed = false;
}

ReceiveReadiness::Unprepared::~Unprepared() {
    if (_counted) {
        _readiness._unprepared.fetch_sub(1, std::memory_order_seq_cst);
    }
}

void ReceiveReadiness::Unprepared::continues(const MPI_Request request) {
    if (!_counted || request == MPI_REQUEST_NULL) {
        return;
    }
    const std::scoped_lock lock(_readiness._requests_mutex);
    ++_readiness._requests[request];
    _readiness._unprepared_requests.fetch_add(1, std::memory_order_release);
    _counted = false;  // stays counted until it completes
}

void ReceiveReadiness::completed(const MPI_Request request) {
    const std::scoped_lock lock(_requests_mutex);
    const auto found = _requests.find(request);
    if (found == _requests.end()) {
        return;
    }
    if (--found->second == 0) {
        _requests.erase(found);
    }
    _unprepared_requests.fetch_sub(1, std::memory_order_release);
    _unprepared.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace awaken::AWAKEN_ABI
