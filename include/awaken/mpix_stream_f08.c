/* SPDX-License-Identifier: Apache-2.0 */
/* What mpix_stream_f08.f90 calls: Fortran's handles, constants and buffers become those of C.
 *
 * A status is not copied: a thread of the layer writes it later. mpi_f08 has C's form of it.
 */
#include <ISO_Fortran_binding.h>
#include <mpi.h>
#include <stdlib.h>

#include "mpix_stream.h"

#ifdef MPI_ABI_VERSION /* the MPI-5 ABI has one form of a handle for all other languages */
#define MPI_Fint int
#define MPI_Comm_f2c MPI_Comm_fromint
#define MPI_Comm_c2f MPI_Comm_toint
#define MPI_Info_f2c MPI_Info_fromint
#define MPI_Op_f2c MPI_Op_fromint
#define MPI_Request_f2c MPI_Request_fromint
#define MPI_Request_c2f MPI_Request_toint
#define MPI_Type_f2c MPI_Type_fromint
#endif

static struct {
    const void *in_place, *bottom, *status_ignore, *statuses_ignore;
} constants;

int awaken_f08_constants(const void* in_place, const void* bottom, const void* status_ignore,
                         const void* statuses_ignore) {
    constants.in_place = in_place;
    constants.bottom = bottom;
    constants.status_ignore = status_ignore;
    constants.statuses_ignore = statuses_ignore;
    return (int)sizeof(MPI_Status);
}

static MPI_Status* status_of(void* status) {
    return status == constants.status_ignore ? MPI_STATUS_IGNORE : (MPI_Status*)status;
}

static void returns(int error, MPI_Fint* ierror) {
    if (ierror != NULL) {
        *ierror = error;
    }
}

/* A copy of a section would be gone when the stream comes to it. */
static int refuses(const CFI_cdesc_t* buffer, MPI_Comm comm, MPI_Fint* ierror) {
    if (buffer->rank == 0 || CFI_is_contiguous(buffer)) {
        return 0;
    }
    MPI_Comm_call_errhandler(comm, MPI_ERR_BUFFER);
    returns(MPI_ERR_BUFFER, ierror);
    return 1;
}

static void* address(const CFI_cdesc_t* buffer) {
    if (buffer->base_addr == constants.in_place) {
        return MPI_IN_PLACE;
    }
    return buffer->base_addr == constants.bottom ? MPI_BOTTOM : buffer->base_addr;
}

static MPI_Request* requests_of(int count, const MPI_Fint* given) {
    MPI_Request* const all = malloc((size_t)(count > 0 ? count : 1) * sizeof(MPI_Request));
    for (int i = 0; all != NULL && i < count; ++i) {
        all[i] = MPI_Request_f2c(given[i]);
    }
    return all;
}

/* ---- streams and communicators ---- */

void awaken_f08_info_set_hex(const MPI_Fint* info, const char* key, const CFI_cdesc_t* value, int value_size,
                             MPI_Fint* ierror) {
    returns(MPIX_Info_set_hex(MPI_Info_f2c(*info), key, value->base_addr, value_size), ierror);
}

void awaken_f08_stream_create(const MPI_Fint* info, MPIX_Stream* stream, MPI_Fint* ierror) {
    returns(MPIX_Stream_create(MPI_Info_f2c(*info), stream), ierror);
}

void awaken_f08_stream_free(MPIX_Stream* stream, MPI_Fint* ierror) {
    returns(MPIX_Stream_free(stream), ierror);
}

void awaken_f08_stream_comm_create(const MPI_Fint* comm, const MPIX_Stream* stream, MPI_Fint* newcomm,
                                   MPI_Fint* ierror) {
    MPI_Comm made = MPI_COMM_NULL;
    returns(MPIX_Stream_comm_create(MPI_Comm_f2c(*comm), *stream, &made), ierror);
    *newcomm = MPI_Comm_c2f(made);
}

void awaken_f08_comm_get_stream(const MPI_Fint* comm, int idx, MPIX_Stream* stream, MPI_Fint* ierror) {
    returns(MPIX_Comm_get_stream(MPI_Comm_f2c(*comm), idx, stream), ierror);
}

void awaken_f08_start_progress_thread(const MPIX_Stream* stream, MPI_Fint* ierror) {
    returns(MPIX_Start_progress_thread(*stream), ierror);
}

void awaken_f08_stop_progress_thread(const MPIX_Stream* stream, MPI_Fint* ierror) {
    returns(MPIX_Stop_progress_thread(*stream), ierror);
}

/* ---- requests ---- */

void awaken_f08_wait_enqueue(const MPI_Fint* request, void* status, MPI_Fint* ierror) {
    MPI_Request one = MPI_Request_f2c(*request);
    returns(MPIX_Wait_enqueue(&one, status_of(status)), ierror);
}

