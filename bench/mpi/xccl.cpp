// SPDX-License-Identifier: Apache-2.0
// NCCL and RCCL as a contender: each call as a program that uses the library itself would make it. Collectives that the
// library has are called; those that programs compose of sends and receives are composed so. What neither gives is
// said.
#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <variant>

#include "ccl/ccl.h"
#include "gpu/wait.h"
#include "mpi/benchmark.h"
#include "mpi/engine.h"
#include "mpi/mpi_communication.h"

namespace awaken::bench {
namespace {

constexpr const char* kLeaveOutXccl = "leave xccl out of --compare";

/// What of MPI's types has a counterpart; the others are derived types or MPI's own.
std::optional<ccl::Type> counterpart(MPI_Datatype type) noexcept {
    if (type == MPI_CHAR || type == MPI_SIGNED_CHAR || type == MPI_BYTE || type == MPI_INT8_T) {
        return ccl::Type::int8;
    }
    if (type == MPI_FLOAT) {
        return ccl::Type::float32;
    }
    if (type == MPI_INT || type == MPI_INT32_T) {
        return ccl::Type::int32;
    }
    if (type == MPI_DOUBLE) {
        return ccl::Type::float64;
    }
    if (type == MPI_UNSIGNED_CHAR || type == MPI_UINT8_T) {
        return ccl::Type::uint8;
    }
    if (type == MPI_UNSIGNED || type == MPI_UINT32_T) {
        return ccl::Type::uint32;
    }
    if (type == MPI_LONG || type == MPI_LONG_LONG || type == MPI_INT64_T) {
        return ccl::Type::int64;
    }
    if (type == MPI_UNSIGNED_LONG || type == MPI_UNSIGNED_LONG_LONG || type == MPI_UINT64_T) {
        return ccl::Type::uint64;
    }
    return std::nullopt;
}

std::optional<ccl::Operation> counterpart_of_operation(MPI_Op operation) noexcept {
    if (operation == MPI_SUM) {
        return ccl::Operation::sum;
    }
    if (operation == MPI_PROD) {
        return ccl::Operation::product;
    }
    if (operation == MPI_MAX) {
        return ccl::Operation::maximum;
    }
    if (operation == MPI_MIN) {
        return ccl::Operation::minimum;
    }
    return std::nullopt;
}

bool in_place(const void* buffer) noexcept {
    return buffer == MPI_IN_PLACE;
}

/// An operation under way, or one to be started often.
struct Recipe final : OperationState {
    std::uint64_t number = 0;  ///< over when so many pieces of work have passed through the stream
    std::variant<std::monostate, MessageCall, CollectiveCall> call;  ///< of a persistent one
};

class Xccl final : public Communication {
  public:
    Xccl(const Environment& environment, const bool is_replayed)
        : _gpu(environment.gpu),
          _device(environment.device),
          _mpi_communicator(environment.communicator),
          _rank(environment.rank),
          _ranks(environment.ranks),
          _is_beside_kernels(environment.test.family == Family::halo),
          _is_replayed(is_replayed),
          _stream{nullptr, environment.device} {
        refuse_threads(environment.test);
        refuse_graph(environment.test, is_replayed);
        const std::optional<Error> problem = find_library();
        agree_to_run(_mpi_communicator, problem);
    }
    ~Xccl() override { disconnect(); }
    Xccl(const Xccl&) = delete;
    Xccl& operator=(const Xccl&) = delete;

    [[nodiscard]] std::string description() const override {
        return _library->title() + (_is_replayed ? " in a graph" : "");
    }

    void connect() override {
        if (_communicator.value != nullptr) {
            return;
        }
        try {
            agree_to_run(_mpi_communicator, make_communicator());
        } catch (...) {
            disconnect();
            throw;
        }
    }

    void prepare(MPI_Comm communicator, std::span<const Buffer* const> buffers) override {
        std::optional<Error> problem;
        for (const Buffer* const buffer : buffers) {
            const BufferKind kind = buffer->kind();
            if (kind == BufferKind::host || kind == BufferKind::pinned || kind == BufferKind::registered) {
                problem.emplace(std::string(_library->name()) + " works on memory of GPUs, and a buffer is " +
                                    to_string(kind) + " memory",
                                "use device buffers (-d cuda, -d rocm, or D D)");
            }
        }
        agree_to_run(communicator, problem);
    }

