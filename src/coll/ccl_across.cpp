#include "coll/ccl_across.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/relax.h"
#include "call/layer.h"

namespace awaken::AWAKEN_ABI {

using coll::CclCommunicator;
using Clock = std::chrono::steady_clock;

namespace {

/// This process has one of these collectives under way.
std::atomic<bool> busy{false};

/// The library waits for ever for a member that cannot reach the others, and some networks just swallow what is sent.
constexpr std::chrono::minutes kPatience{1};

/// Of the messages of members that failed.
constexpr int kTag = 1;

/// What a member did to join. A message to all others goes with `failed`.
enum Said : int { joined, failed, gave_up };

/// Waits, the politer the longer it takes, while what else this process has under way goes on.
class Waiting {
  public:
    explicit Waiting(const MPI_Comm comm, const int other) : _comm(comm), _other(other) {}

    /// True now and then, when it is time to look at what costs more than memory.
    bool turn() {
        relax();
        if (++_turns % 16 != 0) {
            return false;
        }
        const Clock::duration passed = Clock::now() - _began;
        if (passed < kEager) {
            return false;
        }
        // Others may be waiting for what this process has started before: a call of the MPI keeps that going.
        int flag = 0;
        layer().real.Iprobe(_other, kTag, _comm, &flag, MPI_STATUS_IGNORE);
        layer().requests.advance_exchanges();
        if (passed < kAwake) {
            sched_yield();
        } else {
            std::this_thread::sleep_for(kNap);
        }
        return true;
    }
    [[nodiscard]] bool too_long() const { return Clock::now() - _began > kPatience; }

