// SPDX-License-Identifier: Apache-2.0
// The CPU reaches device memory in two ways. Each is a GpuAccess here:
//
// - GDRCopy: a library and a kernel module that map pieces of NVIDIA device memory into the process on request. Mapped
//   memory counts against a window of the PCIe bus that may be as small as 256 MiB for all processes of a card, and
//   mapping takes long. So we map pieces of the program's allocations and keep them, within a bound.
// - A large BAR: all memory of an AMD card lies in the CPU's address space, and its addresses are the program's device
//   pointers. Nothing is mapped. But the CPU cannot reach every kind of allocation, and touching one that it cannot
//   reach would end the program. So we try each allocation first, by way of the kernel, which answers instead.
//
// We trust neither before a copy in each direction has come out right on the device in question.
#include "transfer/cpu_window.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "gpu/dynamic_library.h"
#include "gpu/wait.h"
#include "report/totals.h"
#include "trace/trace.h"

namespace awaken::transfer {
namespace {

/// The most mapped pieces that are kept at a time.
constexpr std::size_t kKeptPieces = 64;
/// Device memory for probing a device, and the bytes that a checked copy moves: from an odd address on, over more than
/// a line of any cache.
constexpr std::size_t kProbeBytes = std::size_t{128} << 10;
constexpr std::size_t kCheckedBytes = 1021;
constexpr std::size_t kCheckedOffset = 3;

/// Orders all earlier loads and stores before all later ones, also those of memory that is mapped write-combining.
/// Without the fence the CPU makes loads of such memory early.
void fence() noexcept {
#if defined(__x86_64__)
    asm volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
    asm volatile("dsb sy" ::: "memory");
#else
    __sync_synchronize();
#endif
}

/// Waits until the stores to device memory have arrived there, so that everything that the GPU is told to do from now
/// on sees them.
///
/// The memory is mapped write-combining. Stores wait in buffers of the CPU until a fence sends them off, and are then
/// under way on the bus. There only commands to the same card are sure to stay behind them. Other processes and cards
/// learn of the data by way of host memory, which is not ordered so. A load from the card cannot overtake the stores on
/// the bus. So once the load is answered the stores have arrived (and, on AMD, have left the card's queue for accesses
/// of the host).
void settle(const std::byte* const last) noexcept {
    fence();
    static_cast<void>(*reinterpret_cast<const volatile unsigned char*>(last));
    fence();
}

/// A piece of device memory that the CPU reaches.
struct Mapping {
    std::byte* view = nullptr;  ///< the CPU's address of the first byte; null: the CPU cannot reach the piece
    std::size_t bytes = 0;
    unsigned long pin = 0;  ///< the access's own number
};

/// A way to device memory. Two threads never call map() and unmap() at a time, but they may copy at a time.
class GpuAccess {
  public:
    GpuAccess() = default;
    GpuAccess(const GpuAccess&) = delete;
    GpuAccess& operator=(const GpuAccess&) = delete;
    virtual ~GpuAccess() = default;

