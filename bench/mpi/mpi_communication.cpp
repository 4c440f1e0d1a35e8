// SPDX-License-Identifier: Apache-2.0
#include "mpi/mpi_communication.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <tuple>

#include "base/settings.h"
#include "mpi/benchmark.h"
#include "mpi/large_counts.h"
#include "mpi/mpi_window.h"

namespace awaken::bench {
namespace {

/// The six functions of one collective operation: its three forms, with counts of either type.
#define AWAKEN_COLLECTIVE(Name, Iname, large)                                                 \
    struct Name {                                                                             \
        static constexpr const char* name = "MPI_" #Name;                                     \
        static constexpr const char* persistent_name = "MPI_" #Name "_init";                  \
        template <bool is_large>                                                              \
        static auto functions(const MpiFunctions& mpi) {                                      \
            if constexpr (is_large) {                                                         \
                return std::tuple(mpi.Name##large, mpi.Iname##large, mpi.Name##_init##large); \
            } else {                                                                          \
                return std::tuple(mpi.Name, mpi.Iname, mpi.Name##_init);                      \
            }                                                                                 \
        }                                                                                     \
    };
AWAKEN_COLLECTIVE(Allgather, Iallgather, _c)
AWAKEN_COLLECTIVE(Allgatherv, Iallgatherv, _c)
AWAKEN_COLLECTIVE(Allreduce, Iallreduce, _c)
AWAKEN_COLLECTIVE(Alltoall, Ialltoall, _c)
AWAKEN_COLLECTIVE(Alltoallv, Ialltoallv, _c)
AWAKEN_COLLECTIVE(Alltoallw, Ialltoallw, _c)
AWAKEN_COLLECTIVE(Bcast, Ibcast, _c)
AWAKEN_COLLECTIVE(Gather, Igather, _c)
AWAKEN_COLLECTIVE(Gatherv, Igatherv, _c)
AWAKEN_COLLECTIVE(Reduce, Ireduce, _c)
AWAKEN_COLLECTIVE(Reduce_scatter, Ireduce_scatter, _c)
AWAKEN_COLLECTIVE(Reduce_scatter_block, Ireduce_scatter_block, _c)
AWAKEN_COLLECTIVE(Scatter, Iscatter, _c)
AWAKEN_COLLECTIVE(Scatterv, Iscatterv, _c)
AWAKEN_COLLECTIVE(Scan, Iscan, _c)
AWAKEN_COLLECTIVE(Exscan, Iexscan, _c)
AWAKEN_COLLECTIVE(Neighbor_allgather, Ineighbor_allgather, _c)
AWAKEN_COLLECTIVE(Neighbor_allgatherv, Ineighbor_allgatherv, _c)
AWAKEN_COLLECTIVE(Neighbor_alltoall, Ineighbor_alltoall, _c)
AWAKEN_COLLECTIVE(Neighbor_alltoallv, Ineighbor_alltoallv, _c)
AWAKEN_COLLECTIVE(Neighbor_alltoallw, Ineighbor_alltoallw, _c)
AWAKEN_COLLECTIVE(Barrier, Ibarrier, )  // without counts
#undef AWAKEN_COLLECTIVE

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

// ---- point-to-point ------------------------------------------------------------------------------------------------

/// `large_function`: that of MPI-4, which takes a large count. `last`: what follows the communicator.
template <typename Function, typename LargeFunction, typename... Last>
void MpiCommunication::transfer(const char* const name, const Function function, const LargeFunction large_function,
                                const MessageCall& call, Last... last) {
    if (fits(call.count)) [[likely]] {
        check_mpi(function(call.data, static_cast<int>(call.count), call.type, call.peer, call.tag, call.communicator,
                           last...),
                  name);
    } else if (exists(large_function)) {
        call_or_refuse((std::string(name) + "_c").c_str(), large_function, call.data, call.count, call.type, call.peer,
                       call.tag, call.communicator, last...);
    } else {
        const LargeType large(_mpi, call.count, call.type);
        check_mpi(function(call.data, 1, large.get(), call.peer, call.tag, call.communicator, last...), name);
    }
}

void MpiCommunication::run(const MessageCall& call) {
    if (call.direction == Direction::send) {
        transfer("MPI_Send", _mpi.Send, _mpi.Send_c, call);
    } else {
        transfer("MPI_Recv", _mpi.Recv, _mpi.Recv_c, call, MPI_STATUS_IGNORE);
    }
}

void MpiCommunication::start(Operations& operations, const std::size_t index, const MessageCall& call) {
    if (call.direction == Direction::send) {
        transfer("MPI_Isend", _mpi.Isend, _mpi.Isend_c, call, &operations.requests[index]);
    } else {
        transfer("MPI_Irecv", _mpi.Irecv, _mpi.Irecv_c, call, &operations.requests[index]);
    }
}

void MpiCommunication::initialize(Operations& operations, const std::size_t index, const MessageCall& call) {
    if (call.direction == Direction::send) {
        transfer("MPI_Send_init", _mpi.Send_init, _mpi.Send_init_c, call, &operations.requests[index]);
    } else {
        transfer("MPI_Recv_init", _mpi.Recv_init, _mpi.Recv_init_c, call, &operations.requests[index]);
    }
}

void MpiCommunication::initialize_partitioned(Operations& operations, const std::size_t index, const MessageCall& call,
                                              const int partitions) {
    if (!exists(_mpi.Psend_init) || !exists(_mpi.Pready)) {
        throw Unavailable(short_version() + " has no MPI_Psend_init", "use an MPI with MPI-4's partitioned messages");
    }
    const auto initialize = [&](const char* const name, const auto function) {
        call_or_refuse(name, function, call.data, partitions, call.count, call.type, call.peer, call.tag,
                       call.communicator, MPI_INFO_NULL, &operations.requests[index]);
    };
    if (call.direction == Direction::send) {
        initialize("MPI_Psend_init", _mpi.Psend_init);
    } else {
        initialize("MPI_Precv_init", _mpi.Precv_init);
    }
}

void MpiCommunication::make_ready(Operations& operations, const std::size_t index, const int partitions) {
    for (int partition = 0; partition < partitions; ++partition) {
        call_or_refuse("MPI_Pready", _mpi.Pready, partition, operations.requests[index]);
    }
}

// ---- collectives ---------------------------------------------------------------------------------------------------

template <typename Integer, typename Displacement, typename Arrays>
void MpiCommunication::issue_as(const Form form, const CollectiveCall& call, const Arrays& arrays,
                                MPI_Request* const request) {
    const auto go = [&](const auto collective, const auto... arguments) {
        const auto [blocking, nonblocking, persistent] =
            collective.template functions<!std::is_same_v<Integer, int>>(_mpi);
        switch (form) {
            case Form::blocking:
                call_or_refuse(collective.name, blocking, arguments..., call.communicator);
                break;
            case Form::nonblocking:
                call_or_refuse(collective.name, nonblocking, arguments..., call.communicator, request);
                break;
            case Form::persistent:
                call_or_refuse(collective.persistent_name, persistent, arguments..., call.communicator, MPI_INFO_NULL,
                               request);
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
        case Collective::ring_shift:
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

// ---- windows -------------------------------------------------------------------------------------------------------

std::unique_ptr<Window> MpiCommunication::open_window(const WindowRequest& request) {
    return open_mpi_window(_mpi, request);
}

// ---- completion ----------------------------------------------------------------------------------------------------

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

std::size_t MpiCommunication::wait_any(Operations& operations, const std::size_t first, const std::size_t count) {
    int index = 0;
    check_mpi(_mpi.Waitany(static_cast<int>(count), &operations.requests[first], &index, MPI_STATUS_IGNORE),
              "MPI_Waitany");
    return first + static_cast<std::size_t>(index);
}

void MpiCommunication::wait_one_by_one(Operations& operations, const std::size_t first, const std::size_t count) {
    for (std::size_t left = count; left != 0; --left) {
        static_cast<void>(wait_any(operations, first, count));
    }
}

bool MpiCommunication::test(Operations& operations, const std::size_t index) {
    int done = 0;
    check_mpi(_mpi.Test(&operations.requests[index], &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
}

// ---- the two contenders --------------------------------------------------------------------------------------------

namespace {

/// Whether any rank has a buffer that only a GPU may touch. Collective.
bool any_device_memory(MPI_Comm communicator, const std::span<const Buffer* const> buffers) {
    const int here = std::any_of(buffers.begin(), buffers.end(), [](const Buffer* const buffer) {
        return buffer->kind() == BufferKind::device || buffer->kind() == BufferKind::pool;
    });
    return over_ranks(here, MPI_MAX, communicator) != 0;
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
        if (over_ranks(reason.empty() ? 0 : 1, MPI_MAX, communicator) != 0) {
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
    [[nodiscard]] bool follows_stream() const override { return _follows_default_stream; }

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
        const int anywhere = over_ranks(missing, MPI_MAX, communicator);
        if (anywhere == 1) {
            throw Unavailable("Awaken is not loaded in this process", "run it as `awaken bench` without --native");
        }
        if (anywhere == 2) {
            throw Unavailable("Awaken is loaded and switched off", "unset AWAKEN, or set it to on");
        }
    }

    const bool _follows_default_stream = Settings::from_environment(environ).default_stream != DefaultStream::trust;
};

}  // namespace

std::unique_ptr<Communication> make_native(const Environment& environment) {
    return std::make_unique<Native>(environment);
}

std::unique_ptr<Communication> make_awaken(const Environment& /* environment */) {
    return std::make_unique<ThroughAwaken>();
}

}  // namespace awaken::bench
