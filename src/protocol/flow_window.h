// How many fragments of the messages to another process, or from it, are under way at a time, and whose turn is next.
//
// Fragments lie in host memory while the network has them, so all messages of a pair share one window. The messages
// stand in a line, and their fragments fill the window in that order. First come the messages that the receiver has
// come for, in the order in which it came. Then come the others, in the order in which they were sent, so that the
// network need not wait for the receiver's answers. A message that the receiver does not want yet gets only what is
// left of the window, so it never keeps back one that the receiver waits for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace awaken::protocol {

/// Thread-safe. Outlives its credits.
class FlowWindow {
  public:
    using Clock = std::chrono::steady_clock;

    /// Stands for one fragment that is under way, until it is destroyed.
    class Credit {
      public:
        Credit() = default;
        Credit(Credit&& other) noexcept
            : _flow(std::exchange(other._flow, nullptr)), _wanted(std::exchange(other._wanted, false)) {}
        Credit& operator=(Credit&& other) noexcept {
            std::swap(_flow, other._flow);
            std::swap(_wanted, other._wanted);
            return *this;
        }
        Credit(const Credit&) = delete;
        Credit& operator=(const Credit&) = delete;
        ~Credit() {
            if (_flow != nullptr) {
                _flow->ended(_wanted);
            }
        }
        [[nodiscard]] explicit operator bool() const noexcept { return _flow != nullptr; }

      private:
        friend class FlowWindow;
        Credit(FlowWindow* const flow, const bool wanted) noexcept : _flow(flow), _wanted(wanted) {}
        FlowWindow* _flow = nullptr;
        bool _wanted = false;
    };

    /// Message `id` takes the last place in the line. No other message in the line has this id.
    void join(const std::uint32_t id, const bool wanted = false) {
        const std::scoped_lock lock(_mutex);
        _line.push_back({id, wanted});
        _progress = Clock::now();
    }
    /// The receiver has come for message `id`. Nothing changes when the message is no longer in the line.
    void come_for(const std::uint32_t id) noexcept {
        const std::scoped_lock lock(_mutex);
        const auto found = find(id);
        if (found != _line.end() && !found->wanted) {
            found->wanted = true;
            const auto behind = std::find_if(_line.begin(), found, [](const Entry& entry) { return !entry.wanted; });
            std::rotate(behind, found, found + 1);
        }
    }
    /// No fragment of message `id` is still to be started.
    void leave(const std::uint32_t id) noexcept {
        const std::scoped_lock lock(_mutex);
        if (const auto found = find(id); found != _line.end()) {
            _line.erase(found);
        }
    }

    /// A credit for the next fragment of message `id`, if it is that message's turn and fewer than `window` fragments
    /// are under way; else an empty one.
    [[nodiscard]] Credit take(const std::uint32_t id, std::size_t window) noexcept {
        const std::scoped_lock lock(_mutex);
        if (_line.empty() || _line.front().id != id) {
            return {};
        }
        window = std::max(window, _grown);
        const bool wanted = _line.front().wanted;
        return (wanted ? _wanted : _wanted + _ahead) < window ? started(wanted) : Credit();
    }
    /// A credit for a fragment that cannot wait, however many are under way.
    [[nodiscard]] Credit force() noexcept {
        const std::scoped_lock lock(_mutex);
        return started(false);
    }

    /// Whether no fragment has arrived and no message has joined for longer than `time`.
    [[nodiscard]] bool stands_still(const Clock::duration time) const noexcept {
        const std::scoped_lock lock(_mutex);
        return Clock::now() - _progress > time;
    }
    /// When a fragment last arrived, or a message last joined.
    [[nodiscard]] Clock::time_point last_progress() const noexcept {
        const std::scoped_lock lock(_mutex);
        return _progress;
    }
    /// Call while the program waits. When no fragment has arrived for `time`, the window doubles; after a longer time
    /// it doubles again, and so on. So little is copied for a receiver that is only late, or for a slow network. A
    /// receiver that has come for the next message is mostly still there, so the first growth then takes longer. As
    /// soon as a fragment arrives, the window is as given again.
    void grow_if_still(const Clock::duration time, const std::size_t window) noexcept {
        constexpr std::size_t kMostPatience = 4;
        const std::scoped_lock lock(_mutex);
        const bool wanted = !_line.empty() && _line.front().wanted;
        const std::size_t grown = std::max(window, _grown);
        const std::size_t patience = wanted && grown == window
                                         ? kMostPatience
                                         : std::min(grown / std::max<std::size_t>(window, 1), kMostPatience);
        const Clock::time_point now = Clock::now();
        // Counted from the last growth, so that a process that has not looked for long takes one step and not many.
        if (now - std::max(_progress, _last_growth) > time * patience) {
            _grown = 2 * grown;
            _last_growth = now;
        }
    }

  private:
    struct Entry {
        std::uint32_t id;
        bool wanted;
    };
    // The caller holds the lock.
    [[nodiscard]] std::vector<Entry>::iterator find(const std::uint32_t id) noexcept {
        return std::find_if(_line.begin(), _line.end(), [&](const Entry& entry) { return entry.id == id; });
    }
    [[nodiscard]] Credit started(const bool wanted) noexcept {
        ++(wanted ? _wanted : _ahead);
        return {this, wanted};
    }
    void ended(const bool wanted) noexcept {
        const std::scoped_lock lock(_mutex);
        --(wanted ? _wanted : _ahead);
        _grown = 0;
        _progress = Clock::now();
    }

    mutable std::mutex _mutex;
    std::vector<Entry> _line;  ///< the wanted messages come first
    std::size_t _wanted = 0;   ///< fragments under way of messages that the receiver had come for
    std::size_t _ahead = 0;    ///< fragments under way for which it had not come when they were started
    std::size_t _grown = 0;    ///< the enlarged window; 0: as given
    Clock::time_point _progress{}, _last_growth{};
};

}  // namespace awaken::protocol
