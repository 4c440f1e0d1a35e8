#include "enqueue/stream_comms.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "base/own_thread.h"
#include "base/round_up.h"
#include "call/call.h"

namespace awaken::AWAKEN_ABI {

namespace {

using Clock = std::chrono::steady_clock;

/// The handles of streams count from here. MPICH's own handles of streams have other first bits.
constexpr int kFirstStream = 0x3c000001;
/// How long the kernel may have to wait for an idle device before it is loaded.
constexpr std::chrono::seconds kPatienceToLoad{10};
constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr std::chrono::milliseconds kPatienceForMemory{5};
/// The thread looks so often without a pause while nothing changes.
constexpr std::chrono::microseconds kEager{1000}, kPause{20};

/// Marks an entry of the ring as the number of a Captured.
constexpr std::uint32_t kCaptured = 0x80000000;
/// A captured operation has so many counters of replays: for the wait before it and for the wait for it.
constexpr std::size_t kCountersPerSlot = 2;
/// After so long the other side has probably replayed its graph less often.
constexpr std::chrono::seconds kLateReplay{10};

constexpr std::size_t bytes_of_counters() noexcept {
    return (1 + kCountersPerSlot * StreamComm::kMostCaptured) * sizeof(std::uint32_t);
}

/// The wanted number of an operation in its word, which counts the operations that have had it.
std::uint32_t turn_of(const std::uint64_t number) noexcept {
    return static_cast<std::uint32_t>(number / 1024 + 1);
}

// ---- the request that the program holds -----------------------------------------------------------------------------

/// A graph has gone. Comes from the runtime, which must not be called; what `state` points to is a flag.
void note_gone(void* const state) {
    const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> flag(
        static_cast<std::shared_ptr<std::atomic<bool>>*>(state));
    (*flag)->store(true, std::memory_order_release);
}

/// What the program's request stands for.
struct Behind {
    std::shared_ptr<StreamComm> of;
    std::shared_ptr<Enqueued> operation;
};

int tell_status(void* const state, MPI_Status* const status) {
    const auto& behind = *static_cast<const Behind*>(state);
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
    const std::unique_ptr<Behind> behind(static_cast<Behind*>(state));
    StreamComms::instance().forget(behind->operation->program);
    behind->operation->forgotten = true;
    return MPI_SUCCESS;
}

int cancel_nothing(void*, int) {
    return MPI_SUCCESS;
}

}  // namespace

void set_empty(MPI_Status& status) noexcept {
    status = MPI_Status{};
    status.MPI_SOURCE = MPI_ANY_SOURCE;
    status.MPI_TAG = MPI_ANY_TAG;
}

// ---- communicator ---------------------------------------------------------------------------------------------------

StreamComm::StreamComm(const MPI_Comm communicator, std::shared_ptr<ProgramStream> stream, gpu::Runtime& runtime,
                       stream::StepKernel& kernel)
    : _communicator(communicator), _stream(std::move(stream)), _runtime(runtime), _kernel(kernel) {
    // Not of allocate_pinned(): a reset of the device would free it.
    void* const words = mmap(nullptr, kBytesOfWords, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED || !_runtime.register_host(words, kBytesOfWords).ok()) {
        if (words != MAP_FAILED) {
            munmap(words, kBytesOfWords);
        }
        throw Error("no page-locked memory for a communicator with a stream",
                    "free host memory, or raise the limit of locked memory");
    }
    _words = static_cast<Words*>(words);
    const int device = _stream->stream.device;
    void* counters = nullptr;
    gpu::Status status = _runtime.create_stream(device, false, _own);
    const bool has_stream = status.ok();
    if (status.ok()) {
        status = _runtime.allocate(device, bytes_of_counters(), counters);
    }
    if (status.ok()) {
        status = _runtime.fill(counters, 0, bytes_of_counters(), _own);
    }
    if (status.ok()) {
        status = _runtime.synchronize_stream(_own);
    }
    if (!status.ok()) {
        if (counters != nullptr) {
            _runtime.free_when_idle(counters, device);
        }
        if (has_stream) {
            static_cast<void>(_runtime.destroy_stream(_own));
        }
        static_cast<void>(_runtime.unregister_host(words));
        munmap(words, kBytesOfWords);
        throw Error("a communicator with a stream cannot be made (" + status.message() + ")", "free GPU resources");
    }
    _counters = static_cast<std::uint32_t*>(counters);
    for (std::size_t slot = kMostCaptured; slot > 0; --slot) {
        _free_slots.push_back(slot - 1);
    }
    _stream->communicators.fetch_add(1);
}

StreamComm::~StreamComm() {
    _runtime.forget_captured(_stream->stream);
    _stream->communicators.fetch_sub(1);
    if (!_runtime.was_reset()) {
        static_cast<void>(_runtime.destroy_stream(_own));
    }
    _runtime.free_when_idle(_counters, _stream->stream.device);
    _runtime.when_idle(_stream->stream.device, [&runtime = _runtime, words = _words] {
        static_cast<void>(runtime.unregister_host(words));
        munmap(words, kBytesOfWords);
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

/// A step that tells the thread how far the stream has come.
stream::Step StreamComm::arrival(const std::uint64_t number) const noexcept {
    stream::Step step;
    step.told_host = _words->arrived.data();
    step.told_host_number = number;
    step.entries = _counters;
    return step;
}

/// @param before  replays of the operation that come after the wanted one: 0 or 1
stream::Step StreamComm::wait_for_replay(const Enqueued& operation, const std::uint32_t before) const noexcept {
    stream::Step step;
    step.awaited = step.released = &_words->replayed[operation.slot];
    step.number = 0 - before;
    step.replays = _counters + 1 + kCountersPerSlot * operation.slot + before;
    return step;
}

std::uint64_t StreamComm::capture() const {
    std::uint64_t capture = 0;
    if (const gpu::Status status = _runtime.capture_of(_stream->stream, capture); !status.ok()) {
        throw Error("the stream does not say whether it is captured (" + status.message() + ")",
                    "the stream must live as long as its communicator");
    }
    if (capture != 0) {
        _runtime.note_captured(_stream->stream);
    }
    return capture;
}

void StreamComm::refuse_memory() {
    throw ClassedError(MPI_ERR_NO_MEM, "no pinned memory for a buffer that is queued in a stream",
                       "raise the limit of locked memory, or send less at a time");
}

/// Waits until an operation is over. False when that may take long: what holds the stream up may come later in the
/// program.
bool StreamComm::wait_for_memory() {
    const std::uint64_t before = _over_to.load(std::memory_order_acquire);
    const bool was_passing = _passing.load(std::memory_order_acquire);
    for (const Clock::time_point until = Clock::now() + kPatienceForMemory; Clock::now() < until;) {
        if (is_idle() || _over_to.load(std::memory_order_acquire) != before ||
            _passing.load(std::memory_order_acquire) != was_passing) {
            return !is_idle();
        }
        sched_yield();
    }
    if (!device_works()) {
        give_up();
    }
    return false;
}

/// Adds waits for operations, and queues their copies back behind them. Needs _calls.
void StreamComm::queue_waits(const Operations operations, std::vector<stream::Step>& steps) {
    std::vector<std::shared_ptr<Enqueued>> stored;
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        if (operation->waits) {
            steps.push_back(operation->capture != 0 ? wait_for_replay(*operation, 0) : wait_for(operation->number));
        }
        if (operation->stores && !std::exchange(operation->stored, true)) {
            stored.push_back(operation);
        }
    }
    launch(steps);
    steps.clear();
    if (!stored.empty() && stored.front()->capture != 0) {
        // The next replay reads into the same memory behind these copies.
        for (const std::shared_ptr<Enqueued>& operation : stored) {
            operation->stage->queue_store(_stream->stream);
        }
        return;
    }
    if (stored.empty()) {
        return;
    }
    const std::uint64_t pass = ++_pass;
    {
        const std::scoped_lock lock(_mutex);
        for (const std::shared_ptr<Enqueued>& operation : stored) {
            _to_pass.emplace_back(pass, operation);
        }
        _passing.store(true, std::memory_order_release);
    }
    StreamComms::instance().wake();
    for (const std::shared_ptr<Enqueued>& operation : stored) {
        operation->stage->queue_store(_stream->stream);
    }
    steps.emplace_back();
    steps.back().told_host = &_words->passed;
    steps.back().told_host_number = pass;
    launch(steps);
}

void StreamComm::queue_loads(const Operations operations) {
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        if (operation->stage) {
            operation->stage->queue_load(_stream->stream);
        }
    }
}

void StreamComm::take_slots(const Operations operations, const std::uint64_t capture) {
    const std::scoped_lock lock(_mutex);
    if (operations.size() > _free_slots.size()) {
        throw ClassedError(MPI_ERR_NO_MEM,
                           "more than " + std::to_string(kMostCaptured) + " operations of a communicator in graphs",
                           "destroy graphs that are no longer launched, or use another communicator");
    }
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        operation->capture = capture;
        operation->over = true;
        operation->slot = _free_slots.back();
        _free_slots.pop_back();
        __atomic_store_n(&_words->replayed[operation->slot], 0, __ATOMIC_RELEASE);
    }
}

void StreamComm::give_slots_back(const Operations operations) noexcept {
    const std::scoped_lock lock(_mutex);
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        _free_slots.push_back(operation->slot);  // there was room for it
    }
}

