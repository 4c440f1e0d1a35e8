// SPDX-License-Identifier: Apache-2.0
#include "gpu/idle.h"

#include <algorithm>
#include <condition_variable>
#include <new>

#include "base/own_thread.h"
#include "gpu/gpu.h"

namespace awaken::gpu {

namespace {

/// The time that a thread needs to start and to come back, on a machine that is not overloaded.
constexpr std::chrono::microseconds kLeast{1000};
/// While a device is busy, we ask it again after this long.
constexpr std::chrono::milliseconds kBetweenTries{100};

}  // namespace

struct IdleProbe::Question {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    bool given_up = false;  ///< nobody waits for the answer
};

bool IdleProbe::ask(const int device, const std::function<void()>& wait,
                    const std::chrono::microseconds patience) noexcept {
    try {
        const std::scoped_lock lock(_mutex);
        std::shared_ptr<Question>& known = _under_way[device];
        if (known != nullptr) {
            std::unique_lock look(known->mutex);
            if (!known->changed.wait_for(look, patience, [&] { return known->over; })) {
                return false;
            }
        }
        // The answer to an earlier question is useless: the device may have got work since.
        known = std::make_shared<Question>();
        std::thread thread = start_own_thread([question = known, wait] {
            bool given_up = false;
            {
                const std::scoped_lock look(question->mutex);
                given_up = question->given_up;
            }
            // The program may have begun to capture a stream meanwhile, which the question would spoil.
            if (!given_up) {
                wait();
            }
            const std::scoped_lock tell(question->mutex);
            question->over = true;
            question->changed.notify_all();
        });
        if (!thread.joinable()) {
            known.reset();
            return false;
        }
        bool over = false;
        {
            std::unique_lock look(known->mutex);
            over = known->changed.wait_for(look, std::max(kLeast, patience), [&] { return known->over; });
            known->given_up = !over;
        }
        if (over) {
            thread.join();
        } else {
            thread.detach();
        }
        return over;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

bool Runtime::is_idle(int /*device*/, std::chrono::microseconds /*patience*/) noexcept {
    return true;  // for a runtime whose devices get no work
}

void Runtime::note_captured(const StreamHandle stream) noexcept {
    const std::scoped_lock lock(_captured_mutex);
    const auto is_same = [&](const StreamHandle& each) { return each.value == stream.value; };
    if (std::none_of(_captured.begin(), _captured.end(), is_same)) {
        try {
            _captured.push_back(stream);
        } catch (const std::bad_alloc&) {
            // There is no room to remember it, so a question may spoil the capture.
        }
    }
    _has_captured.store(!_captured.empty(), std::memory_order_release);
}

void Runtime::forget_captured(const StreamHandle stream) noexcept {
    const std::scoped_lock lock(_captured_mutex);
    std::erase_if(_captured, [&](const StreamHandle& each) { return each.value == stream.value; });
    _has_captured.store(!_captured.empty(), std::memory_order_release);
}

bool Runtime::is_captured() noexcept {
    if (!_has_captured.load(std::memory_order_acquire)) {
        return false;
    }
    const std::scoped_lock lock(_captured_mutex);
    std::erase_if(_captured, [this](const StreamHandle& each) {
        std::uint64_t capture = 0;
        return !capture_of(each, capture).ok() || capture == 0;
    });
    _has_captured.store(!_captured.empty(), std::memory_order_release);
    return !_captured.empty();
}

void Runtime::when_idle(const int device, std::function<void()> work) noexcept {
    if (is_idle(device)) {
        work();
        return;
    }
    const std::scoped_lock lock(_deferred_mutex);
    try {
        _deferred.push_back({device, std::move(work)});
        _deferred_count.store(_deferred.size(), std::memory_order_relaxed);
    } catch (const std::bad_alloc&) {
        // There is no room to remember the work, so it stays undone.
    }
}

void Runtime::do_deferred(const std::chrono::microseconds patience) noexcept {
    if (_deferred_count.load(std::memory_order_relaxed) == 0) {
        return;
    }
    const std::unique_lock lock(_deferred_mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        return;  // another thread is doing it
    }
    const auto now_is = std::chrono::steady_clock::now();
    if (patience == std::chrono::microseconds{} && now_is < _deferred_until) {
        return;
    }
    _deferred_until = now_is + kBetweenTries;
    std::map<int, bool> idle;
    std::erase_if(_deferred, [&](const Deferred& each) {
        const auto known = idle.find(each.device);
        const bool now = known != idle.end() ? known->second : (idle[each.device] = is_idle(each.device, patience));
        if (now) {
            each.work();
        }
        return now;
    });
    _deferred_count.store(_deferred.size(), std::memory_order_relaxed);
}

}  // namespace awaken::gpu
