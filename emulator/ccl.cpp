// libnccl.so.2 and librccl.so.1: the collective communication library of the emulated driver.
//
// Each call queues one operation in the given stream, as the real libraries queue a kernel; the stream's thread carries
// it out and waits there for the other ranks. Bytes travel over sockets (ccl/mesh.h). Operations of one communicator
// follow each other in the order of the calls, in whatever streams they are.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ccl/arithmetic.h"
#include "ccl/mesh.h"
#include "front_end.h"
#include "runtime_state.h"

namespace {

using namespace awaken::emulator;  // the front ends are the core's other half
using ccl::Failure;
using ccl::Mesh;
using ccl::Operation;
using ccl::Result;
using ccl::Type;

using ncclResult_t = int;
using ncclComm_t = void*;
using ncclStream_t = void*;
using ncclUniqueId = ccl::UniqueId;
static_assert(sizeof(ncclUniqueId) == 128);

constexpr Vendor kVendor = AWAKEN_CCL_HIP ? Vendor::hip : Vendor::cuda;
/// Of NCCL 2.27.3; RCCL calls itself after the NCCL that it corresponds to.
constexpr int kVersion = AWAKEN_CCL_HIP ? 22203 : 22703;

/// The words of ncclGetLastError for calls that failed on this thread.
std::string& last_error() {
    thread_local std::string text;
    return text;
}

ncclResult_t report(const Failure& failure) {
    if (!failure.ok()) {
        last_error() = failure.text;
    }
    return static_cast<ncclResult_t>(failure.result);
}

template <typename Body>
ncclResult_t call(Body&& body) noexcept {
    try {
        return report(body());
    } catch (const std::bad_alloc&) {
        return static_cast<ncclResult_t>(Result::system_error);
    } catch (...) {
        return static_cast<ncclResult_t>(Result::internal_error);
    }
}

Failure invalid(std::string text) {
    return {Result::invalid_argument, std::move(text)};
}

Failure available() {
    const Error error = core().availability(kVendor);
    if (error == Error::success) {
        return {};
    }
    return {Result::unhandled_gpu_error, std::string("the GPU runtime cannot be used: ") + description(error)};
}

// ---- communicators --------------------------------------------------------------------------------------------------

struct Communicator {
    Communicator(Context& context_, std::unique_ptr<Mesh> mesh_) : context(context_), mesh(std::move(mesh_)) {}

    Context& context;
    const std::unique_ptr<Mesh> mesh;
    std::atomic<bool> aborted{false};

    std::mutex lock;
    Ticket last;      ///< of the operations queued so far
    Failure failure;  ///< of an operation that was under way

