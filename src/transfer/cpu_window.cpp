// Two ways lead to device memory from the CPU, and both are a GpuAccess here:
//
//  - GDRCopy: a library and a kernel module that map pieces of NVIDIA device memory into the process on request. What
//  is
//    mapped counts against a window of the PCIe bus that may be as small as 256 MiB for all processes of a card, and
//    mapping takes long, so pieces of the program's allocations are mapped and kept, within a bound.
//  - A large BAR: all memory of an AMD card lies in the CPU's address space, and its addresses are the program's device
//    pointers. Nothing is mapped; but not every kind of allocation is reachable, and touching one that is not would end
//    the program, so each allocation is tried first, by way of the kernel, which answers instead.
//
// Neither is believed before a copy in each direction has come out right on the device in question.
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

namespace awaken::transfer {
namespace {

/// Mapped pieces that are kept at a time.
constexpr std::size_t kKeptPieces = 64;
/// Device memory that a device is probed with, and how much of it a checked copy moves: from an odd address on, over
/// more than a line of any cache.
constexpr std::size_t kProbeBytes = std::size_t{128} << 10;
constexpr std::size_t kCheckedBytes = 1021;
constexpr std::size_t kCheckedOffset = 3;

/// Orders all loads and stores before it before all after it, also those of memory that is mapped write-combining:
/// loads of it are otherwise made early.
void fence() noexcept {
#if defined(__x86_64__)
    asm volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
    asm volatile("dsb sy" ::: "memory");
#else
    __sync_synchronize();
#endif
}

/// What was stored to device memory has arrived there, and is seen by whatever the GPU is told to do from now on.
///
/// The memory is mapped write-combining: stores wait in buffers of the CPU until a fence sends them off, and are then
/// under way on the bus, where only commands to the same card are sure to stay behind them. Other processes and cards,
/// which learn of the data by way of host memory, are not. A load from the card cannot overtake the stores on the bus,
/// so once it is answered they have arrived (and, on AMD, have left the card's queue for accesses of the host).
void settle(const std::byte* const last) noexcept {
    fence();
    static_cast<void>(*reinterpret_cast<const volatile unsigned char*>(last));
    fence();
}

/// A piece of device memory that the CPU reaches.
struct Mapping {
    std::byte* view = nullptr;  ///< where the CPU sees its first byte; null: it cannot be reached
    std::size_t bytes = 0;
    unsigned long pin = 0;  ///< the access's own
};

/// A way to device memory. map() and unmap() are not called from two threads at a time, the copies are.
class GpuAccess {
  public:
    GpuAccess() = default;
    GpuAccess(const GpuAccess&) = delete;
    GpuAccess& operator=(const GpuAccess&) = delete;
    virtual ~GpuAccess() = default;

    /// Pieces are mapped in whole: each begins at a multiple of this, a power of two. 0: an allocation is one piece.
    [[nodiscard]] virtual std::size_t piece_bytes() const noexcept = 0;
    /// Device addresses that can be mapped are multiples of this.
    [[nodiscard]] virtual std::size_t alignment() const noexcept = 0;
    /// Whether mapping is so cheap that it may be done for a single copy.
    [[nodiscard]] virtual bool maps_at_once() const noexcept = 0;
    [[nodiscard]] virtual bool serves(int device) const noexcept = 0;
    /// Maps the device memory from `start` on. On failure `why_not` is the reason.
    virtual bool map(std::uintptr_t start, std::size_t bytes, Mapping& mapping, std::string& why_not) = 0;
    virtual void unmap(const Mapping& mapping) noexcept = 0;
    virtual bool write(const Mapping& mapping, std::byte* at, const void* host, std::size_t bytes) noexcept = 0;
    virtual bool read(const Mapping& mapping, void* host, const std::byte* at, std::size_t bytes) noexcept = 0;
};

// ---- GDRCopy --------------------------------------------------------------------------------------------------------

struct GdrContext;
/// A structure in GDRCopy's interface, too, passed by value.
struct GdrPin {
    unsigned long value;
};

/// Version 2 of its interface; version 1 names the copies otherwise. Results are errno values, 0 for success.
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
    /// Null when it cannot be used; `description` then says why, and which version it is otherwise.
    static std::unique_ptr<GpuAccess> make(std::string& description) {
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

    GdrCopy(const GdrFunctions& functions, GdrContext* const context) : _functions(functions), _context(context) {}
    ~GdrCopy() override { static_cast<void>(_functions.close(_context)); }

    [[nodiscard]] std::size_t piece_bytes() const noexcept override { return std::size_t{2} << 20; }
    /// A page of the GPU. Memory of other allocations in the same page is mapped along, and never touched.
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
        // Failures mean that the driver has taken the mapping back with the memory behind it.
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

/// Whether the CPU may read the byte: asked of the kernel, which fails a system call where a load would be a fault. It
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
        // An allocation is mapped as a whole, for loads and for stores. That stores work was seen on memory of our own;
        // the program's is not written to only to find out.
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

/// The devices whose memory the CPU sees.
std::vector<bool> visible_devices(gpu::Runtime& runtime) {
    std::vector<bool> visible(static_cast<std::size_t>(std::max(runtime.device_count(), 0)));
    for (std::size_t device = 0; device < visible.size(); ++device) {
        gpu::DeviceInfo info;
        visible[device] = runtime.device_info(static_cast<int>(device), info).ok() && info.host_visible_memory;
    }
    return visible;
}

/// Bytes that repeat nowhere near a power of two, other ones for each round.
std::vector<std::byte> pattern(const unsigned round) {
    std::vector<std::byte> bytes(kCheckedBytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + round * 89 + 7) & 0xff);
    }
    return bytes;
}

/// A stream for the checked copies, which are waited for by asking.
class ProbeStream {
  public:
    ProbeStream(gpu::Runtime& runtime, const int device) : _runtime(runtime) {
        // Independent of the program's streams: its work may take as long as it likes.
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
        bool stale = false;  ///< unmapped as soon as it is not in use
    };
    using BarPieces = std::list<BarPiece>;

