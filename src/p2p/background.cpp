#include "p2p/background.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>
#include <utility>

namespace awaken::p2p {

namespace {

/// Between two looks at transfers that the GPU does by itself: short beside the milliseconds of a transfer that
/// outlasts a call, long beside the microseconds of a look.
constexpr std::chrono::microseconds kPause{30};
/// Between two looks at what is kept for reuse.
constexpr std::chrono::milliseconds kHousekeeping{100};

}  // namespace

void Background::take(std::shared_ptr<Job> job) {
    {
        const std::scoped_lock lock(_mutex);
        if (_stopping || std::find(_jobs.begin(), _jobs.end(), job) != _jobs.end()) {
            return;
        }
        _jobs.push_back(std::move(job));
        start();
    }
    _wake.notify_one();
}

void Background::start() {
    if (_thread.joinable()) {
        return;
    }
    // The program's signals are the program's: none may be delivered to a thread that it does not know.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        _thread = std::thread([this] { run(); });
    } catch (const std::system_error&) {
        // No thread to be had (ulimit -u, or the limit of a container). Calls do what there is to do, as far as the
        // program makes some, and the next job tries again.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Background::keep_house() {
    {
        const std::scoped_lock lock(_mutex);
        if (_stopping || (_house && _thread.joinable())) {
            return;
        }
        _house = true;
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
            if (!_house) {
                _wake.wait(lock);
                continue;
            }
            _wake.wait_for(lock, kHousekeeping);
            if (_jobs.empty() && !_stopping) {
                _house = false;  // who says otherwise meanwhile is heard
                lock.unlock();
                const bool more = _housekeeping && _housekeeping();
                lock.lock();
                _house = _house || more;
            }
            continue;
        }
        jobs = _jobs;
        lock.unlock();
        for (std::shared_ptr<Job>& job : jobs) {
            if (!job->pump()) {
                job.reset();
            }
        }
        lock.lock();
        for (const std::shared_ptr<Job>& done : jobs) {
            if (done != nullptr) {
                _jobs.erase(std::remove(_jobs.begin(), _jobs.end(), done), _jobs.end());
            }
        }
        jobs.clear();
        if (!_jobs.empty()) {
            _wake.wait_for(lock, kPause);
        }
    }
}

void Background::stop() noexcept {
    std::thread thread;
    std::vector<std::shared_ptr<Job>> without_thread;
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
    for (const std::shared_ptr<Job>& job : without_thread) {
        while (!job->pump()) {
            sched_yield();
        }
    }
}

}  // namespace awaken::p2p
