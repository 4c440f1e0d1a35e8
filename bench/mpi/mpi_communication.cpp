#include "mpi/mpi_communication.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>

#include "mpi/benchmark.h"
#include "mpi/large_counts.h"
#include "mpi/mpi_window.h"

namespace awaken::bench {
namespace {

/// The six functions of one collective operation.
#define AWAKEN_COLLECTIVE(Name, Iname)                                       \
    struct Name {                                                            \
        static constexpr const char* name = "MPI_" #Name;                    \
        static constexpr const char* persistent_name = "MPI_" #Name "_init"; \
        static auto blocking(const MpiFunctions& mpi) {                      \
            return mpi.Name;                                                 \
        }                                                                    \
        static auto nonblocking(const MpiFunctions& mpi) {                   \
            return mpi.Iname;                                                \
        }                                                                    \
        static auto persistent(const MpiFunctions& mpi) {                    \
            return mpi.Name##_init;                                          \
        }                                                                    \
        static auto large_blocking(const MpiFunctions& mpi) {                \
            return mpi.Name##_c;                                             \
        }                                                                    \
        static auto large_nonblocking(const MpiFunctions& mpi) {             \
            return mpi.Iname##_c;                                            \
        }                                                                    \
        static auto large_persistent(const MpiFunctions& mpi) {              \
            return mpi.Name##_init_c;                                        \
        }                                                                    \
    };
AWAKEN_COLLECTIVE(Allgather, Iallgather)
AWAKEN_COLLECTIVE(Allgatherv, Iallgatherv)
AWAKEN_COLLECTIVE(Allreduce, Iallreduce)
AWAKEN_COLLECTIVE(Alltoall, Ialltoall)
AWAKEN_COLLECTIVE(Alltoallv, Ialltoallv)
AWAKEN_COLLECTIVE(Alltoallw, Ialltoallw)
AWAKEN_COLLECTIVE(Bcast, Ibcast)
AWAKEN_COLLECTIVE(Gather, Igather)
AWAKEN_COLLECTIVE(Gatherv, Igatherv)
AWAKEN_COLLECTIVE(Reduce, Ireduce)
AWAKEN_COLLECTIVE(Reduce_scatter, Ireduce_scatter)
AWAKEN_COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block)
AWAKEN_COLLECTIVE(Scatter, Iscatter)
AWAKEN_COLLECTIVE(Scatterv, Iscatterv)
AWAKEN_COLLECTIVE(Scan, Iscan)
AWAKEN_COLLECTIVE(Exscan, Iexscan)
AWAKEN_COLLECTIVE(Neighbor_allgather, Ineighbor_allgather)
AWAKEN_COLLECTIVE(Neighbor_allgatherv, Ineighbor_allgatherv)
AWAKEN_COLLECTIVE(Neighbor_alltoall, Ineighbor_alltoall)
AWAKEN_COLLECTIVE(Neighbor_alltoallv, Ineighbor_alltoallv)
AWAKEN_COLLECTIVE(Neighbor_alltoallw, Ineighbor_alltoallw)
#undef AWAKEN_COLLECTIVE

/// The only one without counts.
struct Barrier {
    static constexpr const char* name = "MPI_Barrier";
    static constexpr const char* persistent_name = "MPI_Barrier_init";
    static auto blocking(const MpiFunctions& mpi) { return mpi.Barrier; }
    static auto nonblocking(const MpiFunctions& mpi) { return mpi.Ibarrier; }
    static auto persistent(const MpiFunctions& mpi) { return mpi.Barrier_init; }
    static auto large_blocking(const MpiFunctions& mpi) { return mpi.Barrier; }
    static auto large_nonblocking(const MpiFunctions& mpi) { return mpi.Ibarrier; }
    static auto large_persistent(const MpiFunctions& mpi) { return mpi.Barrier_init; }
};

/// Counts and displacements as the int functions take them; kept with the operation for as long as it runs.
struct IntArrays final : OperationState {
    std::vector<int> send_counts, receive_counts, send_displacements, receive_displacements;

