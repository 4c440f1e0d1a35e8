// SPDX-License-Identifier: Apache-2.0
// libnccl.so.2 and librccl.so.1: the collective communication library of the emulated driver.
//
// Each call queues one operation in the given stream, as the real libraries queue a kernel; the stream's thread carries
// it out and waits there for the other ranks. Bytes travel over sockets (ccl/mesh.h). Operations of one communicator
// follow each other in the order of the calls, in whatever streams they are.
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ccl/arithmetic.h"
#include "ccl/mesh.h"
#include "core/capture.h"
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

/// Does what a call is to do, which throws a Failure if it cannot.
template <typename Body>
ncclResult_t call(Body&& body) noexcept {
    try {
        body();
        return static_cast<ncclResult_t>(Result::success);
    } catch (const Failure& failure) {
        return report(failure);
    } catch (const std::bad_alloc&) {
        return static_cast<ncclResult_t>(Result::system_error);
    } catch (...) {
        return static_cast<ncclResult_t>(Result::internal_error);
    }
}

/// Throws unless `holds`.
void require(bool holds, std::string_view otherwise) {
    if (!holds) {
        throw Failure{Result::invalid_argument, std::string(otherwise)};
    }
}

void require_rank(int rank, int ranks) {
    require(rank >= 0 && rank < ranks, "rank " + std::to_string(rank) + " of " + std::to_string(ranks));
}

template <typename Value>
void answer(Value* place, const char* name, std::type_identity_t<Value> value) {
    require(place != nullptr, std::string(name) + " is null");
    *place = value;
}

void require_gpus() {
    if (const Error error = core().availability(kVendor); error != Error::success) {
        throw Failure{Result::unhandled_gpu_error,
                      std::string("the GPU runtime cannot be used: ") + description(error)};
    }
}

// ---- communicators --------------------------------------------------------------------------------------------------

struct Communicator {
    Communicator(Context& context_, std::unique_ptr<Mesh> mesh_) : context(context_), mesh(std::move(mesh_)) {}

    Context& context;
    const std::unique_ptr<Mesh> mesh;
    std::atomic<bool> aborted{false};

    std::atomic<int> graphs{0};  ///< operations that graphs hold

    std::mutex lock;
    Ticket last;      ///< of the operations queued so far
    Failure failure;  ///< of an operation that was under way

