// SPDX-License-Identifier: Apache-2.0
#include "transfer/packer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "gpu/kernels/texts.h"
#include "gpu/wait.h"
#include "report/totals.h"

namespace awaken::transfer {
namespace {

// The parameters of gpu/kernels/pack.h, with addresses as numbers.
struct Shape {
    std::uint64_t base = 0;
    std::uint64_t width = 0;
    std::array<std::uint64_t, Strided::kLoops> counts{1, 1, 1, 1};
    std::array<std::int64_t, Strided::kLoops> strides{};
};
static_assert(sizeof(Shape) == 80);
struct EntryList {
    std::uint64_t base = 0;
    std::int64_t extent = 0;
    std::uint64_t size = 0;
    std::uint64_t entries = 0;
    std::uint64_t entries_per_element = 0;
};
static_assert(sizeof(EntryList) == 40 && sizeof(ListEntry) == 32);

constexpr unsigned kThreads = 256;
/// Bytes that are worth a block: four units of eight bytes a thread.
constexpr std::uint64_t kBytesPerBlock = std::uint64_t{kThreads} * 4 * 8;
/// Blocks of one kernel for each multiprocessor, as many as it holds at a time.
constexpr unsigned kBlocksPerMultiprocessor = 8;
/// More operations of the runtime than this cost more than a kernel, or than the ways of Copier.
constexpr std::int64_t kMostCopies = 16;
/// Blocks from this length on are copied by 2-D copies where a few suffice, and shorter ones by a kernel. At this
/// length both take the same time within 2 %, from 64 KiB to 16 MiB (H200), and a 2-D copy takes no multiprocessors.
constexpr std::uint64_t kLongRowBytes = std::uint64_t{32} << 10;
/// Consecutive bytes as a shape: one block that never ends.
constexpr std::uint64_t kEndless = std::uint64_t{1} << 62;
/// Free memory beyond this goes back to the device.
constexpr std::size_t kMostFree = std::size_t{64} << 20;
constexpr std::size_t kSmallestMemory = 4096;

std::uint64_t number(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

void* pointer(const std::uintptr_t address) noexcept {
    return reinterpret_cast<void*>(address);
}

Shape line(const std::uint64_t base) {
    Shape shape;
    shape.base = base;
    shape.width = kEndless;
    return shape;
}

Shape shape_of(const TypedMemory& memory) {
    Shape shape;
    const Strided& form = *memory.strided;
    shape.base = memory.origin + static_cast<std::uint64_t>(form.offset);
    shape.width = static_cast<std::uint64_t>(form.width);
    for (std::size_t i = 0; i < Strided::kLoops; ++i) {
        shape.counts[i] = static_cast<std::uint64_t>(form.counts[i]);
        shape.strides[i] = form.strides[i];
    }
    return shape;
}

/// Whether a few 2-D copies suffice.
bool suits_copies(const Strided& form) noexcept {
    if (form.rows_of_blocks() > kMostCopies) {
        return false;
    }
    return form.counts[0] == 1 || (form.strides[0] >= form.width && form.strides[0] <= gpu::kLargestPitch) ||
           form.rows_of_blocks() * form.counts[0] <= kMostCopies;
}

}  // namespace

struct Packer::State : std::enable_shared_from_this<Packer::State> {
    /// The kinds of kernels. Each is compiled when it is first needed. The order is that of AWAKEN_PACK_PART.
    enum class Kind : std::uint8_t { shapes, reshape, lists };
    struct KernelPart {
        enum class Kernels : std::uint8_t { unknown, ready, refused };
        Kernels kernels = Kernels::unknown;
        gpu::ModuleHandle module;
        gpu::KernelHandle pack, unpack;  ///< for reshape, both are the same kernel
    };
    struct Device {
        std::array<KernelPart, 3> parts;
        unsigned most_blocks = kBlocksPerMultiprocessor;
        std::multimap<std::size_t, std::byte*> free;  ///< by size
        std::size_t free_bytes = 0;
    };
    /// A list on a device.
    struct Uploaded final : Attachment {
        explicit Uploaded(Memory lent) : memory(std::move(lent)) {}
        Memory memory;
    };

    State(gpu::Runtime& gpu_runtime, const Tuning& figures, Note reasons)
        : runtime(gpu_runtime), tuning(figures), note(std::move(reasons)) {}

