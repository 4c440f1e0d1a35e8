// What the status of a completed operation says of its bytes.
#pragma once

#include <cstdint>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// Bytes that a completed receive delivered.
[[nodiscard]] std::int64_t received_bytes(const Native& native, const MPI_Status& status);
/// Bytes that a completed access to a file has read or written. Nobody cancels one, and Open MPI's status leaves open
/// whether somebody did.
[[nodiscard]] std::int64_t transferred_bytes(const Native& native, const MPI_Status& status);

}  // namespace awaken::AWAKEN_ABI