    /// The access maps whole pieces: each begins at a multiple of this, a power of two. 0: an allocation is one piece.
    [[nodiscard]] virtual std::size_t piece_bytes() const noexcept = 0;
    /// The access can map device addresses that are multiples of this.
    [[nodiscard]] virtual std::size_t alignment() const noexcept = 0;
    /// Whether mapping is so cheap that a single copy is worth it.
    [[nodiscard]] virtual bool maps_at_once() const noexcept = 0;
    [[nodiscard]] virtual bool serves(int device) const noexcept = 0;
    /// Maps the device memory from `start` on. On failure `why_not` gives the reason.
    virtual bool map(std::uintptr_t start, std::size_t bytes, Mapping& mapping, std::string& why_not) = 0;
    virtual void unmap(const Mapping& mapping) noexcept = 0;
    virtual bool write(const Mapping& mapping, std::byte* at, const void* host, std::size_t bytes) noexcept = 0;
    virtual bool read(const Mapping& mapping, void* host, const std::byte* at, std::size_t bytes) noexcept = 0;
};

// ---- GDRCopy --------------------------------------------------------------------------------------------------------

struct GdrContext;
/// A structure in GDRCopy's interface too; passed by value.
struct GdrPin {
    unsigned long value;
};

/// Version 2 of its interface. Version 1 has other names for the copies. Results are errno values, 0 for success.
#define AWAKEN_GDRCOPY_FUNCTIONS(X)                                                                            \
    X(open, "gdr_open", true, GdrContext*, void)                                                               \
    X(close, "gdr_close", true, int, GdrContext*)                                                              \
    X(pin, "gdr_pin_buffer", true, int, GdrContext*, unsigned long, std::size_t, std::uint64_t, std::uint32_t, \
      GdrPin*)                                                                                                 \
    X(unpin, "gdr_unpin_buffer", true, int, GdrContext*, GdrPin)                                               \
    X(map, "gdr_map", true, int, GdrContext*, GdrPin, void**, std::size_t)                                     \
    X(unmap, "gdr_unmap", true, int, GdrContext*, GdrPin, void*, std::size_t)                                  \
    X(copy_to, "gdr_copy_to_mapping", true, int, GdrPin, void*, const void*, std::size_t)                      \
    X(copy_from, "gdr_copy_from_mapping", true, int, GdrPin, void*, const void*, std::size_t)                  \
    X(version, "gdr_runtime_get_version", false, void, int*, int*)

struct GdrFunctions {
    AWAKEN_GDRCOPY_FUNCTIONS(AWAKEN_DECLARE_FUNCTION)
};

class GdrCopy final : public GpuAccess {
  public:
    /// Null when GDRCopy cannot be used; then `description` says why. Otherwise it names the version.
    static std::unique_ptr<GpuAccess> make(std::string& description) {
        if (!may_be_there()) {
            description = "no GDRCopy: there is no /dev/gdrdrv, as its kernel module is not loaded";
            return nullptr;
        }
        const std::array<std::string, 2> names = {"libgdrapi.so.2", "libgdrapi.so"};
        std::string why_not;
        const gpu::DynamicLibrary library = gpu::DynamicLibrary::open(names, why_not);
        GdrFunctions table;
        if (library) {
            const gpu::FunctionSlot slots[] = {AWAKEN_GDRCOPY_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
            if (library.bind(slots, why_not)) {
                why_not.clear();
            }
        }
        if (!why_not.empty()) {
            description = "no GDRCopy: " + why_not;
            return nullptr;
        }
        std::string name = "GDRCopy";
        if (table.version != nullptr) {
            int major = 0;
            int minor = 0;
            table.version(&major, &minor);
            name += " " + std::to_string(major) + "." + std::to_string(minor);
        }
        name += " (" + library.path().substr(library.path().rfind('/') + 1) + ")";
        GdrContext* const context = table.open();
        if (context == nullptr) {
            description = name +
                          " does not reach its driver: is the kernel module gdrdrv loaded, and may /dev/gdrdrv be "
                          "opened?";
            return nullptr;
        }
        description = std::move(name);
        return std::make_unique<GdrCopy>(table, context);
    }

    /// Searching all folders for a library that is not there takes 9 ms in some containers, and a rank does it while
    /// others wait for its first message.
    static bool may_be_there() {
        if (::access("/dev/gdrdrv", F_OK) == 0) {
            return true;
        }
        const std::vector<std::string> loaded = gpu::loaded_object_paths();
        return std::any_of(loaded.begin(), loaded.end(),
                           [](const std::string& path) { return gpu::is_library_named(path, "libgdrapi"); });
    }

    GdrCopy(const GdrFunctions& functions, GdrContext* const context) : _functions(functions), _context(context) {}
    ~GdrCopy() override { static_cast<void>(_functions.close(_context)); }

    [[nodiscard]] std::size_t piece_bytes() const noexcept override { return std::size_t{2} << 20; }
    /// A page of the GPU. Memory of other allocations in the same page is mapped too, and never touched.
    [[nodiscard]] std::size_t alignment() const noexcept override { return std::size_t{64} << 10; }
    [[nodiscard]] bool maps_at_once() const noexcept override { return false; }
    [[nodiscard]] bool serves(int) const noexcept override { return true; }

    bool map(const std::uintptr_t start, const std::size_t bytes, Mapping& mapping, std::string& why_not) override {
        GdrPin pin = {};
        if (const int code = _functions.pin(_context, start, bytes, 0, 0, &pin); code != 0) {
            why_not = "gdr_pin_buffer: " + std::generic_category().message(code);
            return false;
        }
        void* view = nullptr;
        if (const int code = _functions.map(_context, pin, &view, bytes); code != 0 || view == nullptr) {
            why_not = "gdr_map: " + std::generic_category().message(code);
            static_cast<void>(_functions.unpin(_context, pin));
            return false;
        }
        mapping = {static_cast<std::byte*>(view), bytes, pin.value};
        return true;
    }
    void unmap(const Mapping& mapping) noexcept override {
        // A failure means that the driver has taken the mapping back with the memory behind it.
        static_cast<void>(_functions.unmap(_context, {mapping.pin}, mapping.view, mapping.bytes));
        static_cast<void>(_functions.unpin(_context, {mapping.pin}));
    }
    bool write(const Mapping& mapping, std::byte* const at, const void* const host,
               const std::size_t bytes) noexcept override {
        if (_functions.copy_to({mapping.pin}, at, host, bytes) != 0) {
            return false;
        }
        settle(at + bytes - 1);
        return true;
    }
    bool read(const Mapping& mapping, void* const host, const std::byte* const at,
              const std::size_t bytes) noexcept override {
        fence();
        return _functions.copy_from({mapping.pin}, host, at, bytes) == 0;
    }

  private:
    const GdrFunctions _functions;
    GdrContext* const _context;
};

// ---- a large BAR ----------------------------------------------------------------------------------------------------

/// Whether the CPU may read the byte. We ask the kernel: its system call fails where a load would be a fault. The call
/// copies as the process would; calls that look pages up (process_vm_readv) refuse memory of devices.
bool readable(const int pipe_end, const std::uintptr_t address) noexcept {
    ssize_t written = 0;
    do {
        written = ::write(pipe_end, reinterpret_cast<const void*>(address), 1);
    } while (written < 0 && errno == EINTR);
    return written == 1;
}

class LargeBar final : public GpuAccess {
  public:
    explicit LargeBar(std::vector<bool> visible) : _visible(std::move(visible)) {}

