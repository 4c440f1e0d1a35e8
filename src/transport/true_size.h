// SPDX-License-Identifier: Apache-2.0
// The size that a probe has to report for a message.
#pragma once

#include <cstdint>
#include <optional>

namespace awaken::transport {

/// What a probe can learn at one moment about the message behind an RTS's length.
struct TrueSize {
    std::optional<std::uint64_t> bytes;  ///< nothing when no RTS of that length is under way to this process
    /// Changes whenever a message of that length comes or goes. Two looks with the same version saw the same message,
    /// whatever other threads have received meanwhile.
    std::uint64_t version = 0;
    bool may_come = false;  ///< the sender may have announced the size, and the notice is not here yet: look again
};

}  // namespace awaken::transport
