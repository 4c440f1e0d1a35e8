// SPDX-License-Identifier: Apache-2.0
// The kernel's table of this process's file descriptors.
#pragma once

#include <thread>

namespace awaken {

/// Makes room for 256 descriptors, or as many as the process may have. The table begins with 64. When it has to grow
/// and the process has other threads by then, the call that needs the descriptor waits 5 to 20 ms, until no thread
/// reads the old table any more. A GPU runtime opens some 40 descriptors, so that the call is likely to be one of a
/// first message.
///
/// @return a thread that waits for the kernel, to be joined; none where this process has no other threads.
[[nodiscard]] std::thread grow_descriptor_table();

}  // namespace awaken
