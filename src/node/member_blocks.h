// Shared memory that the members of a group make together: each member makes a part, and all use all parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "node/segment.h"

namespace awaken::node {

class MemberBlocks {
  public:
    /// Parts of `bytes` bytes each for `members` members; this process is member `own`. Takes no memory yet.
    MemberBlocks(Segment& segment, int members, int own, std::size_t bytes);
    /// Releases all parts. The last member to do so gives their memory back.
    ~MemberBlocks();
    MemberBlocks(const MemberBlocks&) = delete;
    MemberBlocks& operator=(const MemberBlocks&) = delete;

    /// Makes this member's part, which is filled with zeros. False when there is no room.
    [[nodiscard]] bool make_own();
    /// Offset of this member's part, by which the others find it.
    [[nodiscard]] std::uint64_t own_offset() const noexcept;
    /// Maps the others' parts, whose offsets are given by member. False when one cannot be mapped: then this member may
    /// use only its own part.
    [[nodiscard]] bool connect(std::span<const std::uint64_t> offsets);

    [[nodiscard]] int members() const noexcept { return static_cast<int>(_blocks.size()); }
    [[nodiscard]] int own() const noexcept { return _own; }
    /// The bytes of a member's part, at a multiple of 128.
    [[nodiscard]] std::byte* at(int member) const noexcept;
    /// All memory of this member's part, including what stands before those bytes.
    [[nodiscard]] std::span<std::byte> own_memory() const noexcept;

  private:
    struct Block {
        std::byte* base = nullptr;
        std::uint64_t offset = 0;
    };

    Segment& _segment;
    const int _own;
    const std::size_t _bytes;  ///< size of a whole part
    std::vector<Block> _blocks;
};

}  // namespace awaken::node
