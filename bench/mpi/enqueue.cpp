// SPDX-License-Identifier: Apache-2.0
// MPI's stream API as a contender: operations that the stream of a program's kernels orders, queued by the layer.
#include <dlfcn.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include "mpi/benchmark.h"
#include "mpi/engine.h"
#include "mpi/mpi_communication.h"
#include "mpi/replay.h"

namespace awaken::bench {
namespace {

/// The functions of the API, by name: not every MPI has them, and the layer's answer first.
struct StreamFunctions {
    using Stream = int;
    int (*info_set_hex)(MPI_Info, const char*, const void*, int) = nullptr;
    int (*stream_create)(MPI_Info, Stream*) = nullptr;
    int (*stream_free)(Stream*) = nullptr;
    int (*comm_create)(MPI_Comm, Stream, MPI_Comm*) = nullptr;
    int (*isend)(const void*, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) = nullptr;
    int (*irecv)(void*, MPI_Count, MPI_Datatype, int, int, MPI_Comm, MPI_Request*) = nullptr;
    int (*waitall)(int, MPI_Request*, MPI_Status*) = nullptr;
    int (*allreduce)(const void*, void*, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm) = nullptr;
    int (*bcast)(void*, MPI_Count, MPI_Datatype, int, MPI_Comm) = nullptr;
    int (*allgather)(const void*, MPI_Count, MPI_Datatype, void*, MPI_Count, MPI_Datatype, MPI_Comm) = nullptr;
    int (*alltoall)(const void*, MPI_Count, MPI_Datatype, void*, MPI_Count, MPI_Datatype, MPI_Comm) = nullptr;
    int (*reduce_scatter_block)(const void*, void*, MPI_Count, MPI_Datatype, MPI_Op, MPI_Comm) = nullptr;
    int (*barrier)(MPI_Comm) = nullptr;

    /// False when one is missing.
    [[nodiscard]] bool find() {
        const auto look = [](auto& function, const char* const name) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
            return function != nullptr;
        };
        return look(info_set_hex, "MPIX_Info_set_hex") && look(stream_create, "MPIX_Stream_create") &&
               look(stream_free, "MPIX_Stream_free") && look(comm_create, "MPIX_Stream_comm_create") &&
               look(isend, "MPIX_Isend_enqueue_c") && look(irecv, "MPIX_Irecv_enqueue_c") &&
               look(waitall, "MPIX_Waitall_enqueue") && look(allreduce, "MPIX_Allreduce_enqueue_c") &&
               look(bcast, "MPIX_Bcast_enqueue_c") && look(allgather, "MPIX_Allgather_enqueue_c") &&
               look(alltoall, "MPIX_Alltoall_enqueue_c") &&
               look(reduce_scatter_block, "MPIX_Reduce_scatter_block_enqueue_c") &&
               look(barrier, "MPIX_Barrier_enqueue");
    }
};

class Enqueue final : public MpiCommunication {
  public:
    Enqueue(const Environment& environment, const bool is_replayed)
        : MpiCommunication(reached_functions()),
          _environment(environment),
          _is_replayed(is_replayed),
          _stream{nullptr, environment.device} {
        refuse_graph(environment.test, is_replayed);
        int missing = layer_is_loaded() && _functions.find() ? 0 : 1;
        if (missing == 0 && (!environment.gpu.is_present() || environment.device < 0)) {
            missing = 2;
        }
        const int anywhere = over_ranks(missing, MPI_MAX, environment.communicator);
        if (anywhere != 0) {
            throw Unavailable(
                anywhere == 1 ? "Awaken is not loaded in this process, or has no stream API"
                              : "operations are queued in streams of GPUs, and this run uses none",
                anywhere == 1 ? "run it as `awaken bench` without --native" : "choose one with -d cuda or -d rocm");
        }
    }
    ~Enqueue() override { disconnect(); }
    Enqueue(const Enqueue&) = delete;
    Enqueue& operator=(const Enqueue&) = delete;

    [[nodiscard]] std::string description() const override {
        return short_version() + " through Awaken, queued" + (_is_replayed ? " in a graph" : "");
    }

