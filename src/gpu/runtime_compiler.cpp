// SPDX-License-Identifier: Apache-2.0
#include "gpu/runtime_compiler.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/fnv1a.h"

namespace awaken::gpu {
namespace {

/// Two hashes with different starts name a cache entry. One hash guards its bytes.
constexpr std::uint64_t kOtherStart = 0x9ae16a3b2f90404fULL;

/// The head of a cache file. It repeats the key, so that the cache does not take a renamed or mixed-up file for another
/// one.
struct FileHead {
    char magic[8];
    char key[32];
    std::uint64_t size;
    std::uint64_t checksum;
};
constexpr char kMagic[8] = {'A', 'W', 'K', 'N', 'K', 'R', 'N', '1'};
constexpr std::uint64_t kLargestFile = std::uint64_t{256} << 20;

class FileDescriptor {
  public:
    explicit FileDescriptor(int number) noexcept : _number(number) {}
    FileDescriptor(const FileDescriptor&) = delete;
    FileDescriptor& operator=(const FileDescriptor&) = delete;
    ~FileDescriptor() {
        if (_number >= 0) {
            ::close(_number);
        }
    }
    [[nodiscard]] int number() const noexcept { return _number; }
    [[nodiscard]] bool ok() const noexcept { return _number >= 0; }

