// Whether a device is idle, for runtimes that can only be told to wait until it is.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace awaken::gpu {

/// Waits in a thread of its own, which nobody has to wait for: a runtime without a question (HIP; CUDA before 12.5)
/// lets other threads work meanwhile, unlike in the calls that this is asked for.
class IdleProbe {
  public:
    /// Calls `wait`, which returns when `device` is idle. False when it has not returned in time, or when one of before
    /// still waits. Thread-safe; what `wait` uses lives as long as the process.
    [[nodiscard]] bool ask(int device, const std::function<void()>& wait, std::chrono::microseconds patience) noexcept;

  private:
    struct Question;
    std::mutex _mutex;
    std::map<int, std::shared_ptr<Question>> _under_way;
};

}  // namespace awaken::gpu
