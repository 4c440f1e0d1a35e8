// Datatypes as GPUs take them: strided blocks in a few nested loops, or a list of entries.
//
// Positions count the bytes of data of a buffer in the order in which they travel; whatever moves typed memory moves a
// range of positions, so that a message can go in parts.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "transfer/layout.h"

namespace awaken::transfer {

/// Blocks of `width` bytes at offset + i[0] * strides[0] + i[1] * strides[1] + ..., for i[0] in [0, counts[0])
/// innermost. Loops that are not needed have count 1 and stride 0. Dense loops are gone: the width is the longest run.
struct Strided {
    static constexpr std::size_t kLoops = 4;
    std::int64_t offset = 0;  ///< of the first block, from the buffer's address
    std::int64_t width = 0;
    std::array<std::int64_t, kLoops> counts{1, 1, 1, 1};
    std::array<std::int64_t, kLoops> strides{};

    [[nodiscard]] std::int64_t bytes() const noexcept;
    /// Calls visit(StridedBlock, position) for rows that hold the positions [begin, end), in order: whole rows of the
    /// innermost loop together, and what begins or ends inside of a row by itself.
    template <typename Visit>
    void for_each_block(std::int64_t begin, std::int64_t end, const Visit& visit) const;
    /// How often that calls for all positions, but for cut rows.
    [[nodiscard]] std::int64_t rows_of_blocks() const noexcept { return counts[1] * counts[2] * counts[3]; }

    bool operator==(const Strided&) const = default;
};

/// `count` elements of the layout as strided blocks; nothing when they are not, or need more loops.
[[nodiscard]] std::optional<Strided> strided_form(const Layout& layout, std::int64_t count);

/// An entry of a list: rows of `width` bytes, `pitch` apart. As kernels see it (gpu/kernels/pack.h).
struct ListEntry {
    std::int64_t offset = 0;
    std::int64_t pitch = 0;
    std::uint64_t position = 0;  ///< of its first byte among the element's
    std::uint32_t width = 0;
    std::uint32_t rows = 0;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return std::uint64_t{width} * rows; }
};

/// Large runs are cut to entries of this size, so that the threads of a kernel share the work evenly.
inline constexpr std::int64_t kEntryBytes = 16 << 10;
/// Longer lists are not made: they would take more memory than the data is worth.
inline constexpr std::size_t kMostEntries = std::size_t{1} << 21;

/// Something that belongs to a datatype and goes with it: copies of its list on GPUs.
class Attachment {
  public:
    virtual ~Attachment() = default;
    Attachment() = default;
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;
};

/// One element of a datatype. Immutable but for what is made at first use; thread-safe.
class FlatType {
  public:
    explicit FlatType(Layout layout) : _layout(std::move(layout)) {}
    FlatType(const FlatType&) = delete;
    FlatType& operator=(const FlatType&) = delete;

    [[nodiscard]] const Layout& layout() const noexcept { return _layout; }
    /// The list of one element; empty when it would be too long.
    [[nodiscard]] const std::vector<ListEntry>& entries() const;
    /// Mean bytes of an entry, >= 1.
    [[nodiscard]] std::uint64_t mean_entry_bytes() const;

    /// A place for what others attach to the type, by a key of their own.
    struct LineAddress {
        const void* owner = nullptr;
        int device = -1;
        std::unique_ptr<Attachment> attached;
    };
    struct LineAddresses {
        std::mutex mutex;
        std::vector<LineAddress> list;
    };
    [[nodiscard]] LineAddresses& places() const noexcept { return _places; }

  private:
    const Layout _layout;
    mutable std::once_flag _once;
    mutable std::vector<ListEntry> _entries;
    mutable LineAddresses _places;
};

/// Memory seen through a datatype: `count` elements at `origin`, which may be 0 (MPI_BOTTOM). Strided wherever that can
/// be; otherwise as a list.
struct TypedMemory {
    /// Of a datatype's elements.
    TypedMemory(std::shared_ptr<const FlatType> type, const void* buffer, std::int64_t elements);
    /// Of strided blocks whose datatype is not here.
    TypedMemory(const void* buffer, const Strided& blocks);

    std::uintptr_t origin;
    std::optional<Strided> strided;
    std::shared_ptr<const FlatType> type;  ///< null when it is only known to be strided
    std::int64_t count;
    std::int64_t bytes;  ///< of data
};

// ---- implementation -------------------------------------------------------------------------------------------------

template <typename Visit>
void Strided::for_each_block(const std::int64_t begin, const std::int64_t end, const Visit& visit) const {
    std::int64_t position = begin;
    while (position < end) {
        const std::int64_t block = position / width;
        const std::int64_t column = position % width;
        std::array<std::int64_t, kLoops> index{};
        std::int64_t rest = block;
        for (std::size_t loop = 0; loop < kLoops; ++loop) {
            index[loop] = rest % counts[loop];
            rest /= counts[loop];
        }
        std::int64_t at = offset + column;
        for (std::size_t loop = 0; loop < kLoops; ++loop) {
            at += index[loop] * strides[loop];
        }
        StridedBlock rows{at, width, 1, 0};
        const std::int64_t whole = (end - position) / width;
        if (column != 0 || whole == 0) {
            rows.width = std::min(width - column, end - position);
        } else {
            rows.rows = std::min(counts[0] - index[0], whole);
            rows.pitch = rows.rows > 1 ? strides[0] : 0;
        }
        visit(rows, position);
        position += rows.width * rows.rows;
    }
}

}  // namespace awaken::transfer
