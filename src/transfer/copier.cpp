// SPDX-License-Identifier: Apache-2.0
#include "transfer/copier.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gpu/wait.h"
#include "report/totals.h"
#include "trace/trace.h"

// How a layout is moved
// ---------------------
// Where there is a Packer that can, it moves the layout. A kernel packs straight into pinned memory. Or it packs part
// by part into a little memory of the device, and the copy engine brings the parts to the host. The rest of this text
// is about the other cases.
//
// A run of bytes is one copy; rows at a constant distance are one 2-D copy. All copies go to the stream without
// waiting, many in one call, and the copier waits once, at the end. That is right for large pieces. But a copy of eight
// bytes costs as much as one of eight kilobytes. So the copier gathers a type of very many small pieces in another way,
// where that is cheaper. Neighbouring pieces form a group. The copier copies the whole stretch of memory that the group
// touches, gaps included, into a small pinned scratch area. The CPU picks the pieces out while the next stretch is on
// its way. The copier reads gaps only inside the allocation. Scattering cannot go this way: it would write the gaps.
//
// The constants of `cost` below decide for each group which of the two ways is cheaper.

namespace awaken::transfer {
namespace {

/// Nanoseconds and bytes per nanosecond for this decision. They only choose between two right ways, so being off by a
/// factor of two costs little. They fit a discrete GPU behind PCIe 4 or 5.
namespace cost {
constexpr double kCopyNs = 1500;        ///< one asynchronous copy: the driver call and the copy engine's start
constexpr double kRowNs = 10;           ///< one more row in a 2-D copy
constexpr double kWaitNs = 4000;        ///< until the host sees that a stretch has arrived
constexpr double kLinkBytesPerNs = 20;  ///< device to pinned memory
constexpr double kPackRowNs = 3;        ///< the CPU picks one row out of the scratch area
constexpr double kPackBytesPerNs = 8;   ///< and moves its bytes
}  // namespace cost

/// Size of one stretch of memory. A transfer has two such areas of scratch memory: the GPU fills one while the CPU
/// empties the other.
constexpr std::size_t kStretchBytes = std::size_t{512} << 10;
/// A run of this size is worth a copy of its own whatever lies around it.
constexpr std::size_t kLargeRunBytes = std::size_t{32} << 10;
/// Bounds the bookkeeping of a group whose pieces overlap and so never fill a stretch.
constexpr std::size_t kGroupPieces = 16384;
/// One call classifies this many pieces.
constexpr std::size_t kClassifyBatch = 128;
/// The smallest page of any supported system.
constexpr std::uintptr_t kPageBytes = 4096;
/// So many copies are given to a stream in one call.
constexpr std::size_t kGivenTogether = 1024;

std::byte* at(const std::uintptr_t address) noexcept {
    return reinterpret_cast<std::byte*>(address);
}

std::uintptr_t address_of(const void* pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

/// Addresses are modulo 2^64, so offsets and pitches may be negative.
std::uintptr_t moved(const std::uintptr_t address, const std::int64_t by) noexcept {
    return address + static_cast<std::uintptr_t>(by);
}

std::size_t bytes_of(const Layout& layout, const std::int64_t count, const std::int64_t limit) noexcept {
    return static_cast<std::size_t>(std::max<std::int64_t>(0, std::min(limit, count * layout.size())));
}

bool lies_in(const std::uintptr_t begin, const std::uintptr_t end, const gpu::PointerInfo& info) noexcept {
    return info.size != 0 && begin >= info.base && end >= begin && end - info.base <= info.size;
}

[[noreturn]] void fail(const std::string& doing, const gpu::Status& status) {
    throw Error(
        doing + " failed (" + status.message() + ")",
        "run with AWAKEN_CHECK=1 to see whether the buffer was freed or is too short; an error of an earlier kernel "
        "of the program is also reported here");
}

}  // namespace

/// Rows of user memory and their place in host memory.
struct Copier::Piece {
    std::uintptr_t user = 0;
    std::int64_t user_pitch = 0;
    std::uintptr_t host = 0;
    std::int64_t host_pitch = 0;
    std::int64_t width = 0;
    std::int64_t rows = 1;

