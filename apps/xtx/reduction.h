// SPDX-License-Identifier: Apache-2.0
// The sum of a block over all ranks, in place, by four ways.
#pragma once

#include <hip/hip_runtime.h>
#include <mpi.h>

#include <cstddef>
#include <memory>
#include <string>

#include "ccl.h"
#include "plan.h"

namespace xtx {

enum class Way : int {
    mpi,              ///< MPI_Allreduce on the block where it lies: device memory needs a GPU-aware MPI
    mpi_nonblocking,  ///< the same with MPI_Iallreduce, all parts of the block at a time
    ccl,              ///< NCCL or RCCL, in the communication stream
    staged,           ///< MPI_Allreduce on the block's copy in host memory
    enqueue           ///< MPIX_Allreduce_enqueue, in the communication stream
};

class Reduction {
  public:
    virtual ~Reduction() = default;
    /// "MPI_Allreduce", "NCCL 2.27.3".
    [[nodiscard]] virtual std::string name() const = 0;
    /// Sums up a block that is laid out so. Collective. Returns when the sum is there, unless it is_queued().
    virtual void sum(void* block, const Layout& layout) = 0;
    /// Whether the block is to be copied to the host first, and summed up there.
    [[nodiscard]] virtual bool works_on_host() const { return false; }
    /// Whether sum() only queues, in the communication stream.
    [[nodiscard]] virtual bool is_queued() const { return false; }
    /// Waits for what sum() queued, and for what follows it in the stream.
    virtual void finish() {}
};

/// `part` is the largest number of floating-point numbers that one call of the MPI sums up: longer blocks are split.
/// Null, with the reason in `why_not`, where what the way takes is not there. Collective.
[[nodiscard]] std::unique_ptr<Reduction> make_reduction(Way way, long long part, hipStream_t stream,
                                                        std::string& why_not);

}  // namespace xtx
