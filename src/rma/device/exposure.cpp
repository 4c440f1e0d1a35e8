// SPDX-License-Identifier: Apache-2.0
#include "rma/device/exposure.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "base/backoff.h"
#include "base/error.h"
#include "base/round_up.h"

namespace awaken::rma {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLine = 128;
/// How often a waiting member asks whether another process lives, since that costs a system call.
constexpr std::chrono::milliseconds kBetweenLooks{10};

}  // namespace

struct Exposure::Head {
    /// The process that updates the memory, and the one that changes which members hold the lock; index in the segment
    /// plus 1.
    alignas(kLine) std::atomic<std::uint64_t> updater;
    alignas(kLine) std::atomic<std::uint64_t> steward;
    std::uint64_t last_ticket;  ///< changed by the steward only
    /// Odd while the owner changes the two values below.
    alignas(kLine) std::atomic<std::uint64_t> version;
    std::atomic<std::uint64_t> table_offset;
    std::atomic<std::uint64_t> regions;
    /// The last fence before which the owner has announced results, and the last after which they were in place.
    alignas(kLine) std::atomic<std::uint64_t> announced;
    std::atomic<std::uint64_t> arrived;
};

struct alignas(kLine) Exposure::MemberWords {
    /// For the lock: when the member came (0 while it does not wait), what it wants, and what it has.
    std::atomic<std::uint64_t> ticket;
    std::atomic<Hold> wants, has;
    /// The part's owner writes these: how often it has opened its memory to the member, and how often it has completed
    /// its accesses to the member's memory.
    std::atomic<std::uint64_t> posts, completions;
};

/// The state of one wait.
class Exposure::Patience {
  public:
    explicit Patience(const Idle& idle) : _idle(idle) {}

    /// Called once in each loop. True when it is time to look whether the others are alive.
    [[nodiscard]] bool turn() {
        if (!_backoff.turn()) {
            return false;
        }
        _idle();
        _backoff.pause();
        const Clock::time_point now = _backoff.now();
        if (_looked == Clock::time_point{}) {
            _looked = now;
        }
        if (now - _looked < kBetweenLooks) {
            return false;
        }
        _looked = now;
        return true;
    }

  private:
    const Idle& _idle;
    Backoff _backoff;
    Clock::time_point _looked{};
};

Exposure::Exposure(node::Segment& segment, std::vector<int> processes, const int own, Idle idle)
    : _segment(segment),
      _processes(std::move(processes)),
      _own(own),
      _idle(std::move(idle)),
      _parts(segment, static_cast<int>(_processes.size()), own,
             round_up(sizeof(Head), kLine) + _processes.size() * sizeof(MemberWords)),
      _seen(_processes.size()) {}

std::unique_ptr<Exposure> Exposure::make(node::Segment& segment, std::vector<int> processes, const int own, Idle idle) {
    std::unique_ptr<Exposure> exposure(new Exposure(segment, std::move(processes), own, std::move(idle)));
    // The memory begins filled with zeros, which is what it has to hold.
    return exposure->_parts.make_own() ? std::move(exposure) : nullptr;
}

Exposure::~Exposure() {
    if (_table_bytes != 0) {
        _segment.release(_table_offset, _table_bytes);
    }
}

Exposure::Head& Exposure::head(const int member) const noexcept {
    return *reinterpret_cast<Head*>(_parts.at(member));
}

Exposure::MemberWords& Exposure::member_words(const int of, const int member) const noexcept {
    std::byte* const seats = _parts.at(of) + round_up(sizeof(Head), kLine);
    return reinterpret_cast<MemberWords*>(seats)[member];
}

void Exposure::check_alive(const int member, const char* const doing) const {
    const int process = process_of(member);
    if (member != _own && !_segment.alive(process)) {
        throw Error(
            "rank " + std::to_string(_segment.process(process).world_rank) + " of MPI_COMM_WORLD ended " + doing,
            "look at that rank's own output for the reason", Error::Kind::failed_process);
    }
}

