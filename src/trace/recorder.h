// SPDX-License-Identifier: Apache-2.0
// Events in memory until the end of the job.
//
// Each thread writes to a list of chunks of its own. So adding an event takes no lock, and of atomic operations only a
// store. A thread takes a lock when it adds its first event. Chunks grow with their number and come from one budget.
// When the budget is used up, the recorder counts events and does not keep them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "trace/trace.h"

namespace awaken::trace {

class Recorder final : public Sink {
  public:
    /// Keeps as many events as fit into `limit_bytes` bytes.
    explicit Recorder(std::size_t limit_bytes);
    ~Recorder() override;

    void add(const Event& event) noexcept override;
    [[nodiscard]] Event* open(const Event& event) noexcept override;

    /// A range of the calling thread begins. Ranges nest. The recorder copies `name`.
    void push_range(std::string_view name) noexcept;
    /// The thread's innermost range ends. Nothing happens when there is none.
    void pop_range() noexcept;

    /// Events that did not fit.
    [[nodiscard]] std::uint64_t dropped() const;
    [[nodiscard]] std::uint64_t kept() const;
    /// Calls `use(thread, event)` for every event so far, thread by thread, in the order in which the thread added
    /// them. Threads are numbered from 0 in the order of their first events, and may go on adding meanwhile. An event
    /// that is not over has end_ns 0.
    void for_each(const std::function<void(int thread, const Event& event)>& use) const;

  private:
    struct Chunk;
    struct Track;  ///< of one thread
    [[nodiscard]] Track* track() noexcept;
    [[nodiscard]] Track* add_track() noexcept;
    [[nodiscard]] bool grow(Track& track) noexcept;
    [[nodiscard]] Event* place(Track& track, const Event& event) noexcept;
    [[nodiscard]] static bool joins_last(const Track& track, const Event& event) noexcept;
    [[nodiscard]] bool take_budget(std::size_t bytes) noexcept;

    const std::uint64_t _number;  ///< tells recorders apart, since their addresses may recur
    std::atomic<std::int64_t> _left_bytes;
    std::atomic<std::uint64_t> _dropped_without_lane{0};
    mutable std::mutex _mutex;  ///< of the list below
    std::vector<std::unique_ptr<Track>> _tracks;
};

}  // namespace awaken::trace
