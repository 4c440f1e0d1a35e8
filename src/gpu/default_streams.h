// SPDX-License-Identifier: Apache-2.0
// The work that the program gave to its devices' legacy default streams, and whether it is over.
//
// The runtimes' own question about the default stream is another one. CUDA answers for all "blocking" streams (as
// cudaStreamCreate makes them): those that wait for the default stream and that the default stream waits for. So a
// kernel in any of them would keep a message back, for ever when that kernel waits for something that comes after the
// message. HIP puts a marker behind all of them at each question. An event in a stream of ours that is ordered after
// the default stream stands for just the earlier work of the default stream.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::gpu {

class DefaultStreams {
  public:
    explicit DefaultStreams(Runtime& runtime) noexcept : _runtime(runtime) {}
    ~DefaultStreams();
    DefaultStreams(const DefaultStreams&) = delete;
    DefaultStreams& operator=(const DefaultStreams&) = delete;

    /// See Runtime. Thread-safe.
    Status mark(int device, EventHandle& mark) noexcept;
    Status query(EventHandle& mark, bool& over) noexcept;
    void drop(EventHandle& mark) noexcept;
    /// Waits by asking.
    Status finish(int device) noexcept;

  private:
    /// The device's stream, which only ever gets events, and unused events.
    struct Device {
        int number;
        StreamHandle stream;
        Device* next;
        /// The event that was given back last. A message mostly needs no other, and no lock for that one.
        std::atomic<void*> at_hand{nullptr};
        std::mutex mutex;
        std::vector<EventHandle> spare;
    };
    [[nodiscard]] Device* known(int device) const noexcept;
    [[nodiscard]] Status find(int device, Device*& found);
    [[nodiscard]] Status acquire(int device, StreamHandle& stream, EventHandle& event);

    Runtime& _runtime;
    std::mutex _mutex;  ///< for adding a device
    /// The list only grows, so that finding a device needs no lock. Its streams live as long as the process.
    std::atomic<Device*> _devices{nullptr};
};

}  // namespace awaken::gpu