    static void convert(const auto& from, std::vector<int>& to) {
        to.resize(from.size());
        std::transform(from.begin(), from.end(), to.begin(), [](const auto value) { return static_cast<int>(value); });
    }
    void assign(const CollectiveCall& call) {
        convert(call.send_counts, send_counts);
        convert(call.receive_counts, receive_counts);
        convert(call.send_displacements, send_displacements);
        convert(call.receive_displacements, receive_displacements);
    }
};

/// Whether the call takes a count for each rank; others may have such arrays filled and do not look at them.
bool has_arrays(const CollectiveCall& call) noexcept {
    switch (call.collective) {
        case Collective::allgatherv:
        case Collective::alltoallv:
        case Collective::alltoallw:
        case Collective::gatherv:
        case Collective::reduce_scatter:
        case Collective::scatterv:
        case Collective::neighbor_allgatherv:
        case Collective::neighbor_alltoallv:
        case Collective::neighbor_alltoallw:
            return true;
        default:
            return false;
    }
}

bool needs_large_counts(const CollectiveCall& call) noexcept {
    const auto any_large = [](const auto& values) {
        return std::any_of(values.begin(), values.end(), [](const auto value) { return value > INT_MAX; });
    };
    if (!fits(call.send_count) || !fits(call.receive_count)) {
        return true;
    }
    if (!has_arrays(call)) {
        return false;
    }
    // MPI_Reduce_scatter takes no displacements, MPI_Neighbor_alltoallw those of the width of an address.
    const bool displacements_are_int =
        call.collective != Collective::reduce_scatter && call.collective != Collective::neighbor_alltoallw;
    return any_large(call.send_counts) || any_large(call.receive_counts) ||
           (displacements_are_int && (any_large(call.send_displacements) || any_large(call.receive_displacements)));
}

}  // namespace

CommonArguments common_arguments(const CollectiveCall& call) noexcept {
    const bool from_send = call.send_type != MPI_DATATYPE_NULL;
    return {from_send && call.send_count != 0 ? call.send_count : std::max(call.receive_count, call.send_count),
            from_send ? call.send_type : call.receive_type};
}

void* broadcast_buffer(const CollectiveCall& call) noexcept {
    return call.receive != nullptr ? call.receive : const_cast<void*>(call.send);
}

std::string MpiCommunication::description() const {
    return short_version();
}

void MpiCommunication::prepare(MPI_Comm /* communicator */, std::span<const Buffer* const> /* buffers */) {}

// ---- point-to-point
// ---------------------------------------------------------------------------------------------------

void MpiCommunication::send(const void* data, const Count count, MPI_Datatype type, const int destination,
                            const int tag, MPI_Comm comm) {
    if (fits(count)) [[likely]] {
        check_mpi(_mpi.Send(data, static_cast<int>(count), type, destination, tag, comm), "MPI_Send");
    } else if (exists(_mpi.Send_c)) {
        call_or_refuse("MPI_Send_c", _mpi.Send_c, data, count, type, destination, tag, comm);
    } else {
        const LargeType large(_mpi, count, type);
        check_mpi(_mpi.Send(data, 1, large.get(), destination, tag, comm), "MPI_Send");
    }
}

void MpiCommunication::receive(void* data, const Count count, MPI_Datatype type, const int source, const int tag,
                               MPI_Comm comm) {
    if (fits(count)) [[likely]] {
        check_mpi(_mpi.Recv(data, static_cast<int>(count), type, source, tag, comm, MPI_STATUS_IGNORE), "MPI_Recv");
    } else if (exists(_mpi.Recv_c)) {
        call_or_refuse("MPI_Recv_c", _mpi.Recv_c, data, count, type, source, tag, comm, MPI_STATUS_IGNORE);
    } else {
        const LargeType large(_mpi, count, type);
        check_mpi(_mpi.Recv(data, 1, large.get(), source, tag, comm, MPI_STATUS_IGNORE), "MPI_Recv");
    }
}

