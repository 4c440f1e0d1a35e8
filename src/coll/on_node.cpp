// SPDX-License-Identifier: Apache-2.0
#include "coll/on_node.h"

#include <chrono>
#include <mutex>
#include <optional>

#include "base/backoff.h"
#include "call/held_type.h"
#include "call/progress.h"
#include "mpi/kernel_code.h"

namespace awaken::AWAKEN_ABI {

namespace {

report::Path path_of(const coll::CollectiveOp& collective) noexcept {
    return collective.copied()                              ? report::Path::copied
           : collective.algorithm() == coll::Algorithm::ccl ? report::Path::ccl
                                                            : report::Path::direct;
}

/// A collective that goes on in the background.
class CollectiveTask final : public ipc::Task {
  public:
    explicit CollectiveTask(std::unique_ptr<coll::CollectiveOp> collective) : _op(std::move(collective)) {}

    /// True when the operation is over, well or not.
    bool pump() noexcept override {
        if (_over.load(std::memory_order_acquire)) {
            return true;
        }
        const std::unique_lock lock(_mutex, std::try_to_lock);
        if (!lock.owns_lock() || _over.load(std::memory_order_relaxed)) {
            return _over.load(std::memory_order_acquire);
        }
        try {
            if (_revoked.load(std::memory_order_acquire)) {
                _op->revoke();
                _error = FaultTolerance::revocation();
            } else if (!_op->advance()) {
                return false;
            }
        } catch (const Error& error) {
            _error = error;
        } catch (const std::bad_alloc&) {
            _error.emplace("a nonblocking collective ran out of host memory", "free memory, or send less");
        }
        _op.reset();
        _over.store(true, std::memory_order_release);
        return true;
    }
    /// Makes the next pump() end the operation.
    void revoke() noexcept { _revoked.store(true, std::memory_order_release); }
    /// To be read only when the operation is over.
    [[nodiscard]] const std::optional<Error>& error() const noexcept { return _error; }

  private:
    std::mutex _mutex;
    std::unique_ptr<coll::CollectiveOp> _op;
    std::atomic<bool> _over{false}, _revoked{false};
    std::optional<Error> _error;
};

/// A nonblocking collective. Its request completes when the operation is over; there is no native operation.
class CollectiveProgress final : public ProgressOp {
  public:
    CollectiveProgress(std::shared_ptr<CollectiveTask> job, Stage stage, const MPI_Comm communicator)
        : _job(std::move(job)), _stage(std::move(stage)), _communicator(communicator) {}

    [[nodiscard]] bool advance(const MPI_Status*, transport::Patience) override {
        if (layer().fault_tolerance.is_revoked(_communicator)) {
            _job->revoke();
        }
        return _job->pump();
    }
    void conclude(MPI_Status&, int& error) override {
        if (!_concluded) {
            _concluded = true;
            const std::optional<Error>& failure = _stage.failure() ? _stage.failure() : _job->error();
            if (failure) {
                Layer& owner = layer();
                _error = owner.error_code(MPI_ERR_OTHER, *failure);
                owner.real.Comm_call_errhandler(_communicator, _error);
            } else {
                _stage.store();
            }
        }
        if (_error != MPI_SUCCESS) {
            error = _error;
        }
    }
    void leave() override {
        if (!_job->pump()) {
            if (ipc::Link* const link = layer().node_peers.link()) {
                link->background().take(_job);
            }
        }
    }
    [[nodiscard]] bool may_have_arrived() const override { return true; }

