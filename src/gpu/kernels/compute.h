// SPDX-License-Identifier: Apache-2.0
// Arithmetic that keeps a GPU busy for a chosen time. Overlap benchmarks compute this while a communication is under
// way.
#pragma once

#include "portable.h"

namespace awaken::kernels {

/// Adds `factor` times the other vector to each of the `elements` elements of `sums`, `rounds` times over. Launch with
/// any number of threads in x.
AWAKEN_KERNEL(awaken_compute, device_pointer<float> sums, device_pointer<const float> terms, float factor, u64 elements,
              u64 rounds) {
    for (u64 i = global_thread(); i < elements; i += total_threads()) {
        for (u64 round = 0; round < rounds; ++round) {
            sums[i] = sums[i] + factor * terms[i];
        }
    }
}

}  // namespace awaken::kernels
