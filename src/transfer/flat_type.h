// SPDX-License-Identifier: Apache-2.0
// Datatypes as GPUs take them: strided blocks in a few nested loops, or a list of entries.
//
// Positions count the data bytes of a buffer in the order in which they travel. Code that moves typed memory moves a
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
/// innermost. Unneeded loops have count 1 and stride 0. There are no dense loops: the width is the longest run.
struct Strided {
    static constexpr std::size_t kLoops = 4;
    std::int64_t offset = 0;  ///< of the first block, from the buffer's address
    std::int64_t width = 0;
    std::array<std::int64_t, kLoops> counts{1, 1, 1, 1};
    std::array<std::int64_t, kLoops> strides{};

    [[nodiscard]] std::int64_t bytes() const noexcept;
    /// Where the highest block ends, from the buffer's address.
    [[nodiscard]] std::int64_t end() const noexcept;
    /// Calls visit(StridedBlock, position) for rows that hold the positions [begin, end), in order. One call covers
    /// whole rows of the innermost loop together. A row of which only a part is wanted gets a call of its own.
    template <typename Visit>
    void for_each_block(std::int64_t begin, std::int64_t end, const Visit& visit) const;
    /// How many calls that makes for all positions, without cut rows.
    [[nodiscard]] std::int64_t rows_of_blocks() const noexcept { return counts[1] * counts[2] * counts[3]; }

    bool operator==(const Strided&) const = default;
};

/// `count` elements of the layout as strided blocks. Empty when they have no such form, or need more loops.
[[nodiscard]] std::optional<Strided> strided_form(const Layout& layout, std::int64_t count);

/// An entry of a list: rows of `width` bytes, `pitch` apart. Kernels see it in this form (gpu/kernels/pack.h).
struct ListEntry {
    std::int64_t offset = 0;
    std::int64_t pitch = 0;
    std::uint64_t position = 0;  ///< of its first byte among the element's
    std::uint32_t width = 0;
    std::uint32_t rows = 0;
    [[nodiscard]] std::uint64_t bytes() const noexcept { return std::uint64_t{width} * rows; }
};

/// A large run becomes entries of this size, so that the threads of a kernel share the work evenly.
inline constexpr std::int64_t kEntryBytes = 16 << 10;
/// We make no longer lists: they would take more memory than the data is worth.
inline constexpr std::size_t kMostEntries = std::size_t{1} << 21;

/// Something that belongs to a datatype and goes with it, such as copies of its list on GPUs.
class Attachment {
  public:
    virtual ~Attachment() = default;
    Attachment() = default;
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;
};

/// One element of a datatype. Immutable, except for members that are made at first use. Thread-safe.
class FlatType {
  public:
    explicit FlatType(Layout layout) : _layout(std::move(layout)) {}
    FlatType(const FlatType&) = delete;
    FlatType& operator=(const FlatType&) = delete;

    [[nodiscard]] const Layout& layout() const noexcept { return _layout; }
    /// The list of one element. Empty when it would be too long.
    [[nodiscard]] const std::vector<ListEntry>& entries() const;
    /// Mean bytes of an entry, >= 1.
    [[nodiscard]] std::uint64_t mean_entry_bytes() const;

    /// A place where other classes attach something to the type, by a key of their own.
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

/// Memory seen through a datatype: `count` elements at `origin`, which may be 0 (MPI_BOTTOM). Strided wherever
/// possible, otherwise a list.
struct TypedMemory {
    /// From a datatype's elements.
    TypedMemory(std::shared_ptr<const FlatType> type, const void* buffer, std::int64_t elements);
    /// From strided blocks whose datatype is in another process.
    TypedMemory(const void* buffer, const Strided& blocks);

    std::uintptr_t origin;
    std::optional<Strided> strided;
    std::shared_ptr<const FlatType> type;  ///< null when only the strided blocks are known
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