    void connect() override {
        if (_communicator != MPI_COMM_NULL) {
            return;
        }
        gpu::Runtime& gpu = _environment.gpu;
        if (const gpu::Status made = gpu.make_current(_environment.device); !made.ok()) {
            throw Error("the GPU cannot be used (" + made.message() + ")", "look at awaken doctor");
        }
        if (const gpu::Status made = gpu.create_stream(_environment.device, false, _stream); !made.ok()) {
            throw Error("a stream cannot be made (" + made.message() + ")", "free GPU resources");
        }
        MPI_Info info = MPI_INFO_NULL;
        StreamFunctions::Stream stream = 0;
        check_mpi(MPI_Info_create(&info), "MPI_Info_create");
        check_mpi(MPI_Info_set(info, "type", gpu.stream_type()), "MPI_Info_set");
        check_mpi(_functions.info_set_hex(info, "value", &_stream.value, sizeof _stream.value), "MPIX_Info_set_hex");
        check_mpi(_functions.stream_create(info, &stream), "MPIX_Stream_create");
        check_mpi(MPI_Info_free(&info), "MPI_Info_free");
        check_mpi(_functions.comm_create(_environment.communicator, stream, &_communicator), "MPIX_Stream_comm_create");
        check_mpi(_functions.stream_free(&stream), "MPIX_Stream_free");
        check_mpi(MPI_Comm_set_errhandler(_communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    }

    /// Any memory will do.
    void prepare(MPI_Comm /* communicator */, std::span<const Buffer* const> /* buffers */) override {}

    void run(const MessageCall& call) override {
        Operations one(1);
        start(one, 0, call);
        wait(one, 0, 1);
    }
    void start(Operations& operations, const std::size_t index, const MessageCall& call) override {
        MPI_Comm const communicator = of(call.communicator);
        MPI_Request* const request = &operations.requests[index];
        if (call.direction == Direction::send) {
            check_mpi(_functions.isend(call.data, call.count, call.type, call.peer, call.tag, communicator, request),
                      "MPIX_Isend_enqueue");
        } else {
            check_mpi(_functions.irecv(call.data, call.count, call.type, call.peer, call.tag, communicator, request),
                      "MPIX_Irecv_enqueue");
        }
    }

    void run(const CollectiveCall& call) override {
        issue(call);
        synchronize();
    }
    void start(Operations& /* operations */, std::size_t /* index */, const CollectiveCall& call) override {
        issue(call);
    }

    void wait(Operations& operations, const std::size_t first, const std::size_t count) override {
        wait_in_stream(operations, first, count);
        synchronize();
    }
    void wait_one_by_one(Operations& operations, const std::size_t first, const std::size_t count) override {
        wait(operations, first, count);
    }
    bool test(Operations& operations, const std::size_t index) override {
        wait_in_stream(operations, index, 1);
        bool is_over = false;
        require(_environment.gpu.query_stream(_stream, is_over));
        return is_over;
    }

    [[nodiscard]] void* stream() const override { return _stream.value; }
    [[nodiscard]] bool follows_stream() const override { return true; }
    [[nodiscard]] bool is_replayed() const override { return _is_replayed; }
    void wait_in_stream(Operations& operations, const std::size_t first, const std::size_t count) override {
        MPI_Request* const requests = &operations.requests[first];
        if (std::all_of(requests, requests + count, [](MPI_Request each) { return each == MPI_REQUEST_NULL; })) {
            return;  // collectives have none
        }
        check_mpi(_functions.waitall(static_cast<int>(count), requests, MPI_STATUSES_IGNORE), "MPIX_Waitall_enqueue");
        std::fill(requests, requests + count, MPI_REQUEST_NULL);
    }

    // ---- what the API does not have ---------------------------------------------------------------------------------

    void initialize(Operations&, std::size_t, const MessageCall&) override { refuse("persistent operations"); }
    void initialize(Operations&, std::size_t, const CollectiveCall&) override { refuse("persistent operations"); }
    void initialize_partitioned(Operations&, std::size_t, const MessageCall&, int) override {
        refuse("partitioned messages");
    }
    [[nodiscard]] std::unique_ptr<Window> open_window(const WindowRequest& /* request */) override {
        refuse("one-sided operations");
    }

  private:
    [[noreturn]] static void refuse(const std::string& what) {
        throw Unavailable("the contender queues no " + what, "leave enqueue out of --compare");
    }

    [[nodiscard]] MPI_Comm of(MPI_Comm communicator) const {
        if (communicator != _environment.communicator) {
            refuse("operations on other communicators than that of all ranks");
        }
        return _communicator;
    }

    void issue(const CollectiveCall& call) {
        MPI_Comm const communicator = of(call.communicator);
        const auto [count, type] = common_arguments(call);
        switch (call.collective) {
            case Collective::allreduce:
                return check_mpi(
                    _functions.allreduce(call.send, call.receive, count, type, call.operation, communicator),
                    "MPIX_Allreduce_enqueue");
            case Collective::bcast:
                return check_mpi(_functions.bcast(broadcast_buffer(call), count, type, call.root, communicator),
                                 "MPIX_Bcast_enqueue");
            case Collective::allgather:
                return check_mpi(_functions.allgather(call.send, call.send_count, call.send_type, call.receive,
                                                      call.receive_count, call.receive_type, communicator),
                                 "MPIX_Allgather_enqueue");
            case Collective::alltoall:
                return check_mpi(_functions.alltoall(call.send, call.send_count, call.send_type, call.receive,
                                                     call.receive_count, call.receive_type, communicator),
                                 "MPIX_Alltoall_enqueue");
            case Collective::reduce_scatter_block:
                return check_mpi(
                    _functions.reduce_scatter_block(call.send, call.receive, count, type, call.operation, communicator),
                    "MPIX_Reduce_scatter_block_enqueue");
            case Collective::barrier:
                return check_mpi(_functions.barrier(communicator), "MPIX_Barrier_enqueue");
            default:
                refuse("collectives but allreduce, bcast, allgather, alltoall, reduce_scatter_block and barrier");
        }
    }

    void synchronize() { require(_environment.gpu.synchronize_stream(_stream)); }

    void disconnect() noexcept {
        if (_communicator != MPI_COMM_NULL) {
            MPI_Comm_free(&_communicator);
        }
        if (_stream.value != nullptr) {
            static_cast<void>(_environment.gpu.destroy_stream(_stream));
        }
    }

    const Environment& _environment;
    const bool _is_replayed;
    StreamFunctions _functions;
    MPI_Comm _communicator = MPI_COMM_NULL;
    gpu::StreamHandle _stream;
};

}  // namespace

std::unique_ptr<Communication> make_enqueue(const Environment& environment, const bool is_replayed) {
    return std::make_unique<Enqueue>(environment, is_replayed);
}

}  // namespace awaken::bench
