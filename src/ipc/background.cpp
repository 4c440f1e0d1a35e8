// SPDX-License-Identifier: Apache-2.0
#include "ipc/background.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/own_thread.h"

namespace awaken::ipc {

namespace {

/// Time between two looks at the memory that is kept for reuse.
constexpr std::chrono::milliseconds kHousekeeping{100};
/// Time until a new task is asked for the first time.
constexpr std::chrono::microseconds kAtFirst{30};
/// Time between two rounds in which all tasks are finished.
constexpr std::chrono::microseconds kAtTheEnd{30};

}  // namespace

void Background::take(std::shared_ptr<Task> task) {
    bool wake = false;
    {
        const std::scoped_lock lock(_mutex);
        if (_stopping) {
            return;
        }
        Clock::time_point due{};
        const auto known =
            std::find_if(_tasks.begin(), _tasks.end(), [&task](const Entry& entry) { return entry.task == task; });
        if (known == _tasks.end()) {
            due = Clock::now() + kAtFirst;
            _tasks.push_back({std::move(task), false, due});
        } else {
            known->again = true;
            known->due = due;
        }
        wake = due < _wakes;
        start();
    }
    if (wake) {
        _wake.notify_one();
    }
}

void Background::sleep(std::unique_lock<std::mutex>& lock, const Clock::time_point until) {
    _wakes = until;
    if (until == Clock::time_point::max()) {
        _wake.wait(lock);
    } else {
        _wake.wait_until(lock, until);
    }
    _wakes = Clock::time_point::min();
}

void Background::start() {
    if (_thread.joinable()) {
        return;
    }
    // When no thread can be started, the program's later calls do the work, if it makes any, and the next task tries
    // again.
    _thread = start_own_thread([this] { run(); });
}

void Background::reclaim_idle() {
    {
        const std::scoped_lock lock(_mutex);
        if (_stopping || (_wants_reclaim && _thread.joinable())) {
            return;
        }
        _wants_reclaim = true;
        start();
    }
    _wake.notify_one();
}

void Background::run() {
    struct Turn {
        std::size_t entry;  ///< only this thread removes entries
        std::shared_ptr<Task> task;
        bool over = false;
        std::chrono::microseconds pause{};
    };
    std::vector<Turn> turns;
    std::unique_lock lock(_mutex);
    Clock::time_point reclaimed = Clock::now();
    const auto reclaim = [&] {
        _wants_reclaim = false;  // cleared first, so that a reclaim_idle() meanwhile counts
        lock.unlock();
        const bool more = _reclaim && _reclaim();
        lock.lock();
        _wants_reclaim = _wants_reclaim || more;
        reclaimed = Clock::now();
    };
    for (;;) {
        if (_tasks.empty()) {
            if (_stopping) {
                return;
            }
            if (!_wants_reclaim) {
                sleep(lock, Clock::time_point::max());
                continue;
            }
            sleep(lock, Clock::now() + kHousekeeping);
            if (_tasks.empty() && !_stopping) {
                reclaim();
            }
            continue;
        }
        Clock::time_point now = Clock::now();
        // A task may wait for another process, which may wait for a copy that only reclaim() looks after.
        if (_wants_reclaim && !_stopping && now - reclaimed > kHousekeeping) {
            reclaim();
            now = reclaimed;
        }
        for (std::size_t i = 0; i < _tasks.size(); ++i) {
            if (_tasks[i].due <= now || _stopping) {
                _tasks[i].again = false;
                turns.push_back({i, _tasks[i].task});
            }
        }
        lock.unlock();
        for (Turn& turn : turns) {
            turn.over = turn.task->pump();
            turn.pause = turn.task->pause();
        }
        lock.lock();
        const Clock::time_point end = Clock::now();
        for (const Turn& turn : turns) {
            Entry& entry = _tasks[turn.entry];
            if (entry.again) {
                continue;
            }
            entry.due = end + turn.pause;
            if (turn.over) {
                entry.task.reset();
            }
        }
        std::erase_if(_tasks, [](const Entry& entry) { return entry.task == nullptr; });
        turns.clear();
        const auto next = std::min_element(_tasks.begin(), _tasks.end(),
                                           [](const Entry& a, const Entry& b) { return a.due < b.due; });
        if (next != _tasks.end()) {
            // stop() may have come while the tasks were asked, and its call of notify_all() is not heard any more.
            sleep(lock, _stopping ? end + kAtTheEnd : next->due);
        }
    }
}

void Background::stop() noexcept {
    std::thread thread;
    std::vector<Entry> without_thread;
    {
        const std::scoped_lock lock(_mutex);
        _stopping = true;
        thread = std::move(_thread);
        if (!thread.joinable()) {
            without_thread.swap(_tasks);
        }
    }
    _wake.notify_all();
    if (thread.joinable()) {
        thread.join();
    }
    for (const Entry& entry : without_thread) {
        while (!entry.task->pump()) {
            sched_yield();
        }
    }
}

}  // namespace awaken::ipc
