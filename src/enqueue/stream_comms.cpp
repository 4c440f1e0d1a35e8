#include "enqueue/stream_comms.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/own_thread.h"
#include "base/round_up.h"
#include "call/call.h"
#include "enqueue/entries.h"

namespace awaken::AWAKEN_ABI {

namespace {

using Clock = std::chrono::steady_clock;

/// The handles of streams count from here. MPICH's own handles of streams have other first bits.
constexpr int kFirstStream = 0x3c000001;
/// How long the kernel may have to wait for an idle device before it is loaded.
constexpr std::chrono::seconds kPatienceToLoad{10};
constexpr std::chrono::milliseconds kBetweenLooks{50};
/// The thread looks so often without a pause while nothing changes.
constexpr std::chrono::microseconds kEager{1000}, kPause{20};

std::size_t bytes_of_words() noexcept {
    return 2 * std::size_t{4096};
}

/// The wanted number of an operation in its word, which counts the operations that have had it.
std::uint32_t turn_of(const std::uint64_t number) noexcept {
    return static_cast<std::uint32_t>(number / 1024 + 1);
}

// ---- the request that the program holds -----------------------------------------------------------------------------

int tell_status(void* const state, MPI_Status* const status) {
    const auto& operation = *static_cast<std::shared_ptr<Enqueued>*>(state);
    *status = operation->status;
    return operation->error;
}

int forget_request(void* const state) {
    const std::unique_ptr<std::shared_ptr<Enqueued>> operation(static_cast<std::shared_ptr<Enqueued>*>(state));
    StreamComms::instance().forget((*operation)->program);
    return MPI_SUCCESS;
}

int cancel_nothing(void*, int) {
    return MPI_SUCCESS;
}

}  // namespace

// ---- communicator ---------------------------------------------------------------------------------------------------

StreamComm::StreamComm(const MPI_Comm communicator, std::shared_ptr<ProgramStream> stream, gpu::Runtime& runtime,
                       stream::StepKernel& kernel)
    : _communicator(communicator), _stream(std::move(stream)), _runtime(runtime), _kernel(kernel) {
    static_assert(sizeof(Words) <= 2 * std::size_t{4096});
    // Not of allocate_pinned(): a reset of the device would free it.
    void* const words =
        mmap(nullptr, bytes_of_words(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED || !_runtime.register_host(words, bytes_of_words()).ok()) {
        if (words != MAP_FAILED) {
            munmap(words, bytes_of_words());
        }
        throw Error("no page-locked memory for a communicator with a stream",
                    "free host memory, or raise the limit of locked memory");
    }
    _words = static_cast<Words*>(words);
    _stream->communicators.fetch_add(1);
}

StreamComm::~StreamComm() {
    _stream->communicators.fetch_sub(1);
    _runtime.when_idle(_stream->stream.device, [&runtime = _runtime, words = _words] {
        static_cast<void>(runtime.unregister_host(words));
        munmap(words, bytes_of_words());
    });
}

stream::Step StreamComm::wait_for(const std::uint64_t number) const noexcept {
    stream::Step step;
    step.awaited = step.released = &_words->done[number % _words->done.size()];
    step.number = turn_of(number);
    return step;
}

void StreamComm::launch(const std::span<const stream::Step> steps) {
    for (std::size_t first = 0; first < steps.size(); first += stream::StepKernel::kMostSteps) {
        const std::size_t count = std::min(stream::StepKernel::kMostSteps, steps.size() - first);
        if (const gpu::Status status = _kernel.launch(_stream->stream, steps.subspan(first, count)); !status.ok()) {
            throw Error("the stream takes no more work (" + status.message() + ")",
                        "an error of an earlier kernel of the program also comes out here; the stream must live as "
                        "long as its communicator");
        }
    }
}

void StreamComm::refuse_capture() const {
    bool is_capturing = false;
    if (_runtime.is_capturing(_stream->stream, is_capturing).ok() && is_capturing) {
        throw ClassedError(MPI_ERR_UNSUPPORTED_OPERATION, "operations in a stream are not captured into graphs yet",
                           "queue them outside of the capture");
    }
}

void StreamComm::enqueue(const Operations operations, const bool waits) {
    const std::scoped_lock calls(_calls);
    throw_failure();
    refuse_capture();
    if (operations.size() > kMost) {
        throw ClassedError(MPI_ERR_ARG, "more than " + std::to_string(kMost) + " operations in one call",
                           "start them in several calls");
    }
    while (_last + operations.size() - _over_to.load(std::memory_order_acquire) > kMost) {
        sched_yield();
    }
    const std::uint64_t before = _last;
    {
        const std::scoped_lock lock(_mutex);
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            operation->number = ++_last;
            _queued.push_back(operation);
        }
    }
    _open.fetch_add(operations.size(), std::memory_order_acq_rel);
    std::vector<stream::Step> steps(1);
    steps[0].told_host = &_words->arrived;
    steps[0].told_host_number = _last;
    if (waits) {
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            steps.push_back(wait_for(operation->number));
        }
    }
    try {
        launch(steps);
    } catch (const Error&) {
        // The thread begins nothing before the first step has run, and that one was refused.
        const std::scoped_lock lock(_mutex);
        _queued.resize(_queued.size() - operations.size());
        _last = before;
        _open.fetch_sub(operations.size(), std::memory_order_acq_rel);
        throw;
    }
    StreamComms::instance().wake();
}

