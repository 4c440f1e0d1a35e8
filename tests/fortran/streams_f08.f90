! SPDX-License-Identifier: Apache-2.0
! Operations that a GPU's stream orders, queued from Fortran: a ring of messages, persistent ones, statuses, collectives.
program streams_f08
    use, intrinsic :: iso_c_binding
    use mpi_f08
    use awaken_mpix_stream
    implicit none
    integer, parameter :: count = 5000
    integer(c_int), parameter :: to_device = 1, to_host = 2
    integer :: rank, ranks, next, previous, devices, i, round, ierr, told
    integer(c_size_t), parameter :: bytes = int(count, c_size_t) * 8
    type(c_ptr) :: stream, out_pointer, in_pointer
    real(c_double), pointer, asynchronous :: out(:), in(:)
    real(c_double), target :: host(count)
    type(MPI_Info) :: info
    type(MPIX_Stream) :: queue, same
    type(MPI_Comm) :: comm
    type(MPI_Request) :: requests(2)
    type(MPI_Status), asynchronous, save :: status, statuses(2)
    interface
        integer(c_int) function cudaMalloc(pointer, bytes) bind(C, name="cudaMalloc")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr) :: pointer
            integer(c_size_t), value :: bytes
        end function
        integer(c_int) function cudaMemcpy(to, from, bytes, kind) bind(C, name="cudaMemcpy")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: to, from
            integer(c_size_t), value :: bytes
            integer(c_int), value :: kind
        end function
        integer(c_int) function cudaMemcpyAsync(to, from, bytes, kind, stream) bind(C, name="cudaMemcpyAsync")
            import :: c_int, c_ptr, c_size_t
            type(c_ptr), value :: to, from, stream
            integer(c_size_t), value :: bytes
            integer(c_int), value :: kind
        end function
        integer(c_int) function cudaGetDeviceCount(devices) bind(C, name="cudaGetDeviceCount")
            import :: c_int
            integer(c_int) :: devices
        end function
        integer(c_int) function cudaSetDevice(device) bind(C, name="cudaSetDevice")
            import :: c_int
            integer(c_int), value :: device
        end function
        integer(c_int) function cudaStreamCreate(stream) bind(C, name="cudaStreamCreate")
            import :: c_int, c_ptr
            type(c_ptr) :: stream
        end function
        integer(c_int) function cudaStreamSynchronize(stream) bind(C, name="cudaStreamSynchronize")
            import :: c_int, c_ptr
            type(c_ptr), value :: stream
        end function
    end interface

    call MPI_Init_thread(MPI_THREAD_MULTIPLE, told)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks)
    next = mod(rank + 1, ranks)
    previous = mod(rank + ranks - 1, ranks)
    call check(cudaGetDeviceCount(devices), "cudaGetDeviceCount")
    call check(cudaSetDevice(mod(rank, devices)), "cudaSetDevice")
    call check(cudaStreamCreate(stream), "cudaStreamCreate")
    call check(cudaMalloc(out_pointer, bytes), "cudaMalloc")
    call check(cudaMalloc(in_pointer, bytes), "cudaMalloc")
    call c_f_pointer(out_pointer, out, [count])
    call c_f_pointer(in_pointer, in, [count])

    call MPI_Info_create(info)
    call MPI_Info_set(info, "type", "cudaStream_t")
    call MPIX_Info_set_hex(info, "value", stream, int(c_sizeof(stream)))
    call MPIX_Stream_create(info, queue)
    call MPI_Info_free(info)
    call MPIX_Stream_comm_create(MPI_COMM_WORLD, queue, comm)
    call MPIX_Comm_get_stream(comm, 0, same, ierr)
    call check(ierr, "MPIX_Comm_get_stream")
    call check(same%MPI_VAL - queue%MPI_VAL, "the communicator's stream")

    ! Each rank's numbers go round the ring, in the order of the stream.
    host = mine(rank)
    call check(cudaMemcpy(out_pointer, c_loc(host), bytes, to_device), "cudaMemcpy")
    do round = 1, 3
        call MPIX_Irecv_enqueue(in, count, MPI_DOUBLE_PRECISION, previous, round, comm, requests(1))
        call MPIX_Isend_enqueue(out, count, MPI_DOUBLE_PRECISION, next, round, comm, requests(2), ierr)
        call check(ierr, "MPIX_Isend_enqueue")
        if (round == 3) then
            call MPIX_Waitall_enqueue(2, requests, statuses)
        else
            call MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE)
        end if
        call check(cudaMemcpyAsync(out_pointer, in_pointer, bytes, 3, stream), "cudaMemcpyAsync")
    end do
    call expect(in_pointer, mine(modulo(rank - 3, ranks)), "the ring")
    call expect_status(statuses(1), previous, 3, count, "MPIX_Waitall_enqueue")

    ! One after the other, with a count of 64 bits and with a status of its own.
    if (rank == 0) then
        call MPIX_Send_enqueue(out, int(count - 7, MPI_COUNT_KIND), MPI_DOUBLE_PRECISION, next, 4, comm)
        call MPIX_Recv_enqueue(in, count, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, status)
    else
        call MPIX_Recv_enqueue(in, int(count, MPI_COUNT_KIND), MPI_DOUBLE_PRECISION, previous, 4, comm, status)
        call MPIX_Send_enqueue(in, count - 7, MPI_DOUBLE_PRECISION, next, 4, comm)
    end if
    call check(cudaStreamSynchronize(stream), "cudaStreamSynchronize")
    call expect_status(status, previous, 4, count - 7, "MPIX_Recv_enqueue")

    ! Persistent requests.
    host = mine(rank)
    call check(cudaMemcpy(out_pointer, c_loc(host), bytes, to_device), "cudaMemcpy")
    call MPI_Recv_init(in, count, MPI_DOUBLE_PRECISION, previous, 5, comm, requests(1))
    call MPI_Send_init(out, count, MPI_DOUBLE_PRECISION, next, 5, comm, requests(2))
    do round = 1, 4
        call MPIX_Startall_enqueue(2, requests)
        call MPIX_Wait_enqueue(requests(1), MPI_STATUS_IGNORE)
        call MPIX_Wait_enqueue(requests(2), status)
        call check(cudaMemcpyAsync(out_pointer, in_pointer, bytes, 3, stream), "cudaMemcpyAsync")
    end do
    call expect(in_pointer, mine(modulo(rank - 4, ranks)), "persistent messages")
    call MPI_Request_free(requests(1))
    call MPI_Request_free(requests(2))

    ! Collectives.
    host = mine(rank)
    call check(cudaMemcpy(out_pointer, c_loc(host), bytes, to_device), "cudaMemcpy")
    call MPIX_Allreduce_enqueue(out, in, count, MPI_DOUBLE_PRECISION, MPI_SUM, comm)
    call MPIX_Barrier_enqueue(comm)
    call MPIX_Allreduce_enqueue(MPI_IN_PLACE, in, count, MPI_DOUBLE_PRECISION, MPI_SUM, comm)
    call MPIX_Bcast_enqueue(out, count, MPI_DOUBLE_PRECISION, ranks - 1, comm)
    call expect(in_pointer, [(real(ranks, c_double) * (ranks * i + 500 * ranks * (ranks - 1)), i = 1, count)], &
                "MPIX_Allreduce_enqueue")
    call expect(out_pointer, mine(ranks - 1), "MPIX_Bcast_enqueue")

    ! A part of an array that is not contiguous would be a copy.
    call MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)
    call MPIX_Send_enqueue(host(1:count:2), 10, MPI_DOUBLE_PRECISION, next, 6, comm, ierr)
    if (ierr == MPI_SUCCESS) call fail("a section is taken")

    call MPI_Comm_free(comm)
    call MPIX_Stream_free(queue)
    if (rank == 0) print '(a)', "ok fortran"
    call MPI_Finalize()