    struct Device {
        bool works = false;
        void* memory = nullptr;  ///< that it was probed with
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
            const std::lock_guard lock(_state.mutex);
            drop();
        }
        void add(const BarPieces::iterator piece) noexcept {
            ++piece->uses;
            _pieces[_count++] = piece;
        }
        /// With the lock.
        void drop() noexcept {
            while (_count > 0) {
                _state.give_back(_pieces[--_count]);
            }
        }
        [[nodiscard]] const BarPiece& operator[](const std::size_t index) const noexcept { return *_pieces[index]; }

      private:
        State& _state;
        std::array<BarPieces::iterator, 2> _pieces = {};  ///< what is copied is not longer than a piece
        std::size_t _count = 0;
    };

    /// The device's memory can be reached, and a checked copy came out right. Probes it at first.
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
        // A device that fails says nothing of the others, which are tried when their turn comes.
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

    /// Copies in both directions, twice with different bytes, so that what a cache has kept does not pass for new.
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

    /// Start and end of what can be mapped of the allocation.
    [[nodiscard]] std::pair<std::uintptr_t, std::uintptr_t> extent(const gpu::PointerInfo& info) const noexcept {
        const std::size_t page = access->alignment();
        return {info.base / page * page, (info.base + info.size + page - 1) / page * page};
    }

    /// The piece that holds `address`, mapped if need be. Null view: it cannot be reached.
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
                // Another allocation has taken the address: what was mapped is gone.
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
        // A refusal is remembered, too: it would be asked for with each message.
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
            const std::lock_guard lock(mutex);
            if (closed || !works(info.device)) {
                return false;
            }
            if (info.id == 0) {
                // Memory without an identity: what was learnt of an address does not hold for the next copy.
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
        const std::lock_guard lock(mutex);
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
    std::string description;  ///< as found when made; never changed afterwards
    std::string failure;      ///< written once, before it is shown
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
    } else if (runtime.vendor() == gpu::Vendor::cuda) {
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
    return _state->transfer(device, info, bytes,
                            [host](GpuAccess& access, const Mapping& mapping, std::byte* const view,
                                   const std::size_t done, const std::size_t count) {
                                return access.write(mapping, view, static_cast<const std::byte*>(host) + done, count);
                            });
}

bool CpuWindow::to_host(void* host, const void* device, const gpu::PointerInfo& info, const std::size_t bytes) {
    return _state->transfer(device, info, bytes,
                            [host](GpuAccess& access, const Mapping& mapping, const std::byte* const view,
                                   const std::size_t done, const std::size_t count) {
                                return access.read(mapping, static_cast<std::byte*>(host) + done, view, count);
                            });
}

void CpuWindow::shut_down() noexcept {
    _state->shut_down();
}

}  // namespace awaken::transfer
