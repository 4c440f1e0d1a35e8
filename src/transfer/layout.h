// SPDX-License-Identifier: Apache-2.0
// The memory layout of a datatype, without MPI: which bytes, in which order.
//
// A Layout is a small tree. Leaves are runs of consecutive bytes. Inner nodes repeat their children at a constant
// stride. So a vector, a subarray or a contiguous type of a million elements is a handful of nodes, and only truly
// irregular types (indexed with a long list) are long. The order of the leaves is the order of the type map, in which
// the bytes travel: the packed staging buffer of a buffer holds the bytes of its leaves one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace awaken::transfer {

/// One node. A leaf has no children and stands for `length` bytes at `offset`. An inner node stands for its children,
/// each placed at offset + i * stride for i in [0, count). Leaves may repeat too: (offset, length, count, stride) is
/// then a strided block, the form that 2-D copies take.
struct LayoutNode {
    std::int64_t offset = 0;  ///< bytes, relative to the parent's origin
    std::int64_t length = 0;  ///< bytes of a leaf; 0 for an inner node
    std::int64_t count = 1;   ///< repetitions, >= 1
    std::int64_t stride = 0;  ///< bytes between repetitions; may be negative or zero
    std::vector<LayoutNode> children;
};

/// The place of a strided block in user memory: `rows` rows of `width` bytes, `pitch` apart (pitch may be negative).
struct StridedBlock {
    std::int64_t offset = 0;
    std::int64_t width = 0;
    std::int64_t rows = 1;
    std::int64_t pitch = 0;
};

/// The layout of one element of a datatype.
class Layout {
  public:
    /// `length` consecutive bytes from offset 0.
    static Layout contiguous(std::int64_t length);

    /// `nodes` are in type-map order. MPI defines extent and lower bound; they matter for counts > 1. The constructor
    /// simplifies: adjacent leaves merge, loops over dense leaves become leaves, single-child loops nest into strided
    /// leaves.
    Layout(std::vector<LayoutNode> nodes, std::int64_t lower_bound, std::int64_t extent);

    [[nodiscard]] std::int64_t size() const noexcept { return _size; }      ///< bytes of data
    [[nodiscard]] std::int64_t extent() const noexcept { return _extent; }  ///< distance between consecutive elements
    [[nodiscard]] std::int64_t lower_bound() const noexcept { return _lower_bound; }
    /// First byte of data and one past the last, relative to the buffer's address. Both are 0 when there is no data.
    [[nodiscard]] std::int64_t true_begin() const noexcept { return _true_begin; }
    [[nodiscard]] std::int64_t true_end() const noexcept { return _true_end; }
    /// True when `count` elements are one run of bytes starting at true_begin().
    [[nodiscard]] bool is_contiguous(std::int64_t count) const noexcept;
    /// Number of the leaves' strided blocks in one element, which is the number of copies that an element takes.
    [[nodiscard]] std::int64_t block_count() const noexcept { return _block_count; }
    [[nodiscard]] const std::vector<LayoutNode>& nodes() const noexcept { return _nodes; }

    /// The first byte that `count` elements touch and one past the last, relative to the buffer's address.
    struct Span {
        std::int64_t begin = 0, end = 0;
    };
    [[nodiscard]] Span span(std::int64_t count) const noexcept;

    /// Calls `visit` for the strided blocks of `count` elements in travelling order, until they cover `limit` packed
    /// bytes. The last block is cut to end there; a cut inside a row makes a block of its own. Blocks with rows > 1
    /// travel row by row. The count becomes part of the blocks where that keeps the order.
    void for_each_block(std::int64_t count, std::int64_t limit,
                        const std::function<void(const StridedBlock&)>& visit) const;

  private:
    std::vector<LayoutNode> _nodes;
    std::int64_t _size = 0;
    std::int64_t _lower_bound = 0;
    std::int64_t _extent = 0;
    std::int64_t _true_begin = 0;
    std::int64_t _true_end = 0;
    std::int64_t _block_count = 0;
};

/// Packs and unpacks on the host by the layout. `packed` receives (gives) the first `limit` bytes of `count` elements
/// at `buffer`.
void pack(const Layout& layout, const void* buffer, std::int64_t count, void* packed, std::int64_t limit);
void unpack(const Layout& layout, void* buffer, std::int64_t count, const void* packed, std::int64_t limit);

}  // namespace awaken::transfer
