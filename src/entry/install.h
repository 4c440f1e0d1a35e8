// The way from the part of the library that knows no ABI into a core.
#pragma once

#include "gpu/gpu.h"

namespace awaken::loader {
struct Binding;
}

namespace awaken::AWAKEN_ABI {

/// Builds the layer for the program's MPI and fills the slots of the functions that the layer serves.
void install(const loader::Binding& binding);
[[nodiscard]] int unsupported_operation_code() noexcept;
/// The GPU runtime in use, for the public API.
[[nodiscard]] gpu::Runtime& gpu_in_use();

}  // namespace awaken::AWAKEN_ABI
