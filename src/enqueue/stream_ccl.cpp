#include "enqueue/stream_ccl.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <exception>
#include <functional>
#include <span>
#include <thread>
#include <utility>

#include "base/backoff.h"
#include "base/own_thread.h"
#include "call/call.h"
#include "gpu/kernels/codes.h"

namespace awaken::AWAKEN_ABI {

using coll::CclCommunicator;
using coll::Kind;
using Clock = std::chrono::steady_clock;

namespace {

/// The thread looks so often whether another member calls it up, and whether something under way is over.
constexpr std::chrono::milliseconds kBetweenCallUps{10};
constexpr std::chrono::microseconds kBetweenSteps{100};
/// Joining may never end: a member may be held up in the driver, by a stream that waits for another member.
constexpr std::chrono::minutes kLongestJoining{1};
/// While a stream is waited for, the library is asked so often whether it has failed.
constexpr std::chrono::milliseconds kBetweenChecks{50};
/// A member that has done its part may be gone already; the others' parts are over soon then.
constexpr std::chrono::seconds kPatienceForParts{2};

/// Messages without bytes.
constexpr int kCallUpTag = 1, kFailureTag = 2;

/// The library connects members when they first need it, and in that call waits for the others'. So the thread issues
/// collectives of several sizes beforehand, since the library goes other ways for each. Beyond so many members an
/// all-to-all is left out, which connects each with each.
constexpr std::size_t kConnectBytes = std::size_t{4} << 20;
constexpr std::array<std::size_t, 3> kConnectSizes{8, std::size_t{64} << 10, kConnectBytes};
constexpr int kMostConnected = 64;

constexpr std::uint32_t kSumOfInts = kernels::code_of(kernels::ElementType::int32, kernels::ReductionOperation::sum);

enum class WorkOutcome : std::uint8_t { under_way, done, failed };

/// Gets on with the communicators that are being made, or may have to be.
class CclMaker {
  public:
    static CclMaker& instance() {
        static auto* const made = new CclMaker;  // kept for the life of the process: see Layer
        return *made;
    }

    /// False when there is no thread.
    [[nodiscard]] bool take(const std::shared_ptr<StreamCcl>& one) {
        const std::scoped_lock lock(_mutex);
        if (!_thread.joinable()) {
            _ends = false;
            _thread = start_own_thread([this] { run(); });
        }
        if (_thread.joinable()) {
            _open.push_back(one);
            _has_news = true;
            _news.notify_one();
        }
        return _thread.joinable();
    }
    void wake() noexcept {
        const std::scoped_lock lock(_mutex);
        _has_news = true;
        _news.notify_one();
    }
    /// Puts it among those that leave the library.
    void let_go(const std::shared_ptr<StreamCcl>& one) {
        const std::scoped_lock lock(_mutex);
        std::erase(_open, one);
        std::erase_if(_leaving, [](const auto& each) { return each->has_left(); });
        _leaving.push_back(one);
    }
    void stop() noexcept {
        {
            const std::scoped_lock lock(_mutex);
            _ends = true;
            _news.notify_one();
        }
        if (_thread.joinable()) {
            _thread.join();
        }
        const auto is_under_way = [](const auto& each) { return !each->has_left() && !each->has_graphs(); };
        const Clock::time_point until = Clock::now() + kLongestJoining;
        for (Backoff backoff; std::any_of(_leaving.begin(), _leaving.end(), is_under_way) && Clock::now() < until;) {
            if (backoff.turn()) {
                backoff.pause();
            }
        }
        _leaving.clear();
    }

  private:
    void run() noexcept {
        std::unique_lock lock(_mutex);
        while (!_ends) {
            bool is_under_way = false;
            for (const std::shared_ptr<StreamCcl>& each : _open) {
                is_under_way = each->advance() || is_under_way;
            }
            std::erase_if(_open, [](const auto& each) { return each->is_decided(); });
            const auto has_news = [this] { return std::exchange(_has_news, false) || _ends; };
            if (_open.empty()) {
                _news.wait(lock, has_news);
            } else {
                _news.wait_for(lock, is_under_way ? kBetweenSteps : kBetweenCallUps, has_news);
            }
        }
    }