void StreamComm::wait(const Operations operations) {
    const std::scoped_lock calls(_calls);
    refuse_capture();
    std::vector<stream::Step> steps;
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        steps.push_back(wait_for(operation->number));
    }
    launch(steps);
}

void StreamComm::take_back(Enqueued& operation, MPI_Status* const status) {
    MPI_Request program = MPI_REQUEST_NULL;
    {
        const std::scoped_lock lock(_mutex);
        if (operation.over && status != MPI_STATUS_IGNORE) {
            *status = operation.status;
        }
        operation.told = operation.over ? MPI_STATUS_IGNORE : status;
        operation.released = true;
        program = operation.over ? operation.program : MPI_REQUEST_NULL;
    }
    if (program != MPI_REQUEST_NULL) {
        layer().real.Request_free(&program);
    }
}

void StreamComm::begin(const std::shared_ptr<Enqueued>& operation) {
    try {
        operation->error = operation->start(&operation->request);
    } catch (const ClassedError& error) {
        operation->error = layer().error_code(error.error_class, error);
    }
    operation->start = {};
    if (operation->error != MPI_SUCCESS) {
        end(*operation);
    } else {
        _under_way.push_back(operation);
    }
}

bool StreamComm::progress() noexcept {
    const std::uint64_t arrived = __atomic_load_n(&_words->arrived, __ATOMIC_ACQUIRE);
    bool has_changed = false;
    for (;;) {
        std::shared_ptr<Enqueued> next;
        {
            const std::scoped_lock lock(_mutex);
            if (_queued.empty() || _queued.front()->number > arrived) {
                break;
            }
            next = std::move(_queued.front());
            _queued.pop_front();
        }
        has_changed = true;
        begin(next);
    }
    for (std::size_t i = 0; i < _under_way.size();) {
        Enqueued& operation = *_under_way[i];
        int is_over = 0;
        operation.error = entry<Function::Test>()(&operation.request, &is_over, &operation.status);
        if (is_over == 0 && operation.error == MPI_SUCCESS) {
            ++i;
            continue;
        }
        has_changed = true;
        const std::shared_ptr<Enqueued> over = std::move(_under_way[i]);
        _under_way.erase(_under_way.begin() + static_cast<std::ptrdiff_t>(i));
        end(*over);
    }
    return has_changed;
}

void StreamComm::end(Enqueued& operation) {
    MPI_Request program = MPI_REQUEST_NULL;
    bool is_released = false;
    {
        const std::scoped_lock lock(_mutex);
        operation.over = true;
        if (operation.error != MPI_SUCCESS && !_failure) {
            char text[MPI_MAX_ERROR_STRING] = {};
            int length = 0, error_class = MPI_ERR_OTHER;
            layer().real.Error_class(operation.error, &error_class);
            layer().real.Error_string(operation.error, text, &length);
            _failure.emplace(error_class, text);
        }
        if (operation.told != MPI_STATUS_IGNORE) {
            *operation.told = operation.status;
        }
        program = operation.program;
        is_released = operation.released;
        // The earliest operations that are over make room.
        _over.push_back(operation.number);
        std::uint64_t to = _over_to.load(std::memory_order_relaxed);
        for (auto next = _over.begin(); next != _over.end();) {
            if (*next == to + 1) {
                ++to;
                _over.erase(next);
                next = _over.begin();
            } else {
                ++next;
            }
        }
        __atomic_store_n(&_words->done[operation.number % _words->done.size()], turn_of(operation.number),
                         __ATOMIC_RELEASE);
        _over_to.store(to, std::memory_order_release);
    }
    if (program != MPI_REQUEST_NULL) {
        layer().real.Grequest_complete(program);
        if (is_released) {
            layer().real.Request_free(&program);
        }
    }
    _open.fetch_sub(1, std::memory_order_acq_rel);
    _open.notify_all();
}

