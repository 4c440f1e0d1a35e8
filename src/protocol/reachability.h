// Where a receiver is that takes no fragment of a message to it: in the MPI itself, or only late.
//
// A receiver that waits in the MPI takes no fragments and may be waiting for the sender, so the sender must not wait
// for it in turn. A receiver that computes, or makes other calls first, will come, and the sender may wait. The sender
// cannot see which of the two it is, but it can ask the receiver's MPI by pings: synchronous messages of no bytes, one
// after the other. The MPI answers them whenever the receiver is in any MPI call. When the receiver's layer runs, as it
// does in all calls that the layer serves, it finds the answered ping and says so (looked()), at the latest when such a
// call ends. If a process answers one ping after the other, and its layer says nothing between them, the process waits
// in the MPI.
//
// What has happened decides, not how long it took: this process and the receiver can be kept from the processor for any
// time, at any place. Each answer proves that the receiver has asked its MPI once more since its last answer. A layer
// that runs asks the MPI only a few times before it looks for pings. Interruptions, however many, do not make it ask
// more often. So after more answers than that, no layer is about to speak. Times decide only when a question is worth
// while, and ensure that a layer which runs between two answers finds it time to look.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace awaken::protocol {

/// Not thread-safe.
class Reachability {
  public:
    using Clock = std::chrono::steady_clock;

    /// A receiver that answers this many pings without its layer waits in the MPI. The number is larger than the number
    /// of times that a layer asks the MPI between two looks for pings (Network::look() and all loops that wait), and
    /// than the number of times that an MPI call asks when it has nothing left to wait for.
    static constexpr std::size_t kPings = 8;
    /// A layer that runs looks for pings at this interval. It is long enough to cost nothing noticeable.
    static constexpr std::chrono::microseconds kBetweenLooks{20};
    /// The sender waits at least this long after an answer before it sends the next ping. This is much longer than
    /// kBetweenLooks, so a receiver that answers both pings finds it time to look in between.
    static constexpr std::chrono::microseconds kBetweenPings{250};
    static_assert(kBetweenPings >= 10 * kBetweenLooks);
    /// A receiver whose layer runs, but that has not come for any message, is taken to wait after this many answers:
    /// perhaps one of its threads waits, while another one makes calls.
    static constexpr std::size_t kMany = 100;

    enum class Answer : std::uint8_t {
        unknown,  ///< or the receiver is late: ask again
        ping,     ///< send one, and ask again
        waits     ///< the receiver waits in the MPI
    };

    /// The receiver has receives for `count` more pings.
    void listens(const std::size_t count) noexcept { _listens += count; }
    /// The receiver's layer has run after the receiver had answered a ping, and has one more receive. The layer speaks
    /// at once of all pings that were answered by then: a ping of which it says nothing was answered later. `takes`:
    /// the receiver is taking a message of this process, which proceeds in every call in which its layer runs, however
    /// slowly.
    void looked(const bool takes = false) noexcept {
        ++_listens;
        _unseen -= _unseen > 0 ? 1 : 0;
        if (takes) {
            _answers = 0;
        }
    }
    /// The receiver's MPI has failed: the receiver cannot be asked any more, and is taken to wait.
    void fell_silent() noexcept { _silent = true; }
    /// The ping was answered. Before judge() follows, the caller must have taken in whatever the receiver had said
    /// before its answer.
    void answered(const Clock::time_point now) noexcept {
        _asked = false;
        _last_answer = now;
        ++_answers;
        ++_unseen;
    }

    /// Whether the receiver waits in the MPI. After Answer::ping, this object assumes that a ping is under way.
    /// @param since  when the receiver last took a fragment
    /// @param time   how long to expect that the receiver takes the next one, before it is asked, and before it is
    ///               asked again after its layer has spoken
    [[nodiscard]] Answer judge(const Clock::time_point since, const Clock::time_point now,
                               const Clock::duration time) noexcept {
        if (since != _since) {
            _since = since;
            _answers = 0;  // _unseen stays: the layer has still not run since those answers
        }
        if (now - since <= time) {
            return Answer::unknown;
        }
        if (_unseen >= kPings || _answers >= kMany || _silent) {
            return Answer::waits;
        }
        const Clock::duration pause = _unseen == 0 ? std::max<Clock::duration>(time, kBetweenPings) : kBetweenPings;
        if (_asked || _listens == 0 || now - _last_answer <= pause) {
            return Answer::unknown;
        }
        --_listens;
        _asked = true;
        return Answer::ping;
    }
    /// The ping could not be sent.
    void not_sent() noexcept { _asked = false; }

  private:
    std::size_t _listens = 0;
    bool _asked = false;  ///< a ping is under way
    bool _silent = false;
    std::size_t _answers = 0;  ///< answers since the last fragment
    std::size_t _unseen = 0;   ///< answers of which the receiver's layer has said nothing
    Clock::time_point _since{}, _last_answer{};
};

}  // namespace awaken::protocol
