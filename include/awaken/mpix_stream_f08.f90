! SPDX-License-Identifier: Apache-2.0
! MPI's stream API for programs that use mpi_f08: the functions of mpix_stream.h, with the arguments that mpi_f08 would
! give them. Compile it with the MPI's Fortran compiler, and mpix_stream_f08.c beside it with its C compiler:
!
!     use mpi_f08
!     use awaken_mpix_stream
!     type(MPIX_Stream) :: queue
!     call MPI_Info_create(info)
!     call MPI_Info_set(info, "type", "cudaStream_t")                ! or "hipStream_t"
!     call MPIX_Info_set_hex(info, "value", stream, 8)               ! type(c_ptr) or an integer of 8 bytes
!     call MPIX_Stream_create(info, queue)
!     call MPIX_Stream_comm_create(MPI_COMM_WORLD, queue, comm)
!     call MPIX_Isend_enqueue(out, n, MPI_REAL, right, 0, comm, requests(1))
!     call MPIX_Irecv_enqueue(in, n, MPI_REAL, left, 0, comm, requests(2))
!     call MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE)
!
! Counts are of the default integer or of MPI_COUNT_KIND (64 bits). Buffers are contiguous. Device memory is a pointer that
! c_f_pointer makes. Buffers and statuses are used until the stream has come past the operation, so give them the
! attribute asynchronous (and a place that stays) in the scope that calls.
module awaken_mpix_stream
    use, intrinsic :: iso_c_binding
    use mpi_f08
    implicit none
    private

    type, bind(C), public :: MPIX_Stream
        integer(c_int) :: MPI_VAL
    end type
    type(MPIX_Stream), parameter, public :: MPIX_STREAM_NULL = MPIX_Stream(1006632960)  ! 0x3c000000

    public :: MPIX_Info_set_hex, MPIX_Stream_create, MPIX_Stream_free, MPIX_Stream_comm_create, &
              MPIX_Comm_get_stream, MPIX_Start_progress_thread, MPIX_Stop_progress_thread, MPIX_Wait_enqueue, &
              MPIX_Waitall_enqueue, MPIX_Start_enqueue, MPIX_Startall_enqueue, MPIX_Barrier_enqueue, &
              MPIX_Neighbor_alltoallw_enqueue, MPIX_Send_enqueue, MPIX_Recv_enqueue, MPIX_Isend_enqueue, &
              MPIX_Irecv_enqueue, MPIX_Allreduce_enqueue, MPIX_Bcast_enqueue, MPIX_Allgather_enqueue, &
              MPIX_Alltoall_enqueue, MPIX_Reduce_scatter_block_enqueue

    interface MPIX_Send_enqueue
        subroutine awaken_f08_send_enqueue(buf, count, datatype, dest, tag, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: buf
            integer(c_int), value :: count, dest, tag
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_send_enqueue_c(buf, count, datatype, dest, tag, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: buf
            integer(c_int64_t), value :: count
            integer(c_int), value :: dest, tag
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Recv_enqueue
        subroutine awaken_f08_recv_enqueue(buf, count, datatype, source, tag, comm, status, ierror) bind(C)
            import
            type(*), dimension(..), asynchronous :: buf
            integer(c_int), value :: count, source, tag
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            type(MPI_Status), asynchronous :: status
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_recv_enqueue_c(buf, count, datatype, source, tag, comm, status, ierror) bind(C)
            import
            type(*), dimension(..), asynchronous :: buf
            integer(c_int64_t), value :: count
            integer(c_int), value :: source, tag
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            type(MPI_Status), asynchronous :: status
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Isend_enqueue
        subroutine awaken_f08_isend_enqueue(buf, count, datatype, dest, tag, comm, request, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: buf
            integer(c_int), value :: count, dest, tag
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            type(MPI_Request), intent(out) :: request
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_isend_enqueue_c(buf, count, datatype, dest, tag, comm, request, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: buf
            integer(c_int64_t), value :: count
            integer(c_int), value :: dest, tag
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            type(MPI_Request), intent(out) :: request
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Irecv_enqueue
        subroutine awaken_f08_irecv_enqueue(buf, count, datatype, source, tag, comm, request, ierror) bind(C)
            import
            type(*), dimension(..), asynchronous :: buf
            integer(c_int), value :: count, source, tag
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            type(MPI_Request), intent(out) :: request
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_irecv_enqueue_c(buf, count, datatype, source, tag, comm, request, ierror) bind(C)
            import
            type(*), dimension(..), asynchronous :: buf
            integer(c_int64_t), value :: count
            integer(c_int), value :: source, tag
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            type(MPI_Request), intent(out) :: request
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Allreduce_enqueue
        subroutine awaken_f08_allreduce_enqueue(sendbuf, recvbuf, count, datatype, op, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int), value :: count
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Op), intent(in) :: op
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_allreduce_enqueue_c(sendbuf, recvbuf, count, datatype, op, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int64_t), value :: count
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Op), intent(in) :: op
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Bcast_enqueue
        subroutine awaken_f08_bcast_enqueue(buffer, count, datatype, root, comm, ierror) bind(C)
            import
            type(*), dimension(..), asynchronous :: buffer
            integer(c_int), value :: count, root
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_bcast_enqueue_c(buffer, count, datatype, root, comm, ierror) bind(C)
            import
            type(*), dimension(..), asynchronous :: buffer
            integer(c_int64_t), value :: count
            integer(c_int), value :: root
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Allgather_enqueue
        subroutine awaken_f08_allgather_enqueue(sendbuf, sendcount, sendtype, recvbuf, recvcount, &
                recvtype, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int), value :: sendcount, recvcount
            type(MPI_Datatype), intent(in) :: sendtype, recvtype
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_allgather_enqueue_c(sendbuf, sendcount, sendtype, recvbuf, recvcount, &
                recvtype, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int64_t), value :: sendcount, recvcount
            type(MPI_Datatype), intent(in) :: sendtype, recvtype
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Alltoall_enqueue
        subroutine awaken_f08_alltoall_enqueue(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, &
                comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int), value :: sendcount, recvcount
            type(MPI_Datatype), intent(in) :: sendtype, recvtype
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_alltoall_enqueue_c(sendbuf, sendcount, sendtype, recvbuf, recvcount, &
                recvtype, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int64_t), value :: sendcount, recvcount
            type(MPI_Datatype), intent(in) :: sendtype, recvtype
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Reduce_scatter_block_enqueue
        subroutine awaken_f08_reduce_scatter_block_enqueue(sendbuf, recvbuf, recvcount, datatype, op, &
                comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int), value :: recvcount
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Op), intent(in) :: op
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_reduce_scatter_block_enqueue_c(sendbuf, recvbuf, recvcount, datatype, op, &
                comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int64_t), value :: recvcount
            type(MPI_Datatype), intent(in) :: datatype
            type(MPI_Op), intent(in) :: op
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Neighbor_alltoallw_enqueue
        subroutine awaken_f08_neighbor_alltoallw_enqueue(sendbuf, sendcounts, sdispls, sendtypes, recvbuf, &
                recvcounts, rdispls, recvtypes, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int), intent(in) :: sendcounts(*), recvcounts(*)
            integer(c_intptr_t), intent(in) :: sdispls(*), rdispls(*)
            type(MPI_Datatype), intent(in) :: sendtypes(*), recvtypes(*)
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_neighbor_alltoallw_enqueue_c(sendbuf, sendcounts, sdispls, sendtypes, &
                recvbuf, recvcounts, rdispls, recvtypes, comm, ierror) bind(C)
            import
            type(*), dimension(..), intent(in), asynchronous :: sendbuf
            type(*), dimension(..), asynchronous :: recvbuf
            integer(c_int64_t), intent(in) :: sendcounts(*), recvcounts(*)
            integer(c_intptr_t), intent(in) :: sdispls(*), rdispls(*)
            type(MPI_Datatype), intent(in) :: sendtypes(*), recvtypes(*)
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Wait_enqueue
        subroutine awaken_f08_wait_enqueue(request, status, ierror) bind(C)
            import
            type(MPI_Request), intent(in) :: request
            type(MPI_Status), asynchronous :: status
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Waitall_enqueue
        subroutine awaken_f08_waitall_enqueue(count, array_of_requests, array_of_statuses, ierror) bind(C)
            import
            integer(c_int), value :: count
            type(MPI_Request), intent(in) :: array_of_requests(*)
            type(MPI_Status), asynchronous :: array_of_statuses(*)
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Start_enqueue
        subroutine awaken_f08_start_enqueue(request, ierror) bind(C)
            import
            type(MPI_Request), intent(in) :: request
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Startall_enqueue
        subroutine awaken_f08_startall_enqueue(count, array_of_requests, ierror) bind(C)
            import
            integer(c_int), value :: count
            type(MPI_Request), intent(in) :: array_of_requests(*)
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Barrier_enqueue
        subroutine awaken_f08_barrier_enqueue(comm, ierror) bind(C)
            import
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Stream_free
        subroutine awaken_f08_stream_free(stream, ierror) bind(C)
            import
            type(MPIX_Stream), intent(inout) :: stream
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Comm_get_stream
        subroutine awaken_f08_comm_get_stream(comm, idx, stream, ierror) bind(C)
            import
            type(MPI_Comm), intent(in) :: comm
            integer(c_int), value :: idx
            type(MPIX_Stream), intent(out) :: stream
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Start_progress_thread
        subroutine awaken_f08_start_progress_thread(stream, ierror) bind(C)
            import
            type(MPIX_Stream), intent(in) :: stream
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface
    interface MPIX_Stop_progress_thread
        subroutine awaken_f08_stop_progress_thread(stream, ierror) bind(C)
            import
            type(MPIX_Stream), intent(in) :: stream
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface

    interface
        ! The addresses that stand for something. Returns the bytes of a status in C.
        integer(c_int) function awaken_f08_constants(in_place, bottom, status_ignore, statuses_ignore) bind(C)
            import
            type(*), intent(in) :: in_place, bottom, status_ignore
            type(*), intent(in) :: statuses_ignore(*)
        end function
        subroutine awaken_f08_info_set_hex(info, key, value, value_size, ierror) bind(C)
            import
            type(MPI_Info), intent(in) :: info
            character(c_char), intent(in) :: key(*)
            type(*), dimension(..), intent(in) :: value
            integer(c_int), value :: value_size
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_stream_create(info, stream, ierror) bind(C)
            import
            type(MPI_Info), intent(in) :: info
            type(MPIX_Stream), intent(out) :: stream
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
        subroutine awaken_f08_stream_comm_create(comm, stream, newcomm, ierror) bind(C)
            import
            type(MPI_Comm), intent(in) :: comm
            type(MPIX_Stream), intent(in) :: stream
            type(MPI_Comm), intent(out) :: newcomm
            integer(c_int), optional, intent(out) :: ierror
        end subroutine
    end interface

contains

    subroutine MPIX_Info_set_hex(info, key, value, value_size, ierror)
        type(MPI_Info), intent(in) :: info
        character(*), intent(in) :: key
        type(*), dimension(..), intent(in) :: value
        integer(c_int), intent(in) :: value_size
        integer(c_int), optional, intent(out) :: ierror
        call awaken_f08_info_set_hex(info, trim(key) // c_null_char, value, value_size, ierror)
    end subroutine

    subroutine MPIX_Stream_create(info, stream, ierror)
        type(MPI_Info), intent(in) :: info
        type(MPIX_Stream), intent(out) :: stream
        integer(c_int), optional, intent(out) :: ierror
        call tell_constants()
        call awaken_f08_stream_create(info, stream, ierror)
    end subroutine

    subroutine MPIX_Stream_comm_create(comm, stream, newcomm, ierror)
        type(MPI_Comm), intent(in) :: comm
        type(MPIX_Stream), intent(in) :: stream
        type(MPI_Comm), intent(out) :: newcomm
        integer(c_int), optional, intent(out) :: ierror
        call tell_constants()
        call awaken_f08_stream_comm_create(comm, stream, newcomm, ierror)
    end subroutine

    ! Every operation needs a communicator with a stream, so these are known before the first.
    subroutine tell_constants()
        integer(c_int) :: bytes
        bytes = awaken_f08_constants(MPI_IN_PLACE, MPI_BOTTOM, MPI_STATUS_IGNORE, MPI_STATUSES_IGNORE)
        ! A status is written where the program has it, by a thread that knows C's form.
        if (8 * bytes /= storage_size(MPI_STATUS_IGNORE)) error stop "this MPI's statuses differ in C and mpi_f08"
    end subroutine

end module
