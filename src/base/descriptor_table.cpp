// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_table.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/own_thread.h"

namespace awaken {

namespace {

/// A failure means that the table cannot grow that far, as for the program itself.
void grow() noexcept {
    constexpr rlim_t kWanted = 256;
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == 0) {
        return;
    }
    const int any = open("/", O_PATH | O_CLOEXEC);
    if (any < 0) {
        return;
    }
    const int highest = fcntl(any, F_DUPFD_CLOEXEC, static_cast<int>(std::min(kWanted, limit.rlim_cur) - 1));
    if (highest >= 0) {
        close(highest);
    }
    close(any);
}

bool has_other_threads() noexcept {
    struct stat tasks{};
    constexpr nlink_t kItselfAndParent = 2;
    return stat("/proc/self/task", &tasks) != 0 || tasks.st_nlink > kItselfAndParent + 1;
}

}  // namespace

std::thread grow_descriptor_table() {
    if (has_other_threads()) {
        return start_own_thread(grow);
    }
    grow();
    return {};
}

}  // namespace awaken
