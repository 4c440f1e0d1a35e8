// SPDX-License-Identifier: Apache-2.0
// Test data made on the device. Each byte depends on its position and a seed, so that a byte in a wrong place shows.
#pragma once

#include "portable.h"

namespace awaken::kernels {

/// The 8 bytes that begin at `position`, a multiple of 8, of the pattern `seed`: the finaliser of SplitMix64.
/// The benchmarks and tests/ compute the same on the host.
AWAKEN_DEVICE u64 pattern_word(u64 seed, u64 position) {
    u64 word = seed + (position / 8 + 1) * 0x9e3779b97f4a7c15ULL;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
    return word ^ (word >> 31);
}

AWAKEN_DEVICE u8 pattern_byte(u64 seed, u64 position) {
    return (u8)(pattern_word(seed, position) >> (8 * (position % 8)));
}

/// Writes bytes [first, first + bytes) of the pattern to `target`.
AWAKEN_KERNEL(awaken_fill_pattern, device_pointer<u8> target, u64 bytes, u64 seed, u64 first) {
    // Whole words where they are aligned: benchmarks launch this as a short kernel.
    const u64 words = (address(target) | first) % 8 == 0 ? bytes / 8 : 0;
    for (u64 i = global_thread(); i < words; i += total_threads()) {
        pointer_cast<u64>(target)[i] = pattern_word(seed, first + 8 * i);
    }
    for (u64 i = 8 * words + global_thread(); i < bytes; i += total_threads()) {
        target[i] = pattern_byte(seed, first + i);
    }
}

/// Adds to `mismatches` the number of bytes at `data` that differ from the pattern.
AWAKEN_KERNEL(awaken_count_mismatches, device_pointer<const u8> data, u64 bytes, u64 seed, u64 first,
              device_pointer<u64> mismatches) {
    u64 count = 0;
    for (u64 i = global_thread(); i < bytes; i += total_threads()) {
        count += data[i] != pattern_byte(seed, first + i);
    }
    if (count != 0) {
        atomic_add(mismatches, count);
    }
}

}  // namespace awaken::kernels