  private:
    const std::shared_ptr<CollectiveTask> _job;
    Stage _stage;  ///< for buffers with gaps that the GPU cannot pack
    const MPI_Comm _communicator;
    bool _concluded = false;
    int _error = MPI_SUCCESS;
};

}  // namespace

OnNode::OnNode(Call& call, const MPI_Comm comm, const coll::Kind kind, coll::NodeComm* const node_comm)
    : _call(call), _communicator(comm), _node_comm(node_comm), _stage(call) {
    arguments.kind = kind;
}

std::uint64_t OnNode::bytes_of(const std::int64_t count, const MPI_Datatype type) const {
    MPI_Count bytes = 0;
    if (count <= 0 || type == MPI_DATATYPE_NULL || layer().real.Type_size_x(type, &bytes) != MPI_SUCCESS ||
        bytes <= 0) {
        return 0;
    }
    return static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(bytes);
}

void OnNode::reduces(const MPI_Op op, const MPI_Datatype type, const std::int64_t count) {
    arguments.elements = static_cast<std::uint64_t>(count);
    arguments.bytes = bytes_of(count, type);
    arguments.code = kernel_code(layer().real, op, type);
    if (arguments.code == 0) {
        arguments.obstacle = "no kernel for this type and operation";
    }
}

void OnNode::add_piece(coll::Buffer& all, const Access access, const BufferView& part, const bool alone) {
    Stage::Located located = _stage.locate(part.address, part.count, part.type);
    if (located.type == nullptr) {
        // The buffer is not looked at, since this process uses no GPU.
        if (bytes_of(part.count, part.type) != 0) {
            all.state = coll::Buffer::State::host;
        }
        return;
    }
    const Datatype& type = *located.type;
    if (part.count <= 0 || type.layout.size() == 0) {
        return;
    }
    coll::Buffer::Segment piece;
    piece.at = all.bytes;
    piece.bytes = static_cast<std::uint64_t>(part.count) * static_cast<std::uint64_t>(type.layout.size());
    piece.info = located.info;
    piece.address = part.address + type.layout.span(part.count).begin;
    const bool contiguous = !located.mixed && type.layout.is_contiguous(part.count);
    bool known = contiguous;
    if (!contiguous && located.served && !located.mixed &&
        (all.info.device < 0 || located.info.device < 0 || all.info.device == located.info.device)) {
        Layer& owner = layer();
        int device = located.info.device;
        if (device < 0) {
            device = owner.gpu().device_to_use();
        }
        piece.typed = type.memory(part.address, part.count);
        known = owner.node_peers.copies() != nullptr && owner.node_peers.copies()->can_move(device, *piece.typed);
    }
    bool is_device = located.served;
    if (!known && arguments.compulsory) {
        // Its packed staging buffer takes part, even if the CPU could reach the memory.
        located.served = true;
        const Argument<std::int64_t> staged =
            _stage.buffer(access, part.address, part.count, part.type, std::move(located));
        piece.typed = nullptr;
        piece.address = static_cast<std::byte*>(staged.address);
        piece.info = {};
        is_device = false;
    }
    using State = coll::Buffer::State;
    const State state = is_device ? State::device : State::host;
    const bool joins = all.state == State::unused || all.state == state;
    if (!arguments.compulsory && is_device && !known) {
        all.state = State::other;
        arguments.obstacle = "a rank's datatype has gaps that its GPU cannot pack";
    } else if (!arguments.compulsory && !joins) {
        all.state = State::other;
        arguments.obstacle = "a rank's buffer is partly host memory";
    } else if (joins || is_device) {
        all.state = state;
        if (all.pieces.empty() || !joins) {
            all.address = piece.address;
            all.info = piece.info;
        }
    }
    all.bytes += piece.bytes;
    if (!alone || !contiguous) {
        all.gathered = true;
        all.pieces.push_back(std::move(piece));
    }
}

coll::Buffer OnNode::look_at(const Access access, const void* const buffer, const std::int64_t count,
                             const MPI_Datatype type) {
    coll::Buffer seen;
    if (count > 0) {
        add_piece(seen, access, {static_cast<std::byte*>(const_cast<void*>(buffer)), count, type}, true);
    }
    return seen;
}

/// Whether the parts of one type lie in one stretch of elements without gaps. Elements that belong to no part count as
/// part of the stretch.
bool OnNode::is_one_stretch(const std::vector<BufferView>& parts, BufferView& stretch) const {
    Layer& owner = layer();
    if (!owner.gpu().is_present() || parts.front().type == MPI_DATATYPE_NULL) {
        return false;
    }
    const auto type = owner.datatypes.find(parts.front().type);
    const std::int64_t extent = type->layout.extent();
    stretch = {nullptr, 0, parts.front().type};
    const std::byte* end = nullptr;
    for (const BufferView& part : parts) {
        if (part.count > 0) {
            stretch.address = end == nullptr ? part.address : std::min(stretch.address, part.address);
            end = std::max<const std::byte*>(end, part.address + part.count * extent);
        }
    }
    if (end == nullptr || extent <= 0) {
        return false;
    }
    stretch.count = (end - stretch.address) / extent;
    return type->layout.is_contiguous(stretch.count);
}

/// Whether all parts of a stretch are in one kind of memory and one allocation; its first byte was looked at already.
/// With absolute displacements from MPI_BOTTOM they need not be.
bool OnNode::is_one_memory(const coll::Buffer& stretch, const std::vector<BufferView>& parts) const {
    if (stretch.state != coll::Buffer::State::host) {
        const gpu::PointerInfo& info = stretch.info;
        const auto begin = reinterpret_cast<std::uintptr_t>(stretch.address);
        return info.base == 0 || (begin >= info.base && begin + stretch.bytes <= info.base + info.size);
    }
    std::uint64_t bytes = 0;
    for (const BufferView& part : parts) {
        bytes += bytes_of(part.count, part.type);
    }
    return bytes >= stretch.bytes || std::none_of(parts.begin(), parts.end(), [&](const BufferView& part) {
               return part.count > 0 && _stage.locate(part.address, part.count, part.type).served;
           });
}

/// Whether all parts are runs of bytes in one allocation that others can map.
bool OnNode::is_one_allocation(const std::vector<BufferView>& parts, coll::Buffer& all) const {
    coll::Buffer seen;
    const std::byte* end = nullptr;
    for (const BufferView& part : parts) {
        if (bytes_of(part.count, part.type) == 0) {
            continue;
        }
        const Stage::Located located = _stage.locate(part.address, part.count, part.type);
        if (located.type == nullptr || !located.served || located.mixed || located.info.base == 0 ||
            !located.type->layout.is_contiguous(part.count) ||
            (end != nullptr && located.info.base != seen.info.base)) {
            return false;
        }
        std::byte* const begin = part.address + located.type->layout.true_begin();
        seen.info = located.info;
        seen.address = end == nullptr ? begin : std::min(seen.address, begin);
        end = std::max<const std::byte*>(end, begin + part.count * located.type->layout.size());
    }
    if (end == nullptr) {
        return false;
    }
    seen.state = coll::Buffer::State::device;
    seen.bytes = static_cast<std::uint64_t>(end - seen.address);
    all = std::move(seen);
    return true;
}

void OnNode::look_at_parts(coll::Buffer& all, std::vector<std::uint64_t>& offsets,
                           std::vector<std::uint64_t>* const bytes, const Input& input) {
    const std::vector<BufferView>& parts = input.parts;
    const bool one_type = input.layout == Input::Layout::parts;
    arguments.varying = true;
    offsets.assign(parts.size(), 0);
    if (bytes != nullptr) {
        bytes->assign(parts.size(), 0);
    }
    const Access access = bytes != nullptr ? Access::inout : Access::in;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::uint64_t length = bytes_of(parts[i].count, parts[i].type);
        arguments.bytes = std::max(arguments.bytes, length);
        if (bytes != nullptr) {
            (*bytes)[i] = length;
        }
    }
    BufferView stretch{};
    bool stretched = one_type && is_one_stretch(parts, stretch);
    if (stretched) {
        coll::Buffer whole = look_at(access, stretch.address, stretch.count, stretch.type);
        stretched = is_one_memory(whole, parts);
        if (stretched) {
            all = std::move(whole);
        }
    }
    if (stretched || (!one_type && is_one_allocation(parts, all))) {
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const std::uint64_t length = bytes_of(parts[i].count, parts[i].type);
            if (length == 0) {
                continue;
            }
            const std::int64_t lead = layer().datatypes.find(parts[i].type)->layout.true_begin();
            offsets[i] = static_cast<std::uint64_t>(parts[i].address + lead - all.address);
            // Bytes between the parts belong to the program.
            if (!all.pieces.empty() && all.pieces.back().at + all.pieces.back().bytes == offsets[i]) {
                all.pieces.back().bytes += length;
            } else {
                all.pieces.push_back({all.address + offsets[i], all.info, offsets[i], length, nullptr});
            }
        }
        return;
    }
    BufferView next{nullptr, 0, MPI_DATATYPE_NULL};
    std::uint64_t end = 0;  ///< end of the pieces so far, in the buffer that takes part
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const BufferView& part = parts[i];
        offsets[i] = end;
        if (part.count <= 0) {
            continue;
        }
        end += bytes_of(part.count, part.type);
        MPI_Aint lower_bound = 0, extent = 0;
        layer().real.Type_get_extent(part.type, &lower_bound, &extent);
        if (one_type && next.count != 0 && part.address == next.address + next.count * extent) {
            next.count += part.count;  // this part continues the one before
            continue;
        }
        if (next.count != 0) {
            add_piece(all, access, next, false);
        }
        next = part;
    }
    if (next.count != 0) {
        add_piece(all, access, next, false);
    }
}

