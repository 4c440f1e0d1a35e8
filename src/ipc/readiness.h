// SPDX-License-Identifier: Apache-2.0
// When receivers may read offered messages: once the program's earlier work on the device is over.
//
// A receiver may read an offer when everything is over that the program had given to the sender's default stream
// before. Asking the driver for that takes 1.5 us on an H100 when the answer is yes, whatever is asked, and 0.3 us when
// it is no. A window of 64 messages would ask 64 times. The device reaches marks in the order in which they were made.
// So in a burst of nonblocking sends the sender only marks each message (0.3 us), and the answer for the youngest mark
// serves all. No message waits for work that was given to the stream after it: where the youngest mark is not reached,
// the sender asks about older ones, down to the oldest.
//
// Every call that waits or tests asks first. When the sender does something else, the background thread asks about the
// rest.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/gpu.h"
#include "ipc/background.h"

namespace awaken::ipc {

class Readiness final : public Task {
  public:
    using Clock = std::chrono::steady_clock;

    /// A message that waits for its mark. Readiness holds its lock when it calls.
    class Source {
      public:
        virtual ~Source() = default;
        /// The message may be read. `status`: the outcome of the question; if it failed, the message fails.
        virtual void became_ready(const gpu::Status& status) noexcept = 0;

      protected:
        Source() = default;
        Source(const Source&) = default;
        Source& operator=(const Source&) = default;
    };

    struct Pace {
        Pace() = default;
        /// Derives the times from `between_sends`.
        explicit Pace(const std::chrono::nanoseconds between_sends)
            : closely(between_sends), long_enough(between_sends * 3 / 2), left(between_sends * 2) {}

        /// Sends that begin within this time of each other follow each other closely.
        std::chrono::nanoseconds closely{10'000};
        /// A burst begins after this many sends. An exchange with two neighbours has no more messages, and the sender
        /// asks about each of them.
        unsigned before_burst = 2;
        /// This many marks are worth a question, so that receivers can begin while the burst goes on. A kernel gets
        /// many small messages at a time, so few questions are best for them.
        std::size_t most = 32;
        /// Among large messages, whose copies take long, this many marks are, and so is a mark of this age.
        std::size_t most_large = 4;
        std::chrono::nanoseconds long_enough{15'000};
        /// A message that the sender has left for this long is the background's: the sender will hardly ask about it
        /// itself.
        std::chrono::nanoseconds left{20'000};
        /// The background keeps looking for this long after the last message, since waking it takes a system call.
        std::chrono::nanoseconds linger{2'000'000};
        /// The background looks at this interval. The interval grows up to the second value when no message has waited
        /// longer than that for `looks_for_nothing` looks: where a process has one core, each look takes the core from
        /// the sender for longer than several messages need.
        std::chrono::microseconds between_looks{50}, most_between_looks{500};
        unsigned looks_for_nothing = 20;
    };

    Readiness(gpu::Runtime& runtime, const Pace& pace) noexcept
        : _runtime(runtime), _pace(pace), _pause(pace.between_looks) {}
    ~Readiness() override { end(); }

    /// Call once for each nonblocking send. True when it is one of many that follow each other closely, so that it pays
    /// to leave the question for later.
    [[nodiscard]] bool in_burst(Clock::time_point now) noexcept;
    /// Adds a message with its mark, which is not empty. True when the caller must hand this object to the background.
    /// `large`: the message is long enough that its receiver should begin soon.
    [[nodiscard]] bool add(std::shared_ptr<Source> source, gpu::EventHandle mark, bool large, Clock::time_point now);
    [[nodiscard]] bool any() const noexcept { return _count.load(std::memory_order_acquire) != 0; }
    /// Asks about the marks, and makes all messages ready that may be read.
    void ask() noexcept;
    /// The message needs nothing any more: became_ready() is not called for it from now on. Do not call this with a
    /// lock that became_ready() takes.
    void forget(const Source& source) noexcept;
    /// Gives up all marks without asking about them, and ends the work of the background.
    void end() noexcept;
    /// Asks about messages that have waited for a while. True when none is left.
    bool pump() noexcept override;
    [[nodiscard]] std::chrono::microseconds pause() const noexcept override {
        return _pause.load(std::memory_order_relaxed);
    }

  private:
    struct Waiting {
        std::shared_ptr<Source> source;
        gpu::EventHandle mark;
        Clock::time_point since;
    };
    /// The messages from one device, oldest first.
    struct Line {
        int device;
        std::deque<Waiting> waiting;
    };
    // The caller holds the lock.
    void ask_now(Line& line) noexcept;
    void ask_all() noexcept;
    /// Whether the device has reached the mark, or the question failed (`status`). Either uses up the mark.
    [[nodiscard]] bool is_reached(Waiting& waiting, gpu::Status& status) noexcept;
    void let_go(Waiting& waiting, const gpu::Status& status) noexcept;

    gpu::Runtime& _runtime;
    const Pace _pace;
    std::mutex _mutex;
    std::vector<Line> _lines;
    bool _in_background = false, _ended = false;
    Clock::time_point _last_added{};
    unsigned _for_nothing = 0;  ///< consecutive looks of the background that came early enough
    std::atomic<std::chrono::microseconds> _pause;
    std::atomic<std::size_t> _count{0};
    std::atomic<Clock::rep> _last_send{0};
    std::atomic<unsigned> _run{0};
};

}  // namespace awaken::ipc
