// SPDX-License-Identifier: Apache-2.0
// Which processes on this node belong to the same MPI job. Finds out without MPI.
//
// Asking MPI would need a collective call. Some ranks of a job may run without the layer, and they would never take
// part in it. The launcher's variables in every rank's environment name the job just as well, and so does the process
// at the other end of a rank's connection to the launcher.
#pragma once

#include <string>

namespace awaken::node {

struct Job {
    /// Equal in all processes that were launched together on this node, different in all others. Empty when nothing
    /// names the job; then the process is alone.
    std::string key;
    int world_rank = -1;      ///< rank in MPI_COMM_WORLD from the launcher; -1 when it gives none
    int local_ranks = 0;      ///< number of ranks of the job on this node; 0 when unknown
    std::string why_unknown;  ///< why nothing names the job, where that is known
    std::string launcher;     ///< what names the job, for the report: "PMIx namespace", "PMI connection of process 42"

    [[nodiscard]] bool known() const noexcept { return !key.empty() && world_rank >= 0 && local_ranks > 0; }
};

/// Reads the environment: PMIx, PMI-1 and PMI-2 (Hydra, Slurm), the variables of Slurm and of PALS. A process that
/// MPI_Comm_spawn has started has a job of its own under PMIx, and is alone under PMI.
/// @param chosen_name     names the job by hand, where none of the others helps; empty otherwise.
/// @param pretended_nodes splits the node's ranks into that many blocks that do not know each other, so that one
///                        machine can show what several nodes do. 0 or 1: no split.
[[nodiscard]] Job find_job(const std::string& chosen_name = {}, int pretended_nodes = 0);

/// A number that no later process with the same id has: the start time of process `pid` in clock ticks since boot. 0
/// when this process cannot read it, for whatever reason.
[[nodiscard]] unsigned long long start_time_of(int pid);

/// Whether the process of this id and start time (0: not known) has ended. True only when the kernel says so: there is
/// no process of that id, another one has it by now, or the one that has it waits only for its parent to take note of
/// its end. Where /proc cannot be read, as without a free descriptor, the first of these decides.
[[nodiscard]] bool has_ended(int pid, unsigned long long start_time);

}  // namespace awaken::node
