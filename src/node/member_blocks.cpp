// SPDX-License-Identifier: Apache-2.0
#include "node/member_blocks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <new>

namespace awaken::node {

namespace {

/// Processors fetch lines in pairs.
constexpr std::size_t kLine = 128;

/// Enough for a program that makes and frees one group after another, some of whose members leave it late.
constexpr std::size_t kMostKept = 8;

/// Stands before the bytes of a part.
struct Head {
    std::atomic<std::uint32_t> left;  ///< members that have left the part, and kIsKept
};
static_assert(sizeof(Head) <= kLine);
/// The part's maker keeps the memory, so that no other member gives it back.
constexpr std::uint32_t kIsKept = std::uint32_t{1} << 31;

std::atomic<std::uint32_t>& left_of(const std::byte* const base) noexcept {
    return reinterpret_cast<Head*>(const_cast<std::byte*>(base))->left;
}

}  // namespace

KeptBlocks::~KeptBlocks() {
    for (const std::list<Kept>* const all : {&_own, &_mappings}) {
        for (const Kept& kept : *all) {
            Segment::unmap(kept.block.base, kept.bytes);
        }
    }
}

bool KeptBlocks::keep_own(const Block& block, const std::size_t bytes, const int members) noexcept {
    const std::scoped_lock lock(_mutex);
    if (_own.size() >= kMostKept) {
        return false;
    }
    try {
        _own.push_back({block, bytes, members});
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

KeptBlocks::Block KeptBlocks::take_own(const std::size_t bytes) noexcept {
    const std::scoped_lock lock(_mutex);
    const auto found = std::find_if(_own.begin(), _own.end(), [bytes](const Kept& kept) {
        return kept.bytes == bytes && left_of(kept.block.base).load(std::memory_order_acquire) ==
                                          (static_cast<std::uint32_t>(kept.members) | kIsKept);
    });
    if (found == _own.end()) {
        return {};
    }
    const Block block = found->block;
    _own.erase(found);
    std::memset(block.base, 0, bytes);
    return block;
}

void KeptBlocks::keep_mapping(const Block& block, const std::size_t bytes, const int processes) noexcept {
    const std::scoped_lock lock(_mutex);
    try {
        _mappings.push_back({block, bytes, 0});
    } catch (const std::bad_alloc&) {
        Segment::unmap(block.base, bytes);
        return;
    }
    if (_mappings.size() > kMostKept * static_cast<std::size_t>(processes)) {
        Segment::unmap(_mappings.front().block.base, _mappings.front().bytes);
        _mappings.pop_front();
    }
}

std::byte* KeptBlocks::take_mapping(const std::uint64_t offset, const std::size_t bytes) noexcept {
    const std::scoped_lock lock(_mutex);
    const auto found = std::find_if(_mappings.begin(), _mappings.end(), [&](const Kept& kept) {
        return kept.block.offset == offset && kept.bytes == bytes;
    });
    if (found == _mappings.end()) {
        return nullptr;
    }
    std::byte* const base = found->block.base;
    _mappings.erase(found);
    return base;
}

MemberBlocks::MemberBlocks(Segment& segment, const int members, const int own, const std::size_t bytes)
    : _segment(segment), _own(own), _bytes(kLine + bytes), _blocks(static_cast<std::size_t>(members)) {}

MemberBlocks::~MemberBlocks() {
    KeptBlocks& kept = _segment.kept_blocks();
    for (const Block& part : _blocks) {
        if (part.base == nullptr) {
            continue;
        }
        const bool is_own = &part == &_blocks[static_cast<std::size_t>(_own)];
        const bool keeps = is_own && kept.keep_own(part, _bytes, members());
        const std::uint32_t leaves = keeps ? 1 | kIsKept : 1;
        const std::uint32_t left = left_of(part.base).fetch_add(leaves, std::memory_order_acq_rel) + leaves;
        if (keeps) {
            continue;
        }
        const bool is_over = left == _blocks.size();  // no member keeps it
        if (is_own || is_over) {
            Segment::unmap(part.base, _bytes);
        } else {
            kept.keep_mapping(part, _bytes, _segment.processes());
        }
        if (is_over) {
            _segment.release(part.offset, _bytes);
        }
    }
}

bool MemberBlocks::make_own() {
    Block& part = _blocks[static_cast<std::size_t>(_own)];
    part = _segment.kept_blocks().take_own(_bytes);
    if (part.base != nullptr) {
        return true;
    }
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
            part.base = _segment.kept_blocks().take_mapping(part.offset, _bytes);
        }
        if (part.base == nullptr) {
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

std::span<std::byte> MemberBlocks::memory_of(const int member) const noexcept {
    return {_blocks[static_cast<std::size_t>(member)].base, _bytes};
}

}  // namespace awaken::node
