// The cores: the part of Awaken that is compiled once per MPI ABI, behind functions that know no MPI type.
#pragma once

#include <vector>

#include "gpu/gpu.h"
#include "loader/loader.h"

namespace awaken::core {

/// The ABIs this file was built with.
[[nodiscard]] const std::vector<loader::Abi>& available() noexcept;

/// Hands the program's MPI to the core of its ABI, which takes over the slots of the functions that it serves. Throws
/// awaken::Error when this build has no such core or the settings are wrong.
void install(const loader::Binding& binding);

[[nodiscard]] bool is_installed() noexcept;

/// The GPU runtime that the installed core uses; the none runtime before there is one.
[[nodiscard]] gpu::Runtime& gpu_in_use() noexcept;

/// The value of MPI_ERR_UNSUPPORTED_OPERATION in an ABI.
[[nodiscard]] int unsupported_operation(loader::Abi abi) noexcept;

}  // namespace awaken::core
