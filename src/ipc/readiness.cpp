// SPDX-License-Identifier: Apache-2.0
#include "ipc/readiness.h"
#include "base/step_probe.h"

#include <algorithm>
#include <utility>

namespace awaken::ipc {

bool Readiness::in_burst(const Clock::time_point now) noexcept {
    const Clock::rep then = _last_send.exchange(now.time_since_epoch().count(), std::memory_order_relaxed);
    if (now.time_since_epoch() - Clock::duration(then) > _pace.closely) {
        _run.store(1, std::memory_order_relaxed);
        return false;
    }
    return _run.fetch_add(1, std::memory_order_relaxed) >= _pace.before_burst;
}

bool Readiness::add(std::shared_ptr<Source> source, const gpu::EventHandle mark, const bool large,
                    const Clock::time_point now) {
    const std::scoped_lock lock(_mutex);
    auto line =
        std::find_if(_lines.begin(), _lines.end(), [&mark](const Line& each) { return each.device == mark.device; });
    if (line == _lines.end()) {
        line = _lines.insert(line, {mark.device, {}});
    }
    line->waiting.push_back({std::move(source), mark, now});
    _count.fetch_add(1, std::memory_order_release);
    _last_added = now;
    const bool soon =
        large && (line->waiting.size() >= _pace.most_large || now - line->waiting.front().since >= _pace.long_enough);
    if (soon || line->waiting.size() >= _pace.most) {
        ask_now(*line);
    }
    return any() && !std::exchange(_in_background, true);
}

void Readiness::ask() noexcept {
    if (!any()) {
        return;
    }
    // A thread that holds the lock asks for this one as well.
    const std::unique_lock lock(_mutex, std::try_to_lock);
    if (lock.owns_lock()) {
        ask_all();
    }
}

void Readiness::ask_all() noexcept {
    for (Line& line : _lines) {
        ask_now(line);
    }
}

void Readiness::ask_now(Line& line) noexcept {
    AWAKEN_STEP("readiness: ask");
    std::deque<Waiting>& waiting = line.waiting;
    gpu::Status status;
    // Asks about the youngest mark. Where that is not reached, asks about older ones in growing steps down to the
    // oldest, since a no is cheap.
    for (std::size_t back = 0; !waiting.empty();) {
        const std::size_t place = waiting.size() - 1 - std::min(back, waiting.size() - 1);
        if (is_reached(waiting[place], status)) {
            if (status.ok()) {
                for (std::size_t left = place + 1; left != 0; --left) {
                    let_go(waiting.front(), status);
                    waiting.pop_front();
                }
                return;
            }
            // An error belongs to this message alone, unless the question fails for others, too.
            let_go(waiting[place], status);
            waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(place));
        } else if (place == 0) {
            return;
        } else {
            back = back * 2 + 1;
        }
    }
}

bool Readiness::is_reached(Waiting& waiting, gpu::Status& status) noexcept {
    bool over = false;
    status = _runtime.query_default_stream(waiting.mark, over);
    return !status.ok() || over;
}

void Readiness::let_go(Waiting& waiting, const gpu::Status& status) noexcept {
    AWAKEN_STEP("readiness: let go");
    _runtime.drop_default_stream(waiting.mark);
    waiting.source->became_ready(status);
    _count.fetch_sub(1, std::memory_order_release);
}

void Readiness::forget(const Source& source) noexcept {
    std::shared_ptr<Source> forgotten;  // destroyed after the lock is released
    const std::scoped_lock lock(_mutex);
    for (Line& line : _lines) {
        const auto found = std::find_if(line.waiting.begin(), line.waiting.end(),
                                        [&source](const Waiting& each) { return each.source.get() == &source; });
        if (found != line.waiting.end()) {
            _runtime.drop_default_stream(found->mark);
            forgotten = std::move(found->source);
            line.waiting.erase(found);
            _count.fetch_sub(1, std::memory_order_release);
            return;
        }
    }
}

void Readiness::end() noexcept {
    std::vector<Line> all;
    {
        const std::scoped_lock lock(_mutex);
        _ended = true;
        all.swap(_lines);
        _count.store(0, std::memory_order_release);
    }
    for (Line& line : all) {
        for (Waiting& each : line.waiting) {
            _runtime.drop_default_stream(each.mark);
        }
    }
}

bool Readiness::pump() noexcept {
    AWAKEN_STEP("readiness: background");
    const std::scoped_lock lock(_mutex);
    const Clock::time_point now = Clock::now();
    bool late = false;
    for (Line& line : _lines) {
        // A sender that goes on adds up to the number at which it asks. So only the age of the youngest counts: a look
        // of this thread may take the core from the sender.
        if (!line.waiting.empty() && now - line.waiting.back().since >= _pace.left) {
            late = late || now - line.waiting.back().since >= _pace.between_looks;
            ask_now(line);
        }
    }
    if (!_ended && (any() || now - _last_added < _pace.linger)) {
        _for_nothing = late ? 0 : _for_nothing + 1;
        _pause.store(_for_nothing <= _pace.looks_for_nothing ? _pace.between_looks
                                                             : std::min(2 * pause(), _pace.most_between_looks),
                     std::memory_order_relaxed);
        return false;
    }
    _for_nothing = 0;
    _pause.store(_pace.between_looks, std::memory_order_relaxed);
    _in_background = false;
    return true;
}

}  // namespace awaken::ipc
