// SPDX-License-Identifier: Apache-2.0
// The rest of the library tells the trace through this header that something began or is over.
//
// There is one place to tell, sink(). It is null while nothing is traced: then an event costs one load. This header
// needs nothing linked, so that any folder may use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <utility>

namespace awaken::trace {

enum class Kind : std::uint8_t {
    call,         ///< an MPI call, from its entry to its return
    nonblocking,  ///< an operation, from the call that started it to the one that completed it
    range,        ///< a range that the program marks (awaken_range_push)
    copy,         ///< a copy by a GPU that the layer started
    kernel,       ///< a kernel that the layer started
    background    ///< work that goes on beside the program: collectives, fragments and messages in flight
};

/// Event::peer of an event without a peer.
inline constexpr std::int32_t kNoPeer = INT32_MIN;
inline constexpr std::int32_t kAnyPeer = INT32_MIN + 1;   ///< MPI_ANY_SOURCE
inline constexpr std::int32_t kNullPeer = INT32_MIN + 2;  ///< MPI_PROC_NULL

/// Times are nanoseconds of CLOCK_MONOTONIC.
struct Event {
    std::uint64_t begin_ns = 0;
    std::uint64_t end_ns = 0;    ///< 0: not over
    const char* name = nullptr;  ///< a string that lives for ever, or that the recorder keeps
    std::uint64_t bytes = 0;
    std::int32_t peer = kNoPeer;  ///< rank in the communicator; of background work, in MPI_COMM_WORLD
    std::int32_t members = 0;     ///< ranks of the communicator; 0: not known
    std::int32_t device = -1;     ///< -1: none
    Kind kind = Kind::call;
    std::uint8_t path = 0;      ///< report::Path, of calls and nonblocking operations; report::Mover, of copies
    bool is_poll = false;       ///< one of many: the program asks again and again whether something is there
    std::uint32_t repeats = 0;  ///< further calls in this event
};

/// Polls that follow one another on a thread become one event, unless more time than this lies between them. A program
/// that waits by MPI_Test makes millions of polls a second.
inline constexpr std::uint64_t kPollGap_ns = 10'000;

[[nodiscard]] inline std::uint64_t now_ns() noexcept {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000U + static_cast<std::uint64_t>(time.tv_nsec);
}

/// Takes events from any thread.
class Sink {
  public:
    Sink() = default;
    virtual ~Sink() = default;
    Sink(const Sink&) = delete;
    Sink& operator=(const Sink&) = delete;

    virtual void add(const Event& event) noexcept = 0;
    /// Takes an event whose end comes later, by close(), on any thread. Null when there is no room for the event.
    [[nodiscard]] virtual Event* open(const Event& event) noexcept = 0;

    static void close(Event* const event, const std::uint64_t end_ns) noexcept {
        if (event != nullptr) {
            std::atomic_ref(event->end_ns).store(end_ns, std::memory_order_release);
        }
    }
};

/// Once set, it never goes back to null, but for tests.
inline std::atomic<Sink*> current_sink{nullptr};
[[nodiscard]] inline Sink* sink() noexcept {
    return current_sink.load(std::memory_order_acquire);
}

/// Work of the layer that the host sees begin and end. The end is the time at which a thread found the work over, which
/// may be later than the real end. Does nothing, at the cost of one load, while nothing is traced.
class Stretch {
  public:
    Stretch() = default;
    Stretch(Stretch&& other) noexcept : _event(std::exchange(other._event, nullptr)) {}
    Stretch& operator=(Stretch&& other) noexcept {
        if (this != &other) {
            end();
            _event = std::exchange(other._event, nullptr);
        }
        return *this;
    }
    Stretch(const Stretch&) = delete;
    Stretch& operator=(const Stretch&) = delete;
    ~Stretch() { end(); }

    /// `name` is a string literal.
    void begin(const Kind kind, const char* const name, const std::uint64_t bytes, const int device,
               const std::int32_t peer = kNoPeer) noexcept {
        if (Sink* const to = sink(); to != nullptr) [[unlikely]] {
            end();
            Event event;
            event.begin_ns = now_ns();
            event.name = name;
            event.bytes = bytes;
            event.peer = peer;
            event.device = device;
            event.kind = kind;
            _event = to->open(event);
        }
    }
    /// What did the copy: report::Mover. Engine where it does not come to this.
    void by(const std::uint8_t mover) noexcept {
        if (_event != nullptr) [[unlikely]] {
            std::atomic_ref(_event->path).store(mover, std::memory_order_relaxed);
        }
    }
    void end() noexcept {
        if (_event != nullptr) [[unlikely]] {
            Sink::close(std::exchange(_event, nullptr), now_ns());
        }
    }

  private:
    Event* _event = nullptr;
};

}  // namespace awaken::trace
