// SPDX-License-Identifier: Apache-2.0
// Decoding follows MPI-4.1, section 5.1.13 (MPI_Type_get_envelope, MPI_Type_get_contents) and its large-count forms.

#include "mpi/datatypes.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace awaken::AWAKEN_ABI {

using transfer::Layout;
using transfer::LayoutNode;

namespace {

/// A datatype handle. The destructor frees it unless it is predefined or was given away.
class TypeHandle {
  public:
    TypeHandle(const Native& native, MPI_Datatype type, bool owned) : _native(&native), _type(type), _owned(owned) {}
    TypeHandle(TypeHandle&& other) noexcept
        : _native(other._native), _type(other._type), _owned(std::exchange(other._owned, false)) {}
    TypeHandle& operator=(TypeHandle&& other) noexcept {
        if (this != &other) {
            reset();
            _native = other._native;
            _type = other._type;
            _owned = std::exchange(other._owned, false);
        }
        return *this;
    }
    ~TypeHandle() { reset(); }

    [[nodiscard]] MPI_Datatype get() const noexcept { return _type; }
    [[nodiscard]] bool owned() const noexcept { return _owned; }
    void give_away() noexcept { _owned = false; }

  private:
    void reset() noexcept {
        if (std::exchange(_owned, false)) {
            _native->Type_free(&_type);
        }
    }
    const Native* _native;
    MPI_Datatype _type;
    bool _owned;
};

struct Decoded {
    Layout layout;
    TypeHandle packed;
    bool scattered = false;
};

/// The arguments that made a type. A large-count constructor gives counts and addresses in one list, in the order of
/// its arguments. The functions here separate them again.
struct Contents {
    int combiner = 0;
    bool large = false;
    std::vector<int> integers;
    std::vector<MPI_Aint> addresses;
    std::vector<MPI_Count> large_counts;
    std::vector<TypeHandle> types;

