// SPDX-License-Identifier: Apache-2.0
// Both sides of a message through a ring, by one rule.
//
// The message is cut into pieces of one size; the last one may be shorter. Piece k lies at the start of chunk k %
// chunks. Each side owns one of the two counts: the writer `produced`, the reader `consumed`. A side only ever raises
// its count, to the end of a piece or of the message, once the GPU is done with everything before. The writer may begin
// pieces up to the ring's size beyond the consumed bytes. The reader may begin the produced pieces. So the other side's
// count tells a side how far it may go, and the side tells its own. The two differ in nothing else but the direction of
// their copies.
//
// The other process may be broken, so a side believes its count only where it can be true. A side that gives up says so
// only after the GPU has let go of the ring for it. Its last word to the ring is either that or the last piece. The
// destructors touch no control words, which may by then belong to another message.
#include "transfer/ring.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace awaken::transfer {
namespace {

/// Bytes of each piece but the last. The two processes agree on it without a word, since both know the message's size
/// and the ring's geometry. A message that would fit into few chunks comes in smaller pieces, so that the reader's copy
/// of a piece can overlap with the writer's copy of the next one. Pieces that are too small would spend their time in
/// being started.
std::size_t piece_bytes(const std::size_t bytes, const RingMemory& memory) noexcept {
    constexpr std::size_t kPieces = 8;
    constexpr std::size_t kSmallest = std::size_t{64} << 10;
    constexpr std::size_t kGrain = 4096;  // copies that start at pages are faster than others
    const std::size_t equal = (bytes / kPieces / kGrain + 1) * kGrain;
    return std::min(std::max(equal, kSmallest), memory.chunk_bytes);
}

/// The side of the writer or of the reader.
class Side {
  public:
    enum class Direction : std::uint8_t { into_ring, out_of_ring };

    /// Counts the bytes of the message from `copied` on, but does not copy them.
    Side(const Direction direction, DeviceCopies& copies, RingControl& control, const RingMemory& memory,
         const int device, const DeviceCopies::End& user, const std::size_t copied, const std::size_t bytes)
        : _direction(direction),
          _copies(copies),
          _control(control),
          _own(direction == Direction::into_ring ? control.produced : control.consumed),
          _others(direction == Direction::into_ring ? control.consumed : control.produced),
          _memory(memory),
          _device(device),
          _copied(std::min(copied, bytes)),
          _bytes(bytes),
          _piece(piece_bytes(bytes, memory)) {
        if (_piece == 0 || memory.chunks == 0) {
            throw Error("a message was to go through a ring without chunks",
                        "this is a bug in Awaken: please report it");
        }
        set_user(user);
        // Rings lie side by side. The two directions get copy streams of their own, since a GPU can copy in both at
        // once.
        const auto ring = reinterpret_cast<std::uintptr_t>(memory.base) / (memory.chunks * memory.chunk_bytes);
        _lane = static_cast<unsigned>(2 * ring + (direction == Direction::into_ring ? 0 : 1));
        _under_way.resize(memory.chunks);
    }

    bool advance() {
        return guarded([this] { return step(); });
    }
    void continue_from(const DeviceCopies::End& user) {
        static_cast<void>(guarded([&] {
            for (RingPiece& piece : _under_way) {
                piece.copy.wait();
                piece.over = true;
            }
            set_user(user);
            return finish();
        }));
    }
    [[nodiscard]] bool done() const noexcept { return _finished == _bytes; }
    /// Bytes that this side has reported to the other.
    [[nodiscard]] std::size_t finished() const noexcept { return _finished; }

  private:
    struct RingPiece {
        DeviceCopies::Copy copy;
        bool over = false;
    };

    template <typename Action>
    bool guarded(const Action& action) {
        if (done()) {
            return false;
        }
        if (_error) {
            throw *_error;
        }
        try {
            return action();
        } catch (const Error& error) {
            give_up();
            _error = error;
            throw;
        } catch (...) {
            give_up();
            _error.emplace("a message through shared memory was given up", "look at the error before this one");
            throw;
        }
    }

    void set_user(const DeviceCopies::End& user) {
        _user = user;
        _user_info.reset();
        if (user.info != nullptr) {
            _user_info = *user.info;
            _user.info = &*_user_info;
        }
        _by_cpu = _user_info &&
                  (_user_info->kind == gpu::MemoryKind::host || (_user_info->host_accessible() && !_memory.registered));
    }

    [[nodiscard]] std::size_t end_of_piece(const std::size_t start) const noexcept {
        return start + std::min(_piece, _bytes - start);
    }
    [[nodiscard]] std::size_t round_bytes() const noexcept { return _piece * _memory.chunks; }
    [[nodiscard]] RingPiece& piece_at(const std::size_t start) noexcept {
        return _under_way[start / _piece % _memory.chunks];
    }

    bool step() {
        if (_control.failed.load(std::memory_order_acquire) != 0) {
            throw Error("the other side of a message through shared memory gave it up",
                        "look at the error of the other rank");
        }
        // A process that has not seen this side's last word would wait for it for ever.
        if (const std::uint64_t own = _own.load(std::memory_order_relaxed); own != _finished) {
            throw overwritten(own, _finished);
        }
        // Passes finished pieces on first: the other side may be waiting for them.
        bool progress = finish();
        const std::size_t limit = look_at_other();
        // Several copies under way keep a GPU busy. The CPU finishes no copy sooner by beginning the next.
        while (_begun < limit && (!_by_cpu || _begun == _finished)) {
            begin();
            progress = true;
            finish();  // the first may be over before the last begins
        }
        return progress;
    }

