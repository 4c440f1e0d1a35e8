// SPDX-License-Identifier: Apache-2.0
// The buffers of one MPI call, in the form in which the MPI gets them.
//
// A Stage stands between the program's buffers and the MPI. It passes a buffer in host memory on unchanged. Any other
// buffer gets a staging buffer in host memory with an equivalent datatype. load() fills the staging buffers of the data
// that is sent; store() copies received data back. Only this class decides whether a buffer needs service.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "gpu/gpu.h"
#include "mpi/bytes_type.h"
#include "mpi/datatypes.h"
#include "transfer/flat_type.h"
#include "transfer/pinned_pool.h"

namespace awaken::AWAKEN_ABI {

class Call;
class Layer;

enum class Access : std::uint8_t {
    in = 1,    ///< the MPI reads it
    out = 2,   ///< the MPI writes all of it (a receive: as much as the status says)
    inout = 3  ///< the MPI reads and writes it, or writes only a part of it
};

/// How a staging buffer relates to the buffer.
enum class Packing : std::uint8_t {
    packed,  ///< only the datatype's bytes without gaps, with the packed type: for everything that moves data
    mirror   ///< the same layout and the program's own type: for reductions, whose operator looks at the elements
};

/// A buffer argument as the MPI gets it.
template <class Count>
struct Argument {
    void* address;
    Count count;
    MPI_Datatype type;
};

/// The arguments of a v-collective: the program's counts stay, the displacements may be new.
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

    /// One buffer of `count` elements. `total` is the number of elements in memory if that is more than the count
    /// argument (a gathered buffer holds ranks * count). `stored` is the number of elements that store() writes back
    /// (-1: all).
    template <class Count>
    [[nodiscard]] Argument<Count> buffer(Access access, const void* address, Count count, MPI_Datatype type,
                                         std::int64_t total = -1, Packing packing = Packing::packed,
                                         std::int64_t stored = -1) {
        const std::int64_t elements = total < 0 ? static_cast<std::int64_t>(count) : total;
        const Placed placed = place(access, address, elements, type, packing, stored, locate(address, elements, type));
        return {placed.address, count, placed.type};
    }

    /// What the layer knows of a buffer.
    struct Located {
        std::shared_ptr<const Datatype> type;  ///< null when the layer did not look: nothing travels, or no GPU
        gpu::PointerInfo info;
        bool served = false;  ///< not plain host memory
        bool mixed = false;   ///< blocks in different kinds of memory
    };
    [[nodiscard]] Located locate(const void* address, std::int64_t count, MPI_Datatype type) const;
    /// Like buffer(), for a packed buffer that was already located.
    template <class Count>
    [[nodiscard]] Argument<Count> buffer(Access access, const void* address, Count count, MPI_Datatype type,
                                         Located located) {
        const auto elements = static_cast<std::int64_t>(count);
        const Placed placed = place(access, address, elements, type, Packing::packed, -1, located);
        return {placed.address, count, placed.type};
    }
    /// A packed buffer that was placed alone, for a message that may be longer: see mpi/bytes_type.h.
    template <class Count>
    [[nodiscard]] Argument<Count> for_message(const Argument<Count>& placed) {
        _received = active() ? receive_type() : nullptr;
        return _received == nullptr ? placed
                                    : Argument<Count>{_staging_buffers.front().block.data(), 1, _received->get()};
    }
    /// Whether the program asserts that its buffers are host memory: nobody asks the driver about them, except to check
    /// that (AWAKEN_CHECK). First called while the call lasts.
    [[nodiscard]] bool is_host_only() const;
    /// Counts the bytes of a host buffer; only the report uses them.
    void account_native(std::int64_t count, MPI_Datatype type) const;
    /// The packed bytes of the only staging buffer.
    [[nodiscard]] std::byte* packed() const noexcept { return _staging_buffers.front().block.data(); }

    /// Called first for a persistent operation: restart() looks at its buffers again.
    void watch() noexcept { _watching = true; }

    /// `n` blocks of one buffer; displacements are in extents of `type`.
    template <class Count, class Displacement>
    [[nodiscard]] VectorArgument<Displacement> blocks(Access access, const void* address, const Count* counts,
                                                      const Displacement* displacements, MPI_Datatype type, int n);

