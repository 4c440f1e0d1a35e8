// Which processes on this node belong to the same MPI job, told without MPI.
//
// Asking MPI would need a collective call, and nothing obliges every rank of a job to run with the layer: one that does
// not would never take part in it. What the launcher leaves in every rank's environment, or who holds the other end of
// the connection to it, names the job just as well.
#pragma once

#include <string>

namespace awaken::node {

struct Job {
    /// Equal in all processes that were launched together on this node, different in all others. Empty when nothing
    /// tells; then the process is alone.
    std::string key;
    int world_rank = -1;      ///< rank in MPI_COMM_WORLD as the launcher says; -1 when it does not
    int local_ranks = 0;      ///< number of ranks of the job on this node; 0 when unknown
    std::string why_unknown;  ///< why nothing tells, where that is known
    std::string launcher;     ///< what told, for the report: "PMIx namespace", "PMI connection of process 4711"

    [[nodiscard]] bool known() const noexcept { return !key.empty() && world_rank >= 0 && local_ranks > 0; }
};

/// Reads the environment: PMIx, PMI-1 and PMI-2 (Hydra, Slurm), Slurm's and PALS' own variables. A process that was
/// spawned by MPI_Comm_spawn has a job of its own under PMIx, and is alone under PMI.
/// @param chosen_name     names the job by hand, where none of the others helps; empty otherwise.
/// @param pretended_nodes splits the node's ranks into that many blocks which do not know of each
///                        other, to try out on one machine what several nodes do. 0 or 1: no split.
[[nodiscard]] Job find_job(const std::string& chosen_name = {}, int pretended_nodes = 0);

/// A number that no later process with the same id has: its start time in clock ticks since boot; 0 when the process
/// does not exist or cannot be seen.
[[nodiscard]] unsigned long long start_time_of(int pid);

}  // namespace awaken::node