    /// Loads the kernels. Needs the lock.
    void load(int which, Device& on, Kind kind, std::string& reason);
    /// Whether the kernels are loaded. Loads them if need be.
    [[nodiscard]] bool ready(int which, Kind kind);
    [[nodiscard]] gpu::KernelHandle kernel(int which, Kind kind, gpu::KernelHandle KernelPart::* direction,
                                           std::uint64_t bytes, unsigned& blocks);
    [[nodiscard]] bool upload(int which, const FlatType& type);
    [[nodiscard]] std::uint64_t uploaded(int which, const FlatType& type) const;
    [[nodiscard]] gpu::Status move_by_kernel(const Side& to, const Side& from, std::int64_t bytes,
                                             gpu::StreamHandle stream);
    [[nodiscard]] gpu::Status move_by_copies(const Side& to, const Side& from, std::int64_t bytes,
                                             gpu::StreamHandle stream);
    [[nodiscard]] gpu::Status move_list(const Side& listed, const Side& other, bool pack, std::int64_t bytes,
                                        gpu::StreamHandle stream);
    [[nodiscard]] static Memory acquire(const std::shared_ptr<State>& state, int which, std::size_t bytes);
    void give_back(int which, std::byte* data, std::size_t size) noexcept;
    void shut_down() noexcept;

