// SPDX-License-Identifier: Apache-2.0
#include "coll/pipelined.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "coll/collective_comm.h"
#include "gpu/kernels/codes.h"
#include "internode/network.h"

namespace awaken::AWAKEN_ABI {

using transfer::DeviceCopies;

namespace {

/// A collective is cut into this many chunks, until chunks are as large as the setting says.
constexpr std::int64_t kFewest = 8;

/// Smaller collectives are always left whole, so the members need no proposal for them.
constexpr std::int64_t kNeverCut = 1024;

const gpu::PointerInfo kHost{};

}  // namespace

Pipelined::Pipelined(Call& call, const MPI_Comm comm, const std::int64_t count, const MPI_Datatype type,
                     const std::int64_t blocks)
    : _call(call), _communicator(comm), _count(count), _type(type), _blocks(blocks) {}

void Pipelined::look_at(Side& side, const void* const buffer, const std::int64_t rows) {
    Layer& owner = layer();
    const auto datatype = owner.datatypes.find(_type);
    const transfer::Layout& layout = datatype->layout;
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

Proposals* Pipelined::proposals() {
    Layer& owner = layer();
    MPI_Count element = 0;
    if (_count <= 1 || _type == MPI_DATATYPE_NULL || owner.real.Type_size_x(_type, &element) != MPI_SUCCESS ||
        element <= 0 || _count * element < kNeverCut) {
        return nullptr;
    }
    CollectiveComm* const object = CollectiveComm::of(_communicator);
    Proposals* const known = object != nullptr && !object->is_between() ? object->proposals() : nullptr;
    if (known == nullptr) {
        return nullptr;
    }
    _element_bytes = element;
    const auto most = static_cast<std::int64_t>(known->chunk_bytes);
    const std::int64_t least = most / kFewest;
    const std::int64_t column = element * _blocks;  // a chunk has the same elements of all blocks
    if (column > least || !known->are_many(_count * column)) {
        return nullptr;
    }
    _chunk_elements = std::clamp<std::int64_t>(_count * column / kFewest, least, most) / column;
    return known->large.is_over() ? known : nullptr;
}

/// The GPU whose memory all of this member's buffers are in, as the library needs it. -1: there is none.
int Pipelined::device_for_library(const std::uint32_t code) const {
    int device = -1;
    for (const Side* const side : {&_from, &_to}) {
        if (side->address == nullptr) {
            continue;
        }
        if (side->info.kind != gpu::MemoryKind::device || (device >= 0 && side->info.device != device)) {
            return -1;
        }
        // The library reads whole elements. Chunks are only bytes under way.
        const std::uint64_t alignment = code != 0 ? kernels::element_alignment(kernels::type_of(code)) : 1;
        if (reinterpret_cast<std::uintptr_t>(side->address) % alignment != 0) {
            return -1;
        }
        device = side->info.device;
    }
    return device;
}

void Pipelined::propose(Agreement& agreement, const Alternatives& means) {
    const bool served = _from.served || _to.served;
    if (served) {
        _copies = layer().node_peers.copies();
    }
    const auto is_host = [](const Side& side) { return side.address != nullptr && !side.served; };
    agreement.passes(served || _gaps_on_device, is_host(_from) || is_host(_to));
    const coll::Algorithm otherwise = agreement.chosen_without_library();
    if (means.messages && otherwise == coll::Algorithm::point_to_point) {
        agreement.offer(Strategy::point_to_point);
    }
    if (_impossible || (served && _copies == nullptr)) {
        return;
    }
    agreement.offer(Strategy::pipelined);
    if (means.hierarchical && otherwise == coll::Algorithm::hierarchical) {
        agreement.offer(Strategy::hierarchical);
    }
    if (means.library && agreement.chosen() == coll::Algorithm::ccl) {
        agreement.offer_library(device_for_library(means.code), *means.library);
    }
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
    // Before and after the chunk that the MPI has: together as many as fragments of messages to other nodes.
    constexpr std::size_t kUnderWay = 2;
    std::deque<InFlight> loading, storing;
    std::int64_t next = 0;
    int error = MPI_SUCCESS;
    while (error == MPI_SUCCESS && (next < _count || !loading.empty())) {
        for (; next < _count && loading.size() < 1 + kUnderWay; next += loading.back().count) {
            loading.push_back(load(next));
        }
        InFlight piece = std::move(loading.front());
        loading.pop_front();
        finish(piece);
        if (_error && _from.served) {
            std::memset(piece.block.data(), 0xFF, piece.block.size());  // as Stage::load() does
        }
        const auto begin_of = [this](const transfer::StagingBlock& block) {
            return block.data() != nullptr ? block.data() - _lead : nullptr;
        };
        error =
            native({begin_of(piece.block), begin_of(_apart ? piece.result : piece.block), piece.first, piece.count});
        store(piece);
        storing.push_back(std::move(piece));
        if (storing.size() > kUnderWay) {
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
    _call.account(_from.served || _to.served ? report::Path::pipelined : report::Path::native, moved_bytes());
    return error;
}

}  // namespace awaken::AWAKEN_ABI
