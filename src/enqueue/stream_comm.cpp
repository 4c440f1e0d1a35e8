// SPDX-License-Identifier: Apache-2.0
#include "enqueue/stream_comm.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/round_up.h"
#include "call/call.h"
#include "enqueue/stream_ccl.h"
#include "enqueue/stream_comms.h"

namespace awaken::AWAKEN_ABI {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr std::chrono::milliseconds kPatienceForMemory{5};
/// Messages that go in another way take longer than most waits for a place.
constexpr std::chrono::microseconds kPatienceForPlaces{300};

}  // namespace

void set_empty(MPI_Status& status) noexcept {
    status = MPI_Status{};
    status.MPI_SOURCE = MPI_ANY_SOURCE;
    status.MPI_TAG = MPI_ANY_TAG;
}

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
    if (status.ok()) {
        status = _runtime.create_stream(device, false, _beside);
    }
    for (gpu::EventHandle* const event : {&_held.before, &_past}) {
        if (status.ok()) {
            status = _runtime.create_event(device, *event);
        }
    }
    if (status.ok()) {
        status = _runtime.allocate(device, kBytesOnDevice, counters);
    }
    if (status.ok()) {
        status = _runtime.fill(counters, 0, kBytesOnDevice, _own);
    }
    if (status.ok()) {
        status = _runtime.synchronize_stream(_own);
    }
    if (!status.ok()) {
        if (counters != nullptr) {
            _runtime.free_when_idle(counters, device);
        }
        destroy_handles();
        static_cast<void>(_runtime.unregister_host(words));
        munmap(words, kBytesOfWords);
        throw Error("a communicator with a stream cannot be made (" + status.message() + ")", "free GPU resources");
    }
    _counters = static_cast<std::uint32_t*>(counters);
    _of_steps = _counters + kCounters;
    _of_own_steps = _of_steps + stream::StepKernel::kMostSteps;
    _channels = reinterpret_cast<stream::Channel*>(static_cast<std::byte*>(counters) + kChannelsAt);
    for (std::size_t slot = kMostCaptured; slot > 0; --slot) {
        _free_slots.push_back(slot - 1);
    }
    for (std::size_t slot = kMost; slot > 0; --slot) {
        _free_words.push_back(slot - 1);
    }
    _stream->communicators.fetch_add(1);
}

StreamComm::~StreamComm() {
    for (const auto& [number, captured] : _captured) {
        leave_channel(*captured.operation);
    }
    _runtime.forget_captured(_stream->stream);
    _stream->communicators.fetch_sub(1);
    StreamComm* self = this;
    _stream->holds_back.compare_exchange_strong(self, nullptr);
    if (!_runtime.was_reset()) {
        destroy_handles();
    }
    _runtime.free_when_idle(_counters, _stream->stream.device);
    _runtime.when_idle(_stream->stream.device, [&runtime = _runtime, words = _words] {
        static_cast<void>(runtime.unregister_host(words));
        munmap(words, kBytesOfWords);
    });
}

void StreamComm::destroy_handles() noexcept {
    for (const gpu::StreamHandle stream : {_own, _beside}) {
        if (stream.value != nullptr) {
            static_cast<void>(_runtime.destroy_stream(stream));
        }
    }
    for (const gpu::EventHandle event : {_held.before, _past}) {
        if (event.value != nullptr) {
            static_cast<void>(_runtime.destroy_event(event));
        }
    }
}

StreamComm::Words::Operation& StreamComm::words_of(const Enqueued& operation) const noexcept {
    return (operation.capture != 0 ? std::span<Words::Operation>(_words->captured)
                                   : std::span<Words::Operation>(_words->operations))[operation.slot];
}

std::uint32_t StreamComm::wanted(const Enqueued& operation) noexcept {
    return operation.capture != 0 ? operation.replay : operation.turn;
}

/// Waits until the operation is over.
stream::Step StreamComm::wait_step(const Enqueued& operation) const noexcept {
    stream::Step step;
    step.awaited = step.released = &words_of(operation).done;
    if (operation.capture != 0) {
        step.replays = _counters + 1 + kCountersPerSlot * operation.slot;
    } else {
        step.number = operation.turn;
    }
    return step;
}