    /// i-th count, block length or element displacement.
    [[nodiscard]] MPI_Count count(std::size_t i) const { return large ? large_counts.at(i) : integers.at(i); }
    /// i-th byte displacement; `counts` is how many counts precede the addresses in the large form.
    [[nodiscard]] MPI_Count address(std::size_t i, std::size_t counts) const {
        return large ? large_counts.at(counts + i) : static_cast<MPI_Count>(addresses.at(i));
    }
};

/// True for a pair made by MPI_Type_get_value_index, which MPI has since 4.1.
bool is_value_index(const int combiner) {
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
    return combiner == MPI_COMBINER_VALUE_INDEX;
#else
    static_cast<void>(combiner);
    return false;
#endif
}

/// A handle of such a type is never freed.
bool is_predefined(const int combiner) {
    return combiner == MPI_COMBINER_NAMED || combiner == MPI_COMBINER_F90_REAL ||
           combiner == MPI_COMBINER_F90_COMPLEX || combiner == MPI_COMBINER_F90_INTEGER || is_value_index(combiner);
}

/// True when the MPI has the large-count queries. Some headers declare them although the library lacks them.
template <class N>
constexpr bool has_large_envelope = !std::is_same_v<decltype(N::Type_get_envelope_c), Absent> &&
                                    !std::is_same_v<decltype(N::Type_get_contents_c), Absent>;

template <class N>
int combiner_of(const N& native, const MPI_Datatype type) {
    if constexpr (has_large_envelope<N>) {
        if (native.Type_get_envelope_c != nullptr) {
            MPI_Count integers = 0, addresses = 0, counts = 0, types = 0;
            int combiner = MPI_COMBINER_NAMED;
            native.Type_get_envelope_c(type, &integers, &addresses, &counts, &types, &combiner);
            return combiner;
        }
    }
    int integers = 0, addresses = 0, types = 0, combiner = MPI_COMBINER_NAMED;
    native.Type_get_envelope(type, &integers, &addresses, &types, &combiner);
    return combiner;
}

template <class N>
Contents contents_of(const N& native, const MPI_Datatype type) {
    Contents contents;
    std::vector<MPI_Datatype> types;
    // False for a predefined type, which has no contents.
    const auto make_room = [&](const auto integers, const auto addresses, const auto counts, const auto children) {
        if (is_predefined(contents.combiner)) {
            return false;
        }
        contents.large = counts > 0;
        contents.integers.resize(static_cast<std::size_t>(integers));
        contents.addresses.resize(static_cast<std::size_t>(addresses));
        contents.large_counts.resize(static_cast<std::size_t>(counts));
        types.resize(static_cast<std::size_t>(children));
        return true;
    };
    const auto ask_with_ints = [&] {
        int integers = 0, addresses = 0, children = 0;
        native.Type_get_envelope(type, &integers, &addresses, &children, &contents.combiner);
        if (make_room(integers, addresses, 0, children)) {
            native.Type_get_contents(type, integers, addresses, children, contents.integers.data(),
                                     contents.addresses.data(), types.data());
        }
    };
    if constexpr (has_large_envelope<N>) {
        if (native.Type_get_envelope_c != nullptr && native.Type_get_contents_c != nullptr) {
            MPI_Count integers = 0, addresses = 0, counts = 0, children = 0;
            native.Type_get_envelope_c(type, &integers, &addresses, &counts, &children, &contents.combiner);
            if (make_room(integers, addresses, counts, children)) {
                native.Type_get_contents_c(type, integers, addresses, counts, children, contents.integers.data(),
                                           contents.addresses.data(), contents.large_counts.data(), types.data());
            }
        } else {
            ask_with_ints();
        }
    } else {
        ask_with_ints();
    }
    for (const MPI_Datatype child : types) {
        contents.types.emplace_back(native, child, !is_predefined(combiner_of(native, child)));
    }
    return contents;
}

TypeHandle repeat(const Native& native, const MPI_Datatype element, const MPI_Count count) {
    if (count <= INT_MAX) {
        MPI_Datatype type = MPI_DATATYPE_NULL;
        native.Type_contiguous(static_cast<int>(count), element, &type);
        return {native, type, true};
    }
    // count = q * INT_MAX + r, as two blocks: also works on an MPI without large-count constructors.
    const TypeHandle chunk = repeat(native, element, INT_MAX);
    const TypeHandle head = repeat(native, chunk.get(), count / INT_MAX);
    const TypeHandle tail = repeat(native, element, count % INT_MAX);
    MPI_Aint lower = 0, extent = 0;
    native.Type_get_extent(head.get(), &lower, &extent);
    std::array<int, 2> lengths{1, 1};
    std::array<MPI_Aint, 2> displacements{0, extent};
    std::array<MPI_Datatype, 2> types{head.get(), tail.get()};
    MPI_Datatype type = MPI_DATATYPE_NULL;
    native.Type_create_struct(2, lengths.data(), displacements.data(), types.data(), &type);
    return {native, type, true};
}

/// Blocks of different types, packed one after another; the extent equals the size.
TypeHandle concatenate(const Native& native, const std::vector<std::pair<MPI_Datatype, MPI_Count>>& blocks,
                       const std::vector<MPI_Aint>& displacements, const MPI_Aint size) {
    std::vector<TypeHandle> repeated;
    std::vector<MPI_Datatype> types;
    for (const auto& [type, count] : blocks) {
        repeated.push_back(repeat(native, type, count));
        types.push_back(repeated.back().get());
    }
    const std::vector<int> lengths(blocks.size(), 1);
    MPI_Datatype joined = MPI_DATATYPE_NULL;
    native.Type_create_struct(static_cast<int>(blocks.size()), lengths.data(), displacements.data(), types.data(),
                              &joined);
    const TypeHandle guard(native, joined, true);
    MPI_Datatype resized = MPI_DATATYPE_NULL;
    native.Type_create_resized(joined, 0, size, &resized);
    return {native, resized, true};
}

LayoutNode loop(std::vector<LayoutNode> children, const MPI_Count offset, const MPI_Count count,
                const MPI_Count stride) {
    return {offset, 0, count, stride, std::move(children)};
}

LayoutNode loop(const Layout& element, const MPI_Count offset, const MPI_Count count, const MPI_Count stride) {
    return loop(element.nodes(), offset, count, stride);
}

LayoutNode leaf(const MPI_Count offset, const MPI_Count length) {
    return {offset, length, 1, 0, {}};
}

/// The predefined types whose elements have gaps: pairs of a value and an index.
struct PairType {
    MPI_Datatype type;
    MPI_Datatype value;
    MPI_Count value_size;
    MPI_Count index_offset;
};

std::vector<PairType> pair_types() {
    const auto pair = [](auto value, MPI_Datatype type, MPI_Datatype value_type) {
        struct Pair {
            decltype(value) first;
            int second;
        };
        return PairType{type, value_type, sizeof(value), offsetof(Pair, second)};
    };
    return {pair(0.0F, MPI_FLOAT_INT, MPI_FLOAT), pair(0.0, MPI_DOUBLE_INT, MPI_DOUBLE),
            pair(0L, MPI_LONG_INT, MPI_LONG), pair(short{}, MPI_SHORT_INT, MPI_SHORT),
            pair(0.0L, MPI_LONG_DOUBLE_INT, MPI_LONG_DOUBLE)};
}

class Decoder {
  public:
    explicit Decoder(const Native& native) : _native(native) {}