    [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(width * rows); }
    [[nodiscard]] Piece part(const std::int64_t first_row, const std::int64_t row_count) const noexcept {
        Piece result = *this;
        result.user = moved(user, first_row * user_pitch);
        result.host = moved(host, first_row * host_pitch);
        result.rows = row_count;
        return result;
    }
    /// Bytes [from, to) of the only row.
    [[nodiscard]] Piece cut(const std::size_t from, const std::size_t to) const noexcept {
        Piece result = *this;
        result.user += from;
        result.host += from;
        result.width = static_cast<std::int64_t>(to - from);
        return result;
    }
    [[nodiscard]] std::uintptr_t user_begin() const noexcept {
        return user_pitch < 0 ? moved(user, (rows - 1) * user_pitch) : user;
    }
    [[nodiscard]] std::uintptr_t user_end() const noexcept {
        return moved(user_pitch < 0 ? user : moved(user, (rows - 1) * user_pitch), width);
    }
    [[nodiscard]] bool fits_2d() const noexcept {
        return rows > 1 && user_pitch >= width && host_pitch >= width && user_pitch <= gpu::kLargestPitch &&
               host_pitch <= gpu::kLargestPitch;
    }
    [[nodiscard]] double direct_ns() const noexcept {
        const auto row_count = static_cast<double>(rows);
        return fits_2d() ? cost::kCopyNs + row_count * cost::kRowNs : row_count * cost::kCopyNs;
    }
    [[nodiscard]] double pick_ns() const noexcept {
        return static_cast<double>(rows) * cost::kPackRowNs + static_cast<double>(bytes()) / cost::kPackBytesPerNs;
    }
    /// Moves the rows with the CPU. `user_shift` leads from the user's address to the place of the bytes (the scratch
    /// area).
    void move_rows(const Direction direction, const std::uintptr_t user_shift = 0) const noexcept {
        const auto length = static_cast<std::size_t>(width);
        std::uintptr_t here = user + user_shift;
        std::uintptr_t there = host;
        for (std::int64_t row = 0; row < rows; ++row) {
            if (direction == Direction::to_host) {
                std::memcpy(at(there), at(here), length);
            } else {
                std::memcpy(at(here), at(there), length);
            }
            here = moved(here, user_pitch);
            there = moved(there, host_pitch);
        }
    }
};

/// The copies of one transfer. When a session ends, also by an exception, all its copies are over: after that the
/// caller may free the host memory.
class Copier::Session {
  public:
    Session(Copier& copier, const Direction direction) : _copier(copier), _direction(direction) {}
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session() = default;

    /// Called once per allocation and session: on some runtimes this waits for the device.
    void order(const std::uintptr_t address, const gpu::PointerInfo& info) {
        if (info.base != 0 && !_ordered.insert(info.base).second) {
            return;
        }
        const gpu::Status status = _copier._runtime.order_after_default_stream(at(address), info);
        if (!status.ok()) {
            fail("waiting for earlier work on a GPU buffer", status);
        }
    }

    /// Copies the piece, with others of the same device.
    void copy(const int device, const Piece& piece) {
        if (device != _device || _waiting.size() >= kGivenTogether) {
            flush();
        }
        _device = device;
        _waiting.push_back(piece);
        _bytes += piece.bytes();
    }

    /// Copies a stretch of user memory to host memory. The caller waits for it.
    [[nodiscard]] DeviceCopies::Copy fetch(const int device, std::byte* const to, const std::uintptr_t from,
                                           const std::size_t bytes) {
        return _copier._copies.give(device, stream(), bytes, [=](gpu::Runtime& runtime, const gpu::StreamHandle in) {
            return report::counted(report::Mover::engine, bytes, runtime.copy(to, at(from), bytes, in));
        });
    }

    /// Waits until everything is over. Throws when any of it failed.
    void wait() {
        flush();
        for (DeviceCopies::Copy& copy : _given) {
            copy.wait();
        }
        _given.clear();
    }

    /// One of two stretches of pinned memory; ordinary memory where the runtime will not pin.
    [[nodiscard]] std::byte* scratch(const std::size_t half) {
        StagingBlock& block = _scratch[half];
        if (block.data() == nullptr) {
            block = _copier._pool.acquire(_copier._runtime, kStretchBytes);
        }
        return block.data();
    }

  private:
    [[nodiscard]] unsigned stream() const noexcept {
        return _direction == Direction::to_host ? DeviceCopies::kToHost : DeviceCopies::kFromHost;
    }