    [[nodiscard]] std::size_t piece_bytes() const noexcept override { return 0; }
    [[nodiscard]] std::size_t alignment() const noexcept override { return 1; }
    [[nodiscard]] bool maps_at_once() const noexcept override { return true; }
    [[nodiscard]] bool serves(const int device) const noexcept override {
        return device >= 0 && static_cast<std::size_t>(device) < _visible.size() &&
               _visible[static_cast<std::size_t>(device)];
    }

    bool map(const std::uintptr_t start, const std::size_t bytes, Mapping& mapping, std::string& why_not) override {
        std::array<int, 2> ends = {};
        if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
            why_not = "pipe2: " + std::generic_category().message(errno);
            return false;
        }
        // An allocation is mapped as a whole, for loads and for stores. The probe has shown on memory of our own that
        // stores work. We do not write to the program's memory only to find out.
        const bool reachable = readable(ends[1], start) && readable(ends[1], start + bytes - 1);
        ::close(ends[0]);
        ::close(ends[1]);
        if (!reachable) {
            why_not = "the memory is not mapped for the CPU";
            return false;
        }
        mapping = {reinterpret_cast<std::byte*>(start), bytes, 0};
        return true;
    }
    void unmap(const Mapping&) noexcept override {}
    bool write(const Mapping&, std::byte* const at, const void* const host, const std::size_t bytes) noexcept override {
        std::memcpy(at, host, bytes);
        settle(at + bytes - 1);
        return true;
    }
    bool read(const Mapping&, void* const host, const std::byte* const at, const std::size_t bytes) noexcept override {
        fence();
        std::memcpy(host, at, bytes);
        return true;
    }

