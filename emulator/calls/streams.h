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

template <FrontEnd Api>
int stream_flags(void* handle, unsigned* flags) {
    return on_stream<Api>(handle, [&](const auto& stream) { return put(flags, stream->flags()); });
}

template <FrontEnd Api>
int stream_priority(void* handle, int* priority) {
    return on_stream<Api>(handle, [&](const auto& stream) { return put(priority, stream->priority()); });
}

template <FrontEnd Api>
int stream_device(void* handle, int* device) {
    return on_stream<Api>(handle, [&](const auto& stream) { return put(device, stream->context().device); });
}

template <FrontEnd Api>
int query_stream(void* handle) {
    return on_allowed_stream<Api>(handle, [](const auto& stream) {
        const Error error = allowed_by_captures();
        return error == Error::success ? query(*stream) : error;
    });
}

template <FrontEnd Api>
int synchronize_stream(void* handle) {
    return on_allowed_stream<Api>(handle, [](const auto& stream) { return synchronize(*stream); });
}

template <FrontEnd Api>
int wait_for_event(void* handle, void* event) {
    return on_allowed_stream<Api>(handle, [&](const auto& stream) {
        const std::shared_ptr<Event> found = core().events.find(event);
        if (!found) {
            return Error::invalid_handle;
        }
        if (!found->done()) {
            stream->context().enter();
        }
        return wait_in_stream(*stream, *found);
    });
}

template <FrontEnd Api>
int launch_host_function(void* handle, void (*function)(void*), void* argument) {
    return work_on_stream<Api>(handle, [&](const auto& stream) {
        if (!function) {
            return Error::invalid_value;
        }
        call_in_stream(*stream, [function, argument] { function(argument); });
        return Error::success;
    });
}

template <FrontEnd Api>
int add_callback(void* handle, void (*function)(void*, int, void*), void* argument) {
    return work_on_stream<Api>(handle, [&](const auto& stream) {
        if (!function) {
            return Error::invalid_value;
        }
        Context& context = stream->context();
        call_in_stream(*stream, [=, &context] { function(handle, static_cast<int>(context.sticky.load()), argument); });
        return Error::success;
    });
}

// ---- captures and graphs ----

template <FrontEnd Api>
int is_stream_capturing(void* handle, int* status) {
    return on_stream<Api>(handle, [&](const auto& stream) { return put(status, is_capturing(*stream) ? 1 : 0); });
}

template <FrontEnd Api>
int begin_stream_capture(void* handle, int mode) {
    return on_stream<Api>(handle, [&](const auto& stream) {
        if (mode < 0 || mode > static_cast<int>(CaptureMode::relaxed)) {
            return Error::invalid_value;
        }
        return begin_capture(*stream, static_cast<CaptureMode>(mode));
    });
}

template <FrontEnd Api>
int end_stream_capture(void* handle, void** graph) {
    return on_stream<Api>(
        handle, [&](const auto& stream) { return graph ? end_capture(*stream, *graph) : Error::invalid_value; });
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

template <FrontEnd Api>
int launch_executable(void* executable, void* handle) {
    return work_on_stream<Api>(handle, [&](const auto& stream) { return launch_graph(executable, stream); });
}

template <FrontEnd Api>
int destroy_executable(void* executable) {
    return call<Api>(
        [&] { return core().executable_graphs.remove(executable) ? Error::success : Error::invalid_value; });
}

template <FrontEnd Api>
int destroy_graph(void* graph) {
    return call<Api>([&] { return core().graphs.remove(graph) ? Error::success : Error::invalid_value; });
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

template <FrontEnd Api>
int record_event(void* handle, void* stream_handle) {
    return work_on_stream<Api>(stream_handle, [&](const auto& stream) {
        const std::shared_ptr<Event> event = core().events.find(handle);
        if (!event || &event->context() != &stream->context()) {
            return Error::invalid_handle;
        }
        event->record(*stream);
        return Error::success;
    });
}

template <FrontEnd Api>
int query_event(void* handle) {
    return on_event<Api>(handle, [](const Event& event) {
        const Error error = allowed_by_captures();
        return error == Error::success ? query(event) : error;
    });
}

template <FrontEnd Api>
int synchronize_event(void* handle) {
    return on_event<Api>(handle, [](const Event& event) { return synchronize(event); });
}

template <FrontEnd Api>
int elapsed_time(float* milliseconds, void* start, void* end) {
    return on_event<Api>(start, [&](const Event& from) {
        const std::shared_ptr<Event> to = core().events.find(end);
        if (!to) {
            return Error::invalid_handle;
        }
        return milliseconds ? to->elapsed_since(from, *milliseconds) : Error::invalid_value;
    });
}

}  // namespace awaken::emulator::calls
