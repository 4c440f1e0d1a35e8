// SPDX-License-Identifier: Apache-2.0
// What is printed when the field has been computed.
#pragma once

#include <optional>

#include "machine.h"
#include "simulation.h"

namespace ghost_exchange {

/// The line that scripts read: rank 0's seconds, in the original's form.
void print_result(const Times& times, double total);

/// Everything else, each line marked with #: the times over all ranks, the bandwidth of the stencil beside that of the
/// memory, and the exchange beside latency and bandwidth. `fixed_us` is the time of an update whose messages are too
/// small to matter, where that was measured, which is alike at all ranks. Collective.
void print_report(const Options& options, const Simulation& simulation, const Machine& machine, double total,
                  std::optional<double> fixed_us);

}  // namespace ghost_exchange
