// SPDX-License-Identifier: Apache-2.0
#include "gpu/shared_descriptors.h"

#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace awaken::gpu {
namespace {

// Headers of older systems lack these. The numbers are the same on all architectures.
constexpr long kPidfdOpen = 434;
constexpr long kPidfdGetfd = 438;

/// Begins each handle. No driver's handle begins with it but by a chance of one in 2^64.
constexpr std::uint64_t kHandleMagic = 0x73726f7470697263;

struct Handle {
    std::uint64_t magic;
    std::uint64_t number;
    std::uint64_t record;  ///< address in the owner
    std::int64_t process;
};
static_assert(sizeof(Handle) <= sizeof(IpcMemoryHandle));

Handle read(const IpcMemoryHandle& handle) noexcept {
    Handle result;
    std::memcpy(&result, handle.bytes, sizeof result);
    return result;
}

bool read_memory(const pid_t process, const std::uint64_t address, void* const into, const std::size_t bytes) noexcept {
    const iovec local{into, bytes};
    const iovec remote{reinterpret_cast<void*>(address), bytes};
    const ssize_t read = process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (read >= 0 && read != static_cast<ssize_t>(bytes)) {
        errno = EFAULT;  // the rest is not mapped
    }
    return read == static_cast<ssize_t>(bytes);
}

constexpr Status kOver{kExpired, "pidfd_getfd", "its owner has closed the descriptors of this memory"};

/// What the error of a call about the owner of a handle says.
Status failed(const char* const call) noexcept {
    switch (errno) {
        case ESRCH:   // the owner has ended
        case EFAULT:  // its memory is other memory by now
        case EBADF:   // it has closed the descriptor
            return kOver;
        case EMFILE:
        case ENFILE:
        case ENOMEM:
            return {kBusy, call, "no descriptor is free"};
        default:
            return {errno, call, "this process may not trace the owner of the memory, see ptrace(2)"};
    }
}

/// How many descriptors this process may open.
std::size_t descriptor_limit() noexcept {
    rlimit limit{};
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

constexpr std::size_t kPartOfDescriptors = 8;

}  // namespace

/// What other processes read.
struct SharedDescriptors::Record {
    struct Part {
        std::int64_t file;
        std::uint64_t bytes;
    };
    std::atomic<std::uint64_t> number;
    std::uint64_t count;
    std::array<Part, kMost> parts;
};

Descriptor::Descriptor(Descriptor&& other) noexcept : _file(std::exchange(other._file, -1)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    std::swap(_file, other._file);
    return *this;
}

Descriptor::~Descriptor() {
    if (_file >= 0) {
        ::close(_file);
    }
}

SharedDescriptors::SharedDescriptors() {
    // A process may have the number, but not the memory, of one that ended.
    if (getrandom(&_last_number, sizeof _last_number, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof _last_number)) {
        const std::uint64_t now = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
        _last_number = now << 20 ^ static_cast<std::uint64_t>(getpid());
    }
}

SharedDescriptors::~SharedDescriptors() {
    const std::scoped_lock lock(_mutex);
    while (!_handouts.empty()) {
        take_back(_handouts.begin());  // whoever holds it is gone
    }
}

std::size_t SharedDescriptors::most() noexcept {
    return std::min(kMost, descriptor_limit() / kPartOfDescriptors);
}

bool SharedDescriptors::has_room(const std::size_t files) noexcept {
    const std::size_t most = SharedDescriptors::most();
    take_back_until([&] { return _files + files <= most; });
    return _files + files <= most;
}

bool SharedDescriptors::make_room(const std::size_t files) noexcept {
    const std::scoped_lock lock(_mutex);
    return has_room(files);
}

bool SharedDescriptors::publish(std::vector<SharedPart> parts, IpcMemoryHandle& handle) noexcept {
    // The kernel gives the lowest free number, so a high one says that the program has most of the others.
    const std::size_t limit = descriptor_limit();
    const auto is_among_the_last = [&](const SharedPart& part) {
        return static_cast<std::size_t>(part.file.get()) >= limit - limit / kPartOfDescriptors;
    };
    if (parts.empty() || parts.size() > kMost || std::any_of(parts.begin(), parts.end(), is_among_the_last)) {
        return false;
    }
    const std::scoped_lock lock(_mutex);
    if (!has_room(parts.size())) {
        return false;
    }
    if (_handouts.empty()) {
        // Where Yama guards processes from each other (most desktops), only descendants may trace one that does not
        // allow it. MPI libraries ask for the same, to copy between processes.
        static_cast<void>(prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0));
    }
    try {
        auto record = std::make_unique<Record>();
        record->count = parts.size();
        for (std::size_t i = 0; i < parts.size(); ++i) {
            record->parts[i] = {parts[i].file.get(), parts[i].bytes};
        }
        const std::size_t files = parts.size();
        std::size_t bytes = 0;
        for (const SharedPart& part : parts) {
            bytes += part.bytes;
        }
        _handouts.push_front({std::move(record), std::move(parts), bytes, Clock::time_point{}});
        const std::uint64_t number = ++_last_number;
        try {
            _by_number.emplace(number, _handouts.begin());
        } catch (const std::bad_alloc&) {
            _handouts.pop_front();
            return false;
        }
        _files += files;
        Record& shared = *_handouts.front().record;
        shared.number.store(number, std::memory_order_release);
        const Handle made{kHandleMagic, number, reinterpret_cast<std::uintptr_t>(&shared), getpid()};
        handle = {};
        std::memcpy(handle.bytes, &made, sizeof made);
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

SharedDescriptors::List::iterator SharedDescriptors::find(const IpcMemoryHandle& handle) noexcept {
    const auto known = _by_number.find(read(handle).number);
    return known == _by_number.end() ? _handouts.end() : known->second;
}

bool SharedDescriptors::hold(const IpcMemoryHandle& handle) noexcept {
    const std::scoped_lock lock(_mutex);
    const List::iterator handout = find(handle);
    if (handout == _handouts.end() || handout->over) {
        return false;
    }
    if (handout->holds++ == 0) {
        _idle_bytes -= handout->bytes;
    }
    return true;
}

void SharedDescriptors::release(const IpcMemoryHandle& handle, const std::size_t idle_bytes) noexcept {
    const std::scoped_lock lock(_mutex);
    const List::iterator handout = find(handle);
    if (handout == _handouts.end() || --handout->holds != 0) {
        return;
    }
    _idle_bytes += handout->bytes;
    if (handout->over) {
        take_back(handout);
        return;
    }
    handout->used = Clock::now();
    _handouts.splice(_handouts.begin(), _handouts, handout);
    set_due(handout->used + kIdle);
    take_back_until([&] { return _idle_bytes <= idle_bytes; });
}

void SharedDescriptors::end(const IpcMemoryHandle& handle) noexcept {
    const std::scoped_lock lock(_mutex);
    const List::iterator handout = find(handle);
    if (handout == _handouts.end()) {
        return;
    }
    handout->over = true;
    if (handout->holds == 0) {
        take_back(handout);
    }
}

void SharedDescriptors::take_back(const List::iterator handout) noexcept {
    if (handout->holds == 0) {
        _idle_bytes -= handout->bytes;
    }
    _by_number.erase(handout->record->number.load(std::memory_order_relaxed));
    handout->record->number.store(0, std::memory_order_seq_cst);
    _files -= handout->parts.size();
    _handouts.erase(handout);
}

template <class Enough>
void SharedDescriptors::take_back_until(const Enough& enough) noexcept {
    for (auto handout = _handouts.end(); handout != _handouts.begin() && !enough();) {
        const auto last = std::prev(handout);
        if (last->holds == 0) {
            take_back(last);
        } else {
            handout = last;
        }
    }
}

void SharedDescriptors::set_due(const Clock::time_point due) noexcept {
    const Clock::rep at = due.time_since_epoch().count();
    if (at < _due.load(std::memory_order_relaxed)) {
        _due.store(at, std::memory_order_relaxed);
    }
}

void SharedDescriptors::close_idle() noexcept {
    if (_due.load(std::memory_order_relaxed) != kNever) {
        close_idle(Clock::now());
    }
}

void SharedDescriptors::close_idle(const Clock::time_point now) noexcept {
    if (now.time_since_epoch().count() < _due.load(std::memory_order_relaxed)) {
        return;
    }
    const std::scoped_lock lock(_mutex);
    take_back_until([&] {
        const auto longest = std::find_if(_handouts.rbegin(), _handouts.rend(),
                                          [](const Handout& handout) { return handout.holds == 0; });
        const bool none = longest == _handouts.rend();
        _due.store(none ? kNever : (longest->used + kIdle).time_since_epoch().count(), std::memory_order_relaxed);
        return none || longest->used + kIdle > now;
    });
}

std::size_t SharedDescriptors::open_files() const noexcept {
    const std::scoped_lock lock(_mutex);
    return _files;
}

bool SharedDescriptors::made(const IpcMemoryHandle& handle) noexcept {
    return read(handle).magic == kHandleMagic;
}

Status SharedDescriptors::take(const IpcMemoryHandle& handle, std::vector<SharedPart>& parts) noexcept {
    const Handle wanted = read(handle);
    const auto process = static_cast<pid_t>(wanted.process);
    const auto is_valid = [&](const std::uint64_t number) { return number == wanted.number; };
    if (process != wanted.process) {
        return kOver;
    }
    const Descriptor owner(static_cast<int>(syscall(kPidfdOpen, process, 0)));
    if (owner.get() < 0) {
        return failed("pidfd_open");
    }
    Record record{};
    if (!read_memory(process, wanted.record, &record, sizeof record)) {
        return failed("process_vm_readv");
    }
    if (!is_valid(record.number.load(std::memory_order_relaxed)) || record.count > kMost) {
        return kOver;
    }
    if (record.count > most()) {
        return {kBusy, "pidfd_getfd", "this process may open too few descriptors"};
    }
    parts.clear();
    try {
        for (std::size_t i = 0; i < record.count; ++i) {
            const auto at_owner = static_cast<int>(record.parts[i].file);
            Descriptor file(static_cast<int>(syscall(kPidfdGetfd, owner.get(), at_owner, 0)));
            if (file.get() < 0) {
                return failed("pidfd_getfd");
            }
            parts.push_back({std::move(file), record.parts[i].bytes});
        }
    } catch (const std::bad_alloc&) {
        return {ENOMEM, "pidfd_getfd", "out of host memory"};
    }
    std::uint64_t number = 0;
    if (!read_memory(process, wanted.record, &number, sizeof number) || !is_valid(number)) {
        return kOver;
    }
    return {};
}

}  // namespace awaken::gpu
