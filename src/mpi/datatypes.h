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

/// What the library knows of one datatype. Immutable; shared by the operations that use it, so that the program may
/// free its handle while they are under way.
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

    /// Kept by whatever moves the type's elements, also when the MPI and this object are gone.
    const std::shared_ptr<const transfer::FlatType> flat;
    const transfer::Layout& layout;
    /// A type with the same signature whose elements lie one after another without gaps (extent == size ==
    /// layout.size()): what travels instead, so that the MPI's type checks, counts and element counts stay what the
    /// program expects.
    const MPI_Datatype packed;
    /// True when blocks may lie in unrelated places (built from absolute or irregular byte displacements), so that one
    /// buffer may be part host, part device memory.
    const bool scattered;

    /// Any number of elements is one run of bytes, which may be handed on with the program's own type.
    [[nodiscard]] bool dense() const noexcept { return layout.is_contiguous(2); }
    /// Elements at `buffer`, for whatever moves typed memory.
    [[nodiscard]] std::shared_ptr<const transfer::TypedMemory> memory(const void* buffer, std::int64_t count) const {
        return std::make_shared<const transfer::TypedMemory>(flat, buffer, count);
    }
    /// Frees the packed type; called when MPI is about to go down.
    void release_packed() const noexcept;

  private:
    const Native& _native;
    mutable std::atomic<bool> _owns_packed;
};

/// The predefined datatype that a datatype is made of: the first one, where there are several. MPI_DATATYPE_NULL for a
/// type without data.
[[nodiscard]] MPI_Datatype element_of(const Native& native, MPI_Datatype type);

/// Bytes of `count` elements; 0 where that cannot be said.
[[nodiscard]] std::int64_t bytes_of(const Native& native, std::int64_t count, MPI_Datatype type);

/// The datatypes seen so far. A datatype is decoded once, when it is first used with a buffer that needs service, and
/// is forgotten when the program frees its handle. Thread-safe.
class Datatypes {
  public:
    explicit Datatypes(const Native& native) : _native(native) {}

    /// The description of a committed datatype. Throws awaken::Error for a handle that the MPI does not know.
    [[nodiscard]] std::shared_ptr<const Datatype> find(MPI_Datatype type);
    /// Call before the handle is given to MPI_Type_free.
    void forget(MPI_Datatype type);
    /// Frees the packed types; called before MPI goes down.
    void clear();

  private:
    [[nodiscard]] std::shared_ptr<const Datatype> decode(MPI_Datatype type) const;

    const Native& _native;
    std::shared_mutex _mutex;
    std::unordered_map<MPI_Datatype, std::shared_ptr<const Datatype>> _known;
    std::atomic<std::uint64_t> _generation{1};
};

}  // namespace awaken::AWAKEN_ABI
