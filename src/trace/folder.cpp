// SPDX-License-Identifier: Apache-2.0
#include "trace/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.h"
#include "base/input_file.h"
#include "base/output_file.h"
#include "trace/clocks.h"

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

/// Of two runs that begin at the same time only one makes this file. The file is there until the run has written its
/// own files. It names the process and, for people, the host: a run that is killed leaves the file behind.
constexpr const char* kClaim = "/.awaken-trace-of-a-run";

/// Names the set of processes that this process's numbers belong to: the running kernel and the namespace. Empty where
/// that cannot be found out.
std::string where_processes_are() {
    struct stat processes{};
    const std::string kernel = clock_name();
    return kernel.empty() || stat("/proc/self/ns/pid", &processes) != 0
               ? std::string()
               : kernel + "," + std::to_string(processes.st_ino) + " ";
}

/// What the claim says; empty where there is none that may be read. Anything but a file in its place is an error: a
/// pipe would keep us waiting.
std::string text_of(const std::string& claim) {
    constexpr std::size_t kLongest = 4096;
    const InputFile file = read_input_file(claim, kLongest);
    if (!file.why_not.empty() && !file.unopened) {
        throw Error("the trace cannot use " + claim + " (" + file.why_not + ")",
                    "remove it, or give AWAKEN_TRACE another folder");
    }
    return file.text;
}

/// Whether the claim belongs to a process that is known to be gone. A process on another host may be running.
bool is_abandoned(const std::string& claim) {
    const std::string text = text_of(claim), here = where_processes_are();
    pid_t process = 0;
    return !here.empty() && text.starts_with(here) && text.ends_with('\n') &&
           std::from_chars(text.data() + here.size(), text.data() + text.size(), process).ec == std::errc() &&
           process > 0 && kill(process, 0) != 0 && errno == ESRCH;
}

/// The host's name, without characters that would spoil a line of text.
std::string host_name() {
    std::array<char, 65> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) {
        return {};
    }
    std::string tidy(name.data());
    std::erase_if(tidy, [](const char c) { return c <= ' ' || c > '~'; });
    return tidy;
}

bool claim(const std::string& folder) {
    constexpr mode_t kFileMode = 0666;
    const std::string path = claim_file(folder);
    // Two runs that find the same abandoned claim may both have the folder then. write_file() keeps their files apart.
    if (is_abandoned(path)) {
        unlink(path.c_str());
    }
    const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, kFileMode);
    if (file < 0 && errno != EEXIST) {
        fail("cannot be written to", folder);
    }
    if (file >= 0) {
        dprintf(file, "%s%d %s\n", where_processes_are().c_str(), static_cast<int>(getpid()), host_name().c_str());
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

std::string claim_file(const std::string& folder) {
    return folder + kClaim;
}

std::string claimed_by(const std::string& folder) {
    const std::string line = text_of(claim_file(folder));
    // "KERNEL,NAMESPACE PROCESS HOST". The first is missing where it was not known, the last in older files.
    std::array<char, 65> host{};
    int process = 0;
    const char* const space = std::strchr(line.c_str(), ' ');
    if ((space == nullptr || std::sscanf(space, "%d %64s", &process, host.data()) != 2) &&
        std::sscanf(line.c_str(), "%d %64s", &process, host.data()) != 2) {
        return {};
    }
    return "process " + std::to_string(process) + " on " + host.data();
}

void leave_folder(const std::string& folder) noexcept {
    unlink(claim_file(folder).c_str());
}

std::string numbered_folder(const std::string& folder, const int number) {
    return number == 0 ? folder : folder + "/run-" + std::to_string(number);
}

std::string write_file(const std::string& path, const std::function<void(std::FILE* stream)>& write) {
    const std::string own = "-" + std::to_string(getpid());
    const auto [descriptor, temporary] = open_beside(path);
    std::FILE* const stream = descriptor < 0 ? nullptr : fdopen(descriptor, "w");
    if (stream == nullptr) {
        fail("cannot be written to", path);
    }
    try {
        write(stream);
    } catch (...) {
        std::fclose(stream);
        unlink(temporary.c_str());
        throw;
    }
    const auto give_up = [&temporary](const std::string& wanted) {
        const int reason = errno;
        unlink(temporary.c_str());
        errno = reason;
        fail("cannot be written to", wanted);
    };
    const bool failed = std::ferror(stream) != 0;
    if (std::fclose(stream) != 0 || failed) {
        give_up(path);
    }
    // A link fails where a rename would replace. Not every file system has links.
    std::string given = path;
    if (link(temporary.c_str(), given.c_str()) != 0 && (errno == EEXIST || access(given.c_str(), F_OK) == 0)) {
        given.insert(given.ends_with(".json") ? given.size() - 5 : given.size(), own);
    }
    if (rename(temporary.c_str(), given.c_str()) != 0) {
        give_up(given);
    }
    // Renaming one name of a file to another name of the same file does nothing and succeeds.
    unlink(temporary.c_str());
    return given;
}

}  // namespace awaken::trace
