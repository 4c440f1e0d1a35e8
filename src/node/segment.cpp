#include "node/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

namespace awaken::node {

namespace {

constexpr std::uint64_t kMagic = 0x617761'6b656e'0001;  // "awaken", version of the layout
constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(const std::size_t value, const std::size_t to) {
    return (value + to - 1) / to * to;
}

/// FNV-1a. Names have to differ, not to resist anybody.
std::uint64_t hash_of(const std::string_view text, std::uint64_t state = 0xcbf29ce484222325u) {
    for (const char c : text) {
        state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
    return state;
}

std::string prefix_of_names() {
    return "awaken-" + std::to_string(geteuid()) + "-";
}

std::uint64_t own_pid_namespace() {
    struct stat status{};
    return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
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

  private:
    int _value;
};

std::string reason(const std::string& what) {
    return what + " (" + std::strerror(errno) + ")";
}

}  // namespace

struct Segment::Header {
    std::uint64_t magic;
    std::uint64_t bytes;
    std::uint64_t area_bytes;
    std::uint64_t capacity;  ///< processes
    std::uint64_t key_hash;
    std::uint64_t key_hash2;
    std::array<std::uint64_t, 2> secret;
    std::atomic<std::uint32_t> joined;

    static constexpr std::size_t entries_offset() { return round_up(sizeof(Header), alignof(ProcessEntry)); }
    [[nodiscard]] std::size_t areas_offset() const {
        return round_up(entries_offset() + capacity * sizeof(ProcessEntry), kPage);
    }
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "shared between processes");

Segment::Segment(std::string path, void* const base, const std::size_t bytes) noexcept
    : _path(std::move(path)), _base(static_cast<std::byte*>(base)), _bytes(bytes) {}

Segment::~Segment() {
    if (_index >= 0) {
        const_cast<ProcessEntry&>(process(_index)).state.store(ProcessEntry::gone, std::memory_order_release);
        close_door();
    }
    munmap(_base, _bytes);
}

void Segment::close_door() noexcept {
    if (!_path.empty()) {
        unlink(_path.c_str());  // somebody else may have done it
        _path.clear();
    }
}

int Segment::processes() const noexcept {
    const auto& header = *reinterpret_cast<const Header*>(_base);
    return static_cast<int>(std::min<std::uint64_t>(header.joined.load(std::memory_order_acquire), header.capacity));
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
    if (entry.state.load(std::memory_order_acquire) != ProcessEntry::present) {
        return false;
    }
    return entry.pid_namespace != process(_index).pid_namespace || start_time_of(entry.pid) == entry.start_time;
}

std::byte* Segment::area(const int index) const noexcept {
    const auto& header = *reinterpret_cast<const Header*>(_base);
    return _base + header.areas_offset() + static_cast<std::size_t>(index) * header.area_bytes;
}

std::size_t Segment::area_bytes() const noexcept {
    return reinterpret_cast<const Header*>(_base)->area_bytes;
}

const std::array<std::uint64_t, 2>& Segment::secret() const noexcept {
    return reinterpret_cast<const Header*>(_base)->secret;
}

namespace {

/// A file without a name yet, of the right size, 0600.
Descriptor make_unnamed(const std::string& folder, const std::size_t bytes, std::string& why_not) {
    Descriptor file(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (!file.valid()) {
        why_not = reason("no shared memory can be made in " + folder);
        return file;
    }
    // Sparse: only what is touched takes memory.
    if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
        why_not = reason("no shared memory of " + std::to_string(bytes) + " bytes can be made in " + folder);
        return Descriptor(-1);
    }
    return file;
}

/// Whether what was opened is ours alone.
bool is_own(const int file) {
    struct stat status{};
    return fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
           (status.st_mode & 0077) == 0;
}

void* map(const int file, const std::size_t bytes) {
    void* const base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return base != MAP_FAILED ? base : nullptr;
}

}  // namespace

bool Segment::enter(const Job& job, std::string& why_not) {
    auto& header = *reinterpret_cast<Header*>(_base);
    const std::uint32_t index = header.joined.fetch_add(1, std::memory_order_acq_rel);
    if (index >= header.capacity) {
        why_not = "more than " + std::to_string(header.capacity) + " processes call themselves ranks of this job";
        return false;
    }
    _index = static_cast<int>(index);
    auto& entry = const_cast<ProcessEntry&>(process(_index));
    entry.pid = getpid();
    entry.start_time = start_time_of(entry.pid);
    entry.pid_namespace = own_pid_namespace();
    entry.world_rank = job.world_rank;
    entry.state.store(ProcessEntry::present, std::memory_order_release);
    if (index + 1 == header.capacity) {
        close_door();
    }
    return true;
}

std::unique_ptr<Segment> Segment::join(const Job& job, const std::size_t area_bytes, std::string& why_not,
                                       const std::string& folder) {
    if (!job.known()) {
        why_not = job.launcher.empty() ? "the launcher does not say which ranks of this node belong together"
                                       : "the launcher does not say how many ranks are on this node";
        return nullptr;
    }
    const auto capacity = static_cast<std::size_t>(job.local_ranks);
    Header layout{};
    layout.magic = kMagic;
    layout.area_bytes = round_up(area_bytes, kPage);
    layout.capacity = capacity;
    layout.key_hash = hash_of(job.key);
    layout.key_hash2 = hash_of(job.key, layout.key_hash ^ kMagic);
    layout.bytes = layout.areas_offset() + capacity * layout.area_bytes;

    char name[64];
    std::snprintf(name, sizeof name, "%016llx%016llx", static_cast<unsigned long long>(layout.key_hash),
                  static_cast<unsigned long long>(layout.key_hash2));
    const std::string path = folder + "/" + prefix_of_names() + name;

    // The file appears under its name complete, or not at all; whoever loses the race takes the winner's.
    constexpr int kAttempts = 16;  // each needs another process to come and go in between
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        const Descriptor found(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
        if (!found.valid() && errno != ENOENT) {
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
            const auto bytes = static_cast<std::size_t>(status.st_size);
            void* const base = map(found.get(), bytes);
            if (base == nullptr) {
                why_not = reason("the shared memory of this job cannot be mapped");
                return nullptr;
            }
            std::unique_ptr<Segment> segment(new Segment(path, base, bytes));
            const auto& header = *reinterpret_cast<const Header*>(base);
            if (header.magic != layout.magic || header.bytes != layout.bytes || header.bytes > bytes ||
                header.area_bytes != layout.area_bytes || header.capacity != layout.capacity ||
                header.key_hash2 != layout.key_hash2) {
                why_not = "another rank of this job runs another version of Awaken";
                segment->_path.clear();  // not ours to remove
                return nullptr;
            }
            // Left by a job of the same name that ended while it was joining: nobody in it lives.
            const int count = segment->processes();
            bool any_alive = count == 0;
            for (int index = 0; index < count && !any_alive; ++index) {
                const ProcessEntry& entry = segment->process(index);
                any_alive =
                    entry.state.load(std::memory_order_acquire) == ProcessEntry::absent ||
                    (entry.state.load(std::memory_order_acquire) == ProcessEntry::present &&
                     (entry.pid_namespace != own_pid_namespace() || start_time_of(entry.pid) == entry.start_time));
            }
            if (!any_alive) {
                segment->close_door();
                continue;
            }
            if (!segment->enter(job, why_not)) {
                segment->_path.clear();
                return nullptr;
            }
            return segment;
        }

        const Descriptor made = make_unnamed(folder, layout.bytes, why_not);
        if (!made.valid()) {
            return nullptr;
        }
        void* const base = map(made.get(), layout.bytes);
        if (base == nullptr) {
            why_not = reason("the shared memory of this job cannot be mapped");
            return nullptr;
        }
        std::unique_ptr<Segment> segment(new Segment({}, base, layout.bytes));
        auto* const header = new (base) Header;
        header->magic = layout.magic;
        header->bytes = layout.bytes;
        header->area_bytes = layout.area_bytes;
        header->capacity = layout.capacity;
        header->key_hash = layout.key_hash;
        header->key_hash2 = layout.key_hash2;
        header->joined.store(0, std::memory_order_relaxed);
        if (getrandom(header->secret.data(), sizeof header->secret, 0) != static_cast<ssize_t>(sizeof header->secret)) {
            why_not = reason("no random numbers");
            return nullptr;
        }
        // In the segment before it has a name: nobody ever sees one with no live process in it.
        segment->_path = path;
        const std::size_t only = header->capacity;
        if (only == 1) {
            segment->_path.clear();  // nobody else will come
        }
        if (!segment->enter(job, why_not)) {
            return nullptr;
        }
        if (only == 1) {
            return segment;
        }
        const std::string own = "/proc/self/fd/" + std::to_string(made.get());
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
