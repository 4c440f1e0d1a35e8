// SPDX-License-Identifier: Apache-2.0
#include "ipc/mapping_account.h"

#include <algorithm>

namespace awaken::ipc {

namespace {

// Measured on an H200 (docs/decisions/0040-first-messages.md): opening takes 0.2 ms up to 64 MiB, and 5.2 us for each
// further MiB.
constexpr std::chrono::nanoseconds kOpening{200'000}, kOpeningPerMiB{5'200};
/// Receivers close mappings that were not used for this long (transfer/mappings.h).
constexpr std::chrono::seconds kForgotten{5};
/// More than most programs send from in turn. Those beyond begin again.
constexpr std::size_t kMostEntries = 64;

}  // namespace

bool MappingAccount::pays(const int peer, const gpu::PointerInfo& allocation, const Clock::time_point now) {
    const std::scoped_lock lock(_mutex);
    auto entry = std::find_if(_entries.begin(), _entries.end(),
                              [&](const Entry& each) { return each.peer == peer && each.allocation == allocation.id; });
    if (entry == _entries.end()) {
        if (_entries.size() == kMostEntries) {
            _entries.pop_back();
        }
        entry = _entries.insert(_entries.end(), {peer, allocation.id, {}, now});
    } else if (now - entry->used > kForgotten) {
        entry->spent = {};
    }
    entry->used = now;
    std::rotate(_entries.begin(), entry, entry + 1);
    const auto more = static_cast<std::int64_t>((allocation.size - kCheap) >> 20);
    return _entries.front().spent >= kOpening + kOpeningPerMiB * more;
}

void MappingAccount::copied(const int peer, const gpu::PointerInfo& allocation, const Clock::duration duration) {
    const std::scoped_lock lock(_mutex);
    for (Entry& each : _entries) {
        if (each.peer == peer && each.allocation == allocation.id) {
            each.spent += duration;
            return;
        }
    }
}

}  // namespace awaken::ipc
