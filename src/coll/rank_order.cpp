// SPDX-License-Identifier: Apache-2.0
#include "coll/rank_order.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

#include "coll/device/host_fold.h"
#include "mpi/kernel_code.h"

namespace awaken::AWAKEN_ABI {

using coll::Kind;
using transfer::Layout;
using transfer::StridedBlock;

namespace {

constexpr std::int64_t kMostInt = std::numeric_limits<int>::max();

/// Up to so many bytes of all members, every member that needs a result gets all operands: one exchange is faster.
constexpr std::int64_t kAtOnce = 16 << 10;
/// Bytes that a member sends in one round. More would not stay in a cache until they are folded.
constexpr std::int64_t kRound = 8 << 20;

void note_exchange() {
    layer().collectives.exchanged_in_rank_order.fetch_add(1, std::memory_order_relaxed);
}

/// Offsets of parts that follow one another.
std::vector<int> offsets_of(const std::vector<int>& counts) {
    std::vector<int> offsets;
    int next = 0;
    for (const int count : counts) {
        offsets.push_back(next);
        next += count;
    }
    return offsets;
}

}  // namespace

bool folds_in_rank_order(const Call& call, const MPI_Comm comm) {
    Layer& owner = layer();
    if (!owner.settings.reproducible && !owner.memory_kinds.is_reproducible(comm)) {
        return false;
    }
    int between = 0;
    owner.real.Comm_test_inter(comm, &between);
    if (between != 0) {
        owner.ledger.add_fallback(call.name(), "not folded in the order of the ranks: an intercommunicator");
    }
    return between == 0;
}

// ---- elements -------------------------------------------------------------------------------------------------------

void RankOrder::Elements::reserve(const Layout& layout, const std::int64_t count) {
    constexpr std::uintptr_t kAlignment = 64;
    const Layout::Span span = layout.span(count);
    const auto bytes = static_cast<std::size_t>(span.end - span.begin) + kAlignment;
    if (bytes > _bytes) {
        _memory.reset();
        _memory.reset(new std::byte[bytes]);
        _bytes = bytes;
    }
    const auto begin = reinterpret_cast<std::uintptr_t>(_memory.get());
    _address = _memory.get() + ((begin + kAlignment - 1) / kAlignment * kAlignment - begin) - span.begin;
}

RankOrder::RankOrder(Call& call, Arguments arguments)
    : _call(call),
      _given(std::move(arguments)),
      _type(_given.type),
      _code(kernel_code(layer().real, _given.op, _given.type)) {
    Layer& owner = layer();
    if (_code == 0) {
        _op.emplace(_given.op);
    }
    _datatype = owner.datatypes.find(_given.type);
    owner.real.Comm_size(_given.comm, &_size);
    owner.real.Comm_rank(_given.comm, &_rank);
    _most = *std::max_element(_given.counts.begin(), _given.counts.end());
}

std::byte* RankOrder::at(const void* const base, const std::int64_t element) const noexcept {
    return static_cast<std::byte*>(const_cast<void*>(base)) + element * _datatype->layout.extent();
}

/// Gaps between the bytes of a datatype belong to the program.
void RankOrder::copy(std::byte* const to, const std::byte* const from, const std::int64_t count) const {
    const Layout& layout = _datatype->layout;
    layout.for_each_block(count, count * layout.size(), [&](const StridedBlock& block) {
        for (std::int64_t row = 0; row < block.rows; ++row) {
            const std::int64_t offset = block.offset + row * block.pitch;
            std::memcpy(to + offset, from + offset, static_cast<std::size_t>(block.width));
        }
    });
}

// ---- folding --------------------------------------------------------------------------------------------------------

/// inout = left op inout
void RankOrder::combine(std::byte* const left, std::byte* const inout, const std::int64_t count) const {
    if (_code != 0) {
        const std::array<const std::byte*, 2> both{left, inout};
        coll::fold_on_host(_code, both, inout, static_cast<std::uint64_t>(count));
        return;
    }
    for (std::int64_t first = 0; first < count; first += kMostInt) {
        layer().real.Reduce_local(at(left, first), at(inout, first),
                                  static_cast<int>(std::min(count - first, kMostInt)), _type.get(), _op->get());
    }
}

void RankOrder::fold(const int parts, const std::int64_t count, std::byte* const target) {
    if (parts == 0 || count == 0) {
        return;
    }
    std::byte* const raw = _raw.address();
    if (_code != 0) {
        std::vector<const std::byte*> sources;
        for (int part = 0; part < parts; ++part) {
            sources.push_back(at(raw, part * count));
        }
        coll::fold_on_host(_code, sources, target, static_cast<std::uint64_t>(count));
        return;
    }
    for (int part = 1; part < parts; ++part) {
        combine(at(raw, (part - 1) * count), at(raw, part * count), count);
    }
    if (std::byte* const last = at(raw, (parts - 1) * count); last != target) {
        copy(target, last, count);
    }
}

void RankOrder::fold_each(const std::int64_t count) {
    std::byte* const raw = _raw.address();
    for (int part = 1; part < _size && count > 0; ++part) {
        combine(at(raw, (part - 1) * count), at(raw, part * count), count);
    }
}

// ---- all at once ----------------------------------------------------------------------------------------------------

/// Each member gets all operands of its result. All members see alike what is too much.
void RankOrder::prepare() {
    const Kind kind = _given.kind;
    if (_most * _size > kMostInt) {
        throw ClassedError(MPI_ERR_COUNT,
                           "a nonblocking or persistent reduction in the order of the ranks has " +
                               std::to_string(_most) + " elements, which are more than 2^31 - 1 for " +
                               std::to_string(_size) + " ranks",
                           "use the blocking form, or cut it into several");
    }
    const auto ranks = static_cast<std::size_t>(_size);
    const bool is_scattered = kind == Kind::reduce_scatter;
    _single.sent.assign(ranks, 0);
    for (int rank = 0; rank < _size; ++rank) {
        const bool gets = kind == Kind::reduce   ? rank == _given.root
                          : kind == Kind::scan   ? rank >= _rank
                          : kind == Kind::exscan ? rank > _rank
                                                 : true;
        const auto index = static_cast<std::size_t>(rank);
        _single.sent[index] = gets ? static_cast<int>(_given.counts[is_scattered ? index : 0]) : 0;
    }
    _single.send_offsets = is_scattered ? offsets_of(_single.sent) : std::vector<int>(ranks, 0);
    _sources = kind == Kind::reduce   ? (_rank == _given.root ? _size : 0)
               : kind == Kind::scan   ? _rank + 1
               : kind == Kind::exscan ? _rank
                                      : _size;
    const auto own = static_cast<int>(_given.counts[is_scattered ? static_cast<std::size_t>(_rank) : 0]);
    _single.received.assign(ranks, 0);
    std::fill_n(_single.received.begin(), _sources, own);
    _single.receive_offsets = offsets_of(_single.received);
    _raw.reserve(_datatype->layout, std::int64_t{own} * _sources);
}

int RankOrder::begin(MPI_Request* const request) {
    return layer().real.Ialltoallv(_given.input, _single.sent.data(), _single.send_offsets.data(), _type.get(),
                                   _raw.address(), _single.received.data(), _single.receive_offsets.data(), _type.get(),
                                   _given.comm, request);
}

int RankOrder::begin(const MPI_Info info, MPI_Request* const request) {
    if constexpr (!std::is_same_v<NativeMember<Function::Alltoallv_init>::Type, Absent>) {
        if (auto* const make = NativeMember<Function::Alltoallv_init>::of(layer().real)) {
            return make(_given.input, _single.sent.data(), _single.send_offsets.data(), _type.get(), _raw.address(),
                        _single.received.data(), _single.receive_offsets.data(), _type.get(), _given.comm, info,
                        request);
        }
    }
    throw ClassedError(MPI_ERR_UNSUPPORTED_OPERATION, "this MPI has no MPI_Alltoallv_init",
                       "use a nonblocking reduction, or do without AWAKEN_REPRODUCIBLE");
}

void RankOrder::fold() {
    note_exchange();
    fold(_sources, _single.received.front(), static_cast<std::byte*>(_given.result));
}

// ---- the blocking form ----------------------------------------------------------------------------------------------

/// The host memory for one round: of what the program passes, or staging buffers for parts of it.
class RankOrder::Round {
  public:
    explicit Round(RankOrder& order) : _order(order), _stage(order._call) {}

