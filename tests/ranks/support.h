// SPDX-License-Identifier: Apache-2.0
// The frame of the rank tests: cases, buffers of every kind, and the comparison with host buffers.
//
// The truth of every test is MPI itself. A case is written once, as a function that makes MPI calls on buffers which it
// asks the Run for, and notes what the calls answer. The frame executes it first with host buffers only (the
// reference), and then once per mix of buffer kinds; all notes and all bytes of all buffers, whether MPI was to write
// them or not, must be the reference's. Guard bytes around each buffer must be untouched.
//
// Programs print `ok NAME` or `FAIL NAME: why` per case; the exit status is the number of failed cases (at most 100).
#pragma once

#include <mpi.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu_memory.h"

// What the MPI underneath offers. The wheels' Open MPI 5 has much of MPI 4 while it says 3.1.
#if MPI_VERSION >= 4
#define RANKS_HAVE_LARGE_COUNT 1
#else
#define RANKS_HAVE_LARGE_COUNT 0
#endif
#if MPI_VERSION >= 4 || (defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5)
#define RANKS_HAVE_MPI4 1
#else
#define RANKS_HAVE_MPI4 0
#endif

namespace ranks {

/// A bijective mixer of 64 bits (the finaliser of SplitMix64): patterns and choices that every rank can compute.
inline std::uint64_t mix_bits(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

inline std::uint64_t combine(std::uint64_t a, std::uint64_t b) {
    return mix_bits(a ^ mix_bits(b));
}

inline std::uint64_t hash_text(const std::string& text) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (const char c : text) {
        hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
    return hash;
}

inline std::uint64_t hash_bytes(const std::byte* bytes, std::size_t size, std::uint64_t seed = 0) {
    std::uint64_t hash = mix_bits(seed ^ size);
    std::size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        std::uint64_t word;
        std::memcpy(&word, bytes + at, 8);
        // One multiplication a word, each step of which can be undone: what differs in one word differs in the end.
        hash = (std::rotl(hash, 29) ^ word) * 0x9e3779b97f4a7c15u;
    }
    std::uint64_t rest = 0;
    if (at < size) {
        std::memcpy(&rest, bytes + at, size - at);
    }
    return combine(hash, rest);
}

inline void fill_random(std::byte* bytes, std::size_t size, std::uint64_t seed) {
    seed = mix_bits(seed);
    std::size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        const std::uint64_t word = mix_bits(seed + at);
        std::memcpy(bytes + at, &word, 8);
    }
    if (at < size) {
        const std::uint64_t word = mix_bits(seed + at);
        std::memcpy(bytes + at, &word, size - at);
    }
}

inline std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
inline std::string format(const char* pattern, ...) {
    va_list arguments;
    va_start(arguments, pattern);
    va_list again;
    va_copy(again, arguments);
    const int length = std::vsnprintf(nullptr, 0, pattern, arguments);
    va_end(arguments);
    std::string text(static_cast<std::size_t>(length), '\0');
    std::vsnprintf(text.data(), text.size() + 1, pattern, again);
    va_end(again);
    return text;
}

/// Tells the file SURVIVOR_FILE, if any, whole or not at all: launchers end a survivor of another rank's death at any
/// moment, and one that is gone already can pass on no output.
inline void write_survivor_file(const std::string& text) {
    const char* const name = std::getenv("SURVIVOR_FILE");
    if (name == nullptr) {
        return;
    }
    const std::string part = std::string(name) + ".part";
    std::FILE* const file = std::fopen(part.c_str(), "w");
    const bool is_written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
    if (file == nullptr || std::fclose(file) != 0 || !is_written || std::rename(part.c_str(), name) != 0) {
        throw std::runtime_error(std::string("cannot write ") + name);
    }
}

/// MPI's error class as a number, MPI_SUCCESS included.
inline int error_class(int code) {
    int result = 0;
    MPI_Error_class(code, &result);
    return result;
}

inline std::string error_text(int code) {
    char text[MPI_MAX_ERROR_STRING] = {};
    int length = 0;
    MPI_Error_string(code, text, &length);
    return text;
}

/// Bytes of T that carry no value. MPI may copy them along or not, so results are compared without them. A type with
/// padding says so by a member `static constexpr bool padding(std::size_t byte)`.
template <class T>
bool is_padding(std::size_t byte) {
    if constexpr (std::is_same_v<T, long double>) {
        return byte >= 10 && std::numeric_limits<T>::digits == 64;  // x87
    } else if constexpr (requires { T::padding(byte); }) {
        return T::padding(byte);
    } else {
        return false;
    }
}
template <class T>
bool has_padding() {
    for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
        if (is_padding<T>(byte)) {
            return true;
        }
    }
    return false;
}

