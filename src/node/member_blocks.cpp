#include "node/member_blocks.h"

#include <atomic>

namespace awaken::node {

namespace {

/// Processors fetch lines in pairs.
constexpr std::size_t kLine = 128;

/// Stands before the bytes of a part.
struct Head {
    std::atomic<std::uint32_t> left;  ///< members that have let go of the part
};
static_assert(sizeof(Head) <= kLine);

}  // namespace

Parts::Parts(Segment& segment, const int members, const int own, const std::size_t bytes)
    : _segment(segment), _own(own), _bytes(kLine + bytes), _parts(static_cast<std::size_t>(members)) {}

Parts::~Parts() {
    for (const Part& part : _parts) {
        if (part.base == nullptr) {
            continue;
        }
        auto& head = *reinterpret_cast<Head*>(part.base);
        const bool last = head.left.fetch_add(1, std::memory_order_acq_rel) + 1 == _parts.size();
        _segment.unmap(part.base, _bytes);
        if (last) {
            _segment.release(part.offset, _bytes);
        }
    }
}

bool Parts::make_own() {
    Part& part = _parts[static_cast<std::size_t>(_own)];
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

std::uint64_t Parts::own_offset() const noexcept {
    return _parts[static_cast<std::size_t>(_own)].offset;
}

bool Parts::connect(const std::span<const std::uint64_t> offsets) {
    for (std::size_t member = 0; member < _parts.size(); ++member) {
        Part& part = _parts[member];
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

std::byte* Parts::at(const int member) const noexcept {
    return _parts[static_cast<std::size_t>(member)].base + kLine;
}

std::span<std::byte> Parts::own_memory() const noexcept {
    return {_parts[static_cast<std::size_t>(_own)].base, _bytes};
}

}  // namespace awaken::node
