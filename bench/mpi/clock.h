// The clock of all measurements: monotonic, 25 ns a reading.
#pragma once

#include <chrono>

namespace awaken::bench {

/// Seconds since some moment in the past.
[[nodiscard]] inline double now() noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace awaken::bench
