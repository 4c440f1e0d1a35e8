// SPDX-License-Identifier: Apache-2.0
#include "enqueue/stream_ccl.h"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

#include "base/backoff.h"
#include "base/own_thread.h"
#include "call/call.h"
#include "coll/own_communicator.h"
#include "gpu/kernels/codes.h"

namespace awaken::AWAKEN_ABI {

using coll::CclCommunicator;
using coll::Kind;
using Clock = std::chrono::steady_clock;

namespace {

/// Joining may never end: a member may be held up in the driver, by a stream that waits for another member.
constexpr std::chrono::minutes kLongestJoining{1};
/// While a stream is waited for, the library is asked so often whether it has failed.
constexpr std::chrono::milliseconds kBetweenChecks{50};
/// A member that has done its part may be gone already; the others' parts are over soon then.
constexpr std::chrono::seconds kPatienceForParts{2};

/// Of messages without bytes, by which a member tells that it has failed.
constexpr int kFailureTag = 1;
constexpr const char* kFailedElsewhere = "another rank could not join a communicator of the library";

/// The library connects members when they first need it, and in that call waits for the others'. So a thread issues
/// collectives of several sizes beforehand, since the library goes other ways for each. Beyond so many members an
/// all-to-all is left out, which connects each with each.
constexpr std::size_t kConnectBytes = std::size_t{4} << 20;
constexpr std::array<std::size_t, 3> kConnectSizes{8, std::size_t{64} << 10, kConnectBytes};
constexpr int kMostConnected = 64;

constexpr std::uint32_t kSumOfInts = kernels::code_of(kernels::ElementType::int32, kernels::ReductionOperation::sum);

/// Those that the library is giving up, in threads of its own.
class Leaving {
  public:
    static Leaving& instance() {
        static auto* const made = new Leaving;  // kept for the life of the process: see Layer
        return *made;
    }

    void add(const std::shared_ptr<StreamCcl>& one) {
        const std::scoped_lock lock(_mutex);
        std::erase_if(_all, [](const auto& each) { return each->has_left(); });
        _all.push_back(one);
    }
    void finish() noexcept {
        const std::scoped_lock lock(_mutex);
        const auto is_under_way = [](const auto& each) { return !each->has_left() && !each->has_graphs(); };
        const Clock::time_point until = Clock::now() + kLongestJoining;
        for (Backoff backoff; std::any_of(_all.begin(), _all.end(), is_under_way) && Clock::now() < until;) {
            if (backoff.turn()) {
                backoff.pause();
            }
        }
        _all.clear();
    }

