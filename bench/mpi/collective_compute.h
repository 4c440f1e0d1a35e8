// SPDX-License-Identifier: Apache-2.0
// What a rank computes while a nonblocking collective is under way: arithmetic for a chosen time, on the CPU, on the
// GPU or on both (-r), with calls that let the MPI make progress in between (-t).
//
// Compiled once per MPI ABI.
#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "mpi/benchmark.h"

namespace awaken::bench {

class OverlapCompute {
  public:
    /// Throws Error when -t is no number, or when -r asks for the GPU and kernels cannot be compiled or run here.
    explicit OverlapCompute(const Environment& environment);
    ~OverlapCompute();
    OverlapCompute(const OverlapCompute&) = delete;
    OverlapCompute& operator=(const OverlapCompute&) = delete;

    /// Sets how long run() computes, seconds. Call it outside of timing: finding a kernel's length takes launches.
    void set_duration(double seconds);

    /// Computes, and tests each operation so often in between. Returns the seconds that testing took.
    double run(Communication& with, Operations& operations);

  private:
    class Gpu;

    void compute_on_host(double seconds);

    static constexpr std::size_t kSide = 25;
    using Row = std::array<float, kSide>;

    std::size_t _tests = 0;
    double _duration = 0;
    bool _on_cpu;
    std::unique_ptr<Gpu> _gpu;  // null without -r gpu or both
    std::array<Row, kSide> _matrix{};
    Row _vector{};
    volatile float _result = 0;  // keeps the arithmetic from being optimised away
};

}  // namespace awaken::bench
