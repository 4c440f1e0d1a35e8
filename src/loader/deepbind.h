// SPDX-License-Identifier: Apache-2.0
// Modules that a program opens with RTLD_DEEPBIND.
#pragma once

namespace awaken::loader {

/// Binds the MPI functions that objects of this process have found in the scope of `module`, a handle of dlopen(), as
/// if they had been searched in the global scope first, where this library is. RTLD_DEEPBIND searches the other way
/// round.
void bind_to_global_scope(void* module) noexcept;

}  // namespace awaken::loader