void OnNode::sends(Input input) {
    if (input.layout == Input::Layout::whole) {
        arguments.send =
            look_at(Access::in, input.parts.front().address, input.parts.front().count, input.parts.front().type);
    } else {
        look_at_parts(arguments.send, _send_offsets, nullptr, input);
        arguments.send_offsets = _send_offsets;
    }
    if (_persistent) {
        _sent = std::move(input);
    }
}

void OnNode::receives(Input input) {
    if (input.layout == Input::Layout::whole) {
        arguments.receive =
            look_at(Access::inout, input.parts.front().address, input.parts.front().count, input.parts.front().type);
    } else {
        look_at_parts(arguments.receive, _receive_offsets, &_receive_bytes, input);
        arguments.receive_offsets = _receive_offsets;
        arguments.bytes_from = _receive_bytes;
        if (_sends_received_parts) {
            arguments.send_offsets = _receive_offsets;
        }
    }
    if (_persistent) {
        _received = std::move(input);
    }
}

void OnNode::sends(const void* const buffer, const std::int64_t count, const MPI_Datatype type) {
    if (_persistent) {
        sends(Input{{{static_cast<std::byte*>(const_cast<void*>(buffer)), count, type}}, Input::Layout::whole});
    } else {
        arguments.send = look_at(Access::in, buffer, count, type);
    }
}