    [[nodiscard]] Failure failed() {
        const std::scoped_lock guard(lock);
        return failure;
    }
    void require_sound() {
        if (Failure reason = failed(); !reason.ok()) {
            throw reason;
        }
    }
    /// Ends the communicator's work here, and so, as connections end, at its peers.
    void fail(const Failure& reason) {
        {
            const std::scoped_lock guard(lock);
            if (failure.ok()) {
                failure = reason;
            }
        }
        mesh->interrupt();
    }
    void wait() {
        Ticket ticket;
        {
            const std::scoped_lock guard(lock);
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

void join(const Joining& joining) {
    const Faults& faults = core().configuration().faults;
    const bool gives_up = faults.failing_ccl_rank == joining.rank;
    const Failure injected{Result::system_error, "injected failure: this rank does not initialise"};
    if (faults.silent_ccl_rank == joining.rank) {
        throw Failure{injected.result, injected.text + ", and reports it to no other rank"};
    }
    std::unique_ptr<Mesh> mesh;
    try {
        mesh = Mesh::join(joining.identifier,
                          {joining.ranks, joining.rank, bus_number(core().device(joining.context->device)),
                           faults.ccl_shared_device, gives_up});
    } catch (const Failure&) {
        if (!gives_up) {
            throw;
        }
    }
    if (gives_up) {
        throw injected;
    }
    *joining.result = communicators().add(std::make_shared<Communicator>(*joining.context, std::move(mesh)));
}

/// Joins all at once: ranks of one process wait for each other.
void join_all(const std::vector<Joining>& joinings) {
    if (joinings.size() == 1) {
        return join(joinings.front());
    }
    std::vector<std::future<void>> joined;
    for (const Joining& joining : joinings) {
        joined.push_back(std::async(std::launch::async, join, joining));
    }
    for (std::future<void>& one : joined) {
        one.get();
    }
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
    void point_to_point(const std::vector<Call>& calls) {
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
        _mesh.exchange(sends, receives);
    }

    void collective(const Call& one) {
        if (one.count == 0) {
            return;
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
                return;
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
    void reduce_shares(const Call& one, std::byte* data, std::byte* output, const ShareOf& share) {
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
        _mesh.exchange(sends, receives);
        ccl::reduce(one.type, one.operation, inputs, output, own.count);
    }

    /// Sends this rank's share of `data` to all, and receives theirs.
    template <typename ShareOf>
    void gather_shares(const Call& one, std::byte* data, const ShareOf& share) {
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
        _mesh.exchange(sends, receives);
    }

    void all_reduce(const Call& one) {
        const auto share = [&](int rank) { return share_of(rank, one.count); };
        std::byte* const receive = host(one.receive);
        std::byte* const own = receive + share(_rank).first * ccl::size_of(one.type);
        reduce_shares(one, host(one.send), own, share);
        gather_shares(one, receive, share);
    }

    void reduce(const Call& one) {
        // All elements are the root's share.
        const auto share = [&](int rank) { return Share{0, rank == one.peer ? one.count : 0}; };
        reduce_shares(one, host(one.send), _rank == one.peer ? host(one.receive) : nullptr, share);
    }

    void reduce_scatter(const Call& one) {
        const auto share = [&](int rank) { return Share{static_cast<std::size_t>(rank) * one.count, one.count}; };
        reduce_shares(one, host(one.send), host(one.receive), share);
    }

    void broadcast(const Call& one) {
        std::byte* const receive = host(one.receive);
        if (_rank != one.peer) {
            const Mesh::Part part{one.peer, receive, one.bytes(), _kind};
            return _mesh.exchange({}, {&part, 1});
        }
        std::byte* const send = host(one.send);
        std::vector<Mesh::Part> sends;
        for_peers([&](int peer) { sends.push_back({peer, send, one.bytes(), _kind}); });
        _mesh.exchange(sends, {});
        move(receive, send, one.bytes());
    }

    void all_gather(const Call& one) {
        const auto share = [&](int rank) { return Share{static_cast<std::size_t>(rank) * one.count, one.count}; };
        std::byte* const receive = host(one.receive);
        move(receive + static_cast<std::size_t>(_rank) * one.bytes(), host(one.send), one.bytes());
        gather_shares(one, receive, share);
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
    try {
        Performer performer(*communicator.mesh);
        performer.point_to_point(calls);
        for (const Call& one : calls) {
            performer.collective(one);
        }
    } catch (const Failure& failure) {
        communicator.fail(failure);
    } catch (const std::bad_alloc&) {
        communicator.fail({Result::system_error, "out of host memory"});
    }
}

/// Holds a communicator for a graph. The real libraries' communicators do not end before.
struct GraphReference {
    explicit GraphReference(std::shared_ptr<Communicator> given) : communicator(std::move(given)) {
        ++communicator->graphs;
    }
    ~GraphReference() {
        --communicator->graphs;
        communicator->graphs.notify_all();
    }
    GraphReference(const GraphReference&) = delete;
    GraphReference& operator=(const GraphReference&) = delete;
    const std::shared_ptr<Communicator> communicator;
};

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
    if (is_capturing(*streams.front())) {
        // The graph orders its operations. Nothing is queued that others could wait for.
        auto held = std::make_shared<const GraphReference>(communicator);
        streams.front()->submit(
            [held = std::move(held), calls = std::move(calls)] { perform(*held->communicator, calls); });
        return;
    }
    const std::scoped_lock guard(communicator->lock);
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

/// The real libraries connect the ranks in the first call that needs it, which waits for the others' there.
void connect(Communicator& communicator) {
    const int failing = core().configuration().faults.unconnected_ccl_rank;
    if (failing < 0 || failing >= communicator.mesh->ranks()) {
        return;
    }
    if (failing == communicator.mesh->rank()) {
        throw Failure{Result::system_error, "injected failure: this rank does not connect to the others"};
    }
    communicator.aborted.wait(false);
    throw Failure{Result::remote_error, "the communicator was aborted while it connected to another rank"};
}

void end_group() {
    Group& current = group();
    if (current.depth == 0) {
        throw Failure{Result::invalid_usage, "ncclGroupEnd without ncclGroupStart"};
    }
    if (--current.depth > 0) {
        return;
    }
    const Group ended = std::exchange(current, {});
    if (!ended.failure.ok()) {
        throw Failure(ended.failure);
    }
    join_all(ended.joinings);
    std::vector<std::shared_ptr<Communicator>> used;
    for (const Queued& queued : ended.calls) {
        if (std::find(used.begin(), used.end(), queued.communicator) == used.end()) {
            used.push_back(queued.communicator);
        }
    }
    for (const auto& communicator : used) {
        connect(*communicator);
        submit(communicator, ended.calls);
    }
}

/// A call outside of any group is a group of its own.
template <typename Body>
ncclResult_t grouped(Body&& body) noexcept {
    return call([&] {
        ++group().depth;
        try {
            body();
        } catch (const Failure& failure) {
            if (group().failure.ok()) {
                group().failure = failure;
            }
            end_group();
            throw;
        } catch (...) {
            --group().depth;
            throw;
        }
        end_group();
    });
}

// ---- arguments ------------------------------------------------------------------------------------------------------

std::shared_ptr<Communicator> find_communicator(ncclComm_t handle) {
    std::shared_ptr<Communicator> communicator = communicators().find(handle);
    require(communicator != nullptr, "the communicator is null or was destroyed");
    return communicator;
}

/// Device code would fault on what its device cannot reach.
void check_buffer(const Communicator& communicator, std::uintptr_t address, std::size_t bytes, const char* what) {
    const std::shared_ptr<Allocation> allocation = core().memory().find(address);
    if (bytes == 0 || (allocation == nullptr && core().configuration().pageable_memory)) {
        return;
    }
    const int device = communicator.context.device;
    require(allocation != nullptr && core().memory().reachable(*allocation, address, bytes, device),
            std::string(what) + " is not memory that the GPU runtime knows, or ends before the data does");
    require(!allocation->on_device() || allocation->device == device,
            std::string(what) + " lies on another device than the communicator's");
}

ncclResult_t enqueue(ncclComm_t handle, ncclStream_t stream_handle, Call one) noexcept {
    return grouped([&] {
        require_gpus();
        const std::shared_ptr<Communicator> found = find_communicator(handle);
        Communicator& communicator = *found;
        communicator.require_sound();
        const int type = static_cast<int>(one.type);
        const int operation = static_cast<int>(one.operation);
        const int ranks = communicator.mesh->ranks();
        require(type >= 0 && type < ccl::kTypes, "unknown data type " + std::to_string(type));
        require(operation >= 0 && operation < ccl::kOperations, "unknown reduction " + std::to_string(operation));
        require_rank(one.peer, ranks);
        const bool is_root = one.peer == communicator.mesh->rank();
        const std::size_t all = one.bytes() * static_cast<std::size_t>(ranks);
        if (one.kind != Kind::receive && (one.kind != Kind::broadcast || is_root)) {
            check_buffer(communicator, one.send, one.kind == Kind::reduce_scatter ? all : one.bytes(), "sendbuff");
        }
        if (one.kind != Kind::send && (one.kind != Kind::reduce || is_root)) {
            check_buffer(communicator, one.receive, one.kind == Kind::all_gather ? all : one.bytes(), "recvbuff");
        }
        const std::shared_ptr<Stream> stream = core().stream(communicator.context, stream_handle);
        if (stream == nullptr || stream->context().device != communicator.context.device) {
            throw Failure{Result::unhandled_gpu_error, "the stream is none of the communicator's device"};
        }
        stream->context().enter();
        if (communicator.context.sticky != Error::success) {
            throw Failure{Result::unhandled_gpu_error, "an earlier operation on the device has failed"};
        }
        group().calls.push_back({found, stream, one});
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
    return call([&] { body(*find_communicator(handle)); });
}

/// Waits for what is under way, and ends the communicator. One that is null has ended.
ncclResult_t end(ncclComm_t handle, bool abort) noexcept {
    return handle == nullptr ? 0 : with_communicator(handle, [&](Communicator& communicator) {
        if (abort) {
            communicator.aborted = true;
            communicator.aborted.notify_all();
            communicator.mesh->interrupt();
        }
        communicator.wait();
        for (int graphs = communicator.graphs; graphs != 0; graphs = communicator.graphs) {
            communicator.graphs.wait(graphs);
        }
        static_cast<void>(communicators().remove(handle));
    });
}

}  // namespace

// ---- the library ----------------------------------------------------------------------------------------------------

AWAKEN_EXPORT ncclResult_t ncclGetVersion(int* version) {
    return call([&] { answer(version, "version", kVersion); });
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
        require(identifier != nullptr, "uniqueId is null");
        require_gpus();
        *identifier = ccl::make_identifier();
    });
}

// ---- communicators --------------------------------------------------------------------------------------------------

AWAKEN_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* result, int ranks, ncclUniqueId identifier, int rank) {
    return grouped([&] {
        require_gpus();
        answer(result, "comm", nullptr);
        require_rank(rank, ranks);
        group().joinings.push_back({result, &runtime_context(), ranks, rank, identifier});
    });
}

/// The settings of a communicator have no meaning here; one that is asked not to block does so all the same.
AWAKEN_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int ranks, ncclUniqueId identifier, int rank,
                                                  void*) {
    return ncclCommInitRank(result, ranks, identifier, rank);
}

AWAKEN_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t* results, int ranks, const int* devices) {
    return call([&] {
        require_gpus();
        require(results != nullptr && ranks >= 1, "comm is null or there are no devices");
        const ncclUniqueId identifier = ccl::make_identifier();
        std::vector<Joining> joinings;
        for (int rank = 0; rank < ranks; ++rank) {
            const int device = devices ? devices[rank] : rank;
            require(core().valid_device(device), "device " + std::to_string(device));
            Context& context = core().primary(device);
            if (!context.alive) {
                core().retain_primary(device);
            }
            joinings.push_back({&results[rank], &context, ranks, rank, identifier});
        }
        join_all(joinings);
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t handle) {
    return with_communicator(handle, [](Communicator& communicator) {
        communicator.wait();
        communicator.require_sound();
    });
}

AWAKEN_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t handle) {
    return end(handle, false);
}

AWAKEN_EXPORT ncclResult_t ncclCommAbort(ncclComm_t handle) {
    return end(handle, true);
}

AWAKEN_EXPORT ncclResult_t ncclCommCount(ncclComm_t handle, int* count) {
    return with_communicator(handle, [&](const Communicator& one) { answer(count, "count", one.mesh->ranks()); });
}

AWAKEN_EXPORT ncclResult_t ncclCommUserRank(ncclComm_t handle, int* rank) {
    return with_communicator(handle, [&](const Communicator& one) { answer(rank, "rank", one.mesh->rank()); });
}

AWAKEN_EXPORT ncclResult_t ncclCommCuDevice(ncclComm_t handle, int* device) {
    return with_communicator(handle, [&](const Communicator& one) { answer(device, "device", one.context.device); });
}

AWAKEN_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* result) {
    return with_communicator(handle, [&](Communicator& one) {
        answer(result, "asyncError", static_cast<ncclResult_t>(one.failed().result));
    });
}

// ---- groups ---------------------------------------------------------------------------------------------------------

AWAKEN_EXPORT ncclResult_t ncclGroupStart() {
    return call([] { ++group().depth; });
}

AWAKEN_EXPORT ncclResult_t ncclGroupEnd() {
    return call([] { end_group(); });
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
