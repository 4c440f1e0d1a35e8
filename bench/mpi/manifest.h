// SPDX-License-Identifier: Apache-2.0
// What must be known to compare one run with another.
#pragma once

#include <mpi.h>

#include "engine/result.h"
#include "mpi/benchmark.h"
#include "mpi/placement.h"

namespace awaken::bench {

/// Filled at rank 0, empty elsewhere. Collective.
[[nodiscard]] Manifest make_manifest(const Environment& environment, const Placement& placement,
                                     const std::vector<std::string>& words);

}  // namespace awaken::bench