  private:
    std::mutex _mutex;
    std::vector<std::shared_ptr<StreamCcl>> _all;
};

/// Collectives of one size, on memory that nobody reads.
void issue_all(const CclCommunicator::Issuer& issuer, const int members, const int own, std::byte* const memory,
               const std::size_t bytes, const gpu::StreamHandle stream) {
    const std::uint64_t block = std::max<std::uint64_t>(bytes / static_cast<std::uint64_t>(members) / 8 * 8, 8);
    CclCommunicator::Operation operation{.code = kSumOfInts, .members = members, .own = own};
    const auto issue = [&](const Kind kind, const std::uint64_t elements, std::byte* send, std::byte* receive) {
        operation.kind = kind;
        operation.elements = elements;
        operation.block_bytes = block;
        operation.send = send;
        operation.receive = receive;
        issuer.issue(operation, stream);
    };
    std::byte* const part = memory + block * static_cast<std::uint64_t>(own);
    issue(Kind::allreduce, bytes / 4, memory, memory);
    issue(Kind::broadcast, bytes, memory, memory);
    issue(Kind::allgather, 0, part, memory);
    issue(Kind::reduce_scatter, block / 4, memory, part);
    if (members <= kMostConnected) {
        issue(Kind::alltoall, 0, memory, memory + block * static_cast<std::uint64_t>(members));
    }
}

/// Of memory for issue_all().
std::size_t connect_bytes(const int members) noexcept {
    return 2 * std::max(kConnectBytes, 8 * static_cast<std::size_t>(members));
}

}  // namespace

void finish_leaving() noexcept {
    Leaving::instance().finish();
}

/// Of a thread that the library may keep for ever, and that may outlive the object.
struct StreamCcl::Connection {
    std::atomic<bool> is_over{false}, is_given_up{false};
    std::string why;
    void* memory = nullptr;
    std::thread thread;
};

// ---- agreeing -------------------------------------------------------------------------------------------------------

std::shared_ptr<StreamCcl> StreamCcl::agree(const MPI_Comm communicator, const gpu::StreamHandle* const stream) {
    Layer& owner = layer();
    const Native& native = owner.real;
    int size = 0, is_between = 0;
    native.Comm_size(communicator, &size);
    native.Comm_test_inter(communicator, &is_between);
    if (is_between != 0 || size < 2) {
        return nullptr;
    }
    struct Member {
        std::uint64_t device, table;  ///< 0: it cannot use the library
        int node, vendor;
    } mine{0, owner.collectives.selection.hash(), owner.node_peers.own_node(), static_cast<int>(owner.gpu().vendor())};
    // When the communicator is revoked, nothing ends the library's wait.
    coll::Engine* const engine = owner.node_peers.engine();
    if (stream != nullptr && engine != nullptr && !owner.fault_tolerance.active()) {
        try {
            if (!owner.gpu().is_soon_idle(stream->device)) {
                throw Error("a GPU had work when a communicator got its stream, so NCCL or RCCL was not set up",
                            "make the communicator when the GPU has none");
            }
            mine.device = engine->identity_of(stream->device);
        } catch (const Error& error) {
            owner.ledger.add_fallback("collectives in streams", error.what());
        }
    }
    std::vector<Member> all(static_cast<std::size_t>(size));
    if (const int error =
            native.Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, communicator);
        error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    std::vector<std::uint64_t> devices;
    std::vector<int> nodes;
    bool is_possible = true;
    for (const Member& each : all) {
        devices.push_back(each.device);
        nodes.push_back(each.node);
        is_possible = is_possible && each.device != 0 && each.table == mine.table && each.vendor == mine.vendor;
    }
    std::sort(devices.begin(), devices.end());
    std::sort(nodes.begin(), nodes.end());
    // The library refuses two members on one GPU.
    if (!is_possible || std::adjacent_find(devices.begin(), devices.end()) != devices.end()) {
        return nullptr;
    }
    const auto node_count = static_cast<int>(std::unique(nodes.begin(), nodes.end()) - nodes.begin());
    auto made = std::make_shared<StreamCcl>(communicator, *stream, node_count);
    constexpr Kind kKinds[] = {Kind::allreduce, Kind::broadcast,      Kind::allgather,
                               Kind::alltoall,  Kind::reduce_scatter, Kind::barrier};
    constexpr std::uint64_t kShort = 8, kLong = 1 << 20;
    if (std::none_of(std::begin(kKinds), std::end(kKinds), [&](const Kind kind) {
            return made->is_chosen(kind, 0, kShort) || made->is_chosen(kind, 0, kLong);
        })) {
        return nullptr;  // the user's table has other ways
    }
    if (const std::string why = made->make(communicator); !why.empty()) {
        owner.ledger.add_fallback("collectives in streams", "not by NCCL or RCCL: " + why);
        return nullptr;
    }
    return made;
}

StreamCcl::StreamCcl(const MPI_Comm communicator, const gpu::StreamHandle stream, const int nodes)
    : _stream(stream), _nodes(nodes) {
    layer().real.Comm_rank(communicator, &_rank);
    layer().real.Comm_size(communicator, &_size);
    const std::vector<int> indices = layer().node_peers.indices_of(communicator);
    for (int member = 0; member < static_cast<int>(indices.size()); ++member) {
        if (const int index = indices[static_cast<std::size_t>(member)]; member != _rank && index >= 0) {
            _near.push_back(index);
        }
    }
}

StreamCcl::~StreamCcl() {
    _ccl.begin_to_leave();
    if (!_ccl.has_left()) {
        _ccl.leave_alone();
    }
    if (!has_graphs()) {
        layer().gpu().free_when_idle(_memory, _stream.device);
    }
}

// ---- collectives ----------------------------------------------------------------------------------------------------

/// Rows of the program's user decide. Those that are built in choose among ways that wait for the collective.
bool StreamCcl::is_chosen(const Kind kind, const std::uint32_t code, const std::uint64_t bytes) const noexcept {
    const coll::Occasion occasion{kind, coll::type_class_of(kind, code), _size, _nodes, bytes};
    for (const coll::SelectionRow& row : layer().collectives.selection.rows()) {
        if (!row.measured.empty()) {
            break;
        }
        if (row.applies_to(occasion)) {
            return row.algorithm == coll::Algorithm::ccl;
        }
    }
    return true;
}

bool StreamCcl::takes(const Kind kind, const std::uint32_t code, const std::uint64_t bytes) const {
    if (!is_chosen(kind, code, bytes)) {
        return false;
    }
    throw_failure();
    return kind == Kind::barrier || CclCommunicator::supports(*_library, kind, code);
}

void StreamCcl::throw_failure() const {
    if (_has_failed.load(std::memory_order_acquire)) {
        throw Error(*_failure);
    }
}

void StreamCcl::queue(Operation operation, const std::uint64_t capture) {
    const std::scoped_lock lock(_mutex);
    operation.own = _rank;
    operation.members = _size;
    if (operation.kind == Kind::barrier) {
        operation.kind = Kind::allreduce;
        operation.code = kSumOfInts;
        operation.elements = 1;
        operation.send = operation.receive = static_cast<std::byte*>(_memory);
    }
    if (capture != 0 && std::exchange(_last_capture, capture) != capture) {
        count_graph();
    }
    const auto put = [&] { _ccl.issue(operation, _stream); };
    if (const gpu::Status status = layer().gpu().run_on(_stream.device, std::ref(put)); !status.ok()) {
        throw Error("making a GPU current failed (" + status.message() + ")",
                    "an error of an earlier kernel of the program is also reported here");
    }
}

/// Where the runtime tells nothing, the graph counts as there for ever.
void StreamCcl::count_graph() {
    using Count = std::shared_ptr<std::atomic<int>>;
    auto count = std::make_unique<Count>(_graphs);
    _graphs->fetch_add(1, std::memory_order_acq_rel);
    const auto gone = [](void* const state) {
        const std::unique_ptr<Count> own(static_cast<Count*>(state));
        (*own)->fetch_sub(1, std::memory_order_acq_rel);
    };
    if (layer().gpu().when_graph_is_gone(_stream, gone, count.get()).ok()) {
        static_cast<void>(count.release());
    }
}

bool StreamCcl::is_busy() const noexcept {
    std::uint64_t capture = 0;
    bool over = true;
    gpu::Runtime& runtime = layer().gpu();
    return !_has_failed.load(std::memory_order_acquire) && runtime.capture_of(_stream, capture).ok() && capture == 0 &&
           runtime.query_stream(_stream, over).ok() && !over;
}

/// The library does not notice that a process of this node has ended.
void StreamCcl::check_members(std::optional<Clock::time_point>& missed) const {
    const node::Segment* const segment = layer().node_peers.segment();
    if (segment == nullptr ||
        std::all_of(_near.begin(), _near.end(), [&](const int index) { return segment->alive(index); })) {
        missed.reset();
    } else if (!missed) {
        missed = Clock::now();
    } else if (Clock::now() - *missed > kPatienceForParts) {
        throw Error("a rank ended, and a collective that was queued in a stream waits for it",
                    "look at that rank's own output for the reason");
    }
}

void StreamCcl::finish() noexcept {
    gpu::Runtime& runtime = layer().gpu();
    Clock::time_point checked = Clock::now();
    std::optional<Clock::time_point> missed;
    bool over = false;
    for (Backoff backoff; !_has_failed.load(std::memory_order_acquire);) {
        if (!runtime.query_stream(_stream, over).ok() || over) {
            return;
        }
        if (!backoff.turn()) {
            continue;
        }
        if (const Clock::time_point now = Clock::now(); now - checked > kBetweenChecks) {
            checked = now;
            try {
                _ccl.check();
                check_members(missed);
            } catch (const Error& error) {
                const std::scoped_lock lock(_mutex);
                if (!_has_failed.load(std::memory_order_acquire)) {
                    _ccl.abort();
                    _failure = error;
                    _has_failed.store(true, std::memory_order_release);
                }
            }
        }
        backoff.pause();
    }
}

void StreamCcl::leave() noexcept {
    Leaving::instance().add(shared_from_this());
    static_cast<void>(layer().gpu().was_reset());  // after a reset, nothing of the GPU's is touched
    _ccl.begin_to_leave();
}

// ---- making ---------------------------------------------------------------------------------------------------------

/// Collective. Why the library cannot be used: empty on all members, or on none.
std::string StreamCcl::make(const MPI_Comm communicator) {
    // The program's may have hints that forbid MPI_ANY_SOURCE.
    const OwnCommunicator channel(layer().real, communicator);
    ccl::UniqueId identifier;
    std::string why = invite(communicator, channel.handle(), identifier);
    return why.empty() ? join(channel.handle(), identifier) : why;
}

/// Finds the library. Member 0 makes the identifier.
std::string StreamCcl::invite(const MPI_Comm communicator, const MPI_Comm channel, ccl::UniqueId& identifier) {
    struct Invitation {
        int version = 0;  ///< of the library; 0: this member cannot join
        ccl::UniqueId identifier;
    } mine;
    gpu::Runtime& runtime = layer().gpu();
    std::string why;
    _library = ccl::find(runtime.vendor(), &why);
    if (channel == MPI_COMM_NULL) {
        why = "the MPI has no communicator for it";
    } else if (_library != nullptr) {
        ccl::Status status;
        gpu::Status current;
        if (_rank == 0) {
            current = runtime.run_on(_stream.device, [&] { status = _library->unique_id(mine.identifier); });
        }
        if (current.ok() && status.ok()) {
            mine.version = _library->version();
        } else {
            why = current.ok() ? _library->explain(status) : current.message();
        }
    }
    std::vector<Invitation> all(static_cast<std::size_t>(_size));
    if (const int error =
            layer().real.Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, communicator);
        error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    identifier = all.front().identifier;
    if (std::all_of(all.begin(), all.end(),
                    [&](const Invitation& each) { return each.version != 0 && each.version == all.front().version; })) {
        return {};
    }
    return !why.empty() ? why : "another rank has no NCCL or RCCL, or another version";
}

std::string StreamCcl::join(const MPI_Comm channel, const ccl::UniqueId& identifier) {
    const Native& native = layer().real;
    const Clock::time_point until = Clock::now() + kLongestJoining;
    bool is_told = false;
    // Where a member fails, the library waits for it for ever.
    const auto await = [&](const auto& is_over) -> std::string {
        for (Backoff backoff; !is_over();) {
            if (!backoff.turn()) {
                continue;
            }
            int flag = 0;
            native.Iprobe(MPI_ANY_SOURCE, kFailureTag, channel, &flag, MPI_STATUS_IGNORE);
            is_told = flag != 0;
            if (is_told) {
                return kFailedElsewhere;
            }
            if (Clock::now() > until) {
                return "joining took more than a minute: look at the network";
            }
            backoff.pause();
        }
        return {};
    };
    _ccl.join(*_library, layer().gpu(), _stream.device, identifier, _size, _rank);
    std::string why = await([&] { return _ccl.joining() != CclCommunicator::Joining::under_way; });
    if (why.empty()) {
        why = _ccl.reason();
    }
    std::shared_ptr<Connection> connection;
    if (why.empty()) {
        connection = connect();
        why = await([&] { return connection->is_over.load(std::memory_order_acquire); });
        if (why.empty()) {
            why = connection->why;
        }
    }
    const int tells = !why.empty() && !is_told ? 1 : 0;
    for (int other = 0; tells != 0 && other < _size; ++other) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (other != _rank &&
            native.Isend(nullptr, 0, MPI_BYTE, other, kFailureTag, channel, &request) == MPI_SUCCESS) {
            native.Request_free(&request);
        }
    }
    int telling = tells;
    if (native.Allreduce(&tells, &telling, 1, MPI_INT, MPI_SUM, channel) != MPI_SUCCESS && why.empty()) {
        why = "the MPI fails";
    }
    // A message that is left may be found on another communicator.
    for (int left = telling - tells; left > 0; --left) {
        native.Recv(nullptr, 0, MPI_BYTE, MPI_ANY_SOURCE, kFailureTag, channel, MPI_STATUS_IGNORE);
    }
    if (telling != 0 && why.empty()) {
        why = kFailedElsewhere;
    }
    if (!why.empty()) {
        _ccl.abort();
    }
    if (connection != nullptr) {
        finish(*connection);
    }
    return why;
}

