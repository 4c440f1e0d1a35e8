// SPDX-License-Identifier: Apache-2.0
// Tells the other ranks of this node that this one traces. All ranks have to, and a rank that does not takes part in
// nothing of the trace: without this, nobody would tell it.
#pragma once

#include <string>

namespace awaken::trace {

/// From now on, and as long as this process lives, is_announced() is true in processes of this node and user.
/// @param job names the job alike in all of its ranks (node::Job::key).
void announce(const std::string& job) noexcept;

/// Whether some process of the job has said that it traces, before MPI_Init: what MPI_Init is over for has seen it.
[[nodiscard]] bool is_announced(const std::string& job) noexcept;

}  // namespace awaken::trace