/// What is captured waits first until the replay before is over, whose memory it uses.
void StreamComm::enqueue_captured(const Operations operations, const bool waits, const std::uint64_t capture) {
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        if (operation->wild) {
            throw ClassedError(MPI_ERR_UNSUPPORTED_OPERATION,
                               "a receive with MPI_ANY_SOURCE or MPI_ANY_TAG is captured into a graph",
                               "name the source and the tag, or receive outside of the graph");
        }
    }
    take_slots(operations, capture);
    auto captured = std::make_shared<Captured>();
    captured->operations.assign(operations.begin(), operations.end());
    try {
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            std::uint32_t* const counters = _counters + 1 + kCountersPerSlot * operation->slot;
            if (const gpu::Status status = _runtime.fill(counters, 0, kCountersPerSlot * sizeof *counters, _own);
                !status.ok()) {
                throw Error("a counter of replays cannot be set (" + status.message() + ")",
                            "an error of an earlier kernel of the program also comes out here");
            }
        }
        if (const gpu::Status status = _runtime.synchronize_stream(_own); !status.ok()) {
            throw Error("a counter of replays cannot be set (" + status.message() + ")",
                        "an error of an earlier kernel of the program also comes out here");
        }
        std::vector<stream::Step> steps;
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            steps.push_back(wait_for_replay(*operation, 1));
        }
        launch(steps);
        queue_loads(operations);
        {
            const std::scoped_lock lock(_mutex);
            do {
                _last_captured = (_last_captured + 1) % kCaptured;
            } while (_captured.contains(_last_captured));
            _captured.emplace(_last_captured, captured);
            _has_graphs.store(true, std::memory_order_release);
        }
        steps.assign(1, arrival(kCaptured | _last_captured));
        if (waits) {
            queue_waits(operations, steps);
        } else {
            launch(steps);
        }
    } catch (...) {
        {
            const std::scoped_lock lock(_mutex);
            std::erase_if(_captured, [&](const auto& each) { return each.second == captured; });
        }
        give_slots_back(operations);
        throw;
    }
    auto flag = std::make_unique<std::shared_ptr<std::atomic<bool>>>(captured->is_gone);
    // Where the runtime tells nothing, what is captured stays until the communicator is freed.
    if (_runtime.when_graph_is_gone(_stream->stream, &note_gone, flag.get()).ok()) {
        static_cast<void>(flag.release());
    }
    StreamComms::instance().wake();
}

