! SPDX-License-Identifier: Apache-2.0
program device_memory_mpi
    use, intrinsic :: iso_c_binding
    use mpi
    implicit none
    integer :: requests(2)
    include "device_memory.inc"
end program
