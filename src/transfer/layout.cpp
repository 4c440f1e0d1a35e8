// SPDX-License-Identifier: Apache-2.0
#include "transfer/layout.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

namespace awaken::transfer {
namespace {

/// a * b == c without overflow. Strides come from the program and may be anything.
bool product_equals(const std::int64_t a, const std::int64_t b, const std::int64_t c) noexcept {
    std::int64_t product = 0;
    return !__builtin_mul_overflow(a, b, &product) && product == c;
}

/// Callers ask for sizes with counts for which no buffer could exist ("is this contiguous?"). So this saturates and
/// never wraps.
std::int64_t saturating_product(const std::int64_t a, const std::int64_t b) noexcept {
    std::int64_t product = 0;
    if (!__builtin_mul_overflow(a, b, &product)) {
        return product;
    }
    return (a < 0) == (b < 0) ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
}

std::int64_t saturating_sum(const std::int64_t a, const std::int64_t b) noexcept {
    std::int64_t sum = 0;
    if (!__builtin_add_overflow(a, b, &sum)) {
        return sum;
    }
    return a < 0 ? std::numeric_limits<std::int64_t>::min() : std::numeric_limits<std::int64_t>::max();
}

/// Appends `block` to `last` when the two travel as one run of bytes or as rows at one pitch.
///
/// The caller joins adjacent single runs first, so that joining rows never hides a longer run.
bool join_rows(StridedBlock& last, const StridedBlock& block) noexcept {
    if (last.width != block.width) {
        return false;
    }
    std::int64_t distance = 0;
    if (__builtin_sub_overflow(block.offset, last.offset, &distance)) {
        return false;
    }
    if (last.rows == 1 && block.rows == 1) {
        last.pitch = distance;
    } else if (last.rows == 1) {
        if (distance != block.pitch) {
            return false;
        }
        last.pitch = block.pitch;
    } else {
        if (!product_equals(last.rows, last.pitch, distance)) {
            return false;
        }
        if (block.rows > 1 && block.pitch != last.pitch) {
            return false;
        }
    }
    last.rows += block.rows;
    return true;
}

/// Joins the blocks that it gets, in order, into as few strided blocks as two blocks of memory allow. Neighbouring runs
/// join first, then runs of one length at one distance.
template <typename Sink>
class Coalescer {
  public:
    explicit Coalescer(Sink sink) : _sink(std::move(sink)) {}

    void add(const StridedBlock& block) {
        if (_run.width != 0) {
            if (block.rows == 1 && _run.rows == 1 && _run.offset + _run.width == block.offset) {
                _run.width += block.width;
                return;
            }
            pass_on();
        }
        _run = block;
    }

    void finish() {
        if (_run.width != 0) {
            pass_on();
        }
        if (_rows.width != 0) {
            _sink(_rows);
        }
        _run = _rows = StridedBlock{};
    }

  private:
    void pass_on() {
        if (_rows.width != 0) {
            if (join_rows(_rows, _run)) {
                return;
            }
            _sink(_rows);
        }
        _rows = _run;
    }

