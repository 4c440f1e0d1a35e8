// SPDX-License-Identifier: Apache-2.0
#include "coll/device/node_comm.h"

#include <utility>

namespace awaken::coll {

namespace {

/// Identities that a member remembers of each other member.
constexpr std::size_t kMostKnown = 1024;

}  // namespace

NodeComm::NodeComm(node::Segment& segment, std::unique_ptr<ControlBlock> control_block, std::vector<int> processes,
                   const Selection& selection, const std::atomic<Engine*>& engine)
    : _segment(segment),
      _control_block(std::move(control_block)),
      _processes(std::move(processes)),
      _selection(selection),
      _engine(engine),
      _known(_processes.size()) {}

NodeComm::~NodeComm() {
    if (Engine* const engine = _engine.load(std::memory_order_acquire); engine != nullptr && _registered) {
        engine->retire(std::move(_control_block));
    }
}

bool NodeComm::registered(Engine& engine) {
    const std::scoped_lock lock(_mutex);
    if (!_register_tried) {
        _register_tried = true;
        _registered = engine.register_memory(_control_block->memory_of(own()));
    }
    return _registered;
}

bool NodeComm::all_registered(Engine& engine) {
    if (!registered(engine)) {
        return false;
    }
    const std::scoped_lock lock(_mutex);
    if (!std::exchange(_all_tried, true)) {
        _all_registered = true;
        for (int member = 0; member < members() && _all_registered; ++member) {
            _all_registered = member == own() || engine.register_memory(_control_block->memory_of(member));
        }
    }
    return _all_registered;
}

std::unique_ptr<CollectiveOp> NodeComm::begin(const Arguments& arguments) {
    const std::scoped_lock lock(_mutex);
    return std::unique_ptr<CollectiveOp>(new CollectiveOp(shared_from_this(), ++_number, arguments));
}

void NodeComm::saw(const Kind kind, const bool only_device) noexcept {
    const auto bit = std::uint32_t{1} << static_cast<unsigned>(kind);
    if (only_device) {
        _seen.fetch_or(bit, std::memory_order_relaxed);
    } else {
        _seen.fetch_and(~bit, std::memory_order_relaxed);
    }
}

bool NodeComm::agreed(const Kind kind) const noexcept {
    return (_agreed.load(std::memory_order_relaxed) >> static_cast<unsigned>(kind) & 1) != 0;
}

bool NodeComm::is_known(const int member, const Side& side) const noexcept {
    if (side.allocation == 0) {
        return true;  // nothing is needed
    }
    return side.allocation_id != 0 && _known[static_cast<std::size_t>(member)].identities.contains(side.allocation_id);
}

void NodeComm::learn(const int member, const Side& side) {
    if (side.allocation != 0 && side.allocation_id != 0 && !is_known(member, side)) {
        Allocations& known = _known[static_cast<std::size_t>(member)];
        if (known.in_order.size() == kMostKnown) {
            known.identities.erase(known.in_order.front());
            known.in_order.pop_front();
        }
        known.in_order.push_back(side.allocation_id);
        known.identities.insert(side.allocation_id);
    }
}

/// Operations are decided in their order. One that failed before its turn is passed over when its turn comes. Needs the
/// lock.
void NodeComm::no_more_to_decide(const std::uint64_t number) {
    std::uint64_t decided = _decided.load(std::memory_order_relaxed);
    if (number <= decided) {
        return;
    }
    if (number != decided + 1) {
        _decided_early.insert(number);
        return;
    }
    for (decided = number; !_decided_early.empty() && *_decided_early.begin() == decided + 1; ++decided) {
        _decided_early.erase(_decided_early.begin());
    }
    _decided.store(decided, std::memory_order_release);
}

}  // namespace awaken::coll