void awaken_f08_waitall_enqueue(int count, const MPI_Fint* requests, void* statuses, MPI_Fint* ierror) {
    MPI_Request* const all = requests_of(count, requests);
    MPI_Status* const told = statuses == constants.statuses_ignore ? MPI_STATUSES_IGNORE : (MPI_Status*)statuses;
    returns(all == NULL ? MPI_ERR_NO_MEM : MPIX_Waitall_enqueue(count, all, told), ierror);
    free(all);
}

void awaken_f08_start_enqueue(const MPI_Fint* request, MPI_Fint* ierror) {
    MPI_Request one = MPI_Request_f2c(*request);
    returns(MPIX_Start_enqueue(&one), ierror);
}

void awaken_f08_startall_enqueue(int count, const MPI_Fint* requests, MPI_Fint* ierror) {
    MPI_Request* const all = requests_of(count, requests);
    returns(all == NULL ? MPI_ERR_NO_MEM : MPIX_Startall_enqueue(count, all), ierror);
    free(all);
}

void awaken_f08_barrier_enqueue(const MPI_Fint* comm, MPI_Fint* ierror) {
    returns(MPIX_Barrier_enqueue(MPI_Comm_f2c(*comm)), ierror);
}

/* ---- operations, with counts of int and of MPI_Count ---- */

/* How many edges leave and reach this process. */
static void count_edges(MPI_Comm comm, int* out, int* in) {
    int kind = MPI_UNDEFINED, rank = 0, weighted = 0;
    *out = *in = 0;
    MPI_Topo_test(comm, &kind);
    if (kind == MPI_DIST_GRAPH) {
        MPI_Dist_graph_neighbors_count(comm, in, out, &weighted);
    } else if (kind == MPI_CART) {
        MPI_Cartdim_get(comm, in);
        *in = *out = 2 * *in;
    } else if (kind == MPI_GRAPH) {
        MPI_Comm_rank(comm, &rank);
        MPI_Graph_neighbors_count(comm, rank, in);
        *out = *in;
    }
}

static MPI_Datatype* types_of(int count, const MPI_Fint* given) {
    MPI_Datatype* const all = malloc((size_t)(count > 0 ? count : 1) * sizeof(MPI_Datatype));
    for (int i = 0; all != NULL && i < count; ++i) {
        all[i] = MPI_Type_f2c(given[i]);
    }
    return all;
}

