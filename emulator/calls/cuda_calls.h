// Calls that CUDA's driver and CUDA's runtime have, and HIP has not, or in another way.
//
// Included once by each of their .cpp files, which says what `Api` is, and how names begin (AWAKEN_CALL).
#pragma once

#include "calls/memory.h"
#include "calls/streams.h"

// ---- sharing ----

AWAKEN_EXPORT int AWAKEN_CALL(IpcGetMemHandle)(IpcHandle* handle, Address address) {
    return export_memory<Api>(handle, address);
}
AWAKEN_EXPORT int AWAKEN_CALL(IpcCloseMemHandle)(Address address) {
    return close_memory<Api>(AWAKEN_NAME(IpcCloseMemHandle), address);
}

// ---- captures and graphs ----

AWAKEN_EXPORT int AWAKEN_CALL(StreamEndCapture)(void* handle, void** graph) {
    return on_stream<Api>(
        handle, [&](const auto& stream) { return graph ? end_capture(*stream, *graph) : Error::invalid_value; });
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphInstantiateWithFlags)(void** executable, void* graph, unsigned long long) {
    return instantiate<Api>(executable, graph);
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphLaunch)(void* executable, void* handle) {
    return work_on_stream<Api>(handle, [&](const auto& stream) { return launch_graph(executable, stream); });
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphExecDestroy)(void* executable) {
    return call<Api>(
        [&] { return core().executable_graphs.remove(executable) ? Error::success : Error::invalid_value; });
}

AWAKEN_EXPORT int AWAKEN_CALL(GraphDestroy)(void* graph) {
    return call<Api>([&] { return core().graphs.remove(graph) ? Error::success : Error::invalid_value; });
}
