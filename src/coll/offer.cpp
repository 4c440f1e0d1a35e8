// SPDX-License-Identifier: Apache-2.0
#include "coll/offer.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <utility>

#include "call/stage.h"
#include "coll/collective_comm.h"
#include "gpu/kernels/codes.h"
#include "transfer/pinned_pool.h"

namespace awaken::AWAKEN_ABI {

using coll::Algorithm;
using transfer::DeviceCopies;

namespace {

/// A collective is cut into this many chunks, until chunks are as large as the setting says.
constexpr std::int64_t kFewest = 8;

/// Smaller collectives are never large, so that most calls need not ask for what the members know.
constexpr std::int64_t kNeverLarge = 1024;

const gpu::PointerInfo kHost{};

std::int64_t bytes_of_element(const MPI_Datatype type) {
    return type != MPI_DATATYPE_NULL ? bytes_of(layer().real, 1, type) : 0;
}

}  // namespace

Offer::Offer(Call& call, const MPI_Comm comm, const std::int64_t count, const MPI_Datatype type,
             const std::int64_t blocks)
    : _call(call),
      _communicator(comm),
      _count(std::max<std::int64_t>(count, 0)),
      _element_bytes(bytes_of_element(type)),
      _blocks(blocks) {}

Proposals* Offer::proposals() const {
    if (bytes() < kNeverLarge) {
        return nullptr;
    }
    CollectiveComm* const object = CollectiveComm::of(_communicator);
    Proposals* const known = object != nullptr && !object->is_between() ? object->proposals() : nullptr;
    return known != nullptr && known->are_many(bytes() * _blocks) && known->large.is_over() ? known : nullptr;
}

void Offer::look_at(Side& side, const void* const buffer, const std::int64_t count, const MPI_Datatype type) {
    if (count <= 0 || type == MPI_DATATYPE_NULL) {
        return;
    }
    const Stage::Located located = Stage(_call).locate(buffer, count, type);
    const auto datatype = layer().datatypes.find(type);
    _lead = datatype->layout.true_begin();
    side.address = static_cast<std::byte*>(const_cast<void*>(buffer)) + _lead;
    side.bytes = bytes_of(layer().real, count, type);
    side.info = located.info;
    side.served = located.served;
    side.cut = !located.mixed && datatype->layout.is_contiguous(count);
}

/// The GPU whose memory all of this member's buffers are in, as the library needs it. -1: there is none.
int Offer::device_for_library() const {
    int device = -1;
    for (const Side* const side : {&_from, &_to}) {
        if (side->address == nullptr) {
            continue;
        }
        // The library reads whole elements.
        const std::uint64_t alignment = code != 0 ? kernels::element_alignment(kernels::type_of(code)) : 1;
        if (side->info.kind != gpu::MemoryKind::device || (device >= 0 && side->info.device != device) ||
            reinterpret_cast<std::uintptr_t>(side->address) % alignment != 0) {
            return -1;
        }
        device = side->info.device;
    }
    return device;
}

void Offer::propose(Agreement& agreement) const {
    const auto is_host = [](const Side& side) { return side.address != nullptr && !side.served; };
    const auto has_gaps = [](const Side& side) { return side.address != nullptr && !side.cut; };
    const bool served = _from.served || _to.served;
    agreement.passes(served, is_host(_from) || is_host(_to));
    const Algorithm otherwise = agreement.chosen_without_library();
    if (messages && otherwise == Algorithm::point_to_point) {
        agreement.offer(Algorithm::point_to_point);
    }
    if (has_gaps(_from) || has_gaps(_to) || (served && layer().node_peers.copies() == nullptr)) {
        return;
    }
    if (chunks) {
        agreement.offer(Algorithm::staged);
    }
    if (hierarchical && otherwise == Algorithm::hierarchical) {
        agreement.offer(Algorithm::hierarchical);
    }
    if (library) {
        agreement.offer_library(device_for_library(), *library);
    }
}

// ---- in chunks ------------------------------------------------------------------------------------------------------

struct Offer::InFlight {
    std::int64_t first = 0, count = 0;
    transfer::StagingBlock block;
    DeviceCopies::Copy copy;
};

/// Between this member's buffer and the piece's staging block.
DeviceCopies::Copy Offer::copy(const InFlight& piece, const Side& side, const bool to_block) {
    const auto bytes = static_cast<std::size_t>(piece.count * _element_bytes);
    std::byte* const user = side.address + piece.first * _element_bytes;
    if (!side.served) {
        std::memcpy(to_block ? piece.block.data() : user, to_block ? user : piece.block.data(), bytes);
        return {};
    }
    Layer& owner = layer();
    const int device = side.info.device >= 0 ? side.info.device : owner.gpu().device_to_use();
    const DeviceCopies::End block{piece.block.data(), piece.block.pinned() ? nullptr : &kHost};
    const DeviceCopies::End memory{user, &side.info};
    // Each direction of a link has copy streams of its own, since the two do not share the link's bandwidth.
    return to_block ? owner.node_peers.copies()->start(device, 0, block, memory, bytes)
                    : owner.node_peers.copies()->start(device, 1, memory, block, bytes);
}

Offer::InFlight Offer::load(const std::int64_t first, const std::int64_t count) {
    InFlight piece{first, count, {}, {}};
    if (_from.served || _to.served) {
        piece.block = layer().pool.acquire(layer().gpu(), static_cast<std::size_t>(count * _element_bytes));
        if (_from.address != nullptr && !_error) {
            try {
                piece.copy = copy(piece, _from, true);
            } catch (const Error& error) {
                _error = error;
            }
        }
    }
    return piece;
}

void Offer::finish(InFlight& piece) noexcept {
    try {
        std::exchange(piece.copy, {}).wait();
    } catch (const Error& error) {
        _error = error;
    }
}

void Offer::store(InFlight& piece) noexcept {
    if (_to.address == nullptr || piece.block.data() == nullptr || _error) {
        return;
    }
    try {
        piece.copy = copy(piece, _to, false);
    } catch (const Error& error) {
        _error = error;
    }
}

int Offer::run_in_chunks(const Proposals& proposals, const std::function<int(const Chunk&)>& native) {
    // Before and after the chunk that the MPI has: together as many as fragments of messages to other nodes.
    constexpr std::size_t kUnderWay = 2;
    const auto most = static_cast<std::int64_t>(proposals.chunk_bytes);
    const std::int64_t elements =
        std::max<std::int64_t>(1, std::clamp(bytes() / kFewest, most / kFewest, most) / _element_bytes);
    std::deque<InFlight> loading, storing;
    std::int64_t next = 0;
    int error = MPI_SUCCESS;
    while (error == MPI_SUCCESS && (next < _count || !loading.empty())) {
        for (; next < _count && loading.size() < 1 + kUnderWay; next += loading.back().count) {
            loading.push_back(load(next, std::min(elements, _count - next)));
        }
        InFlight piece = std::move(loading.front());
        loading.pop_front();
        finish(piece);
        std::byte* const block = piece.block.data();
        if (_error && _from.served) {
            std::memset(block, 0xFF, piece.block.size());  // as Stage::load() does
        }
        error = native({block != nullptr ? block - _lead : nullptr, piece.first, piece.count});
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
        throw Error(*_error);
    }
    _call.account(_from.served || _to.served ? report::Path::pipelined : report::Path::native, moved_bytes());
    return error;
}

}  // namespace awaken::AWAKEN_ABI
