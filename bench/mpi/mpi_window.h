// SPDX-License-Identifier: Apache-2.0
// A window of the MPI.
//
// Compiled once per MPI ABI.
#pragma once

#include <memory>

#include "mpi/communication.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {

/// Makes a window with the functions of a table, which must outlive it. Throws Unavailable on all ranks when the MPI
/// refuses it on any. Collective.
[[nodiscard]] std::unique_ptr<Window> open_mpi_window(const MpiFunctions& mpi, const WindowRequest& request);

}  // namespace awaken::bench