template <class Condition>
void Exposure::await(const int member, const char* const doing, const Condition& is_over) const {
    for (Patience patience(_idle); !is_over();) {
        // The last that a member did before it ended may be what this process waits for.
        if (patience.turn() && !_segment.alive(process_of(member)) && !is_over()) {
            check_alive(member, doing);
        }
    }
}

// ---- memory ---------------------------------------------------------------------------------------------------------

bool Exposure::publish(const std::span<const Region> regions) {
    // Always writes to new memory. Members that are reading the old table find out by the version.
    std::uint64_t offset = 0;
    const std::size_t bytes = regions.size_bytes();
    if (bytes != 0) {
        const auto room = _segment.allocate(bytes);
        std::byte* const table = room ? _segment.map(*room, bytes) : nullptr;
        if (table == nullptr) {
            if (room) {
                _segment.release(*room, bytes);
            }
            return false;
        }
        std::memcpy(table, regions.data(), bytes);
        _segment.unmap(table, bytes);
        offset = *room;
    }
    Head& own = head(_own);
    // Release, so that who sees one of the two sees the odd version too. An atomic exchange alone would not keep later
    // stores behind it on Arm.
    own.version.fetch_add(1, std::memory_order_acq_rel);
    own.table_offset.store(offset, std::memory_order_release);
    own.regions.store(regions.size(), std::memory_order_release);
    own.version.fetch_add(1, std::memory_order_acq_rel);
    if (_table_bytes != 0) {
        _segment.release(_table_offset, _table_bytes);
    }
    _table_offset = offset;
    _table_bytes = bytes;
    return true;
}

std::uint64_t Exposure::version(const int member) const noexcept {
    return head(member).version.load(std::memory_order_acquire);
}

std::vector<Region> Exposure::regions(const int member, std::uint64_t& version) const {
    const Head& of = head(member);
    std::vector<Region> regions;
    for (Patience patience(_idle);;) {
        version = of.version.load(std::memory_order_acquire);
        if (version % 2 == 0) {
            const std::uint64_t offset = of.table_offset.load(std::memory_order_acquire);
            const std::uint64_t count = of.regions.load(std::memory_order_acquire);
            const auto is_current = [&] {
                std::atomic_thread_fence(std::memory_order_acquire);
                return of.version.load(std::memory_order_relaxed) == version;
            };
            if (is_current()) {
                const std::size_t bytes = count * sizeof(Region);
                std::byte* const table = bytes != 0 ? _segment.map(offset, bytes) : nullptr;
                regions.resize(table != nullptr ? count : 0);
                if (table != nullptr) {
                    std::memcpy(regions.data(), table, bytes);
                    _segment.unmap(table, bytes);
                }
                if (is_current()) {
                    if (table == nullptr && bytes != 0) {
                        throw Error("the shared memory of a window cannot be mapped", "allow more mappings");
                    }
                    return regions;
                }
            }
        }
        if (patience.turn()) {
            check_alive(member, "while it attached memory to a window");
        }
    }
}

// ---- locks ----------------------------------------------------------------------------------------------------------

void Exposure::take(std::atomic<std::uint64_t>& holder, const int target, const char* const doing) {
    const auto own = static_cast<std::uint64_t>(process_of(_own)) + 1;
    for (Patience patience(_idle);;) {
        std::uint64_t found = holder.load(std::memory_order_relaxed);
        if (found == 0 && holder.compare_exchange_weak(found, own, std::memory_order_acquire)) {
            return;
        }
        if (!patience.turn() || found == 0) {
            continue;
        }
        for (int member = 0; member < members(); ++member) {
            if (static_cast<std::uint64_t>(process_of(member)) + 1 == found &&
                holder.load(std::memory_order_relaxed) == found) {
                check_alive(member, doing);
            }
        }
        check_alive(target, "while its window was in use");
    }
}

