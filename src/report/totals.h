// SPDX-License-Identifier: Apache-2.0
// Process-wide totals per path, for awaken_get_statistics. They are cheap enough to be kept always.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "report/report.h"

namespace awaken::report {

struct Totals {
    struct PerPath {
        std::atomic<std::uint64_t> calls{0};
        std::atomic<std::uint64_t> bytes{0};
    };
    std::array<PerPath, kPathCount> paths;

    void add(const Path path, const std::uint64_t bytes) noexcept {
        PerPath& entry = paths[static_cast<std::size_t>(path)];
        entry.calls.fetch_add(1, std::memory_order_relaxed);
        entry.bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
};

inline Totals totals;
/// This process has printed its account, or handed it to the rank that prints those of all.
inline std::atomic<bool> given{false};
inline thread_local Path last_path = Path::native;

}  // namespace awaken::report