    // ---- point-to-point: tags do not exist, messages between two ranks match in their order -------------------------

    void run(const MessageCall& call) override {
        add_transfer(call);
        wait_for(flush());
    }
    /// Transfers that are started one after the other become one group once somebody waits for one of them, because a
    /// receive that waits in the stream would hold up the sends behind it, and the peer's with them.
    void start(Operations& operations, const std::size_t index, const MessageCall& call) override {
        add_transfer(call);
        note(operations, index, _issued + 1);
    }

    // ---- collectives ------------------------------------------------------------------------------------------------

    void run(const CollectiveCall& call) override { wait_for(issue(call)); }
    void start(Operations& operations, const std::size_t index, const CollectiveCall& call) override {
        note(operations, index, issue(call));
    }

    // ---- persistent: the library has no such thing; a program keeps the arguments -----------------------------------

    void initialize(Operations& operations, const std::size_t index, const MessageCall& call) override {
        check_communicator(call.communicator);
        static_cast<void>(type_of(call.type));
        keep(operations, index, call);
    }
    void initialize(Operations& operations, const std::size_t index, const CollectiveCall& call) override {
        check_communicator(call.communicator);
        keep(operations, index, call);
    }
    void initialize_partitioned(Operations&, std::size_t, const MessageCall&, int) override { refuse_partitions(); }
    void make_ready(Operations&, std::size_t, int) override { refuse_partitions(); }
    void restart(Operations& operations, const std::size_t first, const std::size_t count) override {
        for (std::size_t index = first; index < first + count; ++index) {
            auto& recipe = dynamic_cast<Recipe&>(*operations.states[index]);
            if (const auto* const message = std::get_if<MessageCall>(&recipe.call)) {
                add_transfer(*message);
                recipe.number = _issued + 1;
            } else {
                recipe.number = issue(std::get<CollectiveCall>(recipe.call));
            }
        }
    }
    void release(Operations& operations) override {
        for (auto& state : operations.states) {
            state.reset();
        }
    }

    // ---- completion -------------------------------------------------------------------------------------------------

    [[nodiscard]] std::unique_ptr<Window> open_window(const WindowRequest& /* request */) override {
        throw Unavailable(
            std::string(_library->name()) + " has no call that works in the memory of another rank by itself",
            kLeaveOutXccl);
    }

    void wait(Operations& operations, const std::size_t first, const std::size_t count) override {
        if (_is_replayed) {
            check(_gpu.synchronize_stream(_stream));
            return;
        }
        std::uint64_t last = 0;
        for (std::size_t index = first; index < first + count; ++index) {
            last = std::max(last, number_of(operations, index));
        }
        static_cast<void>(flush());
        wait_for(last);
    }
    [[nodiscard]] void* stream() const override { return _stream.value; }
    [[nodiscard]] bool follows_stream() const override { return _is_beside_kernels; }
    [[nodiscard]] bool is_replayed() const override { return _is_replayed; }
    void wait_in_stream(Operations& operations, const std::size_t first, const std::size_t count) override {
        if (_is_beside_kernels) {
            queue_transfers();
        } else {
            wait(operations, first, count);
        }
    }
    bool test(Operations& operations, const std::size_t index) override {
        static_cast<void>(flush());
        return passed(number_of(operations, index));
    }

  private:
    [[noreturn]] static void refuse_partitions() {
        throw Unavailable("NCCL and RCCL have no partitioned messages", "compare xccl in latency");
    }

    struct Transfer {
        bool send = false;
        void* data = nullptr;
        std::size_t count = 0;
        ccl::Type type = ccl::Type::int8;
        int peer = 0;
    };
    /// A place in the stream.
    struct Mark {
        std::uint64_t number;
        gpu::EventHandle event;
    };

    // ---- setting up -------------------------------------------------------------------------------------------------

    static void refuse_threads(const TestInfo& test) {
        if (test.family == Family::threaded_latency || test.family == Family::process_latency) {
            throw Unavailable("a communicator of NCCL and RCCL serves one thread of one process", kLeaveOutXccl);
        }
    }

