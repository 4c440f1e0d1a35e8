// SPDX-License-Identifier: Apache-2.0
#include "coll/point_to_point.h"

#include <algorithm>
#include <utility>

#include "call/layer.h"
#include "call/stage.h"
#include "coll/collective_comm.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// Members that one member exchanges with at a time. They are enough to keep both directions busy while a message
/// begins or ends. They are few enough for the page-locked memory that messages to other nodes pass through.
constexpr int kAtATime = 4;

/// The messages of two members come in the order of the collectives, so they need no tags of their own.
constexpr int kTag = 0;

[[nodiscard]] std::int64_t bytes_in(const BufferView& part) {
    return part.count > 0 ? bytes_of(layer().real, part.count, part.type) : 0;
}

[[nodiscard]] BufferView part_of(const std::vector<BufferView>& parts, const int member) {
    return parts.empty() ? BufferView{} : parts[static_cast<std::size_t>(member)];
}

void add_leg(std::vector<Leg>& legs, const int member, const int tag, const BufferView& part) {
    if (part.count > 0) {
        legs.push_back({{member, tag}, part});
    }
}

}  // namespace

void PointToPoint::add(Parts& parts, const int member, const BufferView& data) {
    // Two members may say in different ways that nothing goes from one to the other.
    if (bytes_in(data) > 0) {
        parts.resize(static_cast<std::size_t>(_group.size));
        parts[static_cast<std::size_t>(member)] = data;
    }
}

void PointToPoint::leaves_own_part() noexcept {
    for (Parts* const parts : {&_sent, &_received}) {
        if (!parts->empty()) {
            (*parts)[static_cast<std::size_t>(_group.rank)] = {};
        }
    }
}

std::uint64_t PointToPoint::bytes() const noexcept {
    std::int64_t most = 0;
    for (const Parts* const parts : {&_sent, &_received}) {
        for (const BufferView& part : *parts) {
            most = std::max(most, bytes_in(part));
        }
    }
    return static_cast<std::uint64_t>(most);
}

std::int64_t PointToPoint::moved_bytes() const noexcept {
    std::int64_t sent = 0, received = 0;
    for (const BufferView& part : _sent) {
        sent += bytes_in(part);
    }
    for (const BufferView& part : _received) {
        received += bytes_in(part);
    }
    return std::max(sent, received);
}

/// False: some part is not a run of bytes in memory of one GPU, which the library needs.
bool PointToPoint::add_parts_of_library(const Parts& parts, std::vector<LibraryBlock>& list, int& device) const {
    const Stage stage(_call);
    for (int member = 0; member < static_cast<int>(parts.size()); ++member) {
        const BufferView& part = parts[static_cast<std::size_t>(member)];
        if (part.count == 0) {
            continue;
        }
        const Stage::Located located = stage.locate(part.address, part.count, part.type);
        if (!located.served || located.mixed || located.type == nullptr ||
            located.info.kind != gpu::MemoryKind::device || !located.type->layout.is_contiguous(part.count) ||
            (device >= 0 && located.info.device != device)) {
            return false;
        }
        device = located.info.device;
        list.push_back(
            {member, part.address + located.type->layout.true_begin(), static_cast<std::uint64_t>(bytes_in(part))});
    }
    return true;
}

void PointToPoint::propose(Agreement& agreement, const Proposals& proposals, const bool on_device) const {
    Layer& owner = layer();
    const std::uint64_t most = bytes();
    const bool large = proposals.are_many(static_cast<std::int64_t>(most));
    agreement.passes(on_device, most > 0 && !on_device);
    // On one node, the table is about kernels that do the collective, in which some member could not take part.
    const coll::Algorithm otherwise = agreement.chosen_without_library();
    const bool willing =
        owner.node_peers.copies() != nullptr &&
        (proposals.nodes > 1 ? otherwise == coll::Algorithm::point_to_point : otherwise != coll::Algorithm::staged);
    agreement.offer(coll::Algorithm::point_to_point, large && willing);
    coll::CclCommunicator::Operation operation;
    operation.kind = _kind;
    operation.in_parts = true;
    int device = -1;
    if (agreement.chosen() != coll::Algorithm::ccl || !add_parts_of_library(_sent, operation.to, device) ||
        !add_parts_of_library(_received, operation.from, device)) {
        return;
    }
    if (_kind == coll::Kind::allgather) {
        operation.send = operation.to.empty() ? nullptr : operation.to.front().address;
        operation.to.clear();
    }
    // Without a device, none of this member's data is moved.
    agreement.offer_library(device < 0 ? owner.gpu().device_to_use() : device, operation, large);
}

