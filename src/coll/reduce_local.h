// SPDX-License-Identifier: Apache-2.0
// MPI_Reduce_local on device memory, by the kernels of collectives.
#pragma once

#include <cstdint>

#include "call/call.h"

namespace awaken::AWAKEN_ABI {

/// inout = input op inout, on the GPU that has `inout`. False when it is not ours: nothing was done, and the MPI has to
/// do it. Throws Error.
[[nodiscard]] bool reduce_on_gpu(Call& call, const void* input, void* inout, std::int64_t count, MPI_Datatype type,
                                 MPI_Op op);

}  // namespace awaken::AWAKEN_ABI
