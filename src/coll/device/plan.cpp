// SPDX-License-Identifier: Apache-2.0
#include "coll/device/plan.h"

#include <algorithm>

namespace awaken::coll {

namespace {

/// Partitions begin at a multiple of so many bytes, so that vectors of all members are aligned alike.
constexpr std::uint64_t kShareUnit = 256;

struct Partition {
    std::uint64_t begin = 0, count = 0;  ///< elements
};

/// The partition of `elements` that worker number `worker` of `workers` gets.
Partition partition_of(const std::uint64_t elements, const std::uint64_t element_bytes, const int workers,
                       const int worker) {
    const std::uint64_t unit = std::max<std::uint64_t>(1, kShareUnit / element_bytes);
    const auto count = static_cast<std::uint64_t>(workers);
    std::uint64_t each = (elements + count - 1) / count;
    each = (each + unit - 1) / unit * unit;
    const std::uint64_t begin = std::min(elements, each * static_cast<std::uint64_t>(worker));
    return {begin, std::min(each, elements - begin)};
}

class Planner {
  public:
    Planner(const Shape& shape, const Algorithm algorithm) : _shape(shape), _algorithm(algorithm) {}

    Plan make() {
        switch (_shape.kind) {
            case Kind::allreduce:
                reduce(0, [&](Combination& combination, const std::uint64_t offset) {
                    for (int member = 0; member < _shape.members; ++member) {
                        if (!for_itself() || member == _shape.own) {
                            combination.targets[combination.target_count++] = {member, true, offset};
                        }
                    }
                });
                break;
            case Kind::reduce:
                reduce(_shape.root, [&](Combination& combination, const std::uint64_t offset) {
                    combination.targets[combination.target_count++] = {_shape.root, true, offset};
                });
                break;
            case Kind::reduce_scatter:
                reduce_own_part();
                break;
            case Kind::broadcast:
                broadcast();
                break;
            case Kind::gather:
                if (!(_shape.in_place && _shape.own == _shape.root)) {
                    move({_shape.root, true, part_of(_shape.root, true, _shape.own)}, {_shape.own, false, 0},
                         _shape.own_bytes);
                }
                break;
            case Kind::scatter:
                if (!(_shape.in_place && _shape.own == _shape.root)) {
                    move({_shape.own, true, 0}, {_shape.root, false, part_of(_shape.root, false, _shape.own)},
                         _shape.own_bytes);
                }
                break;
            case Kind::allgather:
                hand_out();
                break;
            case Kind::alltoall:
                collect();
                break;
            case Kind::scan:
                reduce_members_before(_shape.own + 1);
                break;
            case Kind::exscan:
                reduce_members_before(_shape.own);
                break;
            case Kind::barrier:
            case Kind::neighborhood:
                break;
        }
        return std::move(_plan);
    }

  private:
    [[nodiscard]] std::uint64_t part_of(const int member, const bool receives, const int index) const noexcept {
        const std::uint64_t* const table = _shape.offsets[static_cast<std::size_t>(member)];
        if (table == nullptr) {
            return static_cast<std::uint64_t>(index) * _shape.block_bytes;
        }
        return table[(receives ? _shape.members : 0) + index];
    }

    [[nodiscard]] bool for_itself() const noexcept {
        return _algorithm == Algorithm::one_shot && _shape.kind == Kind::allreduce;
    }

    void move(const Operand& target, const Operand& source, const std::uint64_t bytes) {
        if (bytes != 0) {
            _plan.moves.push_back({target, source, bytes});
        }
    }

    /// A worker's partition of a reduction of all send buffers.
    template <class Targets>
    void reduce(const int single, const Targets& targets) {
        Partition share{0, _shape.elements};
        if (_algorithm == Algorithm::two_shot) {
            share = partition_of(_shape.elements, _shape.element_bytes, _shape.members, _shape.own);
        } else if (_shape.own != single && !for_itself()) {
            return;
        }
        if (share.count == 0) {
            return;
        }
        const std::uint64_t offset = share.begin * _shape.element_bytes;
        Combination combination;
        combination.elements = share.count;
        for (int member = 0; member < _shape.members; ++member) {
            combination.sources[combination.source_count++] = {member, false, offset};
        }
        targets(combination, offset);
        _plan.combinations.push_back(combination);
    }