void StreamComm::enqueue(const Operations operations, const bool waits) {
    const std::scoped_lock calls(_calls);
    throw_failure();
    clean_up();
    if (operations.size() > kMost) {
        throw ClassedError(MPI_ERR_ARG, "more than " + std::to_string(kMost) + " operations in one call",
                           "start them in several calls");
    }
    if (const std::uint64_t into = capture(); into != 0) {
        enqueue_captured(operations, waits, into);
        return;
    }
    while (_last + operations.size() - _over_to.load(std::memory_order_acquire) > kMost) {
        if (!device_works()) {
            give_up();
        }
        sched_yield();
    }
    queue_loads(operations);
    const std::uint64_t before = _last;
    {
        const std::scoped_lock lock(_mutex);
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            operation->number = ++_last;
            _queued.push_back(operation);
        }
    }
    _open.fetch_add(operations.size(), std::memory_order_acq_rel);
    StreamComms::instance().wake();  // what follows may fill the launch queue, and wait for the thread
    std::vector<stream::Step> steps{arrival(_last % kCaptured)};
    try {
        if (waits) {
            queue_waits(operations, steps);
        } else {
            launch(steps);
        }
    } catch (const Error&) {
        // The thread begins nothing before the first step has run, and that one was refused.
        const std::scoped_lock lock(_mutex);
        _queued.resize(_queued.size() - operations.size());
        _last = before;
        _open.fetch_sub(operations.size(), std::memory_order_acq_rel);
        throw;
    }
}