    std::optional<Error> find_library() {
        if (!_gpu.is_present() || _device < 0) {
            return Error("NCCL and RCCL work on GPUs, and this run uses none", "choose one with -d cuda or -d rocm");
        }
        std::string why_not;
        _library = ccl::find(_gpu.vendor(), &why_not);
        if (_library == nullptr) {
            // "what happened: what to do (details)"
            const std::size_t colon = why_not.find(": ");
            return Error(why_not.substr(0, colon),
                         colon == std::string::npos ? kLeaveOutXccl : why_not.substr(colon + 2));
        }
        return std::nullopt;
    }

    /// All ranks come here together and leave together, however it ends.
    std::optional<Error> make_communicator() {
        ccl::UniqueId identifier;
        ccl::Status status;
        if (_rank == 0) {
            status = _library->unique_id(identifier);  // NOLINT(clang-analyzer-core.CallAndMessage): load() came first
        }
        std::optional<Error> problem = failure(status);
        int go = problem ? 0 : 1;
        check_mpi(MPI_Bcast(&go, 1, MPI_INT, 0, _mpi_communicator), "MPI_Bcast");
        if (go == 0) {
            return problem;
        }
        check_mpi(MPI_Bcast(identifier.bytes, sizeof identifier.bytes, MPI_BYTE, 0, _mpi_communicator), "MPI_Bcast");
        if (const gpu::Status made = _gpu.make_current(_device); !made.ok()) {
            problem = failure(made);
        }
        if (!_is_beside_kernels || _is_replayed) {
            if (const gpu::Status made = _gpu.create_stream(_device, false, _stream); !problem && !made.ok()) {
                problem = failure(made);
            }
        }
        // A rank that stays away would leave the others waiting for it inside the library.
        agree_to_run(_mpi_communicator, problem);
        return failure(_library->init_rank(_communicator, _ranks, identifier, _rank));
    }

    void disconnect() noexcept {
        ccl::Status error;
        const bool broken =
            _communicator.value != nullptr && _library->async_error(_communicator, error).ok() && !error.ok();
        // Nobody is left to tell.
        static_cast<void>(_communicator.value == nullptr ? ccl::Status{}
                          : broken                       ? _library->abort(_communicator)
                                                         : _library->destroy(_communicator));
        _communicator = {};
        for (const Mark& mark : _marks) {
            static_cast<void>(_gpu.destroy_event(mark.event));
        }
        for (const gpu::EventHandle event : _spare_events) {
            static_cast<void>(_gpu.destroy_event(event));
        }
        _marks.clear();
        _spare_events.clear();
        static_cast<void>(_gpu.destroy_stream(_stream));
        _stream = {};
    }

    [[nodiscard]] std::optional<Error> failure(const ccl::Status& status) const {
        if (status.ok()) {
            return std::nullopt;
        }
        return Error(_library->title() + " cannot be used: " + _library->explain(status, _communicator),
                     "give each rank a GPU of its own (fewer ranks, or --gpu-map), and see NCCL_DEBUG=WARN");
    }
    static std::optional<Error> failure(const gpu::Status& status) {
        if (status.ok()) {
            return std::nullopt;
        }
        return Error("the GPU runtime refused: " + status.message(), "see that the GPU driver works");
    }

    void check(const ccl::Status& status) const {
        if (status.ok()) {
            return;
        }
        if (status.code == ccl::kUnsupported) {
            throw Unavailable(_library->title() + ": " + status.message(), kLeaveOutXccl);
        }
        throw Error(_library->explain(status, _communicator), "see NCCL_DEBUG=WARN");
    }
    static void check(const gpu::Status& status) {
        if (!status.ok()) {
            throw Error(status.message(), "see that the GPU driver works");
        }
    }

    // ---- arguments --------------------------------------------------------------------------------------------------