void OnNode::receives(const void* const buffer, const std::int64_t count, const MPI_Datatype type) {
    if (_persistent) {
        receives(Input{{{static_cast<std::byte*>(const_cast<void*>(buffer)), count, type}}, Input::Layout::whole});
    } else {
        arguments.receive = look_at(Access::inout, buffer, count, type);
    }
}

bool OnNode::run(MPI_Request* const request) {
    Layer& owner = layer();
    if (!arguments.compulsory || arguments.obstacle != nullptr) {
        const auto is_device = [](const coll::Buffer& buffer) {
            return buffer.state == coll::Buffer::State::unused || buffer.state == coll::Buffer::State::device;
        };
        // If kernels do not have an operation, that holds for all ranks, and says nothing about the others' buffers.
        if (arguments.obstacle == nullptr) {
            _node_comm->saw(arguments.kind, is_device(arguments.send) && is_device(arguments.receive));
        }
        return false;
    }
    owner.fault_tolerance.refuse_revoked(_communicator);
    auto operation = make_operation(Operation::Kind::once);
    if (operation->start_own_handle(request) != MPI_SUCCESS) {
        throw Error("the MPI gives no request", "complete some of the program's requests first");
    }
    owner.requests.add_progress_op(operation, begin());
    owner.requests.track(std::move(operation));
    return true;
}

/// Begins the operation, which then goes on in the background. The other members have begun it, or will: where this
/// one's data cannot be copied, it fails in all of them.
std::unique_ptr<ProgressOp> OnNode::begin() {
    _stage.load(Stage::Failure::kept);
    if (_stage.failure()) {
        refuse();
    }
    _call.account(report::Path::direct,
                  static_cast<std::int64_t>(std::max(arguments.send.bytes, arguments.receive.bytes)));
    count_rank_order();
    auto progress_op = std::make_unique<CollectiveProgress>(
        std::make_shared<CollectiveTask>(_node_comm->begin(arguments)), std::move(_stage), _communicator);
    progress_op->leave();
    return progress_op;
}

