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
#include "trace/trace.h"

// How a layout is moved
// ---------------------
// Where there is a Packer that can, it moves the layout. A kernel packs straight into pinned memory. Or it packs part
// by part into a little memory of the device, and the copy engine brings the parts to the host. The rest of this text
// is about the other cases.
//
// A run of bytes is one copy; rows at a constant distance are one 2-D copy. All copies go to one stream without
// waiting, and the copier waits once, at the end. That is right for large pieces. But a copy of eight bytes costs as
// much as one of eight kilobytes. So the copier gathers a type of very many small pieces in another way, where that is
// cheaper. Neighbouring pieces form a group. The copier copies the whole stretch of memory that the group touches, gaps
// included, into a small pinned scratch area. The CPU picks the pieces out while the next stretch is on its way. The
// copier reads gaps only inside the allocation. Scattering cannot go this way: it would write the gaps.
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

/// Size of one stretch of memory. Two such areas make a copy stream's scratch memory: the GPU fills one while the CPU
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
/// Asks until the answer is "done" or a failure.
template <typename Query>
gpu::Status until_over(const Query& query) noexcept {
    gpu::Status status;
    static_cast<void>(gpu::poll_until_over(
        [&] {
            bool done = false;
            status = query(done);
            return done || !status.ok() ? 1 : 0;
        },
        0));
    return status;
}

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

enum class Direction : std::uint8_t { to_host, to_user };

/// Rows of user memory and their place in host memory.
struct CopyPiece {
    std::uintptr_t user = 0;
    std::int64_t user_pitch = 0;
    std::uintptr_t host = 0;
    std::int64_t host_pitch = 0;
    std::int64_t width = 0;
    std::int64_t rows = 1;

    [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(width * rows); }
    [[nodiscard]] CopyPiece part(const std::int64_t first_row, const std::int64_t row_count) const noexcept {
        CopyPiece result = *this;
        result.user = moved(user, first_row * user_pitch);
        result.host = moved(host, first_row * host_pitch);
        result.rows = row_count;
        return result;
    }
    /// Bytes [from, to) of the only row.
    [[nodiscard]] CopyPiece cut(const std::size_t from, const std::size_t to) const noexcept {
        CopyPiece result = *this;
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
};

bool lies_in(const std::uintptr_t begin, const std::uintptr_t end, const gpu::PointerInfo& info) noexcept {
    return info.size != 0 && begin >= info.base && end >= begin && end - info.base <= info.size;
}

/// Moves the rows with the CPU. `user_shift` leads from the user's address to the place of the bytes (the scratch
/// area).
void move_rows(const CopyPiece& piece, const Direction direction, const std::uintptr_t user_shift = 0) noexcept {
    const auto width = static_cast<std::size_t>(piece.width);
    std::uintptr_t user = piece.user + user_shift;
    std::uintptr_t host = piece.host;
    for (std::int64_t row = 0; row < piece.rows; ++row) {
        if (direction == Direction::to_host) {
            std::memcpy(at(host), at(user), width);
        } else {
            std::memcpy(at(user), at(host), width);
        }
        user = moved(user, piece.user_pitch);
        host = moved(host, piece.host_pitch);
    }
}

[[noreturn]] void fail(const std::string& doing, const gpu::Status& status) {
    throw Error(
        doing + " failed (" + status.message() + ")",
        "run with AWAKEN_CHECK=1 to see whether the buffer was freed or is too short; an error of an earlier kernel "
        "of the program also comes out here");
}

}  // namespace

/// A stream of one device and its resources. One thread at a time uses it.
struct Copier::CopyStream {
    int device = -1;
    gpu::StreamHandle stream;
    std::array<gpu::EventHandle, 2> events;  ///< one for each half of the scratch area
    std::byte* scratch = nullptr;            ///< 2 * kStretchBytes, made when first needed
    bool scratch_pinned = false;
    bool pending = false;  ///< the stream has got work that nobody has waited for yet
    bool broken = false;   ///< a call on the stream failed: not used again
};

