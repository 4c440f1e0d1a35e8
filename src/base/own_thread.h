// SPDX-License-Identifier: Apache-2.0
// Threads of the layer's own.
#pragma once

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

namespace awaken {

/// Starts a thread that takes none of the program's signals: the system must not deliver a signal to a thread that the
/// program does not know. The result is not joinable when no thread can be made (ulimit -u, or the limit of a
/// container).
template <class Work>
[[nodiscard]] std::thread start_own_thread(Work work) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread;
    try {
        thread = std::thread(std::move(work));
    } catch (const std::system_error&) {
        // The caller then does the thread's work in another way.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

}  // namespace awaken
