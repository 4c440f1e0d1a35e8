// SPDX-License-Identifier: Apache-2.0
// Where the time of a message goes: AWAKEN_STEP("name") measures the rest of its block.
//
// For developers: cmake -DAWAKEN_STEP_PROBE=ON. Without that option the macro is empty and costs nothing. With it, each
// process prints when it ends how often each step ran and what one run took, in nanoseconds. A step includes the steps
// inside it. Two readings of the clock cost about 20 ns. docs/performance-steps.md has the list of a small message.
#pragma once

#ifdef AWAKEN_STEP_PROBE

#include <atomic>
#include <cstdint>
#include <ctime>

namespace awaken {

/// One measured step. Objects are static, and known to the list that is printed.
class Step {
  public:
    explicit Step(const char* name) noexcept;
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

    void add(const std::uint64_t nanoseconds) noexcept {
        _count.fetch_add(1, std::memory_order_relaxed);
        _sum.fetch_add(nanoseconds, std::memory_order_relaxed);
    }
    static void print_all() noexcept;

  private:
    const char* _name;
    Step* _next;
    std::atomic<std::uint64_t> _count{0}, _sum{0};
};

class StepTimer {
  public:
    explicit StepTimer(Step& step) noexcept : _step(step), _begin(now()) {}
    ~StepTimer() { _step.add(now() - _begin); }
    StepTimer(const StepTimer&) = delete;
    StepTimer& operator=(const StepTimer&) = delete;

  private:
    [[nodiscard]] static std::uint64_t now() noexcept {
        timespec time{};
        clock_gettime(CLOCK_MONOTONIC, &time);
        return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
    }
    Step& _step;
    std::uint64_t _begin;
};

}  // namespace awaken

#define AWAKEN_STEP_JOINED(a, b) a##b
#define AWAKEN_STEP_NAMED(name, line)                                   \
    static ::awaken::Step AWAKEN_STEP_JOINED(awaken_step_, line){name}; \
    const ::awaken::StepTimer AWAKEN_STEP_JOINED(awaken_timer_, line) { \
        AWAKEN_STEP_JOINED(awaken_step_, line)                          \
    }
#define AWAKEN_STEP(name) AWAKEN_STEP_NAMED(name, __LINE__)

#else
#define AWAKEN_STEP(name) static_cast<void>(0)
#endif
