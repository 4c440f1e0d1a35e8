// SPDX-License-Identifier: Apache-2.0
// The field on one rank: its two arrays, who computes on it, who exchanges its halo, and the order of the steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "array.h"
#include "compute.h"
#include "decomposition.h"
#include "halo_exchange.h"
#include "machine.h"
#include "options.h"

namespace ghost_exchange {

/// Seconds on this rank.
struct Times {
    double stencil = 0;        ///< steps, each waited for
    double boundary = 0;       ///< boundary conditions
    double ghost = 0;          ///< halo exchanges: packing, messages, unpacking
    double loop = 0;           ///< all steps, from the first to the last
    double allocation = 0;     ///< of the two arrays
    double initial = 0;        ///< writing the initial values, which touches all memory for the first time
    double first_stencil = 0;  ///< the first step's
    KernelTime kernels;        ///< what the GPU did of the steps
};

class Simulation {
  public:
    /// Allocates the field. Ends all ranks with exit_misuse where that cannot be had on one. The machine is
    /// used as long as the simulation is there. Collective.
    Simulation(const std::string& program, const Options& options, const Block& block, const Machine& machine);

    /// Sets the owned cells to u[i] * v[j], u and v being indexed by the cells' places in the global field, and the
    /// halo to what no cell holds (not a number), so that a cell that is read before it was written shows.
    void set(const std::vector<double>& u, const std::vector<double>& v);
    /// The whole array of the field, halo included.
    void set(const std::vector<double>& cells);
    [[nodiscard]] std::vector<double> cells() const;

    /// Boundary conditions and one exchange. Collective.
    void update_halo();
    /// Updates the halo, then makes the steps, each followed by a new halo. Collective.
    void run(Index iterations);

    [[nodiscard]] const Block& block() const { return _block; }
    [[nodiscard]] const Times& times() const { return _times; }
    [[nodiscard]] AllocationCosts buffer_costs() const { return _exchange->allocation_costs(); }

  private:
    void boundary();
    /// The rest of the boundary condition that was started on x; its time counts.
    void finish_boundary();
    void exchange();
    void step(bool first);
    void overlapped_step(bool first);
    void queued_step(bool first, bool waits);
    /// Counts a step that took so long.
    void count_step(double seconds, bool first);

    const Options _options;
    const Block _block;
    Times _times;
    std::unique_ptr<Compute> _compute;
    std::unique_ptr<Compute> _communication;  ///< packs and unpacks while _compute is busy; null: _compute does
    std::unique_ptr<HaloExchange> _exchange;
    Array _x;
    Array _xnew;
};

}  // namespace ghost_exchange
