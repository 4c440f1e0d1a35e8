// SPDX-License-Identifier: Apache-2.0
#include "coll/device/ccl_group.h"

#include <cstring>

namespace awaken::coll {

bool CclGroup::wanted(const std::vector<std::uint64_t>& devices) {
    if (_state == State::broken) {
        return false;
    }
    if (_devices != devices) {
        if (_state != State::unused) {
            return false;  // made for other GPUs
        }
        _devices = devices;
        _uses = 0;
    }
    return _state == State::ready || ++_uses > CclCommunicator::kUsesBefore;
}

CclGroup::Joining CclGroup::join(Engine& engine, ControlBlock& control_block, const std::uint64_t number,
                                 const int device) {
    const auto mark = [&](Mark& one, const Outcome outcome) {
        one.value.store(mark_of(number, outcome), std::memory_order_release);
    };
    const auto has = [&](const Mark& one) { return one.value.load(std::memory_order_acquire) / 4 == number; };
    const auto is = [&](const Mark& one, const Outcome outcome) {
        return one.value.load(std::memory_order_acquire) == mark_of(number, outcome);
    };
    Mark& invited = control_block.invited(0, number);
    if (_state == State::unused) {
        _state = State::joining;
        if (control_block.own() == 0) {
            ccl::UniqueId identifier;
            ccl::Status status;
            const ccl::Library& library = *engine.ccl();
            static_cast<void>(engine.runtime().run_on(device, [&] { status = library.unique_id(identifier); }));
            if (!status.ok()) {
                _why_no_identifier = library.explain(status);
            }
            static_assert(sizeof(identifier.bytes) == sizeof(control_block.identifier(0)));
            std::memcpy(control_block.identifier(0).data(), identifier.bytes, sizeof identifier.bytes);
            mark(invited, status.ok() ? Outcome::done : Outcome::failed);
        }
    }
    if (!has(invited)) {
        return Joining::under_way;
    }
    if (is(invited, Outcome::failed)) {
        _state = State::broken;
        return Joining::failed;
    }
    if (!_begun) {
        _begun = true;
        ccl::UniqueId identifier;
        std::memcpy(identifier.bytes, control_block.identifier(0).data(), sizeof identifier.bytes);
        _communicator.join(*engine.ccl(), engine.runtime(), device, identifier, control_block.members(),
                           control_block.own());
    }
    Mark& own = control_block.joined(control_block.own(), number);
    if (!has(own)) {
        const CclCommunicator::Joining joining = _communicator.joining();
        if (joining != CclCommunicator::Joining::under_way) {
            mark(own, joining == CclCommunicator::Joining::joined ? Outcome::done : Outcome::failed);
        }
    }
    bool all = true;
    for (int member = 0; member < control_block.members(); ++member) {
        const Mark& one = control_block.joined(member, number);
        if (is(one, Outcome::failed)) {
            abort();
            return Joining::failed;
        }
        all = all && has(one);
    }
    if (!all) {
        return Joining::under_way;
    }
    _state = State::ready;
    return Joining::done;
}

void CclGroup::abort() noexcept {
    _communicator.abort();
    _state = State::broken;
}

}  // namespace awaken::coll
