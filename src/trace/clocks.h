// Making the clocks of ranks comparable: arithmetic only, how round trips are made is the caller's affair.
//
// A rank asks rank 0 for its time: the answer was given somewhere between the question and its arrival. The round trip
// that took least says most, and the offset taken from its middle is off by half of it at most (Cristian's algorithm).
// Two such estimates, at the begin and the end of a job, give the drift in between.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace awaken::trace {

/// Times in nanoseconds: of the asking rank's clock, but for what rank 0 answered.
struct RoundTrip {
    std::uint64_t asked_ns = 0;
    std::uint64_t answer_ns = 0;  ///< of rank 0's clock
    std::uint64_t heard_ns = 0;
};

/// What to add to this rank's clock to have rank 0's, as it was at one time.
struct Offset {
    std::uint64_t at_ns = 0;  ///< of this rank's clock
    std::int64_t offset_ns = 0;
    std::uint64_t uncertainty_ns = 0;  ///< the true offset is at most so far away
};

/// From the quickest of the round trips, of which there must be one.
[[nodiscard]] Offset estimate_offset(const std::vector<RoundTrip>& trips) noexcept;

/// This rank's times as rank 0's.
struct Alignment {
    bool shared = false;  ///< it is one and the same clock: nothing is to be added, whatever the estimates say
    std::optional<Offset> first, last;

    /// The offset that holds at a time of this rank's clock: interpolated between the estimates and continued beyond
    /// them; the only one where there is one; 0 where there is none.
    [[nodiscard]] std::int64_t offset_at(std::uint64_t time_ns) const noexcept;
    [[nodiscard]] std::int64_t aligned(const std::uint64_t time_ns) const noexcept {
        return static_cast<std::int64_t>(time_ns) + offset_at(time_ns);
    }
};

/// Names the clock that CLOCK_MONOTONIC is in this process: the running kernel and the time namespace. Two processes
/// with equal names read the same clock. Empty where that cannot be told.
[[nodiscard]] std::string clock_name();

}  // namespace awaken::trace
