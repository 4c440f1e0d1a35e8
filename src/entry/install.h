// SPDX-License-Identifier: Apache-2.0
// The way from the part of the library that knows no ABI into a core.
#pragma once

#include "call/memory_kinds.h"
#include "call/services.h"
#include "gpu/gpu.h"

namespace awaken::loader {
struct Binding;
}

namespace awaken::AWAKEN_ABI {

/// Builds the layer for the program's MPI and fills the slots of the functions that the layer serves.
void install(const loader::Binding& binding);
/// Points the slots of these functions at the layer, as far as the MPI has the functions.
void fill_slots(const Services& services);
/// A communicator's reductions are to fold in the order of the ranks: serves what that takes.
void serve_reproducible();
/// Keeps what a new session asks for.
void session_requests_kinds(const NamedObject& session, MPI_Info info);
[[nodiscard]] int unsupported_operation_code() noexcept;
/// The GPU runtime in use, for the public API.
[[nodiscard]] gpu::Runtime& gpu_in_use();

}  // namespace awaken::AWAKEN_ABI