/// The same, and copies what was received.
stream::Step StreamComm::fetch_step(const Enqueued& operation) const noexcept {
    Words::Operation& words = words_of(operation);
    stream::Step step = wait_step(operation);
    step.target = operation.landing->target();
    step.bytes = operation.landing->most();
    if (operation.capture == 0 && __atomic_load_n(&words.done, __ATOMIC_ACQUIRE) == step.number &&
        words.found.told_host != 0 && words.fetched >> 32 == operation.number >> 32) {
        // The message has come already, which spares the step to read of it across the bus.
        const stream::Found& found = words.found;
        step.awaited = reinterpret_cast<const std::uint32_t*>(found.awaited);
        step.released = reinterpret_cast<const std::uint32_t*>(found.released);
        step.number = found.number;
        step.source = reinterpret_cast<const void*>(found.source);
        step.bytes = std::min<std::uint64_t>(found.bytes, step.bytes);
        step.told_host = reinterpret_cast<std::uint64_t*>(found.told_host);
        step.told_host_number = found.told_host_number;
        step.told = reinterpret_cast<std::uint32_t*>(&words.fetched);  // its lower half
        step.told_number = static_cast<std::uint32_t>(operation.number);
        return step;
    }
    step.found = &words.found;
    step.told_host = &words.fetched;
    if (operation.capture != 0) {
        step.counter = step.replays + 3;
        if (operation.landing->to == Landing::To::device) {
            step.channel = _channels + operation.slot;
            step.opening = &words.channel;
        }
    } else {
        step.told_host_number = operation.number;
    }
    return step;
}

/// Waits until the data are in memory of the host.
stream::Step StreamComm::delivery_step(const Enqueued& operation) const noexcept {
    stream::Step step = wait_step(operation);
    step.awaited = step.released = &words_of(operation).delivered;
    if (step.replays != nullptr) {
        step.replays += 2;
    }
    return step;
}

void StreamComm::launch(const gpu::StreamHandle stream, const std::span<const stream::Step> steps) {
    for (std::size_t first = 0; first < steps.size(); first += stream::StepKernel::kMostSteps) {
        const std::size_t count = std::min(stream::StepKernel::kMostSteps, steps.size() - first);
        if (const gpu::Status status = _kernel.launch(stream, steps.subspan(first, count), _of_steps); !status.ok()) {
            throw Error("the stream takes no more work (" + status.message() + ")",
                        "an error of an earlier kernel of the program is also reported here; the stream must live as "
                        "long as its communicator");
        }
    }
}

/// The step tells the thread how far the stream has come.
void StreamComm::arrive(stream::Step& step, const std::uint64_t number) const noexcept {
    step.told_host = _words->arrived.data();
    step.told_host_number = number;
    step.entries = _counters;
}

