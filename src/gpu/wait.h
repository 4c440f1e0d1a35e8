// SPDX-License-Identifier: Apache-2.0
// Waiting for a GPU by asking it.
#pragma once

#include <sched.h>

namespace awaken::gpu {

/// Calls `query` until it answers something else than `not_ready`, and returns that answer. Yields the processor
/// between calls once the answer takes a while, because ranks often share cores with other ranks.
template <typename Query>
int poll_until_over(const Query& query, int not_ready) noexcept {
    constexpr int kEagerRounds = 64;
    for (int round = 0;; ++round) {
        const int result = query();
        if (result != not_ready) {
            return result;
        }
        if (round >= kEagerRounds) {
            ::sched_yield();
            round = kEagerRounds;
        }
    }
}

}  // namespace awaken::gpu