/// Memory of one kind with guard bytes on both sides (in front only where the pointer need not start its allocation).
class Buffer {
  public:
    Buffer(Gpu& gpu, Kind kind, std::size_t size) : _gpu(&gpu), _kind(kind), _size(size) {
        _lead = kind == Kind::interior || kind == Kind::host ? kLead : 0;
        _base = static_cast<std::byte*>(gpu.allocate(kind, _lead + size + kTail));
        std::array<std::byte, std::max(kLead, kTail)> image;
        for (const auto& [begin, bytes] : guards()) {
            for (std::size_t at = 0; at < bytes; ++at) {
                image[at] = guard(begin + at);
            }
            store(_base + begin, image.data(), bytes);
        }
    }
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        std::swap(_gpu, other._gpu);
        std::swap(_kind, other._kind);
        std::swap(_size, other._size);
        std::swap(_lead, other._lead);
        std::swap(_base, other._base);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
        if (_base == nullptr) {
            return;
        }
        try {
            _gpu->free(_kind, _base);
        } catch (const std::exception& error) {
            std::fprintf(stderr, "freeing %s memory: %s\n", to_string(_kind), error.what());
        }
    }

    [[nodiscard]] std::byte* data() const { return _base + _lead; }
    [[nodiscard]] std::size_t size() const { return _size; }
    [[nodiscard]] Kind kind() const { return _kind; }
    [[nodiscard]] bool contains(const void* pointer) const {
        const auto* at = static_cast<const std::byte*>(pointer);
        return at >= data() && at < data() + std::max<std::size_t>(_size, 1);
    }

    void write(const void* source, std::size_t bytes, std::size_t offset = 0) { store(data() + offset, source, bytes); }
    void fill(std::uint64_t seed) {
        if (host_accessible(_kind)) {
            fill_random(data(), _size, seed);
            return;
        }
        const auto image = std::make_unique_for_overwrite<std::byte[]>(_size);
        fill_random(image.get(), _size, seed);
        store(data(), image.get(), _size);
    }
    [[nodiscard]] std::vector<std::byte> read() const { return read(0, _size); }
    [[nodiscard]] std::vector<std::byte> read(std::size_t offset, std::size_t bytes) const {
        std::vector<std::byte> image(bytes);
        load(image.data(), data() + offset, bytes);
        return image;
    }
    /// Empty when the guards are whole, else a description of the first damage.
    [[nodiscard]] std::string guard_damage() const {
        std::array<std::byte, std::max(kLead, kTail)> image;
        for (const auto& [begin, bytes] : guards()) {
            load(image.data(), _base + begin, bytes);
            for (std::size_t at = 0; at < bytes; ++at) {
                if (image[at] != guard(begin + at)) {
                    return format("byte %ld overwritten (the buffer has %zu)",
                                  static_cast<long>(begin + at) - static_cast<long>(_lead), _size);
                }
            }
        }
        return {};
    }

  private:
    static constexpr std::size_t kLead = 264;  // keeps 8-byte alignment, and no more than that
    static constexpr std::size_t kTail = 128;
    /// Where the guards begin, and their bytes. Only they are written and read: most of the tests' time is for data.
    [[nodiscard]] std::array<std::pair<std::size_t, std::size_t>, 2> guards() const {
        return {{{0, _lead}, {_lead + _size, kTail}}};
    }
    static std::byte guard(std::size_t at) { return static_cast<std::byte>(0xa5 ^ (at * 7)); }
    void store(void* destination, const void* source, std::size_t bytes) {
        if (host_accessible(_kind)) {
            if (bytes != 0) {
                std::memcpy(destination, source, bytes);
            }
        } else {
            _gpu->write(destination, source, bytes);
        }
    }
    void load(void* destination, const void* source, std::size_t bytes) const {
        if (host_accessible(_kind)) {
            if (bytes != 0) {
                std::memcpy(destination, source, bytes);
            }
        } else {
            _gpu->read(destination, source, bytes);
        }
    }

    Gpu* _gpu = nullptr;
    Kind _kind = Kind::host;
    std::size_t _size = 0;
    std::size_t _lead = 0;
    std::byte* _base = nullptr;
};