  private:
    const std::vector<bool> _visible;  ///< by device
};

/// The devices whose memory the CPU reaches.
std::vector<bool> visible_devices(gpu::Runtime& runtime) {
    std::vector<bool> visible(static_cast<std::size_t>(std::max(runtime.device_count(), 0)));
    for (std::size_t device = 0; device < visible.size(); ++device) {
        gpu::DeviceInfo info;
        visible[device] = runtime.device_info(static_cast<int>(device), info).ok() && info.host_visible_memory;
    }
    return visible;
}

/// Bytes that repeat nowhere near a power of two, different ones for each round.
std::vector<std::byte> pattern(const unsigned round) {
    std::vector<std::byte> bytes(kCheckedBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + std::size_t{round} * 89 + 7) & 0xff);
    }
    return bytes;
}

/// A stream for the checked copies. We wait for them by asking.
class ProbeStream {
  public:
    ProbeStream(gpu::Runtime& runtime, const int device) : _runtime(runtime) {
        // Independent of the program's streams, whose work may take any time.
        _status = runtime.create_stream(device, false, _stream);
    }
    ProbeStream(const ProbeStream&) = delete;
    ProbeStream& operator=(const ProbeStream&) = delete;
    ~ProbeStream() {
        if (_stream.value != nullptr) {
            static_cast<void>(_runtime.destroy_stream(_stream).ok());
        }
    }
    gpu::Status copy(void* const destination, const void* const source, const std::size_t bytes) {
        if (_status.ok()) {
            _status = _runtime.copy(destination, source, bytes, _stream);
        }
        if (!_status.ok()) {
            return _status;
        }
        gpu::poll_until_over(
            [&] {
                bool done = false;
                _status = _runtime.query_stream(_stream, done);
                return _status.ok() && !done ? 1 : 0;
            },
            1);
        return _status;
    }

  private:
    gpu::Runtime& _runtime;
    gpu::StreamHandle _stream;
    gpu::Status _status;
};

/// Counts a copy that is over, and adds it to the trace. True.
bool tell(const char* const name, const int device, const std::size_t bytes, const std::uint64_t begin_ns) noexcept {
    report::totals.add(report::Mover::cpu, bytes);
    if (trace::Sink* const sink = trace::sink(); sink != nullptr && begin_ns != 0) {
        trace::Event event;
        event.begin_ns = begin_ns;
        event.end_ns = trace::now_ns();
        event.name = name;
        event.bytes = bytes;
        event.device = device;
        event.kind = trace::Kind::copy;
        event.path = static_cast<std::uint8_t>(report::Mover::cpu);
        sink->add(event);
    }
    return true;
}

}  // namespace

// ---- what is mapped, and on which devices it can be trusted ---------------------------------------------------------

struct CpuWindow::State {
    explicit State(gpu::Runtime& gpu_runtime) : runtime(gpu_runtime) {}

    /// A mapped piece of an allocation, or one that could not be mapped.
    struct BarPiece {
        std::uintptr_t base = 0;  ///< of the allocation
        std::uint64_t id = 0;
        std::uintptr_t start = 0;
        Mapping mapping;
        int uses = 0;
        bool stale = false;  ///< unmap it as soon as no copy uses it
    };
    using BarPieces = std::list<BarPiece>;

    struct Device {
        bool works = false;
        void* memory = nullptr;  ///< the memory that the device was probed with
    };

    /// Keeps the pieces under a stretch of memory mapped while it is copied.
    class Use {
      public:
        explicit Use(State& state) : _state(state) {}
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        ~Use() {
            if (_count == 0) {
                return;
            }
            const std::scoped_lock lock(_state.mutex);
            drop();
        }
        void add(const BarPieces::iterator piece) noexcept {
            ++piece->uses;
            _pieces[_count++] = piece;
        }
        /// Call it with the lock.
        void drop() noexcept {
            while (_count > 0) {
                _state.give_back(_pieces[--_count]);
            }
        }
        [[nodiscard]] const BarPiece& operator[](const std::size_t index) const noexcept { return *_pieces[index]; }

