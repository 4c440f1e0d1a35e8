! SPDX-License-Identifier: Apache-2.0
program device_memory_mpifh
    use, intrinsic :: iso_c_binding
    implicit none
    include "mpif.h"
    integer :: requests(2)
    include "device_memory.inc"
end program