  private:
    int _number;
};

bool read_exactly(int file, void* target, std::size_t bytes) noexcept {
    char* at = static_cast<char*>(target);
    while (bytes > 0) {
        const ssize_t got = ::read(file, at, bytes);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        at += got;
        bytes -= static_cast<std::size_t>(got);
    }
    return true;
}

bool write_exactly(int file, const void* source, std::size_t bytes) noexcept {
    const char* at = static_cast<const char*>(source);
    while (bytes > 0) {
        const ssize_t put = ::write(file, at, bytes);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return false;
        }
        at += put;
        bytes -= static_cast<std::size_t>(put);
    }
    return true;
}

/// True when the file is ours alone: no other user can have written it.
bool trusted(int file, mode_t kind) noexcept {
    struct stat status = {};
    return ::fstat(file, &status) == 0 && (status.st_mode & S_IFMT) == kind && status.st_uid == ::geteuid() &&
           (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

std::string user_cache_directory() {
    // We use values from the environment only when absolute (as the XDG specification asks) and never in set-uid
    // programs.
    if (const char* const cache = ::secure_getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/') {
        return std::string(cache) + "/awaken/kernels";
    }
    if (const char* const home = ::secure_getenv("HOME"); home != nullptr && *home == '/') {
        return std::string(home) + "/.cache/awaken/kernels";
    }
    return {};
}

/// Makes the directory and at most the last two of its parents (~/.cache/awaken). Does not make a HOME that does not
/// exist.
bool make_directories(const std::string& path) {
    constexpr int kParents = 2;
    std::size_t ends[kParents + 1] = {path.size()};
    for (int parent = 1; parent <= kParents; ++parent) {
        const std::size_t before = ends[parent - 1] == 0 ? std::string::npos : path.rfind('/', ends[parent - 1] - 1);
        ends[parent] = before == std::string::npos ? 0 : before;
    }
    for (int parent = kParents; parent >= 0; --parent) {
        if (ends[parent] == 0) {
            continue;  // the root, or nothing
        }
        if (::mkdir(path.substr(0, ends[parent]).c_str(), 0700) != 0 && errno != EEXIST) {
            return false;
        }
    }
    return true;
}

std::mutex& compiler_mutex() noexcept {
    // Leaked: a thread may still compile while static objects are destroyed.
    static std::mutex* const mutex = new std::mutex;
    return *mutex;
}

}  // namespace

RuntimeCompiler::RuntimeCompiler(const char* title, std::string path, const CompilerFunctions& functions)
    : _functions(functions), _path(std::move(path)) {
    int major = 0;
    int minor = 0;
    if (_functions.version(&major, &minor) != 0) {
        major = minor = 0;
    }
    _identity = std::string(title) + " " + std::to_string(major) + "." + std::to_string(minor) + " " + _path;
}

RuntimeCompiler::Result RuntimeCompiler::compile(const char* name, const char* source,
                                                 std::span<const std::string> options, Output output, std::string& code,
                                                 std::string& log) const {
    const std::scoped_lock lock(compiler_mutex());
    const auto outcome = [this](int result) {
        return result == 0 ? Result{} : Result{result, _functions.error_string(result)};
    };

    CompilerFunctions::Program program = nullptr;
    if (const int result = _functions.create(&program, source, name, 0, nullptr, nullptr); result != 0) {
        return outcome(result);
    }
    const auto destroy = [this](CompilerFunctions::Program* handle) { static_cast<void>(_functions.destroy(handle)); };
    const std::unique_ptr<CompilerFunctions::Program, decltype(destroy)> owner(&program, destroy);

    std::vector<const char*> texts;
    texts.reserve(options.size());
    for (const std::string& option : options) {
        texts.push_back(option.c_str());
    }
    const int compiled = _functions.compile(program, static_cast<int>(texts.size()), texts.data());

    // The log is useful in either case. Failing to get it is no reason to fail.
    std::size_t bytes = 0;
    if (_functions.log_size(program, &bytes) == 0 && bytes > 1) {
        std::string text(bytes, '\0');
        if (_functions.log(program, text.data()) == 0) {
            text.resize(std::strlen(text.c_str()));
            log += text;
        }
    }
    if (compiled != 0) {
        return outcome(compiled);
    }

    const bool portable = output == Output::portable_code && _functions.portable_size != nullptr;
    if (const int result = (portable ? _functions.portable_size : _functions.code_size)(program, &bytes); result != 0) {
        return outcome(result);
    }
    code.assign(bytes, '\0');
    return outcome((portable ? _functions.portable : _functions.code)(program, code.data()));
}

KernelCache::KernelCache() : KernelCache(user_cache_directory()) {}

KernelCache::KernelCache(std::string directory) : _directory(std::move(directory)) {
    while (_directory.size() > 1 && _directory.back() == '/') {
        _directory.pop_back();
    }
}

std::string KernelCache::key(std::span<const std::string_view> parts) {
    Fnv1a first;
    Fnv1a second(kOtherStart);
    for (const std::string_view part : parts) {
        // The length is part of the key, so that moving a boundary between parts makes another key.
        const std::string length = std::to_string(part.size()) + ":";
        first.add(length).add(part);
        second.add(length).add(part);
    }
    std::array<char, 33> text = {};
    std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(first.value()),
                  static_cast<unsigned long long>(second.value()));
    return text.data();
}

int KernelCache::open_directory(bool create) const {
    if (_directory.empty()) {
        return -1;
    }
    if (create && !make_directories(_directory)) {
        return -1;
    }
    const int directory = ::open(_directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0) {
        return -1;
    }
    if (trusted(directory, S_IFDIR)) {
        return directory;
    }
    ::close(directory);
    return -1;
}

bool KernelCache::load(const std::string& key, std::string& code) const {
    const FileDescriptor directory(open_directory(false));
    if (!directory.ok()) {
        return false;
    }
    // O_NONBLOCK: a pipe in the file's place must not make us wait before we recognise it.
    const FileDescriptor file(
        ::openat(directory.number(), (key + ".bin").c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!file.ok() || !trusted(file.number(), S_IFREG)) {
        return false;
    }

    FileHead head = {};
    if (!read_exactly(file.number(), &head, sizeof head)) {
        return false;
    }
    if (std::memcmp(head.magic, kMagic, sizeof kMagic) != 0 || key.size() != sizeof head.key ||
        std::memcmp(head.key, key.data(), sizeof head.key) != 0 || head.size == 0 || head.size > kLargestFile) {
        return false;
    }
    std::string content(head.size, '\0');
    if (!read_exactly(file.number(), content.data(), content.size())) {
        return false;
    }
    if (Fnv1a().add(content).value() != head.checksum) {
        return false;
    }
    code = std::move(content);
    return true;
}

void KernelCache::store(const std::string& key, std::string_view code) const {
    FileHead head = {};
    if (key.size() != sizeof head.key || code.empty() || code.size() > kLargestFile) {
        return;
    }
    const FileDescriptor directory(open_directory(true));
    if (!directory.ok()) {
        return;
    }

    static std::atomic<unsigned> counter{0};
    const std::string temporary = key + "." + std::to_string(::getpid()) + "." + std::to_string(counter++) + ".tmp";
    const FileDescriptor file(
        ::openat(directory.number(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file.ok()) {
        return;
    }

    std::memcpy(head.magic, kMagic, sizeof kMagic);
    std::memcpy(head.key, key.data(), sizeof head.key);
    head.size = code.size();
    head.checksum = Fnv1a().add(code).value();
    const bool written =
        write_exactly(file.number(), &head, sizeof head) && write_exactly(file.number(), code.data(), code.size());
    if (!written ||
        ::renameat(directory.number(), temporary.c_str(), directory.number(), (key + ".bin").c_str()) != 0) {
        ::unlinkat(directory.number(), temporary.c_str(), 0);
    }
}

}  // namespace awaken::gpu
