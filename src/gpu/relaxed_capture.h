// SPDX-License-Identifier: Apache-2.0
// Calls that harm no capture.
//
// While any thread of the program captures a stream into a graph, most questions and all allocations of other threads
// fail, and make that capture fail. They do not when the thread declares them harmless. That takes a call of the driver
// before and after, which several calls in a row share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/fnv1a.h"

namespace awaken::gpu {

namespace detail {

/// What the calling thread has declared for several calls.
struct SharedCaptureMode {
    unsigned users = 0;
    void (*restore)(void* exchange, int mode) = nullptr;  ///< null: nothing is declared
    void* exchange = nullptr;
    int mode = 0;  ///< of the program
};
inline thread_local SharedCaptureMode shared_capture_mode;

}  // namespace detail

/// While one lives, the calling thread's calls share one declaration, which the first of them makes. For a few calls
/// between which no code of the program runs that may capture.
class CallsTogether {
  public:
    CallsTogether() noexcept { ++detail::shared_capture_mode.users; }
    ~CallsTogether() {
        detail::SharedCaptureMode& shared = detail::shared_capture_mode;
        if (--shared.users == 0 && shared.restore != nullptr) {
            std::exchange(shared.restore, nullptr)(shared.exchange, shared.mode);
        }
    }
    CallsTogether(const CallsTogether&) = delete;
    CallsTogether& operator=(const CallsTogether&) = delete;
};

/// The declaration for one call. `Exchange` is a pointer to the driver's function, which takes an `int*`.
template <class Exchange>
class RelaxedCapture {
  public:
    RelaxedCapture() = default;
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;
    ~RelaxedCapture() {
        if (_exchange != nullptr) {
            static_cast<void>(_exchange(&_mode));
        }
    }
    /// Call once. False when the driver refuses. `exchange` may be null: then there are no captures.
    [[nodiscard]] bool begin(const Exchange exchange) noexcept {
        detail::SharedCaptureMode& shared = detail::shared_capture_mode;
        if (exchange == nullptr || shared.restore != nullptr) {
            return true;
        }
        if (static_cast<int>(exchange(&_mode)) != 0) {
            return false;
        }
        if (shared.users == 0) {
            _exchange = exchange;
            return true;
        }
        shared.exchange = reinterpret_cast<void*>(exchange);
        shared.mode = _mode;
        shared.restore = [](void* const with, int mode) { static_cast<void>(reinterpret_cast<Exchange>(with)(&mode)); };
        return true;
    }

  private:
    static constexpr int kRelaxed = 2;  ///< the same in CUDA and HIP
    int _mode = kRelaxed;               ///< after the call: the program's
    Exchange _exchange = nullptr;
};

/// Runtime::capture_point(), from the nodes behind which the driver puts what comes next.
[[nodiscard]] inline std::uint64_t point_of(const void* const* const nodes, const std::size_t count) noexcept {
    Fnv1a point;
    for (std::size_t i = 0; i < count; ++i) {
        point.add_word(reinterpret_cast<std::uintptr_t>(nodes[i]));
    }
    return point.value();
}

}  // namespace awaken::gpu