    void flush() {
        if (_waiting.empty()) {
            return;
        }
        _given.reserve(_given.size() + 1);
        const bool to_host = _direction == Direction::to_host;
        _given.push_back(
            _copier._copies.give(_device, stream(), _bytes, [&](gpu::Runtime& runtime, const gpu::StreamHandle in) {
                for (const Piece& piece : _waiting) {
                    if (const gpu::Status status = give(piece, to_host, runtime, in); !status.ok()) {
                        return status;
                    }
                }
                return gpu::Status{};
            }));
        _waiting.clear();
        _bytes = 0;
    }

    static gpu::Status give(const Piece& piece, const bool to_host, gpu::Runtime& runtime, const gpu::StreamHandle in) {
        if (piece.fits_2d()) {
            gpu::Copy2D rows;
            rows.destination = at(to_host ? piece.host : piece.user);
            rows.destination_pitch = static_cast<std::size_t>(to_host ? piece.host_pitch : piece.user_pitch);
            rows.source = at(to_host ? piece.user : piece.host);
            rows.source_pitch = static_cast<std::size_t>(to_host ? piece.user_pitch : piece.host_pitch);
            rows.width = static_cast<std::size_t>(piece.width);
            rows.rows = static_cast<std::size_t>(piece.rows);
            return report::counted(report::Mover::engine, piece.bytes(), runtime.copy_2d(rows, in));
        }
        for (std::int64_t row = 0; row < piece.rows; ++row) {
            const Piece single = piece.part(row, 1);
            if (const gpu::Status status =
                    report::counted(report::Mover::engine, single.bytes(),
                                    runtime.copy(at(to_host ? single.host : single.user),
                                                 at(to_host ? single.user : single.host), single.bytes(), in));
                !status.ok()) {
                return status;
            }
        }
        return {};
    }

    Copier& _copier;
    const Direction _direction;
    std::unordered_set<std::uintptr_t> _ordered;
    std::array<StagingBlock, 2> _scratch;
    std::vector<Piece> _waiting;  ///< not given yet, of `_device`
    int _device = -1;
    std::size_t _bytes = 0;                  ///< of `_waiting`
    std::vector<DeviceCopies::Copy> _given;  ///< ends before the scratch memory does
};

/// Chooses for pieces of GPU memory between copies of their own and copies of whole stretches.
class Copier::Planner {
  public:
    Planner(Session& session, const Direction direction) : _session(session), _direction(direction) {}

    void add(const Piece& piece, const gpu::PointerInfo& info) {
        _session.order(piece.user, info);
        const int device = info.device;
        const std::uintptr_t begin = piece.user_begin(), end = piece.user_end();
        const std::size_t span = end - begin;
        const bool large_run = piece.rows == 1 && span >= kLargeRunBytes;
        if (_direction == Direction::to_user || large_run || !lies_in(begin, end, info)) {
            _session.copy(device, piece);
            return;
        }
        if (span > kStretchBytes) {
            add_wide(device, piece, info);
            return;
        }
        if (!_group.empty()) {
            const std::uintptr_t joint_begin = std::min(_begin, begin), joint_end = std::max(_end, end);
            const auto gap = static_cast<double>(joint_end - joint_begin) - static_cast<double>(_end - _begin);
            const bool far = gap / cost::kLinkBytesPerNs > piece.direct_ns() + cost::kCopyNs + cost::kWaitNs;
            if (_device != device || _base != info.base || joint_end - joint_begin > kStretchBytes || far ||
                _group.size() >= kGroupPieces) {
                close_group();
            }
        }
        if (_group.empty()) {
            _device = device;
            _base = info.base;
            _begin = begin;
            _end = end;
            _direct_ns = 0;
            _pick_ns = 0;
        }
        _begin = std::min(_begin, begin);
        _end = std::max(_end, end);
        _direct_ns += piece.direct_ns();
        _pick_ns += piece.pick_ns();
        _group.push_back(piece);
    }

    /// Afterwards all copies are on their way or done, and the CPU has emptied every stretch. The session still has to
    /// wait.
    void finish() {
        if (!_group.empty()) {
            close_group();
        }
        for (std::size_t i = 0; i < _stretches.size(); ++i) {
            // The older one comes first. The order only serves to use the time well.
            pick(_stretches[(_next + i) % _stretches.size()]);
        }
    }