    void check_communicator(MPI_Comm communicator) const {
        if (communicator != _mpi_communicator) {
            throw Unavailable(std::string(_library->name()) + " runs on the communicator of all ranks alone",
                              kLeaveOutXccl);
        }
    }
    [[nodiscard]] ccl::Type type_of(MPI_Datatype type) const {
        const std::optional<ccl::Type> found = counterpart(type);
        if (!found) {
            throw Unavailable(std::string(_library->name()) +
                                  " has no counterpart of the MPI datatype (derived types do "
                                  "not exist there)",
                              kLeaveOutXccl);
        }
        if (!_library->supports(*found)) {
            throw Unavailable(_library->title() + " does not know " + to_string(*found), kLeaveOutXccl);
        }
        return *found;
    }
    [[nodiscard]] ccl::Operation operation_of(MPI_Op operation) const {
        const std::optional<ccl::Operation> found = counterpart_of_operation(operation);
        if (!found) {
            throw Unavailable(std::string(_library->name()) + " does not know the MPI operation", kLeaveOutXccl);
        }
        return *found;
    }
    [[noreturn]] void lacks(const std::string& what) const {
        throw Unavailable(std::string(_library->name()) + " has no " + what, kLeaveOutXccl);
    }

    // ---- the stream -------------------------------------------------------------------------------------------------

    /// Marks the place in the stream behind what was queued last. Nobody can ask about a place in a graph.
    std::uint64_t mark() {
        if (_is_replayed) {
            return 0;
        }
        gpu::EventHandle event;
        if (_spare_events.empty()) {
            check(_gpu.create_event(_device, event));
        } else {
            event = _spare_events.back();
            _spare_events.pop_back();
        }
        check(_gpu.record_event(event, _stream));
        _marks.push_back({++_issued, event});
        return _issued;
    }

    /// Whether the stream has passed the place.
    bool passed(const std::uint64_t number) {
        while (_passed < number && !_marks.empty()) {
            bool done = false;
            check(_gpu.query_event(_marks.front().event, done));
            if (!done) {
                return false;
            }
            _passed = _marks.front().number;
            _spare_events.push_back(_marks.front().event);
            _marks.pop_front();
        }
        return _passed >= number;
    }

    void wait_for(const std::uint64_t number) {
        constexpr int kNotYet = 1;
        // To look for failures costs more than to look at an event, and they end no kernel by themselves.
        constexpr unsigned kRoundsPerLook = 4096;
        unsigned round = 0;
        static_cast<void>(gpu::poll_until_over(
            [&] {
                if (passed(number)) {
                    return 0;
                }
                if (++round % kRoundsPerLook == 0) {
                    look_for_failure();
                }
                return kNotYet;
            },
            kNotYet));
    }

    void look_for_failure() const {
        ccl::Status error;
        if (!_library->async_error(_communicator, error).ok() || error.code == ccl::kInProgress) {
            return;
        }
        check(error);
    }

    static void note(Operations& operations, const std::size_t index, const std::uint64_t number) {
        auto& state = operations.states[index];
        if (state == nullptr) {
            state = std::make_unique<Recipe>();
        }
        dynamic_cast<Recipe&>(*state).number = number;
    }
    static std::uint64_t number_of(const Operations& operations, const std::size_t index) {
        const auto* const recipe = dynamic_cast<const Recipe*>(operations.states[index].get());
        return recipe != nullptr ? recipe->number : 0;
    }
    static void keep(Operations& operations, const std::size_t index, const auto& call) {
        auto recipe = std::make_unique<Recipe>();
        recipe->call = call;
        operations.states[index] = std::move(recipe);
    }

    // ---- transfers --------------------------------------------------------------------------------------------------

    void add_transfer(const MessageCall& call) {
        check_communicator(call.communicator);
        if (call.peer != MPI_PROC_NULL) {
            _transfers.push_back({call.direction == Direction::send, call.data, static_cast<std::size_t>(call.count),
                                  type_of(call.type), call.peer});
        }
    }

    void issue_transfer(const Transfer& transfer) const {
        check(transfer.send
                  ? _library->send(transfer.data, transfer.count, transfer.type, transfer.peer, _communicator, _stream)
                  : _library->receive(transfer.data, transfer.count, transfer.type, transfer.peer, _communicator,
                                      _stream));
    }

    /// Hands all transfers to the library. The number of the last work queued.
    std::uint64_t flush() {
        if (_transfers.empty()) {
            return _issued;
        }
        queue_transfers();
        return mark();
    }

