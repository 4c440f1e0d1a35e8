// SPDX-License-Identifier: Apache-2.0
// A thread that keeps transfers going while the program is outside the layer's calls.
//
// A receiver may claim a message and then compute, or wait in a collective of the MPI; it must still tell the sender
// when it has the bytes. A sender whose message passes through a ring must still fill the ring. Neither needs an MPI
// call, so a thread may do it at any thread level that the program asked for. The thread starts when a call first
// leaves a transfer unfinished, and sleeps while there is none.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace awaken::ipc {

/// A task that proceeds when it is asked to now and then. Thread-safe.
class Task {
  public:
    virtual ~Task() = default;
    Task() = default;
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    /// Does what can be done now. True when nothing remains for the background.
    virtual bool pump() noexcept = 0;
    /// Time until the task is asked again. The default is short beside the milliseconds of a transfer that outlasts a
    /// call, and long beside the microseconds of a look. A task that only waits for another process gives a longer one.
    [[nodiscard]] virtual std::chrono::microseconds pause() const noexcept { return std::chrono::microseconds{30}; }
};

class Background {
  public:
    /// Once the thread runs, it calls `reclaim` now and then between tasks; tasks wait while it blocks. It returns
    /// false when there is nothing to reclaim for the moment.
    explicit Background(std::function<bool()> reclaim = {}) : _reclaim(std::move(reclaim)) {}
    ~Background() { stop(); }
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    /// Takes care of the task until it is done. Asks it after a moment: the caller has just done what can be done now,
    /// and often comes back before that. Asks a task that is here already at least once more, and soon.
    void take(std::shared_ptr<Task> task);
    /// There is idle memory to reclaim later.
    void reclaim_idle();
    /// Finishes the tasks that are there and ends the thread. Safe to call twice.
    void stop() noexcept;

  private:
    using Clock = std::chrono::steady_clock;
    void run();
    void start();  ///< the caller holds the lock
    void sleep(std::unique_lock<std::mutex>& lock, Clock::time_point until);

    const std::function<bool()> _reclaim;
    std::mutex _mutex;
    std::condition_variable _wake;
    struct Entry {
        std::shared_ptr<Task> task;
        bool again;               ///< handed over again since it was last asked, so the answer may be out of date
        Clock::time_point due{};  ///< when it is asked next
    };
    std::vector<Entry> _tasks;
    std::thread _thread;
    Clock::time_point _wakes = Clock::time_point::min();  ///< when the thread looks again; the least while it runs
    bool _wants_reclaim = false;
    bool _stopping = false;
};

}  // namespace awaken::ipc
