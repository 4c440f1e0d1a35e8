// SPDX-License-Identifier: Apache-2.0
// Which GPU a rank uses.
#pragma once

#include <mpi.h>

#include <string>

#include "engine/options.h"
#include "gpu/gpu.h"

namespace awaken::bench {

struct Placement {
    gpu::Runtime* gpu = &gpu::none();
    int device = -1;      ///< -1 without a GPU
    int local_rank = -1;  ///< on the node; -1 when the launcher does not tell, until MPI does
};

/// Before MPI_Init: finds the GPU runtime that the options ask for and makes a device current, so that an MPI which
/// looks at the current device when it starts sees the right one. The node-local rank is what the launcher's variables
/// say; visible-device settings have been honoured by the GPU runtime, whose numbers these are. Throws Error.
[[nodiscard]] Placement place_before_init(const Options& options);

/// After MPI_Init: corrects the local rank by MPI_Comm_split_type, and says on stderr which ranks share a GPU.
/// Collective. Throws Error at single ranks.
void verify_placement(Placement& placement, const Options& options, MPI_Comm communicator);

[[nodiscard]] std::string host_name();

/// "host17: rank 3 on GPU 1 (NVIDIA H200, 0000:1b:00.0)"
[[nodiscard]] std::string describe_placement(const Placement& placement, int rank);

}  // namespace awaken::bench
