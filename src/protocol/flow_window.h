// How much of the messages to another process, or from it, is under way at one time, and whose turn is next.
//
// Chunks lie in host memory while the network has them, so all messages of a pair share one window. They fill it in the
// order in which they stand in line: first those that the receiver has come for, in the order in which it came, and
// then, so that the network need not wait for its answers, the others in the order in which they were sent. A message
// that the receiver does not want yet takes what is left of the window only, and can therefore never keep back one that
// it waits for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace awaken::protocol {

/// Thread-safe. Outlives its shares.
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

    /// Message `id`, which no other message in the line has, takes the last place.
    void join(const std::uint32_t id, const bool wanted = false) {
        const std::scoped_lock lock(_mutex);
        _line.push_back({id, wanted});
        _progress = Clock::now();
    }
    /// The receiver has come for it. Nothing changes for a message that is not in the line any more.
    void come_for(const std::uint32_t id) noexcept {
        const std::scoped_lock lock(_mutex);
        const auto found = find(id);
        if (found != _line.end() && !found->wanted) {
            found->wanted = true;
            const auto behind = std::find_if(_line.begin(), found, [](const Entry& entry) { return !entry.wanted; });
            std::rotate(behind, found, found + 1);
        }
    }
    /// No fragment of it is still to be started.
    void leave(const std::uint32_t id) noexcept {
        const std::scoped_lock lock(_mutex);
        if (const auto found = find(id); found != _line.end()) {
            _line.erase(found);
        }
    }

    /// A credit for the next fragment of message `id`, if it is that one's turn and fewer than `window` fragments are
    /// under way; else an empty one.
    [[nodiscard]] Credit take(const std::uint32_t id, std::size_t window) noexcept {
        const std::scoped_lock lock(_mutex);
        if (_line.empty() || _line.front().id != id) {
            return {};
        }
        window = std::max(window, _grown);
        const bool wanted = _line.front().wanted;
        return (wanted ? _wanted : _wanted + _ahead) < window ? started(wanted) : Credit();
    }
    /// A credit whatever is under way: the fragment cannot wait.
    [[nodiscard]] Credit force() noexcept {
        const std::scoped_lock lock(_mutex);
        return started(false);
    }

    /// Whether for so long no fragment has arrived and no message has joined.
    [[nodiscard]] bool stands_still(const Clock::duration time) const noexcept {
        const std::scoped_lock lock(_mutex);
        return Clock::now() - _progress > time;
    }
    /// When a fragment has last arrived, or a message has last joined.
    [[nodiscard]] Clock::time_point last_progress() const noexcept {
        const std::scoped_lock lock(_mutex);
        return _progress;
    }
    /// Somebody waits, and the receiver has not come for so long: twice the window, after some time twice as much
    /// again, and so on, so that little is copied for a receiver that is only late, or a network that is slow. One that
    /// has come for the next message, and mostly is still there, is given longer first. As soon as a fragment arrives,
    /// the window is what it was.
    void grow_if_still(const Clock::duration time, const std::size_t window) noexcept {
        constexpr std::size_t kMostPatience = 4;
        const std::scoped_lock lock(_mutex);
        const bool wanted = !_line.empty() && _line.front().wanted;
        const std::size_t grown = std::max(window, _grown);
        const std::size_t patience = wanted && grown == window
                                         ? kMostPatience
                                         : std::min(grown / std::max<std::size_t>(window, 1), kMostPatience);
        const Clock::time_point now = Clock::now();
        // Counted from the last time, so that a process that was not looking for long takes one step and not many.
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
    // With the lock held.
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
    std::vector<Entry> _line;  ///< the wanted ones come first
    std::size_t _wanted = 0;   ///< fragments under way of messages that the receiver has come for
    std::size_t _ahead = 0;    ///< and of others, when they were started
    std::size_t _grown = 0;    ///< larger window, 0: as given
    Clock::time_point _progress{}, _last_growth{};
};

}  // namespace awaken::protocol