    [[nodiscard]] std::byte* input(const std::int64_t first, const std::int64_t count) {
        return placed(Access::in, _order._given.input, first, count);
    }
    /// Null on a member that gets none.
    [[nodiscard]] std::byte* result(const std::int64_t first, const std::int64_t count) {
        return _order._given.result != nullptr ? placed(Access::out, _order._given.result, first, count) : nullptr;
    }
    void load() { _stage.load(Stage::Failure::kept); }
    /// Whatever has failed, the next rounds follow: the other members wait for them.
    void store(const int error) {
        try {
            if (error == MPI_SUCCESS) {
                _stage.store();
            }
        } catch (const Error& failure) {
            _order._failure = _order._failure ? _order._failure : failure;
        }
    }

  private:
    [[nodiscard]] std::byte* placed(const Access access, const void* const base, const std::int64_t first,
                                    const std::int64_t count) {
        return static_cast<std::byte*>(
            _stage.buffer(access, _order.at(base, first), count, _order._type.get(), -1, Packing::mirror).address);
    }

    RankOrder& _order;
    Stage _stage;
};

int RankOrder::run() {
    note_exchange();
    const int error = _given.kind == Kind::reduce_scatter                  ? run_scattered()
                      : _most * _size * _datatype->layout.size() > kAtOnce ? run_in_rounds()
                                                                           : run_at_once();
    if (_failure && error == MPI_SUCCESS) {
        throw Error(*_failure);
    }
    return error;
}

int RankOrder::run_at_once() {
    const Native& native = layer().real;
    const auto count = static_cast<int>(_most);
    const bool collects = _given.kind != Kind::reduce || _rank == _given.root;
    Round round(*this);
    const std::byte* const input = round.input(0, _most);
    std::byte* const result = round.result(0, _most);
    round.load();
    if (collects) {
        _raw.reserve(_datatype->layout, _most * _size);
    }
    const int error =
        _given.kind == Kind::reduce
            ? native.Gather(input, count, _type.get(), _raw.address(), count, _type.get(), _given.root, _given.comm)
            : native.Allgather(input, count, _type.get(), _raw.address(), count, _type.get(), _given.comm);
    if (error == MPI_SUCCESS && result != nullptr) {
        fold(_given.kind == Kind::scan ? _rank + 1 : _given.kind == Kind::exscan ? _rank : _size, _most, result);
    }
    round.store(error);
    return error;
}

/// Each member folds a part, of a window of the elements in each round.
int RankOrder::run_in_rounds() {
    const Native& native = layer().real;
    const std::int64_t window =
        std::clamp(kRound / std::max<std::int64_t>(_datatype->layout.size(), 1), std::int64_t{_size}, kMostInt);
    int error = MPI_SUCCESS;
    for (std::int64_t first = 0; first < _most && error == MPI_SUCCESS; first += window) {
        const auto length = static_cast<int>(std::min(window, _most - first));
        Exchange parts;
        for (int rank = 0; rank < _size; ++rank) {
            parts.sent.push_back(length / _size + (rank < length % _size ? 1 : 0));
        }
        parts.send_offsets = offsets_of(parts.sent);
        const int own = parts.sent[static_cast<std::size_t>(_rank)];
        parts.received.assign(static_cast<std::size_t>(_size), own);
        parts.receive_offsets = offsets_of(parts.received);
        _raw.reserve(_datatype->layout, std::int64_t{own} * _size);
        Round round(*this);
        const std::byte* const input = round.input(first, length);
        std::byte* const result = round.result(first, length);
        round.load();
        error = native.Alltoallv(input, parts.sent.data(), parts.send_offsets.data(), _type.get(), _raw.address(),
                                 parts.received.data(), parts.receive_offsets.data(), _type.get(), _given.comm);
        if (error == MPI_SUCCESS) {
            error = put_together(parts, result);
        }
        round.store(error);
    }
    return error;
}

/// Folds this member's part of a window and gives it to those who get it.
int RankOrder::put_together(const Exchange& parts, std::byte* const result) {
    const Native& native = layer().real;
    const int own = parts.received.front();
    std::byte* const raw = _raw.address();
    if (_given.kind == Kind::allreduce || _given.kind == Kind::reduce) {
        fold(_size, own, raw);
        return _given.kind == Kind::allreduce
                   ? native.Allgatherv(raw, own, _type.get(), result, parts.sent.data(), parts.send_offsets.data(),
                                       _type.get(), _given.comm)
                   : native.Gatherv(raw, own, _type.get(), result, parts.sent.data(), parts.send_offsets.data(),
                                    _type.get(), _given.root, _given.comm);
    }
    // Of a scan each member gets another fold; the first one gets none of an exclusive one.
    fold_each(own);
    std::vector<int> sent = parts.received, offsets = parts.receive_offsets, received = parts.sent;
    if (_given.kind == Kind::exscan) {
        std::rotate(offsets.rbegin(), offsets.rbegin() + 1, offsets.rend());
        sent.front() = 0;
        if (_rank == 0) {
            received.assign(received.size(), 0);
        }
    }
    return native.Alltoallv(raw, sent.data(), offsets.data(), _type.get(), result, received.data(),
                            parts.send_offsets.data(), _type.get(), _given.comm);
}

/// The parts are given. A round sends some elements of each.
int RankOrder::run_scattered() {
    const Layout& layout = _datatype->layout;
    const std::int64_t bytes = std::max<std::int64_t>(layout.size(), 1) * _size;
    const std::int64_t length = std::clamp(kRound / bytes, std::int64_t{1}, kMostInt / _size);
    int error = MPI_SUCCESS;
    for (std::int64_t first = 0; first < _most && error == MPI_SUCCESS; first += length) {
        const auto in_round = [&](const std::int64_t count) {
            return static_cast<int>(std::clamp(count - first, std::int64_t{0}, length));
        };
        Exchange parts;
        for (const std::int64_t count : _given.counts) {
            parts.sent.push_back(in_round(count));
        }
        parts.send_offsets = offsets_of(parts.sent);
        const int own = parts.sent[static_cast<std::size_t>(_rank)];
        parts.received.assign(static_cast<std::size_t>(_size), own);
        parts.receive_offsets = offsets_of(parts.received);
        Round round(*this);
        std::vector<const std::byte*> inputs;
        std::int64_t before = 0;
        for (std::size_t rank = 0; rank < parts.sent.size(); ++rank) {
            inputs.push_back(parts.sent[rank] > 0 ? round.input(before + first, parts.sent[rank]) : nullptr);
            before += _given.counts[rank];
        }
        // In place, the result lies where parts were that have been sent.
        std::byte* const result = own > 0 ? round.result(first, own) : nullptr;
        round.load();
        // The parts may be farther apart than an offset can say.
        _packed.reserve(layout, std::int64_t{parts.send_offsets.back()} + parts.sent.back());
        for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
            copy(at(_packed.address(), parts.send_offsets[rank]), inputs[rank], parts.sent[rank]);
        }
        _raw.reserve(layout, std::int64_t{own} * _size);
        error = layer().real.Alltoallv(_packed.address(), parts.sent.data(), parts.send_offsets.data(), _type.get(),
                                       _raw.address(), parts.received.data(), parts.receive_offsets.data(), _type.get(),
                                       _given.comm);
        if (error == MPI_SUCCESS) {
            fold(_size, own, result);
        }
        round.store(error);
    }
    return error;
}

}  // namespace awaken::AWAKEN_ABI
