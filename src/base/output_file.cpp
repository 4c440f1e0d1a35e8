// SPDX-License-Identifier: Apache-2.0
#include "base/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>

namespace awaken {

bool write_all(const int descriptor, std::string_view text) noexcept {
    while (!text.empty()) {
        const ssize_t count = write(descriptor, text.data(), text.size());
        if (count < 0 && errno != EINTR) {
            return false;
        }
        text.remove_prefix(count > 0 ? static_cast<std::size_t>(count) : 0);
    }
    return true;
}

UnfinishedFile open_beside(const std::string& target) {
    static std::atomic<unsigned> files{0};
    const std::string folder = target.substr(0, target.rfind('/') + 1);  // npos + 1 is 0
    const std::string stem = folder + ".awaken-" + std::to_string(getpid()) + "-";
    UnfinishedFile file;
    // A killed process, or one of another node with the same number, may have left the name.
    do {
        file.path = stem + std::to_string(files++) + ".part";
        file.descriptor = open(file.path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    } while (file.descriptor < 0 && errno == EEXIST);
    return file;
}

int replace_file(const std::string& path, const std::string& text) {
    const UnfinishedFile file = open_beside(path);
    if (file.descriptor < 0) {
        return errno;
    }
    int reason = write_all(file.descriptor, text) ? 0 : errno;
    // Some file systems tell only now that the disk is full.
    if (close(file.descriptor) != 0 && reason == 0) {
        reason = errno;
    }
    if (reason == 0 && std::rename(file.path.c_str(), path.c_str()) != 0) {
        reason = errno;
    }
    if (reason != 0) {
        unlink(file.path.c_str());
    }
    return reason;
}

}  // namespace awaken
