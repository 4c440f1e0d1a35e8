// SPDX-License-Identifier: Apache-2.0
// GPU memory of other processes, mapped into this one by IPC.
//
// Opening a mapping costs from 20 us to 20 ms, growing with the allocation. So we keep mappings. A mapping keeps its
// owner's memory alive, so we do not keep it for long. Each use checks the allocation's identity: memory that its owner
// freed and allocated again at the same address is another allocation, and the old mapping would show old bytes.
//
// Closing a mapping waits for all work of the device, also that of the program. So we close mappings when the device is
// idle, inside MPI calls of the program (see gpu.h). Until then an old mapping that is in the way of a new one keeps
// the new one from being opened.
//
// Knows the GPU interface, nothing of MPI.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <mutex>
#include <unordered_map>

#include "gpu/gpu.h"
#include "transfer/location.h"

namespace awaken::transfer {

class Mappings {
  public:
    struct Limits {
        /// The most bytes of one owner's allocations that are mapped at a time, without those in use. When a process
        /// frees memory that others have mapped, its GPU gets the memory back only when they close their mappings.
        std::size_t bytes = std::size_t{16} << 30;
        std::size_t count = 4096;  ///< mappings
        /// We close a mapping that was unused for this long. Programs that compute or check for seconds between their
        /// messages use the same buffers again, and mapping those anew takes longer than a message. The bound on bytes
        /// limits how much freed memory the mappings keep from its owner meanwhile.
        std::chrono::milliseconds idle{5000};
    };
    struct Statistics {
        std::uint64_t opened = 0;
        std::uint64_t reused = 0;
        std::uint64_t closed_idle = 0;
        std::uint64_t closed_for_room = 0;
        std::uint64_t closed_stale = 0;  ///< the allocation behind it was gone
    };

    Mappings(gpu::Runtime& runtime, Limits limits);
    ~Mappings();
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;

    class Use;
    /// Maps the memory that `location` of process `owner` describes for `device`. Thread-safe. When the memory cannot
    /// be mapped, `status` says why and the use is empty. With gpu::kBusy a later call may succeed. Other mappings can
    /// be used, opened and given back while the runtime opens this one, or closes older ones.
    [[nodiscard]] Use open(int owner, const Location& location, int device, gpu::Status& status);

    /// Calls of the program call this now and then. It closes doomed mappings and those unused for long, if the device
    /// is idle. Costs a look at a clock while something is mapped, and a load otherwise.
    void reclaim() noexcept;
    /// Closes all mappings that are not in use, if the device is idle.
    void trim() noexcept { trim(When::now); }
    /// Closes everything, or leaves it to the end of the process where the device stays busy. The caller calls it while
    /// the runtime is still there. Safe to call twice.
    void shut_down() noexcept;
    [[nodiscard]] Statistics statistics() const;

  private:
    /// How long it may take until a device is idle.
    enum class When : std::uint8_t { now, soon, in_the_end };
    /// The kernel's coarse clock, at most some milliseconds behind. Read after each use.
    struct Clock {
        using duration = std::chrono::nanoseconds;
        using rep = duration::rep;
        using period = duration::period;
        using time_point = std::chrono::time_point<Clock>;
        static constexpr bool is_steady = true;
        [[nodiscard]] static time_point now() noexcept;
    };
    struct Mapping {
        int owner;
        int device;
        std::array<unsigned char, 64> handle;
        std::uint64_t allocation_id;
        std::uint64_t address;  ///< of the allocation in its owner's address space
        std::size_t bytes;
        void* base;  ///< null: the runtime is opening it, for one of the uses
        int uses;    ///< copies under way
        bool stale;  ///< close it as soon as no copy uses it
        bool once;   ///< first use of a large allocation: closed after it
        Clock::time_point last_used;
    };
    using List = std::list<Mapping>;
    /// Finds the mapping of an allocation that has an identity at once.
    struct Key {
        int owner, device;
        std::uint64_t allocation_id, address;
        bool operator==(const Key&) const = default;
    };
    struct Hash {
        std::size_t operator()(const Key& key) const noexcept;
    };

    [[nodiscard]] List::iterator find(const Key& key, const Location& location, std::unique_lock<std::mutex>& lock);
    [[nodiscard]] bool is_hindered(int owner, const Location& location, int device);
    void give_back(List::iterator mapping) noexcept;
    /// Takes the mapping out of use: nobody finds it any more. We close it as soon as closing waits for nothing.
    void doom(List::iterator mapping) noexcept;
    /// Closes the doomed mappings of devices that are idle, without the lock. Nothing where another thread does it.
    void close_doomed(std::unique_lock<std::mutex>& lock, When when) noexcept;
    void await_closing(std::unique_lock<std::mutex>& lock) noexcept;
    void trim(When when) noexcept;
    [[nodiscard]] static bool is_in_the_way(const Mapping& mapping, int owner, const Location& location, int device);
    void make_room(int owner, std::size_t bytes) noexcept;
    void set_due(Clock::time_point due) noexcept;

    gpu::Runtime& _runtime;
    const Limits _limits;
    mutable std::mutex _mutex;
    std::condition_variable _changed;  ///< a mapping was opened, or could not be; `_closing` is empty again
    List _mappings;                    ///< most recently used first
    List _doomed;                      ///< to be closed
    List _closing;                     ///< a thread is closing them
    /// Large allocations that were used once, by owner and identity. We keep the mapping the second time.
    struct Seen {
        int owner;
        std::uint64_t allocation_id;
    };
    std::list<Seen> _seen;
    std::unordered_map<Key, List::iterator, Hash> _index;
    std::unordered_map<int, std::size_t> _bytes;  ///< mapped, by owner
    Statistics _statistics;
    /// When reclaim() has something to do, in the clock's units.
    static constexpr Clock::rep kNever = std::numeric_limits<Clock::rep>::max();
    std::atomic<Clock::rep> _due{kNever};
};

/// Keeps a mapping open while a copy reads or writes it.
class Mappings::Use {
  public:
    Use() = default;
    Use(Use&& other) noexcept;
    Use& operator=(Use&& other) noexcept;
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use() { release(); }

    [[nodiscard]] explicit operator bool() const noexcept { return _owner != nullptr; }
    /// The first byte that the location describes.
    [[nodiscard]] std::byte* data() const noexcept { return _data; }
    void release() noexcept;

  private:
    friend class Mappings;
    Mappings* _owner = nullptr;
    List::iterator _mapping;
    std::byte* _data = nullptr;
};

}  // namespace awaken::transfer
