// SPDX-License-Identifier: Apache-2.0
#include "report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "program.h"

namespace ghost_exchange {

namespace {

struct OverRanks {
    double max = 0;
    double mean = 0;
};

/// Collective.
OverRanks over_ranks(double value) {
    OverRanks result;
    MPI_Allreduce(&value, &result.max, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&value, &result.mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    result.mean /= apps::size_of_world();
    return result;
}

void print(const char* format, auto... values) {
    if (apps::rank_of_world() == 0) {
        std::printf(format, values...);
    }
}

void print_times(const Simulation& simulation, const Options& options, double total) {
    const Times& times = simulation.times();
    const AllocationCosts buffers = simulation.buffer_costs();
    const double others = options.iterations > 1
                              ? (times.stencil - times.first_stencil) / static_cast<double>(options.iterations - 1)
                              : 0;
    struct Row {
        const char* name;
        double seconds;
    };
    const std::array<Row, 10> rows = {{{"stencil", times.stencil},
                                       {"boundary condition", times.boundary},
                                       {"ghost cell", times.ghost},
                                       {"total", total},
                                       {"all steps", times.loop},
                                       {"allocation of the field", times.allocation},
                                       {"allocation of buffers", buffers.seconds},
                                       {"initial values", times.initial},
                                       {"first step's stencil", times.first_stencil},
                                       {"other steps' stencil", others}}};
    print("# %-26s %12s %12s\n", "seconds", "max", "mean");
    for (const Row& row : rows) {
        const OverRanks seconds = over_ranks(row.seconds);
        print("# %-26s %12.6f %12.6f\n", row.name, seconds.max, seconds.mean);
    }
    print("# buffers were allocated %lld times on rank 0; the initial values were the first touch, by the %s\n",
          buffers.calls, name_of(options.first_touch).c_str());
}

/// Each cell is read once and written once where caches do their work: 16 bytes.
void print_stencil(const Simulation& simulation, const Options& options, const Machine& machine) {
    const Times& times = simulation.times();
    const Block& block = simulation.block();
    if (options.iterations == 0) {
        return print("# stencil: no step\n");
    }
    // Beside other work, only the GPU knows how long a kernel took, and for which cells. There is none where a block is
    // too small for more than a frame and the CPU makes that.
    const double cells =
        static_cast<double>(block.isize) * static_cast<double>(block.jsize) * static_cast<double>(options.iterations);
    const KernelTime steps = times.kernels.seconds > 0 ? times.kernels : KernelTime{times.stencil, cells};
    const double gb_s = steps.seconds > 0 ? 16.0 * steps.cells / steps.seconds / 1e9 : 0;
    const double lowest = -over_ranks(-gb_s).max;
    const Limit limit = machine.memory_limit();
    if (limit.gb_s > 0) {
        print("# stencil: %.1f GB/s on the slowest rank, %.1f %% of the memory limit of %.1f GB/s (%s)\n", lowest,
              100 * lowest / limit.gb_s, limit.gb_s, limit.source.c_str());
    } else {
        print("# stencil: %.1f GB/s on the slowest rank; the memory limit is unknown\n", lowest);
    }
}

void print_exchange(const Simulation& simulation, const Options& options, const Machine& machine,
                    std::optional<double> fixed_us) {
    const Index updates = options.iterations + 1;  // one before the first step
    const double us = over_ranks(simulation.times().ghost / static_cast<double>(updates) * 1e6).max;
    const double bytes = over_ranks(static_cast<double>(simulation.block().bytes_sent())).max;
    if (!fixed_us) {
        print("# ghost cell: %.2f us an update of %.0f bytes; not timed for smaller blocks, which the halo fills\n", us,
              bytes);
        return;
    }
    const double fixed = over_ranks(*fixed_us).max;
    const Limit link =
        options.link_gb_s > 0 ? Limit{options.link_gb_s, "--link"} : machine.link_limit(simulation.block());
    if (link.gb_s > 0) {
        print(
            "# ghost cell: %.2f us an update; %.2f us for the smallest blocks + %.0f bytes at %.1f GB/s (%s) = %.2f "
            "us\n",
            us, fixed, bytes, link.gb_s, link.source.c_str(), fixed + bytes / link.gb_s * 1e-3);
    } else {
        print(
            "# ghost cell: %.2f us an update; %.2f us for the smallest blocks, and %.0f bytes over a link that is "
            "unknown (--link)\n",
            us, fixed, bytes);
    }
}

}  // namespace

void print_result(const Times& times, double total) {
    print("GhostExchange_ArrayAssign_HIP Timing is stencil %f boundary condition %f ghost cell %lf total %f\n",
          times.stencil, times.boundary, times.ghost, total);
}

void print_report(const Options& options, const Simulation& simulation, const Machine& machine, double total,
                  std::optional<double> fixed_us) {
    const Block& block = simulation.block();
    print("# %lld x %lld cells on %d x %d ranks, halo %lld %s corners, %lld iterations\n", block.imax, block.jmax,
          block.grid.x, block.grid.y, block.nhalo, block.corners ? "with" : "without", options.iterations);
    print("# memory %s, exchange %s, buffers %s\n", name_of(options.memory).c_str(), name_of(options.exchange).c_str(),
          options.buffers_per_call ? "per call" : "once");
    print_times(simulation, options, total);
    print_stencil(simulation, options, machine);
    print_exchange(simulation, options, machine, fixed_us);
    if (apps::rank_of_world() == 0) {
        std::fflush(stdout);
    }
}

}  // namespace ghost_exchange