void MpiCommunication::start_send(Operations& operations, const std::size_t index, const void* data, const Count count,
                                  MPI_Datatype type, const int destination, const int tag, MPI_Comm comm) {
    MPI_Request* const request = &operations.requests[index];
    if (fits(count)) [[likely]] {
        check_mpi(_mpi.Isend(data, static_cast<int>(count), type, destination, tag, comm, request), "MPI_Isend");
    } else if (exists(_mpi.Isend_c)) {
        call_or_refuse("MPI_Isend_c", _mpi.Isend_c, data, count, type, destination, tag, comm, request);
    } else {
        const LargeType large(_mpi, count, type);
        check_mpi(_mpi.Isend(data, 1, large.get(), destination, tag, comm, request), "MPI_Isend");
    }
}

void MpiCommunication::start_receive(Operations& operations, const std::size_t index, void* data, const Count count,
                                     MPI_Datatype type, const int source, const int tag, MPI_Comm comm) {
    MPI_Request* const request = &operations.requests[index];
    if (fits(count)) [[likely]] {
        check_mpi(_mpi.Irecv(data, static_cast<int>(count), type, source, tag, comm, request), "MPI_Irecv");
    } else if (exists(_mpi.Irecv_c)) {
        call_or_refuse("MPI_Irecv_c", _mpi.Irecv_c, data, count, type, source, tag, comm, request);
    } else {
        const LargeType large(_mpi, count, type);
        check_mpi(_mpi.Irecv(data, 1, large.get(), source, tag, comm, request), "MPI_Irecv");
    }
}

void MpiCommunication::initialize_send(Operations& operations, const std::size_t index, const void* data,
                                       const Count count, MPI_Datatype type, const int destination, const int tag,
                                       MPI_Comm comm) {
    MPI_Request* const request = &operations.requests[index];
    if (fits(count)) [[likely]] {
        check_mpi(_mpi.Send_init(data, static_cast<int>(count), type, destination, tag, comm, request),
                  "MPI_Send_init");
    } else if (exists(_mpi.Send_init_c)) {
        call_or_refuse("MPI_Send_init_c", _mpi.Send_init_c, data, count, type, destination, tag, comm, request);
    } else {
        const LargeType large(_mpi, count, type);
        check_mpi(_mpi.Send_init(data, 1, large.get(), destination, tag, comm, request), "MPI_Send_init");
    }
}

void MpiCommunication::initialize_receive(Operations& operations, const std::size_t index, void* data,
                                          const Count count, MPI_Datatype type, const int source, const int tag,
                                          MPI_Comm comm) {
    MPI_Request* const request = &operations.requests[index];
    if (fits(count)) [[likely]] {
        check_mpi(_mpi.Recv_init(data, static_cast<int>(count), type, source, tag, comm, request), "MPI_Recv_init");
    } else if (exists(_mpi.Recv_init_c)) {
        call_or_refuse("MPI_Recv_init_c", _mpi.Recv_init_c, data, count, type, source, tag, comm, request);
    } else {
        const LargeType large(_mpi, count, type);
        check_mpi(_mpi.Recv_init(data, 1, large.get(), source, tag, comm, request), "MPI_Recv_init");
    }
}

void MpiCommunication::initialize_partitioned_send(Operations& operations, const std::size_t index, const void* data,
                                                   const int partitions, const Count count, MPI_Datatype type,
                                                   const int destination, const int tag, MPI_Comm comm) {
    if (!exists(_mpi.Psend_init) || !exists(_mpi.Pready)) {
        throw Unavailable(short_version() + " has no MPI_Psend_init", "use an MPI with MPI-4's partitioned messages");
    }
    call_or_refuse("MPI_Psend_init", _mpi.Psend_init, data, partitions, count, type, destination, tag, comm,
                   MPI_INFO_NULL, &operations.requests[index]);
}

void MpiCommunication::initialize_partitioned_receive(Operations& operations, const std::size_t index, void* data,
                                                      const int partitions, const Count count, MPI_Datatype type,
                                                      const int source, const int tag, MPI_Comm comm) {
    call_or_refuse("MPI_Precv_init", _mpi.Precv_init, data, partitions, count, type, source, tag, comm, MPI_INFO_NULL,
                   &operations.requests[index]);
}

void MpiCommunication::make_ready(Operations& operations, const std::size_t index, const int partitions) {
    for (int partition = 0; partition < partitions; ++partition) {
        call_or_refuse("MPI_Pready", _mpi.Pready, partition, operations.requests[index]);
    }
}