  private:
    struct Stretch {
        std::size_t half = 0;
        DeviceCopies::Copy copy;
        std::uintptr_t begin = 0;  ///< in user memory
        std::vector<Piece> pieces;
    };

    /// Rows that reach further than a stretch: one 2-D copy, or stretch by stretch.
    void add_wide(const int device, const Piece& piece, const gpu::PointerInfo& info) {
        const auto span = static_cast<double>(piece.user_end() - piece.user_begin());
        const double stretches = span / static_cast<double>(kStretchBytes) + 1;
        const double staged_ns =
            stretches * cost::kCopyNs + cost::kWaitNs + span / cost::kLinkBytesPerNs + piece.pick_ns();
        const std::int64_t distance = piece.user_pitch < 0 ? -piece.user_pitch : piece.user_pitch;
        const bool wide_rows = piece.width >= static_cast<std::int64_t>(kLargeRunBytes);
        const bool sparse = distance > static_cast<std::int64_t>(kStretchBytes) / 2;
        if (wide_rows || sparse || piece.direct_ns() <= staged_ns) {
            _session.copy(device, piece);
            return;
        }
        const std::int64_t rows =
            std::max<std::int64_t>(1, (static_cast<std::int64_t>(kStretchBytes) - piece.width) / distance);
        for (std::int64_t row = 0; row < piece.rows; row += rows) {
            add(piece.part(row, std::min(rows, piece.rows - row)), info);
        }
    }

    void close_group() {
        const double staged_ns =
            cost::kCopyNs + cost::kWaitNs + static_cast<double>(_end - _begin) / cost::kLinkBytesPerNs + _pick_ns;
        if (_direct_ns <= staged_ns) {
            for (const Piece& piece : _group) {
                _session.copy(_device, piece);
            }
            _group.clear();
            return;
        }
        Stretch& stretch = _stretches[_next];
        pick(stretch);
        stretch.half = _next;
        stretch.begin = _begin;
        stretch.pieces.swap(_group);
        _group.clear();
        stretch.copy = _session.fetch(_device, _session.scratch(stretch.half), _begin, _end - _begin);
        _next = (_next + 1) % _stretches.size();
    }

    void pick(Stretch& stretch) {
        if (stretch.pieces.empty()) {
            return;
        }
        stretch.copy.wait();
        const std::uintptr_t shift = address_of(_session.scratch(stretch.half)) - stretch.begin;
        for (const Piece& piece : stretch.pieces) {
            piece.move_rows(_direction, shift);
        }
        stretch.pieces.clear();
    }

    Session& _session;
    const Direction _direction;
    // The group that is being collected: pieces of one allocation, and the memory from the first to the last.
    std::vector<Piece> _group;
    int _device = -1;
    std::uintptr_t _base = 0, _begin = 0, _end = 0;
    double _direct_ns = 0, _pick_ns = 0;
    std::array<Stretch, 2> _stretches;
    std::size_t _next = 0;
};

/// Finds out for each piece by itself which memory holds it. Blocks of absolute addresses may be of different kinds,
/// and neither a row's kind nor its end follows from its neighbours.
class Copier::Sorter {
  public:
    Sorter(gpu::Runtime& runtime, Planner& planner, const Direction direction)
        : _runtime(runtime), _planner(planner), _direction(direction) {}

    void add(const Piece& piece) {
        _queue.push_back(piece);
        if (_queue.size() >= kClassifyBatch) {
            finish();
        }
    }

    void finish() {
        classify(_queue, _ends);
        for (std::size_t i = 0; i < _queue.size(); ++i) {
            const Piece& piece = _queue[i];
            if (piece.rows == 1) {
                run(piece, _ends[i].first, _ends[i].last);
            } else {
                rows(piece, _ends[i].first);
            }
        }
        _queue.clear();
    }

  private:
    /// The kinds of memory of the first and the last byte of a piece's first row.
    struct Ends {
        gpu::PointerInfo first, last;
    };

    void classify(const std::vector<Piece>& pieces, std::vector<Ends>& ends) {
        _pointers.clear();
        for (const Piece& piece : pieces) {
            _pointers.push_back(at(piece.user));
            _pointers.push_back(at(moved(piece.user, piece.width - 1)));
        }
        // Fresh objects: a runtime may leave fields of unknown pointers as they were.
        _infos.assign(_pointers.size(), gpu::PointerInfo{});
        _runtime.classify(_pointers, _infos.data());
        ends.resize(pieces.size());
        for (std::size_t i = 0; i < pieces.size(); ++i) {
            ends[i] = {_infos[2 * i], _infos[2 * i + 1]};
        }
    }

