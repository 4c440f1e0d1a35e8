// SPDX-License-Identifier: Apache-2.0
#include "transfer/flat_type.h"

#include <limits>

namespace awaken::transfer {
namespace {

struct Loop {
    std::int64_t count = 1;
    std::int64_t stride = 0;
};

bool product(const std::int64_t a, const std::int64_t b, std::int64_t& result) noexcept {
    return !__builtin_mul_overflow(a, b, &result);
}

/// Makes fewer loops around the same blocks. Loops without repetitions vanish, neighbouring loops that continue each
/// other become one, and blocks that follow each other without a gap become longer. False on overflow.
bool normalise(std::vector<Loop>& loops, std::int64_t& width) {
    std::erase_if(loops, [](const Loop& loop) { return loop.count == 1; });
    std::vector<Loop> joined;
    for (const Loop& loop : loops) {
        if (joined.empty() && loop.stride == width) {
            if (!product(width, loop.count, width)) {
                return false;
            }
            continue;
        }
        std::int64_t whole = 0;
        if (!joined.empty() && product(joined.back().count, joined.back().stride, whole) && whole == loop.stride) {
            if (!product(joined.back().count, loop.count, joined.back().count)) {
                return false;
            }
            continue;
        }
        joined.push_back(loop);
    }
    loops.swap(joined);
    return true;
}

}  // namespace

std::int64_t Strided::bytes() const noexcept {
    std::int64_t total = width;
    for (const std::int64_t count : counts) {
        total *= count;
    }
    return total;
}

std::int64_t Strided::end() const noexcept {
    std::int64_t end = offset + width;
    for (std::size_t i = 0; i < kLoops; ++i) {
        end += std::max<std::int64_t>(strides[i], 0) * (counts[i] - 1);
    }
    return end;
}

std::optional<Strided> strided_form(const Layout& layout, const std::int64_t count) {
    if (layout.size() == 0 || count <= 0) {
        return std::nullopt;
    }
    Strided form;
    std::vector<Loop> loops;  // the outermost first
    loops.push_back({count, layout.extent()});
    for (const std::vector<LayoutNode>* nodes = &layout.nodes();; nodes = &nodes->front().children) {
        if (nodes->size() != 1) {
            return std::nullopt;
        }
        const LayoutNode& node = nodes->front();
        form.offset += node.offset;
        loops.push_back({node.count, node.stride});
        if (node.children.empty()) {
            form.width = node.length;
            break;
        }
    }
    std::reverse(loops.begin(), loops.end());
    if (!normalise(loops, form.width) || loops.size() > Strided::kLoops) {
        return std::nullopt;
    }
    std::int64_t total = form.width;
    for (std::size_t i = 0; i < loops.size(); ++i) {
        form.counts[i] = loops[i].count;
        form.strides[i] = loops[i].stride;
        if (!product(total, loops[i].count, total)) {
            return std::nullopt;
        }
    }
    return form;
}

const std::vector<ListEntry>& FlatType::entries() const {
    std::call_once(_once, [this] {
        bool too_long = false;
        std::uint64_t position = 0;
        const auto add = [&](const std::int64_t offset, const std::int64_t width, const std::int64_t rows,
                             const std::int64_t pitch) {
            too_long = too_long || _entries.size() >= kMostEntries;
            if (too_long) {
                return;
            }
            _entries.push_back({offset, rows > 1 ? pitch : 0, position, static_cast<std::uint32_t>(width),
                                static_cast<std::uint32_t>(rows)});
            position += static_cast<std::uint64_t>(width * rows);
        };
        _layout.for_each_block(1, _layout.size(), [&](const StridedBlock& block) {
            const std::int64_t rows = std::max<std::int64_t>(1, kEntryBytes / block.width);
            for (std::int64_t row = 0; row < block.rows && !too_long; row += rows) {
                const std::int64_t offset = block.offset + row * block.pitch;
                if (block.width <= kEntryBytes) {
                    add(offset, block.width, std::min(rows, block.rows - row), block.pitch);
                    continue;
                }
                for (std::int64_t at = 0; at < block.width && !too_long; at += kEntryBytes) {
                    add(offset + at, std::min(kEntryBytes, block.width - at), 1, 0);
                }
            }
        });
        if (too_long) {
            _entries.clear();
        }
        _entries.shrink_to_fit();
    });
    return _entries;
}

std::uint64_t FlatType::mean_entry_bytes() const {
    const std::size_t length = entries().size();
    return length == 0 ? 1 : std::max<std::uint64_t>(1, static_cast<std::uint64_t>(_layout.size()) / length);
}

TypedMemory::TypedMemory(std::shared_ptr<const FlatType> flat, const void* const buffer, const std::int64_t elements)
    : origin(reinterpret_cast<std::uintptr_t>(buffer)),
      strided(strided_form(flat->layout(), elements)),
      type(std::move(flat)),
      count(elements),
      bytes(elements * type->layout().size()) {}

TypedMemory::TypedMemory(const void* const buffer, const Strided& blocks)
    : origin(reinterpret_cast<std::uintptr_t>(buffer)), strided(blocks), count(1), bytes(blocks.bytes()) {}

}  // namespace awaken::transfer