    std::mutex _mutex;
    std::condition_variable _news;
    std::vector<std::shared_ptr<StreamCcl>> _open, _leaving;
    bool _has_news = false, _ends = false;
    std::thread _thread;
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

/// Where the MPI fails, they count as over.
bool are_over(const std::span<MPI_Request> requests) {
    int flag = 0;
    return layer().real.Testall(static_cast<int>(requests.size()), requests.data(), &flag, MPI_STATUSES_IGNORE) !=
               MPI_SUCCESS ||
           flag != 0;
}

/// Of memory for issue_all().
std::size_t connect_bytes(const int members) noexcept {
    return 2 * std::max(kConnectBytes, 8 * static_cast<std::size_t>(members));
}

}  // namespace

void finish_leaving() noexcept {
    CclMaker::instance().stop();
}

/// Work of threads that may outlive the object.
struct StreamCcl::Preparation {
    std::atomic<WorkOutcome> outcome{WorkOutcome::under_way};
    Invitation invitation;
    const ccl::Library* library = nullptr;
    std::string why;
    std::thread thread;
};
struct StreamCcl::Connection {
    std::atomic<WorkOutcome> outcome{WorkOutcome::under_way};
    std::atomic<bool> is_given_up{false};
    std::string why;
    void* memory = nullptr;  ///< stays, for barriers
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
    if (stream != nullptr && engine != nullptr && !owner.fault_tolerance.active() &&
        owner.gpu().is_soon_idle(stream->device)) {
        try {
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
    if (made->channel() != MPI_COMM_NULL) {
        made->listen();
    }
    const int is_ready = made->channel() != MPI_COMM_NULL && CclMaker::instance().take(made) ? 1 : 0;
    int all_ready = 0;
    native.Allreduce(&is_ready, &all_ready, 1, MPI_INT, MPI_MIN, communicator);
    if (all_ready == 0) {
        made->leave(false);
        return nullptr;
    }
    constexpr Kind kKinds[] = {Kind::allreduce, Kind::broadcast,      Kind::allgather,
                               Kind::alltoall,  Kind::reduce_scatter, Kind::barrier};
    constexpr std::uint64_t kShort = 8, kLong = 1 << 20;
    if (std::none_of(std::begin(kKinds), std::end(kKinds), [&](const Kind kind) {
            return made->is_chosen(kind, 0, kShort) || made->is_chosen(kind, 0, kLong);
        })) {
        made->leave(false);  // the user's table has other ways
        return nullptr;
    }
    made->_wanted.store(true, std::memory_order_release);
    CclMaker::instance().wake();
    made->await_decision();
    return made;
}

StreamCcl::StreamCcl(const MPI_Comm communicator, const gpu::StreamHandle stream, const int nodes)
    : _stream(stream), _nodes(nodes), _own(std::in_place, layer().real, communicator) {
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
    if (_connection != nullptr && !has_graphs()) {
        layer().gpu().free_when_idle(_connection->memory, _stream.device);
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

bool StreamCcl::takes(const Kind kind, const std::uint32_t code, const std::uint64_t bytes) {
    if (!is_chosen(kind, code, bytes)) {
        return false;
    }
    switch (_state.load(std::memory_order_acquire)) {
        case State::usable:
            return kind == Kind::barrier || CclCommunicator::supports(*_library, kind, code);
        case State::failed:
            throw_failure();
            break;
        case State::open:
        case State::unusable:
            break;
    }
    return false;
}

void StreamCcl::throw_failure() const {
    if (_state.load(std::memory_order_acquire) == State::failed) {
        throw Error(*_failure);
    }
}

void StreamCcl::await_decision() const noexcept {
    _state.wait(State::open, std::memory_order_acquire);
}

void StreamCcl::queue(Operation operation, const std::uint64_t capture) {
    const std::scoped_lock lock(_mutex);
    operation.own = _rank;
    operation.members = _size;
    if (operation.kind == Kind::barrier) {
        operation.kind = Kind::allreduce;
        operation.code = kSumOfInts;
        operation.elements = 1;
        operation.send = operation.receive = static_cast<std::byte*>(_connection->memory);
    }
    if (capture != 0 && std::exchange(_last_capture, capture) != capture) {
        count_graph();
    }
    const auto put = [&] { _ccl.issue(operation, _stream); };
    if (const gpu::Status status = layer().gpu().run_on(_stream.device, std::ref(put)); !status.ok()) {
        throw Error("making a GPU current failed (" + status.message() + ")",
                    "an error of an earlier kernel of the program also comes out here");
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
    return _state.load(std::memory_order_acquire) == State::usable && runtime.capture_of(_stream, capture).ok() &&
           capture == 0 && runtime.query_stream(_stream, over).ok() && !over;
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
    for (Backoff backoff; _state.load(std::memory_order_acquire) == State::usable;) {
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
                if (_state.load(std::memory_order_acquire) == State::usable) {
                    _ccl.abort();
                    _failure = error;
                    _state.store(State::failed, std::memory_order_release);
                }
            }
        }
        backoff.pause();
    }
}

void StreamCcl::leave(const bool mpi_ends) noexcept {
    if (_wanted.load(std::memory_order_acquire)) {
        await_decision();
    }
    CclMaker::instance().let_go(shared_from_this());
    static_cast<void>(layer().gpu().was_reset());  // after a reset, nothing of the GPU's is touched
    _ccl.begin_to_leave();
    if (_own) {
        stop_listening();
        // Where joining failed, messages may be left.
        if (mpi_ends || _state.load() == State::unusable) {
            _own->give_up();
        }
        _own.reset();
    }
}

// ---- the thread -----------------------------------------------------------------------------------------------------

void StreamCcl::tell(const int other, const int tag) const {
    MPI_Request request = MPI_REQUEST_NULL;
    if (layer().real.Isend(nullptr, 0, MPI_BYTE, other, tag, channel(), &request) == MPI_SUCCESS) {
        layer().real.Request_free(&request);
    }
}

/// Those to whom a member passes a call-up on: along a tree. -1: none.
std::array<int, 3> StreamCcl::neighbours() const noexcept {
    const auto member = [&](const int rank) { return rank < _size ? rank : -1; };
    return {_rank > 0 ? (_rank - 1) / 2 : -1, member(2 * _rank + 1), member(2 * _rank + 2)};
}

void StreamCcl::listen() {
    const std::array<int, 3> from = neighbours();
    for (std::size_t i = 0; i < from.size(); ++i) {
        if (from[i] >= 0) {
            layer().real.Irecv(nullptr, 0, MPI_BYTE, from[i], kCallUpTag, channel(), &_call_ups[i]);
        }
    }
}

void StreamCcl::stop_listening() noexcept {
    for (MPI_Request& each : _call_ups) {
        if (each != MPI_REQUEST_NULL) {
            layer().real.Cancel(&each);
            layer().real.Wait(&each, MPI_STATUS_IGNORE);
        }
    }
}

bool StreamCcl::is_called_up() {
    int which = MPI_UNDEFINED, flag = 0;
    return layer().real.Testany(static_cast<int>(_call_ups.size()), _call_ups.data(), &which, &flag,
                                MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           flag != 0 && which != MPI_UNDEFINED;
}

bool StreamCcl::has_failed_elsewhere() const {
    int flag = 0;
    return layer().real.Iprobe(MPI_ANY_SOURCE, kFailureTag, channel(), &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           flag != 0;
}

bool StreamCcl::advance() noexcept {
    try {
        switch (_step) {
            case Step::waits_for_call:
                if (_wanted.load(std::memory_order_acquire) || is_called_up()) {
                    prepare();
                }
                break;
            case Step::prepares:
                if (_preparation->outcome.load(std::memory_order_acquire) != WorkOutcome::under_way) {
                    invite();
                }
                break;
            case Step::invites:
                if (are_over({&_request, 1})) {
                    join();
                }
                break;
            case Step::joins:
                switch (_ccl.joining()) {
                    case CclCommunicator::Joining::joined:
                        connect();
                        break;
                    case CclCommunicator::Joining::failed:
                        vote(false, _ccl.reason());
                        break;
                    case CclCommunicator::Joining::under_way:
                        look_at_others();
                        break;
                }
                break;
            case Step::connects:
                switch (_connection->outcome.load(std::memory_order_acquire)) {
                    case WorkOutcome::done:
                        vote(true, {});
                        break;
                    case WorkOutcome::failed:
                        vote(false, _connection->why);
                        break;
                    case WorkOutcome::under_way:
                        look_at_others();
                        break;
                }
                break;
            case Step::votes:
                // All members have voted, so all have called each other up.
                if (are_over({&_request, 1}) && are_over(_call_ups)) {
                    decide(_votes != 0);
                }
                break;
            case Step::is_over:
                break;
        }
    } catch (const std::exception& error) {
        // Without memory this member can do nothing; the others' threads wait for it, as for its messages.
        _why_not = error.what();
        decide(false);
    }
    return _step != Step::waits_for_call && _step != Step::is_over;
}

/// Finds the library. Member 0 also makes the identifier.
void StreamCcl::prepare() {
    _step = Step::prepares;
    _begun = Clock::now();
    for (const int other : neighbours()) {
        if (other >= 0) {
            tell(other, kCallUpTag);
        }
    }
    _preparation = std::make_shared<Preparation>();
    const auto work = [own = _preparation, device = _stream.device, makes = _rank == 0, &runtime = layer().gpu()] {
        own->library = ccl::find(runtime.vendor(), &own->why);
        if (own->library != nullptr) {
            own->invitation.version = own->library->version();
        }
        if (own->library != nullptr && makes) {
            ccl::Status status;
            const gpu::Status current =
                runtime.run_on(device, [&] { status = own->library->unique_id(own->invitation.identifier); });
            if (!current.ok() || !status.ok()) {
                own->invitation.version = 0;
                own->why = current.ok() ? own->library->explain(status) : current.message();
            }
        }
        own->outcome.store(WorkOutcome::done, std::memory_order_release);
    };
    _preparation->thread = start_own_thread(work);
    if (!_preparation->thread.joinable()) {
        _preparation->why = "no thread to be had for it";
        _preparation->outcome.store(WorkOutcome::failed, std::memory_order_release);
    }
}

void StreamCcl::invite() {
    if (_preparation->thread.joinable()) {
        _preparation->thread.join();
    }
    _library = _preparation->library;
    _why_not = _preparation->why;
    _invitations.resize(static_cast<std::size_t>(_size));
    constexpr int kBytes = sizeof(Invitation);
    _step = Step::invites;
    if (layer().real.Iallgather(&_preparation->invitation, kBytes, MPI_BYTE, _invitations.data(), kBytes, MPI_BYTE,
                                channel(), &_request) != MPI_SUCCESS) {
        _why_not = "the MPI fails";
        decide(false);
    }
}

void StreamCcl::join() {
    const int version = _preparation->invitation.version;
    if (version == 0 || !std::all_of(_invitations.begin(), _invitations.end(),
                                     [&](const Invitation& each) { return each.version == version; })) {
        if (_why_not.empty()) {
            _why_not = "another rank has no NCCL or RCCL, or another version";
        }
        decide(false);
        return;
    }
    _step = Step::joins;
    _ccl.join(*_library, layer().gpu(), _stream.device, _invitations.front().identifier, _size, _rank);
}

void StreamCcl::connect() {
    _step = Step::connects;
    _connection = std::make_shared<Connection>();
    const auto work = [own = _connection, issuer = _ccl.issuer(), &runtime = layer().gpu(), device = _stream.device,
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
        own->outcome.store(own->why.empty() ? WorkOutcome::done : WorkOutcome::failed, std::memory_order_release);
    };
    _connection->thread = start_own_thread(work);
    if (!_connection->thread.joinable()) {
        vote(false, "no thread to be had for it");
    }
}

/// While this member may wait for ever in the library.
void StreamCcl::look_at_others() {
    if (has_failed_elsewhere()) {
        vote(false, {});
    } else if (Clock::now() - _begun > kLongestJoining) {
        vote(false, "joining took more than a minute: look at the network");
    }
}

void StreamCcl::vote(const bool usable, const std::string& why) {
    _step = Step::votes;
    _vote = usable ? 1 : 0;
    _why_not = !why.empty() || usable ? why : "another rank could not join a communicator of the library";
    for (int other = 0; !usable && other < _size; ++other) {
        if (other != _rank) {
            tell(other, kFailureTag);
        }
    }
    if (layer().real.Iallreduce(&_vote, &_votes, 1, MPI_INT, MPI_MIN, channel(), &_request) != MPI_SUCCESS) {
        decide(false);
    }
}

void StreamCcl::decide(const bool usable) {
    _step = Step::is_over;
    if (!usable) {
        _ccl.abort();
        layer().ledger.add_fallback(
            "collectives in streams",
            "not by NCCL or RCCL: " +
                (!_why_not.empty() ? _why_not : "another rank could not join a communicator of the library"));
    }
    if (_connection != nullptr && _connection->thread.joinable()) {
        _connection->is_given_up.store(true, std::memory_order_release);
        if (_connection->outcome.load(std::memory_order_acquire) != WorkOutcome::under_way) {
            _connection->thread.join();
        } else {
            // The thread may never come back from the library, and keeps what it uses.
            _connection->thread.detach();
            _connection.reset();
        }
    }
    _state.store(usable ? State::usable : State::unusable, std::memory_order_release);
    _state.notify_all();
}

}  // namespace awaken::AWAKEN_ABI
