// SPDX-License-Identifier: Apache-2.0
// How the global field is spread over the ranks, and where the cells of a rank's block lie in memory.
//
// The field has imax x jmax cells; i goes along a row, j from row to row, and row 0 is at the bottom. The ranks form a
// grid of x times y blocks, rank = xcoord + ycoord * x. A block is stored as one array, row after row, with nhalo more
// cells on each side: copies of the neighbours' cells, its halo, which other codes call ghost cells.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <string>

namespace ghost_exchange {

using Index = long long;  ///< of cells: a field may have more than 2^31

/// The ranks along each direction.
struct ProcessGrid {
    int x = 0;
    int y = 0;
};

/// A rectangle of owned cells: ibegin <= i < iend, jbegin <= j < jend, counted from the block's first owned cell.
struct Region {
    Index ibegin = 0;
    Index iend = 0;
    Index jbegin = 0;
    Index jend = 0;

    [[nodiscard]] bool empty() const { return ibegin >= iend || jbegin >= jend; }
};

/// One rank's part of the field.
struct Block {
    Index imax = 0;  ///< cells of the global field
    Index jmax = 0;
    Index nhalo = 0;       ///< width of the halo
    bool corners = false;  ///< whether the corners of the halo are exchanged too
    ProcessGrid grid;
    Index ibegin = 0;  ///< where the first owned cell lies in the global field
    Index jbegin = 0;
    Index isize = 0;  ///< owned cells
    Index jsize = 0;
    int left = MPI_PROC_NULL;  ///< neighbours' ranks; MPI_PROC_NULL at the edge of the field
    int right = MPI_PROC_NULL;
    int bottom = MPI_PROC_NULL;
    int top = MPI_PROC_NULL;

    /// Cells from one row to the next.
    [[nodiscard]] Index stride() const { return isize + 2 * nhalo; }
    /// Cells of the whole array.
    [[nodiscard]] Index cells() const { return stride() * (jsize + 2 * nhalo); }
    /// Where a cell lies in the array; (0, 0) is the first owned one, the halo has indices below 0 and from the size
    /// on.
    [[nodiscard]] Index at(Index j, Index i) const { return (j + nhalo) * stride() + i + nhalo; }

    // What travels. First the columns to the left and right, then the rows to the bottom and top, which by then have
    // the neighbours' columns at their ends: so the corners come along, without messages to diagonal neighbours.

    /// The first row that takes part in the exchange of columns. With corners, blocks at the edge of the field include
    /// the rows of the boundary, which no exchange of rows will bring.
    [[nodiscard]] Index first_column_row() const { return corners && bottom == MPI_PROC_NULL ? -nhalo : 0; }
    [[nodiscard]] Index column_rows() const {
        return jsize - first_column_row() + (corners && top == MPI_PROC_NULL ? nhalo : 0);
    }
    /// Cells that go to one side.
    [[nodiscard]] Index column_cells() const { return nhalo * column_rows(); }

    /// Messages to one side in the exchange of rows: with corners the rows are whole and lie together, without them
    /// each is a message of its own.
    [[nodiscard]] int row_messages() const { return corners ? 1 : static_cast<int>(nhalo); }
    [[nodiscard]] int cells_of_row_message() const { return static_cast<int>(corners ? nhalo * stride() : isize); }
    [[nodiscard]] Index bottom_sent(int message) const { return at(message, first_row_column()); }
    [[nodiscard]] Index top_sent(int message) const { return at(jsize - nhalo + message, first_row_column()); }
    [[nodiscard]] Index bottom_received(int message) const { return at(message - nhalo, first_row_column()); }
    [[nodiscard]] Index top_received(int message) const { return at(jsize + message, first_row_column()); }

    /// Bytes that this rank sends in one update of its halo.
    [[nodiscard]] Index bytes_sent() const;

  private:
    [[nodiscard]] Index first_row_column() const { return corners ? -nhalo : 0; }
};

/// Completes what is 0 in `wanted`: the grid of that many ranks whose blocks are the most square for a field of this
/// shape. An x or y that is given stays. `problem` says what is wrong where there is no such grid.
[[nodiscard]] ProcessGrid choose_grid(ProcessGrid wanted, int ranks, Index imax, Index jmax, std::string& problem);

/// The block of `rank`.
[[nodiscard]] Block block_of(int rank, ProcessGrid grid, Index imax, Index jmax, Index nhalo, bool corners);

/// What keeps this rank's block from being computed; empty where nothing does. Messages are counted in MPI's int.
[[nodiscard]] std::string problem_of(const Block& block);

}  // namespace ghost_exchange
