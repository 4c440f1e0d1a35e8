// SPDX-License-Identifier: Apache-2.0
/* An MPI that tells the halves of split accesses apart, as those here do not: the second half of a write is refused.
   The program that is run with it begins none. */
#include <mpi.h>

int MPI_File_write_at_all_end(MPI_File file, const void* buffer, MPI_Status* status) {
    (void)file, (void)buffer, (void)status;
    return MPI_ERR_OTHER;
}
