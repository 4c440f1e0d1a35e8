// SPDX-License-Identifier: Apache-2.0
// How many bytes an operation has moved, by its status, and how an operation has failed.
#pragma once

#include <cstdint>

#include "mpi/native.h"

namespace awaken::AWAKEN_ABI {

/// Bytes that a completed receive delivered.
[[nodiscard]] std::int64_t received_bytes(const Native& native, const MPI_Status& status);
/// Bytes that a completed file access has read or written. A program cannot cancel a file access, and Open MPI's status
/// does not say whether one was cancelled.
[[nodiscard]] std::int64_t transferred_bytes(const Native& native, const MPI_Status& status);

/// The class of an error code.
[[nodiscard]] int class_of(const Native& native, int error);

}  // namespace awaken::AWAKEN_ABI