void StreamComm::require_same_capture(const Operations operations) const {
    const std::uint64_t into = capture();
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        if (operation->capture != into) {
            throw ClassedError(MPI_ERR_REQUEST,
                               operation->capture == 0
                                   ? "the stream is captured, and the request was queued before"
                                   : "the request was queued in a capture, and this one is another, or none",
                               "queue an operation and the wait for it in the same capture, or both outside");
        }
    }
}

void StreamComm::wait(const Operations operations) {
    const std::scoped_lock calls(_calls);
    std::vector<stream::Step> steps;
    queue_waits(operations, steps);
}

/// The program's thread is in a call that completes the operation, so the order of the stream does not matter.
void StreamComm::store_now(Enqueued& operation) {
    if (!operation.stores || operation.capture != 0 || std::exchange(operation.stored, true) ||
        operation.error != MPI_SUCCESS) {
        return;
    }
    operation.stage->queue_store(_own);
    if (const gpu::Status status = _runtime.synchronize_stream(_own); !status.ok()) {
        throw Error("a copy of received data failed (" + status.message() + ")",
                    "an error of an earlier kernel of the program also comes out here");
    }
}

void StreamComm::take_back(Enqueued& operation, MPI_Status* const status) {
    MPI_Request program = MPI_REQUEST_NULL;
    {
        const std::scoped_lock lock(_mutex);
        if (operation.over && status != MPI_STATUS_IGNORE) {
            *status = operation.status;
        }
        // Where the stream does not wait for the operation, the program's status may be gone before it is over.
        operation.told = (operation.over && operation.capture == 0) || !operation.waits ? MPI_STATUS_IGNORE : status;
        if (!operation.over && !operation.waits && status != MPI_STATUS_IGNORE) {
            set_empty(*status);
        }
        operation.released = true;
        program = operation.over ? operation.program : MPI_REQUEST_NULL;
    }
    if (program != MPI_REQUEST_NULL) {
        layer().real.Request_free(&program);
    }
}