/// Queues all that comes before operations in the stream, and returns the step that tells the thread of them.
stream::Step StreamComm::arrive_with(const Operations operations, const bool is_captured, const std::uint64_t number) {
    std::vector<stream::Step> steps;
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        stream::Step& step = steps.emplace_back();
        if (is_captured) {
            add_wait_for_replay_before(*operation, step);
        }
        step.target = operation->copy.target;
        step.source = operation->copy.source;
        step.bytes = operation->copy.bytes;
        if (!is_captured && operation->copy.target == nullptr) {
            steps.pop_back();
        }
    }
    stream::Step last;
    if (operations.size() == 1 && steps.size() == 1 && !operations.front()->stage) {
        last = steps.front();
    } else {
        launch(steps);
        queue_loads(operations);
    }
    arrive(last, number);
    return last;
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
    announce();
    const std::uint64_t before = _ended.load(std::memory_order_acquire);
    const bool was_passing = _passing.load(std::memory_order_acquire);
    for (const Clock::time_point until = Clock::now() + kPatienceForMemory; Clock::now() < until;) {
        if (is_idle() || _ended.load(std::memory_order_acquire) != before ||
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
    std::vector<stream::Step> deliveries;
    std::vector<Passing> passing;
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        const bool is_first = !std::exchange(operation->stored, true);
        if (operation->landing && is_first) {
            steps.push_back(fetch_step(*operation));
            if (operation->at_once && operation->number > _announced_to) {
                _unannounced.fetch_sub(1, std::memory_order_relaxed);
            }
        } else if (operation->waits) {
            steps.push_back(wait_step(*operation));
        }
        if (!operation->stores || !is_first) {
            continue;
        }
        if (operation->stage) {
            stored.push_back(operation);
        } else {
            passing.push_back({&words_of(*operation).fetched, operation->number, operation});
            if (operation->landing->to == Landing::To::host) {
                deliveries.push_back(delivery_step(*operation));
            }
        }
    }
    const bool is_captured = !operations.empty() && operations.front()->capture != 0;
    if (is_captured) {
        launch(steps);
        launch(deliveries);
        // The next replay reads into the same memory behind these copies.
        for (const std::shared_ptr<Enqueued>& operation : stored) {
            operation->stage->queue_store(_stream->stream);
        }
        steps.clear();
        return;
    }
    const std::uint64_t pass = stored.empty() ? _pass : ++_pass;
    for (const std::shared_ptr<Enqueued>& operation : stored) {
        passing.push_back({&_words->passed, pass, operation});
    }
    if (!passing.empty()) {
        const std::scoped_lock lock(_mutex);
        _to_pass.insert(_to_pass.end(), passing.begin(), passing.end());
        _passing.store(true, std::memory_order_release);
    }
    if (!passing.empty()) {
        StreamComms::instance().wake();
    }
    launch(steps);
    launch(deliveries);
    steps.clear();
    if (stored.empty()) {
        return;
    }
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

/// Queues the copies of messages that are offered before the stream has come to them. Throws Error; no message goes
/// then.
void StreamComm::launch_early(const Operations operations) {
    std::vector<stream::Step> steps;
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        if (operation->message == nullptr) {
            continue;
        }
        const transport::ReadyWords words = operation->message->offer_early();
        stream::Step& step = steps.emplace_back();
        step.target = operation->copy.target;
        step.source = operation->copy.source;
        step.bytes = operation->copy.bytes;
        step.told = words.told;
        step.told_number = words.told_number;
        step.told_host = words.told_host;
        step.told_host_number = words.told_host_number;
    }
    try {
        launch(steps);
    } catch (const Error&) {
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            if (operation->message != nullptr) {
                operation->message->withdraw();
            }
        }
        throw;
    }
}

/// In stream order, steps of earlier plain calls may still be gathered. What is queued now may wait for another process
/// that waits for them, and in the default stream they would wait for it. Not in a capture.
void StreamComm::flush_plain() noexcept {
    layer().node_peers.flush();
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
    release();
    flush_plain();
    while (!has_words_for(operations.size())) {
        if (is_idle() && !has_words_for(operations.size())) {
            throw ClassedError(MPI_ERR_REQUEST,
                               "more than " + std::to_string(kMost) +
                                   " receives are complete, but the program has not waited for them",
                               "call MPIX_Wait_enqueue for each request");
        }
        announce_now();
        if (!device_works()) {
            give_up();
        }
        sched_yield();
    }
    // Nobody says when a graph is launched. So what may come behind one waits for the stream.
    const bool at_once = !has_graphs() && std::all_of(operations.begin(), operations.end(),
                                                      [](const auto& operation) { return operation->at_once; });
    std::vector<stream::Step> steps;
    if (at_once) {
        launch_early(operations);
    } else {
        steps.push_back(arrive_with(operations, false, (_last + operations.size()) % kCaptured));
        _announced_to = _last + operations.size();
        _unannounced.store(0, std::memory_order_release);
    }
    const std::uint64_t before = _last;
    _open.fetch_add(operations.size(), std::memory_order_acq_rel);
    {
        const std::scoped_lock lock(_mutex);
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            operation->number = ++_last;
            operation->slot = _free_words.back();
            operation->turn = ++_turns[operation->slot];
            operation->keeps_words = operation->landing.has_value();
            operation->at_once = at_once;
            _free_words.pop_back();
            _queued.push_back(operation);
            _any_queued.store(true, std::memory_order_release);
        }
    }
    if (at_once) {
        const auto receives = [](const auto& operation) { return operation->landing.has_value(); };
        _unannounced.fetch_add(
            static_cast<std::uint64_t>(std::count_if(operations.begin(), operations.end(), receives)),
            std::memory_order_release);
    }
    StreamComms::instance().wake();  // what follows may fill the launch queue, and wait for the thread
    try {
        if (waits) {
            queue_waits(operations, steps);
        } else {
            launch(steps);
        }
    } catch (const Error&) {
        if (at_once) {
            throw;  // it has begun
        }
        // The thread begins nothing before the first step has run, and that one was refused.
        const std::scoped_lock lock(_mutex);
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            give_words_back(*operation);
        }
        _queued.resize(_queued.size() - operations.size());
        std::erase_if(_to_pass, [&](const Passing& each) { return each.operation->number > before; });
        _last = before;
        _open.fetch_sub(operations.size(), std::memory_order_acq_rel);
        throw;
    }
}