    /// As one group if there are several.
    void queue_transfers() {
        if (_transfers.size() == 1) {
            issue_transfer(_transfers.front());
        } else {
            check(_library->group_start());
            for (const Transfer& transfer : _transfers) {
                issue_transfer(transfer);
            }
            check(_library->group_end());
        }
        _transfers.clear();
    }

    // ---- collectives ------------------------------------------------------------------------------------------------

    std::uint64_t issue(const CollectiveCall& call) {
        check_communicator(call.communicator);
        static_cast<void>(flush());
        switch (call.collective) {
            case Collective::allreduce:
            case Collective::reduce:
            case Collective::reduce_scatter:
            case Collective::reduce_scatter_block:
                reduction(call);
                break;
            case Collective::bcast: {
                const CommonArguments common = common_arguments(call);
                void* const data = broadcast_buffer(call);
                check(_library->broadcast(data, data, static_cast<std::size_t>(common.count), type_of(common.type),
                                          call.root, _communicator, _stream));
                break;
            }
            case Collective::allgather: {
                const ccl::Type type = type_of(call.receive_type);
                const auto count = static_cast<std::size_t>(call.receive_count);
                const void* const send = in_place(call.send)
                                             ? at(call.receive, static_cast<std::size_t>(_rank) * count * size_of(type))
                                             : call.send;
                check(_library->all_gather(send, call.receive, count, type, _communicator, _stream));
                break;
            }
            case Collective::gather:
            case Collective::gatherv:
            case Collective::scatter:
            case Collective::scatterv:
            case Collective::allgatherv:
            case Collective::alltoall:
            case Collective::alltoallv:
            case Collective::alltoallw:
                return exchange(call);
            case Collective::barrier:
                lacks("barrier");
            case Collective::scan:
            case Collective::exscan:
                lacks("prefix reductions");
            case Collective::none:
                throw Error("a collective call names no operation", "name one");
            default:
                lacks("neighbourhood collectives");
        }
        return mark();
    }

    void reduction(const CollectiveCall& call) {
        const CommonArguments common = common_arguments(call);
        const ccl::Type type = type_of(common.type);
        const ccl::Operation operation = operation_of(call.operation);
        const auto count = static_cast<std::size_t>(common.count);
        const void* const send = in_place(call.send) ? call.receive : call.send;
        if (call.collective == Collective::allreduce) {
            check(_library->all_reduce(send, call.receive, count, type, operation, _communicator, _stream));
            return;
        }
        if (call.collective == Collective::reduce) {
            check(_library->reduce(send, call.receive, count, type, operation, call.root, _communicator, _stream));
            return;
        }
        if (in_place(call.send)) {
            lacks("reduce-scatter whose result lies at the start of the operand (MPI_IN_PLACE)");
        }
        const bool blocks = call.collective == Collective::reduce_scatter_block;
        if (blocks || std::adjacent_find(call.receive_counts.begin(), call.receive_counts.end(),
                                         std::not_equal_to<>()) == call.receive_counts.end()) {
            const auto share = blocks ? call.receive_count : call.receive_counts.front();
            check(_library->reduce_scatter(send, call.receive, static_cast<std::size_t>(share), type, operation,
                                           _communicator, _stream));
            return;
        }
        // Shares of different sizes: a group of reductions, one to each rank.
        check(_library->group_start());
        std::size_t offset = 0;
        for (int rank = 0; rank < _ranks; ++rank) {
            const auto share = static_cast<std::size_t>(call.receive_counts[static_cast<std::size_t>(rank)]);
            check(
                _library->reduce(at(send, offset), call.receive, share, type, operation, rank, _communicator, _stream));
            offset += share * size_of(type);
        }
        check(_library->group_end());
    }

    /// One rank's part in a collective of sends and receives.
    struct Side {
        const CollectiveCall& call;
        const Xccl& owner;
        bool sending;

