// SPDX-License-Identifier: Apache-2.0
#include "base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace awaken {
namespace {

/// Linux: Documentation/admin-guide/devices.txt.
constexpr unsigned kNullMajor = 1, kNullMinor = 3;

/// Does not stop at the size that the file had when it was opened: the file may grow.
void read_from(const int descriptor, const std::size_t most_bytes, InputFile& file) {
    constexpr std::size_t kPart = std::size_t{64} << 10;
    for (;;) {
        const std::size_t done = file.text.size();
        file.text.resize(done + kPart);
        const ssize_t count = read(descriptor, file.text.data() + done, kPart);
        file.text.resize(done + (count > 0 ? static_cast<std::size_t>(count) : 0));
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            file.why_not = std::strerror(errno);
        }
        if (file.text.size() > most_bytes) {
            file.why_not = "it has more than " + std::to_string(most_bytes) + " bytes";
        }
        if (count <= 0 || !file.why_not.empty()) {
            return;
        }
    }
}

}  // namespace

bool is_null_device(const struct stat& status) {
    return S_ISCHR(status.st_mode) && status.st_rdev == makedev(kNullMajor, kNullMinor);
}

const char* other_kind(const struct stat& status) {
    if (S_ISREG(status.st_mode)) {
        return "";
    }
    if (S_ISDIR(status.st_mode)) {
        return "it is a folder";
    }
    if (S_ISFIFO(status.st_mode)) {
        return "it is a pipe, not a regular file";
    }
    if (S_ISSOCK(status.st_mode)) {
        return "it is a socket, not a regular file";
    }
    return "it is a device, not a regular file";
}

InputFile read_input_file(const std::string& path, const std::size_t most_bytes) {
    InputFile file;
    struct stat status{};
    // Asks before it opens the file, since opening some devices has an effect.
    if (stat(path.c_str(), &status) != 0) {
        file.unopened = true;
        file.why_not = std::strerror(errno);
        return file;
    }
    if (is_null_device(status)) {
        return file;
    }
    file.why_not = other_kind(status);
    if (!file.why_not.empty()) {
        return file;
    }
    const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) {
        file.unopened = true;
        file.why_not = std::strerror(errno);
        return file;
    }
    // Another file may have taken its place.
    file.why_not = fstat(descriptor, &status) == 0 ? other_kind(status) : std::strerror(errno);
    if (file.why_not.empty()) {
        read_from(descriptor, most_bytes, file);
    }
    close(descriptor);
    if (!file.why_not.empty()) {
        file.text.clear();
    }
    return file;
}

}  // namespace awaken