    Sink _sink;
    StridedBlock _run;   ///< may still grow at its end; width 0: nothing
    StridedBlock _rows;  ///< older than _run; may still gain rows
};

LayoutNode leaf_of(const StridedBlock& block) {
    LayoutNode leaf;
    leaf.offset = block.offset;
    leaf.length = block.width;
    leaf.count = block.rows;
    leaf.stride = block.rows == 1 ? 0 : block.pitch;
    return leaf;
}

StridedBlock block_of(const LayoutNode& leaf) noexcept {
    return {leaf.offset, leaf.length, leaf.count, leaf.count == 1 ? 0 : leaf.stride};
}

/// A leaf whose repetitions follow each other without a gap becomes one run.
void make_dense(LayoutNode& leaf) noexcept {
    if (leaf.count > 1 && leaf.stride == leaf.length &&
        saturating_product(leaf.length, leaf.count) != std::numeric_limits<std::int64_t>::max()) {
        leaf.length *= leaf.count;
        leaf.count = 1;
    }
    if (leaf.count == 1) {
        leaf.stride = 0;
    }
}

/// Repeats a leaf `count` times at `stride` when the result is a leaf again.
bool repeat_leaf(LayoutNode& leaf, const std::int64_t count, const std::int64_t stride) noexcept {
    if (count == 1) {
        return true;
    }
    if (leaf.count == 1) {
        leaf.count = count;
        leaf.stride = stride;
        make_dense(leaf);
        return true;
    }
    std::int64_t rows = 0;
    if (!product_equals(leaf.count, leaf.stride, stride) || __builtin_mul_overflow(leaf.count, count, &rows)) {
        return false;
    }
    leaf.count = rows;
    return true;
}

/// Joins neighbouring leaves of a list, in order.
std::vector<LayoutNode> join_leaves(std::vector<LayoutNode> nodes) {
    std::vector<LayoutNode> joined;
    joined.reserve(nodes.size());
    Coalescer coalescer([&joined](const StridedBlock& block) { joined.push_back(leaf_of(block)); });
    for (LayoutNode& node : nodes) {
        if (node.children.empty()) {
            coalescer.add(block_of(node));
        } else {
            coalescer.finish();
            joined.push_back(std::move(node));
        }
    }
    coalescer.finish();
    return joined;
}

/// Whether the two differ only in their offsets.
bool same_shape(const LayoutNode& a, const LayoutNode& b) noexcept {
    return a.length == b.length && a.count == b.count && a.stride == b.stride &&
           std::equal(
               a.children.begin(), a.children.end(), b.children.begin(), b.children.end(),
               [](const LayoutNode& x, const LayoutNode& y) { return x.offset == y.offset && same_shape(x, y); });
}

/// Neighbours of one shape at one distance become a loop: an indexed type whose blocks are regular is a vector. Two of
/// them always have one distance, so two count only when there is nothing else.
std::vector<LayoutNode> fold_repetitions(std::vector<LayoutNode> nodes) {
    if (nodes.size() < 2) {
        return nodes;
    }
    std::vector<LayoutNode> folded;
    for (std::size_t first = 0; first < nodes.size();) {
        std::size_t end = first + 1;
        std::int64_t stride = 0;
        for (; end < nodes.size() && same_shape(nodes[first], nodes[end]); ++end) {
            std::int64_t distance = 0;
            if (__builtin_sub_overflow(nodes[end].offset, nodes[end - 1].offset, &distance)) {
                break;
            }
            if (end == first + 1) {
                stride = distance;
            }
            if (distance != stride) {
                break;
            }
        }
        const std::size_t count = end - first;
        if (count >= 3 || count == nodes.size()) {
            LayoutNode loop;
            loop.offset = nodes[first].offset;
            loop.count = static_cast<std::int64_t>(count);
            loop.stride = stride;
            nodes[first].offset = 0;
            loop.children.push_back(std::move(nodes[first]));
            folded.push_back(std::move(loop));
        } else {
            std::move(nodes.begin() + static_cast<std::ptrdiff_t>(first),
                      nodes.begin() + static_cast<std::ptrdiff_t>(end), std::back_inserter(folded));
        }
        first = end;
    }
    return folded;
}

/// The same bytes in the same order with fewer nodes. Nodes without data vanish.
std::vector<LayoutNode> simplify(std::vector<LayoutNode> nodes) {
    std::vector<LayoutNode> result;
    result.reserve(nodes.size());
    for (LayoutNode& node : nodes) {
        if (node.count <= 0) {
            continue;
        }
        if (node.children.empty()) {
            if (node.length <= 0) {
                continue;
            }
            make_dense(node);
            result.push_back(std::move(node));
            continue;
        }
        node.length = 0;
        node.children = simplify(std::move(node.children));
        if (node.children.empty()) {
            continue;
        }
        if (node.count == 1) {
            for (LayoutNode& child : node.children) {
                child.offset += node.offset;
                result.push_back(std::move(child));
            }
            continue;
        }
        if (node.children.size() == 1) {
            LayoutNode child = std::move(node.children.front());
            child.offset += node.offset;
            if (child.children.empty()) {
                if (repeat_leaf(child, node.count, node.stride)) {
                    result.push_back(std::move(child));
                    continue;
                }
            } else {
                std::int64_t count = 0;
                if (product_equals(child.count, child.stride, node.stride) &&
                    !__builtin_mul_overflow(child.count, node.count, &count)) {
                    child.count = count;
                    result.push_back(std::move(child));
                    continue;
                }
            }
            node.offset = 0;
            node.children.front() = std::move(child);
        }
        result.push_back(std::move(node));
    }
    return fold_repetitions(join_leaves(std::move(result)));
}

struct Extremes {
    std::int64_t begin = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = std::numeric_limits<std::int64_t>::min();

