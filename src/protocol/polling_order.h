// Which of many operations a waiting call looks at, and when.
//
// Operations that were posted first mostly arrive first. So each round asks the MPI about one operation after the other
// until one has not arrived, and about one more, a different one each time. For the next few operations it looks at
// memory only. It leaves the rest to later rounds, since each look delays the operations that have arrived. Each round
// looks at the operations that have arrived until they are over, and never again after that. So all rounds together
// take a time proportional to the sum of operations and rounds, not to their product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace awaken::protocol {

class PollingOrder {
  public:
    enum class Found : std::uint8_t {
        awaited,  ///< the operation has not arrived
        arrived,  ///< the operation has arrived, and is not over
        over
    };

    explicit PollingOrder(const std::size_t most) {
        _awaited.reserve(most + 1);
        _awaited.push_back({0, kRing, kRing});
    }

    /// Call in the order in which the operations were posted.
    void add(const std::size_t operation, const bool arrived) {
        if (arrived) {
            _arrived.push_back(operation);
            return;
        }
        const std::size_t last = _awaited[kRing].previous, place = _awaited.size();
        _awaited.push_back({operation, kRing, last});
        _awaited[last].next = _awaited[kRing].previous = place;
    }

    /// One round. `look(operation, asks)` looks at one operation and returns what it found. `asks`: it asks the MPI,
    /// and does not only look at memory. True when all operations are over.
    template <class Look>
    [[nodiscard]] bool round(const Look look) {
        // The MPI makes progress when it is asked about any of them.
        const bool none_awaited = _awaited[kRing].next == kRing;
        std::size_t kept = 0;
        for (std::size_t at = 0; at < _arrived.size(); ++at) {
            const std::size_t operation = _arrived[at];
            if (look(operation, none_awaited && at == 0) != Found::over) {
                _arrived[kept++] = operation;
            }
        }
        _arrived.resize(kept);
        bool asks = true;
        std::size_t at = _awaited[kRing].next;
        for (std::size_t looks = 0; at != kRing && looks < kLooks;) {
            const std::size_t place = at;
            at = _awaited[at].next;
            if (!take(place, look(_awaited[place].operation, asks))) {
                ++looks;
                asks = false;
            }
        }
        const std::size_t first = _awaited[kRing].next;  // the MPI was asked about this one
        const std::size_t also = _also == kRing || _also == first ? _awaited[first].next : _also;
        if (also != kRing) {
            _also = _awaited[also].next;
            take(also, look(_awaited[also].operation, true));
        }
        return _arrived.empty() && _awaited[kRing].next == kRing;
    }

  private:
    static constexpr std::size_t kLooks = 8;
    /// Beginning and end of the ring of awaited operations. Each is taken out in constant time.
    static constexpr std::size_t kRing = 0;
    struct Awaited {
        std::size_t operation, next, previous;
    };

    /// True when the operation is no longer awaited.
    bool take(const std::size_t place, const Found found) {
        if (found == Found::awaited) {
            return false;
        }
        const Awaited& gone = _awaited[place];
        if (found == Found::arrived) {
            _arrived.push_back(gone.operation);
        }
        _awaited[gone.previous].next = gone.next;
        _awaited[gone.next].previous = gone.previous;
        if (_also == place) {
            _also = gone.next;
        }
        return true;
    }

    std::vector<std::size_t> _arrived;
    std::vector<Awaited> _awaited;
    std::size_t _also = kRing;  ///< asked about next, beside the first ones
};

}  // namespace awaken::protocol
