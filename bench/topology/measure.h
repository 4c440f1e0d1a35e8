// SPDX-License-Identifier: Apache-2.0
// The raw matrix: copies between the memory of each two GPUs, and of each GPU and the host, in one process and without
// any MPI.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::topology {

/// Stands for page-locked memory of the host among device numbers.
inline constexpr int kHost = -1;
/// Stands for all of them.
inline constexpr int kAll = -2;

struct Effort {
    std::size_t bytes = std::size_t{512} << 20;  ///< of each copy
    int samples = 3;                             ///< of each bandwidth; the median is told
    int copies_per_sample = 4;                   ///< queued one behind the other
    int latency_samples = 100;
    bool verify = true;  ///< read back what was copied, and compare
};

enum class Method {
    engine,  ///< the runtime's copies, which the copy engines carry out
    kernel,  ///< a kernel that loads and stores
};

/// A bandwidth and its extremes over the samples; none when `samples` is 0.
struct Bandwidth {
    double median_GBps = 0;
    double least_GBps = 0;
    double most_GBps = 0;
    int samples = 0;
};

/// What `device` does with the memory of `peer`. GB are 10^9 bytes; `both` counts the bytes of both directions.
struct PairResult {
    int device = 0;
    int peer = kHost;
    Method method = Method::engine;
    Bandwidth read;         ///< from the peer's memory into the device's
    Bandwidth write;        ///< from the device's memory into the peer's
    Bandwidth both;         ///< between GPUs each reads from the other; with the host the device reads and writes
    double latency_us = 0;  ///< of reading 8 bytes, from the call until it is known to be over; 0: not measured
    bool verified = false;  ///< what was copied was read back and compared
    std::string skipped;    ///< why nothing was measured
    std::string failed;     ///< what went wrong while it was
};

/// Copies between several GPUs that are under way at the same time. Each copy has an equal part of `Effort::bytes`; the
/// figure is the sum of all of them.
struct TogetherResult {
    int from = kAll;  ///< the GPU that writes to all others; kAll: each GPU reads from each other one
    Method method = Method::engine;
    int copies = 0;
    Bandwidth together;
    bool verified = false;
    std::string skipped;
    std::string failed;
};

struct RawResults {
    std::vector<PairResult> pairs;
    std::vector<TogetherResult> together;  ///< with three or more GPUs: two have nothing to add to `both`
};

/// Measures each ordered pair of `devices`, each of them with the host, and all at once, by both methods. `progress` is
/// called before each of these. Throws Error when memory cannot be had; what goes wrong with a single pair is told
/// there.
[[nodiscard]] RawResults measure_all(gpu::Runtime& runtime, const std::vector<int>& devices, const Effort& effort,
                                     const std::function<void(std::size_t done, std::size_t all)>& progress);

}  // namespace awaken::topology
