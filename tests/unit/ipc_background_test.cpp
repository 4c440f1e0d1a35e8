// SPDX-License-Identifier: Apache-2.0
// The thread that keeps transfers going: what it does for its jobs, when it does not exist, and how it ends.
#include "ipc/background.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace awaken::ipc {
namespace {

using namespace std::chrono_literals;

/// It ends a hang; far more than anything here takes, also on a busy machine.
constexpr auto kLimit = 60s;

/// Counts how often it was asked, and goes on for as long as it is told to.
class CountingTask final : public Task {
  public:
    explicit CountingTask(std::function<bool(int)> is_over, const std::chrono::microseconds pause = 30us)
        : _is_over(std::move(is_over)), _pause(pause) {}

    bool pump() noexcept override {
        const std::scoped_lock lock(_mutex);
        _thread = std::this_thread::get_id();
        ++_pumps;
        _over = _is_over(_pumps);
        _change.notify_all();
        return _over;
    }
    [[nodiscard]] std::chrono::microseconds pause() const noexcept override { return _pause; }
    [[nodiscard]] bool wait_until_pumped(const int times) {
        std::unique_lock lock(_mutex);
        return _change.wait_for(lock, kLimit, [&] { return _pumps >= times; });
    }
    [[nodiscard]] bool wait_until_over() {
        std::unique_lock lock(_mutex);
        return _change.wait_for(lock, kLimit, [&] { return _over; });
    }
    [[nodiscard]] int pumps() const {
        const std::scoped_lock lock(_mutex);
        return _pumps;
    }
    [[nodiscard]] std::thread::id thread() const {
        const std::scoped_lock lock(_mutex);
        return _thread;
    }