/// A rule that gives each buffer of each rank its kind.
struct Mix {
    std::string name;
    std::function<Kind(int rank, int index)> pick;
};

/// The mixes that every case runs with. The first few are the ones that find most; cases that move much data use those.
inline std::vector<Mix> all_mixes(std::uint64_t seed) {
    std::vector<Mix> mixes = {
        {"device", [](int, int) { return Kind::device; }},
        {"even-ranks-device", [](int rank, int) { return rank % 2 == 0 ? Kind::device : Kind::host; }},
        {"odd-ranks-interior", [](int rank, int) { return rank % 2 == 1 ? Kind::interior : Kind::host; }},
        {"managed", [](int, int) { return Kind::managed; }},
        {"pool", [](int, int) { return Kind::pool; }},
        {"mapped", [](int, int) { return Kind::mapped; }},
        {"even-buffers-device", [](int, int index) { return index % 2 == 0 ? Kind::device : Kind::host; }},
        {"odd-buffers-device", [](int, int index) { return index % 2 == 1 ? Kind::device : Kind::pinned; }},
    };
    for (std::uint64_t draw = 0; draw < 3; ++draw) {
        mixes.push_back({format("drawn-%d", static_cast<int>(draw)), [seed, draw](int rank, int index) {
                             const std::uint64_t bits = combine(combine(seed, draw), combine(rank, index));
                             return static_cast<Kind>(bits % kKinds);
                         }});
    }
    return mixes;
}

