#include "core/capture.h"

#include <mutex>
#include <thread>
#include <vector>

namespace awaken::emulator {

namespace {

struct Capture {
    const Stream* stream;
    CaptureMode mode;
    std::thread::id thread;
    bool invalidated = false;
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

}  // namespace

Error begin_capture(const Stream& stream, const CaptureMode mode) {
    const std::scoped_lock lock(lock_of_captures());
    for (const Capture& capture : captures()) {
        if (capture.stream == &stream) return Error::invalid_value;
    }
    captures().push_back({&stream, mode, std::this_thread::get_id()});
    return Error::success;
}

Error end_capture(const Stream& stream) {
    const std::scoped_lock lock(lock_of_captures());
    for (auto capture = captures().begin(); capture != captures().end(); ++capture) {
        if (capture->stream != &stream) continue;
        const bool invalidated = capture->invalidated;
        captures().erase(capture);
        return invalidated ? Error::capture_invalidated : Error::success;
    }
    return Error::invalid_value;
}

bool is_capturing(const Stream& stream) {
    const std::scoped_lock lock(lock_of_captures());
    for (const Capture& capture : captures()) {
        if (capture.stream == &stream) return true;
    }
    return false;
}

CaptureMode exchange_capture_mode(const CaptureMode mode) noexcept {
    const CaptureMode before = own_mode;
    own_mode = mode;
    return before;
}

Error allowed_by_captures() {
    if (own_mode == CaptureMode::relaxed) return Error::success;
    const std::scoped_lock lock(lock_of_captures());
    Error outcome = Error::success;
    for (Capture& capture : captures()) {
        const bool own = capture.thread == std::this_thread::get_id();
        const bool forbids = capture.mode == CaptureMode::global ? (own || own_mode == CaptureMode::global)
                                                                 : (capture.mode == CaptureMode::local && own);
        if (forbids) {
            capture.invalidated = true;
            outcome = Error::capture_unsupported;
        }
    }
    return outcome;
}

Error default_stream_allowed(const Stream& stream) {
    if (stream.role() != Stream::Role::legacy_default) return Error::success;
    const std::scoped_lock lock(lock_of_captures());
    Error outcome = Error::success;
    for (Capture& capture : captures()) {
        if (capture.stream->blocking() && &capture.stream->context() == &stream.context()) {
            capture.invalidated = true;
            outcome = Error::capture_implicit;
        }
    }
    return outcome;
}

Error context_event_allowed(const Context& context) {
    const std::scoped_lock lock(lock_of_captures());
    Error outcome = Error::success;
    for (Capture& capture : captures()) {
        if (&capture.stream->context() == &context) {
            capture.invalidated = true;
            outcome = Error::capture_unsupported;
        }
    }
    return outcome;
}

}  // namespace awaken::emulator