    void include(const std::int64_t first, const std::int64_t last) noexcept {
        begin = std::min(begin, first);
        end = std::max(end, last);
    }
};

struct Measure {
    std::int64_t size = 0;
    std::int64_t blocks = 0;
    Extremes extremes;
};

Measure measure(const std::vector<LayoutNode>& nodes) {
    Measure total;
    for (const LayoutNode& node : nodes) {
        Measure inner;
        if (node.children.empty()) {
            inner.size = saturating_product(node.length, node.count);
            inner.blocks = 1;
            inner.extremes.include(0, node.length);
        } else {
            inner = measure(node.children);
            inner.size = saturating_product(inner.size, node.count);
            inner.blocks = saturating_product(inner.blocks, node.count);
        }
        const std::int64_t shift = saturating_product(node.count - 1, node.stride);
        const std::int64_t low = saturating_sum(node.offset, std::min<std::int64_t>(0, shift));
        const std::int64_t high = saturating_sum(node.offset, std::max<std::int64_t>(0, shift));
        total.extremes.include(saturating_sum(low, inner.extremes.begin), saturating_sum(high, inner.extremes.end));
        total.size = saturating_sum(total.size, inner.size);
        total.blocks = saturating_sum(total.blocks, inner.blocks);
    }
    return total;
}

/// Walks the leaves in travelling order until `remaining` bytes are used up; false means stop.
template <typename Output>
class Walker {
  public:
    Walker(Output& output, const std::int64_t limit) : _output(output), _remaining(limit) {}

    bool nodes(const std::vector<LayoutNode>& list, const std::int64_t origin) {
        for (const LayoutNode& node : list) {
            if (node.children.empty()) {
                StridedBlock block = block_of(node);
                block.offset += origin;
                if (!emit(block)) {
                    return false;
                }
                continue;
            }
            std::int64_t position = origin + node.offset;
            for (std::int64_t i = 0; i < node.count; ++i) {
                if (!nodes(node.children, position)) {
                    return false;
                }
                // Takes no step past the last repetition: that address need not be representable.
                if (i + 1 < node.count) {
                    position += node.stride;
                }
            }
        }
        return true;
    }

    bool emit(StridedBlock block) {
        const std::int64_t whole_rows = std::min(block.rows, _remaining / block.width);
        const bool cut = whole_rows < block.rows;
        const std::int64_t tail = cut ? _remaining - whole_rows * block.width : 0;
        const std::int64_t tail_offset = cut ? block.offset + whole_rows * block.pitch : 0;
        if (whole_rows > 0) {
            block.rows = whole_rows;
            if (whole_rows == 1) {
                block.pitch = 0;
            }
            _output.add(block);
            _remaining -= whole_rows * block.width;
        }
        if (tail > 0) {
            _output.add({tail_offset, tail, 1, 0});
            _remaining = 0;
        }
        return _remaining > 0;
    }