contains

    function mine(of) result(values)
        integer, intent(in) :: of
        real(c_double) :: values(count)
        values = [(real(i + 1000 * of, c_double), i = 1, count)]
    end function

    subroutine fail(what)
        character(*), intent(in) :: what
        print '(a,a,a,i0)', "FAIL ", what, " on rank ", rank
        call MPI_Abort(MPI_COMM_WORLD, 1)
    end subroutine

    subroutine check(code, what)
        integer(c_int), intent(in) :: code
        character(*), intent(in) :: what
        if (code /= 0) call fail(what)
    end subroutine

    subroutine expect(pointer, values, what)
        type(c_ptr), intent(in) :: pointer
        real(c_double), intent(in) :: values(:)
        character(*), intent(in) :: what
        call check(cudaStreamSynchronize(stream), "cudaStreamSynchronize")
        call check(cudaMemcpy(c_loc(host), pointer, bytes, to_host), "cudaMemcpy")
        if (any(host /= values)) call fail(what)
    end subroutine

    subroutine expect_status(given, source, tag, elements, what)
        type(MPI_Status), intent(in) :: given
        integer, intent(in) :: source, tag, elements
        character(*), intent(in) :: what
        integer :: found
        call MPI_Get_count(given, MPI_DOUBLE_PRECISION, found)
        if (given%MPI_SOURCE /= source .or. given%MPI_TAG /= tag .or. found /= elements) call fail(what)
    end subroutine
end program