void OnNode::count_rank_order() const noexcept {
    if (arguments.in_rank_order) {
        layer().collectives.folded_by_kernels.fetch_add(1, std::memory_order_relaxed);
    }
}

/// A member that cannot do its part tells the others.
void OnNode::refuse() {
    arguments.send = arguments.receive = {};
    arguments.obstacle = "its start has failed";
}

/// The arguments that a persistent collective keeps from its initialisation. Each start is the nonblocking call with
/// these.
class OnNode::Persistent {
  public:
    Persistent(const OnNode& made, std::shared_ptr<coll::NodeComm> node_comm)
        : _communicator(made._communicator),
          _node_comm(std::move(node_comm)),
          _arguments(made.arguments),
          _sent(made._sent),
          _received(made._received),
          _sends_received_parts(made._sends_received_parts) {
        _arguments.send = _arguments.receive = {};
        _arguments.bytes_from = _arguments.send_offsets = _arguments.receive_offsets = {};
        _arguments.asks = false;
        _arguments.compulsory = true;
        for (Input* const input : {&_sent, &_received}) {
            for (BufferView& part : input->parts) {
                part.type = _types.hold(part.type);
            }
        }
    }
    Persistent(const Persistent&) = delete;
    Persistent& operator=(const Persistent&) = delete;

    [[nodiscard]] int start(Call& call, const std::shared_ptr<Operation>& operation) const {
        call.on(_communicator);
        layer().fault_tolerance.refuse_revoked(_communicator);
        OnNode here(call, _communicator, _arguments.kind, _node_comm.get());
        here.arguments = _arguments;
        here._sends_received_parts = _sends_received_parts;
        try {
            if (!_received.parts.empty()) {
                here.receives(_received);
            }
            if (!_sent.parts.empty()) {
                here.sends(_sent);
            }
        } catch (...) {
            here.refuse();
            static_cast<void>(here.begin());
            throw;
        }
        if (const int error = operation->start_own_native_request(); error != MPI_SUCCESS) {
            return error;
        }
        layer().requests.add_progress_op(operation, here.begin());
        return MPI_SUCCESS;
    }

  private:
    const MPI_Comm _communicator;
    const std::shared_ptr<coll::NodeComm> _node_comm;
    coll::Arguments _arguments;
    Input _sent, _received;
    const bool _sends_received_parts;
    HeldTypes _types;
};

bool OnNode::run(MPI_Info, MPI_Request* const request) {
    Layer& owner = layer();
    if (!asks()) {
        return false;
    }
    MPI_Request handle = MPI_REQUEST_NULL;
    const int error = make_persistent_handle(&handle);
    std::shared_ptr<coll::NodeComm> node_comm =
        CollectiveComm::of(_communicator)->make_persistent_node_comm(error == MPI_SUCCESS);
    if (node_comm == nullptr) {
        if (handle != MPI_REQUEST_NULL) {
            owner.real.Request_free(&handle);
        }
        return false;
    }
    auto operation = make_operation(Operation::Kind::rebinding);
    operation->handle = operation->native_request = *request = handle;
    operation->launch = [persistent = std::make_shared<const Persistent>(*this, std::move(node_comm))](
                            Call& start, const std::shared_ptr<Operation>& own, int& outcome) {
        outcome = persistent->start(start, own);
        return true;
    };
    owner.requests.track(std::move(operation));
    return true;
}

/// Whether all members would do this collective here. What each passes now decides: later starts are done here,
/// whatever the buffers are by then.
bool OnNode::asks() {
    arguments.asks = true;
    const coll::Arguments given = arguments;
    const std::unique_ptr<coll::CollectiveOp> collective = finished_operation();
    if (_node_comm->must_try_reach()) {
        try_reach();
        arguments = given;
    }
    if (collective->decision() == coll::CollectiveOp::Decision::ours && _node_comm->reachable()) {
        return true;
    }
    if (collective->decision() != coll::CollectiveOp::Decision::host && layer().settings.report) {
        layer().ledger.add_fallback(
            _call.name(), "staged: " + (collective->reason().empty() ? std::string("ranks cannot reach each other's "
                                                                                   "memory")
                                                                     : collective->reason()));
    }
    return false;
}

