/* SPDX-License-Identifier: Apache-2.0 */
/* MPI's stream API, for every MPI: operations that a GPU's stream orders.
 *
 * MPICH's mpi.h declares the first functions itself; this header adds what an MPI lacks. Its functions are there when
 * the program is preloaded with Awaken or linked to it. With AWAKEN_WEAK_MPIX defined before, they are declared weak: a
 * program then also starts without Awaken, and asks `if (MPIX_Send_enqueue)` before it calls them.
 *
 *     MPI_Info info;
 *     MPI_Info_create(&info);
 *     MPI_Info_set(info, "type", "cudaStream_t");                  // or "hipStream_t"
 *     MPIX_Info_set_hex(info, "value", &stream, sizeof(stream));
 *     MPIX_Stream queue;
 *     MPIX_Stream_create(info, &queue);                            // of the current device
 *     MPI_Comm comm;
 *     MPIX_Stream_comm_create(MPI_COMM_WORLD, queue, &comm);       // each rank its own, or MPIX_STREAM_NULL
 *     MPIX_Isend_enqueue(out, n, MPI_FLOAT, right, 0, comm, &requests[0]);
 *     MPIX_Irecv_enqueue(in, n, MPI_FLOAT, left, 0, comm, &requests[1]);
 *     MPIX_Waitall_enqueue(2, requests, MPI_STATUSES_IGNORE);      // the stream waits; this call does not
 *
 * Functions return MPI error codes, and raise errors on the communicator's handler. Wrong arguments are errors of the
 * call. What fails later lets the stream go on, and is an error of the next MPI call on the communicator. Buffers and
 * arrays of statuses must stay until the stream has come past the operation; datatypes and operations may be freed.
 * docs/streams.md says more.
 */
#ifndef AWAKEN_MPIX_STREAM_H
#define AWAKEN_MPIX_STREAM_H

#include <mpi.h>

#ifdef AWAKEN_WEAK_MPIX
#define AWAKEN_MPIX __attribute__((weak))
#else
#define AWAKEN_MPIX
#endif

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MPIX_STREAM_NULL

typedef int MPIX_Stream;
#define MPIX_STREAM_NULL ((MPIX_Stream)0x3c000000)

/* Sets a value of any bytes, such as a stream. */
AWAKEN_MPIX int MPIX_Info_set_hex(MPI_Info info, const char* key, const void* value, int value_size);
AWAKEN_MPIX int MPIX_Stream_create(MPI_Info info, MPIX_Stream* stream);
/* Communicators keep the stream that they have. */
AWAKEN_MPIX int MPIX_Stream_free(MPIX_Stream* stream);
/* Collective. */
AWAKEN_MPIX int MPIX_Stream_comm_create(MPI_Comm comm, MPIX_Stream stream, MPI_Comm* newcomm);
AWAKEN_MPIX int MPIX_Comm_get_stream(MPI_Comm comm, int idx, MPIX_Stream* stream);
/* Accepted: progress needs neither. */
AWAKEN_MPIX int MPIX_Start_progress_thread(MPIX_Stream stream);
AWAKEN_MPIX int MPIX_Stop_progress_thread(MPIX_Stream stream);

/* The stream waits until the buffer may be used again. */
AWAKEN_MPIX int MPIX_Send_enqueue(const void* buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm);
/* The stream waits until the data are there. The status is set then. */
AWAKEN_MPIX int MPIX_Recv_enqueue(void* buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                                  MPI_Status* status);
AWAKEN_MPIX int MPIX_Isend_enqueue(const void* buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
                                   MPI_Request* request);
AWAKEN_MPIX int MPIX_Irecv_enqueue(void* buf, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
                                   MPI_Request* request);
/* The requests' stream waits for them. They are given back, though the variables do not change. */
AWAKEN_MPIX int MPIX_Wait_enqueue(MPI_Request* request, MPI_Status* status);
AWAKEN_MPIX int MPIX_Waitall_enqueue(int count, MPI_Request array_of_requests[], MPI_Status* array_of_statuses);
AWAKEN_MPIX int MPIX_Allreduce_enqueue(const void* sendbuf, void* recvbuf, int count, MPI_Datatype datatype, MPI_Op op,
                                       MPI_Comm comm);

