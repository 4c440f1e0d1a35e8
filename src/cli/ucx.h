// SPDX-License-Identifier: Apache-2.0
// Another UCX in the place of the one that an MPI was built with.
#pragma once

#include <filesystem>

namespace awaken::cli {

/// Puts the UCX of AWAKEN_UCX before all others for `program`, whose MPI then finds it. Throws Error where the folder
/// has no UCX, or one without support for GPUs, and where the program's MPI (or that of AWAKEN_MPI) would not use it:
/// it has no UCX, or names the folder of its own in a way that comes first. Of a program that names no MPI, as Python,
/// and without AWAKEN_MPI, the latter is not known.
void use_ucx_if_asked(const std::filesystem::path& program);

}  // namespace awaken::cli
