// Calls that CUDA's driver and CUDA's runtime have, and HIP has not, or in another way.
//
#pragma once

#include "calls/memory.h"

// ---- memory ----

AWAKEN_EXPORT int AWAKEN_CALL(MemPrefetchAsync_v2)(Address address, std::size_t, MemoryLocation, unsigned,
                                                   void* handle) {
    return prefetch(address, handle);
}
AWAKEN_EXPORT int AWAKEN_CALL(MemAdvise_v2)(Address address, std::size_t, int, MemoryLocation) {
    return advise(address);
}

AWAKEN_EXPORT int AWAKEN_CALL(IpcGetMemHandle)(IpcHandle* handle, Address address) {
    return export_memory(handle, address);
}
AWAKEN_EXPORT int AWAKEN_CALL(IpcCloseMemHandle)(Address address) {
    return in_context([&](Context&) { return close_import(AWAKEN_NAME(IpcCloseMemHandle), address); });
}

// ---- captures and graphs ----

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