    [[nodiscard]] Failure failed() {
        const std::lock_guard guard(lock);
        return failure;
    }
    /// Ends the communicator's work here, and so, as connections end, at its peers.
    void fail(Failure reason) {
        {
            const std::lock_guard guard(lock);
            if (failure.ok()) {
                failure = std::move(reason);
            }
        }
        mesh->interrupt();
    }
    void wait() {
        Ticket ticket;
        {
            const std::lock_guard guard(lock);
            ticket = last;
        }
        ticket.wait();
    }
};

Registry<Communicator>& communicators() {
    // Never destroyed, as the core: programs destroy communicators in exit handlers.
    static auto* const all = new Registry<Communicator>;
    return *all;
}

/// "0000:10:00.0" -> 0x10000, as the real libraries print it.
std::uint64_t bus_number(const Device& device) {
    return static_cast<std::uint64_t>(device.pci_bus) << 12;
}

struct Joining {
    ncclComm_t* result = nullptr;
    Context* context = nullptr;
    int ranks = 0;
    int rank = 0;
    ncclUniqueId identifier{};
};

Failure join(const Joining& joining) {
    const Faults& faults = core().configuration().faults;
    ccl::Introduction introduction;
    introduction.ranks = joining.ranks;
    introduction.rank = joining.rank;
    introduction.device = bus_number(core().device(joining.context->device));
    introduction.may_share = faults.ccl_shared_device;
    introduction.gives_up = faults.failing_ccl_rank == joining.rank;
    if (faults.silent_ccl_rank == joining.rank) {
        return {Result::system_error, "injected failure: this rank does not initialise, and tells nobody"};
    }
    std::unique_ptr<Mesh> mesh;
    Failure failure = Mesh::join(joining.identifier, introduction, mesh);
    if (introduction.gives_up) {
        return {Result::system_error, "injected failure: this rank does not initialise"};
    }
    if (!failure.ok()) {
        return failure;
    }
    *joining.result = communicators().add(std::make_shared<Communicator>(*joining.context, std::move(mesh)));
    return {};
}

/// Joins all at once: ranks of one process wait for each other.
Failure join_all(const std::vector<Joining>& joinings) {
    if (joinings.size() == 1) {
        return join(joinings.front());
    }
    std::vector<Failure> failures(joinings.size());
    std::vector<std::thread> threads;
    for (std::size_t at = 0; at < joinings.size(); ++at) {
        threads.emplace_back([&, at] { failures[at] = join(joinings[at]); });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (const Failure& failure : failures) {
        if (!failure.ok()) {
            return failure;
        }
    }
    return {};
}

// ---- operations -----------------------------------------------------------------------------------------------------

enum class Kind : std::uint32_t { send, receive, all_reduce, reduce, broadcast, all_gather, reduce_scatter };

struct Call {
    Kind kind = Kind::send;
    std::uintptr_t send = 0;
    std::uintptr_t receive = 0;
    std::size_t count = 0;
    Type type = Type::int8;
    Operation operation = Operation::sum;
    int peer = 0;  ///< or root

    [[nodiscard]] std::size_t bytes() const noexcept { return count * ccl::size_of(type); }
};

struct Queued {
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<Stream> stream;
    Call call;
};

std::byte* host(std::uintptr_t address) noexcept {
    return core().memory().accessible(address);
}

/// Carries out collective operations of one communicator on the stream's thread.
class Performer {
  public:
    explicit Performer(Mesh& mesh) : _mesh(mesh), _ranks(mesh.ranks()), _rank(mesh.rank()) {}

    /// Sends and receives of a group, together.
    Failure point_to_point(const std::vector<Call>& calls) {
        std::vector<Mesh::Part> sends;
        std::vector<Mesh::Part> receives;
        for (const Call& one : calls) {
            constexpr auto kKind = static_cast<std::uint32_t>(Kind::send);
            if (one.kind == Kind::send) {
                sends.push_back({one.peer, host(one.send), one.bytes(), kKind});
            }
            if (one.kind == Kind::receive) {
                receives.push_back({one.peer, host(one.receive), one.bytes(), kKind});
            }
        }
        return sends.empty() && receives.empty() ? Failure{} : _mesh.exchange(sends, receives);
    }

    Failure collective(const Call& one) {
        if (one.count == 0) {
            return {};
        }
        _kind = static_cast<std::uint32_t>(one.kind);
        switch (one.kind) {
            case Kind::all_reduce:
                return all_reduce(one);
            case Kind::reduce:
                return reduce(one);
            case Kind::broadcast:
                return broadcast(one);
            case Kind::all_gather:
                return all_gather(one);
            case Kind::reduce_scatter:
                return reduce_scatter(one);
            default:
                return {};
        }
    }

  private:
    /// A part of a vector: elements [first, first + count).
    struct Share {
        std::size_t first;
        std::size_t count;
    };
    [[nodiscard]] Share share_of(int rank, std::size_t count) const noexcept {
        const auto ranks = static_cast<std::size_t>(_ranks);
        const auto number = static_cast<std::size_t>(rank);
        const std::size_t extra = count % ranks;
        return {count / ranks * number + std::min(number, extra), count / ranks + (number < extra ? 1 : 0)};
    }

    template <typename Function>
    void for_peers(const Function& function) const {
        for (int peer = 0; peer < _ranks; ++peer) {
            if (peer != _rank) {
                function(peer);
            }
        }
    }

    static void move(std::byte* destination, const std::byte* source, std::size_t bytes) noexcept {
        if (destination != source) {
            std::memmove(destination, source, bytes);
        }
    }

    /// Sends each rank its share of `data` (elements `share(rank)`), and reduces what comes for this rank into
    /// `output`.
    template <typename ShareOf>
    Failure reduce_shares(const Call& one, std::byte* data, std::byte* output, const ShareOf& share) {
        const std::size_t size = ccl::size_of(one.type);
        const Share own = share(_rank);
        std::vector<std::byte> staging(own.count * size * static_cast<std::size_t>(_ranks - 1));
        std::vector<const std::byte*> inputs(static_cast<std::size_t>(_ranks), data + own.first * size);
        std::vector<Mesh::Part> sends;
        std::vector<Mesh::Part> receives;
        std::byte* next = staging.data();
        for_peers([&](int peer) {
            const Share theirs = share(peer);
            if (theirs.count != 0) {
                sends.push_back({peer, data + theirs.first * size, theirs.count * size, _kind});
            }
            if (own.count != 0) {
                receives.push_back({peer, next, own.count * size, _kind});
            }
            inputs[static_cast<std::size_t>(peer)] = next;
            next += own.count * size;
        });
        if (Failure failure = _mesh.exchange(sends, receives); !failure.ok()) {
            return failure;
        }
        ccl::reduce(one.type, one.operation, inputs, output, own.count);
        return {};
    }

    /// Sends this rank's share of `data` to all, and receives theirs.
    template <typename ShareOf>
    Failure gather_shares(const Call& one, std::byte* data, const ShareOf& share) {
        const std::size_t size = ccl::size_of(one.type);
        const Share own = share(_rank);
        std::vector<Mesh::Part> sends;
        std::vector<Mesh::Part> receives;
        for_peers([&](int peer) {
            const Share theirs = share(peer);
            if (own.count != 0) {
                sends.push_back({peer, data + own.first * size, own.count * size, _kind});
            }
            if (theirs.count != 0) {
                receives.push_back({peer, data + theirs.first * size, theirs.count * size, _kind});
            }
        });
        return _mesh.exchange(sends, receives);
    }

    Failure all_reduce(const Call& one) {
        const auto share = [&](int rank) { return share_of(rank, one.count); };
        std::byte* const receive = host(one.receive);
        std::byte* const own = receive + share(_rank).first * ccl::size_of(one.type);
        if (Failure failure = reduce_shares(one, host(one.send), own, share); !failure.ok()) {
            return failure;
        }
        return gather_shares(one, receive, share);
    }

    Failure reduce(const Call& one) {
        // All elements are the root's share.
        const auto share = [&](int rank) { return Share{0, rank == one.peer ? one.count : 0}; };
        return reduce_shares(one, host(one.send), _rank == one.peer ? host(one.receive) : nullptr, share);
    }

    Failure reduce_scatter(const Call& one) {
        const auto share = [&](int rank) { return Share{static_cast<std::size_t>(rank) * one.count, one.count}; };
        return reduce_shares(one, host(one.send), host(one.receive), share);
    }

    Failure broadcast(const Call& one) {
        std::byte* const receive = host(one.receive);
        if (_rank != one.peer) {
            const Mesh::Part part{one.peer, receive, one.bytes(), _kind};
            return _mesh.exchange({}, {&part, 1});
        }
        std::byte* const send = host(one.send);
        std::vector<Mesh::Part> sends;
        for_peers([&](int peer) { sends.push_back({peer, send, one.bytes(), _kind}); });
        if (Failure failure = _mesh.exchange(sends, {}); !failure.ok()) {
            return failure;
        }
        move(receive, send, one.bytes());
        return {};
    }

    Failure all_gather(const Call& one) {
        const auto share = [&](int rank) { return Share{static_cast<std::size_t>(rank) * one.count, one.count}; };
        std::byte* const receive = host(one.receive);
        move(receive + static_cast<std::size_t>(_rank) * one.bytes(), host(one.send), one.bytes());
        return gather_shares(one, receive, share);
    }

    Mesh& _mesh;
    const int _ranks;
    const int _rank;
    std::uint32_t _kind = 0;
};

/// All calls of one communicator that were made in one group: sends and receives together, then the collectives in
/// order.
void perform(Communicator& communicator, const std::vector<Call>& calls) {
    if (communicator.aborted || !communicator.failed().ok()) {
        return;
    }
    Failure failure;
    try {
        Performer performer(*communicator.mesh);
        failure = performer.point_to_point(calls);
        for (const Call& one : calls) {
            if (failure.ok()) {
                failure = performer.collective(one);
            }
        }
    } catch (const std::bad_alloc&) {
        failure = {Result::system_error, "out of host memory"};
    }
    if (!failure.ok()) {
        communicator.fail(std::move(failure));
    }
}

void submit(const std::shared_ptr<Communicator>& communicator, const std::vector<Queued>& group) {
    std::vector<Call> calls;
    std::vector<std::shared_ptr<Stream>> streams;
    for (const Queued& queued : group) {
        if (queued.communicator != communicator) {
            continue;
        }
        calls.push_back(queued.call);
        if (std::find(streams.begin(), streams.end(), queued.stream) == streams.end()) {
            streams.push_back(queued.stream);
        }
    }
    const std::lock_guard guard(communicator->lock);
    std::vector<Ticket> after{communicator->last};
    for (std::size_t at = 1; at < streams.size(); ++at) {
        after.push_back(streams[at]->last());
    }
    communicator->last = streams.front()->submit(
        [communicator, calls = std::move(calls)] { perform(*communicator, calls); }, Start::prompt, std::move(after));
    // With several streams the work is one kernel, before which and after which all of them wait.
    for (std::size_t at = 1; at < streams.size(); ++at) {
        streams[at]->submit([] {}, Start::prompt, {communicator->last});
    }
}

// ---- groups ---------------------------------------------------------------------------------------------------------

struct Group {
    int depth = 0;
    Failure failure;  ///< of a call inside, which the end repeats
    std::vector<Joining> joinings;
    std::vector<Queued> calls;
};

Group& group() {
    thread_local Group current;
    return current;
}

Failure start_group() {
    ++group().depth;
    return {};
}

/// The real libraries connect the ranks in the first call that needs it, which waits for the others' there.
Failure connect(Communicator& communicator) {
    const int failing = core().configuration().faults.unconnected_ccl_rank;
    if (failing < 0 || failing >= communicator.mesh->ranks()) {
        return {};
    }
    if (failing == communicator.mesh->rank()) {
        return {Result::system_error, "injected failure: this rank does not connect to the others"};
    }
    communicator.aborted.wait(false);
    return {Result::remote_error, "the communicator was aborted while it connected to another rank"};
}

Failure end_group() {
    Group& current = group();
    if (current.depth == 0) {
        return {Result::invalid_usage, "ncclGroupEnd without ncclGroupStart"};
    }
    if (--current.depth > 0) {
        return {};
    }
    const Group ended = std::exchange(current, {});
    if (!ended.failure.ok()) {
        return ended.failure;
    }
    if (!ended.joinings.empty()) {
        if (Failure failure = join_all(ended.joinings); !failure.ok()) {
            return failure;
        }
    }
    std::vector<std::shared_ptr<Communicator>> used;
    for (const Queued& queued : ended.calls) {
        if (std::find(used.begin(), used.end(), queued.communicator) == used.end()) {
            used.push_back(queued.communicator);
        }
    }
    for (const auto& communicator : used) {
        if (Failure failure = connect(*communicator); !failure.ok()) {
            return failure;
        }
        submit(communicator, ended.calls);
    }
    return {};
}

/// A call outside of any group is a group of its own.
template <typename Body>
ncclResult_t grouped(Body&& body) noexcept {
    return call([&] {
        static_cast<void>(start_group());
        Failure failure;
        try {
            failure = body();
        } catch (...) {
            --group().depth;
            throw;
        }
        if (!failure.ok() && group().failure.ok()) {
            group().failure = failure;
        }
        Failure end = end_group();
        return failure.ok() ? end : failure;
    });
}

// ---- arguments ------------------------------------------------------------------------------------------------------

Failure find_communicator(ncclComm_t handle, std::shared_ptr<Communicator>& communicator) {
    communicator = communicators().find(handle);
    if (communicator == nullptr) {
        return invalid("the communicator is null or was destroyed");
    }
    return {};
}

/// Device code would fault on what its device cannot reach.
Failure check_buffer(const Communicator& communicator, std::uintptr_t address, std::size_t bytes, const char* what) {
    if (bytes == 0) {
        return {};
    }
    const std::shared_ptr<Allocation> allocation = core().memory().find(address);
    if (allocation == nullptr && core().configuration().faults.pageable_memory) {
        return {};
    }
    if (allocation == nullptr || !core().memory().reachable(*allocation, address, bytes, communicator.context.device)) {
        return invalid(std::string(what) + " is not memory that the GPU runtime knows, or ends before the data does");
    }
    if (allocation->on_device() && allocation->device != communicator.context.device) {
        return invalid(std::string(what) + " lies on another device than the communicator's");
    }
    return {};
}

ncclResult_t enqueue(ncclComm_t handle, ncclStream_t stream_handle, Call one) noexcept {
    return grouped([&]() -> Failure {
        Queued queued;
        if (Failure failure = available(); !failure.ok()) {
            return failure;
        }
        if (Failure failure = find_communicator(handle, queued.communicator); !failure.ok()) {
            return failure;
        }
        Communicator& communicator = *queued.communicator;
        if (Failure failure = communicator.failed(); !failure.ok()) {
            return failure;
        }
        if (static_cast<int>(one.type) < 0 || static_cast<int>(one.type) >= ccl::kTypes) {
            return invalid("unknown data type " + std::to_string(static_cast<int>(one.type)));
        }
        if (static_cast<int>(one.operation) < 0 || static_cast<int>(one.operation) >= ccl::kOperations) {
            return invalid("unknown reduction " + std::to_string(static_cast<int>(one.operation)));
        }
        const int ranks = communicator.mesh->ranks();
        if (one.peer < 0 || one.peer >= ranks) {
            return invalid("rank " + std::to_string(one.peer) + " of " + std::to_string(ranks));
        }
        const bool is_root = one.peer == communicator.mesh->rank();
        const std::size_t all = one.bytes() * static_cast<std::size_t>(ranks);
        const bool sends = one.kind != Kind::receive && (one.kind != Kind::broadcast || is_root);
        const bool receives = one.kind != Kind::send && (one.kind != Kind::reduce || is_root);
        const std::size_t sent = one.kind == Kind::reduce_scatter ? all : one.bytes();
        const std::size_t received = one.kind == Kind::all_gather ? all : one.bytes();
        if (sends) {
            if (Failure failure = check_buffer(communicator, one.send, sent, "sendbuff"); !failure.ok()) {
                return failure;
            }
        }
        if (receives) {
            if (Failure failure = check_buffer(communicator, one.receive, received, "recvbuff"); !failure.ok()) {
                return failure;
            }
        }
        queued.stream = core().stream(communicator.context, stream_handle);
        if (queued.stream == nullptr || queued.stream->context().device != communicator.context.device) {
            return {Result::unhandled_gpu_error, "the stream is none of the communicator's device"};
        }
        queued.stream->context().enter();
        if (communicator.context.sticky != Error::success) {
            return {Result::unhandled_gpu_error, "an earlier operation on the device has failed"};
        }
        queued.call = one;
        group().calls.push_back(std::move(queued));
        return {};
    });
}

Call reduction(Kind kind, const void* send, void* receive, std::size_t count, int type, int operation, int root = 0) {
    return {kind, number(send), number(receive), count, static_cast<Type>(type), static_cast<Operation>(operation),
            root};
}

Call movement(Kind kind, const void* send, void* receive, std::size_t count, int type, int peer = 0) {
    return {kind, number(send), number(receive), count, static_cast<Type>(type), Operation::sum, peer};
}

template <typename Body>
ncclResult_t with_communicator(ncclComm_t handle, Body&& body) noexcept {
    return call([&] {
        std::shared_ptr<Communicator> communicator;
        Failure failure = find_communicator(handle, communicator);
        return failure.ok() ? body(*communicator) : failure;
    });
}

}  // namespace

// ---- the library ----------------------------------------------------------------------------------------------------

AWAKEN_EXPORT ncclResult_t ncclGetVersion(int* version) {
    return call([&] {
        if (!version) {
            return invalid("version is null");
        }
        *version = kVersion;
        return Failure{};
    });
}

AWAKEN_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
    switch (static_cast<Result>(result)) {
        case Result::success:
            return "no error";
        case Result::unhandled_gpu_error:
            return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case Result::system_error:
            return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case Result::internal_error:
            return "internal error";
        case Result::invalid_argument:
            return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case Result::invalid_usage:
            return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case Result::remote_error:
            return "remote process exited or there was a network error";
        case Result::in_progress:
            return "NCCL operation in progress";
    }
    return "unknown result code";
}

