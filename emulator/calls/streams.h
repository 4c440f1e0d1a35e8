// Streams, captures, graphs and events.
#pragma once

#include "calls/entry.h"

namespace awaken::emulator::calls {

template <FrontEnd Api>
int create_stream(void** stream, unsigned flags, int priority) {
    return in_entered_context<Api>([&](Context& context) {
        constexpr unsigned kNonBlocking = 1;
        if (!stream || flags > kNonBlocking) {
            return Error::invalid_value;
        }
        *stream =
            core().streams.add(context.create_stream(Stream::Role::created, flags != kNonBlocking, flags, priority));
        return Error::success;
    });
}

template <FrontEnd Api>
int destroy_stream(void* handle) {
    return call<Api>([&] {
        const std::shared_ptr<Stream> stream = core().streams.remove(handle);
        if (!stream) {
            return Error::invalid_handle;
        }
        stream->context().enter();
        stream->close();
        return Error::success;
    });
}

// ---- captures and graphs ----

template <FrontEnd Api>
int begin_stream_capture(void* handle, int mode) {
    return on_stream<Api>(handle, [&](const auto& stream) {
        if (mode < 0 || mode > static_cast<int>(CaptureMode::relaxed)) {
            return Error::invalid_value;
        }
        return begin_capture(*stream, static_cast<CaptureMode>(mode));
    });
}

/// Puts the calling thread's mode before the call in the place of the new one.
inline Error exchange_mode(int* mode) {
    if (!mode || *mode < 0 || *mode > static_cast<int>(CaptureMode::relaxed)) {
        return Error::invalid_value;
    }
    *mode = static_cast<int>(exchange_capture_mode(static_cast<CaptureMode>(*mode)));
    return Error::success;
}

template <FrontEnd Api>
int instantiate(void** executable, void* graph) {
    return call<Api>([&] { return executable ? instantiate_graph(graph, *executable) : Error::invalid_value; });
}

// ---- events ----

template <FrontEnd Api>
int create_event(void** event, unsigned flags) {
    return in_entered_context<Api>([&](Context& context) {
        if (!event) {
            return Error::invalid_value;
        }
        *event = core().events.add(std::make_shared<Event>(context, flags));
        return Error::success;
    });
}

template <FrontEnd Api>
int destroy_event(void* handle) {
    return on_event<Api>(handle, [&](const Event& event) {
        event.context().enter();
        return core().events.remove(handle) ? Error::success : Error::invalid_handle;
    });
}

}  // namespace awaken::emulator::calls
