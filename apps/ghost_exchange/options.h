// SPDX-License-Identifier: Apache-2.0
// The command line.
#pragma once

#include <string>

#include "decomposition.h"

namespace ghost_exchange {

/// Where the field lies.
enum class Memory {
    host,     ///< malloc; the CPU computes, and there is no GPU
    staged,   ///< malloc; copied to the GPU for each step and back: the first thing that one would write
    managed,  ///< one address for the CPU and the GPU; pages go where they are used
    pinned,   ///< host memory that kernels read and write over the bus
    system,   ///< malloc, and kernels use it all the same (HMM, XNACK)
    device,   ///< the GPU's own memory, allocated explicitly
};

/// How the halo is exchanged.
enum class Exchange {
    packed,      ///< a kernel packs the columns; device pointers go into MPI
    datatype,    ///< MPI_Type_vector describes the columns: nothing to pack in the program
    neighbour,   ///< the same types in MPI_Neighbor_alltoallw on a Cartesian communicator
    persistent,  ///< as packed, with requests that are made once and started each time
    overlap,     ///< as packed, while the cells that need no halo are computed
    staged,      ///< as packed, copied to buffers of host memory by hand: for an MPI without GPU support
    ccl,         ///< as packed, by grouped sends and receives of NCCL or RCCL, in the order of a stream
    enqueue,     ///< as packed, by MPI's stream API in the order of the kernels: the CPU waits for nothing
    graph,       ///< the same, captured into a graph that each step launches
};

enum class Processor { cpu, gpu };

struct Options {
    Index imax = 2000;
    Index jmax = 2000;
    ProcessGrid grid;  ///< 0: to be chosen
    Index nhalo = 2;
    Index iterations = 1000;
    bool corners = false;
    bool timing = false;  ///< accepted and without effect, as in the original
    bool print = false;
    Memory memory = Memory::device;
    bool buffers_per_call = false;
    Exchange exchange = Exchange::packed;
    Processor first_touch = Processor::gpu;  ///< who writes the initial values
    bool check = false;
    bool checksum = false;
    bool ranges = false;
    std::string write;     ///< file for the field at the end; empty: none
    double link_gb_s = 0;  ///< per direction, between neighbours; 0: from what is known of the GPU
};

/// Whether the GPU's stream orders the messages among the kernels.
[[nodiscard]] inline bool is_queued(Exchange exchange) {
    return exchange == Exchange::enqueue || exchange == Exchange::graph;
}

/// Whether kernels work on the field where it lies.
[[nodiscard]] inline bool kernels_reach(Memory memory) {
    return memory != Memory::host && memory != Memory::staged;
}

[[nodiscard]] std::string name_of(Memory memory);
[[nodiscard]] std::string name_of(Exchange exchange);
[[nodiscard]] std::string name_of(Processor processor);
/// The level that MPI is to be initialised with, before the command line can be read.
[[nodiscard]] int thread_level(int argc, char** argv);

/// Reads the command line. Ends all ranks with success after --help, and with exit_misuse where it cannot be understood
/// or asks for what does not go together. Collective.
[[nodiscard]] Options read_options(int argc, char** argv, const std::string& program);

}  // namespace ghost_exchange