    /// `n` blocks, each with its own type; displacements are in bytes.
    template <class Count, class Displacement>
    [[nodiscard]] TypedVectorArgument<Displacement> typed_blocks(Access access, const void* address,
                                                                 const Count* counts, const Displacement* displacements,
                                                                 const MPI_Datatype* types, int n);

    /// `partitions` equal parts of `count` elements, which are loaded and stored one by one. For host memory it does
    /// nothing and returns false.
    bool partitions(Access access, const void* address, std::int64_t partitions, std::int64_t count, MPI_Datatype type,
                    Argument<MPI_Count>& argument);
    void load_partition(std::int64_t partition);
    /// load_partition() has failed: makes the partition bytes of ones, and keeps the failure until store().
    void lose_partition(std::int64_t partition, const Error& failure);
    /// Stores a partition unless it was already stored since the last restart.
    void store_partition(std::int64_t partition);

    /// What remains to be done, by the CPU, once the MPI has written what it writes: store() does it first.
    void finish_by(std::function<void()> finish) { _finish = std::move(finish); }

    /// True when something remains to be done when the call is over: a buffer has a staging buffer, or finish_by().
    [[nodiscard]] bool active() const noexcept { return !_staging_buffers.empty() || _finish != nullptr; }
    /// What becomes of an Error of load().
    enum class Failure : std::uint8_t {
        thrown,
        kept  ///< until store(): other ranks wait for this one, so it does its part of the call first
    };
    /// Fills the staging buffers of all buffers that the MPI reads. What could not be copied is bytes of ones, where
    /// the failure is kept: NaN as a floating-point number, which other ranks do not take for a result.
    void load(Failure failure = Failure::thrown);
    /// What load() has kept.
    [[nodiscard]] const std::optional<Error>& failure() const noexcept { return _failure; }
    /// Copies the staging buffers of all buffers that the MPI writes back, at most `received` bytes (-1: all). Throws
    /// what load() has kept, and copies nothing then.
    void store(std::int64_t received = -1);
    /// Called before each start of a persistent operation. Looks the buffers up again, since the program may have freed
    /// and reallocated them, and forgets which partitions were stored. Throws ClassedError when a buffer was host
    /// memory at initialisation and no longer is.
    void restart();
    // ---- in the order of a stream of the program; nothing waits

    /// Call first: staging buffers of ordinary memory are of no use, and a pool that is full is no event.
    /// @param beyond_limit pins more than the pool's limit
    void pin(const bool beyond_limit) noexcept { _pins = beyond_limit ? Pins::beyond_limit : Pins::within_limit; }
    /// Call first: each staging buffer has so many bytes at least.
    void make_room(const std::size_t bytes) noexcept { _least_room = bytes; }
    /// False when a staging buffer is ordinary memory, which copies in a stream do not serve.
    [[nodiscard]] bool is_pinned() const noexcept;
    /// Gives the stream the copies into all staging buffers: a message may be shorter than its buffer, whose rest
    /// queue_store() then writes back. Throws Error.
    void queue_load(gpu::StreamHandle stream);
    /// Gives the stream the copies out of them. The object has to live until the stream is through.
    void queue_store(gpu::StreamHandle stream);

    /// Gives the staging buffers back.
    void release() noexcept { _staging_buffers.clear(); }

  private:
    /// A part of the program's buffer that is copied as a whole.
    struct Segment {
        std::byte* user;
        std::int64_t count;
        std::int64_t stored;  ///< elements that store() writes; at most count
        std::shared_ptr<const Datatype> type;
        std::int64_t offset;  ///< in the staging block, of the bytes that belong to the address `user`
        bool mixed;           ///< blocks in different kinds of memory
        gpu::PointerInfo info;
        /// Checksum of the staging buffer when the partition was stored; 0 if it was not. An MPI may report a partition
        /// as arrived and still change it before the operation completes (seen in Open MPI 5 with unequal partition
        /// counts).
        std::uint64_t stored_checksum = 0;

        [[nodiscard]] std::int64_t bytes() const { return count * type->layout.size(); }
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
    /// A block of a v- or w-collective before place_blocks() places it.
    struct Block {
        std::byte* user;
        std::int64_t count;
        MPI_Datatype type;
    };
    /// A host buffer of a persistent operation, which each start looks at again.
    struct Watched {
        const void* address;
        std::int64_t count;
        std::shared_ptr<const Datatype> type;
    };

