// Where a receiver is that takes no chunk of what it is sent: in the MPI itself, or only late.
//
// One that waits in the MPI takes no chunks and may be waiting for the sender, which must not wait for it in turn. Of
// one that computes, or makes other calls first, a sender expects that it comes. The sender cannot see which it is, but
// can ask the receiver's MPI, by synchronous messages of no bytes (pings): they are answered whenever the process is in
// any MPI call. When its layer runs, as it does in all calls that the layer serves, it finds the ping that was answered
// and says so (looked()), at the latest when such a call ends. A process that answers and whose layer does not run
// waits in the MPI.
//
// No single measure of time decides: a process can be kept from the processor for long, at any place. One such pause
// does not look like waiting in the MPI, since what follows an answer without a pause is the look of the layer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace awaken::p2p {

/// Not thread-safe.
class Whereabouts {
  public:
    using Clock = std::chrono::steady_clock;

    /// Pings that a receiver can answer without its layer, which is what it takes: one that is only passing by answers
    /// one.
    static constexpr std::size_t kPings = 2;
    /// One whose layer does run, and that takes nothing all the same, is taken to wait after so many answers: perhaps
    /// one of its threads does, while another one makes calls.
    static constexpr std::size_t kMany = 100;
    /// So is one that cannot be asked any more, since the MPI failed it, after so many times as long.
    static constexpr int kPatience = 250;

    enum class Verdict : std::uint8_t {
        unknown,  ///< or late: ask again
        ping,     ///< send one, and ask again
        waits     ///< in the MPI
    };

    /// The receiver has receives for `count` pings more.
    void listens(const std::size_t count) noexcept { _listens += count; }
    /// Its layer has run, after it had answered a ping, and has one receive more.
    void looked() noexcept {
        ++_listens;
        _unseen = 0;
    }
    /// The ping was answered.
    void answered(const Clock::time_point now) noexcept {
        _asked = false;
        _last_answer = now;
        ++_answers;
        ++_unseen;
    }

    /// Whether it waits in the MPI. After Verdict::ping a ping is taken to be under way.
    /// @param since  when it has last taken a chunk
    /// @param time   how long to wait for the layer's look after an answer, and between answers
    [[nodiscard]] Verdict judge(const Clock::time_point since, const Clock::time_point now,
                                const Clock::duration time) noexcept {
        if (since != _since) {
            _since = since;
            _answers = 0;  // that its layer has not run since it answered is as true as before
        }
        if (now - since <= time || _asked || now - _last_answer <= time) {
            return Verdict::unknown;
        }
        if (_unseen >= kPings || _answers >= kMany) {
            return Verdict::waits;
        }
        if (_listens == 0) {
            return now - since > kPatience * time ? Verdict::waits : Verdict::unknown;
        }
        --_listens;
        _asked = true;
        return Verdict::ping;
    }
    /// The ping could not be sent.
    void not_sent() noexcept { _asked = false; }

  private:
    std::size_t _listens = 0;
    bool _asked = false;       ///< a ping is under way
    std::size_t _answers = 0;  ///< since the last chunk
    std::size_t _unseen = 0;   ///< without a look of its layer after any of them
    Clock::time_point _since{}, _last_answer{};
};

}  // namespace awaken::p2p