void StreamComm::announce() noexcept {
    if (_unannounced.load(std::memory_order_acquire) != 0) {
        const std::scoped_lock calls(_calls);
        announce_now();
    }
}

/// Needs _calls.
void StreamComm::announce_now() noexcept {
    if (_unannounced.exchange(0, std::memory_order_acq_rel) == 0) {
        return;
    }
    stream::Step step;
    arrive(step, _last % kCaptured);
    std::uint64_t capture = 0;
    // A captured stream says nothing now. What was queued before the capture has come then.
    if (_runtime.capture_of(_stream->stream, capture).ok() && capture == 0 &&
        _kernel.launch(_stream->stream, {&step, 1}, _of_steps).ok()) {
        _announced_to = _last;
    } else {
        _arrived_to.store(_last, std::memory_order_release);
    }
}

void StreamComm::wait(const Operations operations) {
    const std::scoped_lock calls(_calls);
    std::vector<stream::Step> steps;
    if (!operations.empty() && operations.front()->capture != 0) {
        std::vector<std::shared_ptr<Enqueued>> with;
        steps = take_held_back(with);
    } else {
        flush_plain();
    }
    queue_waits(operations, steps);
}

/// The program's thread is in a call that completes the operation, so the order of the stream does not matter.
void StreamComm::store_now(Enqueued& operation) {
    if (!operation.stores || operation.capture != 0 || std::exchange(operation.stored, true)) {
        return;
    }
    if (operation.error != MPI_SUCCESS) {
        give_back_place(operation);
        note_fetched(operation);
        return;
    }
    gpu::Status status;
    if (operation.landing) {
        const stream::Step step = fetch_step(operation);
        status = _kernel.launch(_own, {&step, 1}, _of_own_steps);
    }
    if (status.ok() && operation.stage) {
        operation.stage->queue_store(_own);
    }
    if (status.ok()) {
        status = _runtime.synchronize_stream(_own);
    }
    if (!status.ok()) {
        throw Error("a copy of received data failed (" + status.message() + ")",
                    "an error of an earlier kernel of the program is also reported here");
    }
    if (operation.landing && operation.landing->to == Landing::To::host) {
        operation.landing->deliver();
    }
    note_fetched(operation);
}

/// No step reads the words of a receive any more.
void StreamComm::note_fetched(Enqueued& operation) noexcept {
    const std::scoped_lock lock(_mutex);
    if (std::exchange(operation.keeps_words, false) && operation.over) {
        give_words_back(operation);
    }
}