// ---- collectives
// ------------------------------------------------------------------------------------------------------

template <typename Integer, typename Displacement, typename Arrays>
void MpiCommunication::issue_as(const Form form, const CollectiveCall& call, const Arrays& arrays,
                                MPI_Request* const request) {
    const auto go = [&](const auto tag, const auto... arguments) {
        constexpr bool kLarge = !std::is_same_v<Integer, int>;
        switch (form) {
            case Form::blocking:
                if constexpr (kLarge) {
                    call_or_refuse(tag.name, tag.large_blocking(_mpi), arguments..., call.communicator);
                } else {
                    call_or_refuse(tag.name, tag.blocking(_mpi), arguments..., call.communicator);
                }
                break;
            case Form::nonblocking:
                if constexpr (kLarge) {
                    call_or_refuse(tag.name, tag.large_nonblocking(_mpi), arguments..., call.communicator, request);
                } else {
                    call_or_refuse(tag.name, tag.nonblocking(_mpi), arguments..., call.communicator, request);
                }
                break;
            case Form::persistent:
                if constexpr (kLarge) {
                    call_or_refuse(tag.persistent_name, tag.large_persistent(_mpi), arguments..., call.communicator,
                                   MPI_INFO_NULL, request);
                } else {
                    call_or_refuse(tag.persistent_name, tag.persistent(_mpi), arguments..., call.communicator,
                                   MPI_INFO_NULL, request);
                }
                break;
        }
    };
    const void* const send = call.send;
    void* const receive = call.receive;
    const auto send_count = static_cast<Integer>(call.send_count);
    const auto receive_count = static_cast<Integer>(call.receive_count);
    const CommonArguments common = common_arguments(call);
    const auto count = static_cast<Integer>(common.count);
    const Integer* const send_counts = arrays.send_counts.data();
    const Integer* const receive_counts = arrays.receive_counts.data();
    const Displacement* const send_displacements = arrays.send_displacements.data();
    const Displacement* const receive_displacements = arrays.receive_displacements.data();
    switch (call.collective) {
        case Collective::none:
            throw Error("a collective call names no operation", "name one");
        case Collective::barrier:
            go(Barrier{});
            break;
        case Collective::allgather:
            go(Allgather{}, send, send_count, call.send_type, receive, receive_count, call.receive_type);
            break;
        case Collective::allgatherv:
            go(Allgatherv{}, send, send_count, call.send_type, receive, receive_counts, receive_displacements,
               call.receive_type);
            break;
        case Collective::allreduce:
            go(Allreduce{}, send, receive, count, common.type, call.operation);
            break;
        case Collective::alltoall:
            go(Alltoall{}, send, send_count, call.send_type, receive, receive_count, call.receive_type);
            break;
        case Collective::alltoallv:
            go(Alltoallv{}, send, send_counts, send_displacements, call.send_type, receive, receive_counts,
               receive_displacements, call.receive_type);
            break;
        case Collective::alltoallw:
            go(Alltoallw{}, send, send_counts, send_displacements, call.send_types.data(), receive, receive_counts,
               receive_displacements, call.receive_types.data());
            break;
        case Collective::bcast:
            go(Bcast{}, broadcast_buffer(call), count, common.type, call.root);
            break;
        case Collective::gather:
            go(Gather{}, send, send_count, call.send_type, receive, receive_count, call.receive_type, call.root);
            break;
        case Collective::gatherv:
            go(Gatherv{}, send, send_count, call.send_type, receive, receive_counts, receive_displacements,
               call.receive_type, call.root);
            break;
        case Collective::reduce:
            go(Reduce{}, send, receive, count, common.type, call.operation, call.root);
            break;
        case Collective::reduce_scatter:
            go(Reduce_scatter{}, send, receive, receive_counts, common.type, call.operation);
            break;
        case Collective::reduce_scatter_block:
            go(Reduce_scatter_block{}, send, receive, receive_count, common.type, call.operation);
            break;
        case Collective::scatter:
            go(Scatter{}, send, send_count, call.send_type, receive, receive_count, call.receive_type, call.root);
            break;
        case Collective::scatterv:
            go(Scatterv{}, send, send_counts, send_displacements, call.send_type, receive, receive_count,
               call.receive_type, call.root);
            break;
        case Collective::scan:
            go(Scan{}, send, receive, count, common.type, call.operation);
            break;
        case Collective::exscan:
            go(Exscan{}, send, receive, count, common.type, call.operation);
            break;
        case Collective::neighbor_allgather:
            go(Neighbor_allgather{}, send, send_count, call.send_type, receive, receive_count, call.receive_type);
            break;
        case Collective::neighbor_allgatherv:
            go(Neighbor_allgatherv{}, send, send_count, call.send_type, receive, receive_counts, receive_displacements,
               call.receive_type);
            break;
        case Collective::neighbor_alltoall:
            go(Neighbor_alltoall{}, send, send_count, call.send_type, receive, receive_count, call.receive_type);
            break;
        case Collective::neighbor_alltoallv:
            go(Neighbor_alltoallv{}, send, send_counts, send_displacements, call.send_type, receive, receive_counts,
               receive_displacements, call.receive_type);
            break;
        case Collective::neighbor_alltoallw:
            // Its displacements are addresses in both forms.
            go(Neighbor_alltoallw{}, send, send_counts, call.send_displacements.data(), call.send_types.data(), receive,
               receive_counts, call.receive_displacements.data(), call.receive_types.data());
            break;
    }
}

