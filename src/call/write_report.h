// SPDX-License-Identifier: Apache-2.0
// The report at the end: see report/report.h.
#pragma once

namespace awaken::AWAKEN_ABI {

class Layer;

/// Gathers the figures of all ranks and writes them. Only the first rank has anything to write. `world_model`:
/// MPI_COMM_WORLD exists. Called before MPI goes down.
void write_report(Layer& owner, bool world_model);

}  // namespace awaken::AWAKEN_ABI
