// SPDX-License-Identifier: Apache-2.0
// What a StreamComm does for operations in graphs.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "call/call.h"
#include "enqueue/stream_comm.h"
#include "enqueue/stream_comms.h"

namespace awaken::AWAKEN_ABI {

namespace {

using Clock = std::chrono::steady_clock;

/// After so long the other side has probably replayed its graph less often.
constexpr std::chrono::seconds kLateReplay{10};

/// A graph has gone. Comes from the runtime, which must not be called; what `state` points to is a flag.
void note_gone(void* const state) {
    const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> flag(
        static_cast<std::shared_ptr<std::atomic<bool>>*>(state));
    (*flag)->store(true, std::memory_order_release);
}

}  // namespace

/// The step waits first until the replay before is over, whose memory it uses.
void StreamComm::add_wait_for_replay_before(const Enqueued& operation, stream::Step& step) const noexcept {
    step.awaited = step.released = &words_of(operation).done;
    step.number = ~std::uint32_t{0};
    step.replays = _counters + 1 + kCountersPerSlot * operation.slot + 1;
    step.counter = step.replays + 2;
    if (operation.message != nullptr || (operation.landing && operation.landing->to == Landing::To::device)) {
        step.channel = _channels + operation.slot;
        step.opening = &words_of(operation).channel;
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
        operation->over = operation->is_known = true;
        operation->slot = _free_slots.back();
        _free_slots.pop_back();
        _words->captured[operation->slot] = {};
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
    const auto has_stage = [](const auto& operation) { return operation->stage.has_value(); };
    const bool staged = std::any_of(operations.begin(), operations.end(), has_stage);
    std::vector<std::shared_ptr<Enqueued>> with;
    std::vector<stream::Step> steps = take_held_back(with);
    take_slots(operations, capture);
    const auto is_gone = std::make_shared<std::atomic<bool>>(false);
    try {
        clear_counters(operations);
        for (const std::shared_ptr<Enqueued>& operation : operations) {
            const auto precedes = [&](const auto& other) {
                return other->peer == operation->peer && other->receives == operation->receives;
            };
            const auto before = std::find_if(with.rbegin(), with.rend(), precedes);
            operation->behind_in_kernel = before != with.rend() ? *before : nullptr;
            with.push_back(operation);
            if (staged) {
                launch(steps);
                steps.clear();
            }
            {
                const std::scoped_lock lock(_mutex);
                do {
                    _last_captured = (_last_captured + 1) % kCaptured;
                } while (_captured.contains(_last_captured));
                _captured.emplace(_last_captured, Captured{operation, is_gone});
                _has_graphs.store(true, std::memory_order_release);
            }
            steps.push_back(arrive_with({&operation, 1}, true, kCaptured | _last_captured));
        }
        if (waits) {
            queue_waits(operations, steps);
        } else if (staged || !hold_back(std::move(with), capture, steps)) {
            launch(steps);
        }
    } catch (...) {
        {
            const std::scoped_lock lock(_mutex);
            std::erase_if(_captured, [&](const auto& each) { return each.second.is_gone == is_gone; });
        }
        give_slots_back(operations);
        throw;
    }
    auto flag = std::make_unique<std::shared_ptr<std::atomic<bool>>>(is_gone);
    // Where the runtime tells nothing, what is captured stays until the communicator is freed.
    if (_runtime.when_graph_is_gone(_stream->stream, &note_gone, flag.get()).ok()) {
        static_cast<void>(flag.release());
    }
    StreamComms::instance().wake();
}

/// True when the steps go with the next call's.
bool StreamComm::hold_back(std::vector<std::shared_ptr<Enqueued>> operations, const std::uint64_t capture,
                           std::vector<stream::Step>& steps) {
    if (_held.steps.empty()) {  // else the place is the same
        if (!_runtime.record_event(_held.before, _stream->stream).ok() ||
            !_runtime.capture_point(_stream->stream, _held.point).ok()) {
            return false;
        }
        _held.capture = capture;
    }
    _held.steps = std::move(steps);
    _held.operations = std::move(operations);
    _stream->holds_back.store(this);
    return true;
}

/// What was held back, for the kernel of the next call, and its operations. Nothing, where there is none, or where it
/// had to go before.
std::vector<stream::Step> StreamComm::take_held_back(std::vector<std::shared_ptr<Enqueued>>& operations) {
    let_others_go();
    if (_held.steps.empty()) {
        return {};
    }
    std::uint64_t point = 0;
    static_cast<void>(_runtime.capture_point(_stream->stream, point));
    if (point != _held.point || capture() != _held.capture) {
        release();
        return {};
    }
    _stream->holds_back.store(nullptr);
    operations = std::exchange(_held.operations, {});
    return std::exchange(_held.steps, {});
}

/// The stream's other communicators keep nothing for later.
void StreamComm::let_others_go() const {
    StreamComm* const other = _stream->holds_back.load();
    if (other != nullptr && other != this) {
        const std::scoped_lock calls(other->_calls);
        other->release();
    }
}

void StreamComm::release_held_back() {
    let_others_go();
    const std::scoped_lock calls(_calls);
    release();
}

/// Puts what was held back where it belongs. Needs _calls.
void StreamComm::release() {
    if (_held.steps.empty()) {
        return;
    }
    const std::vector<stream::Step> steps = std::exchange(_held.steps, {});
    _held.operations.clear();
    _stream->holds_back.store(nullptr);
    if (capture() != _held.capture) {
        throw ClassedError(MPI_ERR_REQUEST, "a request was queued in a capture, and its wait was not",
                           "call MPIX_Wait_enqueue before the capture ends; the graph lacks the operation");
    }
    std::uint64_t point = 0;
    if (_runtime.capture_point(_stream->stream, point).ok() && point == _held.point) {
        launch(steps);
        return;
    }
    gpu::Status status = _runtime.stream_wait_event(_beside, _held.before);
    if (status.ok()) {
        launch(_beside, steps);
        status = _runtime.record_event(_past, _beside);
    }
    if (status.ok()) {
        status = _runtime.stream_wait_event(_stream->stream, _past);
    }
    if (!status.ok()) {
        throw Error("the capture takes no more work (" + status.message() + ")",
                    "an error of an earlier call that is captured is also reported here");
    }
}

/// Of operations that have just got their slots.
void StreamComm::clear_counters(const Operations operations) {
    gpu::Status status;
    for (const std::shared_ptr<Enqueued>& operation : operations) {
        std::uint32_t* const counters = _counters + 1 + kCountersPerSlot * operation->slot;
        if (status.ok()) {
            status = _runtime.fill(counters, 0, kCountersPerSlot * sizeof *counters, _own);
        }
        if (status.ok()) {
            status = _runtime.fill(_channels + operation->slot, 0, sizeof *_channels, _own);
        }
    }
    if (status.ok()) {
        status = _runtime.synchronize_stream(_own);
    }
    if (!status.ok()) {
        throw Error("a counter of replays cannot be set (" + status.message() + ")",
                    "an error of an earlier kernel of the program is also reported here");
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

/// Begins what an entry of the ring says.
void StreamComm::begin_arrived(const std::uint32_t entry) {
    if ((entry & kCaptured) == 0) {
        const std::uint64_t before = _arrived_to.load(std::memory_order_relaxed);
        _arrived_to.store(before + (entry - before) % kCaptured, std::memory_order_release);
        const auto has_come = [&] {
            const std::scoped_lock lock(_mutex);
            return !_queued.empty() && (entry - _queued.front()->number) % kCaptured < kCaptured / 2;
        };
        while (has_come()) {
            begin_next();
        }
        return;
    }
    std::shared_ptr<Enqueued> again;
    {
        const std::scoped_lock lock(_mutex);
        if (const auto found = _captured.find(entry % kCaptured); found != _captured.end()) {
            again = found->second.operation;
        }
    }
    if (again != nullptr) {
        _open.fetch_add(1, std::memory_order_acq_rel);
        _arrived.push_back(again);
        static_cast<void>(begin_replays());  // what comes behind the graph comes after its operations
    }
}

/// Begins the replays that have come, but those that another one of the same kernel precedes.
bool StreamComm::begin_replays() {
    bool has_changed = false;
    for (std::size_t i = 0; i < _arrived.size();) {
        const std::shared_ptr<Enqueued> operation = _arrived[i];
        // What goes by a channel has found its partner, but another one before it may not have.
        std::shared_ptr<Enqueued> before = operation->behind_in_kernel.lock();
        while (before != nullptr && before->channel != nullptr) {
            before = before->behind_in_kernel.lock();
        }
        if (before != nullptr && before->replay == operation->replay) {
            ++i;
            continue;
        }
        _arrived.erase(_arrived.begin() + static_cast<std::ptrdiff_t>(i));
        begin_again(operation);
        _open.fetch_sub(1, std::memory_order_acq_rel);
        has_changed = true;
        i = 0;
    }
    return has_changed;
}

/// The next replay.
void StreamComm::begin_again(const std::shared_ptr<Enqueued>& operation) {
    ++operation->replay;
    operation->over = operation->is_reported = false;
    operation->begun = Clock::now();
    _open.fetch_add(1, std::memory_order_acq_rel);
    begin(operation);
}

/// The operation and one of another process's graph have met: from the next replay on, steps pass messages on by
/// themselves. Before the steps learn that this replay is over.
void StreamComm::open_channel(Enqueued& operation, const stream::Channel& channel,
                              transport::ChannelState* const state) {
    stream::Channel& opening = words_of(operation).channel;
    const std::uint64_t begun = opening.begun;
    opening = channel;
    opening.begun = begun;
    opening.number -= operation.replay;
    operation.channel = state;
    operation.channel_number = opening.number;
    operation.begun = Clock::now();
    if (!std::exchange(operation.had_channel, true)) {
        _with_channels.push_back(operation.shared_from_this());
    }
}

/// The graph has gone, so nothing goes by the channel any more.
void StreamComm::leave_channel(Enqueued& operation) noexcept {
    transport::ChannelState* const state = std::exchange(operation.channel, nullptr);
    std::erase_if(_with_channels, [&](const auto& each) { return each.get() == &operation; });
    if (state == nullptr) {
        return;
    }
    if (operation.message != nullptr) {
        const auto begun = static_cast<std::uint32_t>(words_of(operation).channel.begun);
        operation.message->close_channel(std::max(begun, operation.replay) - operation.replay);
        return;
    }
    state->phase.store(transport::ChannelState::left_by_receiver, std::memory_order_release);
}

/// Sees to replays whose partner has gone: they go as those before the channel.
bool StreamComm::look_after_channels() {
    bool has_changed = false;
    for (const std::shared_ptr<Enqueued>& each : _with_channels) {
        Enqueued& operation = *each;
        if (!operation.over) {
            continue;
        }
        Words::Operation& words = words_of(operation);
        const auto begun = static_cast<std::uint32_t>(__atomic_load_n(&words.channel.begun, __ATOMIC_ACQUIRE));
        if (operation.channel != nullptr) {
            const bool sends = operation.message != nullptr;
            const std::uint32_t phase = operation.channel->phase.load(std::memory_order_acquire);
            const auto fetched = static_cast<std::uint32_t>(operation.channel->fetched.load(std::memory_order_acquire));
            std::uint32_t last = 0;
            if (sends && phase == transport::ChannelState::left_by_receiver) {
                last = fetched - operation.channel_number;
                operation.message->close_channel(last - operation.replay);
            } else if (!sends && phase == transport::ChannelState::closed_by_sender) {
                last = operation.channel->last.load(std::memory_order_acquire) - operation.channel_number;
                operation.channel->phase.store(transport::ChannelState::seen_by_receiver, std::memory_order_release);
            } else {
                if (begun != std::exchange(operation.seen, begun) || begun == fetched - operation.channel_number) {
                    operation.begun = Clock::now();
                    operation.is_reported = false;
                } else if (begun != 0) {
                    report_if_late(operation, begun);
                }
                continue;
            }
            operation.channel = nullptr;
            operation.replay = last;
            __atomic_store_n(&words.channel.open, 0, __ATOMIC_RELEASE);
            __atomic_store_n(&words.done, last, __ATOMIC_RELEASE);
            has_changed = true;
        }
        if (begun != 0 && static_cast<std::int32_t>(begun - operation.replay) > 0) {
            begin_again(each);
            has_changed = true;
        }
    }
    return has_changed;
}

void StreamComm::report_if_late(Enqueued& operation, const std::uint32_t replay) const {
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
            replay, name, static_cast<int>(kLateReplay.count()));
}

/// Lets go of what graphs had that have gone, when no operation of theirs is under way.
void StreamComm::forget_graphs() {
    const std::scoped_lock lock(_mutex);
    std::erase_if(_captured, [this](const auto& entry) {
        const auto& [operation, is_gone] = entry.second;
        if (!operation->is_last || !operation->over) {
            return false;
        }
        leave_channel(*operation);
        _free_slots.push_back(operation->slot);
        _spent.push_back(operation);
        _any_spent.store(true);
        return true;
    });
    _has_graphs.store(!_captured.empty(), std::memory_order_release);
}

}  // namespace awaken::AWAKEN_ABI