    [[nodiscard]] Placed place(Access access, const void* address, std::int64_t count, MPI_Datatype type,
                               Packing packing, std::int64_t stored, const Located& located);
    [[nodiscard]] Located locate(const void* address, std::int64_t count, std::shared_ptr<const Datatype> type) const;
    [[nodiscard]] bool may_need_service() const;
    /// These stay the program's own.
    void watch(const void* address, std::int64_t count, MPI_Datatype type);
    void pass_on(const std::vector<Block>& blocks);
    [[nodiscard]] static std::int64_t extent_of(MPI_Datatype type);
    /// True when one run of bytes lies in several allocations that touch: the datatype joins blocks at addresses of
    /// allocations that follow one another. A run that ends where no GPU knows memory is an error of the program; the
    /// copy finds it.
    [[nodiscard]] bool reaches_next(const void* first, std::int64_t bytes, const gpu::PointerInfo& info) const;
    [[nodiscard]] bool any_block_served(const std::byte* address, std::int64_t count, const Datatype& type) const;
    void check(const void* address, std::int64_t count, const Datatype& type, const Located& located) const;
    void check_assertion(const void* address, const Located& located) const;
    /// Checks one stretch of memory, `offset` bytes from the argument.
    void check_range(const void* address, std::int64_t offset, std::int64_t bytes, const gpu::PointerInfo& info) const;
    /// Places `blocks` one after another in a staging buffer. `offsets` receives the start of each, in bytes. Returns
    /// false for host memory.
    bool place_blocks(Access access, const std::vector<Block>& blocks, bool one_type,
                      std::vector<std::int64_t>& offsets, std::vector<std::shared_ptr<const Datatype>>& types,
                      std::byte*& base);
    [[nodiscard]] std::shared_ptr<const BytesType> receive_type() const;
    StagingBuffer& add_staging_buffer(Access access, Packing packing, std::size_t bytes);
    void load(const StagingBuffer& staged, const Segment& segment);
    void queue(const StagingBuffer& staged, const Segment& segment, bool loads, gpu::StreamHandle stream);
    void fill_with_ones(const StagingBuffer& staged, const Segment& segment) const;
    void store(const StagingBuffer& staged, Segment& segment, std::int64_t limit);
    void store_partition(const StagingBuffer& staged, Segment& segment);
    [[nodiscard]] static Error too_far();

    Layer* _layer;
    const char* _function;
    Call* _call;  ///< for accounting, while the call lasts
    std::vector<StagingBuffer> _staging_buffers;
    std::shared_ptr<const BytesType> _received;  ///< of the bytes in the only staging buffer, or null
    std::vector<Watched> _watched;
    bool _watching = false;
    std::optional<Error> _failure;
    std::function<void()> _finish;
    enum class Pins : std::uint8_t { no, within_limit, beyond_limit };
    Pins _pins = Pins::no;
    std::size_t _least_room = 0;
    enum class Asserted : std::uint8_t { not_asked, nothing, host };
    mutable Asserted _asserted = Asserted::not_asked;
    /// Displacement and type arrays that the MPI got. Nonblocking operations need them until they complete.
    std::vector<std::shared_ptr<void>> _arrays;
    std::vector<std::shared_ptr<const transfer::TypedMemory>> _typed;  ///< that queued copies need
};

template <class Count, class Displacement>
VectorArgument<Displacement> Stage::blocks(const Access access, const void* const address, const Count* const counts,
                                           const Displacement* const displacements, const MPI_Datatype type,
                                           const int n) {
    const VectorArgument<Displacement> unchanged{const_cast<void*>(address), displacements, type};
    if (n <= 0 || type == MPI_DATATYPE_NULL || !may_need_service()) {
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
    // In the staging buffer the blocks follow one another: displacements count elements of the packed type.
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
        // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): with n > 0, place_blocks() has looked at the types.
        const MPI_Datatype placed = type != nullptr ? type->packed : types[i];
        packed->push_back(placed);
    }
    _arrays.push_back(moved);
    _arrays.push_back(packed);
    return {base, moved->data(), packed->data()};
}

}  // namespace awaken::AWAKEN_ABI
