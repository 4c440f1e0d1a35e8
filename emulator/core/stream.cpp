// SPDX-License-Identifier: Apache-2.0
#include "core/stream.h"

#include <algorithm>
#include <thread>

#include "core/capture.h"
#include "core/context.h"
#include "core/core.h"

namespace awaken::emulator {

void Timeline::wait(std::uint64_t number) {
    if (reached(number)) {
        return;
    }
    std::unique_lock lock(_mutex);
    _changed.wait(lock, [&] { return reached(number); });
}

void Timeline::complete(std::uint64_t number) {
    {
        const std::scoped_lock lock(_mutex);
        _completed.store(number, std::memory_order_release);
    }
    _changed.notify_all();
}

RandomDelays::RandomDelays(const DelayRange& range, const int device, const std::uint32_t stream)
    : _distribution(0, range.longest.count()) {
    std::seed_seq seed{range.seed, static_cast<std::uint32_t>(device), stream};
    _random.seed(seed);
}

std::chrono::microseconds RandomDelays::next() {
    return std::chrono::microseconds(_distribution(_random));
}

Stream::Stream(Context& context, std::uint32_t number, Role role, bool blocking, unsigned flags, int priority)
    : _context(context), _number(number), _role(role), _blocking(blocking), _flags(flags), _priority(priority) {}

Ticket Stream::last() {
    const std::scoped_lock lock(_mutex);
    return {_timeline, _submitted};
}

void Stream::collect_order(std::vector<Ticket>& after) {
    const auto add = [&](Stream& stream) {
        Ticket ticket = stream.last();
        if (!ticket.done()) {
            after.push_back(std::move(ticket));
        }
    };
    if (_role == Role::legacy_default) {
        for (const auto& weak : _context.streams) {
            const std::shared_ptr<Stream> stream = weak.lock();
            if (stream && stream.get() != this && stream->blocking()) {
                add(*stream);
            }
        }
    } else if (_blocking) {
        add(*_context.legacy);
    }
}

Ticket Stream::submit(Work work, Start start, std::vector<Ticket> also) {
    if (record_in_capture(*this, work)) {
        return {};
    }
    Operation operation{std::move(work), std::move(also), {}, 0};
    if (start == Start::late) {
        operation.not_before = std::chrono::steady_clock::now() + core().configuration().delay;
    }
    return queue(std::move(operation), false);
}

Ticket Stream::submit_memory_wait(Work work) {
    if (record_in_capture(*this, work, true)) {
        return {};
    }
    return queue({std::move(work), {}, {}, 0}, true);
}

void Stream::await_room(std::unique_lock<std::mutex>& order) {
    const std::uint64_t length = core().configuration().queue_length;
    while (true) {
        std::uint64_t first_to_go = 0;
        {
            const std::scoped_lock lock(_mutex);
            first_to_go = _submitted >= length ? _submitted + 1 - length : 0;
        }
        if (_timeline->reached(first_to_go)) {
            return;
        }
        order.unlock();
        _timeline->wait(first_to_go);
        order.lock();
    }
}

void Stream::collect_connection(std::vector<Ticket>& after) {
    if (!_context.memory_wait.done()) {
        after.push_back(_context.memory_wait);
    }
}

Ticket Stream::queue(Operation operation, const bool memory_wait) {
    Ticket ticket;
    std::unique_lock order(_context.order);
    await_room(order);
    collect_order(operation.after);
    collect_connection(operation.after);
    {
        const std::scoped_lock lock(_mutex);
        operation.number = ++_submitted;
        ticket = {_timeline, operation.number};
        _queue.push_back(std::move(operation));
        if (!_worker) {
            // Detached, and owner of the stream: a stream may be destroyed while it still has work, and at process exit
            // nobody can be asked to wait for a GPU.
            std::thread([self = shared_from_this()] { self->work_off(); }).detach();
            _worker = true;
        }
    }
    if (memory_wait && core().configuration().connections == 1) {
        _context.memory_wait = ticket;
    }
    _wake.notify_one();
    return ticket;
}

void Stream::run(const Work& work) {
    if (record_in_capture(*this, work)) {
        return;
    }
    std::vector<Ticket> after;
    std::uint64_t number = 0;
    {
        const std::scoped_lock order(_context.order);
        collect_order(after);
        collect_connection(after);
        const std::scoped_lock lock(_mutex);
        if (_queue.empty() && !_busy && after.empty()) {
            number = ++_submitted;
            _busy = true;
        }
    }
    if (number == 0) {
        submit(work).wait();
        return;
    }
    delay_at_random();
    work();
    {
        const std::scoped_lock lock(_mutex);
        _busy = false;
        _timeline->complete(number);
    }
    _wake.notify_one();
}

void Stream::work_off() {
    std::unique_lock lock(_mutex);
    while (true) {
        _wake.wait(lock, [&] { return !_busy && (!_queue.empty() || _closed); });
        if (_queue.empty()) {
            return;
        }
        Operation operation = std::move(_queue.front());
        _queue.pop_front();
        _busy = true;
        lock.unlock();
        for (const Ticket& ticket : operation.after) {
            ticket.wait();
        }
        if (operation.not_before != std::chrono::steady_clock::time_point()) {
            std::this_thread::sleep_until(operation.not_before);
        }
        delay_at_random();
        // What comes after a value that never came is not done.
        if (!_context.gave_up) {
            operation.work();
        }
        operation.work = nullptr;  // what it holds is released before anyone is told that it is over
        lock.lock();
        _busy = false;
        _timeline->complete(operation.number);
    }
}

void Stream::delay_at_random() {
    const DelayRange& range = core().configuration().random_delays;
    if (range.longest.count() == 0) {
        return;
    }
    if (!_random_delays) {
        _random_delays.emplace(range, core().device(_context.device).number, _number);
    }
    std::this_thread::sleep_for(_random_delays->next());
}

std::vector<Ticket> Stream::unfinished() {
    std::vector<Ticket> tickets;
    const std::scoped_lock order(_context.order);
    // A default stream is done when the work is that an operation in it would wait for.
    if (_role == Role::legacy_default) {
        collect_order(tickets);
    }
    if (Ticket ticket = last(); !ticket.done()) {
        tickets.push_back(std::move(ticket));
    }
    return tickets;
}

bool Stream::idle() {
    return unfinished().empty();
}

void Stream::synchronize() {
    for (const Ticket& ticket : unfinished()) {
        ticket.wait();
    }
}

void Stream::close() {
    {
        const std::scoped_lock lock(_mutex);
        _closed = true;
    }
    _wake.notify_one();
}

namespace {
std::atomic<std::uint64_t> event_records{0};
}

std::uint64_t Event::records() noexcept {
    return event_records.load(std::memory_order_relaxed);
}

void Event::record(Stream& stream) {
    event_records.fetch_add(1, std::memory_order_relaxed);
    auto time = std::make_shared<Time>();
    const std::uint64_t capture = capture_of(stream);
    Ticket ticket = stream.submit([time] { time->value = std::chrono::steady_clock::now(); });
    const std::scoped_lock lock(_mutex);
    _tickets = {std::move(ticket)};
    _time = std::move(time);
    _capture = capture;
}

std::uint64_t Event::capture() const {
    const std::scoped_lock lock(_mutex);
    return _capture;
}

void Event::record_context() {
    event_records.fetch_add(1, std::memory_order_relaxed);
    std::vector<Ticket> tickets = _context.unfinished();
    const std::scoped_lock lock(_mutex);
    _tickets = std::move(tickets);
    _time = nullptr;
    _capture = 0;
}

std::vector<Ticket> Event::tickets() const {
    const std::scoped_lock lock(_mutex);
    return _tickets;
}

bool Event::done() const {
    const std::scoped_lock lock(_mutex);
    return std::all_of(_tickets.begin(), _tickets.end(), [](const Ticket& ticket) { return ticket.done(); });
}

bool Event::timed_record() const {
    const std::scoped_lock lock(_mutex);
    return _time != nullptr;
}

Error Event::elapsed_since(const Event& start, float& milliseconds) const {
    if (!timed() || !start.timed() || !timed_record() || !start.timed_record()) {
        return Error::invalid_handle;
    }
    if (!done() || !start.done()) {
        return Error::not_ready;
    }
    const auto time_of = [](const Event& event) {
        const std::scoped_lock lock(event._mutex);
        return event._time->value;
    };
    milliseconds = std::chrono::duration<float, std::milli>(time_of(*this) - time_of(start)).count();
    return Error::success;
}

}  // namespace awaken::emulator