  private:
    static constexpr std::chrono::microseconds kEager{20}, kNap{20};
    static constexpr std::chrono::milliseconds kAwake{5};
    const MPI_Comm _comm;
    const int _other;
    const Clock::time_point _began = Clock::now();
    unsigned _turns = 0;
};

}  // namespace

CclAcross::~CclAcross() {
    free_gpu();
    if (_own != MPI_COMM_NULL) {
        layer().real.Comm_free(&_own);
    }
}

void CclAcross::give_up() noexcept {
    free_gpu();
    _own = MPI_COMM_NULL;
    _state = State::broken;
}

void CclAcross::free_gpu() noexcept {
    if (_engine == nullptr) {
        return;
    }
    gpu::Runtime& runtime = _engine->runtime();
    _ccl.destroy();
    if (_event.value != nullptr) {
        static_cast<void>(runtime.destroy_event(std::exchange(_event, {})));
    }
    if (_stream.value != nullptr) {
        static_cast<void>(runtime.destroy_stream(std::exchange(_stream, {})));
    }
}

bool CclAcross::begin(coll::Engine& engine, const coll::Kind kind, const std::uint32_t code, const int device) {
    if (_state == State::broken || (_state == State::ready && device != _device)) {
        return false;
    }
    _library = engine.ccl();
    if (_library == nullptr || !CclCommunicator::supports(*_library, kind, code) ||
        busy.exchange(true, std::memory_order_acq_rel)) {
        return false;
    }
    _begun = true;
    _engine = &engine;
    _device = device;
    // The others' GPUs are not to wait for what the program has yet to compute on this one.
    if (!engine.runtime().finish_default_stream(device).ok()) {
        end();
        return false;
    }
    return true;
}

void CclAcross::end() noexcept {
    if (std::exchange(_begun, false)) {
        busy.store(false, std::memory_order_release);
    }
}

void CclAcross::break_up(const std::string& why) {
    _ccl.abort();
    _state = State::broken;
    layer().ledger.add_fallback("collectives between nodes", "not by NCCL or RCCL: " + why);
}

/// Rank 0 makes the identifier, and all get it. False, on all of them, when there is none.
bool CclAcross::invite(ccl::UniqueId& identifier, const int rank) {
    struct Invitation {
        ccl::UniqueId identifier;
        unsigned char valid = 0;
    } invitation;
    std::string why = "rank 0 got no identifier of the library";
    if (rank == 0) {
        ccl::Status status;
        const gpu::Status current =
            _engine->runtime().run_on(_device, [&] { status = _library->unique_id(invitation.identifier); });
        invitation.valid = current.ok() && status.ok() ? 1 : 0;
        if (!status.ok()) {
            why = _library->explain(status);
        }
    }
    if (layer().real.Bcast(&invitation, sizeof invitation, MPI_BYTE, 0, _own) != MPI_SUCCESS || invitation.valid == 0) {
        break_up(why);
        return false;
    }
    identifier = invitation.identifier;
    return true;
}

/// Each joins, and they tell each other what came of it. One that failed sends word to those that wait for it in the
/// library.
bool CclAcross::join_all(const int rank, const int size) {
    const Native& native = layer().real;
    Said own = joined;
    Waiting waiting(_own, (rank + 1) % size);
    for (CclCommunicator::Joining at = _ccl.joining(); at != CclCommunicator::Joining::joined; at = _ccl.joining()) {
        int flag = 0;
        if (at == CclCommunicator::Joining::failed || waiting.too_long()) {
            own = failed;
            break;
        }
        if (waiting.turn() && native.Iprobe(MPI_ANY_SOURCE, kTag, _own, &flag, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
            flag != 0) {
            own = gave_up;
            break;
        }
    }
    std::string why = _ccl.reason();
    if (own == failed && why.empty()) {
        why = "joining took more than a minute: look at the network, or set AWAKEN_COLLECTIVES=\"* nodes=2- : levels\"";
    }
    std::vector<MPI_Request> sends;
    if (own == failed) {
        for (int other = 0; other < size; ++other) {
            if (other != rank) {
                sends.push_back(MPI_REQUEST_NULL);
                native.Isend(nullptr, 0, MPI_BYTE, other, kTag, _own, &sends.back());
            }
        }
    }
    std::vector<int> said(static_cast<std::size_t>(size), failed);
    const int mine = own;
    const bool told = native.Allgather(&mine, 1, MPI_INT, said.data(), 1, MPI_INT, _own) == MPI_SUCCESS;
    for (int other = 0; told && other < size; ++other) {
        if (other != rank && said[static_cast<std::size_t>(other)] == failed) {
            native.Recv(nullptr, 0, MPI_BYTE, other, kTag, _own, MPI_STATUS_IGNORE);
        }
    }
    native.Waitall(static_cast<int>(sends.size()), sends.data(), MPI_STATUSES_IGNORE);
    if (std::all_of(said.begin(), said.end(), [](const int each) { return each == joined; })) {
        return true;
    }
    break_up(!why.empty() ? why : "another rank could not join a communicator of the library");
    return false;
}

bool CclAcross::join() {
    if (_state == State::ready) {
        return true;
    }
    if (++_uses <= CclCommunicator::kUsesBefore) {
        return false;
    }
    const Native& native = layer().real;
    int rank = 0, size = 0;
    native.Comm_rank(_communicator, &rank);
    native.Comm_size(_communicator, &size);
    if (native.Comm_dup(_communicator, &_own) != MPI_SUCCESS) {
        _own = MPI_COMM_NULL;
        break_up("the MPI has no communicator for it");
        return false;
    }
    native.Comm_set_errhandler(_own, MPI_ERRORS_RETURN);
    gpu::Runtime& runtime = _engine->runtime();
    const bool prepared =
        runtime.create_stream(_device, false, _stream).ok() && runtime.create_event(_device, _event).ok();
    // The library refuses two ranks on one GPU, but some of its releases wait for ever instead. 0: not prepared.
    const std::uint64_t own = prepared ? _engine->identity_of(_device) : 0;
    std::vector<std::uint64_t> devices(static_cast<std::size_t>(size));
    native.Allgather(&own, 1, MPI_UINT64_T, devices.data(), 1, MPI_UINT64_T, _own);
    std::sort(devices.begin(), devices.end());
    if (devices.front() == 0 || std::adjacent_find(devices.begin(), devices.end()) != devices.end()) {
        break_up(devices.front() == 0 ? "a rank got no stream or event for it" : "two ranks share a GPU");
        return false;
    }
    ccl::UniqueId identifier;
    if (!invite(identifier, rank)) {
        return false;
    }
    _ccl.join(*_library, runtime, _device, identifier, size, rank);
    if (!join_all(rank, size)) {
        return false;
    }
    _state = State::ready;
    return true;
}

void CclAcross::run(CclCommunicator::Operation operation) {
    const Native& native = layer().real;
    native.Comm_rank(_communicator, &operation.own);
    native.Comm_size(_communicator, &operation.members);
    gpu::Runtime& runtime = _engine->runtime();
    const auto require = [](const gpu::Status& status) {
        if (!status.ok()) {
            throw Error("a collective by NCCL or RCCL failed (" + status.message() + ")",
                        "an error of an earlier kernel of the program also comes out here");
        }
    };
    try {
        require(runtime.run_on(_device, [&] { _ccl.issue(operation, _stream); }));
        require(runtime.record_event(_event, _stream));
        Waiting waiting(_own, (operation.own + 1) % operation.members);
        for (bool over = false; !over;) {
            require(runtime.query_event(_event, over));
            if (!over && waiting.turn()) {
                _ccl.check();
            }
        }
    } catch (const Error& error) {
        break_up(error.what());
        throw;
    }
}

}  // namespace awaken::AWAKEN_ABI
