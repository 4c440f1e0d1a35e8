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

}  // namespace

void Background::take(std::shared_ptr<Job> job) {
    {
        const std::scoped_lock lock(_mutex);
        if (_stopping) {
            return;
        }
        const auto known =
            std::find_if(_jobs.begin(), _jobs.end(), [&job](const Entry& entry) { return entry.job == job; });
        if (known != _jobs.end()) {
            known->again = true;
            return;
        }
        _jobs.push_back({std::move(job), false});
        start();
    }
    _wake.notify_one();
}

void Background::start() {
    if (_thread.joinable()) {
        return;
    }
    // When no thread can be started, the program's later calls do the work, if it makes any, and the next job tries
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
    std::vector<std::shared_ptr<Job>> jobs;
    std::unique_lock lock(_mutex);
    for (;;) {
        if (_jobs.empty()) {
            if (_stopping) {
                return;
            }
            if (!_wants_reclaim) {
                _wake.wait(lock);
                continue;
            }
            _wake.wait_for(lock, kHousekeeping);
            if (_jobs.empty() && !_stopping) {
                _wants_reclaim = false;  // cleared first, so that a reclaim_idle() meanwhile counts
                lock.unlock();
                const bool more = _reclaim && _reclaim();
                lock.lock();
                _wants_reclaim = _wants_reclaim || more;
            }
            continue;
        }
        for (Entry& entry : _jobs) {
            entry.again = false;
            jobs.push_back(entry.job);
        }
        lock.unlock();
        for (std::shared_ptr<Job>& job : jobs) {
            if (!job->pump()) {
                job.reset();
            }
        }
        lock.lock();
        for (const std::shared_ptr<Job>& done : jobs) {
            if (done != nullptr) {
                _jobs.erase(std::remove_if(_jobs.begin(), _jobs.end(),
                                           [&done](const Entry& entry) { return entry.job == done && !entry.again; }),
                            _jobs.end());
            }
        }
        jobs.clear();
        if (!_jobs.empty()) {
            std::chrono::microseconds pause = _jobs.front().job->pause();
            for (const Entry& entry : _jobs) {
                pause = std::min(pause, entry.job->pause());
            }
            _wake.wait_for(lock, pause);
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
            without_thread.swap(_jobs);
        }
    }
    _wake.notify_all();
    if (thread.joinable()) {
        thread.join();
    }
    for (const Entry& entry : without_thread) {
        while (!entry.job->pump()) {
            sched_yield();
        }
    }
}

}  // namespace awaken::ipc
