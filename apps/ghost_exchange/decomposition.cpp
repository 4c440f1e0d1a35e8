// SPDX-License-Identifier: Apache-2.0
#include "decomposition.h"

#include <climits>
#include <cstdint>

namespace ghost_exchange {

namespace {

Index rounded_up(Index cells, int parts) {
    return (cells + parts - 1) / parts;
}

}  // namespace

ProcessGrid choose_grid(ProcessGrid wanted, int ranks, Index imax, Index jmax, std::string& problem) {
    const auto fits = [&](int x, int y) {
        return (wanted.x == 0 || wanted.x == x) && (wanted.y == 0 || wanted.y == y);
    };
    ProcessGrid best;
    Index least = 0;
    for (int x = 1; x <= ranks; ++x) {
        if (ranks % x != 0 || !fits(x, ranks / x)) {
            continue;
        }
        // Half of the largest block's circumference: what has to be exchanged for the cells that are computed.
        const Index length = rounded_up(imax, x) + rounded_up(jmax, ranks / x);
        if (best.x == 0 || length < least) {
            best = {x, ranks / x};
            least = length;
        }
    }
    if (best.x == 0) {
        const auto text = [](const char* option, int value) {
            return value == 0 ? std::string() : std::string(option) + " " + std::to_string(value) + " ";
        };
        problem = text("-x", wanted.x) + text("-y", wanted.y) + "does not make a grid of " + std::to_string(ranks) +
                  " ranks: x times y has to be the number of ranks; without -x and -y it is chosen";
    }
    return best;
}

Block block_of(int rank, ProcessGrid grid, Index imax, Index jmax, Index nhalo, bool corners) {
    Block block;
    block.imax = imax;
    block.jmax = jmax;
    block.nhalo = nhalo;
    block.corners = corners;
    block.grid = grid;
    const int xcoord = rank % grid.x;
    const int ycoord = rank / grid.x;
    block.ibegin = imax * xcoord / grid.x;
    block.jbegin = jmax * ycoord / grid.y;
    block.isize = imax * (xcoord + 1) / grid.x - block.ibegin;
    block.jsize = jmax * (ycoord + 1) / grid.y - block.jbegin;
    if (xcoord > 0) {
        block.left = rank - 1;
    }
    if (xcoord < grid.x - 1) {
        block.right = rank + 1;
    }
    if (ycoord > 0) {
        block.bottom = rank - grid.x;
    }
    if (ycoord < grid.y - 1) {
        block.top = rank + grid.x;
    }
    return block;
}

Index Block::bytes_sent() const {
    const auto there = [](int neighbour) { return neighbour == MPI_PROC_NULL ? 0 : 1; };
    const Index columns = (there(left) + there(right)) * column_cells();
    const Index rows = (there(bottom) + there(top)) * static_cast<Index>(row_messages()) * cells_of_row_message();
    return (columns + rows) * static_cast<Index>(sizeof(double));
}

std::string problem_of(const Block& block) {
    const std::string shape = "a rank's block has " + std::to_string(block.isize) + " x " +
                              std::to_string(block.jsize) + " cells, and its halo a width of " +
                              std::to_string(block.nhalo);
    if (block.isize < block.nhalo || block.jsize < block.nhalo) {
        return "local size of grid is less than the halo size: " + shape +
               "; use a larger field, fewer ranks or a smaller halo";
    }
    // All three are below 2^31, so these products are below 2^63.
    if (block.nhalo * (block.isize + 2 * block.nhalo) > INT_MAX ||
        block.nhalo * (block.jsize + 2 * block.nhalo) > INT_MAX) {
        return "a message would have more than 2^31 - 1 cells: " + shape + "; use more ranks or a smaller halo";
    }
    if (block.stride() > INT64_MAX / 64 / (block.jsize + 2 * block.nhalo)) {
        return "no memory can hold this: " + shape + "; use a smaller field or more ranks";
    }
    return {};
}

}  // namespace ghost_exchange