/// One execution of a case: its communicator, its buffers and what it noted.
class Run {
  public:
    Run(Gpu& gpu, MPI_Comm comm, const Mix* mix, std::uint64_t seed) : comm(comm), _gpu(gpu), _mix(mix), _seed(seed) {
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &size);
        if (mix != nullptr) {
            _current = gpu.current();
        }
    }

    MPI_Comm comm;  ///< a duplicate of MPI_COMM_WORLD with MPI_ERRORS_RETURN
    int rank = 0;
    int size = 0;

    [[nodiscard]] bool reference() const { return _mix == nullptr; }
    [[nodiscard]] Gpu& gpu() { return _gpu; }

    // ---- buffers ----------------------------------------------------------------------------------------------------
    /// `bytes` random bytes, the same in each execution, different for each rank and buffer.
    std::byte* input(std::size_t bytes) { return add(bytes, next_kind()); }
    /// As input(), of a kind that the case needs; host in the reference.
    std::byte* input_of(Kind kind, std::size_t bytes) {
        ++_next_index;
        return add(bytes, reference() || !_gpu.present() ? Kind::host : kind);
    }
    /// The kind that the mix has for the next buffer, for cases that cannot use every kind.
    Kind draw_kind() { return next_kind(); }
    /// Memory that is ordinary host memory in every execution.
    std::byte* host(std::size_t bytes) {
        ++_next_index;
        return add(bytes, Kind::host);
    }
    /// `count` small values of T, exact in every arithmetic type, so that sums do not depend on their order.
    template <class T>
    T* values(std::size_t count) {
        auto* pointer = reinterpret_cast<T*>(add(count * sizeof(T), next_kind()));
        std::vector<std::byte> image(count * sizeof(T));  // zeroed: padding is compared too
        Buffer& buffer = *_buffers.back().buffer;
        const std::uint64_t seed = combine(_seed, combine(rank, _buffers.size()));
        for (std::size_t at = 0; at < count; ++at) {
            const T value = static_cast<T>(combine(seed, at) % 3 + 1);
            std::memcpy(&image[at * sizeof(T)], &value, sizeof(T));
            for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
                if (is_padding<T>(byte)) {
                    image[at * sizeof(T) + byte] = std::byte{0};
                }
            }
        }
        buffer.write(image.data(), image.size());
        if (has_padding<T>()) {
            _buffers.back().padding = {sizeof(T), &is_padding<T>};
        }
        return pointer;
    }
    /// A buffer to receive into. Its bytes are random too: what MPI must not write is seen when it does.
    template <class T>
    T* output(std::size_t count) {
        return reinterpret_cast<T*>(input(count * sizeof(T)));
    }
    /// The content is not compared (it legally depends on timing); the guards are.
    std::byte* transient(std::size_t bytes) {
        std::byte* pointer = input(bytes);
        _buffers.back().compared = false;
        return pointer;
    }
    [[nodiscard]] Kind kind_of(const void* pointer) { return find(pointer).buffer->kind(); }
    /// Overwrites a part of a buffer with new random bytes, complete on return.
    void refill(void* pointer, std::size_t bytes, std::uint64_t seed) {
        std::vector<std::byte> image(bytes);
        fill_random(image.data(), bytes, combine(_seed, combine(rank, seed)));
        store(pointer, image.data(), bytes);
    }
    void store(void* pointer, const void* source, std::size_t bytes) {
        Slot& slot = find(pointer);
        slot.buffer->write(source, bytes,
                           static_cast<std::size_t>(static_cast<std::byte*>(pointer) - slot.buffer->data()));
    }
    [[nodiscard]] std::vector<std::byte> load(const void* pointer, std::size_t bytes) {
        const Slot& slot = find(pointer);
        return slot.buffer->read(static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - slot.buffer->data()),
                                 bytes);
    }
    /// Frees a buffer early. Its bytes at that time are compared.
    void release(void* pointer) {
        for (Slot& slot : _buffers) {
            if (!slot.buffer || slot.buffer->data() != pointer) {
                continue;
            }
            finish(slot);
            slot.buffer.reset();
            return;
        }
        throw std::logic_error("release of a pointer that is no buffer's start");
    }

    // ---- notes ------------------------------------------------------------------------------------------------------
    /// Anything that must be the same with host buffers. The order of notes does not matter.
    void note(const std::string& name, long long value) { _notes.push_back(name + " = " + std::to_string(value)); }
    void note(const std::string& name, const std::string& value) { _notes.push_back(name + " = " + value); }
    /// What a buffer holds now.
    void note_bytes(const std::string& name, const void* pointer, std::size_t bytes) {
        const std::vector<std::byte> image = load(pointer, bytes);
        _notes.push_back(format("%s holds %016llx", name.c_str(),
                                static_cast<unsigned long long>(hash_bytes(image.data(), image.size()))));
    }
    /// Source, tag, count and elements in `type`, cancelled.
    void note_status(const std::string& name, const MPI_Status& status, MPI_Datatype type) {
        int count = 0, elements = 0, cancelled = 0;
        MPI_Get_count(&status, type, &count);
        MPI_Get_elements(&status, type, &elements);
        MPI_Test_cancelled(&status, &cancelled);
        _notes.push_back(format("%s: source %d tag %d count %d elements %d cancelled %d", name.c_str(),
                                status.MPI_SOURCE, status.MPI_TAG, count, elements, cancelled));
    }
    /// An MPI call that must succeed, and must leave the current device as it is.
    void ok(int code, const char* call, int line) {
        if (code != MPI_SUCCESS) {
            problem(format("line %d: %s: %s", line, call, error_text(code).c_str()));
        }
        if (!reference() && _gpu.present() && _watch_current) {
            const std::string now = _gpu.current();
            if (now != _current) {
                problem(format("line %d: %s changed the current %s to %s", line, call, _current.c_str(), now.c_str()));
                _current = now;
            }
        }
    }
    /// A condition of the test itself.
    void expect(bool condition, const std::string& what) {
        if (!condition) {
            problem(what);
        }
    }
    void problem(const std::string& what) {
        if (_problems.size() < 20) {
            _problems.push_back(what);
        }
    }
    /// For cases that change the current device themselves, or call from several threads.
    void watch_current(bool watch) {
        _watch_current = watch;
        if (watch && !reference()) {
            _current = _gpu.current();
        }
    }

    // ---- the frame's part -------------------------------------------------------------------------------------------
    void finish() {
        for (Slot& slot : _buffers) {
            if (slot.buffer) {
                finish(slot);
            }
            slot.buffer.reset();
        }
        std::sort(_notes.begin(), _notes.end());
    }
    /// Appends the differences from `reference` to the problems.
    void compare(const Run& reference) {
        for (const std::string& note : _notes) {
            if (!std::binary_search(reference._notes.begin(), reference._notes.end(), note)) {
                problem("new: " + note);
            }
        }
        for (const std::string& note : reference._notes) {
            if (!std::binary_search(_notes.begin(), _notes.end(), note)) {
                problem("missing: " + note);
            }
        }
        if (_notes.size() != reference._notes.size()) {
            problem("another number of notes");
        }
        if (_buffers.size() != reference._buffers.size()) {
            problem("another number of buffers");
            return;
        }
        for (std::size_t index = 0; index < _buffers.size(); ++index) {
            const Slot& mine = _buffers[index];
            const Slot& theirs = reference._buffers[index];
            // By memcmp, as std::byte is compared one by one otherwise.
            const bool same =
                mine.image.size() == theirs.image.size() &&
                (mine.image.empty() || std::memcmp(mine.image.data(), theirs.image.data(), mine.image.size()) == 0);
            if (!mine.compared || same) {
                continue;
            }
            const std::size_t shorter = std::min(mine.image.size(), theirs.image.size());
            std::size_t first = shorter, wrong = 0;
            for (std::size_t at = shorter; at-- > 0;) {
                if (mine.image[at] != theirs.image[at]) {
                    first = at;
                    ++wrong;
                }
            }
            problem(format("buffer %zu (%s, %zu bytes): %zu bytes differ, first at %zu: %02x, with host buffers %02x",
                           index, to_string(mine.kind), mine.image.size(), wrong, first,
                           first < shorter ? static_cast<unsigned>(mine.image[first]) : 0u,
                           first < shorter ? static_cast<unsigned>(theirs.image[first]) : 0u));
        }
    }
    [[nodiscard]] const std::vector<std::string>& problems() const { return _problems; }

  private:
    struct Slot {
        std::unique_ptr<Buffer> buffer;
        Kind kind = Kind::host;
        bool compared = true;
        std::pair<std::size_t, bool (*)(std::size_t)> padding = {1, nullptr};
        std::vector<std::byte> image;
    };

    Kind next_kind() {
        const int index = _next_index++;
        return _mix == nullptr || !_gpu.present() ? Kind::host : _mix->pick(rank, index);
    }
    std::byte* add(std::size_t bytes, Kind kind) {
        Slot slot;
        slot.kind = kind;
        slot.buffer = std::make_unique<Buffer>(_gpu, kind, bytes);
        slot.buffer->fill(combine(_seed, combine(rank, _buffers.size())));
        _buffers.push_back(std::move(slot));
        return _buffers.back().buffer->data();
    }
    Slot& find(const void* pointer) {
        for (Slot& slot : _buffers) {
            if (slot.buffer && slot.buffer->contains(pointer)) {
                return slot;
            }
        }
        throw std::logic_error("a pointer outside of all buffers");
    }
    void finish(Slot& slot) {
        const std::string damage = slot.buffer->guard_damage();
        if (!damage.empty()) {
            problem(format("guard of buffer %d (%s): %s", static_cast<int>(&slot - _buffers.data()),
                           to_string(slot.kind), damage.c_str()));
        }
        if (!slot.compared) {
            return;
        }
        slot.image = slot.buffer->read();
        for (std::size_t at = 0; slot.padding.second != nullptr && at < slot.image.size(); ++at) {
            if (slot.padding.second(at % slot.padding.first)) {
                slot.image[at] = std::byte{0};
            }
        }
    }

    Gpu& _gpu;
    const Mix* _mix;
    std::uint64_t _seed;
    int _next_index = 0;
    bool _watch_current = true;
    std::string _current;
    std::vector<Slot> _buffers;
    std::vector<std::string> _notes;
    std::vector<std::string> _problems;
};

