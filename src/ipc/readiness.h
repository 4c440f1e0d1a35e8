// Which messages may be read, told to their receivers: those of which the program's earlier work is over.
//
// A sender's offer may be read when everything is over that the program had given to its default stream before. To ask
// the driver for that takes 1.5 us on an H100 when the answer is yes, whatever is asked, and 0.3 us when it is no; a
// window of 64 messages asked 64 times. Marks of one device are reached in the order in which they were made, so in a
// burst of nonblocking sends each message is only marked (0.3 us), and the answer for the youngest mark is one for all.
// No message waits for what was given to the stream after it: where the youngest is not reached, older ones are asked
// about, down to the oldest.
//
// Whoever waits or tests asks first. What is left when the sender does something else is the background thread's.
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

class Readiness final : public Job {
  public:
    using Clock = std::chrono::steady_clock;

    /// A message that waits for its mark. Called under the lock of Readiness.
    class Source {
      public:
        virtual ~Source() = default;
        /// It may be read. `status`: of the question, whose failure is the message's.
        virtual void became_ready(const gpu::Status& status) noexcept = 0;

      protected:
        Source() = default;
        Source(const Source&) = default;
        Source& operator=(const Source&) = default;
    };

    struct Pace {
        Pace() = default;
        /// With times that fit.
        explicit Pace(const std::chrono::nanoseconds between_sends)
            : closely(between_sends), long_enough(between_sends * 3 / 2), left(between_sends * 2) {}

        /// Sends that begin within this time of each other follow each other closely.
        std::chrono::nanoseconds closely{10'000};
        /// A burst begins after so many. The few messages of an exchange with neighbours are asked about one by one.
        unsigned before_burst = 4;
        /// So many marks are worth a question, so that receivers can begin while the burst goes on; and so old ones.
        std::size_t most = 8;
        std::chrono::nanoseconds long_enough{15'000};
        /// What the sender has left for so long, it does not settle itself in the next moment.
        std::chrono::nanoseconds left{20'000};
        /// The background keeps looking for so long after the last message: to wake it takes a system call.
        std::chrono::nanoseconds linger{2'000'000};
        /// It looks so often, and more and more seldom once nothing has waited longer than that for so many looks:
        /// where a process has one core, each look takes that from the sender for longer than several messages need.
        std::chrono::microseconds between_looks{50}, most_between_looks{500};
        unsigned looks_for_nothing = 20;
    };

    Readiness(gpu::Runtime& runtime, const Pace& pace) noexcept
        : _runtime(runtime), _pace(pace), _pause(pace.between_looks) {}
    ~Readiness() override { end(); }

    /// To be asked once for each nonblocking send: whether it is one of many that follow each other closely, so that it
    /// is worth while to leave the question for later.
    [[nodiscard]] bool in_burst(Clock::time_point now) noexcept;
    /// Adds a message with its mark, which is not empty. True when this object is to be handed to the background.
    [[nodiscard]] bool add(std::shared_ptr<Source> source, gpu::EventHandle mark, Clock::time_point now);
    [[nodiscard]] bool any() const noexcept { return _count.load(std::memory_order_acquire) != 0; }
    /// Lets go of all that may be read.
    void ask() noexcept;
    /// The message needs nothing any more: ready() is not called for it from now on. Never with a lock that ready()
    /// takes.
    void forget(const Source& source) noexcept;
    /// Gives up all marks, unasked, and what the background does.
    void end() noexcept;
    /// Asks about what has been here for a while. True when nothing is left.
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
    // With the lock.
    void ask_now(Line& line) noexcept;
    void ask_all() noexcept;
    /// Whether the mark is reached (or cannot be asked about, as `status` says), which uses it up.
    [[nodiscard]] bool is_reached(Waiting& waiting, gpu::Status& status) noexcept;
    void let_go(Waiting& waiting, const gpu::Status& status) noexcept;

    gpu::Runtime& _runtime;
    const Pace _pace;
    std::mutex _mutex;
    std::vector<Line> _lines;
    bool _in_background = false, _ended = false;
    Clock::time_point _last_added{};
    unsigned _for_nothing = 0;  ///< looks of the background in a row that came early enough
    std::atomic<std::chrono::microseconds> _pause;
    std::atomic<std::size_t> _count{0};
    std::atomic<Clock::rep> _last_send{0};
    std::atomic<unsigned> _run{0};
};

}  // namespace awaken::ipc
