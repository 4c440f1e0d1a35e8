// Where a receiver is that takes no fragment of what it is sent: in the MPI itself, or only late.
//
// One that waits in the MPI takes no fragments and may be waiting for the sender, which must not wait for it in turn.
// Of one that computes, or makes other calls first, a sender expects that it comes. The sender cannot see which it is,
// but can ask the receiver's MPI, by synchronous messages of no bytes (pings), one after the other: they are answered
// whenever the process is in any MPI call. When its layer runs, as it does in all calls that the layer serves, it finds
// the ping that was answered and says so (looked()), at the latest when such a call ends. A process that answers one
// ping after the other, and whose layer says nothing between them, waits in the MPI.
//
// What decides is what has happened, and not how long it took: a process can be kept from the processor for any time,
// at any place, and so can this one. Each answer proves that the receiver has asked its MPI once more since it gave the
// last one. A layer that runs asks the MPI only a few times before it looks for pings, and whatever stops it, and how
// often, it does not ask more. So after more answers than that there is no layer on its way to say something. Times
// only say when it is worth while to ask, and that a layer which runs between two answers finds it time to look.
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

    /// Pings that a receiver can answer without its layer, which is what it takes. More than a layer asks the MPI
    /// between two looks for pings (Network::look() and all loops that wait), and more than a call of the MPI that has
    /// nothing left to wait for.
    static constexpr std::size_t kPings = 8;
    /// A layer that runs looks for pings as often. Seldom enough not to be felt.
    static constexpr std::chrono::microseconds kBetweenLooks{20};
    /// At least so long after an answer the next ping leaves. Much longer than the above: whoever answers both finds it
    /// time to look in between.
    static constexpr std::chrono::microseconds kBetweenPings{250};
    static_assert(kBetweenPings >= 10 * kBetweenLooks);
    /// One whose layer does run, and that has not come for any message, is taken to wait after so many answers: perhaps
    /// one of its threads does, while another one makes calls.
    static constexpr std::size_t kMany = 100;

    enum class Answer : std::uint8_t {
        unknown,  ///< or late: ask again
        ping,     ///< send one, and ask again
        waits     ///< in the MPI
    };

    /// The receiver has receives for `count` pings more.
    void listens(const std::size_t count) noexcept { _listens += count; }
    /// Its layer has run, after it had answered a ping, and has one receive more. It says so at once of all pings that
    /// it had answered by then: those of which it says nothing came later. `takes`: it is taking a message of this
    /// process's, which goes on in whatever call its layer runs, however slowly.
    void looked(const bool takes = false) noexcept {
        ++_listens;
        _unseen -= _unseen > 0 ? 1 : 0;
        if (takes) {
            _answers = 0;
        }
    }
    /// Its MPI has failed it: it cannot be asked as before, and is taken to wait.
    void fell_silent() noexcept { _silent = true; }
    /// The ping was answered. Whatever the receiver had said before must have been heard when this is followed by
    /// judge().
    void answered(const Clock::time_point now) noexcept {
        _asked = false;
        _last_answer = now;
        ++_answers;
        ++_unseen;
    }

    /// Whether it waits in the MPI. After Answer::ping a ping is taken to be under way.
    /// @param since  when it has last taken a fragment
    /// @param time   how long to expect that it takes the next one, before it is asked, and asked again after its layer
    ///               has spoken
    [[nodiscard]] Answer judge(const Clock::time_point since, const Clock::time_point now,
                               const Clock::duration time) noexcept {
        if (since != _since) {
            _since = since;
            _answers = 0;  // that its layer has not run since it answered is as true as before
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
    std::size_t _answers = 0;  ///< since the last fragment
    std::size_t _unseen = 0;   ///< of which its layer has said nothing
    Clock::time_point _since{}, _last_answer{};
};

}  // namespace awaken::protocol
