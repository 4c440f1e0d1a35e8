// SPDX-License-Identifier: Apache-2.0
// What the probe can be asked for. Each command is run by all ranks of a job, and tells what it finds by records.
//
// Compiled once per MPI ABI.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "mpi/placement.h"

namespace awaken::probe {

/// What the words after `awaken-probe COMMAND` say.
struct Arguments {
    std::vector<std::string> functions;  ///< --functions: those of the matrix; empty for all
    std::vector<bench::BufferKind> kinds = {bench::BufferKind::host, bench::BufferKind::device,
                                            bench::BufferKind::managed, bench::BufferKind::pool};  ///< --kinds
    bool large_counts = false;                  ///< --large-counts: also MPI_Send_c and its kin
    std::size_t first = 0;                      ///< --from: the first cell to be tried
    std::size_t end = SIZE_MAX;                 ///< --to: the first cell that is not
    std::size_t bytes = std::size_t{64} << 20;  ///< --bytes: of the messages and copies whose bandwidth is measured
    int samples = 5;                            ///< --samples: per measurement; the median is told
    std::vector<int> gpu_map;                   ///< --gpu-map: device of each node-local rank
};

/// A job as its commands see it.
struct Job {
    MPI_Comm communicator = MPI_COMM_NULL;  ///< its errors are returned
    int rank = 0;
    int ranks = 0;
    bench::Placement placement;
    std::string no_gpu;  ///< why this rank uses no GPU; empty when it does
};

/// Whether all ranks have a GPU; rank 0 says why the command is not carried out otherwise. Collective.
[[nodiscard]] bool all_have_gpus(const Job& job);
/// All ranks are through: {"record": "done"}.
void finish(const Job& job);

/// One record {"record": "rank"} for each rank: where it runs, its GPU and its MPI; and one {"record": "libraries"}.
void tell_facts(const Job& job);

/// The conformance matrix: {"record": "plan"} with the cells in order, and for each of them {"record": "begin"} and
/// {"record": "end"} with its status, with {"record": "problem"} of ranks that have one between the two. A cell after
/// whose failure the ranks no longer agree ends the job.
void try_cells(const Job& job, const Arguments& arguments);

/// Between the GPUs of neighbouring ranks: {"record": "ipc"}, {"record": "peer"} and {"record": "host_path"}.
void try_hardware(const Job& job, const Arguments& arguments);

/// Messages between the ranks of each ordered pair: {"record": "pair"} with bandwidth, bandwidth in both directions at
/// once, latency, and whether the data arrived.
void measure_pairs(const Job& job, const Arguments& arguments);

/// Sums on a communicator that asks for the order of the ranks: {"record": "sums"} for host and for device memory.
void try_sums(const Job& job, const Arguments& arguments);

}  // namespace awaken::probe
