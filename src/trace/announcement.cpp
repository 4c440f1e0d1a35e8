// SPDX-License-Identifier: Apache-2.0
#include "trace/announcement.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

#include "base/fnv1a.h"

namespace awaken::trace {

namespace {

/// A socket in the abstract namespace, whose name is gone with its process, however that ends.
struct Place {
    explicit Place(const std::string& job) noexcept {
        // The first character stays zero. A job's name may be longer than an address.
        length += static_cast<socklen_t>(std::snprintf(&address.sun_path[1], sizeof address.sun_path - 1,
                                                       "awaken-trace-%u-%016llx", static_cast<unsigned>(geteuid()),
                                                       static_cast<unsigned long long>(Fnv1a().add(job).value())));
    }
    [[nodiscard]] const sockaddr* name() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }

    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    socklen_t length = offsetof(sockaddr_un, sun_path) + 1;
    const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
};

}  // namespace

void announce(const std::string& job) noexcept {
    const Place place(job);
    constexpr int kMostWaiting = 1024;
    // One process announces for all. Its descriptor stays open.
    if (job.empty() || bind(place.socket, place.name(), place.length) != 0 || listen(place.socket, kMostWaiting) != 0) {
        close(place.socket);
    }
}

bool is_announced(const std::string& job) noexcept {
    const Place place(job);
    ucred other{};
    socklen_t length = sizeof other;
    // Another user may have taken the name.
    const bool found = !job.empty() && connect(place.socket, place.name(), place.length) == 0 &&
                       getsockopt(place.socket, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
                       other.uid == geteuid();
    close(place.socket);
    return found;
}

}  // namespace awaken::trace
