#include "trace/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.h"

namespace awaken::trace {

namespace {

constexpr mode_t kFolderMode = 0777;  // and the user's umask

[[noreturn]] void fail(const std::string& what, const std::string& path) {
    throw Error("the trace " + what + " " + path + " (" + std::strerror(errno) + ")",
                "give AWAKEN_TRACE a folder that can be written to");
}

bool make_one(const std::string& path) {
    if (mkdir(path.c_str(), kFolderMode) == 0) {
        return true;
    }
    struct stat found{};
    if (errno == EEXIST && stat(path.c_str(), &found) == 0) {
        if (S_ISDIR(found.st_mode)) {
            return false;
        }
        errno = ENOTDIR;
    }
    fail("cannot make the folder", path);
}

/// Of two runs that begin at the same time only one makes this file, which is there until the run has written its own.
constexpr const char* kClaim = "/.awaken-trace-of-a-run";

bool claim(const std::string& folder) {
    constexpr mode_t kFileMode = 0666;
    const int file = open((folder + kClaim).c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, kFileMode);
    if (file < 0 && errno != EEXIST) {
        fail("cannot be written to", folder);
    }
    if (file >= 0) {
        close(file);
    }
    return file >= 0;
}

}  // namespace

void make_folder(const std::string& path) {
    for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1)) {
        make_one(path.substr(0, slash));
    }
    make_one(path);
}

bool holds_trace(const std::string& folder) {
    const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir(folder.c_str()), closedir);
    if (files == nullptr) {
        return false;
    }
    while (const dirent* const file = readdir(files.get())) {
        const std::string_view name = file->d_name;
        if (name == "trace.json" || (name.starts_with("rank-") && name.ends_with(".json"))) {
            return true;
        }
    }
    return false;
}

int take_folder(const std::string& folder) {
    make_folder(folder);
    if (!holds_trace(folder) && claim(folder)) {
        // Another run may have ended between the two.
        if (!holds_trace(folder)) {
            return 0;
        }
        leave_folder(folder);
    }
    for (int number = 2;; ++number) {
        if (make_one(numbered_folder(folder, number))) {
            return number;
        }
    }
}

void leave_folder(const std::string& folder) noexcept {
    unlink((folder + kClaim).c_str());
}

std::string numbered_folder(const std::string& folder, const int number) {
    return number == 0 ? folder : folder + "/run-" + std::to_string(number);
}

std::string write_file(const std::string& path, const std::function<void(std::FILE* stream)>& write) {
    const std::string own = "-" + std::to_string(getpid());
    const std::string temporary = path + own + ".partial";
    std::FILE* const stream = std::fopen(temporary.c_str(), "w");
    if (stream == nullptr) {
        fail("cannot be written to", temporary);
    }
    try {
        write(stream);
    } catch (...) {
        std::fclose(stream);
        unlink(temporary.c_str());
        throw;
    }
    const bool failed = std::ferror(stream) != 0;
    if (std::fclose(stream) != 0 || failed) {
        const int reason = errno;
        unlink(temporary.c_str());
        errno = reason;
        fail("cannot be written to", path);
    }
    // A link fails where a rename would replace. Not every file system has links.
    std::string given = path;
    if (link(temporary.c_str(), given.c_str()) != 0 && (errno == EEXIST || access(given.c_str(), F_OK) == 0)) {
        given.insert(given.ends_with(".json") ? given.size() - 5 : given.size(), own);
    }
    if (rename(temporary.c_str(), given.c_str()) != 0) {
        const int reason = errno;
        unlink(temporary.c_str());
        errno = reason;
        fail("cannot be written to", given);
    }
    // Renaming one name of a file to another name of the same file does nothing and succeeds.
    unlink(temporary.c_str());
    return given;
}

}  // namespace awaken::trace
