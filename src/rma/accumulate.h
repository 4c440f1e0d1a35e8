// SPDX-License-Identifier: Apache-2.0
// This process's accumulate operations on a target's device memory.
#pragma once

#include <cstdint>

#include "rma/window.h"

namespace awaken::AWAKEN_ABI {

/// A buffer in this process. A count of 0: there is none.
struct LocalBuffer {
    void* address = nullptr;
    std::int64_t count = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
};

/// A place in a target's window.
struct TargetBuffer {
    int rank = MPI_PROC_NULL;
    MPI_Aint displacement = 0;
    std::int64_t count = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
};

/// MPI_Accumulate, and with a result MPI_Get_accumulate. The operations are complete on return, and run one after
/// another for each target. False when the target is not device memory: the MPI has to do the operation.
[[nodiscard]] bool accumulate(Call& call, Window& window, const LocalBuffer& origin, const LocalBuffer* result,
                              const TargetBuffer& target, MPI_Op op);

/// The same for MPI_Compare_and_swap.
[[nodiscard]] bool compare_and_swap(Call& call, Window& window, const void* origin, const void* compare, void* result,
                                    const TargetBuffer& target);

/// Finds a target's memory for an operation. Nothing when the MPI has to do it.
struct FoundTarget {
    std::shared_ptr<const Datatype> type;
    MappedRegion reached;
    std::int64_t bytes = 0;
};
[[nodiscard]] std::optional<FoundTarget> find_target(const Call& call, Window& window, const TargetBuffer& target,
                                                     int device);

/// Read and write the packed bytes of a target's device memory. Bytes that are not part of the type are not touched.
void read_target(const FoundTarget& found, std::int64_t count, std::byte* packed);
void write_target(const FoundTarget& found, std::int64_t count, const std::byte* packed);

}  // namespace awaken::AWAKEN_ABI