void StreamComm::begin(const std::shared_ptr<Enqueued>& operation) {
    if (_given_up.load(std::memory_order_acquire)) {
        operation->error = MPI_ERR_OTHER;
    } else {
        if (operation->stage) {
            operation->stage->before_receive();
        }
        operation->error = operation->start(&operation->request);
    }
    if (operation->error == MPI_SUCCESS) {
        _under_way.push_back(operation);
        return;
    }
    end(*operation);
    if (operation->capture == 0) {
        const std::scoped_lock lock(_mutex);
        _spent.push_back(operation);
    }
}

/// Begins the first operation that is queued.
void StreamComm::begin_next() {
    std::shared_ptr<Enqueued> next;
    {
        const std::scoped_lock lock(_mutex);
        next = std::move(_queued.front());
        _queued.pop_front();
    }
    begin(next);
}

/// Begins what an entry of the ring says.
void StreamComm::begin_arrived(const std::uint32_t entry) {
    if ((entry & kCaptured) == 0) {
        const auto has_come = [&] {
            const std::scoped_lock lock(_mutex);
            return !_queued.empty() && (entry - _queued.front()->number) % kCaptured < kCaptured / 2;
        };
        while (has_come()) {
            begin_next();
        }
        return;
    }
    std::vector<std::shared_ptr<Enqueued>> again;
    {
        const std::scoped_lock lock(_mutex);
        if (const auto found = _captured.find(entry % kCaptured); found != _captured.end()) {
            again = found->second->operations;
        }
        for (const std::shared_ptr<Enqueued>& operation : again) {
            ++operation->replay;
            operation->over = operation->is_reported = false;
            operation->begun = Clock::now();
        }
        _open.fetch_add(again.size(), std::memory_order_acq_rel);
    }
    for (const std::shared_ptr<Enqueued>& operation : again) {
        begin(operation);
    }
}

/// Frees the stages that the stream has read.
void StreamComm::let_pass() {
    const std::uint64_t passed = __atomic_load_n(&_words->passed, __ATOMIC_ACQUIRE);
    const bool given_up = _given_up.load(std::memory_order_acquire);
    const std::scoped_lock lock(_mutex);
    while (!_to_pass.empty() && (given_up || _to_pass.front().first <= passed)) {
        _to_pass.front().second->stage->release();
        _spent.push_back(std::move(_to_pass.front().second));
        _to_pass.pop_front();
    }
    _passing.store(!_to_pass.empty(), std::memory_order_release);
}

bool StreamComm::progress() noexcept {
    const bool given_up = _given_up.load(std::memory_order_acquire);
    bool has_changed = false;
    if (_passing.load(std::memory_order_acquire)) {
        let_pass();
    }
    // Graphs that have gone by now have left all their entries in the ring.
    std::vector<std::shared_ptr<Captured>> gone;
    if (has_graphs()) {
        const std::scoped_lock lock(_mutex);
        for (const auto& [number, captured] : _captured) {
            if (captured->is_gone->load(std::memory_order_acquire)) {
                gone.push_back(captured);
            }
        }
    }
    for (std::uint64_t index = _taken.load(std::memory_order_relaxed); has_arrived(index); ++index) {
        begin_arrived(static_cast<std::uint32_t>(entry(index)));
        _taken.store(index + 1, std::memory_order_release);
        has_changed = true;
    }
    const auto is_queued = [this] {
        const std::scoped_lock lock(_mutex);
        return !_queued.empty();
    };
    while (given_up && is_queued()) {
        begin_next();
        has_changed = true;
    }
    for (std::size_t i = 0; i < _under_way.size();) {
        Enqueued& operation = *_under_way[i];
        int is_over = 0;
        operation.error = given_up ? MPI_ERR_OTHER : layer().real.Test(&operation.request, &is_over, &operation.status);
        if (is_over == 0 && operation.error == MPI_SUCCESS) {
            if (operation.capture != 0) {
                report_if_late(operation);
            }
            ++i;
            continue;
        }
        has_changed = true;
        std::shared_ptr<Enqueued> over = std::move(_under_way[i]);
        _under_way.erase(_under_way.begin() + static_cast<std::ptrdiff_t>(i));
        end(*over);
        if (over->capture == 0) {
            const std::scoped_lock lock(_mutex);
            _spent.push_back(std::move(over));
        }
    }
    forget_graphs(gone);
    return has_changed;
}

