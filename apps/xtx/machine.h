// SPDX-License-Identifier: Apache-2.0
// Where the products are made and the blocks lie: a GPU with two streams, or the CPU with a thread in place of the
// first.
//
// What computes is queued, in order, and goes on in the background; so is what copies to the host, in a queue of its
// own. begin_block() and end_block() mark a block's part of the first queue, so that it can be waited for and timed.
#pragma once

#include <hip/hip_runtime.h>

#include <cstddef>
#include <memory>
#include <string>

#include "input.h"

namespace xtx {

/// C = A B^H, column-major. A is m x k, B is n x k, both with the leading dimension of X.
struct Product {
    bool single = false;  ///< FP32
    bool is_complex = false;
    long long m = 0;
    long long n = 0;
    long long k = 0;
    const void* a = nullptr;
    const void* b = nullptr;
    long long leading = 0;
    void* c = nullptr;
    long long leading_c = 0;
};

/// A block of FP64 numbers to be taken apart, see xtx_split in xtx.hip. Counts are of numbers, not of elements.
struct Split {
    double* diagonal = nullptr;
    float* rest = nullptr;
    const double* block = nullptr;
    std::size_t height = 0;
    std::size_t top = 0;
    std::size_t columns = 0;
};

class Machine {
  public:
    virtual ~Machine() = default;

    /// "cuBLAS 12.9.1 (libcublas.so.12) on Awaken emulated GPU (CUDA)".
    [[nodiscard]] virtual std::string title() const = 0;
    /// Why it cannot make products of these sizes; empty where it can.
    [[nodiscard]] virtual std::string refusal(const Problem& problem, long long rows) const = 0;

    /// Memory for products; null where there is no room.
    [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
    virtual void free(void* memory) = 0;
    /// Memory of the host into which results are copied, pinned where there is a GPU; null where there is no room.
    [[nodiscard]] virtual void* allocate_on_host(std::size_t bytes) = 0;
    virtual void free_on_host(void* memory) = 0;
    /// Bytes that allocate() might still give to this rank.
    [[nodiscard]] virtual std::size_t free_bytes() const = 0;
    /// Whether allocate_on_host() takes from these bytes too.
    [[nodiscard]] virtual bool is_host() const = 0;

    // ---- computing: queued
    virtual void fill(double* X, std::size_t count, const Filling& filling) = 0;
    /// target[i] = source[i] in FP32, and 0 from `source_count` on.
    virtual void narrow(float* target, std::size_t count, const double* source, std::size_t source_count) = 0;
    virtual void multiply(const Product& product) = 0;
    virtual void split(const Split& split) = 0;
    /// Makes what begin_block() and end_block() take for this many blocks, outside of the timing.
    virtual void prepare(std::size_t blocks) = 0;
    virtual void begin_block(std::size_t k) = 0;
    virtual void end_block(std::size_t k) = 0;
    virtual void wait_for_block(std::size_t k) = 0;
    /// Between the block's marks, both of which have been reached.
    [[nodiscard]] virtual double seconds_of_block(std::size_t k) = 0;
    virtual void finish_computing() = 0;

    // ---- communicating
    /// Queued.
    virtual void copy_to_host(void* target, const void* source, std::size_t bytes) = 0;
    virtual void finish_copies() = 0;
    /// Marks the place in the queue of copies that it has reached by now, and waits until it has been worked off up to
    /// there.
    virtual void mark_communication() = 0;
    virtual void wait_for_mark() = 0;
    /// The queue of copies as a stream, for sums that are queued there; null where there is no GPU.
    [[nodiscard]] virtual hipStream_t communication_stream() const = 0;
};

/// The GPU of this rank with its vendor's BLAS. Null, with the reason in `why_not`, where a rank has no GPU or no BLAS
/// for it. `shows_products` opens a range "gemm" while the GPU works on a block. Collective.
[[nodiscard]] std::unique_ptr<Machine> make_gpu_machine(const std::string& program, bool shows_products,
                                                        std::string& why_not);

/// The CPU with a BLAS of the host, or with loops of our own where there is none.
[[nodiscard]] std::unique_ptr<Machine> make_host_machine();

}  // namespace xtx
