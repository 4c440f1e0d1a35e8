// SPDX-License-Identifier: Apache-2.0
#include "coll/inter_node_ccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/backoff.h"
#include "base/error.h"
#include "base/own_thread.h"
#include "call/layer.h"
#include "call/progress.h"
#include "coll/on_node.h"

namespace awaken::AWAKEN_ABI {

using coll::CclCommunicator;
using Clock = std::chrono::steady_clock;

namespace {

/// The library waits for ever for a member that cannot reach the others, and some networks drop packets without an
/// error.
constexpr std::chrono::minutes kLongestWait{1};

/// The tag of the word that a failed member sends.
constexpr int kWordTag = 1;

/// What a member did to join. A member that says `has_failed` sends word to all others.
enum Joined : int { has_joined, has_failed, has_given_up };

}  // namespace

/// Waits, and leaves more time to others the longer it waits. The process's other work goes on meanwhile.
class InterNodeCcl::Waiting {
  public:
    explicit Waiting(const InterNodeCcl& owner) : _owner(owner) {}

    /// True now and then, when it is time for checks that cost more than a look at memory.
    bool turn() {
        if (!_backoff.turn()) {
            return false;
        }
        // Others may be waiting for operations that this process has started before.
        progress_mpi(_owner.channel() != MPI_COMM_NULL ? _owner.channel() : _owner._communicator, _owner._rank,
                     _owner._size, _backoff.turns());
        layer().requests.advance_progress_ops();
        _backoff.pause();
        return true;
    }
    [[nodiscard]] bool too_long() const { return Clock::now() - _began > kLongestWait; }

  private:
    const InterNodeCcl& _owner;
    const Clock::time_point _began = Clock::now();
    Backoff _backoff;
};

InterNodeCcl::~InterNodeCcl() {
    free_gpu();
}

void InterNodeCcl::give_up() noexcept {
    free_gpu();
    _engine = nullptr;
    if (_own) {
        _own->give_up();
    }
    _state = State::broken;
}

void InterNodeCcl::begin_to_leave() noexcept {
    if (_engine != nullptr) {
        // After a reset, nothing of the GPU's is touched from here on.
        static_cast<void>(_engine->runtime().was_reset());
        _ccl.begin_to_leave();
    }
}

void InterNodeCcl::free_gpu() noexcept {
    if (_engine == nullptr) {
        return;
    }
    begin_to_leave();
    try {
        for (Waiting waiting(*this); !_ccl.has_left() && !waiting.too_long();) {
            waiting.turn();
        }
    } catch (const std::exception&) {
        // The process's other work reports this error where it is waited for.
    }
    if (!_ccl.has_left()) {
        _ccl.leave_alone();  // another member never joined
    }
    if (_left_alone != nullptr && !_left_alone->over.load(std::memory_order_acquire)) {
        return;  // the thread still works on the stream
    }
    gpu::Runtime& runtime = _engine->runtime();
    if (_event.value != nullptr) {
        static_cast<void>(runtime.destroy_event(std::exchange(_event, {})));
    }
    if (_stream.value != nullptr) {
        static_cast<void>(runtime.destroy_stream(std::exchange(_stream, {})));
    }
}

void InterNodeCcl::learn_members() {
    if (_size == 0) {
        layer().real.Comm_rank(_communicator, &_rank);
        layer().real.Comm_size(_communicator, &_size);
    }
}

/// Finishes the default stream, since the others' GPUs must not wait for what the program has yet to compute on this
/// one.
bool InterNodeCcl::finish_default_stream(const int device) const {
    gpu::Runtime& runtime = _engine->runtime();
    gpu::EventHandle mark;
    bool over = false;
    gpu::Status status = runtime.mark_default_stream(device, mark);
    for (Waiting waiting(*this); status.ok() && !over; waiting.turn()) {
        status = runtime.query_default_stream(mark, over);
    }
    return status.ok();
}

bool InterNodeCcl::begin(coll::Engine& engine, const coll::Kind kind, const std::uint32_t code, const int device) {
    if (_state == State::broken || (_state == State::ready && device != _device)) {
        return false;
    }
    _library = engine.ccl();
    if (_library == nullptr || !CclCommunicator::supports(*_library, kind, code) ||
        !engine.use_library(coll::Engine::LibraryUse::alone)) {
        return false;
    }
    _begun = true;
    _engine = &engine;
    _device = device;
    learn_members();
    bool finished = false;
    try {
        finished = finish_default_stream(device);
    } catch (...) {
        end();
        throw;
    }
    if (!finished) {
        end();
    }
    return finished;
}

void InterNodeCcl::end() noexcept {
    if (std::exchange(_begun, false)) {
        _engine->end_use_of_library(coll::Engine::LibraryUse::alone);
    }
}

void InterNodeCcl::break_up(const std::string& why) {
    _ccl.abort();
    _state = State::broken;
    layer().ledger.add_fallback("collectives between nodes", "not by NCCL or RCCL: " + why);
}

/// Rank 0 makes the identifier, and all members get it. False, on all of them, when there is none.
bool InterNodeCcl::invite(ccl::UniqueId& identifier) {
    struct Invitation {
        ccl::UniqueId identifier;
        unsigned char valid = 0;
    } invitation;
    std::string why = "rank 0 got no identifier of the library";
    if (_rank == 0) {
        ccl::Status status;
        const gpu::Status current =
            _engine->runtime().run_on(_device, [&] { status = _library->unique_id(invitation.identifier); });
        invitation.valid = current.ok() && status.ok() ? 1 : 0;
        if (!status.ok()) {
            why = _library->explain(status);
        }
    }
    if (layer().real.Bcast(&invitation, sizeof invitation, MPI_BYTE, 0, channel()) != MPI_SUCCESS ||
        invitation.valid == 0) {
        break_up(why);
        return false;
    }
    identifier = invitation.identifier;
    return true;
}

/// Sends word to members that wait for this one in the library. The word has no bytes, so they need not receive it.
void InterNodeCcl::send_word() const {
    for (int other = 0; other < _size; ++other) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (other != _rank &&
            layer().real.Isend(nullptr, 0, MPI_BYTE, other, kWordTag, channel(), &request) == MPI_SUCCESS) {
            layer().real.Request_free(&request);
        }
    }
}