    Decoded decode(const MPI_Datatype type) const {
        const Contents contents = contents_of(_native, type);
        if (is_predefined(contents.combiner)) {
            return predefined(type, contents.combiner);
        }
        MPI_Aint lower = 0, extent = 0;
        _native.Type_get_extent(type, &lower, &extent);
        const auto finish = [&](std::vector<LayoutNode> nodes, TypeHandle packed, bool scattered) {
            return Decoded{Layout(std::move(nodes), lower, extent), std::move(packed), scattered};
        };

        std::vector<Decoded> children;
        for (const TypeHandle& child : contents.types) {
            children.push_back(decode(child.get()));
        }
        if (children.empty()) {
            throw unknown(contents.combiner);
        }
        const Decoded& first = children.front();
        const MPI_Count child_extent = first.layout.extent();

        std::vector<LayoutNode> nodes;
        MPI_Count elements = 0;  // of the (only) child type
        bool scattered = first.scattered;
        switch (contents.combiner) {
            case MPI_COMBINER_DUP:
            case MPI_COMBINER_RESIZED:
                nodes.push_back(loop(first.layout, 0, 1, 0));
                elements = 1;
                break;
            case MPI_COMBINER_CONTIGUOUS:
                elements = contents.count(0);
                nodes.push_back(loop(first.layout, 0, elements, child_extent));
                break;
            case MPI_COMBINER_VECTOR:
            case MPI_COMBINER_HVECTOR: {
                const MPI_Count count = contents.count(0);
                const MPI_Count block = contents.count(1);
                const MPI_Count stride = contents.combiner == MPI_COMBINER_VECTOR ? contents.count(2) * child_extent
                                                                                  : contents.address(0, 2);
                elements = count * block;
                nodes.push_back(loop({loop(first.layout, 0, block, child_extent)}, 0, count, stride));
                break;
            }
            case MPI_COMBINER_INDEXED:
            case MPI_COMBINER_HINDEXED:
            case MPI_COMBINER_INDEXED_BLOCK:
            case MPI_COMBINER_HINDEXED_BLOCK: {
                const bool one_length =
                    contents.combiner == MPI_COMBINER_INDEXED_BLOCK || contents.combiner == MPI_COMBINER_HINDEXED_BLOCK;
                const bool in_bytes =
                    contents.combiner == MPI_COMBINER_HINDEXED || contents.combiner == MPI_COMBINER_HINDEXED_BLOCK;
                const auto n = static_cast<std::size_t>(contents.count(0));
                const std::size_t lengths = one_length ? 1 : n;
                scattered = scattered || in_bytes;
                for (std::size_t i = 0; i < n; ++i) {
                    const MPI_Count block = contents.count(one_length ? 1 : 1 + i);
                    const MPI_Count offset =
                        in_bytes ? contents.address(i, 1 + lengths) : contents.count(1 + lengths + i) * child_extent;
                    elements += block;
                    nodes.push_back(loop(first.layout, offset, block, child_extent));
                }
                break;
            }
            case MPI_COMBINER_STRUCT:
                return structure(contents, children, lower, extent);
            case MPI_COMBINER_SUBARRAY:
                nodes = subarray(contents, first.layout, elements);
                break;
            case MPI_COMBINER_DARRAY:
                nodes = distributed_array(contents, first.layout, elements);
                break;
            default:
                throw unknown(contents.combiner);
        }
        return finish(std::move(nodes), repeat(_native, first.packed.get(), elements), scattered);
    }