      private:
        State& _state;
        std::array<BarPieces::iterator, 2> _pieces = {};  ///< a copy is not longer than a piece
        std::size_t _count = 0;
    };

    /// Whether the CPU reaches the device's memory and a checked copy came out right. Probes the device the first time.
    bool works(const int device) {
        const auto known = devices.find(device);
        if (known != devices.end()) {
            return known->second.works;
        }
        Device& entry = devices[device];
        std::string why_not;
        if (access->serves(device)) {
            entry.works = probe(device, entry, why_not);
        } else {
            why_not = "its memory is not visible to the CPU";
        }
        if (entry.works) {
            return true;
        }
        // A failing device says nothing of the others, which are tried when their turn comes.
        const int count = std::max(runtime.device_count(), 0);
        bool hope = false;
        for (int other = 0; other < count; ++other) {
            const auto tried = devices.find(other);
            hope = hope || (tried == devices.end() ? access->serves(other) : tried->second.works);
        }
        if (!hope && usable.load(std::memory_order_relaxed)) {
            failure = description + " does not work on device " + std::to_string(device) + ": " + why_not;
            shown.store(&failure, std::memory_order_release);
            usable.store(false, std::memory_order_release);
        }
        return false;
    }

    /// Copies in both directions, twice with different bytes. So old bytes from a cache do not pass for new ones.
    ///
    /// The memory stays allocated until the end: freeing would wait for the program's work on the device.
    bool probe(const int device, Device& entry, std::string& why_not) {
        if (const gpu::Status status = runtime.allocate(device, kProbeBytes, entry.memory); !status.ok()) {
            why_not = status.message();
            return false;
        }
        const void* const pointer = entry.memory;
        gpu::PointerInfo info;
        runtime.classify({&pointer, 1}, &info);
        auto* const checked = static_cast<std::byte*>(entry.memory) + kCheckedOffset;
        if (!within(checked, info, kCheckedBytes)) {
            why_not = "the runtime does not say where its own memory is";
            return false;
        }
        Mapping mapping;
        const auto [start, end] = extent(info);
        if (!access->map(start, end - start, mapping, why_not)) {
            return false;
        }
        std::byte* const view = mapping.view + (reinterpret_cast<std::uintptr_t>(checked) - start);
        const bool right = copies_come_out_right(device, mapping, view, checked, why_not);
        access->unmap(mapping);
        return right;
    }

    bool copies_come_out_right(const int device, const Mapping& mapping, std::byte* const view,
                               std::byte* const checked, std::string& why_not) {
        ProbeStream stream(runtime, device);
        for (unsigned round = 0; round < 4; round += 2) {
            const std::vector<std::byte> stored = pattern(round);
            const std::vector<std::byte> sent = pattern(round + 1);
            std::vector<std::byte> seen(kCheckedBytes);
            std::vector<std::byte> loaded(kCheckedBytes);
            const bool wrote = access->write(mapping, view, stored.data(), kCheckedBytes);
            gpu::Status status = stream.copy(seen.data(), checked, kCheckedBytes);
            if (status.ok()) {
                status = stream.copy(checked, sent.data(), kCheckedBytes);
            }
            if (!status.ok()) {
                why_not = status.message();
                return false;
            }
            if (!wrote || seen != stored) {
                why_not = "a checked copy to device memory did not arrive";
                return false;
            }
            if (!access->read(mapping, loaded.data(), view, kCheckedBytes) || loaded != sent) {
                why_not = "a checked copy from device memory did not come out right";
                return false;
            }
        }
        return true;
    }

