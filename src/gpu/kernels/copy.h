// Copying between two places of device memory, of any alignment: for copies that a kernel does faster than the copy
// engine. Either side may be another GPU's memory, mapped by IPC.
#pragma once

#include "copy_bytes.h"
#include "portable.h"

namespace awaken::kernels {

/// Copies `bytes` bytes; the two sides must not overlap. Launch with any number of threads in x.
AWAKEN_KERNEL(awaken_copy, device_pointer<u8> target, device_pointer<const u8> source, u64 bytes) {
    copy_bytes(target, source, bytes);
}

}  // namespace awaken::kernels
