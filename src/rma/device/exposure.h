// What the members of a window share: where each one's memory is, who has locked it, who updates it, and how far each
// has come with post, start, complete and wait.
//
// All members are on one node. Each has a part of the node's shared memory. Nobody's help is needed for anything here:
// a target may compute, or sleep, while others lock its part and move its memory. A member that dies while it holds
// something is noticed by those who wait for it.
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
    std::uint64_t begin = 0;     ///< address in the member whose window it is
    std::uint64_t bytes = 0;     ///< 0: nothing there
    std::int32_t exporter = -1;  ///< the member whose memory it is; another one for a part of a shared allocation
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
    /// Called now and then by whoever waits for another member, so that the process's own communication goes on.
    using Idle = std::function<void()>;

    /// Takes this member's part of the node's shared memory. Null when there is no room; the member then has to say so
    /// where it would have told its offset.
    /// @param processes by member, its index in the segment.
    [[nodiscard]] static std::unique_ptr<Exposure> make(node::Segment& segment, std::vector<int> processes, int own,
                                                        Idle idle);
    /// Lets go of everything; the last member to do so gives the parts' memory back.
    ~Exposure();
    Exposure(const Exposure&) = delete;
    Exposure& operator=(const Exposure&) = delete;

    [[nodiscard]] std::uint64_t own_offset() const noexcept { return _parts.own_offset(); }
    /// Maps the others' parts, whose offsets are given by member. False when one cannot be mapped: then only this
    /// member's own part may be used.
    [[nodiscard]] bool connect(std::span<const std::uint64_t> offsets) { return _parts.connect(offsets); }
    [[nodiscard]] int members() const noexcept { return _parts.members(); }
    [[nodiscard]] int own() const noexcept { return _own; }
    [[nodiscard]] int process_of(const int member) const noexcept {
        return _processes[static_cast<std::size_t>(member)];
    }

    // ---- memory -----------------------------------------------------------------------------------------------------
    /// Shows others this member's regions, in the place of those that it has shown before. False when there is no room
    /// in shared memory; nothing is changed then. One thread at a time.
    [[nodiscard]] bool publish(std::span<const Region> regions);
    /// Changes with each publish() of the member; costs one load.
    [[nodiscard]] std::uint64_t version(int member) const noexcept;
    /// What the member shows; `version` receives the version that this is. Throws Error when shared memory cannot be
    /// mapped.
    [[nodiscard]] std::vector<Region> regions(int member, std::uint64_t& version) const;

    // ---- locks ------------------------------------------------------------------------------------------------------
    /// Waits for the lock of MPI_Win_lock on a member's memory. In the order of coming, but that those who share need
    /// not wait for each other. Throws Error when a member that is in the way has died.
    void lock(int target, Hold how);
    void unlock(int target) noexcept;

    /// Keeps all others from updating a member's memory by accumulate operations while it lives.
    class Update {
      public:
        /// Waits. Throws Error when the member that holds it has died.
        Update(Exposure& exposure, int target);
        ~Update();
        Update(const Update&) = delete;
        Update& operator=(const Update&) = delete;

      private:
        std::atomic<std::uint64_t>& _holder;
    };

    // ---- post, start, complete, wait --------------------------------------------------------------------------------
    /// This member's memory is open to `origin`.
    void post(int origin) noexcept;
    /// Waits until `target` has opened its memory to this member once more than it was waited for. Throws Error when it
    /// has died.
    void await_post(int target);
    /// This member will not access `target` any more.
    void complete(int target) noexcept;
    [[nodiscard]] bool has_completed(int origin) const noexcept;
    /// Waits until `origin` has completed. Throws Error when it has died.
    void await_completion(int origin);

    // ---- fences, counted from 1 -------------------------------------------------------------------------------------
    /// Before a fence: results that may be for this member's own memory are copied there after it.
    void announce_results(std::uint64_t fence) noexcept;
    void results_are_there(std::uint64_t fence) noexcept;
    /// After a fence, waits until the results are there that members have announced. Throws Error when one has died.
    void await_results(std::uint64_t fence);

  private:
    struct Head;
    struct MemberWords;  ///< what a part has for each member
    /// What this process has waited for, of a member.
    struct Seen {
        std::uint64_t posts = 0;
        std::uint64_t completions = 0;
    };
    class Patience;

    Exposure(node::Segment& segment, std::vector<int> processes, int own, Idle idle);
    [[nodiscard]] Head& head(int member) const noexcept;
    [[nodiscard]] MemberWords& member_words(int of, int member) const noexcept;
    /// Takes a word that holds 0 or the process that has it.
    void take(std::atomic<std::uint64_t>& holder, int target, const char* doing);
    /// Whoever keeps this member from the lock; -1: nobody.
    [[nodiscard]] int in_the_way(int target, std::uint64_t ticket, Hold how) const noexcept;
    void check_alive(int member, const char* doing) const;

    node::Segment& _segment;
    const std::vector<int> _processes;
    const int _own;
    const Idle _idle;
    node::MemberBlocks _parts;
    std::vector<Seen> _seen;                            ///< by member
    std::uint64_t _table_offset = 0, _table_bytes = 0;  ///< of this member's regions
};

}  // namespace awaken::rma
