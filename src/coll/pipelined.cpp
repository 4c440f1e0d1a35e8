#include "coll/pipelined.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "gpu/kernels/codes.h"
#include "internode/network.h"

namespace awaken::AWAKEN_ABI {

using transfer::DeviceCopies;

namespace {

/// A collective is cut into this many chunks, until chunks are as large as the setting says.
constexpr std::int64_t kFewest = 8;

/// Smaller collectives are always left whole, so the members need no proposal for them.
constexpr std::int64_t kNeverCut = 1024;

/// While no member has device memory, at most this many collectives pass without a proposal.
constexpr std::uint64_t kMostPause = 64;

enum Proposal : std::uint32_t {
    kHasDeviceMemory = 1,
    kHasHostMemory = 2,
    kCannot = 4,           ///< a datatype with gaps, or no means to copy with
    kNotHierarchical = 8,  ///< this member has no kernels for it, or another table
    kNoLibrary = 16,
    kNoMessages = 32
};

const gpu::PointerInfo kHost{};

}  // namespace

Pipelined::Pipelined(Call& call, const MPI_Comm comm, const std::int64_t count, const MPI_Datatype type,
                     const std::int64_t blocks)
    : _call(call), _communicator(comm), _count(count), _type(type), _blocks(blocks) {}

void Pipelined::look_at(Side& side, const void* const buffer, const std::int64_t rows) {
    Layer& owner = layer();
    const auto datatype = owner.datatypes.find(_type);
    const transfer::Layout& layout = datatype->layout;
    _element_bytes = layout.size();
    _lead = layout.true_begin();
    if (!layout.is_contiguous(_count * rows)) {
        _impossible = true;
        return;
    }
    side.rows = rows;
    side.address = static_cast<std::byte*>(const_cast<void*>(buffer)) + _lead;
    const Stage stage(_call);
    const Stage::Located located = stage.locate(buffer, _count * rows, _type);
    side.served = located.served;
    side.info = located.info;
    _impossible = _impossible || located.mixed;
}

void Pipelined::has_gaps(const void* const buffer, const std::int64_t count, const MPI_Datatype type) {
    _impossible = true;
    _gaps_on_device = _gaps_on_device || Stage(_call).locate(buffer, count, type).served;
}

Pipelined::operator bool() {
    Layer& owner = layer();
    MPI_Count element = 0;
    if (_count <= 1 || _type == MPI_DATATYPE_NULL || owner.real.Type_size_x(_type, &element) != MPI_SUCCESS ||
        element <= 0 || _count * element < kNeverCut) {
        return false;
    }
    _proposals = pipeline_proposals_of(_communicator);
    if (_proposals == nullptr) {
        return false;
    }
    const auto most = static_cast<std::int64_t>(_proposals->chunk_bytes);
    const std::int64_t least = most / kFewest;
    const std::int64_t column = element * _blocks;  // a chunk has the same elements of all blocks
    if (column > least || _count * column < 2 * least) {
        return false;
    }
    _chunk_elements = std::clamp<std::int64_t>(_count * column / kFewest, least, most) / column;
    if (_proposals->skip > 0) {
        --_proposals->skip;
        return false;
    }
    return true;
}

Pipelined::~Pipelined() {
    if (_inter_node_ccl != nullptr) {
        _inter_node_ccl->end();
    }
}

coll::Occasion Pipelined::occasion(const Alternatives& means) const {
    int ranks = 0;
    layer().real.Comm_size(_communicator, &ranks);
    return {*means.kind, coll::type_class_of(*means.kind, means.code), ranks, _proposals->nodes,
            static_cast<std::uint64_t>(_count * _element_bytes)};
}

/// Whether this member is ready to use NCCL or RCCL, which take memory of one GPU.
bool Pipelined::begin_library(const Alternatives& means) {
    Layer& owner = layer();
    coll::Engine* const engine = owner.node_peers.engine();
    InterNodeCcl* const across = inter_node_ccl_of(_communicator);
    if (!means.library || engine == nullptr || across == nullptr || _impossible) {
        return false;
    }
    int device = -1;
    for (const Side* const side : {&_from, &_to}) {
        if (side->address == nullptr) {
            continue;
        }
        if (side->info.kind != gpu::MemoryKind::device || (device >= 0 && side->info.device != device)) {
            return false;
        }
        // The library reads whole elements. Chunks are only bytes under way.
        const std::uint64_t alignment = means.code != 0 ? kernels::element_alignment(kernels::type_of(means.code)) : 1;
        if (reinterpret_cast<std::uintptr_t>(side->address) % alignment != 0) {
            return false;
        }
        device = side->info.device;
    }
    if (device < 0 || !across->begin(*engine, *means.kind, means.code, device)) {
        return false;
    }
    _inter_node_ccl = across;
    _operation = means.library;
    return true;
}

Pipelined::Method Pipelined::agreed(const Alternatives& means) {
    Layer& owner = layer();
    const bool served = _from.served || _to.served;
    if (served) {
        _copies = owner.node_peers.copies();
    }
    const coll::Selection& table = owner.collectives.selection;
    const coll::Algorithm algorithm = means.kind ? table.choose(occasion(means)) : coll::Algorithm::staged;
    std::uint32_t own = 0;
    const auto is_host = [](const Side& side) { return side.address != nullptr && !side.served; };
    own |= served || _gaps_on_device ? kHasDeviceMemory : 0U;
    own |= is_host(_from) || is_host(_to) ? kHasHostMemory : 0U;
    const coll::Algorithm otherwise =
        means.kind ? table.choose(occasion(means), coll::Algorithm::ccl) : coll::Algorithm::staged;
    own |= means.hierarchical && otherwise == coll::Algorithm::hierarchical ? 0U : kNotHierarchical;
    own |= means.messages && otherwise == coll::Algorithm::point_to_point ? 0U : kNoMessages;
    own |= _impossible || (served && _copies == nullptr) ? kCannot : 0U;
    own |= algorithm == coll::Algorithm::ccl && begin_library(means) ? 0U : kNoLibrary;
    std::uint32_t all = kCannot;
    if (const int error = owner.real.Allreduce(&own, &all, 1, MPI_UINT32_T, MPI_BOR, _communicator);
        error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    _proposals->pause =
        (all & kHasDeviceMemory) != 0 ? 0 : std::clamp<std::uint64_t>(_proposals->pause * 2, 1, kMostPause);
    _proposals->skip = _proposals->pause;
    if ((all & kHasDeviceMemory) == 0) {
        return Method::whole;
    }
    if ((all & (kHasHostMemory | kNoLibrary | kCannot)) == 0 && _inter_node_ccl->join()) {
        return Method::library;
    }
    if (_inter_node_ccl != nullptr) {
        std::exchange(_inter_node_ccl, nullptr)->end();
    }
    if ((all & kNoMessages) == 0 && messages_of(_communicator) != MPI_COMM_NULL) {
        return Method::messages;
    }
    if ((all & kCannot) != 0) {
        return Method::whole;
    }
    const bool hierarchical =
        (all & (kHasHostMemory | kNotHierarchical)) == 0 && hierarchy_of(_communicator) != nullptr;
    return hierarchical ? Method::hierarchical : Method::chunks;
}

void Pipelined::run_library() {
    _inter_node_ccl->run(*_operation);
    _call.account(report::Path::ccl, _count * _element_bytes * std::max(_from.rows, _to.rows));
}

void Pipelined::copy(InFlight& piece, const Side& side, const bool to_block) {
    Layer& owner = layer();
    std::byte* const address = side.address + piece.first * _element_bytes;
    const std::int64_t width = piece.count * _element_bytes;
    const std::int64_t pitch = _count * _element_bytes;
    const transfer::StagingBlock& place = !to_block && _apart ? piece.result : piece.block;
    if (!side.served) {
        for (std::int64_t row = 0; row < side.rows; ++row) {
            std::byte* const user = address + row * pitch;
            std::byte* const staged = place.data() + row * width;
            to_block ? std::memcpy(staged, user, static_cast<std::size_t>(width))
                     : std::memcpy(user, staged, static_cast<std::size_t>(width));
        }
        return;
    }
    int device = side.info.device;
    if (device < 0) {
        device = owner.gpu().device_to_use();
    }
    const auto start = [&](const DeviceCopies::End& user, std::byte* const staged, const std::int64_t bytes) {
        const DeviceCopies::End block{staged, place.pinned() ? nullptr : &kHost};
        // Each direction of a link has copy streams of its own, since the two do not share the link's bandwidth.
        piece.copies.push_back(to_block ? _copies->start(device, 0, block, user, static_cast<std::size_t>(bytes))
                                        : _copies->start(device, 1, user, block, static_cast<std::size_t>(bytes)));
    };
    if (side.rows > 1) {
        const transfer::Strided rows{0, width, {side.rows, 1, 1, 1}, {pitch, 0, 0, 0}};
        const auto together = std::make_shared<transfer::TypedMemory>(address, rows);
        if (_copies->can_move(device, *together)) {
            start({address, &side.info, together}, place.data(), width * side.rows);
            return;
        }
    }
    for (std::int64_t row = 0; row < side.rows; ++row) {
        start({address + row * pitch, &side.info}, place.data() + row * width, width);
    }
}

Pipelined::InFlight Pipelined::load(const std::int64_t first) {
    InFlight piece;
    piece.first = first;
    piece.count = std::min(_chunk_elements, _count - first);
    if (!_from.served && !_to.served && _blocks == 1) {
        return piece;
    }
    const auto room_for = [&](const std::int64_t rows) {
        return rows == 0
                   ? transfer::StagingBlock()
                   : layer().pool.acquire(layer().gpu(), static_cast<std::size_t>(rows * piece.count * _element_bytes));
    };
    piece.block = room_for(_apart ? _from.rows : std::max(_from.rows, _to.rows));
    if (_apart) {
        piece.result = room_for(_to.rows);
    }
    if (_from.address != nullptr && !_error) {
        try {
            copy(piece, _from, true);
        } catch (const Error& error) {
            _error = error;
        }
    }
    return piece;
}

void Pipelined::finish(InFlight& piece) noexcept {
    for (DeviceCopies::Copy& copy : piece.copies) {
        try {
            copy.wait();
        } catch (const Error& error) {
            _error = error;
        }
    }
    piece.copies.clear();
}

void Pipelined::store(InFlight& piece) {
    if (_to.address == nullptr || (_apart ? piece.result : piece.block).data() == nullptr || _error) {
        return;
    }
    try {
        copy(piece, _to, false);
    } catch (const Error& error) {
        _error = error;
    }
}

int Pipelined::run(const std::function<int(const Chunk&)>& native) {
    // Before and after the chunk that the MPI has, as many chunks are under way as fragments of messages to other
    // nodes.
    const std::size_t window =
        std::max<std::size_t>(layer().collectives.chunk_window.load(std::memory_order_relaxed) / 2, 1);
    std::deque<InFlight> loading, storing;
    std::int64_t next = 0;
    int error = MPI_SUCCESS;
    while (error == MPI_SUCCESS && (next < _count || !loading.empty())) {
        for (; next < _count && loading.size() < 1 + window; next += loading.back().count) {
            loading.push_back(load(next));
        }
        InFlight piece = std::move(loading.front());
        loading.pop_front();
        finish(piece);
        const auto begin_of = [this](const transfer::StagingBlock& block) {
            return block.data() != nullptr ? block.data() - _lead : nullptr;
        };
        error =
            native({begin_of(piece.block), begin_of(_apart ? piece.result : piece.block), piece.first, piece.count});
        store(piece);
        storing.push_back(std::move(piece));
        if (storing.size() > window) {
            finish(storing.front());
            storing.pop_front();
        }
    }
    for (InFlight& piece : storing) {
        finish(piece);
    }
    if (_error && error == MPI_SUCCESS) {
        throw *_error;
    }
    _call.account(_from.served || _to.served ? report::Path::pipelined : report::Path::native,
                  _count * _element_bytes * std::max(_from.rows, _to.rows));
    return error;
}

}  // namespace awaken::AWAKEN_ABI