    static bool within(const void* pointer, const gpu::PointerInfo& info, const std::size_t bytes) noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);
        return info.kind == gpu::MemoryKind::device && info.base != 0 && address >= info.base && bytes <= info.size &&
               address - info.base <= info.size - bytes;
    }

    /// Start and end of the part of the allocation that can be mapped.
    [[nodiscard]] std::pair<std::uintptr_t, std::uintptr_t> extent(const gpu::PointerInfo& info) const noexcept {
        const std::size_t page = access->alignment();
        return {info.base / page * page, (info.base + info.size + page - 1) / page * page};
    }

    /// The piece that holds `address`. Maps it if need be. Null view: the CPU cannot reach it.
    BarPieces::iterator piece_of(const std::uintptr_t address, const gpu::PointerInfo& info) {
        auto [first, end] = extent(info);
        const std::size_t step = access->piece_bytes();
        const std::uintptr_t start = step == 0 ? first : std::max<std::uintptr_t>(first, address / step * step);
        for (auto piece = pieces.begin(); piece != pieces.end();) {
            const auto current = piece++;
            if (current->base != info.base || current->stale) {
                continue;
            }
            if (current->id != info.id) {
                // Another allocation has taken the address: the memory that was mapped is gone.
                retire(current);
            } else if (current->start == start) {
                pieces.splice(pieces.begin(), pieces, current);
                return current;
            }
        }
        make_room();
        BarPiece piece;
        piece.base = info.base;
        piece.id = info.id;
        piece.start = start;
        if (step != 0) {
            end = std::min<std::uintptr_t>(end, start / step * step + step);
        }
        pieces.push_front(piece);
        std::string why_not;
        // Remembers a refusal too. Otherwise each message would ask again.
        if (!access->map(start, end - start, pieces.front().mapping, why_not)) {
            pieces.front().mapping = {};
        }
        return pieces.begin();
    }

    void make_room() noexcept {
        for (auto piece = pieces.end(); piece != pieces.begin() && pieces.size() >= kKeptPieces;) {
            const auto current = --piece;
            if (current->uses != 0) {
                continue;
            }
            piece = std::next(current);
            discard(current);
        }
    }
    void retire(const BarPieces::iterator piece) noexcept {
        if (piece->uses == 0) {
            discard(piece);
        } else {
            piece->stale = true;
        }
    }
    void discard(const BarPieces::iterator piece) noexcept {
        if (piece->mapping.view != nullptr) {
            access->unmap(piece->mapping);
        }
        pieces.erase(piece);
    }
    void give_back(const BarPieces::iterator piece) noexcept {
        if (--piece->uses != 0 || !piece->stale) {
            return;
        }
        discard(piece);
        if (closed && pieces.empty()) {
            access.reset();
        }
    }

    /// Calls copy(mapping, view, done, bytes) for the part of each piece under `pointer`.
    template <typename Copy>
    bool transfer(const void* pointer, const gpu::PointerInfo& info, const std::size_t bytes, const Copy& copy) {
        if (!usable.load(std::memory_order_acquire)) {
            return false;
        }
        if (bytes == 0) {
            return true;
        }
        if (!within(pointer, info, bytes)) {
            return false;
        }
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);
        Use use(*this);
        std::size_t in_first = bytes;
        {
            const std::scoped_lock lock(mutex);
            if (closed || !works(info.device)) {
                return false;
            }
            if (info.id == 0) {
                // Memory without an identity: findings about an address do not hold for the next copy.
                Mapping mapping;
                std::string why_not;
                if (!access->maps_at_once() || !access->map(address, bytes, mapping, why_not)) {
                    return false;
                }
                const bool copied = copy(*access, mapping, mapping.view, std::size_t{0}, bytes);
                access->unmap(mapping);
                return copied;
            }
            const std::size_t step = access->piece_bytes();
            if (step != 0) {
                if (bytes > step) {
                    return false;
                }
                in_first = std::min<std::size_t>(bytes, address / step * step + step - address);
            }
            for (std::size_t done = 0; done < bytes; done = done == 0 ? in_first : bytes) {
                const auto piece = piece_of(address + done, info);
                if (piece->mapping.view == nullptr) {
                    use.drop();
                    return false;
                }
                use.add(piece);
            }
        }
        // The access stays while pieces are in use.
        const auto part = [&](const BarPiece& piece, const std::size_t done, const std::size_t count) {
            std::byte* const view = piece.mapping.view + (address + done - piece.start);
            return copy(*access, piece.mapping, view, done, count);
        };
        return part(use[0], 0, in_first) && (in_first == bytes || part(use[1], in_first, bytes - in_first));
    }

    void turn_off(std::string why_not) {
        description = std::move(why_not);
        access.reset();
        usable = false;
    }

    void shut_down() noexcept {
        const std::scoped_lock lock(mutex);
        if (closed) {
            return;
        }
        closed = true;
        usable.store(false, std::memory_order_release);
        for (auto piece = pieces.begin(); piece != pieces.end();) {
            retire(piece++);
        }
        if (pieces.empty()) {
            access.reset();
        }
        for (auto& [number, device] : devices) {
            runtime.free_when_idle(device.memory, number);
            device.memory = nullptr;
        }
    }

    gpu::Runtime& runtime;
    std::string description;  ///< set when made, never changed afterwards
    std::string failure;      ///< written once, before other threads see it
    std::atomic<const std::string*> shown{&description};
    std::atomic<bool> usable{true};

    std::mutex mutex;
    std::unique_ptr<GpuAccess> access;
    std::map<int, Device> devices;
    BarPieces pieces;  ///< most recently used first
    bool closed = false;
};

