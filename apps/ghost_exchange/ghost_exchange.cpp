// SPDX-License-Identifier: Apache-2.0
// A five-point average of a field that is spread over the ranks' GPUs, and the exchange of the blocks' halos.
//
// Most simulations on grids do this: compute a step, then swap the cells at the borders with the neighbours. The
// program shows where the field can lie (--memory) and how its borders can travel (--exchange), with the same bits as
// the result, so that each way's costs can be compared. Read it in this order:
//   decomposition.h     which rank has which cells, and what travels
//   kernels.hip         the step, the boundary conditions, packing and unpacking
//   compute.h           who computes: the CPU, or kernels on memory of any kind
//   halo_exchange.h     the nine exchanges, a file of a hundred lines each
//   simulation.cpp      the order of the steps, with and without overlap, and without the CPU
//   checks.h            how it is known that the result is right
#include <algorithm>
#include <cstdio>
#include <optional>

#include "affinity.h"
#include "checks.h"
#include "machine.h"
#include "options.h"
#include "program.h"
#include "ranges.h"
#include "report.h"
#include "simulation.h"

namespace {

using namespace ghost_exchange;

constexpr auto program = "ghost_exchange";

/// This rank's block. Ends all ranks with exit_misuse where the field cannot be spread over them. Collective.
Block decompose(const Options& options) {
    std::string problem;
    const ProcessGrid grid = choose_grid(options.grid, apps::size_of_world(), options.imax, options.jmax, problem);
    apps::leave_if(program, problem);
    const Block block =
        block_of(apps::rank_of_world(), grid, options.imax, options.jmax, options.nhalo, options.corners);
    apps::leave_if(program, problem_of(block));
    return block;
}

/// What an update costs when next to nothing travels: its launches, waits and messages. In microseconds, the mean of
/// some after the first ones. Nothing where the halo is so wide that the smallest blocks are no smaller than these:
/// much would travel then, and a second field may not fit into the memory. Collective.
std::optional<double> fixed_cost_us(const Options& options, const Block& block, const Machine& machine) {
    constexpr Index cells_of_a_side = 8;
    const Index cells = std::max(cells_of_a_side, block.nhalo);
    // A narrow halo always leaves them small.
    if (block.nhalo > cells_of_a_side) {
        // Of the smallest of all blocks, so that all ranks agree.
        const Index halos = 2 * block.nhalo;
        const Index field = (block.imax / block.grid.x + halos) * (block.jmax / block.grid.y + halos);
        if ((block.nhalo + halos) * (block.nhalo + halos) > field / 4) {
            return {};
        }
    }
    const apps::RangeOfOtherWork range("smallest blocks");
    const Block small = block_of(apps::rank_of_world(), block.grid, cells * block.grid.x, cells * block.grid.y,
                                 block.nhalo, block.corners);
    Simulation simulation(program, options, small, machine);
    const Factors initial = gaussian(small);
    simulation.set(initial.u, initial.v);
    constexpr int warm_up = 3;
    constexpr int updates = 20;
    for (int i = 0; i < warm_up; ++i) {
        simulation.update_halo();
    }
    const double before = simulation.times().ghost;
    for (int i = 0; i < updates; ++i) {
        simulation.update_halo();
    }
    return (simulation.times().ghost - before) / updates * 1e6;
}

/// Returns whether all that was checked is right. Collective.
bool run(const Options& options) {
    const Block block = decompose(options);
    // Not after all steps have been made.
    if (!options.write.empty()) {
        apps::leave_if(program, try_to_write(options.write));
    }
    const Machine machine(program, options);
    print_affinity(machine.device());
    const Factors initial = gaussian(block);

    MPI_Barrier(MPI_COMM_WORLD);
    const double start_time = MPI_Wtime();
    Simulation simulation(program, options, block, machine);
    simulation.set(initial.u, initial.v);
    simulation.run(options.iterations);
    const double total = MPI_Wtime() - start_time;

    print_result(simulation.times(), total);
    print_report(options, simulation, machine, total, fixed_cost_us(options, block, machine));
    if (options.checksum || options.check) {
        const std::uint64_t sum = checksum(block, simulation.cells());
        if (apps::rank_of_world() == 0) {
            std::printf("# checksum: 0x%016llx\n", static_cast<unsigned long long>(sum));
        }
    }
    if (options.ranges) {
        apps::print_ranges(program);
    }
    if (options.print) {
        print_field(block, simulation.cells());
    }
    if (!options.write.empty()) {
        apps::leave_if(program, write_field(block, simulation.cells(), options.write));
    }
    return !options.check || check(simulation, initial, options.iterations);
}

}  // namespace

int main(int argc, char** argv) {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, thread_level(argc, argv), &provided);
    const Options options = read_options(argc, argv, program);
    const bool right = run(options);
    MPI_Finalize();
    return right ? EXIT_SUCCESS : apps::exit_wrong_data;
}