void MpiCommunication::issue(const Form form, const CollectiveCall& call, MPI_Request* const request,
                             std::unique_ptr<OperationState>* const state) {
    if (!needs_large_counts(call)) [[likely]] {
        // Blocking calls of a thread share one set of arrays; an operation under way keeps its own.
        static thread_local IntArrays of_thread;
        IntArrays* arrays = &of_thread;
        if (has_arrays(call)) {
            if (state != nullptr) {
                if (*state == nullptr) {
                    *state = std::make_unique<IntArrays>();
                }
                arrays = static_cast<IntArrays*>(state->get());
            }
            arrays->assign(call);
        }
        issue_as<int, int>(form, call, *arrays, request);
        return;
    }
    if (exists(_mpi.Allreduce_c)) {
        issue_as<Count, MPI_Aint>(form, call, call, request);
        return;
    }
    issue_in_large_types(form, call, request);
}

void MpiCommunication::issue_in_large_types(const Form form, const CollectiveCall& call, MPI_Request* const request) {
    if (has_arrays(call)) {
        throw Unavailable(short_version() + " has no counts and displacements beyond 2^31 - 1",
                          "use an MPI with the functions of MPI-4 that end in _c, or smaller sizes");
    }
    switch (call.collective) {
        case Collective::allreduce:
        case Collective::reduce:
        case Collective::scan:
        case Collective::exscan:
            // Operators of the MPI do not take derived types.
            if (form != Form::blocking) {
                throw Unavailable(short_version() + " has no nonblocking reduction of more than 2^31 - 1 elements",
                                  "use an MPI with the functions of MPI-4 that end in _c, or smaller sizes");
            }
            run_in_parts(call);
            return;
        case Collective::reduce_scatter_block:
            throw Unavailable(short_version() + " has no reduction of more than 2^31 - 1 elements a rank",
                              "use an MPI with the functions of MPI-4 that end in _c, or smaller sizes");
        default:
            break;
    }
    CollectiveCall large = call;
    std::unique_ptr<LargeType> send_type;
    std::unique_ptr<LargeType> receive_type;
    if (call.send_type != MPI_DATATYPE_NULL && call.send_count > 0) {
        send_type = std::make_unique<LargeType>(_mpi, call.send_count, call.send_type);
        large.send_type = send_type->get();
        large.send_count = 1;
    }
    if (call.receive_type != MPI_DATATYPE_NULL && call.receive_count > 0) {
        receive_type = std::make_unique<LargeType>(_mpi, call.receive_count, call.receive_type);
        large.receive_type = receive_type->get();
        large.receive_count = 1;
    }
    issue_as<int, int>(form, large, IntArrays(), request);
}

