#include "coll/point_to_point.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "call/layer.h"
#include "call/stage.h"
#include "coll/device/selection.h"

namespace awaken::AWAKEN_ABI {

namespace {

/// Members that one member exchanges with at a time. They are enough to keep both directions busy while a message
/// begins or ends. They are few enough for the page-locked memory that messages to other nodes pass through.
constexpr int kAtATime = 4;

/// The divisor of a fragment's size: smaller parts are not worth a message each.
constexpr std::uint64_t kLeastPart = 4;

/// At most this many collectives pass without a proposal while nothing comes of proposals: no member has device memory,
/// or some have, but little so far.
constexpr std::uint64_t kMostPauseOfHost = 64;
constexpr std::uint64_t kMostPauseOfLittle = 8;

enum BlocksProposal : std::uint32_t {
    kPartsOnDevice = 1,
    kPartsOnHost = 2,
    kLargeForMessages = 4,  ///< a part that the table gives to messages
    kLargeForLibrary = 8,
    kNoLibraryForParts = 16,
    kLeftToMpi = 32
};

/// The messages of two members come in the order of the collectives, so they need no tags of their own.
constexpr int kTag = 0;

}  // namespace

PointToPoint::PointToPoint(Call& call, const MPI_Comm comm, const coll::Kind kind)
    : _call(call), _communicator(comm), _kind(kind) {
    const Native& native = layer().real;
    native.Comm_rank(comm, &_rank);
    native.Comm_size(comm, &_size);
}

PointToPoint::operator bool() {
    _proposals = pipeline_proposals_of(_communicator);
    if (_proposals == nullptr) {
        return false;
    }
    if (_proposals->varying_skip > 0) {
        --_proposals->varying_skip;
        return false;
    }
    return true;
}

void PointToPoint::add(Blocks& parts, const int member, const void* const buffer, const std::int64_t count,
                       const MPI_Datatype type) {
    if (count == 0) {
        return;
    }
    // Two members may say in different ways that nothing goes from one to the other.
    const std::int64_t bytes = bytes_of(layer().real, count, type);
    if (bytes > 0) {
        parts.resize(static_cast<std::size_t>(_size));
        parts[static_cast<std::size_t>(member)] = {static_cast<std::byte*>(const_cast<void*>(buffer)), count, type,
                                                   static_cast<std::uint64_t>(bytes)};
    }
}

void PointToPoint::add_blocks(Blocks& parts, const void* const buffer, const std::int64_t count,
                              const MPI_Datatype type) {
    const std::int64_t block = count * extent_of(type);
    for (int member = 0; member < _size; ++member) {
        add(parts, member, static_cast<const std::byte*>(buffer) + member * block, count, type);
    }
}

void PointToPoint::leaves_own_part() noexcept {
    for (Blocks* const parts : {&_sent, &_received}) {
        if (!parts->empty()) {
            (*parts)[static_cast<std::size_t>(_rank)] = {};
        }
    }
}

std::int64_t PointToPoint::extent_of(const MPI_Datatype type) {
    MPI_Aint lower_bound = 0, extent = 0;
    if (type != MPI_DATATYPE_NULL) {
        layer().real.Type_get_extent(type, &lower_bound, &extent);
    }
    return extent;
}

/// Looks at the first part only. If others differ from it, messages find out, and the choice is no worse than another.
bool PointToPoint::is_device_memory(const Blocks& parts) const {
    const auto first = std::find_if(parts.begin(), parts.end(), [](const Block& part) { return part.count > 0; });
    return first != parts.end() && Stage(_call).locate(first->address, first->count, first->type).served;
}

PointToPoint::~PointToPoint() {
    if (_inter_node_ccl != nullptr) {
        _inter_node_ccl->end();
    }
}

/// False: some part is not a run of bytes in memory of one GPU, which the library needs.
bool PointToPoint::add_parts_of_library(const Blocks& parts, std::vector<LibraryBlock>& list, int& device) const {
    const Stage stage(_call);
    for (int member = 0; member < static_cast<int>(parts.size()); ++member) {
        const Block& part = parts[static_cast<std::size_t>(member)];
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
        list.push_back({member, part.address + located.type->layout.true_begin(), part.bytes});
    }
    return true;
}

/// Whether this member is ready to use NCCL or RCCL.
bool PointToPoint::begin_library() {
    Layer& owner = layer();
    coll::Engine* const engine = owner.node_peers.engine();
    InterNodeCcl* const across = inter_node_ccl_of(_communicator);
    int device = -1;
    _operation.kind = _kind;
    _operation.in_parts = true;
    if (engine == nullptr || across == nullptr || !add_parts_of_library(_sent, _operation.to, device) ||
        !add_parts_of_library(_received, _operation.from, device)) {
        return false;
    }
    if (_kind == coll::Kind::allgather) {
        _operation.send = _operation.to.empty() ? nullptr : _operation.to.front().address;
        _operation.to.clear();
    }
    if (device < 0) {
        device = owner.gpu().device_to_use();  // none of this member's data is moved
    }
    if (device < 0 || !across->begin(*engine, coll::Kind::alltoall, 0, device)) {
        return false;
    }
    _inter_node_ccl = across;
    return true;
}

bool PointToPoint::agreed() {
    Layer& owner = layer();
    coll::Occasion occasion{.kind = _kind, .ranks = _size, .nodes = _proposals->nodes};
    for (const Blocks* const parts : {&_sent, &_received}) {
        for (const Block& part : *parts) {
            occasion.bytes = std::max(occasion.bytes, part.bytes);
        }
    }
    const coll::Selection& table = owner.collectives.selection;
    // On one node, the table is about kernels that do the collective, in which some member could not take part.
    const coll::Algorithm otherwise = table.choose(occasion, coll::Algorithm::ccl);
    const bool willing =
        owner.node_peers.copies() != nullptr &&
        (_proposals->nodes > 1 ? otherwise == coll::Algorithm::point_to_point : otherwise != coll::Algorithm::staged);
    const bool on_device = is_device_memory(_sent) || is_device_memory(_received);
    const bool by_library = table.choose(occasion) == coll::Algorithm::ccl && begin_library();
    std::uint32_t own = 0;
    own |= on_device ? kPartsOnDevice : 0U;
    own |= occasion.bytes > 0 && !on_device ? kPartsOnHost : 0U;
    const bool large = occasion.bytes >= _proposals->chunk_bytes / kLeastPart;
    own |= large && willing ? kLargeForMessages : 0U;
    own |= large && by_library ? kLargeForLibrary : 0U;
    own |= by_library ? 0U : kNoLibraryForParts;
    own |= _left_to_mpi ? kLeftToMpi : 0U;
    std::uint32_t all = 0;
    if (const int error = owner.real.Allreduce(&own, &all, 1, MPI_UINT32_T, MPI_BOR, _communicator);
        error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    const bool right = (all & kLeftToMpi) == 0;
    const bool library = right && (all & kLargeForLibrary) != 0 && (all & (kNoLibraryForParts | kPartsOnHost)) == 0;
    const bool messages = right && (all & kPartsOnDevice) != 0 && (all & kLargeForMessages) != 0;
    const std::uint64_t most = (all & kPartsOnDevice) != 0 ? kMostPauseOfLittle : kMostPauseOfHost;
    _proposals->varying_pause =
        library || messages ? 0 : std::clamp<std::uint64_t>(_proposals->varying_pause * 2, 1, most);
    _proposals->varying_skip = _proposals->varying_pause;
    if (library && _inter_node_ccl->join()) {
        return true;
    }
    if (_inter_node_ccl != nullptr) {
        std::exchange(_inter_node_ccl, nullptr)->end();
    }
    return messages && messages_of(_communicator) != MPI_COMM_NULL;
}

const PointToPoint::Block& PointToPoint::block_of(const Blocks& parts, const int member) {
    static const Block nothing;
    return parts.empty() ? nothing : parts[static_cast<std::size_t>(member)];
}

/// Exchanges one set of messages. Whatever fails, the other messages and the next sets follow, since others wait for
/// them.
void PointToPoint::exchange(const std::vector<Leg>& receives, const std::vector<Leg>& sends) {
    try {
        Messages messages(_call, _own, _communicator, Messages::Errors::returned, receives.size(), sends.size());
        // An MPI without large counts has no collectives with large counts either.
        constexpr bool counts_far = !std::is_same_v<decltype(Native::Isend_c), Absent>;
        const auto begin = [&](const std::vector<Leg>& legs, const auto& post) {
            for (const auto& [member, part] : legs) {
                const MessageEnd end{member, kTag};
                if (part.count <= 0) {
                    continue;
                }
                if (part.count <= std::numeric_limits<int>::max()) {
                    note(post(end, part, static_cast<int>(part.count)));
                } else if constexpr (counts_far) {
                    note(post(end, part, static_cast<MPI_Count>(part.count)));
                }
            }
        };
        begin(receives, [&](const MessageEnd& from, const Block& part, const auto count) {
            return messages.receive(from, part.address, count, part.type);
        });
        begin(sends, [&](const MessageEnd& to, const Block& part, const auto count) {
            return messages.send(to, part.address, count, part.type);
        });
        note(messages.finish());
    } catch (const Error& failure) {
        _failure = _failure ? _failure : failure;
    }
}

/// At each step, a member sends to the member that is this many places behind it, and receives from the one that is as
/// many places before it. So all members are busy, and none exchanges with all others at a time.
void PointToPoint::in_turn() {
    std::vector<Leg> receives, sends;
    for (int distance = 0; distance < _size; distance += kAtATime) {
        receives.clear();
        sends.clear();
        for (int each = distance; each < std::min(distance + kAtATime, _size); ++each) {
            const int from = (_rank + _size - each) % _size, to = (_rank + each) % _size;
            receives.push_back({from, block_of(_received, from)});
            sends.push_back({to, block_of(_sent, to)});
        }
        exchange(receives, sends);
    }
}

/// Each member passes on the block that it got last. So a block crosses the link between two nodes once, however many
/// members behind it wait for the block.
void PointToPoint::around_a_ring() {
    if (!_sent.empty()) {
        exchange({{_rank, block_of(_received, _rank)}}, {{_rank, block_of(_sent, _rank)}});
    }
    const int left = (_rank + _size - 1) % _size, right = (_rank + 1) % _size;
    for (int step = 1; step < _size; ++step) {
        const int arriving = (_rank + _size - step) % _size;
        exchange({{left, block_of(_received, arriving)}}, {{right, block_of(_received, (arriving + 1) % _size)}});
    }
}

int PointToPoint::run() {
    if (_inter_node_ccl != nullptr) {
        std::uint64_t sent = 0, received = 0;
        for (const LibraryBlock& part : _operation.to) {
            sent += part.bytes;
        }
        for (const LibraryBlock& part : _operation.from) {
            received += part.bytes;
        }
        _inter_node_ccl->run(_operation);
        _call.account(report::Path::ccl, static_cast<std::int64_t>(std::max(sent, received)));
        return MPI_SUCCESS;
    }
    _own = messages_of(_communicator);
    _kind == coll::Kind::allgather ? around_a_ring() : in_turn();
    if (_failure) {
        throw Error(*_failure);
    }
    if (_error != MPI_SUCCESS) {
        layer().real.Comm_call_errhandler(_communicator, _error);  // once, whatever has failed
    }
    return _error;
}

}  // namespace awaken::AWAKEN_ABI