CpuWindow::CpuWindow(gpu::Runtime& runtime, const bool allowed) : _state(std::make_unique<State>(runtime)) {
    if (!allowed) {
        _state->turn_off("off, as AWAKEN_TEST_CPU_COPY asks");
        return;
    }
    std::vector<bool> visible = visible_devices(runtime);
    if (std::find(visible.begin(), visible.end(), true) != visible.end()) {
        _state->access = std::make_unique<LargeBar>(std::move(visible));
        _state->description = "large BAR";
    } else if (runtime.works_with_gdrcopy()) {
        std::string description;
        _state->access = GdrCopy::make(description);
        if (_state->access == nullptr) {
            _state->turn_off(std::move(description));
        } else {
            _state->description = std::move(description);
        }
    } else {
        _state->turn_off(visible.empty() ? "no GPU" : "no large BAR: the CPU does not see the GPU's memory");
    }
}

CpuWindow::~CpuWindow() {
    shut_down();
}

bool CpuWindow::usable() const noexcept {
    return _state->usable.load(std::memory_order_acquire);
}

const std::string& CpuWindow::description() const noexcept {
    return *_state->shown.load(std::memory_order_acquire);
}

bool CpuWindow::to_device(void* device, const gpu::PointerInfo& info, const void* host, const std::size_t bytes) {
    const std::uint64_t begin_ns = trace::sink() != nullptr ? trace::now_ns() : 0;
    return _state->transfer(device, info, bytes,
                            [host](GpuAccess& access, const Mapping& mapping, std::byte* const view,
                                   const std::size_t done, const std::size_t count) {
                                return access.write(mapping, view, static_cast<const std::byte*>(host) + done, count);
                            }) &&
           tell("copy from host", info.device, bytes, begin_ns);
}

bool CpuWindow::to_host(void* host, const void* device, const gpu::PointerInfo& info, const std::size_t bytes) {
    const std::uint64_t begin_ns = trace::sink() != nullptr ? trace::now_ns() : 0;
    return _state->transfer(device, info, bytes,
                            [host](GpuAccess& access, const Mapping& mapping, const std::byte* const view,
                                   const std::size_t done, const std::size_t count) {
                                return access.read(mapping, static_cast<std::byte*>(host) + done, view, count);
                            }) &&
           tell("copy to host", info.device, bytes, begin_ns);
}

void CpuWindow::shut_down() noexcept {
    _state->shut_down();
}

}  // namespace awaken::transfer
