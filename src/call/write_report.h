// The report at the end: see report/report.h.
#pragma once

namespace awaken::AWAKEN_ABI {

class Layer;

/// Gathers the figures of all ranks and writes them; at ranks other than the first one nothing remains to be done then.
/// `world_model`: MPI_COMM_WORLD is there. Before MPI goes down.
void write_report(Layer& owner, bool world_model);

}  // namespace awaken::AWAKEN_ABI