void MpiCommunication::run_in_parts(const CollectiveCall& call) {
    constexpr Count kPart = Count{1} << 30;
    const CommonArguments common = common_arguments(call);
    MPI_Aint lower = 0;
    MPI_Aint extent = 0;
    check_mpi(_mpi.Type_get_extent(common.type, &lower, &extent), "MPI_Type_get_extent");
    CollectiveCall part = call;
    part.send_type = common.type;
    for (Count done = 0; done < common.count; done += kPart) {
        part.send_count = std::min(kPart, common.count - done);
        part.receive_count = part.send_count;
        const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(done) * extent;
        if (call.send != MPI_IN_PLACE && call.send != nullptr) {
            part.send = static_cast<const char*>(call.send) + offset;
        }
        if (call.receive != nullptr) {
            part.receive = static_cast<char*>(call.receive) + offset;
        }
        issue_as<int, int>(Form::blocking, part, IntArrays(), nullptr);
    }
}

void MpiCommunication::run(const CollectiveCall& call) {
    issue(Form::blocking, call, nullptr, nullptr);
}

void MpiCommunication::start(Operations& operations, const std::size_t index, const CollectiveCall& call) {
    issue(Form::nonblocking, call, &operations.requests[index], &operations.states[index]);
}

void MpiCommunication::initialize(Operations& operations, const std::size_t index, const CollectiveCall& call) {
    issue(Form::persistent, call, &operations.requests[index], &operations.states[index]);
}

// ---- windows
// ----------------------------------------------------------------------------------------------------------

std::unique_ptr<Window> MpiCommunication::open_window(const WindowRequest& request) {
    return open_mpi_window(_mpi, request);
}

// ---- completion
// -------------------------------------------------------------------------------------------------------

void MpiCommunication::restart(Operations& operations, const std::size_t first, const std::size_t count) {
    if (count == 1) {
        check_mpi(_mpi.Start(&operations.requests[first]), "MPI_Start");
    } else {
        check_mpi(_mpi.Startall(static_cast<int>(count), &operations.requests[first]), "MPI_Startall");
    }
}

void MpiCommunication::release(Operations& operations) {
    for (MPI_Request& request : operations.requests) {
        if (request != MPI_REQUEST_NULL) {
            check_mpi(_mpi.Request_free(&request), "MPI_Request_free");
        }
    }
    for (auto& state : operations.states) {
        state.reset();
    }
}

void MpiCommunication::wait(Operations& operations, const std::size_t first, const std::size_t count) {
    if (count == 1) {
        check_mpi(_mpi.Wait(&operations.requests[first], MPI_STATUS_IGNORE), "MPI_Wait");
    } else {
        check_mpi(_mpi.Waitall(static_cast<int>(count), &operations.requests[first], MPI_STATUSES_IGNORE),
                  "MPI_Waitall");
    }
}

