// SPDX-License-Identifier: Apache-2.0
// How a thread waits for other threads and processes that it can only look at.
#pragma once

#include <sched.h>

#include <chrono>
#include <thread>

#include "base/relax.h"

namespace awaken {

/// Paces a loop that looks until something has changed. At first the thread looks again at once. Then it offers its
/// core to others between two looks, since ranks often share cores. When it has waited long, it sleeps between looks.
///
///     for (Backoff backoff; !done();) {
///         if (backoff.turn()) {
///             other_work();
///             backoff.pause();
///         }
///     }
class Backoff {
  public:
    using Clock = std::chrono::steady_clock;

    /// Call in each iteration. True now and then, once the thread has waited for a while: it is time for work that
    /// costs more than a look at memory, and for pause().
    [[nodiscard]] bool turn() noexcept {
        relax();
        if (++_turns % kTurns != 0) {
            return false;
        }
        _now = Clock::now();
        if (_began == Clock::time_point{}) {
            _began = _now;
        }
        return _now - _began > kEager;
    }
    /// Offers the core to others, or sleeps.
    void pause() const noexcept {
        if (_now - _began < kAwake) {
            sched_yield();
        } else {
            std::this_thread::sleep_for(kNap);
        }
    }
    /// When turn() last looked at the clock.
    [[nodiscard]] Clock::time_point now() const noexcept { return _now; }
    /// How often turn() was called.
    [[nodiscard]] unsigned turns() const noexcept { return _turns; }

  private:
    static constexpr unsigned kTurns = 16;
    /// What is about to happen takes no longer: offering the core costs a few microseconds.
    static constexpr std::chrono::microseconds kEager{20};
    static constexpr std::chrono::milliseconds kAwake{5};
    static constexpr std::chrono::microseconds kNap{20};
    unsigned _turns = 0;
    Clock::time_point _began{}, _now{};
};

}  // namespace awaken
