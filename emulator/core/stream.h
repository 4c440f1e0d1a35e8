// SPDX-License-Identifier: Apache-2.0
// Streams, events, and the order between them.
//
// Each stream has a worker thread (started by its first asynchronous operation) that runs its operations in order. What
// must come before an operation is captured when it is submitted, as tickets of other streams; so operations can only
// wait for ones submitted earlier, and no cycle can arise. The legacy default stream of a context is an ordinary stream
// whose operations wait for everything before them in the context's blocking streams, and the other way round.
//
// A stream has room for so many operations (Configuration::queue_length). A call that would queue one more returns when
// there is room.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "core/configuration.h"
#include "core/error.h"

namespace awaken::emulator {

struct Context;

/// How far a stream has come: operations are numbered from 1 in order of submission.
class Timeline {
  public:
    [[nodiscard]] bool reached(std::uint64_t number) const noexcept {
        return _completed.load(std::memory_order_acquire) >= number;
    }
    void wait(std::uint64_t number);
    void complete(std::uint64_t number);

  private:
    std::atomic<std::uint64_t> _completed{0};
    std::mutex _mutex;
    std::condition_variable _changed;
};

/// One submitted operation; an empty ticket is done.
struct Ticket {
    std::shared_ptr<Timeline> timeline;
    std::uint64_t number = 0;

    [[nodiscard]] bool done() const noexcept { return !timeline || timeline->reached(number); }
    void wait() const {
        if (timeline) {
            timeline->wait(number);
        }
    }
};

using Work = std::function<void()>;

/// Whether the worker starts an operation at once or is late on purpose (Configuration::delay).
enum class Start : std::uint8_t { prompt, late };

/// By how much each operation of a stream is late, see Configuration::random_delays. The same for the same seed, device
/// and stream in each run of a program.
class RandomDelays {
  public:
    /// `stream` is the number of the stream among those of its context.
    RandomDelays(const DelayRange& range, int device, std::uint32_t stream);
    [[nodiscard]] std::chrono::microseconds next();

  private:
    std::minstd_rand _random;
    std::uniform_int_distribution<std::chrono::microseconds::rep> _distribution;
};

class Stream : public std::enable_shared_from_this<Stream> {
  public:
    enum class Role : std::uint8_t { created, legacy_default, per_thread_default };

    /// `number` is its own among the streams of its context.
    Stream(Context& context, std::uint32_t number, Role role, bool blocking, unsigned flags, int priority);
    ~Stream() = default;
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    [[nodiscard]] Context& context() const noexcept { return _context; }
    [[nodiscard]] Role role() const noexcept { return _role; }
    /// Ordered against the legacy default stream.
    [[nodiscard]] bool blocking() const noexcept { return _blocking; }
    [[nodiscard]] unsigned flags() const noexcept { return _flags; }
    [[nodiscard]] int priority() const noexcept { return _priority; }

    /// Queues `work` after `also` and returns at once, if there is room. While the stream is captured, records it and
    /// queues nothing.
    Ticket submit(Work work, Start start = Start::prompt, std::vector<Ticket> also = {});
    /// The same for work that waits for a value in memory, and so may hold up other streams, see
    /// Configuration::connections.
    Ticket submit_memory_wait(Work work);
    /// Runs `work` in its place in the stream and returns when it is over; on the calling thread if nothing is ahead of
    /// it.
    void run(const Work& work);

    /// Ticket of the last operation submitted so far.
    [[nodiscard]] Ticket last();
    /// Its work that is not over; a default stream's includes what an operation in it would wait for.
    [[nodiscard]] std::vector<Ticket> unfinished();
    /// Whether synchronize would return at once.
    [[nodiscard]] bool idle();
    /// Waits for unfinished().
    void synchronize();
    /// No more operations come; the worker ends when the queue is empty.
    void close();

  private:
    struct Operation {
        Work work;
        std::vector<Ticket> after;
        std::chrono::steady_clock::time_point not_before;
        std::uint64_t number = 0;
    };

    Ticket queue(Operation operation, bool memory_wait);
    /// Returns, with the context's order lock held, when the queue has room. Meanwhile other threads can have the lock.
    void await_room(std::unique_lock<std::mutex>& order);
    void work_off();
    /// With `_busy` set by the calling thread.
    void delay_at_random();
    /// With the context's order lock held.
    void collect_order(std::vector<Ticket>& after);
    /// With the context's order lock held: what the operation comes after that has the same connection.
    void collect_connection(std::vector<Ticket>& after);

    Context& _context;
    const std::uint32_t _number;
    const Role _role;
    const bool _blocking;
    const unsigned _flags;
    const int _priority;
    const std::shared_ptr<Timeline> _timeline = std::make_shared<Timeline>();
    std::mutex _mutex;
    std::condition_variable _wake;
    std::deque<Operation> _queue;
    std::uint64_t _submitted = 0;
    bool _busy = false;  ///< an operation is running, on the worker or on a caller's thread
    std::optional<RandomDelays> _random_delays;
    bool _worker = false;
    bool _closed = false;
};

/// An event is the tickets of what its last record stands for: an operation put into a stream, or all work of a
/// context.
class Event {
  public:
    Event(Context& context, unsigned flags) : _context(context), _flags(flags) {}

    [[nodiscard]] Context& context() const noexcept { return _context; }
    [[nodiscard]] bool timed() const noexcept { return (_flags & kDisableTiming) == 0; }
    void record(Stream& stream);
    /// All work of its context so far. Has no time.
    void record_context();
    /// The capture that it was recorded in last; 0 for none.
    [[nodiscard]] std::uint64_t capture() const;
    /// Of all events of this process.
    [[nodiscard]] static std::uint64_t records() noexcept;
    [[nodiscard]] std::vector<Ticket> tickets() const;
    [[nodiscard]] bool done() const;
    [[nodiscard]] bool timed_record() const;
    /// Milliseconds from `start` to this event. not_ready while one is not reached; invalid_handle without times.
    Error elapsed_since(const Event& start, float& milliseconds) const;

    static constexpr unsigned kDisableTiming = 2;

  private:
    struct Time {
        std::chrono::steady_clock::time_point value;
    };
    Context& _context;
    const unsigned _flags;
    mutable std::mutex _mutex;
    std::vector<Ticket> _tickets;
    std::shared_ptr<Time> _time;
    std::uint64_t _capture = 0;
};

}  // namespace awaken::emulator
