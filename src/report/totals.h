// SPDX-License-Identifier: Apache-2.0
// Process-wide totals: per path, for awaken_get_statistics, and of copies. They are cheap enough to be kept always.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "report/report.h"

namespace awaken::report {

struct Totals {
    struct Sum {
        std::atomic<std::uint64_t> calls{0};
        std::atomic<std::uint64_t> bytes{0};

        void add(const std::uint64_t more_calls, const std::uint64_t more_bytes) noexcept {
            calls.fetch_add(more_calls, std::memory_order_relaxed);
            bytes.fetch_add(more_bytes, std::memory_order_relaxed);
        }
    };
    std::array<Sum, kPathCount> paths;
    std::array<Sum, kMoverCount> copies;

    void add(const Path path, const std::uint64_t bytes) noexcept {
        paths[static_cast<std::size_t>(path)].add(1, bytes);
    }
    void add(const Mover mover, const std::uint64_t bytes, const std::uint64_t count = 1) noexcept {
        copies[static_cast<std::size_t>(mover)].add(count, bytes);
    }
};

inline Totals totals;

/// Counts a copy that was given to a GPU, unless that refused it. Returns the status.
template <typename Status>
Status counted(const Mover mover, const std::uint64_t bytes, Status status) noexcept {
    if (status.ok()) {
        totals.add(mover, bytes);
    }
    return status;
}
/// This process has printed its account, or handed it to the rank that prints those of all.
inline std::atomic<bool> given{false};
inline thread_local Path last_path = Path::native;

}  // namespace awaken::report
