// SPDX-License-Identifier: Apache-2.0
// Shared memory that the members of a group make together: each member makes a part, and all use all parts.
//
// Groups come and go, with communicators for example. So a process keeps the parts that it has mapped for later groups.
// Besides the time, this saves memory of the MPI: UCX takes some 150 bytes for each munmap() of a process, and gives
// them back only when it looks at its cache of registrations, which may be never.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <vector>

#include "node/segment.h"

namespace awaken::node {

/// Parts of groups that are gone, as one process has them. Thread-safe.
class KeptBlocks {
  public:
    struct Block {
        std::byte* base = nullptr;
        std::uint64_t offset = 0;
    };

    KeptBlocks() = default;
    ~KeptBlocks();
    KeptBlocks(const KeptBlocks&) = delete;
    KeptBlocks& operator=(const KeptBlocks&) = delete;

    /// Takes over a part that this process has made. False: it has enough of them. To be called before this process
    /// leaves the part.
    [[nodiscard]] bool keep_own(const Block& block, std::size_t bytes, int members) noexcept;
    /// A part of this process's own that all members have left, filled with zeros. No base: there is none.
    [[nodiscard]] Block take_own(std::size_t bytes) noexcept;
    /// Takes over the mapping of another member's part.
    void keep_mapping(const Block& block, std::size_t bytes, int processes) noexcept;
    /// The mapping at this offset, or null.
    [[nodiscard]] std::byte* take_mapping(std::uint64_t offset, std::size_t bytes) noexcept;

  private:
    struct Kept {
        Block block;
        std::size_t bytes;
        int members;  ///< of the group that it was made for
    };
    std::mutex _mutex;
    std::list<Kept> _own, _mappings;  ///< oldest first
};

class MemberBlocks {
  public:
    /// Parts of `bytes` bytes each for `members` members; this process is member `own`. Takes no memory yet.
    MemberBlocks(Segment& segment, int members, int own, std::size_t bytes);
    /// Leaves all parts. A part's maker may keep it; otherwise the last member to leave it gives its memory back.
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
    /// All memory of a member's part, including what stands before those bytes.
    [[nodiscard]] std::span<std::byte> memory_of(int member) const noexcept;

  private:
    using Block = KeptBlocks::Block;

    Segment& _segment;
    const int _own;
    const std::size_t _bytes;  ///< size of a whole part
    std::vector<Block> _blocks;
};

}  // namespace awaken::node