bool InterNodeCcl::has_word() const {
    int flag = 0;
    return layer().real.Iprobe(MPI_ANY_SOURCE, kWordTag, channel(), &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
           flag != 0;
}

/// Each member joins, and the members tell each other whether they succeeded.
bool InterNodeCcl::join_all() {
    Joined own = has_joined;
    Waiting waiting(*this);
    for (CclCommunicator::Joining at = _ccl.joining(); at != CclCommunicator::Joining::joined; at = _ccl.joining()) {
        if (at == CclCommunicator::Joining::failed || waiting.too_long()) {
            own = has_failed;
            send_word();
            break;
        }
        if (waiting.turn() && has_word()) {
            own = has_given_up;
            break;
        }
    }
    std::string why = _ccl.reason();
    if (own == has_failed && why.empty()) {
        why =
            "joining took more than a minute: look at the network, or set AWAKEN_COLLECTIVES=\"* nodes=2- : "
            "hierarchical\"";
    }
    const int mine = own;
    int worst = has_failed;
    if (layer().real.Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, channel()) == MPI_SUCCESS && worst == has_joined) {
        return true;
    }
    break_up(!why.empty() ? why : "another rank could not join a communicator of the library");
    return false;
}

bool InterNodeCcl::join() {
    if (_state == State::ready) {
        return true;
    }
    if (++_uses <= CclCommunicator::kUsesBefore) {
        return false;
    }
    const Native& native = layer().real;
    _own.emplace(native, _communicator);
    if (channel() == MPI_COMM_NULL) {
        break_up("the MPI has no communicator for it");
        return false;
    }
    gpu::Runtime& runtime = _engine->runtime();
    const bool prepared =
        runtime.create_stream(_device, false, _stream).ok() && runtime.create_event(_device, _event).ok();
    // The library refuses two ranks on one GPU, so such members do not get as far as that. 0: not prepared.
    std::uint64_t own = 0;
    try {
        own = prepared ? _engine->identity_of(_device) : 0;
    } catch (const Error& error) {
        layer().ledger.add_fallback("collectives between nodes", error.what());
    }
    std::vector<std::uint64_t> devices(static_cast<std::size_t>(_size));
    native.Allgather(&own, 1, MPI_UINT64_T, devices.data(), 1, MPI_UINT64_T, channel());
    std::sort(devices.begin(), devices.end());
    if (devices.front() == 0 || std::adjacent_find(devices.begin(), devices.end()) != devices.end()) {
        break_up(devices.front() == 0 ? "a rank got no stream or event for it" : "two ranks share a GPU");
        return false;
    }
    ccl::UniqueId identifier;
    if (!invite(identifier)) {
        return false;
    }
    _ccl.join(*_library, runtime, _device, identifier, _size, _rank);
    if (!join_all()) {
        return false;
    }
    _state = State::ready;
    return true;
}