  private:
    mutable std::mutex _mutex;
    std::condition_variable _change;
    const std::function<bool(int)> _is_over;
    const std::chrono::microseconds _pause;
    int _pumps = 0;
    bool _over = false;
    std::thread::id _thread;
};

std::shared_ptr<CountingTask> job_of(const int pumps) {
    return std::make_shared<CountingTask>([pumps](const int pump) { return pump >= pumps; });
}

std::ptrdiff_t threads_of_this_process() {
    // A sanitizer starts a thread of its own with the program's first one.
    static const bool is_first = [] {
        pid_t thread = 0;
        std::thread([&] { thread = gettid(); }).join();
        // A thread that was joined may be seen for a moment more.
        while (std::filesystem::exists("/proc/self/task/" + std::to_string(thread))) {
            std::this_thread::yield();
        }
        return true;
    }();
    static_cast<void>(is_first);
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
}

/// Until the condition holds; false when it does not within the limit.
bool eventually(const std::function<bool()>& condition) {
    const auto end = std::chrono::steady_clock::now() + kLimit;
    while (!condition()) {
        if (std::chrono::steady_clock::now() > end) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

/// The threads of this process when no test has any. One of an earlier test, although joined, may be seen for a moment
/// more.
std::ptrdiff_t threads_without_a_job() {
    static const std::ptrdiff_t least = threads_of_this_process();
    EXPECT_TRUE(eventually([] { return threads_of_this_process() == least; }));
    return least;
}

TEST(BackgroundTest, ThereIsNoThreadWithoutAJob) {
    const auto before = threads_without_a_job();
    Background background;
    EXPECT_EQ(threads_of_this_process(), before);
    background.stop();
    EXPECT_EQ(threads_of_this_process(), before);
    Background other;
    const auto job = job_of(1);
    other.take(job);
    EXPECT_TRUE(job->wait_until_over());
    EXPECT_NE(job->thread(), std::this_thread::get_id());
    EXPECT_EQ(threads_of_this_process(), before + 1);
}

TEST(BackgroundTest, AJobIsAskedUntilItIsOverAndNotOnceMore) {
    Background background;
    const auto job = job_of(50);
    background.take(job);
    ASSERT_TRUE(job->wait_until_over());
    // Another one, asked many times, shows that time has passed.
    const auto witness = job_of(50);
    background.take(witness);
    ASSERT_TRUE(witness->wait_until_over());
    EXPECT_EQ(job->pumps(), 50);
}

TEST(BackgroundTest, LetsGoOfAJobThatIsOver) {
    Background background;
    std::weak_ptr<CountingTask> watched;
    {
        const auto job = job_of(3);
        watched = job;
        background.take(job);
        ASSERT_TRUE(job->wait_until_over());
    }
    EXPECT_TRUE(eventually([&] { return watched.expired(); }));
}

TEST(BackgroundTest, KeepsAJobThatNobodyElseHolds) {
    Background background;
    std::atomic<int> pumps{0};
    std::weak_ptr<Task> watched;
    {
        const auto job = std::make_shared<CountingTask>([&](const int pump) {
            pumps = pump;
            return pump == 20;
        });
        watched = job;
        background.take(job);
    }
    EXPECT_TRUE(eventually([&] { return watched.expired(); }));
    EXPECT_EQ(pumps, 20);
}

TEST(BackgroundTest, AJobThatWaitsDoesNotHoldOthersUp) {
    Background background;
    std::atomic<bool> may_end{false};
    const auto waiting = std::make_shared<CountingTask>([&](int) { return may_end.load(); });
    background.take(waiting);
    ASSERT_TRUE(waiting->wait_until_pumped(1));
    for (int i = 0; i < 20; ++i) {
        const auto job = job_of(5);
        background.take(job);
        ASSERT_TRUE(job->wait_until_over());
    }
    may_end = true;
    EXPECT_TRUE(waiting->wait_until_over());
}

TEST(BackgroundTest, AJobWithALongPauseIsNotAskedAlongWithOthers) {
    Background background;
    const auto waiting = std::make_shared<CountingTask>([](const int pump) { return pump >= 3; }, 1h);
    background.take(waiting);
    ASSERT_TRUE(waiting->wait_until_pumped(1));
    for (int i = 0; i < 5; ++i) {
        const auto job = job_of(20);
        background.take(job);
        ASSERT_TRUE(job->wait_until_over());
    }
    EXPECT_EQ(waiting->pumps(), 1);
    // Handed over again it is asked at once, and so is it at the end.
    background.take(waiting);
    ASSERT_TRUE(waiting->wait_until_pumped(2));
    background.stop();
    EXPECT_EQ(waiting->pumps(), 3);
}

TEST(BackgroundTest, AJobThatIsHereAlreadyIsNotTakenTwice) {
    Background background;
    std::atomic<bool> may_end{false};
    const auto job = std::make_shared<CountingTask>([&](int) { return may_end.load(); });
    for (int i = 0; i < 10; ++i) {
        background.take(job);
    }
    ASSERT_TRUE(job->wait_until_pumped(10));
    // One for us, one for the background and one more while a round goes on: not one for each time.
    EXPECT_LE(job.use_count(), 3);
    may_end = true;
    ASSERT_TRUE(job->wait_until_over());
    EXPECT_TRUE(eventually([&] { return job.use_count() == 1; }));
}

TEST(BackgroundTest, SleepsWhileThereIsNothingToDoAndWakesAgain) {
    Background background;
    for (int round = 0; round < 200; ++round) {
        const auto job = job_of(round % 3 + 1);
        background.take(job);
        ASSERT_TRUE(job->wait_until_over()) << round;
    }
}

TEST(BackgroundTest, AJobMayHandOverAnotherOne) {
    Background background;
    const auto second = job_of(4);
    const auto first = std::make_shared<CountingTask>([&](const int pump) {
        if (pump == 2) {
            background.take(second);
        }
        return pump == 4;
    });
    background.take(first);
    EXPECT_TRUE(first->wait_until_over());
    EXPECT_TRUE(second->wait_until_over());
}

TEST(BackgroundTest, StopFinishesWhatIsThere) {
    Background background;
    std::vector<std::shared_ptr<CountingTask>> jobs;
    for (int i = 0; i < 10; ++i) {
        jobs.push_back(job_of(20 + i));
        background.take(jobs.back());
    }
    background.stop();
    for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(jobs[static_cast<std::size_t>(i)]->pumps(), 20 + i);
    }
}

TEST(BackgroundTest, NothingIsTakenAfterTheEnd) {
    const auto before = threads_without_a_job();
    Background background;
    background.take(job_of(3));
    background.stop();
    background.stop();
    EXPECT_TRUE(eventually([&] { return threads_of_this_process() == before; }));
    const auto late = job_of(1);
    background.take(late);
    EXPECT_EQ(late.use_count(), 1);
    EXPECT_EQ(threads_of_this_process(), before);
    background.stop();
    EXPECT_EQ(late->pumps(), 0);
}

TEST(BackgroundTest, TheEndOfTheObjectEndsTheThread) {
    const auto before = threads_without_a_job();
    const auto job = job_of(30);
    {
        Background background;
        background.take(job);
    }
    EXPECT_EQ(job->pumps(), 30);
    EXPECT_TRUE(eventually([&] { return threads_of_this_process() == before; }));
}

TEST(BackgroundTest, ManyThreadsHandOverWhileItStops) {
    for (int round = 0; round < 20; ++round) {
        Background background;
        std::vector<std::thread> threads;
        for (int thread = 0; thread < 4; ++thread) {
            threads.emplace_back([&] {
                for (int i = 0; i < 50; ++i) {
                    background.take(job_of(i % 4 + 1));
                }
            });
        }
        if (round % 2 == 0) {
            background.stop();
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }
}

// ---- housekeeping ---------------------------------------------------------------------------------------------------

TEST(BackgroundTest, KeepsHouseWhileThereIsSomethingToKeep) {
    const auto before = threads_without_a_job();
    std::atomic<int> looks{0};
    Background background([&] { return ++looks < 3; });
    EXPECT_EQ(threads_of_this_process(), before);
    background.reclaim_idle();
    background.reclaim_idle();
    EXPECT_TRUE(eventually([&] { return looks == 3; }));
    // It sleeps then, until it is told again.
    const auto job = job_of(50);
    background.take(job);
    ASSERT_TRUE(job->wait_until_over());
    EXPECT_EQ(looks, 3);
    background.reclaim_idle();
    EXPECT_TRUE(eventually([&] { return looks == 4; }));
    background.stop();
    background.reclaim_idle();
    EXPECT_TRUE(eventually([&] { return threads_of_this_process() == before; }));
    EXPECT_EQ(looks, 4);
}

TEST(BackgroundTest, WhatIsToBeKeptWhileItLooksIsNotForgotten) {
    std::atomic<int> looks{0};
    Background* keeper = nullptr;
    Background background([&] {
        // Somebody takes what is to be kept just when there was nothing.
        if (++looks == 1) {
            keeper->reclaim_idle();
        }
        return false;
    });
    keeper = &background;
    background.reclaim_idle();
    EXPECT_TRUE(eventually([&] { return looks == 2; }));
}

TEST(BackgroundTest, TheEndDoesNotWaitForHousekeeping) {
    Background background([] { return true; });
    background.reclaim_idle();
    background.stop();
    Background without;
    without.reclaim_idle();
    without.stop();
}

TEST(BackgroundTest, AJobMayWaitForHousekeeping) {
    std::atomic<bool> looked{false};
    Background background([&] {
        looked = true;
        return false;
    });
    const auto job = std::make_shared<CountingTask>([&](int) { return looked.load(); });
    background.take(job);
    background.reclaim_idle();
    EXPECT_TRUE(job->wait_until_over());
}

TEST(BackgroundTest, JobsGoBeforeHousekeeping) {
    Background background([] { return true; });
    background.reclaim_idle();
    for (int round = 0; round < 50; ++round) {
        const auto job = job_of(3);
        background.take(job);
        ASSERT_TRUE(job->wait_until_over());
    }
}

// ---- signals --------------------------------------------------------------------------------------------------------

/// What the handler of the signal saw; only ever written by it.
std::atomic<int> signals_taken{0};
std::atomic<bool> taken_by_the_wrong_thread{false};
std::atomic<pthread_t> program{};

TEST(BackgroundTest, TheProgramsSignalsAreNotDeliveredToIt) {
    struct sigaction action{};
    struct sigaction before{};
    action.sa_handler = [](int) {
        if (pthread_self() != program.load()) {
            taken_by_the_wrong_thread = true;
        }
        ++signals_taken;
    };
    program = pthread_self();
    ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
    std::atomic<bool> may_end{false};
    sigset_t seen_inside;
    sigemptyset(&seen_inside);
    Background background;
    const auto job = std::make_shared<CountingTask>([&](int) {
        pthread_sigmask(SIG_BLOCK, nullptr, &seen_inside);
        return may_end.load();
    });
    background.take(job);
    ASSERT_TRUE(job->wait_until_pumped(1));
    // The thread that called keeps the signals that it had.
    sigset_t own;
    pthread_sigmask(SIG_BLOCK, nullptr, &own);
    EXPECT_FALSE(sigismember(&own, SIGUSR1));
    for (int i = 1; i <= 100; ++i) {
        ASSERT_EQ(kill(getpid(), SIGUSR1), 0);
        ASSERT_TRUE(eventually([&] { return signals_taken >= i; }));
    }
    may_end = true;
    ASSERT_TRUE(job->wait_until_over());
    background.stop();
    EXPECT_TRUE(sigismember(&seen_inside, SIGUSR1));
    EXPECT_TRUE(sigismember(&seen_inside, SIGTERM));
    EXPECT_FALSE(taken_by_the_wrong_thread);
    ASSERT_EQ(sigaction(SIGUSR1, &before, nullptr), 0);
}

}  // namespace
}  // namespace awaken::ipc