#define OK(call) run.ok((call), #call, __LINE__)

/// How much of a case is done by default.
enum class Weight {
    normal,  ///< every mix
    heavy,   ///< moves much data: the first two mixes
    longer   ///< only with --long
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
/// How much longer things take where a sanitizer watches: every time limit is multiplied by it.
inline constexpr unsigned kSlowness = 5;
#else
inline constexpr unsigned kSlowness = 1;
#endif

namespace detail {
/// What the watch-dog prints; plain memory, because a signal handler reads it.
inline char running_case[256] = "start";
inline int running_rank = -1;

/// The limit comes in two parts, and only the end of the second is a hang: when a machine stands still (virtual ones
/// do, for a minute and more) the first ends at once when it goes on, whatever the program does.
inline volatile std::sig_atomic_t first_part_over = 0;
inline volatile unsigned second_part = 0;

inline void say_what_hangs(int) {
    if (first_part_over == 0) {
        first_part_over = 1;
        alarm(second_part);
        return;
    }
    char text[400];
    const int length = std::snprintf(text, sizeof text, "HUNG %s on rank %d (process %d)\n", running_case, running_rank,
                                     static_cast<int>(getpid()));
    if (write(STDERR_FILENO, text, static_cast<std::size_t>(length)) < 0) {
        _exit(124);
    }
}

inline unsigned watchdog_seconds = 0;

/// From now on, and for so long; 0: no more.
inline void set_watchdog(unsigned seconds) {
    watchdog_seconds = seconds;
    first_part_over = 0;
    second_part = std::max(seconds / 3, 1U);
    alarm(seconds == 0 ? 0 : std::max(seconds, second_part + 1) - second_part);
}

inline bool print_times = false;
}  // namespace detail

/// How long anything may take that must happen; it is there to end a hang, and far more than a busy machine needs.
inline constexpr unsigned kLimitSeconds = 60;

/// A program's cases and its command line.
///
///     --gpu=auto|cuda|hip|none   runtime for the device buffers; cuda and hip fail when it is absent
///     --host-only                the same as --gpu=none: every kind is host memory, which tests the tests
///     --filter=TEXT              only cases whose name contains TEXT
///     --except=TEXT              no case whose name contains TEXT (several: give it again), for bugs of an MPI
///     --mix=TEXT                 only mixes whose name contains TEXT
///     --seed=N                   another draw of data and of drawn mixes
///     --watchdog=SECONDS         say so on stderr when a case, or one of its steps, takes longer (default 60)
///     --times                    print what each case, and each step (steps.h), has taken, for a look by hand
///     --long                     with the cases that need minutes or gigabytes
class Suite {
  public:
    Suite(int argc, char** argv) {
        for (int at = 1; at < argc; ++at) {
            const std::string argument = argv[at];
            const std::size_t equals = argument.find('=');
            const std::string key = argument.substr(0, equals);
            const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
            if (key == "--gpu") {
                _gpu_name = value;
            } else if (key == "--host-only") {
                _gpu_name = "none";
            } else if (key == "--filter") {
                _filter = value;
            } else if (key == "--except") {
                _exceptions.push_back(value);
            } else if (key == "--mix") {
                _mix_filter = value;
            } else if (key == "--seed") {
                _seed = std::stoull(value);
            } else if (key == "--watchdog") {
                _watchdog_seconds = static_cast<unsigned>(std::stoul(value));
            } else if (key == "--times") {
                detail::print_times = true;
            } else if (key == "--long") {
                _long = true;
            } else {
                std::fprintf(stderr, "unknown argument %s\n", argument.c_str());
                std::exit(125);
            }
        }
    }

