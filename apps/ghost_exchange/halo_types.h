// SPDX-License-Identifier: Apache-2.0
// The columns and rows of a halo as MPI datatypes.
#pragma once

#include <mpi.h>

#include "decomposition.h"

namespace ghost_exchange {

class HaloTypes {
  public:
    explicit HaloTypes(const Block& block) : _block(block) {
        MPI_Type_vector(static_cast<int>(block.column_rows()), static_cast<int>(block.nhalo),
                        static_cast<int>(block.stride()), MPI_DOUBLE, &_columns);
        // Without corners each row is a block of the type; with them the rows lie together and are one.
        MPI_Type_vector(block.row_messages(), block.cells_of_row_message(), static_cast<int>(block.stride()),
                        MPI_DOUBLE, &_rows);
        MPI_Type_commit(&_columns);
        MPI_Type_commit(&_rows);
    }
    ~HaloTypes() {
        MPI_Type_free(&_columns);
        MPI_Type_free(&_rows);
    }
    HaloTypes(const HaloTypes&) = delete;
    HaloTypes& operator=(const HaloTypes&) = delete;

    [[nodiscard]] MPI_Datatype columns() const { return _columns; }
    [[nodiscard]] MPI_Datatype rows() const { return _rows; }

    /// Where the columns begin in the array; the rows are bottom_sent(0) and so on of the block.
    [[nodiscard]] Index left_sent() const { return _block.at(_block.first_column_row(), 0); }
    [[nodiscard]] Index right_sent() const { return _block.at(_block.first_column_row(), _block.isize - _block.nhalo); }
    [[nodiscard]] Index left_received() const { return _block.at(_block.first_column_row(), -_block.nhalo); }
    [[nodiscard]] Index right_received() const { return _block.at(_block.first_column_row(), _block.isize); }

  private:
    const Block _block;
    MPI_Datatype _columns = MPI_DATATYPE_NULL;
    MPI_Datatype _rows = MPI_DATATYPE_NULL;
};

}  // namespace ghost_exchange
