// SPDX-License-Identifier: Apache-2.0
// Copying between two places of device memory, of any alignment. The kernels of copy.h and combine.h share this.
#pragma once

#include "portable.h"

namespace awaken::kernels {

/// The 8 bytes that begin `skipped` bytes (0 to 7) into two consecutive words.
AWAKEN_DEVICE u64 word_across(u64 low, u64 high, unsigned skipped) {
    // A shift by 64 has no meaning.
    return skipped == 0 ? low : (low >> (8 * skipped)) | (high << (64 - 8 * skipped));
}

/// The 16 bytes that begin `skipped` bytes (1 to 15) into two consecutive vectors. GPUs are little-endian.
AWAKEN_DEVICE Vector16 vector_across(Vector16 low, Vector16 high, unsigned skipped) {
    const unsigned rest = skipped & 7;
    if (skipped < 8) {
        return {word_across(low.low, low.high, rest), word_across(low.high, high.low, rest)};
    }
    return {word_across(low.high, high.low, rest), word_across(high.low, high.high, rest)};
}

/// The vector at `from[index]`, or, where source and target differ in alignment, the vector that lies `skipped` bytes
/// further. Reads no vector of which no byte is wanted.
AWAKEN_DEVICE Vector16 source_vector(device_pointer<const Vector16> from, u64 index, unsigned skipped) {
    const Vector16 low = from[index];
    return skipped == 0 ? low : vector_across(low, from[index + 1], skipped);
}

/// Copies `bytes` bytes as the one with this number of `threads` threads; the two sides must not overlap.
AWAKEN_DEVICE void copy_bytes(device_pointer<u8> target, device_pointer<const u8> source, u64 bytes, u64 thread,
                              u64 threads) {
    // Stores are aligned. So are the loads of a source with another alignment: each of its vectors comes from two
    // loads.
    u64 head = (16 - (address(target) & 15)) & 15;
    if (head > bytes) {
        head = bytes;
    }
    const u64 vectors = (bytes - head) / 16;
    const u64 tail = head + 16 * vectors;
    for (u64 i = thread; i < head; i += threads) {
        target[i] = source[i];
    }
    for (u64 i = tail + thread; i < bytes; i += threads) {
        target[i] = source[i];
    }

    const unsigned skipped = (unsigned)((address(source) + head) & 15);
    const device_pointer<Vector16> to = pointer_cast<Vector16>(target + head);
    const device_pointer<const Vector16> from = pointer_cast<const Vector16>(source + head - skipped);
    u64 i = thread;
    // Four loads under way before the first store: the memory of another GPU is a microsecond away.
    for (; i + 3 * threads < vectors; i += 4 * threads) {
        const Vector16 first = source_vector(from, i, skipped);
        const Vector16 second = source_vector(from, i + threads, skipped);
        const Vector16 third = source_vector(from, i + 2 * threads, skipped);
        const Vector16 fourth = source_vector(from, i + 3 * threads, skipped);
        to[i] = first;
        to[i + threads] = second;
        to[i + 2 * threads] = third;
        to[i + 3 * threads] = fourth;
    }
    for (; i < vectors; i += threads) {
        to[i] = source_vector(from, i, skipped);
    }
}

/// The same together with the other threads in x of the grid.
AWAKEN_DEVICE void copy_bytes(device_pointer<u8> target, device_pointer<const u8> source, u64 bytes) {
    copy_bytes(target, source, bytes, global_thread(), total_threads());
}

}  // namespace awaken::kernels