struct Copier::State {
    State(gpu::Runtime& gpu_runtime, Packer* const typed_packer) : runtime(gpu_runtime), packer(typed_packer) {}

    class Session;
    class Planner;
    class Sorter;

    /// An idle copy stream of the device, or a new one.
    std::unique_ptr<CopyStream> take(const int device) {
        {
            const std::lock_guard lock(mutex);
            const auto copy_streams = idle.find(device);
            if (copy_streams != idle.end() && !copy_streams->second.empty()) {
                std::unique_ptr<CopyStream> copy_stream = std::move(copy_streams->second.back());
                copy_streams->second.pop_back();
                return copy_stream;
            }
        }
        auto copy_stream = std::make_unique<CopyStream>();
        copy_stream->device = device;
        gpu::Status status = runtime.create_stream(device, true, copy_stream->stream);
        if (!status.ok()) {
            fail("making a stream on GPU " + std::to_string(device), status);
        }
        for (std::size_t i = 0; i < copy_stream->events.size(); ++i) {
            status = runtime.create_event(device, copy_stream->events[i]);
            if (status.ok()) {
                continue;
            }
            while (i > 0) {
                (void)runtime.destroy_event(copy_stream->events[--i]).ok();
            }
            (void)runtime.destroy_stream(copy_stream->stream).ok();
            fail("making an event on GPU " + std::to_string(device), status);
        }
        return copy_stream;
    }

    void give_back(std::unique_ptr<CopyStream> copy_stream) noexcept {
        if (!copy_stream->broken) {
            const std::lock_guard lock(mutex);
            if (!closed) {
                try {
                    idle[copy_stream->device].push_back(std::move(copy_stream));
                    return;
                } catch (const std::bad_alloc&) {
                    // There is no room to remember the copy stream, so it is destroyed below.
                }
            }
        }
        destroy(*copy_stream);
    }

    /// A failure here means that the runtime is shut down and has freed everything itself.
    void destroy(CopyStream& copy_stream) noexcept {
        for (const gpu::EventHandle event : copy_stream.events) {
            (void)runtime.destroy_event(event).ok();
        }
        (void)runtime.destroy_stream(copy_stream.stream).ok();
        if (copy_stream.scratch == nullptr) {
            return;
        }
        if (copy_stream.scratch_pinned) {
            runtime.free_pinned_when_idle(copy_stream.scratch);
        } else {
            delete[] copy_stream.scratch;
        }
        copy_stream.scratch = nullptr;
    }

    void close() noexcept {
        std::map<int, std::vector<std::unique_ptr<CopyStream>>> copy_streams;
        {
            const std::lock_guard lock(mutex);
            closed = true;
            copy_streams.swap(idle);
        }
        for (auto& [device, list] : copy_streams) {
            for (const std::unique_ptr<CopyStream>& copy_stream : list) {
                destroy(*copy_stream);
            }
        }
    }

    void transfer(Direction direction, const Layout& layout, std::uintptr_t user, std::int64_t count,
                  std::int64_t limit, std::uintptr_t host, bool mirrored, const gpu::PointerInfo* info);
    /// Moves by the packer. False, with nothing done, where the packer cannot. `to_host` means to the packed side, of
    /// whatever kind that is.
    [[nodiscard]] bool move_typed(Direction direction, const std::shared_ptr<const FlatType>& type, const void* buffer,
                                  std::int64_t count, std::int64_t limit, const gpu::PointerInfo& info, void* packed,
                                  const gpu::PointerInfo* packed_info);

    gpu::Runtime& runtime;
    Packer* const packer;
    std::mutex mutex;
    std::map<int, std::vector<std::unique_ptr<CopyStream>>> idle;
    bool closed = false;  ///< shut down: the copier keeps no copy streams any more
};