void StreamComm::report_if_late(Enqueued& operation) const {
    if (operation.is_reported || Clock::now() - operation.begun < kLateReplay) {
        return;
    }
    operation.is_reported = true;
    char name[MPI_MAX_OBJECT_NAME] = {};
    int length = 0;
    layer().real.Comm_get_name(_communicator, name, &length);
    fprintf(stderr,
            "awaken: replay %u of an operation in a graph, on communicator \"%s\", has waited for %d s: the other "
            "ranks have replayed theirs less often; all replay their graphs equally often\n",
            operation.replay, name, static_cast<int>(kLateReplay.count()));
}

/// Lets go of what graphs had that have gone, when no operation of theirs is under way.
void StreamComm::forget_graphs(const std::vector<std::shared_ptr<Captured>>& gone) {
    for (const std::shared_ptr<Captured>& each : gone) {
        const std::scoped_lock lock(_mutex);
        if (!std::all_of(each->operations.begin(), each->operations.end(),
                         [](const auto& operation) { return operation->over; })) {
            continue;
        }
        std::erase_if(_captured, [&](const auto& entry) { return entry.second == each; });
        for (std::shared_ptr<Enqueued>& operation : each->operations) {
            _free_slots.push_back(operation->slot);
            _spent.push_back(std::move(operation));
        }
        each->operations.clear();
        _has_graphs.store(!_captured.empty(), std::memory_order_release);
    }
}

/// The earliest operations that are over make room. Needs _mutex.
void StreamComm::count_as_over(const std::uint64_t number) {
    _over.push_back(number);
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
    __atomic_store_n(&_words->done[number % _words->done.size()], turn_of(number), __ATOMIC_RELEASE);
    _over_to.store(to, std::memory_order_release);
}

void StreamComm::end(Enqueued& operation) {
    const bool is_captured = operation.capture != 0;
    if (operation.stage && operation.stores) {
        operation.stage->after_receive(is_captured);
    }
    MPI_Request program = MPI_REQUEST_NULL;
    bool is_released = false;
    {
        const std::scoped_lock lock(_mutex);
        operation.over = true;
        if (operation.error != MPI_SUCCESS && !_failure && !_given_up.load(std::memory_order_relaxed)) {
            char text[MPI_MAX_ERROR_STRING] = {};
            int length = 0, error_class = MPI_ERR_OTHER;
            layer().real.Error_class(operation.error, &error_class);
            layer().real.Error_string(operation.error, text, &length);
            _failure.emplace(error_class, text);
        }
        if (operation.told != MPI_STATUS_IGNORE) {
            *operation.told = operation.status;
        }
        if (is_captured) {
            __atomic_store_n(&_words->replayed[operation.slot], operation.replay, __ATOMIC_RELEASE);
        } else {
            program = operation.program;
            is_released = operation.released;
            if (operation.stage && !operation.stores) {
                operation.stage->release();
            }
            count_as_over(operation.number);
        }
    }
    if (program != MPI_REQUEST_NULL) {
        layer().real.Grequest_complete(program);
        if (is_released) {
            layer().real.Request_free(&program);
        }
    }
    operation.is_complete.store(true, std::memory_order_release);
    _open.fetch_sub(1, std::memory_order_acq_rel);
}

/// What the thread must not free, since that may take the driver.
void StreamComm::clean_up() noexcept {
    std::vector<std::shared_ptr<Enqueued>> gone;
    {
        const std::scoped_lock lock(_mutex);
        gone.swap(_spent);
    }
    for (const std::shared_ptr<Enqueued>& operation : gone) {
        if (operation->forgotten) {
            try {
                store_now(*operation);
            } catch (const Error& error) {
                layer().ledger.add_fallback("MPIX_Irecv_enqueue", error.what());
            }
        }
    }
}