/// The library connects members when they first need a connection, and blocks until all have come. So a thread of its
/// own issues the first collective of each kind.
void InterNodeCcl::issue(const CclCommunicator::Operation& operation, Waiting& waiting) {
    // The thread may outlive this object, so it must not use anything of the object's.
    const auto put = [issuer = _ccl.issuer(), &runtime = _engine->runtime(), device = _device, operation,
                      stream = _stream] {
        if (const gpu::Status status = runtime.run_on(device, [&] { issuer.issue(operation, stream); }); !status.ok()) {
            throw Error("making a GPU current failed (" + status.message() + ")",
                        "an error of an earlier kernel of the program is also reported here");
        }
    };
    const std::uint32_t bit = 1U << static_cast<unsigned>(operation.kind);
    // A collective in parts may always be the first between two members.
    if (!operation.in_parts && (_issued & bit) != 0) {
        put();
        return;
    }
    if (!operation.in_parts) {
        _issued |= bit;
    }
    const auto first = std::make_shared<First>();
    std::thread thread = start_own_thread([first, put] {
        try {
            put();
        } catch (const Error& error) {
            first->error = error;
        } catch (const std::exception& error) {
            first->error.emplace(std::string("a collective by NCCL or RCCL could not begin (") + error.what() + ")",
                                 "free host memory");
        }
        first->over.store(true, std::memory_order_release);
    });
    if (!thread.joinable()) {
        put();
        return;
    }
    while (!first->over.load(std::memory_order_acquire)) {
        if (waiting.turn() && (has_word() || waiting.too_long())) {
            // The thread may be blocked for ever, and the communicator with it.
            thread.detach();
            _left_alone = first;
            throw Error("connecting to another rank by NCCL or RCCL failed, or took more than a minute",
                        "look at the other ranks' output and at the network, or set "
                        "AWAKEN_COLLECTIVES=\"* nodes=2- : hierarchical\"");
        }
    }
    thread.join();
    if (first->error) {
        throw Error(*first->error);
    }
}

void InterNodeCcl::run(CclCommunicator::Operation operation) {
    operation.own = _rank;
    operation.members = _size;
    gpu::Runtime& runtime = _engine->runtime();
    const auto require = [](const gpu::Status& status) {
        if (!status.ok()) {
            throw Error("a collective by NCCL or RCCL failed (" + status.message() + ")",
                        "an error of an earlier kernel of the program is also reported here");
        }
    };
    bool told = false;
    try {
        Waiting waiting(*this);
        issue(operation, waiting);
        require(runtime.record_event(_event, _stream));
        for (bool over = false; !over;) {
            require(runtime.query_event(_event, over));
            if (!over && waiting.turn()) {
                _ccl.check();
                told = has_word();
                if (told) {
                    throw Error("another rank could not do its part of a collective",
                                "look at that rank's own output for the reason");
                }
            }
        }
    } catch (const std::exception& error) {
        // Others wait for this member in the library, which does not always notice the failure.
        if (!told) {
            send_word();
        }
        break_up(error.what());
        throw;
    }
}

}  // namespace awaken::AWAKEN_ABI
