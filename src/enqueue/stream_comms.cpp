// SPDX-License-Identifier: Apache-2.0
#include "enqueue/stream_comms.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/own_thread.h"
#include "call/call.h"
#include "enqueue/stream_ccl.h"

namespace awaken::AWAKEN_ABI {

namespace {

using Clock = std::chrono::steady_clock;

/// The handles of streams count from here. MPICH's own handles of streams have other first bits.
constexpr int kFirstStream = 0x3c000001;
/// How long the kernel may have to wait for an idle device before it is loaded.
constexpr std::chrono::seconds kPatienceToLoad{10};
constexpr std::chrono::milliseconds kBetweenTries{50};
/// The thread looks so often without a pause while nothing changes.
constexpr std::chrono::microseconds kEager{1000}, kPause{20};

// ---- the request that the program holds -----------------------------------------------------------------------------

int fill_status(void* const state, MPI_Status* const status) {
    const auto& behind = *static_cast<const BehindRequest*>(state);
    *status = behind.operation->status;
    try {
        behind.of->store_now(*behind.operation);
    } catch (const ClassedError& error) {
        return layer().error_code(error.error_class, error);
    } catch (const Error& error) {
        return layer().error_code(MPI_ERR_OTHER, error);
    }
    return behind.operation->error;
}

int forget_request(void* const state) {
    const std::unique_ptr<BehindRequest> behind(static_cast<BehindRequest*>(state));
    if (behind->operation != nullptr) {
        StreamComms::instance().forget(behind->operation->program);
        behind->operation->forgotten = true;
    }
    return MPI_SUCCESS;
}

int cancel_nothing(void*, int) {
    return MPI_SUCCESS;
}

}  // namespace

// ---- streams --------------------------------------------------------------------------------------------------------

StreamComms& StreamComms::instance() {
    static auto* const all = new StreamComms;  // kept for the life of the process: see Layer
    return *all;
}

int StreamComms::make_stream(const gpu::StreamHandle stream) {
    auto made = std::make_shared<ProgramStream>();
    made->stream = stream;
    const std::scoped_lock lock(_mutex);
    auto free = std::find(_streams.begin(), _streams.end(), nullptr);
    if (free == _streams.end()) {
        free = _streams.insert(free, nullptr);
    }
    made->handle = kFirstStream + static_cast<int>(free - _streams.begin());
    *free = made;
    return made->handle;
}

std::shared_ptr<ProgramStream> StreamComms::stream_of(const int handle) {
    const std::scoped_lock lock(_mutex);
    const auto at = static_cast<std::size_t>(handle) - kFirstStream;
    return handle >= kFirstStream && at < _streams.size() ? _streams[at] : nullptr;
}

void StreamComms::free_stream(const int handle) {
    const std::scoped_lock lock(_mutex);
    _streams[static_cast<std::size_t>(handle - kFirstStream)] = nullptr;
}

// ---- communicators --------------------------------------------------------------------------------------------------

stream::StepKernel& StreamComms::prepare(const int device) {
    std::unique_ptr<stream::StepKernel>& known = _kernels[device];
    if (known != nullptr) {
        return *known;
    }
    gpu::Runtime& runtime = layer().gpu();
    auto made = std::make_unique<stream::StepKernel>(runtime);
    gpu::Status status = made->load(device);
    for (const Clock::time_point until = Clock::now() + kPatienceToLoad;
         status.code == gpu::kBusy && Clock::now() < until;) {
        static_cast<void>(runtime.is_idle(device, kBetweenTries));
        status = made->load(device);
    }
    if (!status.ok()) {
        throw Error("the kernel that waits in streams cannot be loaded (" + status.message() + ")",
                    status.code == gpu::kBusy ? "make the communicator while the GPU has nothing to do"
                                              : "awaken doctor says what is missing");
    }
    layer().packer().prepare(device);
    known = std::move(made);
    return *known;
}

void StreamComms::meet(const MPI_Comm communicator) {
    constexpr int kQuestions = 4;
    const std::shared_ptr<StreamComm> own = find(communicator);
    for (int question = 0; question <= kQuestions; ++question) {
        if (own != nullptr) {
            own->ask_for_places(question == 0, question == kQuestions);
        }
        layer().real.Barrier(communicator);
    }
}

std::shared_ptr<StreamComm> StreamComms::find(const MPI_Comm communicator) {
    const std::scoped_lock lock(_mutex);
    const auto found = std::find_if(_comms.begin(), _comms.end(),
                                    [&](const auto& each) { return each->communicator() == communicator; });
    return found != _comms.end() ? *found : nullptr;
}

void StreamComms::add(const MPI_Comm communicator, const std::shared_ptr<ProgramStream>& stream) {
    const std::scoped_lock lock(_mutex);
    if (stream == nullptr) {
        _covered.push_back(communicator);
        layer().stream_work.store(this, std::memory_order_release);
        return;
    }
    stream::StepKernel& kernel = prepare(stream->stream.device);
    _comms.push_back(std::make_shared<StreamComm>(communicator, stream, layer().gpu(), kernel));
    if (!_thread.joinable()) {
        _ends = false;
        _thread = start_own_thread([this] { run(); });
        if (!_thread.joinable()) {
            _comms.pop_back();
            throw Error("no thread can be made for communicators with streams",
                        "raise the limit of processes (ulimit -u)");
        }
    }
    _covered.push_back(communicator);
    layer().stream_work.store(this, std::memory_order_release);
}

bool StreamComms::covers(const MPI_Comm communicator) {
    const std::scoped_lock lock(_mutex);
    return std::find(_covered.begin(), _covered.end(), communicator) != _covered.end();
}

void StreamComms::remove(const MPI_Comm communicator) {
    const std::shared_ptr<StreamComm> gone = find(communicator);
    if (gone == nullptr) {
        const std::scoped_lock lock(_mutex);
        std::erase(_covered, communicator);
        return;
    }
    gone->finish();
    if (gone->library() != nullptr) {
        gone->library()->leave();
    }
    const std::scoped_lock lock(_mutex);
    // The thread may hold it for a moment, and must not free it.
    std::erase_if(_gone, [](const auto& each) { return each.use_count() == 1; });
    _gone.push_back(gone);
    std::erase(_comms, gone);
    std::erase(_covered, communicator);
    std::erase_if(_requests, [&](const auto& each) { return each.second.of == gone; });
}

void StreamComms::settle(const MPI_Comm communicator) {
    if (is_thread) {
        return;
    }
    if (const std::shared_ptr<StreamComm> found = find(communicator)) {
        found->finish();
        found->throw_failure();
    }
}

bool StreamComms::is_busy(const MPI_Comm communicator) {
    const std::shared_ptr<StreamComm> found = find(communicator);
    return found != nullptr && (!found->is_idle() || (found->library() != nullptr && found->library()->is_busy()));
}

void StreamComms::announce() {
    if (is_thread) {
        return;
    }
    std::vector<std::shared_ptr<StreamComm>> all;
    {
        const std::scoped_lock lock(_mutex);
        if (_comms.empty()) {
            return;
        }
        all = _comms;
    }
    for (const std::shared_ptr<StreamComm>& each : all) {
        each->announce();
    }
}

void StreamComms::finish(const std::span<const MPI_Request> requests) {
    for (const MPI_Request request : requests) {
        Known known;
        {
            const std::scoped_lock lock(_mutex);
            if (const auto found = _requests.find(request); found != _requests.end()) {
                known = found->second;
            }
        }
        if (known.operation != nullptr && !known.operation->persistent && known.operation->capture == 0) {
            known.of->finish(*known.operation);
        }
    }
}

void StreamComms::stop() noexcept {
    std::vector<std::shared_ptr<StreamComm>> all;
    {
        const std::scoped_lock lock(_mutex);
        all = _comms;
    }
    for (const std::shared_ptr<StreamComm>& each : all) {
        each->finish();
        if (each->library() != nullptr) {
            each->library()->leave();
        }
    }
    finish_leaving();
    {
        const std::scoped_lock lock(_mutex);
        _ends = true;
    }
    _wake.notify_all();
    if (_thread.joinable()) {
        _thread.join();
    }
    layer().stream_work.store(nullptr, std::memory_order_release);
    for (auto& [request, behind] : std::exchange(_kept, {})) {
        layer().real.Grequest_complete(request);
        layer().real.Request_free(&request);
    }
    const std::scoped_lock lock(_mutex);
    _comms.clear();
    _requests.clear();
    all.clear();
    _gone.clear();
    _covered.clear();
    _kernels.clear();
}

// ---- requests -------------------------------------------------------------------------------------------------------

void StreamComms::made(const MPI_Request request, const std::shared_ptr<StreamComm>& of, Again again) {
    const std::scoped_lock lock(_mutex);
    _requests[request] = {of, nullptr, std::move(again)};
}

void StreamComms::give_request(const std::shared_ptr<StreamComm>& of, const std::shared_ptr<Enqueued>& operation,
                               MPI_Request* const request) {
    std::unique_lock lock(_mutex);
    if (_kept.empty()) {
        lock.unlock();
        auto state = std::make_unique<BehindRequest>();
        const int error =
            layer().real.Grequest_start(&fill_status, &forget_request, &cancel_nothing, state.get(), request);
        if (error != MPI_SUCCESS) {
            throw RaisedError(error);
        }
        operation->behind = state.release();
        lock.lock();
    } else {
        std::tie(*request, operation->behind) = _kept.back();
        _kept.pop_back();
    }
    *operation->behind = {of, operation};
    operation->program = *request;
    _requests[*request] = {of, operation, {}};
}

void StreamComms::keep(const MPI_Request request, BehindRequest* const behind) {
    const BehindRequest gone = std::exchange(*behind, {});  // goes without the lock
    const std::scoped_lock lock(_mutex);
    _kept.emplace_back(request, behind);
}

StreamComms::Known StreamComms::known(const MPI_Request request, const char* const function) {
    const std::scoped_lock lock(_mutex);
    const auto found = _requests.find(request);
    if (found == _requests.end()) {
        throw ClassedError(MPI_ERR_REQUEST,
                           std::string(function) + ": nothing was queued in a stream with this request",
                           "pass one of MPIX_Isend_enqueue, MPIX_Irecv_enqueue or MPIX_Start_enqueue, once");
    }
    return found->second;
}

void StreamComms::started(const MPI_Request request, const std::shared_ptr<Enqueued>& operation) {
    const std::scoped_lock lock(_mutex);
    _requests[request].operation = operation;
}

void StreamComms::forget(const MPI_Request request) noexcept {
    const std::scoped_lock lock(_mutex);
    _requests.erase(request);
}

// ---- the thread -----------------------------------------------------------------------------------------------------

void StreamComms::wake() noexcept {
    _has_work.store(true);
    if (_sleeps.load()) {
        const std::scoped_lock lock(_mutex);  // then the thread waits, or has seen the work
        _wake.notify_one();
    }
}

void StreamComms::run() noexcept {
    is_thread = true;
    std::vector<std::shared_ptr<StreamComm>> all;
    Clock::time_point changed = Clock::now();
    for (bool is_idle = true;;) {
        if (is_idle) {
            std::unique_lock lock(_mutex);
            all.clear();  // a communicator that the program has freed goes with its last holder, in a call
            _sleeps.store(true);
            _wake.wait(lock, [this] { return _has_work.load() || _ends.load(); });
            _sleeps.store(false);
            changed = Clock::now();
        }
        if (_ends.load()) {
            return;
        }
        if (_has_work.load() && _has_work.exchange(false)) {
            const std::scoped_lock lock(_mutex);
            all = _comms;
        }
        is_idle = true;
        bool has_changed = false;
        for (const std::shared_ptr<StreamComm>& each : all) {
            has_changed = each->progress() || has_changed;
            is_idle = is_idle && each->is_idle() && !each->has_graphs() && !each->has_unfetched();
        }
        const Clock::time_point now = Clock::now();
        if (has_changed) {
            changed = now;
        } else if (now - changed < kEager) {
            sched_yield();
        } else {
            for (const std::shared_ptr<StreamComm>& each : all) {
                each->leave_unfetched();
            }
            std::this_thread::sleep_for(kPause);
        }
    }
}

}  // namespace awaken::AWAKEN_ABI