/// Exchanges a few bytes between all members. A failure tells that they do not reach each other's memory.
void OnNode::try_reach() {
    Layer& owner = layer();
    gpu::Runtime& runtime = owner.gpu();
    ipc::Link* const link = owner.node_peers.link();
    const std::uint64_t bytes = 256;
    const auto members = static_cast<std::uint64_t>(size());
    arguments = {};
    arguments.kind = coll::Kind::allgather;
    arguments.bytes = arguments.own_bytes = arguments.block_bytes = bytes;
    transfer::ExportedPool::Block block;
    int device = -1;
    if (link != nullptr) {
        device = runtime.device_to_use();
        block = link->exported().acquire(device, bytes * (members + 1));
    }
    if (!block) {
        arguments.obstacle = "a rank has no exported device memory";
    } else {
        const auto show = [&](coll::Buffer& buffer, std::byte* const address, const std::uint64_t length) {
            const void* const first = address;
            runtime.classify({&first, 1}, &buffer.info);
            buffer.state = coll::Buffer::State::device;
            buffer.address = address;
            buffer.bytes = length;
        };
        show(arguments.send, block.data(), bytes);
        show(arguments.receive, block.data() + bytes, bytes * members);
    }
    static_cast<void>(finished_operation());
}

bool OnNode::run() {
    Layer& owner = layer();
    arguments.may_be_in_order = is_order(owner.settings.default_stream);
    arguments.alone = !owner.several_threads();
    std::unique_ptr<coll::CollectiveOp> collective = finished_operation();
    arguments.may_be_in_order = false;
    const auto bytes = static_cast<std::int64_t>(std::max(arguments.send.bytes, arguments.receive.bytes));
    if (_node_comm->must_try_reach()) {
        try_reach();
    }
    if (collective->decision() == coll::CollectiveOp::Decision::ours) {
        _call.account(path_of(*collective), bytes);
        count_rank_order();
        owner.count_order(_call.name(), collective->is_in_order(), collective->why_not_in_order());
        if (collective->is_in_order()) {
            coll::CollectiveOp::keep(std::move(collective));
        }
        return true;
    }
    _all_host = collective->decision() == coll::CollectiveOp::Decision::host;
    if (collective->decision() == coll::CollectiveOp::Decision::staged && owner.settings.report) {
        owner.ledger.add_fallback(_call.name(), "staged: " + collective->reason());
    }
    return false;
}

/// Programs look once, after a barrier, for what others sent or completed before it (MPI_Iprobe, MPI_Win_test). In the
/// MPI's own barrier such messages come in on the way, one step of progress for each message that the barrier waits
/// for.
void OnNode::meet() {
    static_cast<void>(run());
    constexpr unsigned kSteps = 2;
    for (unsigned step = 0; step < kSteps && size() > 1; ++step) {
        progress_mpi(_communicator, rank(), size(), 0);
    }
}

std::unique_ptr<coll::CollectiveOp> OnNode::finished_operation() {
    Layer& owner = layer();
    owner.fault_tolerance.refuse_revoked(_communicator);
    std::unique_ptr<coll::CollectiveOp> collective = _node_comm->begin(arguments);
    for (Backoff backoff; !collective->advance();) {
        if (!backoff.turn()) {
            continue;
        }
        // Others may come later because they wait for operations that this process has started. A call of the MPI keeps
        // these going, too.
        progress_mpi(_communicator, rank(), size(), backoff.turns());
        owner.requests.advance_progress_ops();
        if (owner.fault_tolerance.is_revoked(_communicator)) {
            collective->revoke();
            throw FaultTolerance::revocation();
        }
        backoff.pause();
    }
    return collective;
}

}  // namespace awaken::AWAKEN_ABI