int Exposure::in_the_way(const int target, const std::uint64_t ticket, const Hold how) const noexcept {
    for (int member = 0; member < members(); ++member) {
        const MemberWords& other = member_words(target, member);
        const Hold has = other.has.load(std::memory_order_acquire);
        if (has == Hold::exclusive || (has == Hold::shared && how == Hold::exclusive)) {
            return member;
        }
        // A member that wants to share goes before those that came later. One that wants the lock alone goes in turn.
        const std::uint64_t theirs = other.ticket.load(std::memory_order_acquire);
        if (theirs != 0 && theirs < ticket &&
            (how == Hold::exclusive || other.wants.load(std::memory_order_relaxed) == Hold::exclusive)) {
            return member;
        }
    }
    return -1;
}

void Exposure::lock(const int target, const Hold how) {
    constexpr const char* kDoing = "while it held a lock of a window, or waited for it";
    Head& of = head(target);
    MemberWords& mine = member_words(target, _own);
    take(of.steward, target, kDoing);
    const std::uint64_t ticket = ++of.last_ticket;
    const bool at_once = in_the_way(target, ticket, how) < 0;
    if (at_once) {
        mine.has.store(how, std::memory_order_release);
    } else {
        mine.wants.store(how, std::memory_order_relaxed);
        mine.ticket.store(ticket, std::memory_order_release);
    }
    of.steward.store(0, std::memory_order_release);
    if (at_once) {
        return;
    }
    try {
        for (Patience patience(_idle);;) {
            const int other = in_the_way(target, ticket, how);
            if (other < 0) {
                // No other member can have taken the lock meanwhile: each that came later waits for this ticket, or
                // shares.
                take(of.steward, target, kDoing);
                const bool mine_now = in_the_way(target, ticket, how) < 0;
                if (mine_now) {
                    mine.has.store(how, std::memory_order_release);
                    mine.ticket.store(0, std::memory_order_release);
                }
                of.steward.store(0, std::memory_order_release);
                if (mine_now) {
                    return;
                }
            } else if (patience.turn()) {
                check_alive(other, kDoing);
            }
        }
    } catch (...) {
        mine.ticket.store(0, std::memory_order_release);
        throw;
    }
}

void Exposure::unlock(const int target) noexcept {
    member_words(target, _own).has.store(Hold::none, std::memory_order_release);
}

Exposure::Update::Update(Exposure& exposure, const int target) : _holder(exposure.head(target).updater) {
    exposure.take(_holder, target, "while it updated the memory of a window");
}

Exposure::Update::~Update() {
    _holder.store(0, std::memory_order_release);
}

// ---- post, start, complete, wait ------------------------------------------------------------------------------------

void Exposure::post(const int origin) noexcept {
    member_words(_own, origin).posts.fetch_add(1, std::memory_order_acq_rel);
}

void Exposure::await_post(const int target) {
    const std::uint64_t seen = _seen[static_cast<std::size_t>(target)].posts;
    await(target, "before it opened its window",
          [&] { return member_words(target, _own).posts.load(std::memory_order_acquire) > seen; });
}

void Exposure::complete(const int target) noexcept {
    member_words(_own, target).completions.fetch_add(1, std::memory_order_acq_rel);
}

bool Exposure::has_completed(const int origin) const noexcept {
    const std::uint64_t seen = _seen[static_cast<std::size_t>(origin)].completions;
    return member_words(origin, _own).completions.load(std::memory_order_acquire) > seen;
}

void Exposure::await_completion(const int origin) {
    await(origin, "before it was done with a window", [&] { return has_completed(origin); });
    ++_seen[static_cast<std::size_t>(origin)].completions;
}

// ---- fences ---------------------------------------------------------------------------------------------------------

void Exposure::announce_results(const std::uint64_t fence) noexcept {
    head(_own).announced.store(fence, std::memory_order_release);
}

void Exposure::results_are_there(const std::uint64_t fence) noexcept {
    head(_own).arrived.store(fence, std::memory_order_release);
}

void Exposure::await_results(const std::uint64_t fence) {
    for (int member = 0; member < members(); ++member) {
        const Head& of = head(member);
        // A member that has announced results for a later fence is through with this one.
        await(member, "in a fence", [&] {
            return of.announced.load(std::memory_order_acquire) != fence ||
                   of.arrived.load(std::memory_order_acquire) >= fence;
        });
    }
}

}  // namespace awaken::rma
