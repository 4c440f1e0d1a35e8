// SPDX-License-Identifier: Apache-2.0
// Which kernel reduces with an MPI operation and a predefined datatype.
#pragma once

#include <cstdint>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// The code of the kernels for this reduction (see kernels::code_of); 0 when there are none.
[[nodiscard]] std::uint32_t kernel_code(const Native& native, MPI_Op op, MPI_Datatype type);

}  // namespace awaken::AWAKEN_ABI
