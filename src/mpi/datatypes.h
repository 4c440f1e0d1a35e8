// SPDX-License-Identifier: Apache-2.0
// Datatypes: their layout in memory, and a packed type with the same signature.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <unordered_map>

#include "mpi/native.h"
#include "transfer/flat_type.h"
#include "transfer/layout.h"

namespace awaken::AWAKEN_ABI {

/// What the library knows of one datatype. Immutable. Operations share it, so that the program may free its handle
/// while they are under way.
class Datatype : public std::enable_shared_from_this<Datatype> {
  public:
    Datatype(const Native& native, transfer::Layout memory_layout, MPI_Datatype packed_type, bool owns_packed,
             bool has_scattered_blocks)
        : flat(std::make_shared<const transfer::FlatType>(std::move(memory_layout))),
          layout(flat->layout()),
          packed(packed_type),
          scattered(has_scattered_blocks),
          _native(native),
          _owns_packed(owns_packed) {}
    ~Datatype();
    Datatype(const Datatype&) = delete;
    Datatype& operator=(const Datatype&) = delete;

    /// Code that moves the type's elements keeps this, even after MPI and this object are gone.
    const std::shared_ptr<const transfer::FlatType> flat;
    const transfer::Layout& layout;
    /// A type with the same signature whose elements follow one another without gaps (extent == size == layout.size()).
    /// The MPI sends this type, so that its type checks, counts and element counts stay what the program expects.
    const MPI_Datatype packed;
    /// True when blocks may lie in unrelated places, for types built from absolute or irregular byte displacements. One
    /// buffer may then be part host and part device memory.
    const bool scattered;

    /// True when any number of elements is one run of bytes. The MPI may then get them with the program's own type.
    [[nodiscard]] bool dense() const noexcept { return layout.is_contiguous(2); }
    /// The elements at `buffer`, for code that moves typed memory.
    [[nodiscard]] std::shared_ptr<const transfer::TypedMemory> memory(const void* buffer, std::int64_t count) const {
        return std::make_shared<const transfer::TypedMemory>(flat, buffer, count);
    }
    /// Frees the packed type. Called when MPI is about to go down.
    void release_packed() const noexcept;

  private:
    const Native& _native;
    mutable std::atomic<bool> _owns_packed;
};

/// The predefined datatype that a datatype is made of, or the first of several. MPI_DATATYPE_NULL for a type without
/// data.
[[nodiscard]] MPI_Datatype element_of(const Native& native, MPI_Datatype type);

/// Bytes of `count` elements; 0 when the MPI cannot tell.
[[nodiscard]] std::int64_t bytes_of(const Native& native, std::int64_t count, MPI_Datatype type);

/// The datatypes seen so far. It decodes a datatype once, when the program first uses it with a buffer that needs
/// service, and forgets it when the program frees the handle. Thread-safe.
class Datatypes {
  public:
    /// `refuse_uncommitted` throws for a datatype that the program has yet to commit.
    Datatypes(const Native& native, void (*refuse_uncommitted)(MPI_Datatype))
        : _native(native), _refuse_uncommitted(refuse_uncommitted) {}

    /// Returns the description of a committed datatype. Throws awaken::Error for any other.
    [[nodiscard]] std::shared_ptr<const Datatype> find(MPI_Datatype type);
    /// The same for callers that only want to know that there is one.
    void check(MPI_Datatype type);
    /// Call before the handle is given to MPI_Type_free.
    void forget(MPI_Datatype type);
    /// Frees the packed types. Called before MPI goes down.
    void clear();

  private:
    [[nodiscard]] std::shared_ptr<const Datatype> decode(MPI_Datatype type) const;

    const Native& _native;
    void (*const _refuse_uncommitted)(MPI_Datatype);
    std::shared_mutex _mutex;
    std::unordered_map<MPI_Datatype, std::shared_ptr<const Datatype>> _known;
    std::atomic<std::uint64_t> _generation{1};
};

}  // namespace awaken::AWAKEN_ABI
