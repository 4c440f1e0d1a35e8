// SPDX-License-Identifier: Apache-2.0
// What is computed on a block: by loops on the CPU, or by kernels (kernels.hip) in a stream.
#pragma once

#include <hip/hip_runtime.h>

#include <cstdint>
#include <memory>

#include "array.h"
#include "decomposition.h"
#include "kernels.h"

namespace ghost_exchange {

/// How long kernels took, and for how many cells; 0 where that is not known.
struct KernelTime {
    double seconds = 0;
    double cells = 0;

    void add(const KernelTime& other) {
        seconds += other.seconds;
        cells += other.cells;
    }
};

/// Arrays are passed by their first cell, which belongs to the halo. Everything but wait() may return before it is
/// done.
class Compute {
  public:
    Compute() = default;
    virtual ~Compute() = default;
    Compute(const Compute&) = delete;
    Compute& operator=(const Compute&) = delete;

    /// The step: each cell of the region becomes (x[j][i] + x[j][i-1] + x[j][i+1] + x[j-1][i] + x[j+1][i]) / 5.
    virtual void blur(double* xnew, const double* x, const Region& region) = 0;
    /// The same for the cells of the block around that region.
    virtual void blur_frame(double* xnew, const double* x, const Region& inner) = 0;
    /// Waits until the last of these is over, and not for what was given to the GPU after it.
    virtual void wait_for_blur() = 0;
    /// Halo cells outside the field become the nearest owned cell, in two parts: the first gives the GPU something to
    /// go on with and never waits, the second returns when the cells are there. The CPU does all of it in the second.
    virtual void start_boundary(double* x) = 0;
    virtual void finish_boundary(double* x) = 0;
    /// The owned columns next to the left and right halo; null where there is no neighbour.
    virtual void pack(double* left, double* right, const double* x) = 0;
    /// The columns of the halo.
    virtual void unpack(double* x, const double* left, const double* right) = 0;
    /// Writes all cells of x: u[i] * v[j], or `outside` where u is null, to the owned ones; `outside` to the halo. u
    /// and v are in host memory and have isize and jsize elements.
    virtual void fill(double* x, const double* u, const double* v, double outside) = 0;
    /// Waits until all is done.
    virtual void wait() = 0;
    /// What the GPU did for the steps since the last call. All is done.
    virtual KernelTime take_blur_time() { return {}; }
};

/// The CPU computes on an array in host memory.
[[nodiscard]] std::unique_ptr<Compute> compute_on_host(const Block& block);
/// The streams of kernels: one that synchronises with the default stream, as an MPI may that queues its work there;
/// or one that goes on beside whatever is exchanged, and an urgent one, which is served before others.
enum class Beside : std::uint8_t { nothing, exchange, kernels };
/// Kernels compute on an array where it lies, in a stream of their own.
[[nodiscard]] std::unique_ptr<Compute> compute_on_device(const Block& block, apps::Kernels& kernels, Beside beside);
/// The array is in host memory; blur() copies what it needs to the device, and the result back. The CPU does the rest.
/// `problem` says what happened where the device has no room for that.
[[nodiscard]] std::unique_ptr<Compute> compute_staged(const Block& block, apps::Kernels& kernels, std::string& problem);

/// The stream of what compute_on_device() made.
[[nodiscard]] hipStream_t stream_of(const Compute& compute);

}  // namespace ghost_exchange
