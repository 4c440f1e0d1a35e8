// SPDX-License-Identifier: Apache-2.0
// File descriptors that other processes of the node take from this one, to map memory that legacy IPC cannot export.
//
// A handle names a record in its owner's memory: the descriptors, and a number that no other record ever has. The other
// process reads the record, takes the descriptors (pidfd_getfd), and reads the number again. The owner wipes the number
// before it closes the descriptors. So a number that has not changed proves that they were the right ones, and that no
// other file had got one of them meanwhile. Both calls need the right to trace the owner. A process of the same user
// has it, unless a container or a security module denies it. Knows no GPU.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::gpu {

/// An open file, closed in the end.
class Descriptor {
  public:
    Descriptor() = default;
    explicit Descriptor(const int file) noexcept : _file(file) {}
    Descriptor(Descriptor&& other) noexcept;
    Descriptor& operator=(Descriptor&& other) noexcept;
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor();
    [[nodiscard]] int get() const noexcept { return _file; }

  private:
    int _file = -1;
};

/// Memory behind one descriptor.
struct SharedPart {
    Descriptor file;
    std::size_t bytes = 0;
};

/// What a process has handed out. Each handle is held while messages with it are under way. Then it is kept for a
/// while, since the next message is likely to be from the same memory. Thread-safe.
class SharedDescriptors {
  public:
    /// The most descriptors that are open at a time. Programs may open 1024 files by default.
    static constexpr std::size_t kMost = 128;
    /// The same for this process: kMost, but no more than an eighth of what it may open now (RLIMIT_NOFILE). The last
    /// eighth is the program's own, even where nothing else is left.
    [[nodiscard]] static std::size_t most() noexcept;
    /// Closed when nobody has held it for this long, as peers do with their mappings (transfer/mappings.h).
    static constexpr std::chrono::milliseconds kIdle{5000};

    SharedDescriptors();
    ~SharedDescriptors();
    SharedDescriptors(const SharedDescriptors&) = delete;
    SharedDescriptors& operator=(const SharedDescriptors&) = delete;

    /// Before so many descriptors are opened for publish(): what nobody has held for the longest makes room. False when
    /// there is not enough of that.
    [[nodiscard]] bool make_room(std::size_t files) noexcept;
    /// Hands the parts out, and holds the handle. False when there is no room, or no memory.
    [[nodiscard]] bool publish(std::vector<SharedPart> parts, IpcMemoryHandle& handle) noexcept;
    /// Holds a handle of this process. False when it is over.
    [[nodiscard]] bool hold(const IpcMemoryHandle& handle) noexcept;
    /// Ends one hold. What nobody holds may stand for `idle_bytes` bytes together.
    void release(const IpcMemoryHandle& handle, std::size_t idle_bytes) noexcept;
    /// Nobody will hold the handle again. Its parts are taken back when nobody does.
    void end(const IpcMemoryHandle& handle) noexcept;
    /// Takes back what was idle for long enough. Costs a load where nothing is handed out.
    void close_idle() noexcept;
    /// The same, with the given time as the present.
    void close_idle(std::chrono::steady_clock::time_point now) noexcept;
    [[nodiscard]] std::size_t open_files() const noexcept;

    /// Whether the handle is one of this class, of any process.
    [[nodiscard]] static bool made(const IpcMemoryHandle& handle) noexcept;
    /// Takes the parts of another process's handle, or of this one's. kExpired: the owner has taken them back, or has
    /// ended. kBusy: this process has too few free descriptors now.
    [[nodiscard]] static Status take(const IpcMemoryHandle& handle, std::vector<SharedPart>& parts) noexcept;

  private:
    using Clock = std::chrono::steady_clock;
    struct Record;
    struct Handout {
        std::unique_ptr<Record> record;
        std::vector<SharedPart> parts;
        std::size_t bytes;
        Clock::time_point used;
        int holds = 1;
        bool over = false;  ///< to be taken back when nobody holds it
    };
    using List = std::list<Handout>;

    /// The one of an own handle; the list's end when it is over.
    [[nodiscard]] List::iterator find(const IpcMemoryHandle& handle) noexcept;
    void take_back(List::iterator handout) noexcept;
    /// Takes back what nobody holds, the longest idle first, until `enough` says so.
    template <class Enough>
    void take_back_until(const Enough& enough) noexcept;
    /// make_room(), with the lock held.
    [[nodiscard]] bool has_room(std::size_t files) noexcept;
    void set_due(Clock::time_point due) noexcept;

    mutable std::mutex _mutex;
    List _handouts;  ///< most recently used first
    std::unordered_map<std::uint64_t, List::iterator> _by_number;
    std::size_t _files = 0;
    std::size_t _idle_bytes = 0;  ///< that nobody holds
    std::uint64_t _last_number = 0;
    static constexpr Clock::rep kNever = std::numeric_limits<Clock::rep>::max();
    std::atomic<Clock::rep> _due{kNever};  ///< when close_idle() has something to do
};

}  // namespace awaken::gpu