/// The copy streams that one call uses. When a session ends, also by an exception, all its copies are over: after that
/// the caller may free the host memory.
class Copier::State::Session {
  public:
    explicit Session(State& state) : _state(state), _runtime(state.runtime) {}
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    ~Session() {
        for (std::unique_ptr<CopyStream>& copy_stream : _copy_streams) {
            (void)drain(*copy_stream).ok();
            _state.give_back(std::move(copy_stream));
        }
    }

    CopyStream& copy_stream(const int wanted) {
        int device = wanted;
        // Managed memory of some runtimes has no owner. Any device can copy it; the caller's own device is the
        // likeliest to hold it.
        if (device < 0) {
            device = _runtime.device_to_use();
        }
        for (const std::unique_ptr<CopyStream>& known : _copy_streams) {
            if (known->device == device) {
                return *known;
            }
        }
        _copy_streams.reserve(_copy_streams.size() + 1);
        _copy_streams.push_back(_state.take(device));
        return *_copy_streams.back();
    }

    /// Called once per allocation and session: on some runtimes this waits for the device.
    void order(const std::uintptr_t address, const gpu::PointerInfo& info) {
        if (info.base != 0 && !_ordered.insert(info.base).second) {
            return;
        }
        const gpu::Status status = _runtime.order_after_default_stream(at(address), info);
        if (!status.ok()) {
            fail("waiting for earlier work on a GPU buffer", status);
        }
    }

    void copy(CopyStream& copy_stream, void* const destination, const void* const source, const std::size_t bytes) {
        copy_stream.pending = true;
        const gpu::Status status = _runtime.copy(destination, source, bytes, copy_stream.stream);
        if (status.ok()) {
            return;
        }
        copy_stream.broken = true;
        fail("copying " + std::to_string(bytes) + " bytes between host and GPU " + std::to_string(copy_stream.device),
             status);
    }

    /// Lets `give(stream)` put operations for typed memory into the copy stream.
    template <typename Give>
    void give(CopyStream& copy_stream, const Give& give) {
        copy_stream.pending = true;
        const gpu::Status status = give(copy_stream.stream);
        if (status.ok()) {
            return;
        }
        copy_stream.broken = true;
        fail("packing a datatype on GPU " + std::to_string(copy_stream.device), status);
    }

    void copy(CopyStream& copy_stream, const CopyPiece& piece, const Direction direction) {
        const bool to_host = direction == Direction::to_host;
        if (piece.fits_2d()) {
            gpu::Copy2D rows;
            rows.destination = at(to_host ? piece.host : piece.user);
            rows.destination_pitch = static_cast<std::size_t>(to_host ? piece.host_pitch : piece.user_pitch);
            rows.source = at(to_host ? piece.user : piece.host);
            rows.source_pitch = static_cast<std::size_t>(to_host ? piece.user_pitch : piece.host_pitch);
            rows.width = static_cast<std::size_t>(piece.width);
            rows.rows = static_cast<std::size_t>(piece.rows);
            copy_stream.pending = true;
            const gpu::Status status = _runtime.copy_2d(rows, copy_stream.stream);
            if (status.ok()) {
                return;
            }
            copy_stream.broken = true;
            fail("copying " + std::to_string(piece.rows) + " rows of " + std::to_string(piece.width) +
                     " bytes between host and GPU " + std::to_string(copy_stream.device),
                 status);
        }
        for (std::int64_t row = 0; row < piece.rows; ++row) {
            const CopyPiece single = piece.part(row, 1);
            copy(copy_stream, at(to_host ? single.host : single.user), at(to_host ? single.user : single.host),
                 single.bytes());
        }
    }

    /// Marks the work that the copy stream has got so far.
    void mark(CopyStream& copy_stream, const std::size_t event) {
        const gpu::Status status = _runtime.record_event(copy_stream.events[event], copy_stream.stream);
        if (status.ok()) {
            return;
        }
        copy_stream.broken = true;
        fail("recording an event on GPU " + std::to_string(copy_stream.device), status);
    }

