// SPDX-License-Identifier: Apache-2.0
// Steps of messages in the order of a stream.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "gpu/gpu.h"
#include "transport/found.h"

namespace awaken::stream {

using transport::Channel;
using transport::Found;

/// What one step waits for, copies and tells, in this order. Addresses are those by which the device reaches the
/// memory. See gpu/kernels/steps.h.
struct Step {
    const std::uint32_t* awaited = nullptr;   ///< a word of the device; null: nothing is waited for
    const std::uint32_t* released = nullptr;  ///< host memory, by which the CPU gives the step up
    std::uint32_t number = 0;                 ///< at which either is reached
    void* target = nullptr;
    const void* source = nullptr;
    std::size_t bytes = 0;
    std::uint32_t delay = 0;        ///< looks at `released` before the copy, for tests of programs
    std::uint32_t* told = nullptr;  ///< a word of this or another device; null: none is told
    std::uint32_t told_number = 0;
    std::uint64_t* told_host = nullptr;  ///< host memory; null: nobody is told there
    std::uint64_t told_host_number = 0;
    std::uint32_t* replays = nullptr;  ///< of the device, zero at first: counts replays, which add to all numbers
    const Found* found = nullptr;      ///< says what to copy, once `awaited` is reached
    Channel* channel = nullptr;        ///< of the device, zero at first; null: there is none
    Channel* opening = nullptr;        ///< the same in host memory
    std::uint32_t* entries = nullptr;  ///< of the device: `told_host` is a ring of kRingEntries
    std::uint32_t* counter = nullptr;  ///< of the device, zero before and after; null: one of the launch
};
/// An entry of a ring has its number, from 1, in the upper half, and what was told in the lower.
inline constexpr std::uint32_t kRingEntries = 4096;

/// The kernel that takes steps on one device. Launches may come from any thread.
class StepKernel {
  public:
    static constexpr std::size_t kMostSteps = 30;  ///< in one launch

    explicit StepKernel(gpu::Runtime& runtime) noexcept : _runtime(runtime) {}
    ~StepKernel() { unload(); }
    StepKernel(const StepKernel&) = delete;
    StepKernel& operator=(const StepKernel&) = delete;

    /// Call once, and again after a failure or unload().
    [[nodiscard]] gpu::Status load(int device);
    /// Queues up to kMostSteps steps, which begin together. Steps that wait come last.
    /// @param counters  kMostSteps words of the device, zero at first, for launches with steps that copy: one stream's
    ///                  alone. Null: the kernel's own.
    [[nodiscard]] gpu::Status launch(gpu::StreamHandle stream, std::span<const Step> steps,
                                     std::uint32_t* counters = nullptr) noexcept;
    /// Safe to call twice.
    void unload() noexcept;

  private:
    gpu::Runtime& _runtime;
    int _device = -1;
    gpu::ModuleHandle _module;
    gpu::KernelHandle _few, _many;
    std::uint32_t* _counters = nullptr;
};

/// What became of a step that was added.
enum class Outcome : std::uint8_t { added, queued, failed };
using Receipt = std::atomic<Outcome>;

/// The steps of one device's default stream. Thread-safe.
class Steps {
  public:
    using Clock = std::chrono::steady_clock;

    explicit Steps(gpu::Runtime& runtime) noexcept : _kernel(runtime) {}
    ~Steps() { shut_down(); }
    Steps(const Steps&) = delete;
    Steps& operator=(const Steps&) = delete;

    /// Loads the kernel, when first asked, and again while the device was busy. False when there is none.
    [[nodiscard]] bool prepare(int device);

    /// -1 while no kernel is loaded.
    [[nodiscard]] int device() const noexcept { return _device.load(std::memory_order_acquire); }

    /// Adds a step for the next flush(). prepare() has said yes.
    /// @param receipt may be null.
    /// @param noted becomes the step's number when the step has been queued; may be null.
    /// @param soon  whoever gathers steps should not let this one wait for others.
    void add(const Step& step, std::shared_ptr<Receipt> receipt, std::atomic<std::uint32_t>* noted = nullptr,
             bool soon = false);
    /// Whether steps wait for flush().
    [[nodiscard]] bool any() const noexcept { return _any.load(std::memory_order_acquire); }
    /// Whether they have waited so long, or one of them should not wait.
    [[nodiscard]] bool is_late(std::chrono::microseconds limit) noexcept;
    /// Queues what was added behind everything that the program has given to the device's default stream: first the
    /// steps that wait for nothing, each kind in its order. A full launch queue makes this wait.
    void flush() noexcept;
    /// Why a flush failed; success while none has.
    [[nodiscard]] gpu::Status failure() const;

    /// Nothing is queued any more, and nothing waits. Safe to call twice.
    void shut_down() noexcept;

  private:
    struct Added {
        Step step;
        std::shared_ptr<Receipt> receipt;
        std::atomic<std::uint32_t>* noted;
    };

    StepKernel _kernel;
    mutable std::mutex _mutex;
    std::atomic<int> _device{-1};
    bool _refused = false;
    std::vector<Added> _added;
    std::vector<Step> _together;  ///< of one launch
    std::atomic<bool> _any{false};
    bool _soon = false;
    Clock::time_point _since{};  ///< of the first that was added
    gpu::Status _failure;
};

}  // namespace awaken::stream
