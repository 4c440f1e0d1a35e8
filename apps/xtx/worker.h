// SPDX-License-Identifier: Apache-2.0
// A thread that does one thing after the other: on the host, what a stream is on a GPU.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace xtx {

/// Runs what it is given, in order, on a thread of its own.
class Worker {
  public:
    Worker() : _thread([this] { work(); }) {}
    ~Worker() {
        {
            const std::scoped_lock lock(_mutex);
            _ends = true;
        }
        _changed.notify_all();
        _thread.join();
    }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    /// Returns the number of the task, by which it can be waited for.
    std::size_t submit(std::function<void()> task) {
        const std::scoped_lock lock(_mutex);
        _tasks.push_back(std::move(task));
        _changed.notify_all();
        return ++_submitted;
    }
    void wait(std::size_t number) {
        std::unique_lock lock(_mutex);
        _changed.wait(lock, [&] { return _done >= number; });
    }
    void wait_for_all() {
        std::unique_lock lock(_mutex);
        _changed.wait(lock, [&] { return _done == _submitted; });
    }

  private:
    void work() {
        std::unique_lock lock(_mutex);
        while (true) {
            _changed.wait(lock, [&] { return _ends || !_tasks.empty(); });
            if (_tasks.empty()) {
                return;
            }
            const std::function<void()> task = std::move(_tasks.front());
            _tasks.pop_front();
            lock.unlock();
            task();
            lock.lock();
            ++_done;
            _changed.notify_all();
        }
    }

    std::mutex _mutex;
    std::condition_variable _changed;
    std::deque<std::function<void()>> _tasks;
    std::size_t _submitted = 0;
    std::size_t _done = 0;
    bool _ends = false;
    std::thread _thread;  // last: it uses the others from its first moment
};

}  // namespace xtx