    /// Waits for a mark.
    void wait_for(CopyStream& copy_stream, const std::size_t event) {
        const gpu::Status status = poll_event(copy_stream, event);
        if (!status.ok()) {
            fail("copying between host and GPU " + std::to_string(copy_stream.device), status);
        }
    }

    /// Waits until everything that was started is over. Throws when any of it failed.
    void wait() {
        gpu::Status first;
        int device = -1;
        for (const std::unique_ptr<CopyStream>& copy_stream : _copy_streams) {
            const gpu::Status status = drain(*copy_stream);
            if (!status.ok() && first.ok()) {
                first = status;
                device = copy_stream->device;
            }
        }
        if (!first.ok()) {
            fail("copying between host and GPU " + std::to_string(device), first);
        }
    }

    /// Two stretches of pinned memory; ordinary memory where the runtime will not pin.
    std::byte* scratch(CopyStream& copy_stream) {
        if (copy_stream.scratch == nullptr) {
            void* pointer = nullptr;
            copy_stream.scratch_pinned =
                _runtime.allocate_pinned(2 * kStretchBytes, pointer).ok() && pointer != nullptr;
            copy_stream.scratch =
                copy_stream.scratch_pinned ? static_cast<std::byte*>(pointer) : new std::byte[2 * kStretchBytes];
        }
        return copy_stream.scratch;
    }

  private:
    gpu::Status poll_event(CopyStream& copy_stream, const std::size_t event) noexcept {
        const gpu::Status status =
            until_over([&](bool& done) { return _runtime.query_event(copy_stream.events[event], done); });
        copy_stream.broken = copy_stream.broken || !status.ok();
        return status;
    }

    gpu::Status drain(CopyStream& copy_stream) noexcept {
        if (!copy_stream.pending) {
            return {};
        }
        gpu::Status status;
        if (!copy_stream.broken) {
            status = _runtime.record_event(copy_stream.events[0], copy_stream.stream);
            if (status.ok()) {
                status = poll_event(copy_stream, 0);
            }
        }
        if (copy_stream.broken || !status.ok()) {
            // Events say nothing certain any more, but accepted copies may still be running. So ask the stream. When
            // that fails as well, the device has stopped working on it, or the driver is gone.
            copy_stream.broken = true;
            const gpu::Status over =
                until_over([&](bool& done) { return _runtime.query_stream(copy_stream.stream, done); });
            if (status.ok()) {
                status = over;
            }
        }
        copy_stream.pending = false;
        return status;
    }

    State& _state;
    gpu::Runtime& _runtime;
    std::vector<std::unique_ptr<CopyStream>> _copy_streams;
    std::unordered_set<std::uintptr_t> _ordered;
};

/// Chooses for pieces of GPU memory between copies of their own and copies of whole stretches.
class Copier::State::Planner {
  public:
    Planner(Session& session, const Direction direction) : _session(session), _direction(direction) {}