#define AWAKEN_F08_OPERATIONS(COUNT, FORM)                                                                            \
    void awaken_f08_send_enqueue##FORM(const CFI_cdesc_t* buf, COUNT count, const MPI_Fint* datatype, int dest,       \
                                       int tag, const MPI_Fint* comm, MPI_Fint* ierror) {                             \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        if (!refuses(buf, own, ierror)) {                                                                             \
            returns(MPIX_Send_enqueue##FORM(address(buf), count, MPI_Type_f2c(*datatype), dest, tag, own), ierror);   \
        }                                                                                                             \
    }                                                                                                                 \
    void awaken_f08_recv_enqueue##FORM(const CFI_cdesc_t* buf, COUNT count, const MPI_Fint* datatype, int source,     \
                                       int tag, const MPI_Fint* comm, void* status, MPI_Fint* ierror) {               \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        if (!refuses(buf, own, ierror)) {                                                                             \
            returns(MPIX_Recv_enqueue##FORM(address(buf), count, MPI_Type_f2c(*datatype), source, tag, own,           \
                                            status_of(status)),                                                       \
                    ierror);                                                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    void awaken_f08_isend_enqueue##FORM(const CFI_cdesc_t* buf, COUNT count, const MPI_Fint* datatype, int dest,      \
                                        int tag, const MPI_Fint* comm, MPI_Fint* request, MPI_Fint* ierror) {         \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        MPI_Request made = MPI_REQUEST_NULL;                                                                          \
        if (!refuses(buf, own, ierror)) {                                                                             \
            returns(MPIX_Isend_enqueue##FORM(address(buf), count, MPI_Type_f2c(*datatype), dest, tag, own, &made),    \
                    ierror);                                                                                          \
        }                                                                                                             \
        *request = MPI_Request_c2f(made);                                                                             \
    }                                                                                                                 \
    void awaken_f08_irecv_enqueue##FORM(const CFI_cdesc_t* buf, COUNT count, const MPI_Fint* datatype, int source,    \
                                        int tag, const MPI_Fint* comm, MPI_Fint* request, MPI_Fint* ierror) {         \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        MPI_Request made = MPI_REQUEST_NULL;                                                                          \
        if (!refuses(buf, own, ierror)) {                                                                             \
            returns(MPIX_Irecv_enqueue##FORM(address(buf), count, MPI_Type_f2c(*datatype), source, tag, own, &made),  \
                    ierror);                                                                                          \
        }                                                                                                             \
        *request = MPI_Request_c2f(made);                                                                             \
    }                                                                                                                 \
    void awaken_f08_allreduce_enqueue##FORM(const CFI_cdesc_t* sendbuf, const CFI_cdesc_t* recvbuf, COUNT count,      \
                                            const MPI_Fint* datatype, const MPI_Fint* op, const MPI_Fint* comm,       \
                                            MPI_Fint* ierror) {                                                       \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        if (!refuses(sendbuf, own, ierror) && !refuses(recvbuf, own, ierror)) {                                       \
            returns(MPIX_Allreduce_enqueue##FORM(address(sendbuf), address(recvbuf), count, MPI_Type_f2c(*datatype),  \
                                                 MPI_Op_f2c(*op), own),                                               \
                    ierror);                                                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    void awaken_f08_bcast_enqueue##FORM(const CFI_cdesc_t* buffer, COUNT count, const MPI_Fint* datatype, int root,   \
                                        const MPI_Fint* comm, MPI_Fint* ierror) {                                     \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        if (!refuses(buffer, own, ierror)) {                                                                          \
            returns(MPIX_Bcast_enqueue##FORM(address(buffer), count, MPI_Type_f2c(*datatype), root, own), ierror);    \
        }                                                                                                             \
    }                                                                                                                 \
    void awaken_f08_allgather_enqueue##FORM(const CFI_cdesc_t* sendbuf, COUNT sendcount, const MPI_Fint* sendtype,    \
                                            const CFI_cdesc_t* recvbuf, COUNT recvcount, const MPI_Fint* recvtype,    \
                                            const MPI_Fint* comm, MPI_Fint* ierror) {                                 \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        if (!refuses(sendbuf, own, ierror) && !refuses(recvbuf, own, ierror)) {                                       \
            returns(MPIX_Allgather_enqueue##FORM(address(sendbuf), sendcount, MPI_Type_f2c(*sendtype),                \
                                                 address(recvbuf), recvcount, MPI_Type_f2c(*recvtype), own),          \
                    ierror);                                                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    void awaken_f08_alltoall_enqueue##FORM(const CFI_cdesc_t* sendbuf, COUNT sendcount, const MPI_Fint* sendtype,     \
                                           const CFI_cdesc_t* recvbuf, COUNT recvcount, const MPI_Fint* recvtype,     \
                                           const MPI_Fint* comm, MPI_Fint* ierror) {                                  \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        if (!refuses(sendbuf, own, ierror) && !refuses(recvbuf, own, ierror)) {                                       \
            returns(MPIX_Alltoall_enqueue##FORM(address(sendbuf), sendcount, MPI_Type_f2c(*sendtype),                 \
                                                address(recvbuf), recvcount, MPI_Type_f2c(*recvtype), own),           \
                    ierror);                                                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    void awaken_f08_reduce_scatter_block_enqueue##FORM(const CFI_cdesc_t* sendbuf, const CFI_cdesc_t* recvbuf,        \
                                                       COUNT recvcount, const MPI_Fint* datatype, const MPI_Fint* op, \
                                                       const MPI_Fint* comm, MPI_Fint* ierror) {                      \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        if (!refuses(sendbuf, own, ierror) && !refuses(recvbuf, own, ierror)) {                                       \
            returns(MPIX_Reduce_scatter_block_enqueue##FORM(address(sendbuf), address(recvbuf), recvcount,            \
                                                            MPI_Type_f2c(*datatype), MPI_Op_f2c(*op), own),           \
                    ierror);                                                                                          \
        }                                                                                                             \
    }                                                                                                                 \
    void awaken_f08_neighbor_alltoallw_enqueue##FORM(                                                                 \
        const CFI_cdesc_t* sendbuf, const COUNT* sendcounts, const MPI_Aint* sdispls, const MPI_Fint* sendtypes,      \
        const CFI_cdesc_t* recvbuf, const COUNT* recvcounts, const MPI_Aint* rdispls, const MPI_Fint* recvtypes,      \
        const MPI_Fint* comm, MPI_Fint* ierror) {                                                                     \
        const MPI_Comm own = MPI_Comm_f2c(*comm);                                                                     \
        if (refuses(sendbuf, own, ierror) || refuses(recvbuf, own, ierror)) {                                         \
            return;                                                                                                   \
        }                                                                                                             \
        int out = 0, in = 0;                                                                                          \
        count_edges(own, &out, &in);                                                                                  \
        MPI_Datatype *const to = types_of(out, sendtypes), *const from = types_of(in, recvtypes);                     \
        returns(to == NULL || from == NULL                                                                            \
                    ? MPI_ERR_NO_MEM                                                                                  \
                    : MPIX_Neighbor_alltoallw_enqueue##FORM(address(sendbuf), sendcounts, sdispls, to,                \
                                                            address(recvbuf), recvcounts, rdispls, from, own),        \
                ierror);                                                                                              \
        free(to);                                                                                                     \
        free(from);                                                                                                   \
    }

AWAKEN_F08_OPERATIONS(int, )
AWAKEN_F08_OPERATIONS(MPI_Count, _c)