void StreamComm::take_back(Enqueued& operation, MPI_Status* const status) {
    bool is_over = false;
    {
        const std::scoped_lock lock(_mutex);
        if (operation.is_known && status != MPI_STATUS_IGNORE) {
            *status = operation.status;
        }
        // Where the stream does not wait for the operation, the program's status may be gone before it is over.
        operation.told =
            (operation.is_known && operation.capture == 0) || !operation.waits ? MPI_STATUS_IGNORE : status;
        if (!operation.is_known && !operation.waits && status != MPI_STATUS_IGNORE) {
            set_empty(*status);
        }
        operation.released = true;
        is_over = operation.over;
    }
    if (MPI_Request program = operation.program; is_over && program != MPI_REQUEST_NULL) {
        layer().real.Request_free(&program);
    }
}

void StreamComm::begin(const std::shared_ptr<Enqueued>& operation) {
    if (_given_up.load(std::memory_order_acquire)) {
        operation->error = MPI_ERR_OTHER;
    } else {
        operation->is_through = false;
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
        _any_spent.store(true);
    }
}

/// Begins the first operation that is queued.
void StreamComm::begin_next() {
    std::shared_ptr<Enqueued> next;
    {
        const std::scoped_lock lock(_mutex);
        next = std::move(_queued.front());
        _queued.pop_front();
        _any_queued.store(!_queued.empty(), std::memory_order_release);
    }
    begin(next);
}

/// The sender may use the message's place again, though nobody has read it.
void StreamComm::give_back_place(const Enqueued& operation) const noexcept {
    if (!operation.landing) {
        return;
    }
    if (const stream::Found& found = words_of(operation).found; found.told_host != 0) {
        __atomic_store_n(reinterpret_cast<std::uint64_t*>(found.told_host), found.told_host_number, __ATOMIC_RELEASE);
    }
}

/// Whether the stream has come to an operation that began at once.
bool StreamComm::has_come_to(const Enqueued& operation) const noexcept {
    if (operation.message != nullptr) {
        return operation.message->is_placed();
    }
    return _arrived_to.load(std::memory_order_acquire) >= operation.number ||
           __atomic_load_n(&words_of(operation).fetched, __ATOMIC_ACQUIRE) == operation.number;
}

/// Whether a copy of what was received waits for nobody.
bool StreamComm::has_data(const Enqueued& operation) const noexcept {
    if (operation.ready == nullptr || operation.ready->load(std::memory_order_acquire) == operation.ready_value) {
        return true;
    }
    const Words::Operation& words = words_of(operation);
    const auto* const released = reinterpret_cast<const std::uint32_t*>(words.found.released);
    return __atomic_load_n(&words.fetched, __ATOMIC_ACQUIRE) == operation.number ||
           static_cast<std::int32_t>(__atomic_load_n(released, __ATOMIC_ACQUIRE) - words.found.number) >= 0;
}

/// The step of a receive into host memory has gone. In the thread.
void StreamComm::deliver(Enqueued& operation) noexcept {
    operation.landing->deliver();
    __atomic_store_n(&words_of(operation).delivered, wanted(operation), __ATOMIC_RELEASE);
}

/// Frees the memory that the stream has read.
void StreamComm::let_pass() {
    const bool given_up = _given_up.load(std::memory_order_acquire);
    const std::scoped_lock lock(_mutex);
    while (!_to_pass.empty()) {
        Passing& first = _to_pass.front();
        if (!given_up && __atomic_load_n(first.word, __ATOMIC_ACQUIRE) < first.number) {
            break;
        }
        Enqueued& operation = *first.operation;
        if (std::exchange(operation.keeps_words, false) && operation.over) {
            give_words_back(operation);
        }
        if (operation.landing) {
            if (operation.landing->to == Landing::To::host) {
                deliver(operation);
            }
            operation.landing->block.release();
        }
        if (operation.stage) {
            operation.stage->release();
        }
        _spent.push_back(std::move(first.operation));
        _any_spent.store(true);
        _to_pass.pop_front();
    }
    _passing.store(!_to_pass.empty(), std::memory_order_release);
}

