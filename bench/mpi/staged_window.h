// SPDX-License-Identifier: Apache-2.0
// A window staged by hand.
//
// Compiled once per MPI ABI.
#pragma once

#include <memory>

#include "mpi/communication.h"
#include "mpi/host_images.h"
#include "mpi/mpi_functions.h"

namespace awaken::bench {

/// Makes a window over the images of GPU memory, which are kept up to date by copies around each epoch. `images` and
/// `mpi` must outlive it. Throws Unavailable on all ranks where the target's memory is a GPU's and the target makes no
/// call in which to copy. Collective.
[[nodiscard]] std::unique_ptr<Window> open_staged_window(const MpiFunctions& mpi, HostImages& images,
                                                         const WindowRequest& request);

}  // namespace awaken::bench
