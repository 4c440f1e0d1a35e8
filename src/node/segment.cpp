// SPDX-License-Identifier: Apache-2.0
#include "node/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fnv1a.h"
#include "base/round_up.h"
#include "node/member_blocks.h"

namespace awaken::node {

namespace {

constexpr std::uint64_t kMagic = 0x617761'6b656e'0006;  // "awaken", version of the layout
/// A job takes at most this part of what others leave of the file system. MPIs keep their own shared memory there, and
/// touch it later than they ask for it: if none is left by then, a signal ends them.
constexpr std::uint64_t kPartOfFileSystem = 4;
constexpr std::uint64_t kEndOfFiles = std::numeric_limits<std::int64_t>::max();

/// The kernel's page size, which is the same in all processes of a node: 4 KiB, or 64 KiB on some machines.
std::size_t page_bytes() noexcept {
    static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

/// Hexadecimal digits after the prefix.
constexpr std::size_t kNameDigits = 32;

std::string prefix_of_names() {
    return "awaken-" + std::to_string(geteuid()) + "-";
}

/// 0 where that cannot be found out.
std::uint64_t own_pid_namespace() {
    struct stat status{};
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

/// Whether the process of an entry is known to have ended. One of another pid namespace cannot be seen from here.
bool has_died(const ProcessEntry& entry, const std::uint64_t here) {
    return here != 0 && entry.pid_namespace == here && has_ended(entry.pid, entry.start_time);
}

class Descriptor {
  public:
    explicit Descriptor(const int value) noexcept : _value(value) {}
    ~Descriptor() {
        if (_value >= 0) {
            close(_value);
        }
    }
    Descriptor(Descriptor&& other) noexcept : _value(std::exchange(other._value, -1)) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    [[nodiscard]] int get() const noexcept { return _value; }
    [[nodiscard]] bool valid() const noexcept { return _value >= 0; }
    [[nodiscard]] int release() noexcept { return std::exchange(_value, -1); }

  private:
    int _value;
};

/// The result of open(), but never a standard stream's number: a program that was started without a standard stream
/// prints into whatever file has its number.
Descriptor opened(const int value) noexcept {
    Descriptor file(value);
    if (file.get() < 0 || file.get() > STDERR_FILENO) {
        return file;
    }
    return Descriptor(fcntl(file.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

std::string reason(const std::string& what, const int error = errno) {
    return what + " (" + std::strerror(error) + ")";
}

void give_back(const int file, const std::uint64_t offset, const std::uint64_t bytes) noexcept {
    while (bytes != 0 && fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                                   static_cast<off_t>(bytes)) != 0) {
        if (errno != EINTR) {
            return;  // a file system that cannot do this keeps the memory until the file goes
        }
    }
}

/// For file systems without fallocate: every file system backs bytes that were written.
int write_zeros(const int file, std::uint64_t offset, std::uint64_t bytes) noexcept {
    static constexpr std::array<std::byte, std::size_t{64} << 10> kZeros{};
    while (bytes != 0) {
        const ssize_t written =
            pwrite(file, kZeros.data(), std::min<std::uint64_t>(bytes, kZeros.size()), static_cast<off_t>(offset));
        if (written < 0 && errno != EINTR) {
            return errno;
        }
        if (written > 0) {
            offset += static_cast<std::uint64_t>(written);
            bytes -= static_cast<std::uint64_t>(written);
        }
    }
    return 0;
}

/// Memory that the machine can still give without taking it from another process; the largest number when the machine
/// does not say.
std::uint64_t available_memory() noexcept {
    const Descriptor file(open("/proc/meminfo", O_RDONLY | O_CLOEXEC));
    std::array<char, 512> beginning{};  // MemAvailable is on the third line
    if (read(file.get(), beginning.data(), beginning.size() - 1) > 0) {
        constexpr const char* kName = "MemAvailable:";
        if (const char* const line = std::strstr(beginning.data(), kName); line != nullptr) {
            return std::strtoull(line + std::strlen(kName), nullptr, 10) << 10;
        }
    }
    return std::numeric_limits<std::uint64_t>::max();
}

/// Makes the file system back a part of the file that no process uses yet and that is zero; the file grows as needed.
/// 0, or the error number that says why not; then the part takes no memory.
int set_aside(const int file, const std::uint64_t offset, const std::uint64_t bytes) noexcept {
    struct rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && offset + bytes > limit.rlim_cur) {
        return EFBIG;  // the kernel would answer with a signal, which ends the program
    }
    // Too large a request is not begun: until the kernel noticed, it would take memory away from other processes.
    struct statvfs room{};
    if (fstatvfs(file, &room) == 0 && room.f_blocks != 0 && bytes / room.f_frsize > room.f_bavail) {
        return ENOSPC;
    }
    // File systems in memory may often grow to more than the machine has left. The kernel then does not refuse either,
    // but ends processes until there is room. Small requests are not worth the question.
    constexpr std::uint64_t kLarge = std::uint64_t{16} << 20;
    if (bytes >= kLarge) {
        const std::uint64_t available = available_memory();
        if (bytes > available - available / 8) {
            return ENOMEM;
        }
    }
    // A signal ends fallocate and undoes what it has done so far. Under a profiler's timer a single call for all of the
    // memory might never come to an end.
    constexpr std::uint64_t kPiece = std::uint64_t{2} << 20;
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t piece = std::min(bytes - done, kPiece);
        int error = fallocate(file, 0, static_cast<off_t>(offset + done), static_cast<off_t>(piece)) == 0 ? 0 : errno;
        if (error == EOPNOTSUPP || error == ENOSYS) {
            error = write_zeros(file, offset + done, piece);
        }
        if (error == EINTR) {
            continue;
        }
        if (error != 0) {
            give_back(file, offset, done + piece);
            return error;
        }
        done += piece;
    }
    return 0;
}

/// Whether others still have the larger part of the file system when the job, which has `taken` bytes, takes `bytes`
/// more.
bool leaves_enough(const int file, const std::uint64_t taken, const std::uint64_t bytes) noexcept {
    struct statvfs room{};
    if (fstatvfs(file, &room) != 0 || room.f_blocks == 0) {
        return true;  // the file system has no limit of its own
    }
    const std::uint64_t free = std::uint64_t{room.f_bavail} * room.f_frsize;
    return taken + bytes <= (free + taken) / kPartOfFileSystem;
}

void* map_shared(const int file, const std::uint64_t offset, const std::size_t bytes) noexcept {
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(offset));
    return address != MAP_FAILED ? address : nullptr;
}

/// What all processes of a segment have to agree on.
struct Shape {
    std::uint64_t magic = kMagic;
    std::uint64_t bytes = 0;
    std::uint64_t area_bytes = 0;
    std::uint64_t capacity = 0;  ///< processes
    std::uint64_t key_hash = 0;
    std::uint64_t key_hash2 = 0;

    [[nodiscard]] bool operator==(const Shape&) const = default;
};

}  // namespace

struct Segment::Header {
    Shape shape;
    std::array<std::uint64_t, 2> secret;
    std::atomic<std::uint32_t> joined;
    /// How many had joined when the door was first closed; 0 before. From then on all see the same members.
    std::atomic<std::uint32_t> settled;
    /// The answer of agree_on_ranks(): one process finds it, and all follow it.
    enum Verdict : std::uint32_t { open, sound, unsound };
    std::atomic<std::uint32_t> verdict;
    std::atomic<std::uint64_t> token;
    /// Where the next memory beside the areas is taken. It only grows, except after a request that failed. At a
    /// terabyte a second it lasts for three months.
    std::atomic<std::uint64_t> next;
    std::atomic<std::uint64_t> taken;  ///< bytes beside the areas that the job has