    /// Opens the GPU runtime. Call it after MPI_Init: most programs find their rank first.
    Gpu& open_gpu(int rank) {
        try {
            _gpu = Gpu::open(_gpu_name);
            if (_gpu->device_count() > 0) {
                _gpu->use_device(rank % _gpu->device_count());
            }
        } catch (const std::exception& error) {
            std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
            MPI_Abort(MPI_COMM_WORLD, 125);
        }
        return *_gpu;
    }
    [[nodiscard]] Gpu& gpu() { return *_gpu; }
    [[nodiscard]] const std::string& gpu_name() const { return _gpu_name; }
    [[nodiscard]] bool long_run() const { return _long; }

    void add(const std::string& name, std::function<void(Run&)> body, int minimum_ranks = 2,
             Weight weight = Weight::normal) {
        _cases.push_back({name, std::move(body), minimum_ranks, weight});
    }

    /// Runs all cases; collective over MPI_COMM_WORLD, and between MPI_Init and MPI_Finalize.
    int run() {
        int rank = 0, size = 0;
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        MPI_Comm_size(MPI_COMM_WORLD, &size);
        detail::running_rank = rank;
        signal(SIGALRM, detail::say_what_hangs);
        // Calls on several requests report on MPI_COMM_SELF or MPI_COMM_WORLD, depending on the MPI.
        MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
        MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
        if (!_gpu) {
            open_gpu(rank);
        }
        if (rank == 0) {
            std::printf("# ranks %d, GPU runtime %s, devices %d\n", size, _gpu->present() ? _gpu_name.c_str() : "none",
                        _gpu->device_count());
        }
        int failed = 0, done = 0;
        for (const Case& test : _cases) {
            if (std::any_of(_exceptions.begin(), _exceptions.end(),
                            [&](const std::string& text) { return test.name.find(text) != std::string::npos; })) {
                continue;
            }
            if (test.name.find(_filter) == std::string::npos || (test.weight == Weight::longer && !_long)) {
                continue;
            }
            if (size < test.minimum_ranks) {
                if (rank == 0) {
                    std::printf("skip %s: needs %d ranks\n", test.name.c_str(), test.minimum_ranks);
                }
                continue;
            }
            ++done;
            const double begin = MPI_Wtime();
            if (!run_case(test, rank)) {
                ++failed;
            }
            if (detail::print_times && rank == 0) {
                std::printf("# %s took %.3f s\n", test.name.c_str(), MPI_Wtime() - begin);
                std::fflush(stdout);
            }
        }
        detail::set_watchdog(0);
        if (rank == 0) {
            std::printf("# %d cases, %d failed\n", done, failed);
            std::fflush(stdout);
        }
        if (done == 0) {
            return 125;
        }
        return std::min(failed, 100);
    }

