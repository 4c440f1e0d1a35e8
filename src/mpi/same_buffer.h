// SPDX-License-Identifier: Apache-2.0
// A collective that sends from the place that it receives into, which MPI forbids (MPI-4.1, 6.1) and MPIs refuse in
// part.
#pragma once

#include <cstdint>
#include <string>

#include "coll/device/plan.h"
#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// MPICH refuses it in all functions but neighbourhood collectives.
[[nodiscard]] inline bool refuses_same_buffer(const loader::Binding& mpi) {
    return mpi.version.find("MPICH") != std::string::npos;
}

/// The class of this MPI's error on a member that sends `count` elements, or receives them; MPI_SUCCESS: it takes them.
[[nodiscard]] inline int error_of_same_buffer(const loader::Binding& mpi, const coll::Kind kind,
                                              const void* const buffer, const std::int64_t count) {
    if (refuses_same_buffer(mpi)) {
        return MPI_ERR_BUFFER;
    }
    // Open MPI compares the buffers of two functions.
    if (kind == coll::Kind::reduce) {
        return MPI_ERR_ARG;
    }
    return kind == coll::Kind::allreduce && count > 1 && buffer != MPI_BOTTOM ? MPI_ERR_BUFFER : MPI_SUCCESS;
}

}  // namespace awaken::AWAKEN_ABI