  private:
    Output& _output;
    std::int64_t _remaining;
};

void copy_row(std::byte* to, const std::byte* from, const std::size_t width) noexcept {
    // Fixed sizes compile to one load and one store; they are the usual widths of a strided type.
    switch (width) {
        case 1:
            *to = *from;
            return;
        case 4:
            std::memcpy(to, from, 4);
            return;
        case 8:
            std::memcpy(to, from, 8);
            return;
        case 16:
            std::memcpy(to, from, 16);
            return;
        default:
            std::memcpy(to, from, width);
    }
}

}  // namespace

Layout Layout::contiguous(const std::int64_t length) {
    LayoutNode leaf;
    leaf.length = length;
    return Layout({leaf}, 0, length);
}

Layout::Layout(std::vector<LayoutNode> nodes, const std::int64_t lower_bound, const std::int64_t extent)
    : _nodes(simplify(std::move(nodes))), _lower_bound(lower_bound), _extent(extent) {
    _nodes.shrink_to_fit();
    if (_nodes.empty()) {
        return;
    }
    const Measure measured = measure(_nodes);
    _size = measured.size;
    _block_count = measured.blocks;
    _true_begin = measured.extremes.begin;
    _true_end = measured.extremes.end;
}

bool Layout::is_contiguous(const std::int64_t count) const noexcept {
    if (count <= 0 || _size == 0) {
        return true;
    }
    if (_nodes.size() != 1 || !_nodes.front().children.empty() || _nodes.front().count != 1) {
        return false;
    }
    return count == 1 || _extent == _size;
}

Layout::Span Layout::span(const std::int64_t count) const noexcept {
    if (count <= 0 || _size == 0) {
        return {};
    }
    const std::int64_t shift = saturating_product(count - 1, _extent);
    return {saturating_sum(_true_begin, std::min<std::int64_t>(0, shift)),
            saturating_sum(_true_end, std::max<std::int64_t>(0, shift))};
}

void Layout::for_each_block(const std::int64_t count, const std::int64_t limit,
                            const std::function<void(const StridedBlock&)>& visit) const {
    if (count <= 0 || limit <= 0 || _size == 0) {
        return;
    }
    Coalescer coalescer([&visit](const StridedBlock& block) { visit(block); });
    Walker walker(coalescer, std::min(limit, saturating_product(_size, count)));
    LayoutNode collapsed;
    if (_nodes.size() == 1 && _nodes.front().children.empty()) {
        collapsed = _nodes.front();
        if (repeat_leaf(collapsed, count, _extent)) {
            walker.emit(block_of(collapsed));
            coalescer.finish();
            return;
        }
    }
    std::int64_t origin = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (!walker.nodes(_nodes, origin)) {
            break;
        }
        if (i + 1 < count) {
            origin += _extent;
        }
    }
    coalescer.finish();
}

void pack(const Layout& layout, const void* const buffer, const std::int64_t count, void* const packed,
          const std::int64_t limit) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer);
    auto* to = static_cast<std::byte*>(packed);
    layout.for_each_block(count, limit, [address, &to](const StridedBlock& block) {
        const auto width = static_cast<std::size_t>(block.width);
        // Unsigned arithmetic: absolute addresses (MPI_BOTTOM) make `buffer` null and the offset the address.
        std::uintptr_t from = address + static_cast<std::uintptr_t>(block.offset);
        for (std::int64_t row = 0; row < block.rows; ++row) {
            copy_row(to, reinterpret_cast<const std::byte*>(from), width);
            to += width;
            from += static_cast<std::uintptr_t>(block.pitch);
        }
    });
}

void unpack(const Layout& layout, void* const buffer, const std::int64_t count, const void* const packed,
            const std::int64_t limit) {
    const auto address = reinterpret_cast<std::uintptr_t>(buffer);
    const auto* from = static_cast<const std::byte*>(packed);
    layout.for_each_block(count, limit, [address, &from](const StridedBlock& block) {
        const auto width = static_cast<std::size_t>(block.width);
        std::uintptr_t to = address + static_cast<std::uintptr_t>(block.offset);
        for (std::int64_t row = 0; row < block.rows; ++row) {
            copy_row(reinterpret_cast<std::byte*>(to), from, width);
            from += width;
            to += static_cast<std::uintptr_t>(block.pitch);
        }
    });
}

}  // namespace awaken::transfer