bool MpiCommunication::test(Operations& operations, const std::size_t index) {
    int done = 0;
    check_mpi(_mpi.Test(&operations.requests[index], &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
}

// ---- the two contenders
// -----------------------------------------------------------------------------------------------

namespace {

/// Whether any rank has a buffer that only a GPU may touch. Collective.
bool any_device_memory(MPI_Comm communicator, const std::span<const Buffer* const> buffers) {
    const int here = std::any_of(buffers.begin(), buffers.end(), [](const Buffer* const buffer) {
        return buffer->kind() == BufferKind::device || buffer->kind() == BufferKind::pool;
    });
    int anywhere = 0;
    check_mpi(MPI_Allreduce(&here, &anywhere, 1, MPI_INT, MPI_MAX, communicator), "MPI_Allreduce");
    return anywhere != 0;
}

/// What the library itself says of GPU memory; empty when it takes it.
std::string why_not_gpu_aware(const gpu::Vendor vendor, MPI_Comm communicator) {
    if (vendor == gpu::Vendor::none) {
        return "";  // this rank has host buffers only; the others ask for theirs
    }
    void* const library = library_in_use().handle;
    const bool cuda = vendor == gpu::Vendor::cuda;
    using Query = int (*)();
    const std::array<const char*, 2> queries = cuda ? std::array{"MPIX_Query_cuda_support", "MPIX_Query_cuda_support"}
                                                    : std::array{"MPIX_Query_rocm_support", "MPIX_Query_hip_support"};
    for (const char* const name : queries) {
        if (const auto query = reinterpret_cast<Query>(dlsym(library, name)); query != nullptr && query() != 0) {
            return "";
        }
    }
    // Cray MPICH has one query for all vendors, numbered as in its mpi.h.
    using QueryAny = int (*)(int, int*);
    if (const auto query = reinterpret_cast<QueryAny>(dlsym(library, "MPIX_GPU_query_support")); query != nullptr) {
        constexpr int kCuda = 0;
        constexpr int kHip = 2;
        int supported = 0;
        if (query(cuda ? kCuda : kHip, &supported) == MPI_SUCCESS && supported != 0) {
            return "";
        }
    }
    // MPI-4.1 names the kinds of memory that may be passed.
    MPI_Info info = MPI_INFO_NULL;
    if (library_functions().Comm_get_info(communicator, &info) == MPI_SUCCESS && info != MPI_INFO_NULL) {
        std::array<char, MPI_MAX_INFO_VAL> kinds{};
        int found = 0;
        library_functions().Info_get(info, "mpi_memory_alloc_kinds", MPI_MAX_INFO_VAL - 1, kinds.data(), &found);
        library_functions().Info_free(&info);
        if (found != 0 && std::strstr(kinds.data(), cuda ? "cuda" : "rocm") != nullptr) {
            return "";
        }
    }
    return short_version() + " does not take " + (cuda ? "CUDA" : "ROCm") + " memory";
}

class Native final : public MpiCommunication {
  public:
    explicit Native(const Environment& environment)
        : MpiCommunication(library_functions()),
          _gpu(environment.gpu),
          _assume_gpu_aware(environment.options.assume_gpu_aware) {}

    void prepare(MPI_Comm communicator, const std::span<const Buffer* const> buffers) override {
        if (_assume_gpu_aware || !any_device_memory(communicator, buffers)) {
            return;
        }
        const std::string reason = why_not_gpu_aware(_gpu.vendor(), communicator);
        int here = reason.empty() ? 0 : 1;
        int anywhere = 0;
        check_mpi(MPI_Allreduce(&here, &anywhere, 1, MPI_INT, MPI_MAX, communicator), "MPI_Allreduce");
        if (anywhere != 0) {
            throw Unavailable(reason.empty() ? short_version() + " does not take device memory on every rank" : reason,
                              "run it through Awaken, use an MPI that was built for this GPU, or host buffers");
        }
    }

  private:
    gpu::Runtime& _gpu;
    const bool _assume_gpu_aware;
};

class ThroughAwaken final : public MpiCommunication {
  public:
    ThroughAwaken() : MpiCommunication(reached_functions()) {}

    [[nodiscard]] std::string description() const override { return short_version() + " through Awaken"; }

    void prepare(MPI_Comm communicator, const std::span<const Buffer* const> buffers) override {
        require_layer(communicator, any_device_memory(communicator, buffers));
    }

  private:
    static void require_layer(MPI_Comm communicator, const bool device_memory) {
        using IsActive = int (*)();
        int missing = layer_is_loaded() ? 0 : 1;
        if (missing == 0 && device_memory) {
            const auto is_active = reinterpret_cast<IsActive>(dlsym(RTLD_DEFAULT, "awaken_is_active"));
            missing = is_active != nullptr && is_active() != 0 ? 0 : 2;
        }
        int anywhere = 0;
        check_mpi(MPI_Allreduce(&missing, &anywhere, 1, MPI_INT, MPI_MAX, communicator), "MPI_Allreduce");
        if (anywhere == 1) {
            throw Unavailable("Awaken is not loaded in this process", "run it as `awaken bench` without --native");
        }
        if (anywhere == 2) {
            throw Unavailable("Awaken is loaded and switched off", "unset AWAKEN, or set it to on");
        }
    }
};

}  // namespace

std::unique_ptr<Communication> make_native(const Environment& environment) {
    return std::make_unique<Native>(environment);
}

std::unique_ptr<Communication> make_awaken(const Environment& /* environment */) {
    return std::make_unique<ThroughAwaken>();
}

}  // namespace awaken::bench
