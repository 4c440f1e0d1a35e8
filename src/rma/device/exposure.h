// SPDX-License-Identifier: Apache-2.0
// What the members of a window share: where each one's memory is, who has locked it, who updates it, and how far each
// has come with post, start, complete and wait.
//
// All members are on one node. Each has a part of the node's shared memory. Nothing here needs another member's help: a
// target may compute, or sleep, while others lock its part and move its memory. When a member dies while it holds
// something, those who wait for it notice.
//
// Knows no MPI. The members make their parts known to each other by other means, once (see own_offset()).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "node/member_blocks.h"
#include "node/segment.h"
#include "transfer/location.h"

namespace awaken::rma {

/// A stretch of a member's device memory that others may reach.
struct Region {
    std::uint64_t begin = 0;  ///< address in the process of the member whose window part it is
    std::uint64_t bytes = 0;  ///< 0: nothing there
    /// The member whose memory it is. Differs from that member for a part of a shared allocation.
    std::int32_t exporter = -1;
    transfer::Location location;

    [[nodiscard]] bool contains(const std::uint64_t address, const std::uint64_t length) const noexcept {
        return address >= begin && address - begin <= bytes && length <= bytes - (address - begin);
    }
    [[nodiscard]] bool touches(const std::uint64_t address, const std::uint64_t length) const noexcept {
        return address < begin + bytes && begin < address + length;
    }
};

enum class Hold : std::uint32_t { none, shared, exclusive };

class Exposure {
  public:
    /// A member that waits for another one calls this now and then, so that its process's own communication goes on.
    using Idle = std::function<void()>;

    /// Takes this member's part of the node's shared memory. Null when there is no room; the member then has to say so
    /// in place of its offset.
    /// @param processes by member, its index in the segment.
    [[nodiscard]] static std::unique_ptr<Exposure> make(node::Segment& segment, std::vector<int> processes, int own,
                                                        Idle idle);
    /// Gives everything up. The last member to do so gives the parts' memory back.
    ~Exposure();
    Exposure(const Exposure&) = delete;
    Exposure& operator=(const Exposure&) = delete;

    [[nodiscard]] std::uint64_t own_offset() const noexcept { return _parts.own_offset(); }
    /// Maps the others' parts, whose offsets are given by member. False when one cannot be mapped: this member may then
    /// use its own part only.
    [[nodiscard]] bool connect(std::span<const std::uint64_t> offsets) { return _parts.connect(offsets); }
    [[nodiscard]] int members() const noexcept { return _parts.members(); }
    [[nodiscard]] int own() const noexcept { return _own; }
    [[nodiscard]] int process_of(const int member) const noexcept {
        return _processes[static_cast<std::size_t>(member)];
    }

    // ---- memory -----------------------------------------------------------------------------------------------------
    /// Shows others this member's regions, in place of those that it has shown before. False when there is no room in
    /// shared memory; nothing is changed then. One thread at a time.
    [[nodiscard]] bool publish(std::span<const Region> regions);
    /// Changes with each publish() of the member; costs one load.
    [[nodiscard]] std::uint64_t version(int member) const noexcept;
    /// The regions that the member shows; sets `version` to their version. Throws Error when shared memory cannot be
    /// mapped.
    [[nodiscard]] std::vector<Region> regions(int member, std::uint64_t& version) const;

    // ---- locks ------------------------------------------------------------------------------------------------------
    /// Waits for the lock of MPI_Win_lock on a member's memory. Locks are given in the order of the calls, but members
    /// that share the lock need not wait for each other. Throws Error when a member in the way has died.
    void lock(int target, Hold how);
    void unlock(int target) noexcept;

    /// Keeps all others from updating a member's memory by accumulate operations, as long as the object lives.
    class Update {
      public:
        /// Waits until no other member holds the word. Throws Error when the member that holds it has died.
        Update(Exposure& exposure, int target);
        ~Update();
        Update(const Update&) = delete;
        Update& operator=(const Update&) = delete;

      private:
        std::atomic<std::uint64_t>& _holder;
    };

    // ---- post, start, complete, wait --------------------------------------------------------------------------------
    /// Opens this member's memory to `origin`.
    void post(int origin) noexcept;
    /// Waits until `target` has opened its memory to this member one more time than this member has used that. Throws
    /// Error when the target has died before.
    void await_post(int target);
    /// The member begins to use what it has waited for.
    void use_post(int target) noexcept { ++_seen[static_cast<std::size_t>(target)].posts; }
    /// Says that this member will not access `target` any more.
    void complete(int target) noexcept;
    [[nodiscard]] bool has_completed(int origin) const noexcept;
    /// Waits until `origin` has completed. Throws Error when it has died before.
    void await_completion(int origin);

    // ---- fences, counted from 1 -------------------------------------------------------------------------------------
    /// Called before a fence: says that this member may get results for its own memory, which are copied there after
    /// the fence.
    void announce_results(std::uint64_t fence) noexcept;
    void results_are_there(std::uint64_t fence) noexcept;
    /// Called after a fence: waits until all results that members have announced are in their places. Throws Error when
    /// one of them has died.
    void await_results(std::uint64_t fence);

  private:
    struct Head;
    struct MemberWords;  ///< the words that a part has for each member
    /// The events of a member that this process has waited for.
    struct Seen {
        std::uint64_t posts = 0;
        std::uint64_t completions = 0;
    };
    class Patience;

    Exposure(node::Segment& segment, std::vector<int> processes, int own, Idle idle);
    [[nodiscard]] Head& head(int member) const noexcept;
    [[nodiscard]] MemberWords& member_words(int of, int member) const noexcept;
    /// Takes a word that holds 0 or the process that has taken it.
    void take(std::atomic<std::uint64_t>& holder, int target, const char* doing);
    /// The member that keeps this one from the lock; -1: none.
    [[nodiscard]] int in_the_way(int target, std::uint64_t ticket, Hold how) const noexcept;
    void check_alive(int member, const char* doing) const;
    /// Waits until `is_over()` holds. Throws Error when the member has died before.
    template <class Condition>
    void await(int member, const char* doing, const Condition& is_over) const;

    node::Segment& _segment;
    const std::vector<int> _processes;
    const int _own;
    const Idle _idle;
    node::MemberBlocks _parts;
    std::vector<Seen> _seen;                            ///< by member
    std::uint64_t _table_offset = 0, _table_bytes = 0;  ///< the table of this member's regions
};

}  // namespace awaken::rma