    static constexpr std::size_t entries_offset() { return round_up(sizeof(Header), alignof(ProcessEntry)); }
    static std::size_t areas_offset(const std::uint64_t capacity) {
        return round_up(entries_offset() + capacity * sizeof(ProcessEntry), page_bytes());
    }
};

/// Whether no process of the segment lives, as when its processes were killed while others were still to come. A
/// process that cannot be seen from here counts as alive.
bool Segment::is_deserted(const void* const base) {
    const auto& header = *static_cast<const Header*>(base);
    const auto* const entries =
        reinterpret_cast<const ProcessEntry*>(static_cast<const std::byte*>(base) + Header::entries_offset());
    const std::uint64_t count =
        std::min<std::uint64_t>(header.joined.load(std::memory_order_acquire), header.shape.capacity);
    for (std::uint64_t index = 0; index < count; ++index) {
        const std::uint32_t state = entries[index].state.load(std::memory_order_acquire);
        if (state == ProcessEntry::absent ||
            (state == ProcessEntry::present && !has_died(entries[index], own_pid_namespace()))) {
            return false;
        }
    }
    return count != 0;
}

static_assert(std::atomic<std::uint32_t>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free,
              "shared between processes");

Segment::Segment(std::string path, const int file, void* const base, const std::size_t bytes)
    : _path(std::move(path)),
      _file(file),
      _base(static_cast<std::byte*>(base)),
      _bytes(bytes),
      _kept_blocks(std::make_unique<KeptBlocks>()) {
    struct stat status{};
    if (fstat(file, &status) == 0) {
        _file_system = status.st_dev;
        _file_number = status.st_ino;
    }
}

Segment::~Segment() {
    // A child process that a member has forked is no member.
    if (_index >= 0 && process(_index).pid == getpid()) {
        const_cast<ProcessEntry&>(process(_index)).state.store(ProcessEntry::gone, std::memory_order_release);
        close_door();
    }
    munmap(_base, _bytes);
    if (file_bytes()) {
        close(_file);
    }
}

void Segment::close_door() noexcept {
    if (!_path.empty()) {
        unlink(_path.c_str());  // another process may have removed it
        _path.clear();
        auto& header = *reinterpret_cast<Header*>(_base);
        std::uint32_t nobody = 0;
        header.settled.compare_exchange_strong(nobody, header.joined.load(std::memory_order_acquire),
                                               std::memory_order_acq_rel);
    }
}

bool Segment::agree_on_ranks(const int rank, const int ranks, const bool reproducible,
                             const std::chrono::milliseconds patience, const std::function<void()>& meanwhile) {
    auto& header = *reinterpret_cast<Header*>(_base);
    auto& own = const_cast<ProcessEntry&>(process(_index));
    own.world_rank.store(rank, std::memory_order_relaxed);
    own.reproducible.store(reproducible, std::memory_order_relaxed);
    own.said.store(static_cast<std::uint64_t>(ranks) << 32 | static_cast<std::uint32_t>(rank + 1),
                   std::memory_order_release);
    /// What is known now, and whether to wait for other processes.
    const auto look = [&] {
        std::vector<bool> taken(static_cast<std::size_t>(ranks));
        for (int index = 0; index < processes(); ++index) {
            const std::uint64_t said = process(index).said.load(std::memory_order_acquire);
            if (said == 0) {
                return process(index).state.load(std::memory_order_acquire) != ProcessEntry::absent && !alive(index)
                           ? Header::unsound
                           : Header::open;
            }
            const std::uint64_t number = (said & 0xffffffffU) - 1;
            if (said >> 32 != static_cast<std::uint64_t>(ranks) || number >= taken.size() || taken[number]) {
                return Header::unsound;
            }
            taken[number] = true;
        }
        return Header::sound;
    };
    const auto deadline = std::chrono::steady_clock::now() + patience;
    for (;;) {
        const std::uint32_t known = header.verdict.load(std::memory_order_acquire);
        if (known != Header::open) {
            return known == Header::sound;
        }
        const Header::Verdict seen = look();
        const bool late = seen == Header::open && std::chrono::steady_clock::now() > deadline;
        if (seen != Header::open || late) {
            std::uint32_t open = Header::open;
            header.verdict.compare_exchange_strong(open, late ? Header::unsound : seen, std::memory_order_acq_rel);
            continue;
        }
        meanwhile();
        sched_yield();
    }
}

int Segment::processes() const noexcept {
    const auto& header = *reinterpret_cast<const Header*>(_base);
    const std::uint32_t settled = header.settled.load(std::memory_order_acquire);
    const std::uint32_t joined = settled != 0 ? settled : header.joined.load(std::memory_order_acquire);
    return static_cast<int>(std::min<std::uint64_t>(joined, _capacity));
}

const ProcessEntry& Segment::process(const int index) const noexcept {
    return reinterpret_cast<const ProcessEntry*>(_base + Header::entries_offset())[index];
}

int Segment::find(const int world_rank) const noexcept {
    const int count = processes();
    for (int index = 0; index < count; ++index) {
        const ProcessEntry& entry = process(index);
        if (entry.state.load(std::memory_order_acquire) == ProcessEntry::present && entry.world_rank == world_rank) {
            return index;
        }
    }
    return -1;
}

bool Segment::alive(const int index) const {
    const ProcessEntry& entry = process(index);
    return entry.state.load(std::memory_order_acquire) == ProcessEntry::present &&
           !has_died(entry, process(_index).pid_namespace);
}

std::byte* Segment::area(const int index) const noexcept {
    return _base + _areas_offset + static_cast<std::size_t>(index) * _area_bytes;
}

void Segment::remember() noexcept {
    const auto& header = *reinterpret_cast<const Header*>(_base);
    _capacity = header.shape.capacity;
    _area_bytes = header.shape.area_bytes;
    _areas_offset = Header::areas_offset(_capacity);
    _secret = header.secret;
}

std::optional<std::uint64_t> Segment::file_bytes() const noexcept {
    // A program may close descriptors that it does not know. Then the number is another file's, and that file must
    // neither grow nor lose anything.
    struct stat status{};
    if (fstat(_file, &status) != 0 || status.st_dev != _file_system || status.st_ino != _file_number) {
        return std::nullopt;
    }
    return static_cast<std::uint64_t>(status.st_size);
}

bool Segment::may_be_allocated(const std::uint64_t offset, const std::size_t bytes) const noexcept {
    const std::optional<std::uint64_t> end = file_bytes();
    return end && bytes != 0 && offset % page_bytes() == 0 && offset >= _bytes && offset < *end &&
           bytes <= *end - offset;
}

std::optional<std::uint64_t> Segment::allocate(const std::size_t bytes) noexcept {
    if (bytes == 0 || bytes > kEndOfFiles - page_bytes() || !file_bytes()) {
        return std::nullopt;
    }
    auto& header = *reinterpret_cast<Header*>(_base);
    std::atomic<std::uint64_t>& next = header.next;
    const std::uint64_t length = round_up(bytes, page_bytes());
    // Relaxed: the exchange alone makes the room this process's own. Others get its offset by a word of its own order.
    std::uint64_t offset = next.load(std::memory_order_relaxed);
    do {
        // Whatever another process has written to `next`, the areas and other files are not touched.
        if (offset % page_bytes() != 0 || offset < _bytes || offset > kEndOfFiles - length) {
            return std::nullopt;
        }
    } while (!next.compare_exchange_weak(offset, offset + length, std::memory_order_relaxed));
    // Added first, so that each of several simultaneous requests sees those before it.
    const std::uint64_t before = header.taken.fetch_add(length, std::memory_order_relaxed);
    if (!leaves_enough(_file, before, length) || set_aside(_file, offset, length) != 0) {
        give_up(length);
        // Requests that are far too large must not use up the offsets.
        std::uint64_t end = offset + length;
        next.compare_exchange_strong(end, offset, std::memory_order_relaxed);
        return std::nullopt;
    }
    return offset;
}

void Segment::release(const std::uint64_t offset, const std::size_t bytes) noexcept {
    if (may_be_allocated(offset, bytes)) {
        give_back(_file, offset, round_up(bytes, page_bytes()));
        give_up(round_up(bytes, page_bytes()));
    }
}

void Segment::give_up(const std::uint64_t bytes) noexcept {
    auto& taken = reinterpret_cast<Header*>(_base)->taken;
    std::uint64_t before = taken.load(std::memory_order_relaxed);
    while (!taken.compare_exchange_weak(before, before - std::min(before, bytes), std::memory_order_relaxed)) {
    }
}

std::byte* Segment::map(const std::uint64_t offset, const std::size_t bytes) noexcept {
    return may_be_allocated(offset, bytes) ? static_cast<std::byte*>(map_shared(_file, offset, bytes)) : nullptr;
}

void Segment::unmap(std::byte* const address, const std::size_t bytes) noexcept {
    if (address != nullptr) {
        munmap(address, bytes);
    }
}

std::atomic<std::uint64_t>& Segment::token() const noexcept {
    return reinterpret_cast<Header*>(_base)->token;
}

namespace {

/// Makes a file without a name, of the right size, fully backed, with mode 0600.
Descriptor make_unnamed(const std::string& folder, const std::size_t bytes, std::string& why_not) {
    Descriptor file = opened(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!file.valid()) {
        why_not = reason("no shared memory can be made in " + folder);
        return file;
    }
    // A sparse file works only until the file system is full: a process that touches a page that cannot be had gets a
    // signal.
    if (const int error = set_aside(file.get(), 0, bytes); error != 0) {
        why_not = reason("no shared memory of " + std::to_string(bytes) + " bytes can be made in " + folder, error);
        return Descriptor(-1);
    }
    return file;
}

/// Whether the opened file belongs to this user, and no other user may use it.
bool is_own(const int file) {
    struct stat status{};
    return fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
           (status.st_mode & 0077) == 0;
}

}  // namespace

bool Segment::enter(const Job& job, std::string& why_not) {
    auto& header = *reinterpret_cast<Header*>(_base);
    const std::uint32_t index = header.joined.fetch_add(1, std::memory_order_acq_rel);
    if (index >= _capacity) {
        why_not = "more than " + std::to_string(_capacity) + " processes call themselves ranks of this job";
        return false;
    }
    _index = static_cast<int>(index);
    auto& entry = const_cast<ProcessEntry&>(process(_index));
    entry.pid = getpid();
    entry.start_time = start_time_of(entry.pid);
    entry.pid_namespace = own_pid_namespace();
    entry.world_rank.store(job.world_rank, std::memory_order_relaxed);
    entry.state.store(ProcessEntry::present, std::memory_order_release);
    if (index + 1 == _capacity) {
        close_door();
    }
    return true;
}

/// A job whose processes all end while others are still to come, as when one of them never calls MPI_Init, leaves its
/// segment's name behind, and later jobs have other names. The process that makes a segment removes such names.
void Segment::remove_left_overs(const std::string& folder) {
    const std::unique_ptr<DIR, int (*)(DIR*)> names(opendir(folder.c_str()), &closedir);
    const std::string prefix = prefix_of_names();
    while (const dirent* const entry = names != nullptr ? readdir(names.get()) : nullptr) {
        const std::string_view name = entry->d_name;
        if (name.size() != prefix.size() + kNameDigits || name.substr(0, prefix.size()) != prefix ||
            name.find_first_not_of("0123456789abcdef", prefix.size()) != name.npos) {
            continue;
        }
        const std::string path = folder + "/" + entry->d_name;
        const Descriptor file = opened(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        struct stat status{};
        if (!file.valid() || !is_own(file.get()) || fstat(file.get(), &status) != 0 ||
            static_cast<std::uint64_t>(status.st_size) < sizeof(Header)) {
            continue;
        }
        const auto bytes = static_cast<std::uint64_t>(status.st_size);
        void* const base = map_shared(file.get(), 0, bytes);
        if (base == nullptr) {
            continue;
        }
        const Shape& shape = static_cast<const Header*>(base)->shape;
        // Another version of Awaken keeps its processes elsewhere.
        if (shape.magic == kMagic && shape.capacity <= bytes / sizeof(ProcessEntry) &&
            Header::areas_offset(shape.capacity) <= bytes && is_deserted(base)) {
            unlink(path.c_str());
        }
        munmap(base, bytes);
    }
}

std::unique_ptr<Segment> Segment::join(const Job& job, const std::size_t area_bytes, std::string& why_not,
                                       const std::string& folder) {
    if (!job.known()) {
        why_not = !job.why_unknown.empty() ? job.why_unknown
                  : job.launcher.empty()   ? "the launcher does not say which ranks of this node belong together"
                                           : "the launcher does not say how many ranks are on this node";
        return nullptr;
    }
    Shape shape;
    shape.area_bytes = round_up(area_bytes, page_bytes());
    shape.capacity = static_cast<std::uint64_t>(job.local_ranks);
    shape.key_hash = Fnv1a().add(job.key).value();
    shape.key_hash2 = Fnv1a(shape.key_hash ^ kMagic).add(job.key).value();
    shape.bytes = Header::areas_offset(shape.capacity) + shape.capacity * shape.area_bytes;

    char name[kNameDigits + 1];
    std::snprintf(name, sizeof name, "%016llx%016llx", static_cast<unsigned long long>(shape.key_hash),
                  static_cast<unsigned long long>(shape.key_hash2));
    const std::string path = folder + "/" + prefix_of_names() + name;

    // The file appears under its name complete, or not at all. A process that loses the race uses the winner's file.
    constexpr int kAttempts = 16;  // each needs another process to come and go in between
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        Descriptor found = opened(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
        if (!found.valid() && errno != ENOENT) {  // NOLINT(clang-analyzer-unix.Errno): open() failed
            why_not = reason("the shared memory of this job cannot be opened at " + path);
            return nullptr;
        }
        if (found.valid()) {
            struct stat status{};
            if (!is_own(found.get()) || fstat(found.get(), &status) != 0 ||
                static_cast<std::uint64_t>(status.st_size) < sizeof(Header)) {
                why_not = path + " belongs to somebody else";
                return nullptr;
            }
            // The file may have grown since, by memory beside the areas.
            const auto bytes = std::min(static_cast<std::uint64_t>(status.st_size), shape.bytes);
            void* const base = map_shared(found.get(), 0, bytes);
            if (base == nullptr) {
                why_not = reason("the shared memory of this job cannot be mapped");
                return nullptr;
            }
            std::unique_ptr<Segment> segment(new Segment(path, found.release(), base, bytes));
            if (static_cast<const Header*>(base)->shape != shape || shape.bytes > bytes) {
                why_not = "another rank of this job runs another version of Awaken";
                segment->_path.clear();  // this process must not remove it
                return nullptr;
            }
            if (is_deserted(base)) {
                segment->close_door();
                continue;
            }
            segment->remember();
            if (!segment->enter(job, why_not)) {
                segment->_path.clear();
                return nullptr;
            }
            return segment;
        }

        remove_left_overs(folder);
        Descriptor made = make_unnamed(folder, shape.bytes, why_not);
        if (!made.valid()) {
            return nullptr;
        }
        void* const base = map_shared(made.get(), 0, shape.bytes);
        if (base == nullptr) {
            why_not = reason("the shared memory of this job cannot be mapped");
            return nullptr;
        }
        std::unique_ptr<Segment> segment(new Segment({}, made.release(), base, shape.bytes));
        auto* const header = new (base) Header;
        header->shape = shape;
        header->joined.store(0, std::memory_order_relaxed);
        header->next.store(shape.bytes, std::memory_order_relaxed);
        header->taken.store(0, std::memory_order_relaxed);
        if (getrandom(header->secret.data(), sizeof header->secret, 0) != static_cast<ssize_t>(sizeof header->secret)) {
            why_not = reason("no random numbers");
            return nullptr;
        }
        segment->remember();
        // This process enters the segment before the segment has a name. So no other process ever sees one without a
        // live process in it.
        segment->_path = path;
        const bool is_alone = shape.capacity == 1;
        if (is_alone) {
            segment->_path.clear();  // no other process will come
        }
        if (!segment->enter(job, why_not)) {
            return nullptr;
        }
        if (is_alone) {
            return segment;
        }
        const std::string own = "/proc/self/fd/" + std::to_string(segment->_file);
        if (linkat(AT_FDCWD, own.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) {
            return segment;
        }
        segment->_path.clear();
        if (errno != EEXIST) {
            why_not = reason("the shared memory of this job cannot be named " + path);
            return nullptr;
        }
    }
    why_not = "ranks of this job keep coming and going";
    return nullptr;
}

}  // namespace awaken::node
