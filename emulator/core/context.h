// SPDX-License-Identifier: Apache-2.0
// Contexts and the state of a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "core/stream.h"

namespace awaken::emulator {

/// Never given out twice.
[[nodiscard]] std::uint64_t next_context_identity() noexcept;

/// Waits until no call holds the lock that keeps others out.
void await_release(std::shared_mutex& exclusive);

/// A CUDA context, or a HIP device's only context. Never deleted: handles to dead ones are recognised.
struct Context {
    Context(int device_, bool primary_);

    const int device;  ///< as the program counts
    const bool primary;
    std::atomic<bool> alive{false};
    std::atomic<unsigned> flags{0};
    std::atomic<std::uint64_t> identity{next_context_identity()};  ///< another one after a reset
    int references = 0;                                            ///< of a primary context; guarded by the core's lock

    /// A failure that stays with the context, as a faulting kernel's does; success when there was none.
    std::atomic<Error> sticky{Error::success};

    /// Taken to find out what comes before an operation and to queue it: order must not change in between.
    std::mutex order;
    std::vector<std::weak_ptr<Stream>> streams;  ///< all of this context; guarded by `order`
    std::shared_ptr<Stream> legacy;              ///< never null
    std::uint32_t streams_made = 0;              ///< guarded by `order`
    /// The last wait for a value in memory, where all streams have one connection to the device; guarded by `order`.
    Ticket memory_wait;

    /// The context is being destroyed: who waits for a value in memory, waits no longer.
    std::atomic<bool> ending{false};
    /// Somebody did so. Work that is left is not done.
    std::atomic<bool> gave_up{false};

    std::mutex peers_lock;
    std::set<int> peers;  ///< devices to which access is enabled

    /// This thread's own default stream here.
    [[nodiscard]] std::shared_ptr<Stream> per_thread_stream();
    [[nodiscard]] std::shared_ptr<Stream> create_stream(Stream::Role role, bool blocking, unsigned flags, int priority);
    [[nodiscard]] std::vector<std::shared_ptr<Stream>> all_streams();
    /// Tickets of all work submitted so far that is not over.
    [[nodiscard]] std::vector<Ticket> unfinished();
    /// Waits for all work submitted so far.
    void synchronize();

    /// Held by a call of CUDA that waits for all work of this context: it locks the context for most other calls.
    std::shared_mutex exclusive;
    /// Waits until no such call is under way.
    void enter() { await_release(exclusive); }
};

/// Threads of this process that are in await_release because of a call of another thread.
[[nodiscard]] unsigned calls_held_up() noexcept;

/// What a thread has: the stack of contexts (its top is current), a runtime's last error, its own default streams.
struct ThreadState {
    ThreadState() = default;
    ThreadState(const ThreadState&) = delete;
    ThreadState& operator=(const ThreadState&) = delete;
    /// Closes the thread's own streams, so that their workers end as well.
    ~ThreadState();

    std::vector<Context*> contexts;
    Error last_error = Error::success;
    std::unordered_map<const Context*, std::shared_ptr<Stream>> own_streams;

    [[nodiscard]] Context* current() const noexcept { return contexts.empty() ? nullptr : contexts.back(); }
    void set_current(Context* context);
};

[[nodiscard]] ThreadState& thread_state();

}  // namespace awaken::emulator
