! SPDX-License-Identifier: Apache-2.0
program device_memory_f08
    use, intrinsic :: iso_c_binding
    use mpi_f08
    implicit none
    type(MPI_Request) :: requests(2)
    include "device_memory.inc"
end program
