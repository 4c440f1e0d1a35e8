// Shared memory that the members of a group make together: a part from each, which all of them use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "node/segment.h"

namespace awaken::node {

class MemberBlocks {
  public:
    /// Parts of `bytes` each for `members`, of whom this process is number `own`. Takes nothing yet.
    MemberBlocks(Segment& segment, int members, int own, std::size_t bytes);
    /// Lets go of all parts; the last member to do so gives their memory back.
    ~MemberBlocks();
    MemberBlocks(const MemberBlocks&) = delete;
    MemberBlocks& operator=(const MemberBlocks&) = delete;

    /// Takes this member's part, which is filled with zeros. False when there is no room.
    [[nodiscard]] bool make_own();
    /// What the others need to find this member's part.
    [[nodiscard]] std::uint64_t own_offset() const noexcept;
    /// Maps the others' parts, whose offsets are given by member. False when one cannot be mapped: then only this
    /// member's own part may be used.
    [[nodiscard]] bool connect(std::span<const std::uint64_t> offsets);

    [[nodiscard]] int members() const noexcept { return static_cast<int>(_blocks.size()); }
    [[nodiscard]] int own() const noexcept { return _own; }
    /// The bytes of a member's part, at a multiple of 128.
    [[nodiscard]] std::byte* at(int member) const noexcept;
    /// All memory of this member's part, with what stands before those bytes.
    [[nodiscard]] std::span<std::byte> own_memory() const noexcept;

  private:
    struct Block {
        std::byte* base = nullptr;
        std::uint64_t offset = 0;
    };

    Segment& _segment;
    const int _own;
    const std::size_t _bytes;  ///< of a part as a whole
    std::vector<Block> _blocks;
};

}  // namespace awaken::node