/// Asks the MPI, and in a graph what more the next replay has to wait for.
bool StreamComm::is_over(Enqueued& operation) {
    if (_given_up.load(std::memory_order_acquire)) {
        operation.error = MPI_ERR_OTHER;
        return true;
    }
    if (!operation.is_through) {
        int is_through = 0;
        operation.error = layer().real.Test(&operation.request, &is_through, &operation.status);
        if (is_through == 0 && operation.error == MPI_SUCCESS) {
            return false;
        }
        operation.is_through = true;
        if (operation.finish != nullptr && operation.error == MPI_SUCCESS) {
            operation.finish();
        }
        settle(operation);
    }
    if (operation.capture == 0) {
        return has_data(operation) && (!operation.at_once || has_come_to(operation));
    }
    if (operation.landing && !operation.stored) {
        give_back_place(operation);  // the graph has no step that reads it
        if (operation.landing->to == Landing::To::host) {
            operation.landing->deliver();
        }
    }
    if (operation.error != MPI_SUCCESS) {
        return true;
    }
    if (operation.message != nullptr) {
        if (!operation.message->is_fetched()) {
            return false;
        }
        if (const auto channel = operation.message->channel()) {
            open_channel(operation, *channel, operation.message->channel_state());
        }
        return true;
    }
    if (operation.landing && operation.landing->to == Landing::To::host && operation.stored) {
        if (static_cast<std::uint32_t>(__atomic_load_n(&words_of(operation).fetched, __ATOMIC_ACQUIRE)) !=
            operation.replay) {
            return false;
        }
        deliver(operation);
    }
    return true;
}

/// The status is known. Needs _mutex.
void StreamComm::fill_status(Enqueued& operation) noexcept {
    operation.is_known = true;
    if (operation.told != MPI_STATUS_IGNORE) {
        *operation.told = operation.status;
    }
}

/// The MPI is through with the operation: lets the stream have what a receive has brought.
void StreamComm::settle(Enqueued& operation) {
    if (!operation.landing) {
        return;
    }
    Words::Operation& words = words_of(operation);
    const bool repeats = operation.capture != 0 && operation.stored;
    const transport::Placed placed = operation.landing->settle(operation.status, operation.error, repeats);
    words.found = placed.found;
    operation.ready = placed.ready;
    operation.ready_value = placed.ready_value;
    if (placed.state != nullptr) {
        open_channel(operation, placed.channel, placed.state);
    }
    {
        const std::scoped_lock lock(_mutex);
        fill_status(operation);
    }
    // A step may wait for it, by which the stream comes to what else the operation needs.
    __atomic_store_n(&words.done, wanted(operation), __ATOMIC_RELEASE);
}

bool StreamComm::progress() noexcept {
    const bool given_up = _given_up.load(std::memory_order_acquire);
    bool has_changed = false;
    if (_passing.load(std::memory_order_acquire)) {
        let_pass();
    }
    // Graphs that have gone by now have left all their entries in the ring.
    bool has_gone = false;
    if (has_graphs()) {
        const std::scoped_lock lock(_mutex);
        for (const auto& [number, captured] : _captured) {
            if (captured.is_gone->load(std::memory_order_acquire)) {
                captured.operation->is_last = has_gone = true;
            }
        }
    }
    const auto is_next = [&] {
        if (!_any_queued.load(std::memory_order_acquire)) {
            return false;
        }
        const std::scoped_lock lock(_mutex);
        return !_queued.empty() && (given_up || _queued.front()->at_once);
    };
    for (std::uint64_t index = _taken.load(std::memory_order_relaxed);;) {
        if (is_next()) {
            begin_next();
        } else if (has_arrived(index)) {
            begin_arrived(static_cast<std::uint32_t>(entry(index)));
            _taken.store(++index, std::memory_order_release);
        } else {
            break;
        }
        has_changed = true;
    }
    has_changed = begin_replays() || has_changed;
    for (std::size_t i = 0; i < _under_way.size();) {
        Enqueued& operation = *_under_way[i];
        if (!is_over(operation)) {
            if (operation.capture != 0) {
                report_if_late(operation, operation.replay);
            }
            ++i;
            continue;
        }
        has_changed = true;
        std::shared_ptr<Enqueued> over = std::move(_under_way[i]);
        _under_way.erase(_under_way.begin() + static_cast<std::ptrdiff_t>(i));
        end(*over);
        if (over->capture == 0 && over->message != nullptr) {
            _unfetched.push_back(std::move(over));
        } else if (over->capture == 0) {
            const std::scoped_lock lock(_mutex);
            _spent.push_back(std::move(over));
            _any_spent.store(true);
        }
    }
    // A few in turn: a receiver that comes late keeps its own message's place only.
    constexpr std::size_t kLooks = 4;
    for (std::size_t looks = std::min(_unfetched.size(), kLooks); looks > 0; --looks) {
        if (given_up || _unfetched.front()->message->is_fetched()) {
            spend_unfetched(1);
            has_changed = true;
        } else {
            _unfetched.push_back(std::move(_unfetched.front()));
            _unfetched.pop_front();
        }
    }
    has_changed = look_after_channels() || has_changed;
    if (has_gone && _arrived.empty()) {  // else one of the last replays has yet to begin
        forget_graphs();
    }
    return has_changed;
}

