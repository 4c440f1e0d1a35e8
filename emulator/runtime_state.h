// SPDX-License-Identifier: Apache-2.0
// What the two run-time libraries (CUDA's and HIP's) have in common: a current device that is there without being asked
// for, and a last error.
#pragma once

#include "front_end.h"

namespace awaken::emulator {

/// Makes `device` current for this thread; its primary context is retained once for the whole process.
inline void use_device(int device) {
    Context& context = core().primary(device);
    if (!context.alive) {
        core().retain_primary(device);
    }
    thread_state().set_current(&context);
}

/// The calling thread's context; device 0's when it has none yet.
[[nodiscard]] inline Context& runtime_context() {
    Context* current = thread_state().current();
    if (!current || !current->alive) {
        use_device(current ? current->device : 0);
        current = thread_state().current();
    }
    return *current;
}

}  // namespace awaken::emulator
