// SPDX-License-Identifier: Apache-2.0
// The clock of all measurements: monotonic, 25 ns a reading.
#pragma once

#include <chrono>

namespace awaken::bench {

/// Seconds since some moment in the past.
[[nodiscard]] inline double now() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The seconds that `work()` takes.
template <typename Work>
[[nodiscard]] double seconds_of(const Work& work) {
    const double start = now();
    work();
    return now() - start;
}

}  // namespace awaken::bench