  private:
    static Error unknown(const int combiner) {
        return {"a datatype made by a constructor that Awaken does not know (combiner " + std::to_string(combiner) +
                    ") is used with device memory",
                "make the type with one of the constructors of MPI-3.1, or pass a host buffer"};
    }

    Decoded predefined(const MPI_Datatype type, const int combiner) const {
        for (const PairType& pair : pair_types()) {
            if (pair.type == type) {
                MPI_Aint lower = 0, extent = 0;
                _native.Type_get_extent(type, &lower, &extent);
                Layout layout({leaf(0, pair.value_size), leaf(pair.index_offset, sizeof(int))}, lower, extent);
                if (layout.size() == extent) {
                    return {std::move(layout), TypeHandle(_native, type, false)};
                }
                const auto value_size = static_cast<MPI_Aint>(pair.value_size);
                TypeHandle packed = concatenate(_native, {{pair.value, 1}, {MPI_INT, 1}}, {0, value_size},
                                                value_size + static_cast<MPI_Aint>(sizeof(int)));
                return {std::move(layout), std::move(packed)};
            }
        }
        int size = 0;
        _native.Type_size(type, &size);
        if (is_value_index(combiner)) {
            // Only future MPIs make such pairs of types other than the above. A pair with a gap would need its parts.
            MPI_Aint lower = 0, extent = 0;
            _native.Type_get_extent(type, &lower, &extent);
            if (extent != size) {
                throw unknown(combiner);
            }
        }
        return {Layout::contiguous(size), TypeHandle(_native, type, false)};
    }

    Decoded structure(const Contents& contents, const std::vector<Decoded>& children, const MPI_Aint lower,
                      const MPI_Aint extent) const {
        const auto n = static_cast<std::size_t>(contents.count(0));
        std::vector<LayoutNode> nodes;
        std::vector<std::pair<MPI_Datatype, MPI_Count>> blocks;
        std::vector<MPI_Aint> packed_offsets;
        MPI_Aint packed_size = 0;
        for (std::size_t i = 0; i < n; ++i) {
            const Layout& element = children[i].layout;
            const MPI_Count block = contents.count(1 + i);
            if (block == 0 || element.size() == 0) {
                continue;
            }
            nodes.push_back(loop(element, contents.address(i, 1 + n), block, element.extent()));
            blocks.emplace_back(children[i].packed.get(), block);
            packed_offsets.push_back(packed_size);
            packed_size += static_cast<MPI_Aint>(block * element.size());
        }
        return {Layout(std::move(nodes), lower, extent), concatenate(_native, blocks, packed_offsets, packed_size),
                true};
    }