std::shared_ptr<StreamCcl::Connection> StreamCcl::connect() const {
    auto connection = std::make_shared<Connection>();
    const auto work = [own = connection, issuer = _ccl.issuer(), &runtime = layer().gpu(), device = _stream.device,
                       members = _size, rank = _rank] {
        gpu::StreamHandle stream;
        bool has_stream = false;
        const auto require = [](const gpu::Status& status) {
            if (!status.ok()) {
                throw Error(status.message(), "free GPU resources");
            }
        };
        try {
            require(runtime.allocate(device, connect_bytes(members), own->memory));
            require(runtime.create_stream(device, false, stream));
            has_stream = true;
            const auto put = [&] {
                for (const std::size_t bytes : kConnectSizes) {
                    issue_all(issuer, members, rank, static_cast<std::byte*>(own->memory), bytes, stream);
                }
            };
            require(runtime.run_on(device, put));
            bool over = false;
            for (Backoff backoff; !over && !own->is_given_up.load(std::memory_order_acquire);) {
                require(runtime.query_stream(stream, over));
                if (backoff.turn()) {
                    backoff.pause();
                }
            }
        } catch (const std::exception& error) {
            own->why = error.what();
        }
        if (has_stream) {
            static_cast<void>(runtime.destroy_stream(stream));
        }
        own->is_over.store(true, std::memory_order_release);
    };
    connection->thread = start_own_thread(work);
    if (!connection->thread.joinable()) {
        connection->why = "no thread could be started for it";
        connection->is_over.store(true, std::memory_order_release);
    }
    return connection;
}

void StreamCcl::finish(Connection& connection) {
    connection.is_given_up.store(true, std::memory_order_release);
    if (!connection.thread.joinable()) {
        return;
    }
    if (connection.is_over.load(std::memory_order_acquire)) {
        connection.thread.join();
        _memory = connection.memory;
    } else {
        connection.thread.detach();  // it may never come back from the library, and keeps what it uses
    }
}

}  // namespace awaken::AWAKEN_ABI