/// The first operations whose message may be in its place still.
void StreamComm::spend_unfetched(const std::size_t operations) {
    const auto end = _unfetched.begin() + static_cast<std::ptrdiff_t>(operations);
    const std::scoped_lock lock(_mutex);
    _spent.insert(_spent.end(), std::make_move_iterator(_unfetched.begin()), std::make_move_iterator(end));
    _any_spent.store(true);
    _unfetched.erase(_unfetched.begin(), end);
}

/// Whether so many operations find words, beside those that are not over.
bool StreamComm::has_words_for(const std::size_t operations) {
    const std::scoped_lock lock(_mutex);
    return _free_words.size() >= operations;
}

/// Needs _mutex.
void StreamComm::give_words_back(const Enqueued& operation) noexcept {
    _free_words.push_back(operation.slot);  // there was room for it
}

void StreamComm::end(Enqueued& operation) {
    const bool is_captured = operation.capture != 0;
    if (operation.landing && !operation.is_through) {
        words_of(operation).found = {};
    }
    if (is_captured && operation.landing) {
        __atomic_store_n(&words_of(operation).delivered, operation.replay, __ATOMIC_RELEASE);
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
            _has_failed.store(true, std::memory_order_release);
        }
        if (!operation.landing || !operation.is_through) {
            fill_status(operation);
        }
        if (is_captured) {
            __atomic_store_n(&words_of(operation).done, operation.replay, __ATOMIC_RELEASE);
        } else {
            program = operation.program;
            is_released = operation.released;
            if (!operation.stores) {
                operation.block.release();
                if (operation.stage) {
                    operation.stage->release();
                }
            }
            __atomic_store_n(&words_of(operation).done, operation.turn, __ATOMIC_RELEASE);
            _ended.fetch_add(1, std::memory_order_release);
            if (!operation.keeps_words) {
                give_words_back(operation);
            }
        }
    }
    if (program != MPI_REQUEST_NULL) {
        if (is_released) {
            StreamComms::instance().keep(program, operation.behind);
        } else {
            layer().real.Grequest_complete(program);
        }
    }
    operation.is_complete.store(true, std::memory_order_release);
    _open.fetch_sub(1, std::memory_order_acq_rel);
}

/// What the thread must not free, since that may take the driver.
void StreamComm::clean_up() noexcept {
    if (!_any_spent.exchange(false)) {
        return;
    }
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
        _has_failed.store(true, std::memory_order_release);
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
    announce();
    for (Clock::time_point looked = Clock::now(); !operation.is_complete.load(std::memory_order_acquire);) {
        look_after_device(looked);
    }
}

