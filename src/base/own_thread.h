// Threads of the layer's own.
#pragma once

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <thread>
#include <utility>

namespace awaken {

/// A thread that takes none of the program's signals: none may be delivered to a thread that the program does not know.
/// Not joinable where there is no thread to be had (ulimit -u, or the limit of a container).
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
        // What the thread would have done is the caller's to do otherwise.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
}

}  // namespace awaken
