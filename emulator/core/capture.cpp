// SPDX-License-Identifier: Apache-2.0
#include "core/capture.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace awaken::emulator {

namespace {

struct Capture {
    std::uint64_t identity;
    std::vector<const Stream*> streams;  ///< the first is the one that it began with
    CaptureMode mode;
    std::thread::id thread;
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    bool invalidated = false;

    [[nodiscard]] bool holds(const Stream& stream) const {
        return std::find(streams.begin(), streams.end(), &stream) != streams.end();
    }
};

thread_local CaptureMode own_mode = CaptureMode::global;

std::mutex& lock_of_captures() {
    static auto* const mutex = new std::mutex;
    return *mutex;
}
std::vector<Capture>& captures() {
    static auto* const all = new std::vector<Capture>;
    return *all;
}
/// How many there are: mostly none, and then no lock is taken for each piece of work.
std::atomic<std::size_t> under_way{0};

/// Does `body` with the capture that the stream belongs to, if any.
template <typename Body>
void in_capture_of(const Stream& stream, Body&& body) {
    if (under_way.load(std::memory_order_acquire) == 0) {
        return;
    }
    const std::scoped_lock lock(lock_of_captures());
    for (Capture& capture : captures()) {
        if (capture.holds(stream)) {
            body(capture);
        }
    }
}

/// Spoils the captures that `forbids` chooses: `reason`, or success when there are none.
template <typename Forbids>
Error spoil_if(const Error reason, Forbids&& forbids) {
    Error outcome = Error::success;
    if (under_way.load(std::memory_order_acquire) == 0) {
        return outcome;
    }
    const std::scoped_lock lock(lock_of_captures());
    for (Capture& capture : captures()) {
        if (forbids(capture)) {
            capture.invalidated = true;
            outcome = reason;
        }
    }
    return outcome;
}

/// Whether the stream is a default stream that waits for one of the captured streams.
bool waits_for(const Stream& stream, const Capture& capture) {
    return stream.role() == Stream::Role::legacy_default &&
           std::any_of(capture.streams.begin(), capture.streams.end(), [&](const Stream* captured) {
               return captured->blocking() && &captured->context() == &stream.context();
           });
}

}  // namespace

Error begin_capture(const Stream& stream, const CaptureMode mode) {
    static std::uint64_t last_identity = 0;
    if (stream.role() == Stream::Role::legacy_default) {
        return Error::capture_unsupported;
    }
    const std::scoped_lock lock(lock_of_captures());
    for (const Capture& capture : captures()) {
        if (capture.holds(stream)) {
            return Error::invalid_value;
        }
    }
    captures().push_back({++last_identity, {&stream}, mode, std::this_thread::get_id()});
    ++under_way;
    return Error::success;
}

Error end_capture(const Stream& stream, std::shared_ptr<Graph>& graph) {
    const std::scoped_lock lock(lock_of_captures());
    for (auto capture = captures().begin(); capture != captures().end(); ++capture) {
        if (capture->streams.front() != &stream) {
            continue;
        }
        const bool invalidated = capture->invalidated;
        graph = std::move(capture->graph);
        captures().erase(capture);
        --under_way;
        return invalidated ? Error::capture_invalidated : Error::success;
    }
    return Error::invalid_value;
}

bool is_capturing(const Stream& stream) {
    return capture_of(stream) != 0;
}

std::uint64_t capture_of(const Stream& stream) {
    std::uint64_t found = 0;
    in_capture_of(stream, [&](const Capture& capture) { found = capture.identity; });
    return found;
}

std::size_t captured_works(const Stream& stream) {
    std::size_t works = 0;
    in_capture_of(stream, [&](const Capture& capture) { works = capture.graph->works.size(); });
    return works;
}

std::shared_ptr<Graph> graph_of(const Stream& stream) {
    std::shared_ptr<Graph> found;
    in_capture_of(stream, [&](const Capture& capture) { found = capture.graph; });
    return found;
}

bool join_capture(const Stream& stream, const std::uint64_t identity) {
    const std::scoped_lock lock(lock_of_captures());
    for (Capture& capture : captures()) {
        if (capture.identity != identity) {
            continue;
        }
        if (!capture.holds(stream)) {
            capture.streams.push_back(&stream);
        }
        return true;
    }
    return false;
}

bool record_in_capture(const Stream& stream, const Work& work, const bool memory_wait) {
    bool recorded = false;
    in_capture_of(stream, [&](Capture& capture) {
        capture.graph->works.push_back(work);
        capture.graph->memory_waits |= memory_wait;
        recorded = true;
    });
    return recorded;
}

Error spoil_capture(const Stream& stream, const Error reason) {
    return spoil_if(reason, [&](const Capture& capture) { return capture.holds(stream); });
}

Error exchange_capture_mode(int* const mode) noexcept {
    if (!mode || *mode < 0 || *mode > static_cast<int>(CaptureMode::relaxed)) {
        return Error::invalid_value;
    }
    *mode = static_cast<int>(std::exchange(own_mode, static_cast<CaptureMode>(*mode)));
    return Error::success;
}

Error allowed_by_captures() {
    return spoil_if(Error::capture_unsupported, [](const Capture& capture) {
        const bool own = capture.thread == std::this_thread::get_id();
        return own_mode != CaptureMode::relaxed && capture.mode != CaptureMode::relaxed &&
               (own || (capture.mode == CaptureMode::global && own_mode == CaptureMode::global));
    });
}

Error default_stream_allowed(const Stream& stream) {
    return spoil_if(Error::capture_implicit, [&](const Capture& capture) { return waits_for(stream, capture); });
}

Error capture_status(const Stream& stream, bool& capturing) {
    capturing = is_capturing(stream);
    const std::scoped_lock lock(lock_of_captures());
    const bool implicit = std::any_of(captures().begin(), captures().end(),
                                      [&](const Capture& capture) { return waits_for(stream, capture); });
    return implicit ? Error::capture_implicit : Error::success;
}

Error whole_context_allowed(const Context& context) {
    return spoil_if(Error::capture_unsupported, [&](const Capture& capture) {
        return std::any_of(capture.streams.begin(), capture.streams.end(),
                           [&](const Stream* captured) { return &captured->context() == &context; });
    });
}

}  // namespace awaken::emulator