    gpu::Runtime& runtime;
    const Tuning tuning;
    const Note note;
    std::mutex mutex;
    std::map<int, Device> devices;
    bool closed = false;
};

void Packer::State::load(const int which, Device& on, const Kind kind, std::string& reason) {
    static constexpr std::array<std::pair<const char*, const char*>, 3> kNames{
        {{"awaken_pack_shape", "awaken_unpack_shape"},
         {"awaken_reshape", "awaken_reshape"},
         {"awaken_pack_list", "awaken_unpack_list"}}};
    const auto index = static_cast<std::size_t>(kind);
    KernelPart& part = on.parts[index];
    const std::string text = "#define AWAKEN_PACK_PART " + std::to_string(index + 1) + "\n" + gpu::kernels::pack_source;
    std::string log;
    gpu::Status status = runtime.load_kernels(which, "pack.h", text.c_str(), part.module, log);
    if (status.ok()) {
        status = runtime.find_kernel(part.module, kNames[index].first, part.pack);
    }
    if (status.ok()) {
        status = runtime.find_kernel(part.module, kNames[index].second, part.unpack);
    }
    if (status.code == gpu::kBusy) {
        return;  // try again another time
    }
    if (!status.ok()) {
        part.kernels = KernelPart::Kernels::refused;
        reason = "no kernels for datatypes with gaps on GPU " + std::to_string(which) + ": " + status.message() +
                 (log.empty() ? "" : ": " + log.substr(0, log.find('\n')));
        return;
    }
    gpu::DeviceInfo info;
    if (runtime.device_info(which, info).ok() && info.multiprocessors > 0) {
        on.most_blocks = static_cast<unsigned>(info.multiprocessors) * kBlocksPerMultiprocessor;
    }
    part.kernels = KernelPart::Kernels::ready;
}

bool Packer::State::ready(const int which, const Kind kind) {
    std::string reason;
    bool usable = false;
    {
        const std::scoped_lock lock(mutex);
        if (closed) {
            return false;
        }
        Device& on = devices[which];
        const KernelPart& part = on.parts[static_cast<std::size_t>(kind)];
        if (part.kernels == KernelPart::Kernels::unknown) {
            load(which, on, kind, reason);
        }
        usable = part.kernels == KernelPart::Kernels::ready;
    }
    if (!reason.empty() && note) {
        note(reason);
    }
    return usable;
}

gpu::KernelHandle Packer::State::kernel(const int which, const Kind kind,
                                        gpu::KernelHandle KernelPart::* const direction, const std::uint64_t bytes,
                                        unsigned& blocks) {
    const std::scoped_lock lock(mutex);
    const Device& on = devices[which];
    blocks = static_cast<unsigned>(
        std::clamp<std::uint64_t>((bytes + kBytesPerBlock - 1) / kBytesPerBlock, 1, on.most_blocks));
    return on.parts[static_cast<std::size_t>(kind)].*direction;
}

std::uint64_t Packer::State::uploaded(const int which, const FlatType& type) const {
    FlatType::LineAddresses& places = type.places();
    const std::scoped_lock lock(places.mutex);
    for (const FlatType::LineAddress& place : places.list) {
        if (place.owner == this && place.device == which) {
            return number(static_cast<const Uploaded&>(*place.attached).memory.data());
        }
    }
    return 0;
}

bool Packer::State::upload(const int which, const FlatType& type) {
    if (uploaded(which, type) != 0) {
        return true;
    }
    const std::vector<ListEntry>& entries = type.entries();
    if (entries.empty()) {
        return false;
    }
    const std::size_t bytes = entries.size() * sizeof(ListEntry);
    Memory memory = acquire(shared_from_this(), which, bytes);
    gpu::StreamHandle stream;
    if (!memory || !runtime.create_stream(which, false, stream).ok()) {
        return false;
    }
    gpu::Status status = runtime.copy(memory.data(), entries.data(), bytes, stream);
    for (bool done = false; status.ok() && !done;) {
        status = runtime.query_stream(stream, done);
    }
    (void)runtime.destroy_stream(stream).ok();
    if (!status.ok()) {
        return false;
    }
    FlatType::LineAddresses& places = type.places();
    const std::scoped_lock lock(places.mutex);
    places.list.push_back({this, which, std::make_unique<Uploaded>(std::move(memory))});
    return true;
}

gpu::Status Packer::State::move_by_copies(const Side& to, const Side& from, const std::int64_t bytes,
                                          const gpu::StreamHandle stream) {
    const bool pack = from.typed != nullptr;
    const Side& typed = pack ? from : to;
    const std::uintptr_t packed = number(pack ? to.address : from.address);
    gpu::Status status;
    typed.typed->strided->for_each_block(
        typed.at, typed.at + bytes, [&](const StridedBlock& block, const std::int64_t position) {
            const std::uintptr_t user = typed.typed->origin + static_cast<std::uintptr_t>(block.offset);
            const std::uintptr_t line_at = packed + static_cast<std::uintptr_t>(position - typed.at);
            const auto width = static_cast<std::size_t>(block.width);
            if (block.rows > 1 && block.pitch >= block.width && block.pitch <= gpu::kLargestPitch) {
                const auto pitch = static_cast<std::size_t>(block.pitch);
                const auto rows = static_cast<std::size_t>(block.rows);
                if (!status.ok()) {
                    return;
                }
                status = pack ? runtime.copy_2d({pointer(line_at), width, pointer(user), pitch, width, rows}, stream)
                              : runtime.copy_2d({pointer(user), pitch, pointer(line_at), width, width, rows}, stream);
                return;
            }
            for (std::int64_t row = 0; row < block.rows && status.ok(); ++row) {
                void* const in_user = pointer(user + static_cast<std::uintptr_t>(row * block.pitch));
                void* const in_line = pointer(line_at + static_cast<std::uintptr_t>(row * block.width));
                status = pack ? runtime.copy(in_line, in_user, width, stream)
                              : runtime.copy(in_user, in_line, width, stream);
            }
        });
    return status;
}

gpu::Status Packer::State::move_list(const Side& listed, const Side& other, const bool pack, const std::int64_t bytes,
                                     const gpu::StreamHandle stream) {
    const TypedMemory& memory = *listed.typed;
    const FlatType& type = *memory.type;
    const Layout& layout = type.layout();
    const std::vector<ListEntry>& entries = type.entries();
    EntryList list{memory.origin, layout.extent(), static_cast<std::uint64_t>(layout.size()),
                   uploaded(stream.device, type), entries.size()};
    // The entry that holds a position.
    const auto entry_at = [&](const std::uint64_t position) {
        const auto after = std::upper_bound(
            entries.begin(), entries.end(), position % list.size,
            [](const std::uint64_t wanted, const ListEntry& entry) { return wanted < entry.position; });
        return position / list.size * entries.size() + static_cast<std::uint64_t>(after - entries.begin()) - 1;
    };
    auto start = static_cast<std::uint64_t>(listed.at);
    auto length = static_cast<std::uint64_t>(bytes);
    std::uint64_t first = entry_at(start);
    std::uint64_t last = entry_at(start + length - 1) + 1;
    Shape shape = other.typed != nullptr ? shape_of(*other.typed) : line(number(other.address));
    auto other_start = static_cast<std::uint64_t>(other.typed != nullptr ? other.at : 0);
    // The number of threads that share an entry: one for each eight bytes of a mean entry, within a block.
    const std::uint64_t wanted = std::clamp<std::uint64_t>(type.mean_entry_bytes() / 8, 1, kThreads);
    auto team_bits = static_cast<std::uint32_t>(std::bit_width(wanted) - 1);
    unsigned blocks = 1;
    const gpu::KernelHandle launched =
        kernel(stream.device, Kind::lists, pack ? &KernelPart::pack : &KernelPart::unpack,
               std::max(length, (last - first) * (std::uint64_t{8} << team_bits)), blocks);
    if (pack) {
        std::array<void*, 8> arguments{&shape, &other_start, &list, &first, &last, &start, &length, &team_bits};
        return runtime.launch(launched, {blocks, 1, 1}, {kThreads, 1, 1}, 0, stream, arguments.data());
    }
    std::array<void*, 8> arguments{&list, &first, &last, &start, &shape, &other_start, &length, &team_bits};
    return runtime.launch(launched, {blocks, 1, 1}, {kThreads, 1, 1}, 0, stream, arguments.data());
}

Packer::Memory Packer::State::acquire(const std::shared_ptr<State>& state, const int which, const std::size_t bytes) {
    Memory memory;
    const std::size_t size = std::bit_ceil(std::max(bytes, kSmallestMemory));
    std::vector<std::byte*> unwanted;
    {
        const std::scoped_lock lock(state->mutex);
        if (state->closed) {
            return memory;
        }
        Device& on = state->devices[which];
        if (const auto found = on.free.find(size); found != on.free.end()) {
            memory._data = found->second;
            on.free_bytes -= size;
            on.free.erase(found);
        }
        while (memory._data == nullptr && on.free_bytes > kMostFree) {
            const auto largest = std::prev(on.free.end());
            on.free_bytes -= largest->first;
            unwanted.push_back(largest->second);
            on.free.erase(largest);
        }
    }
    for (std::byte* const data : unwanted) {
        state->runtime.free_when_idle(data, which);
    }
    if (memory._data == nullptr) {
        void* fresh = nullptr;
        if (!state->runtime.allocate(which, size, fresh).ok()) {
            return memory;
        }
        memory._data = static_cast<std::byte*>(fresh);
    }
    memory._owner = state;
    memory._size = size;
    memory._device = which;
    return memory;
}

void Packer::State::give_back(const int which, std::byte* const data, const std::size_t size) noexcept {
    const std::scoped_lock lock(mutex);
    if (closed) {
        return;  // freed with the rest
    }
    try {
        Device& on = devices[which];
        on.free.emplace(size, data);
        on.free_bytes += size;
    } catch (const std::bad_alloc&) {
        // There is no room to remember it, so it stays lost until the process ends.
    }
}

void Packer::State::shut_down() noexcept {
    const std::scoped_lock lock(mutex);
    if (std::exchange(closed, true)) {
        return;
    }
    // A failure here means that the runtime is shut down and has freed everything itself.
    for (auto& [which, on] : devices) {
        for (const auto& [size, data] : on.free) {
            runtime.free_when_idle(data, which);
        }
        for (const KernelPart& part : on.parts) {
            if (part.kernels == KernelPart::Kernels::ready) {
                runtime.unload_when_idle(part.module);
            }
        }
    }
    devices.clear();
}

Packer::Packer(gpu::Runtime& runtime, const Tuning& tuning, Note note)
    : _state(std::make_shared<State>(runtime, tuning, std::move(note))) {}

Packer::~Packer() {
    shut_down();
}

bool Packer::has_kernels(const int device) {
    return _state->ready(device, State::Kind::reshape);
}

void Packer::prepare(const int device) {
    for (const State::Kind kind : {State::Kind::shapes, State::Kind::reshape, State::Kind::lists}) {
        static_cast<void>(_state->ready(device, kind));
    }
}

bool Packer::can_move(const int device, const TypedMemory& memory) {
    if (memory.strided) {
        return _state->ready(device, State::Kind::shapes) || suits_copies(*memory.strided);
    }
    return _state->ready(device, State::Kind::lists) && _state->upload(device, *memory.type);
}

report::Mover Packer::mover(const int device, const TypedMemory* const to, const TypedMemory* const from) {
    const TypedMemory& typed = to != nullptr ? *to : *from;
    if ((to != nullptr && from != nullptr) || !typed.strided || !suits_copies(*typed.strided)) {
        return report::Mover::kernel;
    }
    const bool long_rows = static_cast<std::uint64_t>(typed.strided->width) >= kLongRowBytes;
    return long_rows || !_state->ready(device, State::Kind::shapes) ? report::Mover::engine : report::Mover::kernel;
}

gpu::Status Packer::move(const Side& to, const Side& from, const std::int64_t bytes, const gpu::StreamHandle stream) {
    if (bytes <= 0) {
        return {};
    }
    const report::Mover by = mover(stream.device, to.typed, from.typed);
    return report::counted(by, static_cast<std::uint64_t>(bytes),
                           by == report::Mover::engine ? _state->move_by_copies(to, from, bytes, stream)
                                                       : _state->move_by_kernel(to, from, bytes, stream));
}

gpu::Status Packer::State::move_by_kernel(const Side& to, const Side& from, const std::int64_t bytes,
                                          const gpu::StreamHandle stream) {
    for (const Side* const side : {&to, &from}) {
        if (side->typed != nullptr && !side->typed->strided) {
            return move_list(*side, side == &to ? from : to, side == &from, bytes, stream);
        }
    }
    auto length = static_cast<std::uint64_t>(bytes);
    auto to_start = static_cast<std::uint64_t>(to.at), from_start = static_cast<std::uint64_t>(from.at);
    Shape target = to.typed != nullptr ? shape_of(*to.typed) : line(number(to.address));
    Shape source = from.typed != nullptr ? shape_of(*from.typed) : line(number(from.address));
    unsigned blocks = 1;
    const auto launch = [&](const Kind kind, gpu::KernelHandle KernelPart::* const direction, auto... arguments) {
        const gpu::KernelHandle launched = kernel(stream.device, kind, direction, length, blocks);
        std::array<void*, sizeof...(arguments)> list{static_cast<void*>(arguments)...};
        return runtime.launch(launched, {blocks, 1, 1}, {kThreads, 1, 1}, 0, stream, list.data());
    };
    if (to.typed == nullptr) {
        return launch(Kind::shapes, &KernelPart::pack, &target.base, &source, &from_start, &length);
    }
    if (from.typed == nullptr) {
        return launch(Kind::shapes, &KernelPart::unpack, &target, &to_start, &source.base, &length);
    }
    return launch(Kind::reshape, &KernelPart::pack, &target, &to_start, &source, &from_start, &length);
}

gpu::Status Packer::move_through(const Memory& scratch, const Side& to, const Side& from, const std::int64_t bytes,
                                 const gpu::StreamHandle stream) {
    // The parts follow one another in the stream, so each finds the memory free.
    const auto most = static_cast<std::int64_t>(scratch.size());
    const auto copy = [&](void* const into, const void* const out_of, const std::int64_t part) {
        const auto length = static_cast<std::size_t>(part);
        return report::counted(report::Mover::engine, length, _state->runtime.copy(into, out_of, length, stream));
    };
    gpu::Status status;
    for (std::int64_t at = 0; at < bytes && status.ok(); at += most) {
        const std::int64_t part = std::min(most, bytes - at);
        if (from.typed != nullptr) {
            status = move({scratch.data(), nullptr, 0}, {nullptr, from.typed, from.at + at}, part, stream);
            if (status.ok()) {
                status = copy(static_cast<std::byte*>(to.address) + at, scratch.data(), part);
            }
        } else {
            status = copy(scratch.data(), static_cast<const std::byte*>(from.address) + at, part);
            if (status.ok()) {
                status = move({nullptr, to.typed, to.at + at}, {scratch.data(), nullptr, 0}, part, stream);
            }
        }
    }
    return status;
}

Packer::Memory Packer::acquire(const int device, const std::size_t bytes) {
    return State::acquire(_state, device, bytes);
}

const Tuning& Packer::tuning() const noexcept {
    return _state->tuning;
}

void Packer::shut_down() noexcept {
    _state->shut_down();
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

Packer::Memory::Memory(Memory&& other) noexcept
    : _owner(std::move(other._owner)),
      _data(std::exchange(other._data, nullptr)),
      _size(other._size),
      _device(other._device) {}

Packer::Memory& Packer::Memory::operator=(Memory&& other) noexcept {
    if (this != &other) {
        release();
        _owner = std::move(other._owner);
        _data = std::exchange(other._data, nullptr);
        _size = other._size;
        _device = other._device;
    }
    return *this;
}

void Packer::Memory::release() noexcept {
    if (std::byte* const data = std::exchange(_data, nullptr)) {
        _owner->give_back(_device, data, _size);
    }
    _owner.reset();
}

}  // namespace awaken::transfer