void StreamComm::give_up(const std::string& why) noexcept {
    std::vector<std::shared_ptr<Enqueued>> all = std::exchange(_under_way, {});
    {
        const std::scoped_lock lock(_mutex);
        all.insert(all.end(), _queued.begin(), _queued.end());
        _queued.clear();
        if (!all.empty() && !_failure) {
            _failure.emplace(MPI_ERR_OTHER, why);
        }
    }
    for (const std::shared_ptr<Enqueued>& operation : all) {
        operation->error = MPI_ERR_OTHER;
        end(*operation);
    }
}

void StreamComm::finish() const noexcept {
    for (std::uint64_t open = 0; (open = _open.load(std::memory_order_acquire)) != 0;) {
        _open.wait(open, std::memory_order_acquire);
    }
}

void StreamComm::throw_failure() {
    const std::scoped_lock lock(_mutex);
    if (const auto failure = std::exchange(_failure, std::nullopt)) {
        throw ClassedError(failure->first, "an operation that was queued in the communicator's stream failed: " + failure->second,
                           "look at its arguments, and at what its partner sent");
    }
}

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

void StreamComms::prepare(const int device) {
    if (_devices.contains(device)) {
        return;
    }
    gpu::Runtime& runtime = layer().gpu();
    Device made{std::make_unique<stream::StepKernel>(runtime), {}};
    gpu::Status status = made.kernel->load(device);
    for (const Clock::time_point until = Clock::now() + kPatienceToLoad;
         status.code == gpu::kBusy && Clock::now() < until;) {
        static_cast<void>(runtime.is_idle(device, kBetweenLooks));
        status = made.kernel->load(device);
    }
    if (status.ok()) {
        status = runtime.create_stream(device, false, made.asked);
    }
    if (!status.ok()) {
        throw Error("the kernel that waits in streams cannot be loaded (" + status.message() + ")",
                    status.code == gpu::kBusy ? "make the communicator while the GPU has nothing to do"
                                              : "awaken doctor says what is missing");
    }
    _devices.emplace(device, std::move(made));
}

std::shared_ptr<StreamComm> StreamComms::find(const MPI_Comm communicator) {
    const std::scoped_lock lock(_mutex);
    const auto found = std::find_if(_comms.begin(), _comms.end(),
                                    [&](const auto& each) { return each->communicator() == communicator; });
    return found != _comms.end() ? *found : nullptr;
}

void StreamComms::add(const MPI_Comm communicator, const std::shared_ptr<ProgramStream>& stream) {
    const std::scoped_lock lock(_mutex);
    prepare(stream->stream.device);
    _comms.push_back(std::make_shared<StreamComm>(communicator, stream, layer().gpu(),
                                                  *_devices.at(stream->stream.device).kernel));
    if (!_thread.joinable()) {
        _ends = false;
        _thread = start_own_thread([this] { run(); });
        if (!_thread.joinable()) {
            _comms.pop_back();
            throw Error("no thread can be made for communicators with streams", "raise the limit of processes (ulimit -u)");
        }
    }
    layer().stream_work.store(this, std::memory_order_release);
}