    static std::vector<LayoutNode> subarray(const Contents& contents, const Layout& element, MPI_Count& elements) {
        const auto dimensions = static_cast<std::size_t>(contents.integers.at(0));
        // Small form: ndims, sizes, subsizes, starts, order. Large form: ndims and order are integers, the rest counts.
        const std::size_t from = contents.large ? 0 : 1;
        const int order = contents.large ? contents.integers.at(1) : contents.integers.at(1 + 3 * dimensions);
        std::vector<LayoutNode> nodes = element.nodes();
        MPI_Count stride = element.extent();
        elements = 1;
        for (std::size_t step = 0; step < dimensions; ++step) {
            // Goes from the fastest dimension to the slowest.
            const std::size_t d = order == MPI_ORDER_FORTRAN ? step : dimensions - 1 - step;
            const MPI_Count size = contents.count(from + d);
            const MPI_Count part = contents.count(from + dimensions + d);
            const MPI_Count start = contents.count(from + 2 * dimensions + d);
            nodes = {loop(std::move(nodes), start * stride, part, stride)};
            elements *= part;
            stride *= size;
        }
        return nodes;
    }

    static std::vector<LayoutNode> distributed_array(const Contents& contents, const Layout& element,
                                                     MPI_Count& elements) {
        // Small form: size, rank, ndims, gsizes, distributions, arguments, process grid, order. In the large form
        // gsizes are counts, and the arguments after them move up.
        const int rank = contents.integers.at(1);
        const auto dimensions = static_cast<std::size_t>(contents.integers.at(2));
        std::size_t at = 3 + (contents.large ? 0 : dimensions);
        const std::size_t distributions = at, arguments = at + dimensions, grid = at + 2 * dimensions;
        const int order = contents.integers.at(at + 3 * dimensions);
        const auto global_size = [&](std::size_t d) {
            return contents.large ? contents.large_counts.at(d) : static_cast<MPI_Count>(contents.integers.at(3 + d));
        };
        // The process grid is in C order, whatever the order of the array is.
        std::vector<int> coordinates(dimensions);
        int remaining = rank;
        for (std::size_t d = dimensions; d-- > 0;) {
            coordinates[d] = remaining % contents.integers.at(grid + d);
            remaining /= contents.integers.at(grid + d);
        }

        std::vector<LayoutNode> nodes = element.nodes();
        MPI_Count stride = element.extent();
        elements = 1;
        for (std::size_t step = 0; step < dimensions; ++step) {
            const std::size_t d = order == MPI_ORDER_FORTRAN ? step : dimensions - 1 - step;
            const MPI_Count size = global_size(d);
            const MPI_Count processes = contents.integers.at(grid + d);
            const MPI_Count here = coordinates[d];
            const int distribution = contents.integers.at(distributions + d);
            const int argument = contents.integers.at(arguments + d);
            // Block length of the equivalent block-cyclic distribution of this dimension.
            MPI_Count block = size;
            if (distribution == MPI_DISTRIBUTE_BLOCK) {
                block = argument == MPI_DISTRIBUTE_DFLT_DARG ? (size + processes - 1) / processes : argument;
            } else if (distribution == MPI_DISTRIBUTE_CYCLIC) {
                block = argument == MPI_DISTRIBUTE_DFLT_DARG ? 1 : argument;
            }
            const MPI_Count start = distribution == MPI_DISTRIBUTE_NONE ? 0 : here * block;
            const MPI_Count cycle = distribution == MPI_DISTRIBUTE_NONE ? size : block * processes;
            const MPI_Count available = std::max<MPI_Count>(0, size - start);
            const MPI_Count full = available / cycle + (available % cycle >= block ? 1 : 0);
            const MPI_Count rest = available % cycle >= block ? 0 : available % cycle;
            std::vector<LayoutNode> outer;
            if (full > 0) {
                outer.push_back(loop({loop(nodes, 0, block, stride)}, start * stride, full, cycle * stride));
            }
            if (rest > 0) {
                outer.push_back(loop(nodes, (start + full * cycle) * stride, rest, stride));
            }
            nodes = std::move(outer);
            elements *= full * block + rest;
            stride *= size;
        }
        return nodes;
    }

