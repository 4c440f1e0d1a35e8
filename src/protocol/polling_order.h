// SPDX-License-Identifier: Apache-2.0
// Which of many operations a waiting call looks at, and when.
//
// Operations that were posted first mostly arrive first. So each round asks the MPI about one operation after the other
// until one has not arrived, and about one more, a different one each time. For the next few operations it looks at
// memory only. It leaves the rest to later rounds, since each look delays the operations that have arrived.
//
// What has arrived is mostly over in the same order, too: a GPU does the copies of a stream one after the other. So
// each round looks at the oldest until it has seen a number of them that go on, and at as many others, where the last
// round ended. It never looks again at what is over. So a round takes a time that grows with what has changed, and not
// with the number of operations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/recycled.h"

namespace awaken::protocol {

class PollingOrder {
  public:
    enum class Found : std::uint8_t {
        awaited,  ///< the operation has not arrived
        arrived,  ///< the operation has arrived, and is not over
        over
    };

    explicit PollingOrder(const std::size_t most) {
        _places.reserve(kRings + most);
        _places.push_back({0, kAwaited, kAwaited});
        _places.push_back({0, kArrived, kArrived});
    }

    /// Call in the order in which the operations were posted.
    void add(const std::size_t operation, const bool arrived) {
        _places.push_back({operation, 0, 0});
        append(arrived ? kArrived : kAwaited, _places.size() - 1);
    }

    /// One round. `look(operation, asks)` looks at one operation and returns what it found. `asks`: it asks the MPI,
    /// and does not only look at memory. True when all operations are over.
    template <class Look>
    [[nodiscard]] bool round(const Look look) {
        // The MPI makes progress when it is asked about any of them.
        const bool none_awaited = first(kAwaited) == kAwaited;
        const std::size_t reached = visit(kArrived, first(kArrived), kArrivedLooks, none_awaited, look);
        if (reached != kArrived) {
            _also[kArrived] =
                visit(kArrived, _also[kArrived] == kArrived ? reached : _also[kArrived], kArrivedLooks, false, look);
        }
        visit(kAwaited, first(kAwaited), kAwaitedLooks, true, look);
        const std::size_t asked = first(kAwaited);
        const std::size_t also = _also[kAwaited];
        _also[kAwaited] =
            visit(kAwaited, also == kAwaited || also == asked ? _places[asked].next : also, 1, true, look);
        return first(kArrived) == kArrived && first(kAwaited) == kAwaited;
    }

  private:
    static constexpr std::size_t kAwaitedLooks = 8;
    /// As many copies as a GPU is given at a time.
    static constexpr std::size_t kArrivedLooks = 64;
    /// Beginning and end of the two rings of operations. Each operation is taken out in constant time.
    static constexpr std::size_t kAwaited = 0, kArrived = 1, kRings = 2;
    struct Place {
        std::size_t operation, next, previous;
    };

    [[nodiscard]] std::size_t first(const std::size_t ring) const { return _places[ring].next; }

    void append(const std::size_t ring, const std::size_t place) {
        const std::size_t last = _places[ring].previous;
        _places[place].next = ring;
        _places[place].previous = last;
        _places[last].next = _places[ring].previous = place;
    }

    /// Looks at the operations of a ring from `at` on, until `most` looks have found nothing new. `asks`: asks the MPI
    /// until the first of these. Returns the operation after the last one.
    template <class Look>
    std::size_t visit(const std::size_t ring, std::size_t at, const std::size_t most, bool asks, const Look& look) {
        for (std::size_t in_vain = 0; at != ring && in_vain < most;) {
            const std::size_t place = at;
            at = _places[at].next;
            const Found found = look(_places[place].operation, asks);
            if (found == Found::over || (ring == kAwaited && found == Found::arrived)) {
                take(ring, place, found);
            } else {
                ++in_vain;
                asks = false;
            }
        }
        return at;
    }

    void take(const std::size_t ring, const std::size_t place, const Found found) {
        const Place& gone = _places[place];
        _places[gone.previous].next = gone.next;
        _places[gone.next].previous = gone.previous;
        if (_also[ring] == place) {
            _also[ring] = gone.next;
        }
        if (found == Found::arrived) {
            append(kArrived, place);
        }
    }

    ScratchVector<Place> _scratch;
    std::vector<Place>& _places = *_scratch;
    std::size_t _also[kRings] = {kAwaited, kArrived};  ///< looked at next, beside the first ones of the ring
};

}  // namespace awaken::protocol