void StreamComms::remove(const MPI_Comm communicator) {
    const std::shared_ptr<StreamComm> gone = find(communicator);
    if (gone == nullptr) {
        return;
    }
    gone->finish();
    const std::scoped_lock lock(_mutex);
    std::erase(_comms, gone);
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

void StreamComms::stop() noexcept {
    std::vector<std::shared_ptr<StreamComm>> all;
    {
        const std::scoped_lock lock(_mutex);
        all = _comms;
    }
    for (const std::shared_ptr<StreamComm>& each : all) {
        each->finish();
    }
    {
        const std::scoped_lock lock(_mutex);
        _ends = true;
    }
    _wake.notify_all();
    if (_thread.joinable()) {
        _thread.join();
    }
    layer().stream_work.store(nullptr, std::memory_order_release);
    const std::scoped_lock lock(_mutex);
    _comms.clear();
    _requests.clear();
    for (auto& [number, device] : _devices) {
        if (!layer().gpu().was_reset()) {
            static_cast<void>(layer().gpu().destroy_stream(device.asked));
        }
    }
    for (MPI_Op op : std::exchange(_freed_ops, {})) {
        layer().real.Op_free(&op);
    }
    all.clear();
    _devices.clear();
}

int StreamComms::free_op(MPI_Op* const op) {
    const auto is_idle = [](const auto& each) { return each->is_idle(); };
    std::vector<MPI_Op> free;
    {
        const std::scoped_lock lock(_mutex);
        _freed_ops.push_back(std::exchange(*op, MPI_OP_NULL));
        if (std::all_of(_comms.begin(), _comms.end(), is_idle)) {
            free = std::exchange(_freed_ops, {});
        }
    }
    int error = MPI_SUCCESS;
    for (MPI_Op each : free) {
        error = layer().real.Op_free(&each);
    }
    return error;
}

// ---- requests -------------------------------------------------------------------------------------------------------

void StreamComms::made(const MPI_Comm communicator, const MPI_Request request) {
    if (const std::shared_ptr<StreamComm> of = find(communicator)) {
        const std::scoped_lock lock(_mutex);
        _requests[request] = {of, nullptr};
    }
}

void StreamComms::give_request(const std::shared_ptr<StreamComm>& of, const std::shared_ptr<Enqueued>& operation,
                               MPI_Request* const request) {
    auto state = std::make_unique<std::shared_ptr<Enqueued>>(operation);
    const int error = layer().real.Grequest_start(&tell_status, &forget_request, &cancel_nothing, state.get(), request);
    if (error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    static_cast<void>(state.release());
    operation->program = *request;
    const std::scoped_lock lock(_mutex);
    _requests[*request] = {of, operation};
}

StreamComms::Known StreamComms::known(const MPI_Request request, const char* const function) {
    const std::scoped_lock lock(_mutex);
    const auto found = _requests.find(request);
    if (found == _requests.end()) {
        throw ClassedError(MPI_ERR_REQUEST, std::string(function) + ": nothing was queued in a stream with this request",
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
    {
        const std::scoped_lock lock(_mutex);
        _has_work = true;
    }
    _wake.notify_one();
}

bool StreamComms::device_works() noexcept {
    gpu::Runtime& runtime = layer().gpu();
    if (runtime.was_reset()) {
        return false;
    }
    const std::scoped_lock lock(_mutex);
    return std::all_of(_devices.begin(), _devices.end(), [&](const auto& each) {
        bool over = false;
        return runtime.query_stream(each.second.asked, over).ok();
    });
}

void StreamComms::run() noexcept {
    is_thread = true;
    const gpu::BesideDefaultStream beside;
    std::vector<std::shared_ptr<StreamComm>> all;
    Clock::time_point changed = Clock::now(), looked = changed;
    for (bool is_idle = true;;) {
        {
            std::unique_lock lock(_mutex);
            if (is_idle) {
                all.clear();  // a communicator that the program has freed goes
                _wake.wait(lock, [this] { return _has_work || _ends; });
                changed = Clock::now();
            }
            if (_ends) {
                return;
            }
            if (std::exchange(_has_work, false)) {
                all = _comms;
            }
        }
        is_idle = true;
        bool has_changed = false;
        for (const std::shared_ptr<StreamComm>& each : all) {
            has_changed = each->progress() || has_changed;
            is_idle = is_idle && each->is_idle();
        }
        const Clock::time_point now = Clock::now();
        if (now - looked > kBetweenLooks) {
            looked = now;
            if (!device_works()) {
                for (const std::shared_ptr<StreamComm>& each : all) {
                    each->give_up("the GPU does nothing any more: an earlier kernel failed, or it was reset");
                }
            }
        }
        if (has_changed) {
            changed = now;
        } else if (now - changed < kEager) {
            sched_yield();
        } else {
            std::this_thread::sleep_for(kPause);
        }
    }
}

}  // namespace awaken::AWAKEN_ABI
