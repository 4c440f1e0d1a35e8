// The buffers of one MPI call, as the MPI underneath may see them.
//
// A Stage stands between the program's buffers and the MPI: a buffer in host memory is handed on as it is; any other
// gets a staging buffer in host memory with an equivalent datatype. load() fills the staging buffers of what is sent,
// store() copies what was received back. Nothing else in the library decides whether a buffer needs service.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "gpu/gpu.h"
#include "mpi/datatypes.h"
#include "transfer/pinned_pool.h"

namespace awaken::AWAKEN_ABI {

class Call;
class Layer;

enum class Access : std::uint8_t {
    in = 1,    ///< the MPI reads it
    out = 2,   ///< the MPI writes all of it (of a receive: as much as the status says)
    inout = 3  ///< read and written, or written in part only
};

/// How a staging buffer relates to the buffer.
enum class Packing : std::uint8_t {
    packed,  ///< only the datatype's bytes, one after another, with the packed type: for everything that moves data
    mirror   ///< the same layout and the program's own type: for reductions, whose operator looks at the elements
};

/// A buffer argument as it is handed to the MPI.
template <class Count>
struct Argument {
    void* address;
    Count count;
    MPI_Datatype type;
};

/// The arguments of a v-collective: counts stay the program's, displacements may be new.
template <class Displacement>
struct VectorArgument {
    void* address;
    const Displacement* displacements;
    MPI_Datatype type;
};

/// The arguments of a w-collective.
template <class Displacement>
struct TypedVectorArgument {
    void* address;
    const Displacement* displacements;
    const MPI_Datatype* types;
};

class Stage {
  public:
    explicit Stage(Call& call);
    Stage(Stage&&) = default;
    Stage& operator=(Stage&&) = default;

    /// One buffer of `count` elements. `total` is the number of elements in memory where that is more than the count
    /// argument says (a gathered buffer holds ranks * count); `stored` the number that store() writes back (-1: all).
    template <class Count>
    [[nodiscard]] Argument<Count> buffer(Access access, const void* address, Count count, MPI_Datatype type,
                                         std::int64_t total = -1, Packing packing = Packing::packed,
                                         std::int64_t stored = -1) {
        const std::int64_t elements = total < 0 ? static_cast<std::int64_t>(count) : total;
        const Placed placed = place(access, address, elements, type, packing, stored, locate(address, elements, type));
        return {placed.address, count, placed.type};
    }

    /// What a buffer is.
    struct Located {
        std::shared_ptr<const Datatype> type;  ///< null when the buffer was not looked at: nothing travels, or no GPU
        gpu::PointerInfo info;
        bool served = false;  ///< not plain host memory
        bool mixed = false;   ///< blocks in different kinds of memory
    };
    [[nodiscard]] Located locate(const void* address, std::int64_t count, MPI_Datatype type) const;
    /// As buffer(), for a packed buffer that was located before.
    template <class Count>
    [[nodiscard]] Argument<Count> buffer(Access access, const void* address, Count count, MPI_Datatype type,
                                         Located located) {
        const auto elements = static_cast<std::int64_t>(count);
        const Placed placed = place(access, address, elements, type, Packing::packed, -1, std::move(located));
        return {placed.address, count, placed.type};
    }
    /// Counts the bytes of a host buffer, which only a report asks for.
    void account_native(std::int64_t count, MPI_Datatype type) const;
    /// The packed bytes of the only staging buffer.
    [[nodiscard]] const std::byte* packed() const noexcept { return _staging_buffers.front().block.data(); }

    /// Call first for a persistent operation, whose buffers restart() will look at again.
    void watch() noexcept { _watching = true; }

    /// `n` blocks of one buffer, displacements in extents of `type`.
    template <class Count, class Displacement>
    [[nodiscard]] VectorArgument<Displacement> blocks(Access access, const void* address, const Count* counts,
                                                      const Displacement* displacements, MPI_Datatype type, int n);

    /// `n` blocks with types of their own, displacements in bytes.
    template <class Count, class Displacement>
    [[nodiscard]] TypedVectorArgument<Displacement> typed_blocks(Access access, const void* address,
                                                                 const Count* counts, const Displacement* displacements,
                                                                 const MPI_Datatype* types, int n);