/// Asks in the program's threads: the driver may keep the layer's waiting.
bool StreamComm::device_works() noexcept {
    bool over = false;
    return !_runtime.was_reset() && _runtime.query_stream(_own, over).ok();
}

/// The device does nothing any more. The thread ends everything then.
void StreamComm::give_up() noexcept {
    if (_given_up.exchange(true)) {
        return;
    }
    {
        const std::scoped_lock lock(_mutex);
        _failure.emplace(MPI_ERR_OTHER, "the GPU does nothing any more: an earlier kernel failed, or it was reset");
    }
    StreamComms::instance().wake();
}

/// For loops that wait for the thread.
void StreamComm::look_after_device(Clock::time_point& looked) noexcept {
    if (const Clock::time_point now = Clock::now(); now - looked > kBetweenLooks) {
        looked = now;
        if (!device_works()) {
            give_up();
        }
    }
    sched_yield();
}

void StreamComm::finish(const Enqueued& operation) noexcept {
    for (Clock::time_point looked = Clock::now(); !operation.is_complete.load(std::memory_order_acquire);) {
        look_after_device(looked);
    }
}

void StreamComm::finish() noexcept {
    std::uint64_t capture = 0;
    const bool asked = _runtime.capture_of(_stream->stream, capture).ok();
    Clock::time_point looked = Clock::now();
    do {
        while (!is_idle()) {
            look_after_device(looked);
        }
        clean_up();
        // What was queued behind the last operation's wait reads the words, and graphs begin operations.
        if (asked && capture == 0 && !_given_up.load() && !_runtime.was_reset()) {
            static_cast<void>(_runtime.synchronize_stream(_stream->stream));
        }
    } while (!is_idle());
}

void StreamComm::throw_failure() {
    const std::scoped_lock lock(_mutex);
    if (const auto failure = std::exchange(_failure, std::nullopt)) {
        throw ClassedError(failure->first,
                           "an operation that was queued in the communicator's stream failed: " + failure->second,
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
        static_cast<void>(runtime.is_idle(device, kBetweenLooks));
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
    return found != nullptr && !found->is_idle();
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
    for (MPI_Op op : std::exchange(_freed_ops, {})) {
        layer().real.Op_free(&op);
    }
    all.clear();
    _gone.clear();
    _covered.clear();
    _kernels.clear();
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

void StreamComms::made(const MPI_Request request, const std::shared_ptr<StreamComm>& of, Again again) {
    const std::scoped_lock lock(_mutex);
    _requests[request] = {of, nullptr, std::move(again)};
}

void StreamComms::give_request(const std::shared_ptr<StreamComm>& of, const std::shared_ptr<Enqueued>& operation,
                               MPI_Request* const request) {
    auto state = std::make_unique<Behind>(of, operation);
    const int error = layer().real.Grequest_start(&tell_status, &forget_request, &cancel_nothing, state.get(), request);
    if (error != MPI_SUCCESS) {
        throw RaisedError(error);
    }
    static_cast<void>(state.release());
    operation->program = *request;
    const std::scoped_lock lock(_mutex);
    _requests[*request] = {of, operation, {}};
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
    {
        const std::scoped_lock lock(_mutex);
        _has_work = true;
    }
    _wake.notify_one();
}

void StreamComms::run() noexcept {
    is_thread = true;
    std::vector<std::shared_ptr<StreamComm>> all;
    Clock::time_point changed = Clock::now();
    for (bool is_idle = true;;) {
        {
            std::unique_lock lock(_mutex);
            if (is_idle) {
                all.clear();  // a communicator that the program has freed goes with its last holder, in a call
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
            is_idle = is_idle && each->is_idle() && !each->has_graphs();
        }
        const Clock::time_point now = Clock::now();
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