    void rows(const Piece& piece, const gpu::PointerInfo& first) {
        if (!first.host_accessible() && lies_in(piece.user_begin(), piece.user_end(), first)) {
            _planner.add(piece, first);
            return;
        }
        std::vector<Piece> batch;
        std::vector<Ends> ends;
        for (std::int64_t row = 0; row < piece.rows;) {
            batch.clear();
            for (; row < piece.rows && batch.size() < kClassifyBatch; ++row) {
                batch.push_back(piece.part(row, 1));
            }
            classify(batch, ends);
            for (std::size_t i = 0; i < batch.size(); ++i) {
                run(batch[i], ends[i].first, ends[i].last);
            }
        }
    }

    /// The address at which, after host memory at `begin`, memory begins that the CPU must not touch. `info` receives
    /// the kind of that memory. `last` describes such memory at the byte before `end`. Kinds of memory change at the
    /// bounds of pages only.
    std::uintptr_t find_gpu_memory(const std::uintptr_t begin, const std::uintptr_t end, const gpu::PointerInfo& last,
                                   gpu::PointerInfo& info) {
        std::vector<const void*> pointers;
        std::vector<gpu::PointerInfo> infos;
        for (std::uintptr_t page = begin / kPageBytes * kPageBytes + kPageBytes; page < end;) {
            pointers.clear();
            for (; page < end && pointers.size() < kClassifyBatch; page += kPageBytes) {
                pointers.push_back(at(page));
            }
            infos.assign(pointers.size(), gpu::PointerInfo{});
            _runtime.classify(pointers, infos.data());
            for (std::size_t i = 0; i < infos.size(); ++i) {
                if (infos[i].host_accessible()) {
                    continue;
                }
                info = infos[i];
                return address_of(pointers[i]);
            }
        }
        info = last;
        return end - 1;
    }

    /// One run of bytes, which may leave the memory in which it begins: allocations can lie side by side, and the
    /// layout has joined neighbouring blocks. A run with host memory at both ends counts as host memory.
    void run(Piece piece, gpu::PointerInfo first, const gpu::PointerInfo& last) {
        for (;;) {
            const std::uintptr_t end = piece.user_end();
            if (first.host_accessible()) {
                if (last.host_accessible()) {
                    piece.move_rows(_direction);
                    return;
                }
                const std::size_t head = find_gpu_memory(piece.user, end, last, first) - piece.user;
                piece.cut(0, head).move_rows(_direction);
                piece = piece.cut(head, end - piece.user);
                continue;
            }
            const std::uintptr_t allocation_end = first.base + first.size;
            if (first.size == 0 || allocation_end >= end || allocation_end <= piece.user) {
                _planner.add(piece, first);
                return;
            }
            const std::size_t head = allocation_end - piece.user;
            _planner.add(piece.cut(0, head), first);
            piece = piece.cut(head, end - piece.user);
            const void* const pointer = at(piece.user);
            first = {};
            _runtime.classify({&pointer, 1}, &first);
        }
    }

