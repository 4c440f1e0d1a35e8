// SPDX-License-Identifier: Apache-2.0
// Where the ranks are: on which host, cores, memory node and GPU. That decides about a factor of three in time, and a
// launcher's defaults are often wrong.
#pragma once

#include <string>

namespace ghost_exchange {

/// Prints a line for each rank, and a warning where ranks share a GPU; on rank 0. `device` is this rank's, -1 for none.
/// Collective.
void print_affinity(int device);

}  // namespace ghost_exchange
