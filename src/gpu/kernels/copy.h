// SPDX-License-Identifier: Apache-2.0
// Copying between two places of device memory, of any alignment: for copies that a kernel does faster than the copy
// engine. Either side may be another GPU's memory, mapped by IPC.
#pragma once

#include "copy_bytes.h"
#include "portable.h"

namespace awaken::kernels {

/// The most copies of one batch. All of them travel in the arguments of the launch, so that starting it allocates
/// nothing.
inline constexpr unsigned kBatchedCopies = 64;

struct BatchedCopy {
    u64 target;
    u64 source;
    u64 bytes;
};
struct CopyBatch {
    BatchedCopy copies[kBatchedCopies];
};

/// Copies `bytes` bytes; the two sides must not overlap. Launch with any number of threads in x.
AWAKEN_KERNEL(awaken_copy, device_pointer<u8> target, device_pointer<const u8> source, u64 bytes) {
    copy_bytes(target, source, bytes);
}

/// Does several copies that do not overlap at the same time, with `blocks_each` blocks for each. Launch with as many
/// blocks in x as there are copies, times `blocks_each`.
AWAKEN_KERNEL(awaken_copy_batch, CopyBatch batch, u32 blocks_each) {
    const BatchedCopy& copy = batch.copies[block_index().x / blocks_each];
    const u64 thread = (u64)(block_index().x % blocks_each) * block_size().x + thread_index().x;
    copy_bytes(device_pointer<u8>(copy.target), device_pointer<const u8>(copy.source), copy.bytes, thread,
               (u64)blocks_each * block_size().x);
}

}  // namespace awaken::kernels