    void reduce_own_part() {
        if (_shape.elements == 0) {
            return;
        }
        Combination combination;
        combination.elements = _shape.elements;
        for (int member = 0; member < _shape.members; ++member) {
            combination.sources[combination.source_count++] = {member, false, _shape.own_offset};
        }
        combination.targets[combination.target_count++] = {_shape.own, true, 0};
        _plan.combinations.push_back(combination);
    }

    /// scan, exscan: each member works for itself.
    void reduce_members_before(const int end) {
        if (_shape.elements == 0 || end == 0) {
            return;
        }
        Combination combination;
        combination.elements = _shape.elements;
        for (int member = 0; member < end; ++member) {
            combination.sources[combination.source_count++] = {member, false, 0};
        }
        combination.targets[combination.target_count++] = {_shape.own, true, 0};
        _plan.combinations.push_back(combination);
    }

    /// Each byte crosses the root's link once: every other member fetches a partition and gives it to the rest. If
    /// there are few bytes, the root writes to all.
    void broadcast() {
        Partition share{0, _shape.elements};
        const int others = _shape.members - 1;
        if (others == 0) {
            return;
        }
        if (_algorithm == Algorithm::two_shot) {
            if (_shape.own == _shape.root) {
                return;
            }
            const int worker = (_shape.own - _shape.root - 1 + _shape.members) % _shape.members;
            share = partition_of(_shape.elements, 1, others, worker);
        } else if (_shape.own != _shape.root) {
            return;
        }
        if (share.count == 0) {
            return;
        }
        Combination combination;
        combination.elements = share.count;
        combination.sources[combination.source_count++] = {_shape.root, false, share.begin};
        for (int step = 0; step < _shape.members; ++step) {
            // Each member begins with another target, so that they do not all write to the same member at a time.
            const int member = (_shape.own + step) % _shape.members;
            if (member != _shape.root) {
                combination.targets[combination.target_count++] = {member, true, share.begin};
            }
        }
        _plan.combinations.push_back(combination);
    }

    /// allgather: each member writes its own part to all others.
    void hand_out() {
        if (_shape.own_bytes == 0) {
            return;
        }
        Combination combination;
        combination.elements = _shape.own_bytes;
        combination.sources[combination.source_count++] = {_shape.own, false, 0};
        for (int step = _shape.in_place ? 1 : 0; step < _shape.members; ++step) {
            const int member = (_shape.own + step) % _shape.members;
            combination.targets[combination.target_count++] = {member, true, part_of(member, true, _shape.own)};
        }
        if (combination.target_count != 0) {
            _plan.combinations.push_back(combination);
        }
    }

    /// alltoall: each member fetches its part from all others.
    void collect() {
        for (int step = 0; step < _shape.members; ++step) {
            const int member = (_shape.own + step) % _shape.members;
            const std::uint64_t bytes = _shape.bytes_from != nullptr ? _shape.bytes_from[member] : _shape.block_bytes;
            move({_shape.own, true, part_of(_shape.own, true, member)},
                 {member, false, part_of(member, false, _shape.own)}, bytes);
        }
    }

    const Shape& _shape;
    const Algorithm _algorithm;
    Plan _plan;
};

constexpr std::array<const char*, kKinds> kKindNames = {"broadcast", "reduce",    "allreduce",      "gather",
                                                        "scatter",   "allgather", "reduce_scatter", "alltoall",
                                                        "scan",      "exscan",    "barrier",        "neighborhood"};

}  // namespace

const char* to_string(const Kind kind) noexcept {
    return kKindNames[static_cast<std::size_t>(kind)];
}

const char* to_string(const Algorithm algorithm) noexcept {
    return kAlgorithmNames[static_cast<std::size_t>(algorithm)];
}

Plan make_plan(const Shape& shape, const Algorithm algorithm) {
    return Planner(shape, algorithm).make();
}

}  // namespace awaken::coll