        [[nodiscard]] Transfer part(const int peer) const {
            const auto index = static_cast<std::size_t>(peer);
            const auto& counts = sending ? call.send_counts : call.receive_counts;
            const auto& displacements = sending ? call.send_displacements : call.receive_displacements;
            const auto& types = sending ? call.send_types : call.receive_types;
            const bool typed = call.collective == Collective::alltoallw;
            const ccl::Type type = owner.type_of(typed ? types[index] : sending ? call.send_type : call.receive_type);
            const std::size_t size = ccl::size_of(type);
            const auto count = static_cast<std::size_t>(!counts.empty() ? counts[index]
                                                        : sending       ? call.send_count
                                                                        : call.receive_count);
            // Displacements are in elements, those of the w forms in bytes; blocks without any follow each other.
            const std::size_t offset = displacements.empty()
                                           ? index * count * size
                                           : static_cast<std::size_t>(displacements[index]) * (typed ? 1 : size);
            void* const data = sending ? const_cast<void*>(call.send) : call.receive;
            return {sending, at(data, offset), count, type, peer};
        }
        /// The buffer as one block, whoever it is for.
        [[nodiscard]] Transfer whole(const int peer) const {
            const ccl::Type type = owner.type_of(sending ? call.send_type : call.receive_type);
            void* const data = sending ? const_cast<void*>(call.send) : call.receive;
            return {sending, data, static_cast<std::size_t>(sending ? call.send_count : call.receive_count), type,
                    peer};
        }
    };

    std::uint64_t exchange(const CollectiveCall& call) {
        const Side sending{call, *this, true};
        const Side receiving{call, *this, false};
        const bool root = _rank == call.root;
        switch (call.collective) {
            case Collective::gather:
            case Collective::gatherv:
                if (!(root && in_place(call.send))) {
                    _transfers.push_back(sending.whole(call.root));
                }
                for (int peer = 0; root && peer < _ranks; ++peer) {
                    if (peer != _rank || !in_place(call.send)) {
                        _transfers.push_back(receiving.part(peer));
                    }
                }
                break;
            case Collective::scatter:
            case Collective::scatterv:
                for (int peer = 0; root && peer < _ranks; ++peer) {
                    if (peer != _rank || !in_place(call.receive)) {
                        _transfers.push_back(sending.part(peer));
                    }
                }
                if (!(root && in_place(call.receive))) {
                    _transfers.push_back(receiving.whole(call.root));
                }
                break;
            case Collective::allgatherv: {
                const bool here = in_place(call.send);
                Transfer own = here ? receiving.part(_rank) : sending.whole(_rank);
                own.send = true;
                for (int peer = 0; peer < _ranks; ++peer) {
                    if (peer == _rank && here) {
                        continue;
                    }
                    own.peer = peer;
                    _transfers.push_back(own);
                    _transfers.push_back(receiving.part(peer));
                }
                break;
            }
            default:
                if (in_place(call.send)) {
                    lacks("exchange of all with all in place (MPI_IN_PLACE)");
                }
                for (int peer = 0; peer < _ranks; ++peer) {
                    _transfers.push_back(sending.part(peer));
                    _transfers.push_back(receiving.part(peer));
                }
                break;
        }
        std::erase_if(_transfers, [](const Transfer& transfer) { return transfer.count == 0; });
        return flush();
    }

    static const void* at(const void* data, const std::size_t bytes) noexcept {
        return static_cast<const std::byte*>(data) + bytes;
    }
    static void* at(void* data, const std::size_t bytes) noexcept { return static_cast<std::byte*>(data) + bytes; }

    gpu::Runtime& _gpu;
    const int _device;
    const MPI_Comm _mpi_communicator;
    const int _rank;
    const int _ranks;
    const ccl::Library* _library = nullptr;
    ccl::Communicator _communicator;
    const bool _is_beside_kernels;  ///< in their stream
    const bool _is_replayed;
    gpu::StreamHandle _stream;  ///< null is the default stream, which no graph can have

    std::vector<Transfer> _transfers;  ///< started, but not yet handed to the library
    std::uint64_t _issued = 0;         ///< number of the last work queued
    std::uint64_t _passed = 0;         ///< number of the last work known to be over
    std::deque<Mark> _marks;           ///< of the work between
    std::vector<gpu::EventHandle> _spare_events;
};

}  // namespace

std::unique_ptr<Communication> make_xccl(const Environment& environment, const bool is_replayed) {
    return std::make_unique<Xccl>(environment, is_replayed);
}

}  // namespace awaken::bench