    void add(const CopyPiece& piece, const gpu::PointerInfo& info) {
        _session.order(piece.user, info);
        CopyStream& copy_stream = _session.copy_stream(info.device);
        const std::uintptr_t begin = piece.user_begin(), end = piece.user_end();
        const std::size_t span = end - begin;
        const bool large_run = piece.rows == 1 && span >= kLargeRunBytes;
        if (_direction == Direction::to_user || large_run || !lies_in(begin, end, info)) {
            _session.copy(copy_stream, piece, _direction);
            return;
        }
        if (span > kStretchBytes) {
            add_wide(copy_stream, piece, info);
            return;
        }
        if (!_group.empty()) {
            const std::uintptr_t joint_begin = std::min(_begin, begin), joint_end = std::max(_end, end);
            const auto gap = static_cast<double>(joint_end - joint_begin) - static_cast<double>(_end - _begin);
            const bool far = gap / cost::kLinkBytesPerNs > piece.direct_ns() + cost::kCopyNs + cost::kWaitNs;
            if (_copy_stream != &copy_stream || _base != info.base || joint_end - joint_begin > kStretchBytes || far ||
                _group.size() >= kGroupPieces) {
                close_group();
            }
        }
        if (_group.empty()) {
            _copy_stream = &copy_stream;
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
        CopyStream* copy_stream = nullptr;  ///< null: empty
        std::size_t half = 0;
        std::uintptr_t begin = 0;  ///< in user memory
        std::vector<CopyPiece> pieces;
    };

    /// Rows that reach further than a stretch: one 2-D copy, or stretch by stretch.
    void add_wide(CopyStream& copy_stream, const CopyPiece& piece, const gpu::PointerInfo& info) {
        const auto span = static_cast<double>(piece.user_end() - piece.user_begin());
        const double stretches = span / static_cast<double>(kStretchBytes) + 1;
        const double staged_ns =
            stretches * cost::kCopyNs + cost::kWaitNs + span / cost::kLinkBytesPerNs + piece.pick_ns();
        const std::int64_t distance = piece.user_pitch < 0 ? -piece.user_pitch : piece.user_pitch;
        const bool wide_rows = piece.width >= static_cast<std::int64_t>(kLargeRunBytes);
        const bool sparse = distance > static_cast<std::int64_t>(kStretchBytes) / 2;
        if (wide_rows || sparse || piece.direct_ns() <= staged_ns) {
            _session.copy(copy_stream, piece, _direction);
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
            for (const CopyPiece& piece : _group) {
                _session.copy(*_copy_stream, piece, _direction);
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
        _session.copy(*_copy_stream, _session.scratch(*_copy_stream) + stretch.half * kStretchBytes, at(_begin),
                      _end - _begin);
        _session.mark(*_copy_stream, stretch.half);
        stretch.copy_stream = _copy_stream;
        _next = (_next + 1) % _stretches.size();
    }

    void pick(Stretch& stretch) {
        if (stretch.copy_stream == nullptr) {
            return;
        }
        CopyStream& copy_stream = *std::exchange(stretch.copy_stream, nullptr);
        _session.wait_for(copy_stream, stretch.half);
        const std::uintptr_t shift = address_of(copy_stream.scratch + stretch.half * kStretchBytes) - stretch.begin;
        for (const CopyPiece& piece : stretch.pieces) {
            move_rows(piece, _direction, shift);
        }
    }

    Session& _session;
    const Direction _direction;
    // The group that is being collected: pieces of one allocation, and the memory from the first to the last.
    std::vector<CopyPiece> _group;
    CopyStream* _copy_stream = nullptr;
    std::uintptr_t _base = 0, _begin = 0, _end = 0;
    double _direct_ns = 0, _pick_ns = 0;
    std::array<Stretch, 2> _stretches;
    std::size_t _next = 0;
};

/// Finds out for each piece by itself which memory holds it. Blocks of absolute addresses may be of different kinds,
/// and neither a row's kind nor its end follows from its neighbours.
class Copier::State::Sorter {
  public:
    Sorter(State& state, Planner& planner, const Direction direction)
        : _runtime(state.runtime), _planner(planner), _direction(direction) {}

    void add(const CopyPiece& piece) {
        _queue.push_back(piece);
        if (_queue.size() >= kClassifyBatch) {
            finish();
        }
    }

    void finish() {
        classify(_queue, _ends);
        for (std::size_t i = 0; i < _queue.size(); ++i) {
            const CopyPiece& piece = _queue[i];
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

    void classify(const std::vector<CopyPiece>& pieces, std::vector<Ends>& ends) {
        _pointers.clear();
        for (const CopyPiece& piece : pieces) {
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

    void rows(const CopyPiece& piece, const gpu::PointerInfo& first) {
        if (!first.host_accessible() && lies_in(piece.user_begin(), piece.user_end(), first)) {
            _planner.add(piece, first);
            return;
        }
        std::vector<CopyPiece> batch;
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
    void run(CopyPiece piece, gpu::PointerInfo first, const gpu::PointerInfo& last) {
        for (;;) {
            const std::uintptr_t end = piece.user_end();
            if (first.host_accessible()) {
                if (last.host_accessible()) {
                    move_rows(piece, _direction);
                    return;
                }
                const std::size_t head = find_gpu_memory(piece.user, end, last, first) - piece.user;
                move_rows(piece.cut(0, head), _direction);
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
    std::vector<CopyPiece> _queue;
    std::vector<Ends> _ends;
    std::vector<const void*> _pointers;
    std::vector<gpu::PointerInfo> _infos;
};

void Copier::State::transfer(const Direction direction, const Layout& layout, const std::uintptr_t user,
                             const std::int64_t count, const std::int64_t limit, const std::uintptr_t host,
                             const bool mirrored, const gpu::PointerInfo* const info) {
    std::uintptr_t packed = host;
    const auto for_each_piece = [&](const auto& use) {
        layout.for_each_block(count, limit, [&](const StridedBlock& block) {
            CopyPiece piece;
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
        for_each_piece([direction](const CopyPiece& piece) { move_rows(piece, direction); });
        return;
    }
    trace::Stretch traced;
    traced.begin(trace::Kind::copy, direction == Direction::to_host ? "copy to host" : "copy from host",
                 static_cast<std::uint64_t>(std::min(limit, count * layout.size())),
                 info != nullptr ? info->device : -1);
    Session session(*this);
    Planner planner(session, direction);
    if (info != nullptr) {
        for_each_piece([&](const CopyPiece& piece) { planner.add(piece, *info); });
    } else {
        Sorter sorter(*this, planner, direction);
        for_each_piece([&](const CopyPiece& piece) { sorter.add(piece); });
        sorter.finish();
    }
    planner.finish();
    session.wait();
}

bool Copier::State::move_typed(const Direction direction, const std::shared_ptr<const FlatType>& type,
                               const void* const buffer, const std::int64_t count, const std::int64_t limit,
                               const gpu::PointerInfo& info, void* const packed,
                               const gpu::PointerInfo* const packed_info) {
    if (packer == nullptr || info.host_accessible() || count <= 0 || type->layout().size() == 0 ||
        (packed_info == nullptr && type->layout().is_contiguous(count))) {
        return false;
    }
    const TypedMemory memory(type, buffer, count);
    const std::int64_t bytes = std::min(limit, memory.bytes);
    if (bytes <= 0) {
        return true;
    }
    Packer::Memory scratch;  // outlives the session, which waits for the GPU at its end
    Session session(*this);
    CopyStream& copy_stream = session.copy_stream(info.device);
    if (!packer->can_move(copy_stream.device, memory)) {
        return false;
    }
    gpu::PointerInfo other;
    if (packed_info != nullptr) {
        other = *packed_info;
    } else {
        const void* const pointer = packed;
        runtime.classify({&pointer, 1}, &other);
    }
    const bool near = other.kind == gpu::MemoryKind::managed ||
                      (other.kind == gpu::MemoryKind::device && other.device == copy_stream.device) ||
                      (other.kind == gpu::MemoryKind::pinned &&
                       static_cast<std::size_t>(bytes) <= packer->tuning().pack_direct_bytes);
    if (!near) {
        scratch = packer->acquire(copy_stream.device, std::min(static_cast<std::size_t>(bytes), Packer::kScratchBytes));
        if (!scratch) {
            return false;
        }
    }
    const Layout::Span span = type->layout().span(count);
    session.order(moved(address_of(buffer), span.begin), info);
    if (!other.host_accessible()) {
        session.order(address_of(packed), other);
    }
    const Packer::Side typed{nullptr, &memory, 0}, line{packed, nullptr, 0};
    const Packer::Side& to = direction == Direction::to_host ? line : typed;
    const Packer::Side& from = direction == Direction::to_host ? typed : line;
    session.give(copy_stream, [&](const gpu::StreamHandle stream) {
        return near ? packer->move(to, from, bytes, stream) : packer->move_through(scratch, to, from, bytes, stream);
    });
    session.wait();
    return true;
}

Copier::Copier(gpu::Runtime& runtime, Packer* const packer) : _state(std::make_unique<State>(runtime, packer)) {}

Copier::~Copier() {
    shut_down();
}

void Copier::gather(const std::shared_ptr<const FlatType>& type, const void* const buffer, const std::int64_t count,
                    const std::int64_t limit, std::byte* const packed, const gpu::PointerInfo* const info) {
    if (info == nullptr ||
        !_state->move_typed(Direction::to_host, type, buffer, count, limit, *info, packed, nullptr)) {
        gather(type->layout(), buffer, count, limit, packed, info);
    }
}

void Copier::scatter(const std::shared_ptr<const FlatType>& type, void* const buffer, const std::int64_t count,
                     const std::int64_t limit, const std::byte* const packed, const gpu::PointerInfo* const info) {
    if (info == nullptr || !_state->move_typed(Direction::to_user, type, buffer, count, limit, *info,
                                               const_cast<std::byte*>(packed), nullptr)) {
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
    if (_state->move_typed(Direction::to_host, type, buffer, count, bytes, *info, packed.data(), nullptr)) {
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
    if (!_state->move_typed(Direction::to_user, type, buffer, count, bytes, *info, packed.data(), nullptr)) {
        scatter_mirror(layout, buffer, count, mirror, info);
    }
}

bool Copier::pack(const std::shared_ptr<const FlatType>& type, const void* const buffer, const std::int64_t count,
                  const std::int64_t limit, const gpu::PointerInfo& info, void* const packed,
                  const gpu::PointerInfo& packed_info) {
    return _state->move_typed(Direction::to_host, type, buffer, count, limit, info, packed, &packed_info);
}

bool Copier::unpack(const std::shared_ptr<const FlatType>& type, void* const buffer, const std::int64_t count,
                    const std::int64_t limit, const gpu::PointerInfo& info, const void* const packed,
                    const gpu::PointerInfo& packed_info) {
    return _state->move_typed(Direction::to_user, type, buffer, count, limit, info, const_cast<void*>(packed),
                              &packed_info);
}

void Copier::gather(const Layout& layout, const void* const buffer, const std::int64_t count, const std::int64_t limit,
                    std::byte* const packed, const gpu::PointerInfo* const info) {
    if (info != nullptr && info->host_accessible()) {
        transfer::pack(layout, buffer, count, packed, limit);
        return;
    }
    _state->transfer(Direction::to_host, layout, address_of(buffer), count, limit, address_of(packed), false, info);
}

void Copier::scatter(const Layout& layout, void* const buffer, const std::int64_t count, const std::int64_t limit,
                     const std::byte* const packed, const gpu::PointerInfo* const info) {
    if (info != nullptr && info->host_accessible()) {
        transfer::unpack(layout, buffer, count, packed, limit);
        return;
    }
    _state->transfer(Direction::to_user, layout, address_of(buffer), count, limit, address_of(packed), false, info);
}

void Copier::gather_mirror(const Layout& layout, const void* const buffer, const std::int64_t count,
                           std::byte* const mirror, const gpu::PointerInfo* const info) {
    _state->transfer(Direction::to_host, layout, address_of(buffer), count, std::numeric_limits<std::int64_t>::max(),
                     address_of(mirror), true, info);
}

void Copier::scatter_mirror(const Layout& layout, void* const buffer, const std::int64_t count,
                            const std::byte* const mirror, const gpu::PointerInfo* const info) {
    _state->transfer(Direction::to_user, layout, address_of(buffer), count, std::numeric_limits<std::int64_t>::max(),
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
    trace::Stretch traced;
    traced.begin(trace::Kind::copy, destination == device_side ? "copy from host" : "copy to host", bytes, info.device);
    State::Session session(*_state);
    session.order(address_of(device_side), info);
    session.copy(session.copy_stream(info.device), destination, source, bytes);
    session.wait();
}

void Copier::shut_down() noexcept {
    _state->close();
}

}  // namespace awaken::transfer
