// SPDX-License-Identifier: Apache-2.0
#include "coll/agreement.h"

#include <optional>
#include <utility>

#include "base/error.h"
#include "call/layer.h"
#include "coll/collective_comm.h"
#include "coll/inter_node_ccl.h"

namespace awaken::AWAKEN_ABI {

using coll::Algorithm;

namespace {

/// At most this many collectives pass without a proposal: while no member has device memory, and while some have, but
/// too little to do anything about.
constexpr std::uint64_t kMostPause = 64;
constexpr std::uint64_t kMostPauseOfLittle = 8;

/// A proposal. Bits of all members are combined by "or".
constexpr std::uint32_t kHasDeviceMemory = 1, kHasHostMemory = 2;
constexpr std::uint32_t cannot(const Algorithm algorithm) noexcept {
    return 1U << (8 + static_cast<unsigned>(algorithm));
}
constexpr std::uint32_t is_worthwhile(const Algorithm algorithm) noexcept {
    return 1U << (16 + static_cast<unsigned>(algorithm));
}
constexpr std::uint32_t kCannotAny = cannot(Algorithm{coll::kAlgorithmNames.size()}) - cannot(Algorithm{});

/// Whether all members can do it so, and one of them moves enough for it.
[[nodiscard]] bool allow(const std::uint32_t all, const Algorithm algorithm) noexcept {
    return (all & cannot(algorithm)) == 0 && (all & is_worthwhile(algorithm)) != 0;
}

[[nodiscard]] Algorithm choose(const MPI_Comm comm, const Proposals& proposals, const coll::Kind kind,
                               const std::uint32_t code, const std::uint64_t bytes,
                               const std::optional<Algorithm> without) {
    Layer& owner = layer();
    int ranks = 0;
    owner.real.Comm_size(comm, &ranks);
    return owner.collectives.selection.choose({kind, coll::type_class_of(kind, code), ranks, proposals.nodes, bytes},
                                              without);
}

}  // namespace

Agreement::Agreement(Call& call, const MPI_Comm comm, Proposals& proposals, const coll::Kind kind,
                     const std::uint32_t code, const std::uint64_t bytes, const Sizes sizes)
    : _call(call),
      _communicator(comm),
      _proposals(proposals),
      _kind(kind),
      _code(code),
      _varying(sizes == Sizes::varying),
      _chosen(choose(comm, proposals, kind, code, bytes, std::nullopt)),
      _otherwise(choose(comm, proposals, kind, code, bytes, Algorithm::ccl)),
      _own(kCannotAny) {}

Agreement::~Agreement() {
    if (_library != nullptr) {
        _library->end();
    }
}

void Agreement::passes(const bool device_memory, const bool host_memory) noexcept {
    _own |= (device_memory ? kHasDeviceMemory : 0U) | (host_memory ? kHasHostMemory : 0U);
}

void Agreement::offer(const Algorithm algorithm, const bool worthwhile) noexcept {
    _own &= ~cannot(algorithm);
    _own |= worthwhile ? is_worthwhile(algorithm) : 0U;
}

void Agreement::offer_library(const int device, const coll::CclCommunicator::Operation& operation,
                              const bool worthwhile) {
    coll::Engine* const engine = layer().node_peers.engine();
    InterNodeCcl* const across = inter_node_ccl_of(_communicator);
    // A collective in parts needs the same of the library as an all-to-all.
    const coll::Kind needed = operation.in_parts ? coll::Kind::alltoall : operation.kind;
    if (_chosen == Algorithm::ccl && engine != nullptr && across != nullptr && device >= 0 &&
        across->begin(*engine, needed, _code, device)) {
        _library = across;
        _operation = operation;
        offer(Algorithm::ccl, worthwhile);
    }
}

Algorithm Agreement::conclude(const std::uint32_t all) {
    if ((all & kHasDeviceMemory) == 0) {
        return Algorithm::staged;
    }
    const bool only_device = (all & kHasHostMemory) == 0;
    // Made here in any case, since a nonblocking collective may not wait for it.
    const bool messages = allow(all, Algorithm::point_to_point) && messages_of(_communicator) != MPI_COMM_NULL;
    const auto bit = std::uint32_t{1} << static_cast<unsigned>(_kind);
    _proposals.nonblocking = messages && only_device ? _proposals.nonblocking | bit : _proposals.nonblocking & ~bit;
    if (only_device && allow(all, Algorithm::ccl) && _library->join()) {
        return Algorithm::ccl;
    }
    if (_library != nullptr) {
        std::exchange(_library, nullptr)->end();
    }
    if (messages) {
        return Algorithm::point_to_point;
    }
    return only_device && allow(all, Algorithm::hierarchical) && hierarchy_of(_communicator) != nullptr
               ? Algorithm::hierarchical
               : Algorithm::staged;
}

Algorithm Agreement::reached() {
    std::uint32_t all = 0;
    if (const int error = or_of_all(_communicator, _proposals.between, _own, all); error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    const Algorithm algorithm = conclude(all);
    const bool device = (all & kHasDeviceMemory) != 0;
    _in_chunks = device && allow(all, Algorithm::staged);
    if (_varying) {
        _proposals.varying.proposed(algorithm != Algorithm::staged, device ? kMostPauseOfLittle : kMostPause);
    } else {
        _proposals.large.proposed(device, kMostPause);
    }
    return algorithm;
}

void Agreement::run_library(const std::int64_t bytes) {
    _library->run(_operation);
    _call.account(report::Path::ccl, bytes);
}

int or_of_all(const MPI_Comm comm, const bool between, const std::uint32_t own, std::uint32_t& all) {
    const Native& native = layer().real;
    int error = native.Allreduce(&own, &all, 1, MPI_UINT32_T, MPI_BOR, comm);
    if (between && error == MPI_SUCCESS) {
        // Each group got what the other passes. Once more, it gets what it passes itself.
        std::uint32_t passed = 0;
        error = native.Allreduce(&all, &passed, 1, MPI_UINT32_T, MPI_BOR, comm);
        all |= passed;
    }
    return error;
}

int agree_in_barrier(const MPI_Comm comm, Proposals& proposals, const NonblockingSeen& seen) {
    std::uint32_t others = 0;
    const int error = or_of_all(comm, proposals.between, ~seen.only_device, others);
    if (error == MPI_SUCCESS) {
        const std::uint32_t kinds = proposals.nonblocking | (seen.called & ~others);
        const bool something_came =
            kinds != proposals.nonblocking && proposals.all_can_track && messages_of(comm) != MPI_COMM_NULL;
        proposals.nonblocking = something_came ? kinds : proposals.nonblocking;
        proposals.barriers.proposed(something_came, kMostPause);
    }
    return error;
}

}  // namespace awaken::AWAKEN_ABI