AWAKEN_EXPORT const char* ncclGetLastError(ncclComm_t handle) {
    // A communicator that failed in a stream has its own words; a thread's own are about the calls that it made.
    if (const std::shared_ptr<Communicator> communicator = handle ? communicators().find(handle) : nullptr) {
        static_cast<void>(report(communicator->failed()));
    }
    return last_error().c_str();
}

AWAKEN_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* identifier) {
    return call([&] {
        if (!identifier) {
            return invalid("uniqueId is null");
        }
        Failure failure = available();
        return failure.ok() ? ccl::make_identifier(*identifier) : failure;
    });
}

// ---- communicators --------------------------------------------------------------------------------------------------

AWAKEN_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* result, int ranks, ncclUniqueId identifier, int rank) {
    return grouped([&]() -> Failure {
        if (Failure failure = available(); !failure.ok()) {
            return failure;
        }
        if (!result) {
            return invalid("comm is null");
        }
        *result = nullptr;
        if (ranks < 1 || rank < 0 || rank >= ranks) {
            return invalid("rank " + std::to_string(rank) + " of " + std::to_string(ranks));
        }
        group().joinings.push_back({result, &runtime_context(), ranks, rank, identifier});
        return {};
    });
}

/// The settings of a communicator have no meaning here; one that is asked not to block does so all the same.
AWAKEN_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int ranks, ncclUniqueId identifier, int rank,
                                                  void*) {
    return ncclCommInitRank(result, ranks, identifier, rank);
}

