// SPDX-License-Identifier: Apache-2.0
// Whether a device is idle, for runtimes that only offer to wait until it is.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace awaken::gpu {

/// Waits in a thread of its own, which nobody has to wait for. A runtime without a question (HIP; CUDA before 12.5)
/// lets other threads work during this wait. It does not do so in the calls before which the layer asks.
class IdleProbe {
  public:
    /// Calls `wait`, which returns when `device` is idle. Returns false when `wait` has not returned in time, or when
    /// an earlier one still waits. Thread-safe. Everything that `wait` uses lives as long as the process.
    [[nodiscard]] bool ask(int device, const std::function<void()>& wait, std::chrono::microseconds patience) noexcept;

  private:
    struct Question;
    std::mutex _mutex;
    std::map<int, std::shared_ptr<Question>> _under_way;
};

}  // namespace awaken::gpu