MessageRoute PointToPoint::route() const {
    return {messages_of(_communicator), _communicator};
}

/// Exchanges one set of messages. Whatever fails, the next sets follow, since others wait for them.
void PointToPoint::exchange(const MessageList& list) {
    try {
        Messages messages(_call, route(), Messages::Errors::returned);
        static_cast<void>(messages.begin(list));
        const int error = messages.finish();
        _error = _error != MPI_SUCCESS ? _error : error;
    } catch (const Error& failure) {
        _failure = _failure ? _failure : failure;
    }
}

/// At each step, a member sends to the member that is this many places behind it, and receives from the one that is as
/// many places before it. So all members are busy, and none exchanges with all others at a time.
void PointToPoint::in_turn() {
    for (int distance = 0; distance < _group.size; distance += kAtATime) {
        MessageList list;
        for (int each = distance; each < std::min(distance + kAtATime, _group.size); ++each) {
            const int from = (_group.rank + _group.size - each) % _group.size;
            const int to = (_group.rank + each) % _group.size;
            add_leg(list.receives, from, kTag, part_of(_received, from));
            add_leg(list.sends, to, kTag, part_of(_sent, to));
        }
        exchange(list);
    }
}

/// Each member passes on the block that it got last. So a block crosses the link between two nodes once, however many
/// members behind it wait for the block.
void PointToPoint::around_a_ring() {
    const int rank = _group.rank, size = _group.size;
    const auto pass_on = [this](const int from, const BufferView& arriving, const int to, const BufferView& leaving) {
        MessageList list;
        add_leg(list.receives, from, kTag, arriving);
        add_leg(list.sends, to, kTag, leaving);
        exchange(list);
    };
    if (!_sent.empty()) {
        pass_on(rank, part_of(_received, rank), rank, part_of(_sent, rank));
    }
    for (int step = 1; step < size; ++step) {
        const int arriving = (rank + size - step) % size;
        pass_on((rank + size - 1) % size, part_of(_received, arriving), (rank + 1) % size,
                part_of(_received, (arriving + 1) % size));
    }
}

/// All messages. The two groups of an intercommunicator may differ in size, so that there is no order of turns; and a
/// nonblocking collective has no turns, since nobody might begin the next one.
MessageList PointToPoint::all_at_once(const int tag) const {
    MessageList list;
    const bool to_everybody = _kind == coll::Kind::allgather && !_group.between;
    const BufferView own = _sent.empty() ? part_of(_received, _group.rank) : part_of(_sent, _group.rank);
    for (int each = 0; each < _group.size; ++each) {
        const int from = (_group.rank + _group.size - each) % _group.size;
        const int to = (_group.rank + each) % _group.size;
        const bool in_place = to_everybody && _sent.empty() && each == 0;
        if (!in_place) {
            add_leg(list.receives, from, tag, part_of(_received, from));
            add_leg(list.sends, to, tag, to_everybody ? own : part_of(_sent, to));
        }
    }
    return list;
}

int PointToPoint::run() {
    if (_group.between) {
        exchange(all_at_once(kTag));
    } else if (_kind == coll::Kind::allgather) {
        around_a_ring();
    } else {
        in_turn();
    }
    if (_failure) {
        throw Error(*_failure);
    }
    if (_error != MPI_SUCCESS) {
        layer().real.Comm_call_errhandler(_communicator, _error);  // once, whatever has failed
    }
    return _error;
}

int PointToPoint::start(MPI_Request* const request) {
    return start_messages(_call, route(), all_at_once(kTag), request);
}

int PointToPoint::make_persistent(const int tag, MPI_Request* const request) {
    return make_persistent_messages(route(), all_at_once(tag), request);
}

}  // namespace awaken::AWAKEN_ABI