  private:
    struct Case {
        std::string name;
        std::function<void(Run&)> body;
        int minimum_ranks;
        Weight weight;
    };

    std::unique_ptr<Run> execute(const Case& test, const Mix* mix, std::uint64_t seed) {
        std::snprintf(detail::running_case, sizeof detail::running_case, "%s [%s]", test.name.c_str(),
                      mix == nullptr ? "reference" : mix->name.c_str());
        detail::set_watchdog(kSlowness * _watchdog_seconds * (test.weight == Weight::normal ? 1 : 3));
        MPI_Comm comm = MPI_COMM_NULL;
        MPI_Comm_dup(MPI_COMM_WORLD, &comm);
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
        auto run = std::make_unique<Run>(*_gpu, comm, mix, seed);
        test.body(*run);
        // Nobody frees memory that a peer may still be reading from.
        MPI_Barrier(MPI_COMM_WORLD);
        run->finish();
        MPI_Comm_free(&comm);
        return run;
    }

    bool run_case(const Case& test, int rank) {
        const std::uint64_t seed = combine(_seed, hash_text(test.name));
        std::vector<std::string> failures;
        try {
            const std::unique_ptr<Run> reference = execute(test, nullptr, seed);
            for (const std::string& problem : reference->problems()) {
                failures.push_back("[host] " + problem);
            }
            std::vector<Mix> mixes = all_mixes(seed);
            if (test.weight != Weight::normal) {
                mixes.resize(2);
            }
            for (const Mix& mix : mixes) {
                if (mix.name.find(_mix_filter) == std::string::npos) {
                    continue;
                }
                const std::unique_ptr<Run> actual = execute(test, &mix, seed);
                actual->compare(*reference);
                for (const std::string& problem : actual->problems()) {
                    failures.push_back("[" + mix.name + "] " + problem);
                }
            }
        } catch (const std::exception& error) {
            // The other ranks are inside the case and would wait for ever.
            std::printf("FAIL %s: rank %d: %s in %s\n", test.name.c_str(), rank, error.what(), detail::running_case);
            std::fflush(stdout);
            MPI_Abort(MPI_COMM_WORLD, 101);
        }
        for (const std::string& failure : failures) {
            std::printf("FAIL %s: rank %d: %s\n", test.name.c_str(), rank, failure.c_str());
        }
        std::fflush(stdout);
        int mine = failures.empty() ? 0 : 1, any = 0;
        MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        if (rank == 0 && any == 0) {
            std::printf("ok %s\n", test.name.c_str());
            std::fflush(stdout);
        }
        return any == 0;
    }

    std::vector<Case> _cases;
    std::unique_ptr<Gpu> _gpu;
    std::string _gpu_name = "auto";
    std::string _filter;
    std::vector<std::string> _exceptions;
    std::string _mix_filter;
    std::uint64_t _seed = 1;
    unsigned _watchdog_seconds = kLimitSeconds;
    bool _long = false;
};

/// Ranks in pairs (0,1), (2,3), ...; the last rank of an odd number has no partner.
struct Pair {
    explicit Pair(const Run& run)
        : peer(run.rank ^ 1), sender(run.rank % 2 == 0), receiver(run.rank % 2 == 1), active(peer < run.size) {
        if (!active) {
            peer = MPI_PROC_NULL;
            sender = receiver = false;
        }
    }
    int peer;
    bool sender, receiver, active;
};

/// The neighbours in the ring of all ranks.
struct Ring {
    explicit Ring(const Run& run) : next((run.rank + 1) % run.size), previous((run.rank + run.size - 1) % run.size) {}
    int next, previous;
};

}  // namespace ranks
