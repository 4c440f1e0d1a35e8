// SPDX-License-Identifier: Apache-2.0
// The cores: the part of Awaken that is compiled once per MPI ABI. Functions without MPI types lead to them.
#pragma once

#include <vector>

#include "gpu/gpu.h"
#include "loader/loader.h"

namespace awaken::core {

/// The ABIs of this build.
[[nodiscard]] const std::vector<loader::Abi>& available() noexcept;

/// Gives the program's MPI to the core of its ABI. The core fills the slots of the functions that it serves. Throws
/// awaken::Error when this build has no such core or the settings are wrong.
void install(const loader::Binding& binding);

[[nodiscard]] bool is_installed() noexcept;

/// The GPU runtime that the installed core uses; the none runtime until a core is installed.
[[nodiscard]] gpu::Runtime& gpu_in_use() noexcept;

/// The value of MPI_ERR_UNSUPPORTED_OPERATION in an ABI.
[[nodiscard]] int unsupported_operation(loader::Abi abi) noexcept;

}  // namespace awaken::core