    /// `partitions` equal parts of `count` elements that are loaded and stored one by one. Returns false, and does
    /// nothing, for host memory.
    bool partitions(Access access, const void* address, std::int64_t partitions, std::int64_t count, MPI_Datatype type,
                    Argument<MPI_Count>& argument);
    void load_partition(std::int64_t partition);
    /// Stores a partition unless that was done since the last restart.
    void store_partition(std::int64_t partition);

    /// True when some buffer has a staging buffer.
    [[nodiscard]] bool active() const noexcept { return !_staging_buffers.empty(); }
    /// Copies to the staging buffers of all buffers that are read.
    void load();
    /// Copies from the staging buffers of all buffers that are written; `received` limits it to that many bytes (-1:
    /// all).
    void store(std::int64_t received = -1);
    /// For persistent operations, before each start: looks up again where the buffers are, since the program may have
    /// freed and reallocated them, and forgets which partitions were stored. Throws ClassedError when a buffer that was
    /// host memory at initialisation no longer is.
    void restart();
    /// Gives the staging buffers back.
    void release() noexcept { _staging_buffers.clear(); }

  private:
    /// Part of a user's buffer that is copied as a whole.
    struct Segment {
        std::byte* user;
        std::int64_t count;
        std::int64_t stored;  ///< elements that store() writes, <= count
        std::shared_ptr<const Datatype> type;
        std::int64_t
            offset;  ///< of its staging buffer in the block, the staging buffer of what the user's address points at
        bool mixed;  ///< blocks in different kinds of memory
        gpu::PointerInfo info;
        /// Of the staging buffer when the partition was stored; 0 while it was not. An MPI may say that a partition has
        /// arrived and still change it before the operation completes (seen in Open MPI 5 with unequal partition
        /// counts).
        std::uint64_t stored_checksum = 0;
    };
    struct StagingBuffer {
        transfer::StagingBlock block;
        std::vector<Segment> segments;
        Access access;
        Packing packing;
        bool by_partition = false;
    };
    struct Placed {
        void* address;
        MPI_Datatype type;
    };
    /// A block of a v- or w-collective before it is placed.
    struct Block {
        std::byte* user;
        std::int64_t count;
        MPI_Datatype type;
    };
    /// A host buffer of a persistent operation, to be looked at again at each start.
    struct Watched {
        const void* address;
        std::int64_t count;
        std::shared_ptr<const Datatype> type;
    };

    [[nodiscard]] Placed place(Access access, const void* address, std::int64_t count, MPI_Datatype type,
                               Packing packing, std::int64_t stored, Located located);
    [[nodiscard]] Located locate(const void* address, std::int64_t count, std::shared_ptr<const Datatype> type) const;
    [[nodiscard]] bool may_need_service() const;
    [[nodiscard]] bool may_need_service(MPI_Datatype type) const;
    [[nodiscard]] static std::int64_t extent_of(MPI_Datatype type);
    /// Whether bytes that are one run for the datatype lie in several allocations that touch: blocks at addresses of
    /// memory allocated one after the other are joined. A run that ends where no GPU knows memory is the program's
    /// error, and found when it is copied.
    [[nodiscard]] bool reaches_next(const void* first, std::int64_t bytes, const gpu::PointerInfo& info) const;
    [[nodiscard]] bool any_block_served(const std::byte* address, std::int64_t count, const Datatype& type) const;
    void check(const void* address, std::int64_t count, const Datatype& type, const Located& located) const;
    /// One stretch of memory, `offset` bytes from the argument.
    void check_range(const void* address, std::int64_t offset, std::int64_t bytes, const gpu::PointerInfo& info) const;
    /// Places `blocks` one after another in a staging buffer; `offsets` receives where each begins, in bytes. False for
    /// host memory.
    bool place_blocks(Access access, const std::vector<Block>& blocks, bool one_type,
                      std::vector<std::int64_t>& offsets, std::vector<std::shared_ptr<const Datatype>>& types,
                      std::byte*& base);
    StagingBuffer& add_staging_buffer(Access access, Packing packing, std::size_t bytes);
    void load(const StagingBuffer& staged, const Segment& segment);
    void store(const StagingBuffer& staged, Segment& segment, std::int64_t limit);
    [[nodiscard]] std::int64_t bytes_of(const StagingBuffer& staged, const Segment& segment) const;
    void store_partition(const StagingBuffer& staged, Segment& segment);
    [[nodiscard]] static Error too_far();