    const Native& _native;
};

/// What a thread looked up last: most calls use the same type as the previous call.
struct RecentDatatype {
    const Datatypes* owner = nullptr;
    std::uint64_t generation = 0;
    MPI_Datatype type{};
    const Datatype* datatype = nullptr;

    [[nodiscard]] bool is(const Datatypes* const wanted_owner, const std::uint64_t wanted_generation,
                          const MPI_Datatype wanted) const noexcept {
        return owner == wanted_owner && generation == wanted_generation && type == wanted;
    }
};
constinit thread_local RecentDatatype recent_datatype;

}  // namespace

Datatype::~Datatype() {
    release_packed();
}

void Datatype::release_packed() const noexcept {
    if (_owns_packed.exchange(false)) {
        MPI_Datatype type = packed;
        _native.Type_free(&type);
    }
}

std::shared_ptr<const Datatype> Datatypes::find(const MPI_Datatype type) {
    const std::uint64_t generation = _generation.load(std::memory_order_acquire);
    if (recent_datatype.is(this, generation, type)) {
        return recent_datatype.datatype->shared_from_this();
    }
    {
        const std::shared_lock lock(_mutex);
        if (const auto known = _known.find(type); known != _known.end()) {
            recent_datatype = {this, generation, type, known->second.get()};
            return known->second;
        }
    }
    auto datatype = decode(type);
    const std::unique_lock lock(_mutex);
    return _known.try_emplace(type, std::move(datatype)).first->second;
}

void Datatypes::check(const MPI_Datatype type) {
    if (!recent_datatype.is(this, _generation.load(std::memory_order_acquire), type)) {
        static_cast<void>(find(type));
    }
}

std::shared_ptr<const Datatype> Datatypes::decode(const MPI_Datatype type) const {
    if (!is_predefined(combiner_of(_native, type))) {
        _refuse_uncommitted(type);
    }
    Decoded decoded = Decoder(_native).decode(type);
    MPI_Datatype packed = decoded.packed.get();
    const bool owned = decoded.packed.owned();
    if (owned) {
        _native.Type_commit(&packed);
        decoded.packed.give_away();
    }
    return std::make_shared<const Datatype>(_native, std::move(decoded.layout), packed, owned, decoded.scattered);
}

std::int64_t bytes_of(const Native& native, const std::int64_t count, const MPI_Datatype type) {
    MPI_Count size = 0;
    if (count <= 0 || type == MPI_DATATYPE_NULL || native.Type_size_x(type, &size) != MPI_SUCCESS) {
        return 0;
    }
    return count * static_cast<std::int64_t>(size);
}

MPI_Datatype element_of(const Native& native, const MPI_Datatype type) {
    if (is_predefined(combiner_of(native, type))) {
        return type;
    }
    const Contents contents = contents_of(native, type);
    for (std::size_t i = 0; i < contents.types.size(); ++i) {
        const MPI_Datatype child = contents.types[i].get();
        // A block of a structure may be empty. It then says nothing of the structure's elements.
        const bool empty = contents.combiner == MPI_COMBINER_STRUCT && contents.count(1 + i) == 0;
        MPI_Count bytes = 0;
        if (!empty && native.Type_size_x(child, &bytes) == MPI_SUCCESS && bytes > 0) {
            return element_of(native, child);
        }
    }
    return MPI_DATATYPE_NULL;
}

void Datatypes::forget(const MPI_Datatype type) {
    const std::unique_lock lock(_mutex);
    if (_known.erase(type) != 0) {
        _generation.fetch_add(1, std::memory_order_release);
    }
}

void Datatypes::clear() {
    const std::unique_lock lock(_mutex);
    for (const auto& [handle, datatype] : _known) {
        datatype->release_packed();
    }
    _known.clear();
    _generation.fetch_add(1, std::memory_order_release);
}

}  // namespace awaken::AWAKEN_ABI