    /// The end of the pieces that may begin now.
    [[nodiscard]] std::size_t look_at_other() {
        const std::uint64_t seen = _others.load(std::memory_order_acquire);
        const bool into_ring = _direction == Direction::into_ring;
        const std::size_t most = into_ring ? _finished : std::min(_bytes, _finished + round_bytes());
        if (seen < _seen || seen > most || (seen % _piece != 0 && seen != _bytes)) {
            throw overwritten(seen, _seen);
        }
        _seen = seen;
        return into_ring ? std::min(_bytes, _seen + round_bytes()) : _seen;
    }

    [[nodiscard]] Error overwritten(const std::uint64_t found, const std::uint64_t before) const {
        return {"the shared memory of a message was overwritten (" + std::to_string(found) + " of " +
                    std::to_string(_bytes) + " bytes after " + std::to_string(before) + ")",
                "look for a process of this job that writes where it must not, or set AWAKEN_PATH=staged"};
    }

    void begin() {
        const std::size_t end = end_of_piece(_begun);
        const std::size_t bytes = std::min(end, std::max(_copied, _begun)) - _begun;
        RingPiece& piece = piece_at(_begun);
        piece.over = true;
        if (bytes != 0) {
            std::byte* const chunk = _memory.base + _begun / _piece % _memory.chunks * _memory.chunk_bytes;
            const DeviceCopies::End ring_end{chunk, _memory.registered ? nullptr : &_unregistered};
            const DeviceCopies::End user_end = _user.from(_begun);
            piece.copy = _direction == Direction::into_ring ? _copies.start(_device, _lane, ring_end, user_end, bytes)
                                                            : _copies.start(_device, _lane, user_end, ring_end, bytes);
            // Asks about the copy at once, so that it has an end of its own. Copies that are asked about together end
            // together, and the other side would have to wait for all of them.
            piece.over = piece.copy.poll();
        }
        _begun = end;
    }

    /// Passes on the pieces that are over, in order.
    bool finish() {
        // The GPU does the copies of a copy stream one after another: when the first is not over, no later one is.
        // Where they pass through pinned memory, the CPU has a part in each.
        const bool ask_all = !_memory.registered;
        std::size_t finished = _finished;
        for (std::size_t start = _finished; start < _begun; start = end_of_piece(start)) {
            RingPiece& piece = piece_at(start);
            piece.over = piece.over || piece.copy.poll();
            if (piece.over && finished == start) {
                finished = end_of_piece(start);
            } else if (!piece.over && !ask_all) {
                break;
            }
        }
        if (finished == _finished) {
            return false;
        }
        _finished = finished;
        _own.store(finished, std::memory_order_release);
        return true;
    }

    void give_up() noexcept {
        _under_way.clear();  // waits for copies under way
        _control.failed.store(1, std::memory_order_release);
    }

    const Direction _direction;
    DeviceCopies& _copies;
    RingControl& _control;
    std::atomic<std::uint64_t>& _own;
    std::atomic<std::uint64_t>& _others;
    const RingMemory _memory;
    const int _device;
    DeviceCopies::End _user;
    const std::size_t _copied, _bytes, _piece;
    std::optional<gpu::PointerInfo> _user_info;
    const gpu::PointerInfo _unregistered;  ///< of kind host
    bool _by_cpu = false;
    unsigned _lane = 0;

    std::vector<RingPiece> _under_way;  ///< by chunk
    std::size_t _begun = 0;             ///< bytes whose copies have started; the end of a piece
    std::size_t _finished = 0;          ///< of these, the bytes reported to the other side
    std::uint64_t _seen = 0;            ///< the other side's count
    std::optional<Error> _error;
};

}  // namespace

struct RingWriter::State {
    Side side;
};

RingWriter::RingWriter(DeviceCopies& copies, RingControl& control, const RingMemory& memory, const int device,
                       const DeviceCopies::End& source, const std::size_t bytes)
    : _state(new State{Side(Side::Direction::into_ring, copies, control, memory, device, source, bytes, bytes)}) {}

RingWriter::~RingWriter() = default;

bool RingWriter::advance() {
    return _state->side.advance();
}

void RingWriter::continue_from(const DeviceCopies::End& copy) {
    _state->side.continue_from(copy);
}

bool RingWriter::done() const noexcept {
    return _state->side.done();
}

std::size_t RingWriter::produced() const noexcept {
    return _state->side.finished();
}

struct RingReader::State {
    Side side;
};

RingReader::RingReader(DeviceCopies& copies, RingControl& control, const RingMemory& memory, const int device,
                       const DeviceCopies::End& destination, const std::size_t wanted, const std::size_t bytes)
    : _state(
          new State{Side(Side::Direction::out_of_ring, copies, control, memory, device, destination, wanted, bytes)}) {}

RingReader::~RingReader() = default;

bool RingReader::advance() {
    return _state->side.advance();
}

bool RingReader::done() const noexcept {
    return _state->side.done();
}

}  // namespace awaken::transfer