AWAKEN_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t* results, int ranks, const int* devices) {
    return call([&]() -> Failure {
        if (Failure failure = available(); !failure.ok()) {
            return failure;
        }
        if (!results || ranks < 1) {
            return invalid("comm is null or there are no devices");
        }
        ncclUniqueId identifier{};
        if (Failure failure = ccl::make_identifier(identifier); !failure.ok()) {
            return failure;
        }
        std::vector<Joining> joinings;
        for (int rank = 0; rank < ranks; ++rank) {
            const int device = devices ? devices[rank] : rank;
            if (!core().valid_device(device)) {
                return invalid("device " + std::to_string(device));
            }
            Context& context = core().primary(device);
            if (!context.alive) {
                core().retain_primary(device);
            }
            joinings.push_back({&results[rank], &context, ranks, rank, identifier});
        }
        return join_all(joinings);
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    return with_communicator(handle, [](Communicator& communicator) {
        communicator.wait();
        return communicator.failed();
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    if (!handle) {
        return 0;
    }
    return with_communicator(handle, [&](Communicator& communicator) {
        communicator.wait();
        static_cast<void>(communicators().remove(handle));
        return Failure{};
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommAbort(ncclComm_t handle) {
    if (!handle) {
        return 0;
    }
    return with_communicator(handle, [&](Communicator& communicator) {
        communicator.aborted = true;
        communicator.aborted.notify_all();
        communicator.mesh->interrupt();
        communicator.wait();
        static_cast<void>(communicators().remove(handle));
        return Failure{};
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommCount(ncclComm_t handle, int* count) {
    return with_communicator(handle, [&](Communicator& communicator) {
        if (!count) {
            return invalid("count is null");
        }
        *count = communicator.mesh->ranks();
        return Failure{};
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t handle, int* rank) {
    return with_communicator(handle, [&](Communicator& communicator) {
        if (!rank) {
            return invalid("rank is null");
        }
        *rank = communicator.mesh->rank();
        return Failure{};
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t handle, int* device) {
    return with_communicator(handle, [&](Communicator& communicator) {
        if (!device) {
            return invalid("device is null");
        }
        *device = communicator.context.device;
        return Failure{};
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
    return with_communicator(handle, [&](Communicator& communicator) {
        if (!result) {
            return invalid("asyncError is null");
        }
        *result = static_cast<ncclResult_t>(communicator.failed().result);
        return Failure{};
    });
}

// ---- groups ---------------------------------------------------------------------------------------------------------

AWAKEN_EXPORT ncclResult_t ncclGroupStart() {
    return call([] { return start_group(); });
}

AWAKEN_EXPORT ncclResult_t ncclGroupEnd() {
    return call([] { return end_group(); });
}

// ---- communication --------------------------------------------------------------------------------------------------

AWAKEN_EXPORT ncclResult_t ncclSend(const void* send, std::size_t count, int type, int peer, ncclComm_t comm,
                                    ncclStream_t stream) {
    return enqueue(comm, stream, movement(Kind::send, send, nullptr, count, type, peer));
}

AWAKEN_EXPORT ncclResult_t ncclRecv(void* receive, std::size_t count, int type, int peer, ncclComm_t comm,
                                    ncclStream_t stream) {
    return enqueue(comm, stream, movement(Kind::receive, nullptr, receive, count, type, peer));
}

AWAKEN_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, int type, int operation,
                                         ncclComm_t comm, ncclStream_t stream) {
    return enqueue(comm, stream, reduction(Kind::all_reduce, send, receive, count, type, operation));
}

AWAKEN_EXPORT ncclResult_t ncclReduce(const void* send, void* receive, std::size_t count, int type, int operation,
                                      int root, ncclComm_t comm, ncclStream_t stream) {
    return enqueue(comm, stream, reduction(Kind::reduce, send, receive, count, type, operation, root));
}

AWAKEN_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, int type, int root,
                                         ncclComm_t comm, ncclStream_t stream) {
    return enqueue(comm, stream, movement(Kind::broadcast, send, receive, count, type, root));
}

AWAKEN_EXPORT ncclResult_t ncclBcast(void* data, std::size_t count, int type, int root, ncclComm_t comm,
                                     ncclStream_t stream) {
    return ncclBroadcast(data, data, count, type, root, comm, stream);
}

AWAKEN_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, int type, ncclComm_t comm,
                                         ncclStream_t stream) {
    return enqueue(comm, stream, movement(Kind::all_gather, send, receive, count, type));
}

AWAKEN_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count, int type,
                                             int operation, ncclComm_t comm, ncclStream_t stream) {
    return enqueue(comm, stream, reduction(Kind::reduce_scatter, send, receive, count, type, operation));
}