    Layer* _layer;
    const char* _function;
    Call* _call;  ///< for accounting, while the call lasts
    std::vector<StagingBuffer> _staging_buffers;
    std::vector<Watched> _watched;
    bool _watching = false;
    /// Displacement and type arrays handed to the MPI; nonblocking operations need them until they complete.
    std::vector<std::shared_ptr<void>> _arrays;
};

template <class Count, class Displacement>
VectorArgument<Displacement> Stage::blocks(const Access access, const void* const address, const Count* const counts,
                                           const Displacement* const displacements, const MPI_Datatype type,
                                           const int n) {
    const VectorArgument<Displacement> unchanged{const_cast<void*>(address), displacements, type};
    if (n <= 0 || !may_need_service(type)) {
        for (int i = 0; i < n && counts != nullptr; ++i) {
            account_native(static_cast<std::int64_t>(counts[i]), type);
        }
        return unchanged;
    }
    const std::int64_t extent = extent_of(type);
    std::vector<Block> blocks;
    blocks.reserve(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
        blocks.push_back({static_cast<std::byte*>(const_cast<void*>(address)) + displacements[i] * extent,
                          static_cast<std::int64_t>(counts[i]), type});
    }
    std::vector<std::int64_t> offsets;
    std::vector<std::shared_ptr<const Datatype>> types;
    std::byte* base = nullptr;
    if (!place_blocks(access, blocks, true, offsets, types, base)) {
        return unchanged;
    }
    // In the staging buffer, block follows block: displacements count elements of the packed type.
    const std::int64_t size = types.front()->layout.size();
    auto moved = std::make_shared<std::vector<Displacement>>();
    for (const std::int64_t offset : offsets) {
        const std::int64_t elements = offset / size;
        if (elements != static_cast<std::int64_t>(static_cast<Displacement>(elements))) {
            throw too_far();
        }
        moved->push_back(static_cast<Displacement>(elements));
    }
    _arrays.push_back(moved);
    return {base, moved->data(), types.front()->packed};
}

template <class Count, class Displacement>
TypedVectorArgument<Displacement> Stage::typed_blocks(const Access access, const void* const address,
                                                      const Count* const counts,
                                                      const Displacement* const displacements,
                                                      const MPI_Datatype* const types, const int n) {
    const TypedVectorArgument<Displacement> unchanged{const_cast<void*>(address), displacements, types};
    if (n <= 0 || !may_need_service()) {
        for (int i = 0; i < n && counts != nullptr; ++i) {
            account_native(static_cast<std::int64_t>(counts[i]), types[i]);
        }
        return unchanged;
    }
    std::vector<Block> blocks;
    blocks.reserve(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
        blocks.push_back({static_cast<std::byte*>(const_cast<void*>(address)) + displacements[i],
                          static_cast<std::int64_t>(counts[i]), types[i]});
    }
    std::vector<std::int64_t> offsets;
    std::vector<std::shared_ptr<const Datatype>> found;
    std::byte* base = nullptr;
    if (!place_blocks(access, blocks, false, offsets, found, base)) {
        return unchanged;
    }
    auto moved = std::make_shared<std::vector<Displacement>>();
    auto packed = std::make_shared<std::vector<MPI_Datatype>>();
    for (int i = 0; i < n; ++i) {
        const std::int64_t offset = offsets[static_cast<std::size_t>(i)];
        if (offset != static_cast<std::int64_t>(static_cast<Displacement>(offset))) {
            throw too_far();
        }
        moved->push_back(static_cast<Displacement>(offset));
        const auto& type = found[static_cast<std::size_t>(i)];
        packed->push_back(type != nullptr ? type->packed : types[i]);
    }
    _arrays.push_back(moved);
    _arrays.push_back(packed);
    return {base, moved->data(), packed->data()};
}

}  // namespace awaken::AWAKEN_ABI