    gpu::Runtime& _runtime;
    Planner& _planner;
    const Direction _direction;
    std::vector<Piece> _queue;
    std::vector<Ends> _ends;
    std::vector<const void*> _pointers;
    std::vector<gpu::PointerInfo> _infos;
};

void Copier::transfer(const Direction direction, const Layout& layout, const std::uintptr_t user,
                      const std::int64_t count, const std::int64_t limit, const std::uintptr_t host,
                      const bool mirrored, const gpu::PointerInfo* const info) {
    std::uintptr_t packed = host;
    const auto for_each_piece = [&](const auto& use) {
        layout.for_each_block(count, limit, [&](const StridedBlock& block) {
            Piece piece;
            piece.user = moved(user, block.offset);
            piece.user_pitch = block.pitch;
            piece.width = block.width;
            piece.rows = block.rows;
            piece.host = mirrored ? moved(host, block.offset) : packed;
            piece.host_pitch = mirrored ? block.pitch : block.width;
            packed += piece.bytes();
            use(piece);
        });
    };
    if (info != nullptr && info->host_accessible()) {
        for_each_piece([direction](const Piece& piece) { piece.move_rows(direction); });
        return;
    }
    trace::Stretch traced;
    traced.begin(trace::Kind::copy, direction == Direction::to_host ? "copy to host" : "copy from host",
                 static_cast<std::uint64_t>(std::min(limit, count * layout.size())),
                 info != nullptr ? info->device : -1);
    Session session(*this, direction);
    Planner planner(session, direction);
    if (info != nullptr) {
        for_each_piece([&](const Piece& piece) { planner.add(piece, *info); });
    } else {
        Sorter sorter(_runtime, planner, direction);
        for_each_piece([&](const Piece& piece) { sorter.add(piece); });
        sorter.finish();
    }
    planner.finish();
    session.wait();
}

bool Copier::move(const Direction direction, const std::shared_ptr<const FlatType>& type, const void* const buffer,
                  const std::int64_t count, const std::int64_t limit, const gpu::PointerInfo& info, void* const packed,
                  const gpu::PointerInfo* const packed_info) {
    if (info.host_accessible() || count <= 0 || type->layout().size() == 0) {
        return false;
    }
    const auto memory = std::make_shared<const TypedMemory>(type, buffer, count);
    const std::int64_t bytes = std::min(limit, memory->bytes);
    if (bytes <= 0) {
        return true;
    }
    const int device = info.device >= 0 ? info.device : _runtime.device_to_use();
    gpu::PointerInfo other;
    if (packed_info != nullptr) {
        other = *packed_info;
    } else {
        const void* const pointer = packed;
        _runtime.classify({&pointer, 1}, &other);
    }
    DeviceCopies::End user{const_cast<void*>(buffer), &info};
    if (type->layout().is_contiguous(count)) {
        user.address = at(moved(address_of(buffer), type->layout().span(count).begin));
    } else if (_packer == nullptr || !_copies.can_move(device, *memory)) {
        return false;
    } else {
        // Kernels reach all memory but that of other GPUs and ordinary host memory. For other copies DeviceCopies
        // needs a little memory of the device.
        const bool is_near = other.kind == gpu::MemoryKind::managed ||
                             (other.kind == gpu::MemoryKind::device && other.device == device) ||
                             (other.kind == gpu::MemoryKind::pinned &&
                              static_cast<std::size_t>(bytes) <= _packer->tuning().pack_direct_bytes);
        const std::size_t most = std::min(static_cast<std::size_t>(bytes), Packer::kScratchBytes);
        if (!is_near && !_packer->acquire(device, most)) {
            return false;
        }
        user.typed = memory;
    }
    const DeviceCopies::End line{packed, &other};
    const bool to_host = direction == Direction::to_host;
    _copies
        .start(device, to_host ? DeviceCopies::kToHost : DeviceCopies::kFromHost, to_host ? line : user,
               to_host ? user : line, static_cast<std::size_t>(bytes))
        .wait();
    return true;
}

void Copier::gather(const std::shared_ptr<const FlatType>& type, const void* const buffer, const std::int64_t count,
                    const std::int64_t limit, std::byte* const packed, const gpu::PointerInfo* const info) {
    if (info == nullptr || !move(Direction::to_host, type, buffer, count, limit, *info, packed, nullptr)) {
        gather(type->layout(), buffer, count, limit, packed, info);
    }
}

void Copier::scatter(const std::shared_ptr<const FlatType>& type, void* const buffer, const std::int64_t count,
                     const std::int64_t limit, const std::byte* const packed, const gpu::PointerInfo* const info) {
    if (info == nullptr ||
        !move(Direction::to_user, type, buffer, count, limit, *info, const_cast<std::byte*>(packed), nullptr)) {
        scatter(type->layout(), buffer, count, limit, packed, info);
    }
}

void Copier::gather_mirror(const std::shared_ptr<const FlatType>& type, const void* const buffer,
                           const std::int64_t count, std::byte* const mirror, const gpu::PointerInfo* const info) {
    const Layout& layout = type->layout();
    const std::int64_t bytes = count * layout.size();
    if (info == nullptr || layout.is_contiguous(count) || bytes <= 0) {
        gather_mirror(layout, buffer, count, mirror, info);
        return;
    }
    std::vector<std::byte> packed(static_cast<std::size_t>(bytes));
    if (move(Direction::to_host, type, buffer, count, bytes, *info, packed.data(), nullptr)) {
        transfer::unpack(layout, mirror, count, packed.data(), bytes);
    } else {
        gather_mirror(layout, buffer, count, mirror, info);
    }
}

void Copier::scatter_mirror(const std::shared_ptr<const FlatType>& type, void* const buffer, const std::int64_t count,
                            const std::byte* const mirror, const gpu::PointerInfo* const info) {
    const Layout& layout = type->layout();
    const std::int64_t bytes = count * layout.size();
    if (info == nullptr || layout.is_contiguous(count) || bytes <= 0) {
        scatter_mirror(layout, buffer, count, mirror, info);
        return;
    }
    std::vector<std::byte> packed(static_cast<std::size_t>(bytes));
    transfer::pack(layout, mirror, count, packed.data(), bytes);
    if (!move(Direction::to_user, type, buffer, count, bytes, *info, packed.data(), nullptr)) {
        scatter_mirror(layout, buffer, count, mirror, info);
    }
}

bool Copier::pack(const std::shared_ptr<const FlatType>& type, const void* const buffer, const std::int64_t count,
                  const std::int64_t limit, const gpu::PointerInfo& info, void* const packed,
                  const gpu::PointerInfo& packed_info) {
    return move(Direction::to_host, type, buffer, count, limit, info, packed, &packed_info);
}

bool Copier::unpack(const std::shared_ptr<const FlatType>& type, void* const buffer, const std::int64_t count,
                    const std::int64_t limit, const gpu::PointerInfo& info, const void* const packed,
                    const gpu::PointerInfo& packed_info) {
    return move(Direction::to_user, type, buffer, count, limit, info, const_cast<void*>(packed), &packed_info);
}

void Copier::gather(const Layout& layout, const void* const buffer, const std::int64_t count, const std::int64_t limit,
                    std::byte* const packed, const gpu::PointerInfo* const info) {
    if (info != nullptr && info->host_accessible()) {
        transfer::pack(layout, buffer, count, packed, limit);
    } else if (info != nullptr && layout.is_contiguous(count)) {
        const std::byte* const first = at(moved(address_of(buffer), layout.span(count).begin));
        copy(packed, first, bytes_of(layout, count, limit), first, *info);
    } else {
        transfer(Direction::to_host, layout, address_of(buffer), count, limit, address_of(packed), false, info);
    }
}

void Copier::scatter(const Layout& layout, void* const buffer, const std::int64_t count, const std::int64_t limit,
                     const std::byte* const packed, const gpu::PointerInfo* const info) {
    if (info != nullptr && info->host_accessible()) {
        transfer::unpack(layout, buffer, count, packed, limit);
    } else if (info != nullptr && layout.is_contiguous(count)) {
        std::byte* const first = at(moved(address_of(buffer), layout.span(count).begin));
        copy(first, packed, bytes_of(layout, count, limit), first, *info);
    } else {
        transfer(Direction::to_user, layout, address_of(buffer), count, limit, address_of(packed), false, info);
    }
}

void Copier::gather_mirror(const Layout& layout, const void* const buffer, const std::int64_t count,
                           std::byte* const mirror, const gpu::PointerInfo* const info) {
    transfer(Direction::to_host, layout, address_of(buffer), count, std::numeric_limits<std::int64_t>::max(),
             address_of(mirror), true, info);
}

void Copier::scatter_mirror(const Layout& layout, void* const buffer, const std::int64_t count,
                            const std::byte* const mirror, const gpu::PointerInfo* const info) {
    transfer(Direction::to_user, layout, address_of(buffer), count, std::numeric_limits<std::int64_t>::max(),
             address_of(mirror), true, info);
}

void Copier::copy(void* const destination, const void* const source, const std::size_t bytes,
                  const void* const device_side, const gpu::PointerInfo& info) {
    if (bytes == 0) {
        return;
    }
    if (info.host_accessible()) {
        std::memcpy(destination, source, bytes);
        return;
    }
    const bool to_host = source == device_side;
    const void* const host = to_host ? destination : source;
    gpu::PointerInfo other;
    _runtime.classify({&host, 1}, &other);
    const DeviceCopies::End to{destination, to_host ? &other : &info};
    const DeviceCopies::End from{const_cast<void*>(source), to_host ? &info : &other};
    _copies.start(info.device, to_host ? DeviceCopies::kToHost : DeviceCopies::kFromHost, to, from, bytes).wait();
}

}  // namespace awaken::transfer