AWAKEN_MPIX int MPIX_Send_enqueue_c(const void* buf, MPI_Count count, MPI_Datatype datatype, int dest, int tag,
                                    MPI_Comm comm);
AWAKEN_MPIX int MPIX_Recv_enqueue_c(void* buf, MPI_Count count, MPI_Datatype datatype, int source, int tag,
                                    MPI_Comm comm, MPI_Status* status);
AWAKEN_MPIX int MPIX_Isend_enqueue_c(const void* buf, MPI_Count count, MPI_Datatype datatype, int dest, int tag,
                                     MPI_Comm comm, MPI_Request* request);
AWAKEN_MPIX int MPIX_Irecv_enqueue_c(void* buf, MPI_Count count, MPI_Datatype datatype, int source, int tag,
                                     MPI_Comm comm, MPI_Request* request);
AWAKEN_MPIX int MPIX_Allreduce_enqueue_c(const void* sendbuf, void* recvbuf, MPI_Count count, MPI_Datatype datatype,
                                         MPI_Op op, MPI_Comm comm);

#endif /* MPIX_STREAM_NULL */

/* ---- Awaken's own, in the same style ---- */

/* Persistent requests that were made on a communicator with a stream. They stay, and their Wait_enqueue ends a round.
 */
AWAKEN_MPIX int MPIX_Start_enqueue(MPI_Request* request);
AWAKEN_MPIX int MPIX_Startall_enqueue(int count, MPI_Request array_of_requests[]);

AWAKEN_MPIX int MPIX_Barrier_enqueue(MPI_Comm comm);
AWAKEN_MPIX int MPIX_Bcast_enqueue(void* buffer, int count, MPI_Datatype datatype, int root, MPI_Comm comm);
AWAKEN_MPIX int MPIX_Allgather_enqueue(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                       int recvcount, MPI_Datatype recvtype, MPI_Comm comm);
AWAKEN_MPIX int MPIX_Alltoall_enqueue(const void* sendbuf, int sendcount, MPI_Datatype sendtype, void* recvbuf,
                                      int recvcount, MPI_Datatype recvtype, MPI_Comm comm);
AWAKEN_MPIX int MPIX_Reduce_scatter_block_enqueue(const void* sendbuf, void* recvbuf, int recvcount,
                                                  MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);
AWAKEN_MPIX int MPIX_Neighbor_alltoallw_enqueue(const void* sendbuf, const int sendcounts[], const MPI_Aint sdispls[],
                                                const MPI_Datatype sendtypes[], void* recvbuf, const int recvcounts[],
                                                const MPI_Aint rdispls[], const MPI_Datatype recvtypes[],
                                                MPI_Comm comm);

AWAKEN_MPIX int MPIX_Bcast_enqueue_c(void* buffer, MPI_Count count, MPI_Datatype datatype, int root, MPI_Comm comm);
AWAKEN_MPIX int MPIX_Allgather_enqueue_c(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                                         MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm comm);
AWAKEN_MPIX int MPIX_Alltoall_enqueue_c(const void* sendbuf, MPI_Count sendcount, MPI_Datatype sendtype, void* recvbuf,
                                        MPI_Count recvcount, MPI_Datatype recvtype, MPI_Comm comm);
AWAKEN_MPIX int MPIX_Reduce_scatter_block_enqueue_c(const void* sendbuf, void* recvbuf, MPI_Count recvcount,
                                                    MPI_Datatype datatype, MPI_Op op, MPI_Comm comm);
AWAKEN_MPIX int MPIX_Neighbor_alltoallw_enqueue_c(const void* sendbuf, const MPI_Count sendcounts[],
                                                  const MPI_Aint sdispls[], const MPI_Datatype sendtypes[],
                                                  void* recvbuf, const MPI_Count recvcounts[], const MPI_Aint rdispls[],
                                                  const MPI_Datatype recvtypes[], MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
