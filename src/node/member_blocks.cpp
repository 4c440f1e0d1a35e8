#include "node/member_blocks.h"

#include <atomic>

namespace awaken::node {

namespace {

/// Processors fetch lines in pairs.
constexpr std::size_t kLine = 128;

/// Stands before the bytes of a part.
struct Head {
    std::atomic<std::uint32_t> left;  ///< members that have released the part
};
static_assert(sizeof(Head) <= kLine);

}  // namespace

MemberBlocks::MemberBlocks(Segment& segment, const int members, const int own, const std::size_t bytes)
    : _segment(segment), _own(own), _bytes(kLine + bytes), _blocks(static_cast<std::size_t>(members)) {}

MemberBlocks::~MemberBlocks() {
    for (const Block& part : _blocks) {
        if (part.base == nullptr) {
            continue;
        }
        auto& head = *reinterpret_cast<Head*>(part.base);
        const bool last = head.left.fetch_add(1, std::memory_order_acq_rel) + 1 == _blocks.size();
        _segment.unmap(part.base, _bytes);
        if (last) {
            _segment.release(part.offset, _bytes);
        }
    }
}

bool MemberBlocks::make_own() {
    Block& part = _blocks[static_cast<std::size_t>(_own)];
    const auto offset = _segment.allocate(_bytes);
    if (!offset) {
        return false;
    }
    part.offset = *offset;
    part.base = _segment.map(*offset, _bytes);
    if (part.base == nullptr) {
        _segment.release(*offset, _bytes);
        return false;
    }
    return true;
}

std::uint64_t MemberBlocks::own_offset() const noexcept {
    return _blocks[static_cast<std::size_t>(_own)].offset;
}

bool MemberBlocks::connect(const std::span<const std::uint64_t> offsets) {
    for (std::size_t member = 0; member < _blocks.size(); ++member) {
        Block& part = _blocks[member];
        if (part.base == nullptr) {
            part.offset = offsets[member];
            part.base = _segment.map(part.offset, _bytes);
        }
        if (part.base == nullptr) {
            return false;
        }
    }
    return true;
}

std::byte* MemberBlocks::at(const int member) const noexcept {
    return _blocks[static_cast<std::size_t>(member)].base + kLine;
}

std::span<std::byte> MemberBlocks::own_memory() const noexcept {
    return {_blocks[static_cast<std::size_t>(_own)].base, _bytes};
}

}  // namespace awaken::node
