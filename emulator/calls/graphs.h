// SPDX-License-Identifier: Apache-2.0
// Captures of streams, and graphs. CUDA's driver, its runtime and HIP name them alike.
#pragma once

#include "calls/entry.h"

AWAKEN_EXPORT int AWAKEN_CALL(StreamBeginCapture)(void* handle, int mode) {
    return on_stream(handle, [&](const auto& stream) {
        if (mode < 0 || mode > static_cast<int>(CaptureMode::relaxed)) {
            return Error::invalid_value;
        }
        return begin_capture(*stream, static_cast<CaptureMode>(mode));
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(StreamEndCapture)(void* handle, void** graph) {
    return on_stream(handle,
                     [&](const auto& stream) { return graph ? end_capture(*stream, *graph) : Error::invalid_value; });
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphInstantiateWithFlags)(void** executable, void* graph, unsigned long long) {
    return call([&] { return executable ? instantiate_graph(graph, *executable) : Error::invalid_value; });
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphLaunch)(void* executable, void* handle) {
    return work_on_stream(handle, [&](const auto& stream) { return launch_graph(executable, stream); });
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphExecDestroy)(void* executable) {
    return call([&] { return core().executable_graphs.remove(executable) ? Error::success : Error::invalid_value; });
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphDestroy)(void* graph) {
    return call([&] { return core().graphs.remove(graph) ? Error::success : Error::invalid_value; });
}

/// The status, the capture's number, its graph, and what the stream's next work comes after: one node, whose handle
/// tells how many there are, since a graph of the emulator is a list.
AWAKEN_EXPORT int AWAKEN_CALL(StreamGetCaptureInfo_v2)(void* handle, int* status, unsigned long long* identity,
                                                       void** graph, const void*** dependencies, std::size_t* count) {
    return on_stream(handle, [&](const auto& stream) {
        bool capturing = false;
        if (const Error error = capture_status(*stream, capturing); error != Error::success || !status) {
            return status ? error : Error::invalid_value;
        }
        *status = capturing ? 1 : 0;
        if (!capturing) {
            return Error::success;
        }
        if (identity) {
            *identity = capture_of(*stream);
        }
        if (graph) {
            *graph = captured_graph(*stream);
        }
        static thread_local const void* last = nullptr;
        last = reinterpret_cast<const void*>(captured_works(*stream));
        if (dependencies) {
            *dependencies = &last;
        }
        if (count) {
            *count = last != nullptr ? 1 : 0;
        }
        return Error::success;
    });
}

/// An object of the program that lives until the last graph has gone that has a reference.
AWAKEN_EXPORT int AWAKEN_CALL(UserObjectCreate)(void** object, void* pointer, void (*destroy)(void*), unsigned count,
                                                unsigned) {
    return call([&] {
        return object && destroy && count == 1 ? make_user_object(pointer, destroy, *object) : Error::invalid_value;
    });
}

AWAKEN_EXPORT int AWAKEN_CALL(UserObjectRelease)(void* object, unsigned count) {
    return call(
        [&] { return count == 1 && core().user_objects.remove(object) ? Error::success : Error::invalid_value; });
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphRetainUserObject)(void* graph, void* object, unsigned count, unsigned flags) {
    constexpr unsigned kMove = 1;
    return call([&] {
        return count == 1 && flags <= kMove ? keep_with_graph(graph, object, flags == kMove) : Error::invalid_value;
    });
}