void StreamComm::finish() noexcept {
    std::uint64_t capture = 0;
    const bool asked = _runtime.capture_of(_stream->stream, capture).ok();
    announce();
    Clock::time_point looked = Clock::now();
    do {
        while (!is_idle()) {
            look_after_device(looked);
        }
        clean_up();
        // What was queued behind the last operation's wait reads the words, and graphs begin operations.
        if (asked && capture == 0 && !_given_up.load() && !_runtime.was_reset()) {
            if (_library != nullptr) {
                _library->finish();
            }
            static_cast<void>(_runtime.synchronize_stream(_stream->stream));
        }
    } while (!is_idle());
}

void StreamComm::throw_failure() {
    if (_library != nullptr) {
        _library->throw_failure();
    }
    if (!_has_failed.load(std::memory_order_acquire)) {
        return;
    }
    const std::scoped_lock lock(_mutex);
    _has_failed.store(false, std::memory_order_relaxed);
    if (const auto failure = std::exchange(_failure, std::nullopt)) {
        throw ClassedError(failure->first,
                           "an operation that was queued in the communicator's stream failed: " + failure->second,
                           "look at its arguments, and at what its partner sent");
    }
}

// ---- messages in places ---------------------------------------------------------------------------------------------

void StreamComm::ask_for_places(const bool is_first, const bool is_last) {
    Layer& owner = layer();
    const int device = _stream->stream.device;
    if (is_first) {
        int size = 0, rank = 0;
        owner.real.Comm_size(_communicator, &size);
        owner.real.Comm_rank(_communicator, &rank);
        for (int each = 0; each < size; ++each) {
            const NodePeers::Peer peer = owner.node_peers.peer_of(_communicator, each);
            _peers.push_back(peer.near ? peer : NodePeers::Peer{});
            // Another member may find that its messages reach this one, and this one not.
            _any_places = _any_places || (each != rank && _peers.back().transport != nullptr);
        }
        // Each makes its own page first, so that all know which processes share a GPU.
        if (const NodePeers::Peer own = _peers[static_cast<std::size_t>(rank)]; own.transport != nullptr) {
            static_cast<void>(own.transport->makes_places(own.number, device));
        }
        return;
    }
    for (NodePeers::Peer& peer : _peers) {
        if (peer.transport != nullptr && !peer.transport->makes_places(peer.number, device) && is_last) {
            peer.transport = nullptr;
        }
    }
}

/// The member, where messages to it may lie in places now; else without transport.
NodePeers::Peer StreamComm::placed_peer(const int rank) const noexcept {
    const NodePeers::Peer peer =
        static_cast<std::size_t>(rank) < _peers.size() ? _peers[static_cast<std::size_t>(rank)] : NodePeers::Peer{};
    return peer.transport != nullptr && peer.transport->takes_rts(peer.number) ? peer : NodePeers::Peer{};
}

std::optional<transport::PlacedMessage> StreamComm::take_place(const int rank, const std::size_t bytes) {
    const NodePeers::Peer peer = placed_peer(rank);
    if (peer.transport == nullptr || bytes > transport::kLongestPlace) {
        return std::nullopt;
    }
    auto placed = peer.transport->start_placed(peer.number, bytes);
    if (placed) {
        _waits_for_places.store(true, std::memory_order_relaxed);
        return placed;
    }
    if (!_waits_for_places.load(std::memory_order_relaxed)) {
        return std::nullopt;
    }
    for (const Clock::time_point until = Clock::now() + kPatienceForPlaces; !placed && Clock::now() < until;) {
        sched_yield();
        {
            const std::scoped_lock calls(_calls);
            clean_up();
        }
        placed = peer.transport->start_placed(peer.number, bytes);
    }
    _waits_for_places.store(placed.has_value(), std::memory_order_relaxed);
    return placed;
}

transfer::StagingBlock StreamComm::make_block(const std::int64_t bytes) {
    Layer& owner = layer();
    for (bool beyond_limit = is_idle();;) {
        transfer::StagingBlock block =
            owner.pool.acquire(owner.gpu(), static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)), beyond_limit);
        if (block.pinned()) {
            return block;
        }
        if (beyond_limit) {
            refuse_memory();
        }
        beyond_limit = !wait_for_memory();
    }
}

}  // namespace awaken::AWAKEN_ABI
