! SPDX-License-Identifier: Apache-2.0
! A ring of ranks in Fortran: each rank passes a device array to the next one, then all of them sum one up.
!
! Fortran has no name for device memory: hipMalloc gives a C address, and c_f_pointer makes a Fortran array of it, which
! goes into MPI calls as any array does. The host must not touch its elements. The calls of the GPU runtime are C
! functions; apps/runtime/gpu_runtime.cpp forwards them to NVIDIA's runtime or AMD's, whichever is there:
!
!   g++ -std=c++20 -O2 -Iapps/include -c apps/runtime/gpu_runtime.cpp
!   mpifort -O2 apps/examples/ring.f90 gpu_runtime.o -o ring -lstdc++ -ldl
program ring
    use, intrinsic :: iso_c_binding
    use mpi_f08
    implicit none

    interface
        integer(c_int) function hipGetDeviceCount(devices) bind(C, name="hipGetDeviceCount")
            import :: c_int
            integer(c_int) :: devices
        end function
        integer(c_int) function hipSetDevice(device) bind(C, name="hipSetDevice")
            import :: c_int
            integer(c_int), value :: device
        end function
        integer(c_int) function hipMalloc(pointer, bytes) bind(C, name="hipMalloc")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr) :: pointer
            integer(c_size_t), value :: bytes
        end function
        integer(c_int) function hipFree(pointer) bind(C, name="hipFree")
            import :: c_int, c_ptr
            type(c_ptr), value :: pointer
        end function
        integer(c_int) function hipMemcpy(to, from, bytes, kind) bind(C, name="hipMemcpy")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: to, from
            integer(c_size_t), value :: bytes
            integer(c_int), value :: kind
        end function
    end interface
    integer(c_int), parameter :: to_device = 1, to_host = 2

    integer, parameter :: elements = 2**20
    integer(c_size_t), parameter :: bytes = 8 * int(elements, c_size_t)
    integer :: rank, ranks, next, previous, wrong
    integer(c_int) :: devices
    type(c_ptr) :: address
    real(c_double), pointer, contiguous :: d_mine(:), d_other(:)
    real(c_double), allocatable, target :: host(:)

    call MPI_Init()
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    next = mod(rank + 1, ranks)
    previous = mod(rank + ranks - 1, ranks)
    call check(hipGetDeviceCount(devices), "hipGetDeviceCount")
    call check(hipSetDevice(mod(rank, devices)), "hipSetDevice")
    call check(hipMalloc(address, bytes), "hipMalloc")
    call c_f_pointer(address, d_mine, [elements])
    call check(hipMalloc(address, bytes), "hipMalloc")
    call c_f_pointer(address, d_other, [elements])

    allocate(host(elements))
    host = rank
    call check(hipMemcpy(c_loc(d_mine), c_loc(host), bytes, to_device), "hipMemcpy")

    call MPI_Sendrecv(d_mine, elements, MPI_DOUBLE_PRECISION, next, 0, &
                      d_other, elements, MPI_DOUBLE_PRECISION, previous, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE)
    call check(hipMemcpy(c_loc(host), c_loc(d_other), bytes, to_host), "hipMemcpy")
    wrong = count(host /= previous)

    call MPI_Allreduce(MPI_IN_PLACE, d_mine, elements, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD)
    call check(hipMemcpy(c_loc(host), c_loc(d_mine), bytes, to_host), "hipMemcpy")
    wrong = wrong + count(host /= ranks * (ranks - 1) / 2)

    call check(hipFree(c_loc(d_mine)), "hipFree")
    call check(hipFree(c_loc(d_other)), "hipFree")
    call MPI_Allreduce(MPI_IN_PLACE, wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
    if (rank == 0 .and. wrong == 0) print '(a,i0,a,i0,a)', "PASS ring: ", elements, &
        " doubles round ", ranks, " ranks, and their sum"
    if (rank == 0 .and. wrong /= 0) print '(a,i0,a)', "FAIL ring: ", wrong, " wrong elements"
    call MPI_Finalize()
    if (wrong /= 0) error stop 1

contains

    subroutine check(code, call_name)
        integer(c_int), intent(in) :: code
        character(*), intent(in) :: call_name
        if (code == 0) return
        print '(a,a,a,i0)', "ring: ", call_name, " failed with code ", code
        call MPI_Abort(MPI_COMM_WORLD, 2)
    end subroutine
end program
