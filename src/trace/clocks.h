// SPDX-License-Identifier: Apache-2.0
// Making the clocks of ranks comparable. This is arithmetic only; the caller makes the round trips.
//
// A rank asks rank 0 for its time. Rank 0 answers somewhere between the question and the arrival of the answer. The
// shortest round trip says most, and the offset taken from its middle is off by at most half of it (Cristian's
// algorithm). Two such estimates, at the begin and the end of a job, give the drift in between.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace awaken::trace {

/// Times in nanoseconds of the asking rank's clock, except for rank 0's answer.
struct RoundTrip {
    std::uint64_t asked_ns = 0;
    std::uint64_t answer_ns = 0;  ///< of rank 0's clock
    std::uint64_t heard_ns = 0;
};

/// The number to add to this rank's clock to get rank 0's clock, at one time.
struct Offset {
    std::uint64_t at_ns = 0;  ///< of this rank's clock
    std::int64_t offset_ns = 0;
    std::uint64_t uncertainty_ns = 0;  ///< the true offset is at most this far away
};

/// Takes the quickest of the round trips. There must be at least one.
[[nodiscard]] Offset estimate_offset(const std::vector<RoundTrip>& trips) noexcept;

/// Converts this rank's times to those of rank 0.
struct Alignment {
    bool shared = false;  ///< both ranks read the same clock: the offset is 0, whatever the estimates say
    std::optional<Offset> first, last;

    /// The offset at a time of this rank's clock. It is interpolated between the estimates and continued beyond them.
    /// With one estimate it is that one; with none it is 0.
    [[nodiscard]] std::int64_t offset_at(std::uint64_t time_ns) const noexcept;
    [[nodiscard]] std::int64_t aligned(const std::uint64_t time_ns) const noexcept {
        return static_cast<std::int64_t>(time_ns) + offset_at(time_ns);
    }
};

/// Names the clock that CLOCK_MONOTONIC reads in this process, by the running kernel and the time namespace. Two
/// processes with equal names read the same clock. Empty where the clock cannot be named.
[[nodiscard]] std::string clock_name();

}  // namespace awaken::trace
