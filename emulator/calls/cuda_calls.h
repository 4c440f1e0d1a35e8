// SPDX-License-Identifier: Apache-2.0
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
