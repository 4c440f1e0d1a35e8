// SPDX-License-Identifier: Apache-2.0
// What must hold whatever the decomposition, the memory and the exchange, and the ways to see the field from outside.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulation.h"

namespace ghost_exchange {

/// The initial state, u[i] * v[j] in the global field.
struct Factors {
    std::vector<double> u;
    std::vector<double> v;
};

/// A Gaussian around the middle of the field, whose width does not depend on the ranks: sigma = 0.01 imax jmax cells.
[[nodiscard]] Factors gaussian(const Block& block);

/// Checks the field that `simulation` has computed from `initial` in `iterations` steps, then, with the same arrays and
/// exchange, more. Prints a line for each check, and what is wrong on stderr. Returns whether all is right, the same on
/// all ranks. Collective.
///
///   decomposition  every cell has the bits that one rank computes on the CPU, by a loop over the whole field;
///   mass           the sum over all cells is what it was: the boundary conditions let nothing out;
///   halo           each cell of the halo is the one that the global field has there, corners included with -c;
///   eigenmode      cos(pi P (i+1/2)/imax) cos(pi Q (j+1/2)/jmax) only shrinks, by
///                  (1 + 2 cos(pi P/imax) + 2 cos(pi Q/jmax)) / 5 in each step.
[[nodiscard]] bool check(Simulation& simulation, const Factors& initial, Index iterations);

/// A checksum of all cells' bits and places, the same for each decomposition. `cells` is this rank's array. Collective.
[[nodiscard]] std::uint64_t checksum(const Block& block, const std::vector<double>& cells);

/// Why write_field() could not open the file, on all ranks; empty where it can. Makes an empty file where there is
/// none, and leaves what is in one. Collective.
[[nodiscard]] std::string try_to_write(const std::string& file);

/// Writes the field to a file, row after row. Returns what went wrong, on all ranks; empty where nothing did.
/// Collective.
[[nodiscard]] std::string write_field(const Block& block, const std::vector<double>& cells, const std::string& file);

/// Prints each rank's array, halo included, the top row first; on rank 0. Says so instead where a row of the field has
/// more than 100 cells with its halo. Collective.
void print_field(const Block& block, const std::vector<double>& cells);

}  // namespace ghost_exchange
