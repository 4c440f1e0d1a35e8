// SPDX-License-Identifier: Apache-2.0
// What others than messages ask of stream order: steps of their own in the default stream.
#pragma once

#include <span>

#include "gpu/gpu.h"
#include "stream/steps.h"

namespace awaken::stream {

/// Work that goes on in the default stream when its call has returned. Thread-safe.
class Watched {
  public:
    virtual ~Watched() = default;
    Watched() = default;
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;
    /// Looks whether something is over, or whether the processes live that it waits for. Called now and then.
    virtual void look() noexcept = 0;
    /// Lets all waits go. Never calls the runtime.
    virtual void let_go() noexcept = 0;
};

/// Thread-safe.
class Ordering {
  public:
    virtual ~Ordering() = default;
    Ordering() = default;
    Ordering(const Ordering&) = delete;
    Ordering& operator=(const Ordering&) = delete;

    /// Whether the default streams of this process's `device` and of process `peer` may wait for each other. Makes what
    /// that takes, when first asked. Both say yes after some messages.
    [[nodiscard]] virtual bool goes(int peer, int device) noexcept = 0;
    /// Queues the steps in the default stream, and whatever was gathered before.
    [[nodiscard]] virtual gpu::Status take(std::span<const Step> steps) = 0;
    /// Waits until the default stream is over.
    virtual void finish() noexcept = 0;
    /// Looks after the work from now on; null: no more, when this returns.
    virtual void watch(Watched* watched) noexcept = 0;
};

}  // namespace awaken::stream
