// SPDX-License-Identifier: Apache-2.0
#include "transfer/device_copies.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/round_up.h"
#include "base/step_probe.h"
#include "gpu/kernels/texts.h"
#include "gpu/wait.h"
#include "trace/trace.h"

// How it is known that a copy is over
// -----------------------------------
// A copy stream is a stream that does its copies in order. Copies are counted: the position of a copy is the number of
// copies that the copy stream had got, with this one. A marker is an event that was recorded when the copy stream stood
// at some position. So one query of a marker answers for all copies up to there. Starting a copy records nothing. When
// somebody asks about a copy that no marker covers yet, the copy stream records one at its end. So sixty-four messages
// that start first and are asked about afterwards cost sixty-four launches and one event.
//
// Copies that start together are held back until somebody asks about one of them. Then the stream gets all of them in
// one call. A launch costs as much as 2.7 us, and one of sixty-four in a batch 0.7 us (H200, CUDA 13). A copy engine
// does the copies of a batch one after the other, a kernel does them at the same time: from `kBatch` on,
// one launch of a kernel does all. Sixty-four of 32 KiB from another GPU are over after 17 us instead of 51 (H100), and
// cost the CPU 4 us instead of 40.
//
// Typed memory
// ------------
// The Packer puts operations into the stream, mostly one kernel, that move the bytes of a datatype with gaps. Kernels
// may not reach memory of another GPU of this process, or memory that is not page-locked. Such bytes pass through a
// little memory of the device, in the same stream.
//
// Ordinary host memory
// --------------------
// A GPU copies to and from page-locked memory only; given anything else, the runtime's copy blocks. So such a copy goes
// through a few blocks of pinned memory, and poll() does the CPU's half of each. Each block has a marker of its own, so
// that the CPU can empty the first block while the GPU fills the next.

namespace awaken::transfer {
namespace {

/// Copies below this size share the small copy stream. Longer ones would make the small ones wait.
constexpr std::size_t kSmallCopyBytes = std::size_t{64} << 10;
/// Longer copies are not held back: they take far longer than giving them one by one. Eight of 2 MiB that are given in
/// one call are over 12 % earlier, eight of 16 MiB 3 % (H100).
constexpr std::size_t kTogetherBytes = std::size_t{16} << 20;
/// The most copies that are held back.
constexpr std::size_t kHeld = 64;
/// From this number of held copies on, a kernel does all where it may: 8 of 32 KiB are over after 12 us instead of 13,
/// 4 after 12.7 instead of 12.6 (H100).
constexpr std::size_t kBatch = 8;
/// At most this many large copies of different peers overlap. A GPU has few copy engines for one direction.
constexpr unsigned kLargeStreams = 4;
/// See DeviceCopies::kToHost.
constexpr unsigned kHostStreams = 2;
/// Pinned blocks of a copy from or to ordinary host memory.
constexpr std::size_t kBlocks = 4;
/// Blocks of a long copy are not smaller: each costs a launch and an event.
constexpr std::size_t kSmallestBlockBytes = std::size_t{64} << 10;
/// One poll copies this much between two places in host memory.
constexpr std::size_t kSliceBytes = std::size_t{256} << 10;
/// Threads in a block of the copying kernel. Each thread has four vectors of 16 bytes under way.
constexpr unsigned kKernelThreads = 256;
constexpr std::size_t kVectorBytes = 16;
constexpr std::size_t kKernelBytesPerBlock = kKernelThreads * 4 * kVectorBytes;
/// Threads that a GPU starts together: blocks of fewer are no cheaper.
constexpr std::size_t kWarpThreads = 32;
/// How long after a refusal for a busy GPU the kernels are asked for again: each question costs 20 us.
constexpr std::chrono::milliseconds kBetweenLoads{20};

// The parameter of awaken_copy_batch in gpu/kernels/copy.h, with addresses as numbers.
struct BatchedCopy {
    std::uint64_t target, source, bytes;
};
struct CopyBatch {
    std::array<BatchedCopy, kHeld> copies;
};
static_assert(sizeof(CopyBatch) == 24 * kHeld);

enum class Progress : std::uint8_t { under_way, arrived, failed };

[[noreturn]] void fail_on_gpu(const std::string& doing, const gpu::Status& status) {
    throw Error(doing + " failed (" + status.message() + ")",
                "an error of an earlier kernel of the program also comes out here; run with AWAKEN_CHECK=1 to see "
                "whether the buffer was freed or is too short");
}

[[noreturn]] void fail_copy(const std::size_t bytes, const int device, const gpu::Status& status) {
    fail_on_gpu("copying " + std::to_string(bytes) + " bytes with GPU " + std::to_string(device), status);
}

bool is_pageable(const DeviceCopies::End& end) noexcept {
    return end.info != nullptr && end.info->kind == gpu::MemoryKind::host;
}

bool is_host(const DeviceCopies::End& end) noexcept {
    return end.info != nullptr && end.info->host_accessible();
}

const char* title_of(const DeviceCopies::End& destination, const DeviceCopies::End& source) noexcept {
    return is_host(destination) ? "copy to host" : is_host(source) ? "copy from host" : "copy";
}

}  // namespace

/// The copying kernels of one GPU.
struct DeviceCopies::Kernels {
    enum class Stage : std::uint8_t { unknown, loading, ready, refused };

    std::atomic<Stage> stage{Stage::unknown};
    std::atomic<std::chrono::steady_clock::rep> not_before{0};  ///< the GPU was busy: no attempt before this time
    gpu::ModuleHandle module;                                   ///< this and the rest are valid in stage ready
    gpu::KernelHandle one, batch;
    unsigned largest_grid = 1;

    [[nodiscard]] bool ready() const noexcept { return stage.load(std::memory_order_acquire) == Stage::ready; }
};

struct DeviceCopies::State {
    class CopyStream;
    struct Device;

    State(gpu::Runtime& gpu_runtime, PinnedPool& pinned_pool, const Tuning& figures, const CopyEngine copy_engine,
          Packer* const typed_packer)
        : runtime(gpu_runtime), pool(pinned_pool), tuning(figures), engine(copy_engine), packer(typed_packer) {}
    ~State();
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    [[nodiscard]] Device& device(int wanted);
    [[nodiscard]] CopyStream& copy_stream(Device& on, std::size_t bytes, unsigned number);
    [[nodiscard]] gpu::PointerInfo classify(const void* pointer) noexcept;
    [[nodiscard]] bool cpu_reaches_both(const End& destination, const End& source) noexcept;
    void order(const End& end);
    [[nodiscard]] bool kernel_may_copy(const Device& on, const End& destination, const End& source);
    [[nodiscard]] bool kernel_may_copy_in_batch(const Device& on, const End& destination, const End& source,
                                                std::size_t bytes) const noexcept;
    [[nodiscard]] bool kernel_ready(Device& on);
    void refuse_kernel(Device& on, std::string reason);
    [[nodiscard]] gpu::Status launch_kernel(const Device& on, const End& destination, const End& source,
                                            std::size_t bytes, gpu::StreamHandle stream) noexcept;
    [[nodiscard]] bool kernels_reach(const Device& on, const End& end);
    void shut_down() noexcept;

    gpu::Runtime& runtime;
    PinnedPool& pool;
    const Tuning tuning;
    const CopyEngine engine;
    Packer* const packer;
    mutable std::mutex mutex;               ///< for making devices and copy streams, and for the reason of a refusal
                                            ///< below
    std::atomic<Device*> devices{nullptr};  ///< the list only grows, so that finding a device needs no lock
    std::string kernel_refusal;
};

/// One copy. It belongs to its copy stream, which uses it again, so that starting a copy allocates nothing.
struct DeviceCopies::Work {
    /// How the bytes travel.
    enum class Way : std::uint8_t {
        direct,    ///< one copy by the GPU
        cpu,       ///< slices, by the CPU
        download,  ///< to ordinary host memory through pinned blocks
        upload     ///< from there
    };
    /// A pinned block and the part of the copy that is in it.
    struct Block {
        StagingBlock memory;
        std::size_t bytes = 0;
        std::uint64_t position = 0;  ///< in the copy stream
    };

    void start_blocks(State& state);
    /// Gets memory of the device for parts of up to `most` bytes. Throws when there is none.
    void need_scratch(int device, std::size_t most);
    /// One copy of typed memory, through `scratch` where there is some.
    [[nodiscard]] gpu::Status move(const End& to, const End& from, std::size_t count, gpu::Runtime& runtime,
                                   gpu::StreamHandle stream) const noexcept;
    /// Does the work that is possible now. True when the copy is over, well or not.
    bool advance() noexcept;
    /// Starts nothing more, and waits for the work that the GPU was given.
    void settle() noexcept;
    /// Throws once if the copy failed.
    void report();
    static void put_away(std::unique_ptr<Work> work) noexcept;

    Way way = Way::direct;
    bool over = false;
    bool stopped = false;  ///< the GPU refused a part: the copy starts nothing more
    State::CopyStream* copy_stream = nullptr;
    Work* next = nullptr;        ///< while it waits for its next use
    std::uint64_t position = 0;  ///< of the last of its copies in the copy stream
    std::size_t bytes = 0;
    std::size_t arrived = 0;  ///< bytes
    gpu::Status failure;
    trace::Stretch traced;

    End destination, source;
    Packer* packer = nullptr;  ///< set when an end is typed
    Packer::Memory scratch;
    // For copies through pinned blocks: block number i holds bytes from i * block_bytes on, in blocks[i %
    // blocks.size()].
    std::size_t block_bytes = 0;
    std::size_t given = 0;    ///< blocks that the GPU was given
    std::size_t retired = 0;  ///< blocks that both sides are through with
    std::vector<Block> blocks;

  private:
    void finish(Progress progress) noexcept;
    void copy_slice() noexcept;
    void download() noexcept;
    void upload() noexcept;
    [[nodiscard]] std::size_t bytes_of_block(std::size_t number) const noexcept;
    void give_block(std::size_t number) noexcept;
};

/// A stream with its markers.
class DeviceCopies::State::CopyStream {
  public:
    CopyStream(gpu::Runtime& runtime, const int device, const Kernels& kernels)
        : _runtime(runtime), _device(device), _kernels(kernels) {}
    ~CopyStream() {
        free_list(_spare_work);
        free_list(_returned_work.load());
    }
    CopyStream(const CopyStream&) = delete;
    CopyStream& operator=(const CopyStream&) = delete;

    [[nodiscard]] int device() const noexcept { return _device; }
    /// True once a call on the stream failed: no new copy goes here.
    [[nodiscard]] bool broken() const noexcept { return _broken.load(std::memory_order_acquire); }

    /// A Work for a copy of which nothing has started.
    [[nodiscard]] std::unique_ptr<Work> take_work() {
        const std::scoped_lock lock(_mutex);
        return take();
    }

    /// Starts a copy of one operation; `give(runtime, stream)` hands that to the stream. Null when the runtime refuses
    /// it.
    template <typename Give>
    [[nodiscard]] std::unique_ptr<Work> start(const Give& give, gpu::Status& status) {
        const std::scoped_lock lock(_mutex);
        std::unique_ptr<Work> work = take();
        status = submit(give, work->position);
        if (status.ok()) {
            return work;
        }
        put_back(std::move(work));
        return nullptr;
    }

    /// Holds a copy back until somebody asks about a copy of this copy stream. Null when the copy was refused.
    /// `by_kernel`: a kernel may do it.
    [[nodiscard]] std::unique_ptr<Work> hold(const gpu::Copy1D& copy, const bool by_kernel, gpu::Status& status) {
        const std::scoped_lock lock(_mutex);
        _held.reserve(kHeld);
        _refused.reserve(_refused.size() + kHeld);
        std::unique_ptr<Work> work = take();
        status = _failure;
        if (status.ok() && _held.size() == kHeld) {
            status = give_held();
        }
        if (status.ok()) {
            _all_by_kernel = by_kernel && (_all_by_kernel || _held.empty());
            _held.push_back(copy);
            work->position = ++_given;
            return work;
        }
        put_back(std::move(work));
        return nullptr;
    }

    /// True when the next held copy makes a batch for a kernel.
    [[nodiscard]] bool is_nearly_a_batch() noexcept {
        const std::scoped_lock lock(_mutex);
        return _held.size() + 1 == kBatch && !_kernels.ready();
    }

    /// Gives the stream one more operation. Puts a marker after it if it is `marked`, else when somebody asks.
    template <typename Give>
    gpu::Status add(const Give& give, std::uint64_t& position, const bool marked = true) noexcept {
        const std::scoped_lock lock(_mutex);
        const gpu::Status status = submit(give, position);
        // A failure here shows when somebody asks for the position.
        if (status.ok() && marked) {
            static_cast<void>(mark(position));
        }
        return status;
    }

    /// The state of the operation that was submitted as `position`. When it failed, `why` receives the reason, and the
    /// GPU no longer works on anything in the copy stream.
    [[nodiscard]] Progress ask(const std::uint64_t position, gpu::Status& why) noexcept {
        AWAKEN_STEP("copies: ask");
        if (position <= _finished.load(std::memory_order_acquire) && !_any_refused.load(std::memory_order_acquire)) {
            return Progress::arrived;
        }
        // The thread that holds the lock asks for us as well.
        const std::unique_lock lock(_mutex, std::try_to_lock);
        if (!lock.owns_lock()) {
            return Progress::under_way;
        }
        if (position <= _finished.load(std::memory_order_relaxed)) {
            return outcome(position, why);
        }
        if (_failure.ok()) {
            if (_markers.empty() || _markers.back().covers < position) {
                if (!mark(position)) {
                    return after_failure(why);
                }
            }
            const auto marker = std::lower_bound(
                _markers.begin(), _markers.end(), position,
                [](const Marker& candidate, const std::uint64_t wanted) { return candidate.covers < wanted; });
            bool done = false;
            const gpu::Status status = _runtime.query_event(marker->event, done);
            if (status.ok()) {
                if (!done) {
                    return Progress::under_way;
                }
                retire(static_cast<std::size_t>(marker - _markers.begin()) + 1);
                return outcome(position, why);
            }
            break_down(status);
        }
        return after_failure(why);
    }

    void put_away(std::unique_ptr<Work> work) noexcept {
        Work* const item = work.release();
        item->next = _returned_work.load(std::memory_order_relaxed);
        while (!_returned_work.compare_exchange_weak(item->next, item, std::memory_order_release,
                                                     std::memory_order_relaxed)) {
        }
        _live.fetch_sub(1, std::memory_order_release);
    }

    /// Makes a broken copy stream usable again, with another stream. False while copies of the old one are still alive.
    [[nodiscard]] bool renew() noexcept {
        const std::scoped_lock lock(_mutex);
        if (_live.load(std::memory_order_acquire) != 0) {
            return false;
        }
        close();
        _finished.store(_given, std::memory_order_release);
        _failure = {};
        _drained = false;
        _refused.clear();
        _any_refused.store(false, std::memory_order_release);
        _broken.store(false, std::memory_order_release);
        return true;
    }

    /// Waits until the stream is idle, and destroys it. The next copy makes another.
    void shut_down() noexcept {
        const std::scoped_lock lock(_mutex);
        static_cast<void>(give_held());
        if (_stream.value == nullptr) {
            return;
        }
        const int over = 1;
        static_cast<void>(gpu::poll_until_over([this] { return drained() ? over : 0; }, 0));
        if (_failure.ok()) {
            _finished.store(_given, std::memory_order_release);
        }
        close();
    }

    /// A call for this copy stream failed at once. Its earlier operations may be sound.
    void retire_from_use() noexcept { _broken.store(true, std::memory_order_release); }

  private:
    struct Refused {
        std::uint64_t position;
        gpu::Status why;
    };
    struct Marker {
        gpu::EventHandle event;
        std::uint64_t covers = 0;  ///< the last position before it
    };

    // ---- all below need the lock, but for the list of returned work -------------------------------------------------

    [[nodiscard]] std::unique_ptr<Work> take() {
        if (_spare_work == nullptr) {
            _spare_work = _returned_work.exchange(nullptr, std::memory_order_acquire);
        }
        std::unique_ptr<Work> work;
        if (_spare_work != nullptr) {
            work.reset(std::exchange(_spare_work, _spare_work->next));
            work->next = nullptr;
        } else {
            work = std::make_unique<Work>();
            work->copy_stream = this;
        }
        _live.fetch_add(1, std::memory_order_relaxed);
        return work;
    }
    void put_back(std::unique_ptr<Work> work) noexcept {
        work->next = _spare_work;
        _spare_work = work.release();
        _live.fetch_sub(1, std::memory_order_relaxed);
    }
    static void free_list(Work* item) noexcept {
        while (item != nullptr) {
            delete std::exchange(item, item->next);
        }
    }

    [[nodiscard]] gpu::Status need_stream() noexcept {
        if (_stream.value != nullptr) {
            return {};
        }
        const gpu::Status status = _runtime.create_stream(_device, true, _stream);
        if (!status.ok()) {
            _stream = {};
        }
        return status;
    }

    /// Gives the stream the held copies. Their positions were given out already, so each refused copy is remembered by
    /// its position. A failure of all of them is a failure of the copy stream.
    gpu::Status give_held() noexcept {
        AWAKEN_STEP("copies: give held");
        if (_held.empty()) {
            return _failure;
        }
        gpu::Status status = _failure;
        if (status.ok()) {
            status = need_stream();
        }
        if (!status.ok()) {
            _held.clear();
            if (_failure.ok()) {
                break_down(status);
            }
            return status;
        }
        if (launch_held()) {
            _held.clear();
            return {};
        }
        if (_held.size() == 1 || !_runtime.copy_batch(_held, _stream).ok()) {
            // One bad copy makes the driver refuse a batch, though it may have begun some of it. Those copies are done
            // twice.
            for (std::size_t i = 0; i < _held.size(); ++i) {
                const gpu::Copy1D& copy = _held[i];
                status = _runtime.copy(copy.destination, copy.source, copy.bytes, _stream);
                if (status.ok()) {
                    continue;
                }
                _refused.push_back({_given - (_held.size() - 1 - i), status});
                _any_refused.store(true, std::memory_order_release);
                retire_from_use();
            }
        }
        _held.clear();
        return {};
    }

    /// Gives all held copies to one kernel, if they are many enough. False where the runtime has to do them.
    [[nodiscard]] bool launch_held() noexcept {
        if (_batch_refused || _held.size() < kBatch || !_all_by_kernel || !_kernels.ready()) {
            return false;
        }
        CopyBatch batch{};
        std::size_t longest = 0;
        for (std::size_t i = 0; i < _held.size(); ++i) {
            const gpu::Copy1D& copy = _held[i];
            batch.copies[i] = {reinterpret_cast<std::uintptr_t>(copy.destination),
                               reinterpret_cast<std::uintptr_t>(copy.source), copy.bytes};
            longest = std::max(longest, copy.bytes);
        }
        auto blocks_each = static_cast<unsigned>((longest + kKernelBytesPerBlock - 1) / kKernelBytesPerBlock);
        // A thread without a vector to copy would be started for nothing.
        const std::size_t vectors = (longest + kVectorBytes - 1) / kVectorBytes;
        const auto threads =
            static_cast<unsigned>(std::min<std::size_t>(round_up(vectors, kWarpThreads), kKernelThreads));
        gpu::Dim3 grid;
        grid.x = static_cast<unsigned>(_held.size()) * blocks_each;
        std::array<void*, 2> arguments{static_cast<void*>(&batch), static_cast<void*>(&blocks_each)};
        if (!_runtime.launch(_kernels.batch, grid, {threads, 1, 1}, 0, _stream, arguments.data()).ok()) {
            _batch_refused = true;
        }
        return !_batch_refused;
    }

    /// The outcome of a copy that the stream is through with.
    [[nodiscard]] Progress outcome(const std::uint64_t position, gpu::Status& why) const noexcept {
        for (const Refused& refused : _refused) {
            if (refused.position == position) {
                why = refused.why;
                return Progress::failed;
            }
        }
        return Progress::arrived;
    }

    template <typename Give>
    [[nodiscard]] gpu::Status submit(const Give& give, std::uint64_t& position) noexcept {
        if (const gpu::Status status = give_held(); !status.ok()) {
            return status;
        }
        if (const gpu::Status status = need_stream(); !status.ok()) {
            return status;
        }
        const gpu::Status status = give(_runtime, _stream);
        if (status.ok()) {
            position = ++_given;
        } else {
            retire_from_use();
        }
        return status;
    }

    /// Puts a marker after all operations that the stream has. Gives it the held copies first if this position is one
    /// of them: a question about an older copy leaves them held. False when that failed.
    [[nodiscard]] bool mark(const std::uint64_t position) noexcept {
        AWAKEN_STEP("copies: mark");
        if (position > _given - _held.size() && !give_held().ok()) {
            return false;
        }
        if (_spare_events.empty()) {
            try {
                // Makes room for all events in both lists, so that moving one between them never fails.
                _spare_events.reserve(_markers.size() + 1);
                _markers.reserve(_markers.size() + 1);
            } catch (const std::bad_alloc&) {
                break_down({gpu::kUnsupported, "create_event", "out of host memory"});
                return false;
            }
            gpu::EventHandle event;
            if (const gpu::Status status = _runtime.create_event(_device, event); !status.ok()) {
                break_down(status);
                return false;
            }
            _spare_events.push_back(event);
        }
        const gpu::EventHandle event = _spare_events.back();
        if (const gpu::Status status = _runtime.record_event(event, _stream); !status.ok()) {
            break_down(status);
            return false;
        }
        _spare_events.pop_back();
        _markers.push_back({event, _given - _held.size()});
        return true;
    }

    /// The stream has reached the first `count` markers.
    void retire(const std::size_t count) noexcept {
        _finished.store(_markers[count - 1].covers, std::memory_order_release);
        for (std::size_t i = 0; i < count; ++i) {
            _spare_events.push_back(_markers[i].event);
        }
        _markers.erase(_markers.begin(), _markers.begin() + static_cast<std::ptrdiff_t>(count));
    }

    /// From now on events say nothing certain.
    void break_down(const gpu::Status& status) noexcept {
        _failure = status;
        // A driver that was shut down works on nothing.
        _drained = status.code == gpu::kShutDown;
        retire_from_use();
    }

    /// Whether the stream is idle. When the stream gives no answer, the device has stopped working on it, or the driver
    /// is gone.
    [[nodiscard]] bool drained() noexcept {
        if (_drained) {
            return true;
        }
        if (_stream.value == nullptr) {
            return true;  // the stream could not be made, so it got nothing
        }
        bool done = false;
        if (const gpu::Status status = _runtime.query_stream(_stream, done); !status.ok()) {
            if (_failure.ok()) {
                break_down(status);
            }
            _drained = true;
        } else if (done && !_failure.ok()) {
            _drained = true;
        }
        return _drained || done;
    }

    /// Copies that were accepted may still be running although a call failed. The caller keeps its memory until they
    /// are over.
    [[nodiscard]] Progress after_failure(gpu::Status& why) noexcept {
        if (!drained()) {
            return Progress::under_way;
        }
        why = _failure;
        return Progress::failed;
    }

    void close() noexcept {
        // A failure here means that the runtime is shut down and has freed everything itself.
        for (const Marker& marker : _markers) {
            (void)_runtime.destroy_event(marker.event).ok();
        }
        for (const gpu::EventHandle event : _spare_events) {
            (void)_runtime.destroy_event(event).ok();
        }
        _markers.clear();
        _spare_events.clear();
        if (_stream.value != nullptr) {
            (void)_runtime.destroy_stream(_stream).ok();
        }
        _stream = {};
    }

    gpu::Runtime& _runtime;
    const int _device;
    const Kernels& _kernels;
    std::mutex _mutex;
    gpu::StreamHandle _stream;  ///< made by the first copy
    std::uint64_t _given = 0;   ///< operations that the stream got, held ones included
    std::vector<gpu::Copy1D> _held;
    bool _all_by_kernel = false;    ///< of the held copies
    bool _batch_refused = false;    ///< the runtime has refused the kernel: it does the copies from then on
    std::vector<Refused> _refused;  ///< positions of refused copies among the held ones; the copy stream then takes no
                                    ///< new ones
    std::atomic<bool> _any_refused{false};
    std::atomic<std::uint64_t> _finished{0};
    std::vector<Marker> _markers;  ///< not yet reached as far as we know; oldest first
    std::vector<gpu::EventHandle> _spare_events;
    gpu::Status _failure;   ///< of the stream itself: every unfinished copy has failed
    bool _drained = false;  ///< after a failure: the GPU is through with the stream
    std::atomic<bool> _broken{false};
    std::atomic<int> _live{0};  ///< copies that are still in use
    Work* _spare_work = nullptr;
    std::atomic<Work*> _returned_work{nullptr};  ///< any thread adds one; the holder of the lock takes all
};

/// The state of one GPU.
struct DeviceCopies::State::Device {
    explicit Device(const int device_number) : number(device_number) {}

    const int number;
    Device* next = nullptr;
    /// The small copy stream, the large ones, and those for host memory.
    std::array<std::atomic<CopyStream*>, 1 + kLargeStreams + kHostStreams> current{};
    std::vector<std::unique_ptr<CopyStream>> copy_streams;  ///< these and broken ones; under State::mutex
    Kernels kernels;
};

// ---- State ----------------------------------------------------------------------------------------------------------

DeviceCopies::State::~State() {
    shut_down();
    for (Device* item = devices.load(); item != nullptr;) {
        delete std::exchange(item, item->next);
    }
}

DeviceCopies::State::Device& DeviceCopies::State::device(const int wanted) {
    int number = wanted;
    // Managed memory of some runtimes has no owner. Any device can copy it; the caller's own device is the likeliest to
    // hold it.
    if (number < 0) {
        number = runtime.device_to_use();
    }
    const auto known = [&]() -> Device* {
        for (Device* item = devices.load(std::memory_order_acquire); item != nullptr; item = item->next) {
            if (item->number == number) {
                return item;
            }
        }
        return nullptr;
    };
    if (Device* const item = known()) {
        return *item;
    }
    const std::scoped_lock lock(mutex);
    if (Device* const item = known()) {
        return *item;
    }
    auto made = std::make_unique<Device>(number);
    made->next = devices.load(std::memory_order_relaxed);
    devices.store(made.get(), std::memory_order_release);
    return *made.release();
}

DeviceCopies::State::CopyStream& DeviceCopies::State::copy_stream(Device& on, const std::size_t bytes,
                                                                  const unsigned number) {
    const unsigned large =
        number >= kToHost ? kLargeStreams + (number - kToHost) % kHostStreams : number % kLargeStreams;
    std::atomic<CopyStream*>& slot = on.current[bytes < kSmallCopyBytes ? 0 : 1 + large];
    CopyStream* copy_stream = slot.load(std::memory_order_acquire);
    if (copy_stream != nullptr && !copy_stream->broken()) {
        return *copy_stream;
    }

    const std::scoped_lock lock(mutex);
    copy_stream = slot.load(std::memory_order_relaxed);
    if (copy_stream != nullptr && (!copy_stream->broken() || copy_stream->renew())) {
        return *copy_stream;
    }
    // A copy stream that broke stays until its copies are gone. Then it serves where the next one breaks.
    for (const std::unique_ptr<CopyStream>& candidate : on.copy_streams) {
        const bool in_use = std::any_of(on.current.begin(), on.current.end(),
                                        [&](const auto& other) { return other.load() == candidate.get(); });
        if (in_use || !candidate->renew()) {
            continue;
        }
        slot.store(candidate.get(), std::memory_order_release);
        return *candidate;
    }
    on.copy_streams.push_back(std::make_unique<CopyStream>(runtime, on.number, on.kernels));
    slot.store(on.copy_streams.back().get(), std::memory_order_release);
    return *on.copy_streams.back();
}

gpu::PointerInfo DeviceCopies::State::classify(const void* const pointer) noexcept {
    gpu::PointerInfo info;
    runtime.classify({&pointer, 1}, &info);
    return info;
}

bool DeviceCopies::State::cpu_reaches_both(const End& destination, const End& source) noexcept {
    if (destination.info != nullptr && source.info != nullptr) {
        return destination.info->host_accessible() && source.info->host_accessible();
    }
    // The layer's own memory may be a GPU's. That matters only where the other side would have to pass through pinned
    // blocks. The answer "host" says nothing: a runtime that is shut down gives it for every pointer.
    if (is_pageable(destination)) {
        return classify(source.address).kind == gpu::MemoryKind::pinned;
    }
    if (is_pageable(source)) {
        return classify(destination.address).kind == gpu::MemoryKind::pinned;
    }
    return false;
}

void DeviceCopies::State::order(const End& end) {
    if (end.info == nullptr || end.info->host_accessible()) {
        return;
    }
    const gpu::Status status = runtime.order_after_default_stream(end.address, *end.info);
    if (!status.ok()) {
        fail_on_gpu("waiting for earlier work on a GPU buffer", status);
    }
}

// A kernel copies with multiprocessors that the program's own kernels could use. Where communication and computation
// are to overlap, it is the worse choice, however fast it is by itself. For a single copy it was not even faster: 10.2
// instead of 7.2 us at 8 B, 57.1 instead of 50.9 at 16 MiB (H200). So one does that only where tests ask for it.

bool DeviceCopies::State::kernel_may_copy(const Device& on, const End& destination, const End& source) {
    if (engine != CopyEngine::kernel) {
        return false;
    }
    for (const End* const end : {&destination, &source}) {
        const gpu::PointerInfo info = end->info != nullptr ? *end->info : classify(end->address);
        if (info.kind != gpu::MemoryKind::device) {
            return false;
        }
        // Memory of another process was mapped for this device. A kernel may not reach the program's own memory on
        // another device. Enabling access is the program's business: if we did, the program's own call would find
        // access enabled, which is an error.
        if (end->info != nullptr && info.device != on.number) {
            return false;
        }
    }
    return true;
}

/// A copy engine is told at once when a copy leaves its allocation; a kernel would write there. So the program's ends
/// must lie inside theirs. A sender has checked the layer's own (Link::send_directly).
bool DeviceCopies::State::kernel_may_copy_in_batch(const Device& on, const End& destination, const End& source,
                                                   const std::size_t bytes) const noexcept {
    const auto allowed = [&](const End& end) {
        if (end.info == nullptr) {
            return true;
        }
        const gpu::PointerInfo& info = *end.info;
        const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(end.address) - info.base;
        return info.kind == gpu::MemoryKind::device && info.device == on.number && offset <= info.size &&
               bytes <= info.size - offset;
    };
    return engine != CopyEngine::engine && bytes <= kSmallCopyBytes && allowed(destination) && allowed(source);
}

bool DeviceCopies::State::kernels_reach(const Device& on, const End& end) {
    // The layer's own memory was mapped for this device, or is page-locked. For other devices' memory see above.
    return end.info == nullptr || end.info->kind != gpu::MemoryKind::device || end.info->device == on.number;
}

bool DeviceCopies::State::kernel_ready(Device& on) {
    using Stage = Kernels::Stage;
    Kernels& kernels = on.kernels;
    Stage stage = kernels.stage.load(std::memory_order_acquire);
    if (stage == Stage::ready) {
        return true;
    }
    if (stage != Stage::unknown) {
        return false;
    }
    const std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now();
    // A thread that comes while another one compiles does not wait for it.
    if (now.time_since_epoch().count() < kernels.not_before.load(std::memory_order_relaxed) ||
        !kernels.stage.compare_exchange_strong(stage, Stage::loading, std::memory_order_acquire)) {
        return false;
    }
    std::string log;
    gpu::Status status = runtime.load_kernels(on.number, "copy.h", gpu::kernels::copy_source, kernels.module, log);
    if (status.ok()) {
        status = runtime.find_kernel(kernels.module, "awaken_copy", kernels.one);
        if (status.ok()) {
            status = runtime.find_kernel(kernels.module, "awaken_copy_batch", kernels.batch);
        }
        if (!status.ok()) {
            runtime.unload_when_idle(kernels.module);
        }
    }
    if (status.code == gpu::kBusy) {
        kernels.not_before.store((now + kBetweenLoads).time_since_epoch().count(), std::memory_order_relaxed);
        kernels.stage.store(Stage::unknown, std::memory_order_release);  // try again another time
        return false;
    }
    if (!status.ok()) {
        refuse_kernel(on, status.message() + (log.empty() ? "" : ": " + log.substr(0, log.find('\n'))));
        return false;
    }
    gpu::DeviceInfo info;
    const bool known = runtime.device_info(on.number, info).ok() && info.multiprocessors > 0;
    kernels.largest_grid = known ? static_cast<unsigned>(info.multiprocessors) : 1;
    kernels.stage.store(Stage::ready, std::memory_order_release);
    return true;
}

void DeviceCopies::State::refuse_kernel(Device& on, std::string reason) {
    if (engine == CopyEngine::kernel) {
        const std::scoped_lock lock(mutex);
        if (kernel_refusal.empty()) {
            kernel_refusal = "GPU " + std::to_string(on.number) + " copies without a kernel: " + std::move(reason);
        }
    }
    on.kernels.stage.store(Kernels::Stage::refused, std::memory_order_release);
}

gpu::Status DeviceCopies::State::launch_kernel(const Device& on, const End& destination, const End& source,
                                               const std::size_t bytes, const gpu::StreamHandle stream) noexcept {
    void* target = destination.address;
    const void* origin = source.address;
    unsigned long long length = bytes;
    std::array<void*, 3> arguments{static_cast<void*>(&target), static_cast<void*>(&origin), &length};
    const std::size_t blocks = (bytes + kKernelBytesPerBlock - 1) / kKernelBytesPerBlock;
    gpu::Dim3 grid;
    grid.x = static_cast<unsigned>(std::min<std::size_t>(blocks, on.kernels.largest_grid));
    return runtime.launch(on.kernels.one, grid, {kKernelThreads, 1, 1}, 0, stream, arguments.data());
}

void DeviceCopies::State::shut_down() noexcept {
    const std::scoped_lock lock(mutex);
    for (Device* item = devices.load(); item != nullptr; item = item->next) {
        for (const std::unique_ptr<CopyStream>& copy_stream : item->copy_streams) {
            copy_stream->shut_down();
        }
        if (item->kernels.stage.exchange(Kernels::Stage::unknown) != Kernels::Stage::ready) {
            continue;
        }
        runtime.unload_when_idle(item->kernels.module);
        item->kernels.module = {};
        item->kernels.one = item->kernels.batch = {};
    }
}

// ---- Work -----------------------------------------------------------------------------------------------------------

void DeviceCopies::Work::start_blocks(State& state) {
    block_bytes = bytes;
    if (bytes > kSmallestBlockBytes) {
        // Takes all of it at once as long as blocks do not get too long.
        const std::size_t share = (bytes + kBlocks - 1) / kBlocks;
        const std::size_t longest = std::max(state.tuning.ring_chunk_bytes, kSmallestBlockBytes);
        block_bytes = std::clamp(share, kSmallestBlockBytes, longest);
    }
    const std::size_t count = std::min(kBlocks, (bytes + block_bytes - 1) / block_bytes);
    blocks.reserve(count);
    while (blocks.size() < count) {
        StagingBlock memory = state.pool.acquire(state.runtime, block_bytes);
        if (packer != nullptr && !memory.pinned()) {
            need_scratch(copy_stream->device(), block_bytes);
        }
        // When nothing is left to pin, ordinary memory has to do. More than one block of it would gain nothing.
        if (!memory.pinned() && !blocks.empty()) {
            break;
        }
        blocks.push_back({std::move(memory), 0, 0});
    }
    // A short message's first half is done at once. A long one's takes the CPU too long for a call that only starts a
    // copy.
    if (way == Way::upload && bytes > kSmallestBlockBytes) {
        return;
    }
    for (std::size_t number = 0; number < blocks.size() && !stopped; ++number) {
        give_block(number);
    }
}

void DeviceCopies::Work::need_scratch(const int device, const std::size_t most) {
    if (scratch) {
        return;
    }
    scratch = packer->acquire(device, std::min(most, Packer::kScratchBytes));
    if (!scratch) {
        throw Error("no memory left on GPU " + std::to_string(device) + " to pack a datatype in",
                    "free " + std::to_string(Packer::kScratchBytes >> 20) + " MiB of device memory");
    }
}

gpu::Status DeviceCopies::Work::move(const End& to, const End& from, const std::size_t count, gpu::Runtime& runtime,
                                     const gpu::StreamHandle stream) const noexcept {
    const Packer::Side target{to.address, to.typed.get(), to.at}, origin{from.address, from.typed.get(), from.at};
    const auto moved = static_cast<std::int64_t>(count);
    const gpu::Status status = scratch ? packer->move_through(scratch, target, origin, moved, stream)
                                       : packer->move(target, origin, moved, stream);
    // The stream may have accepted some of several operations, and nobody will ask about those.
    if (!status.ok()) {
        (void)runtime.synchronize_stream(stream).ok();
    }
    return status;
}

std::size_t DeviceCopies::Work::bytes_of_block(const std::size_t number) const noexcept {
    return std::min(block_bytes, bytes - number * block_bytes);
}

void DeviceCopies::Work::give_block(const std::size_t number) noexcept {
    Block& block = blocks[number % blocks.size()];
    const std::size_t offset = number * block_bytes;
    block.bytes = bytes_of_block(number);
    std::byte* const pinned = block.memory.data();
    const End end = way == Way::upload ? destination.from(offset) : source.from(offset);
    if (way == Way::upload) {
        std::memcpy(pinned, source.from(offset).address, block.bytes);
    }
    failure = copy_stream->add(
        [&](gpu::Runtime& runtime, const gpu::StreamHandle stream) {
            const End block_end{pinned, nullptr};
            const End& to = way == Way::upload ? end : block_end;
            const End& from = way == Way::upload ? block_end : end;
            return packer != nullptr ? move(to, from, block.bytes, runtime, stream)
                                     : runtime.copy(to.address, from.address, block.bytes, stream);
        },
        block.position);
    if (!failure.ok()) {
        stopped = true;
        return;
    }
    position = block.position;
    ++given;
}

void DeviceCopies::Work::finish(const Progress progress) noexcept {
    over = progress != Progress::under_way;
    if (progress == Progress::arrived) {
        arrived = bytes;
    }
}

void DeviceCopies::Work::copy_slice() noexcept {
    const std::size_t slice = std::min(kSliceBytes, bytes - arrived);
    std::memcpy(destination.from(arrived).address, source.from(arrived).address, slice);
    arrived += slice;
    over = arrived == bytes;
}

void DeviceCopies::Work::download() noexcept {
    const Block& oldest = blocks[retired % blocks.size()];
    const Progress progress = copy_stream->ask(oldest.position, failure);
    if (progress != Progress::arrived) {
        finish(progress);
        return;
    }
    std::memcpy(destination.from(arrived).address, oldest.memory.data(), oldest.bytes);
    arrived += oldest.bytes;
    ++retired;
    over = arrived == bytes;
    if (given * block_bytes < bytes) {
        give_block(given);
    }
}

void DeviceCopies::Work::upload() noexcept {
    while (retired < given) {
        const Block& oldest = blocks[retired % blocks.size()];
        const Progress progress = copy_stream->ask(oldest.position, failure);
        if (progress == Progress::failed) {
            over = true;
        }
        if (progress != Progress::arrived) {
            break;
        }
        arrived += oldest.bytes;
        ++retired;
    }
    if (arrived == bytes) {
        over = true;
    }
    if (!over && given * block_bytes < bytes && given - retired < blocks.size()) {
        give_block(given);
    }
}

bool DeviceCopies::Work::advance() noexcept {
    if (over) {
        return true;
    }
    if (stopped) {
        gpu::Status later;  // the copy reports its first failure
        over = copy_stream->ask(position, later) != Progress::under_way;
        return over;
    }
    switch (way) {
        case Way::direct:
            finish(copy_stream->ask(position, failure));
            break;
        case Way::cpu:
            copy_slice();
            break;
        case Way::download:
            download();
            break;
        case Way::upload:
            upload();
            break;
    }
    if (over) {
        traced.end();
    }
    return over;
}

void DeviceCopies::Work::settle() noexcept {
    if (over) {
        return;
    }
    if (copy_stream == nullptr) {
        over = true;
        return;
    }
    stopped = true;
    static_cast<void>(gpu::poll_until_over([this] { return advance() ? 1 : 0; }, 0));
}

void DeviceCopies::Work::report() {
    if (failure.ok()) {
        return;
    }
    fail_copy(bytes, copy_stream->device(), std::exchange(failure, gpu::Status{}));
}

void DeviceCopies::Work::put_away(std::unique_ptr<Work> work) noexcept {
    if (work == nullptr) {
        return;
    }
    work->settle();
    State::CopyStream* const copy_stream = work->copy_stream;
    if (copy_stream == nullptr) {
        return;
    }
    work->way = Way::direct;
    work->over = work->stopped = false;
    work->position = 0;
    work->bytes = work->arrived = 0;
    work->failure = {};
    work->traced.end();
    work->block_bytes = work->given = work->retired = 0;
    work->blocks.clear();
    work->destination = work->source = {};
    work->packer = nullptr;
    work->scratch.release();
    copy_stream->put_away(std::move(work));
}

// ---- DeviceCopies ---------------------------------------------------------------------------------------------------

DeviceCopies::DeviceCopies(gpu::Runtime& runtime, PinnedPool& pool, const Tuning& tuning, const CopyEngine engine,
                           Packer* const packer)
    : _state(std::make_unique<State>(runtime, pool, tuning, engine, packer)) {}

DeviceCopies::~DeviceCopies() = default;

bool DeviceCopies::can_move(const int device, const TypedMemory& memory) {
    return _state->packer != nullptr && _state->packer->can_move(device, memory);
}

bool DeviceCopies::has_kernels(const int device) {
    return _state->packer != nullptr && _state->packer->has_kernels(device);
}

DeviceCopies::Copy DeviceCopies::start(const int device, const unsigned copy_stream, const End& destination,
                                       const End& source, const std::size_t bytes, const Start when) {
    AWAKEN_STEP("copies: start");
    Copy copy;
    if (bytes == 0) {
        return copy;
    }
    State& state = *_state;
    if (state.cpu_reaches_both(destination, source)) {
        copy._work = std::make_unique<Work>();
        copy._work->way = Work::Way::cpu;
        copy._work->bytes = bytes;
        copy._work->destination = destination;
        copy._work->source = source;
        static_cast<void>(copy._work->advance());
        return copy;
    }
    state.order(destination);
    state.order(source);
    State::Device& on = state.device(device);
    State::CopyStream& stream = state.copy_stream(on, bytes, copy_stream);

    const bool typed = destination.typed != nullptr || source.typed != nullptr;
    if (typed && state.packer == nullptr) {
        throw Error("a datatype with gaps is to be moved without anything that could",
                    "this is a mistake in Awaken: please report it");
    }
    const bool to_pageable = is_pageable(destination);
    if (to_pageable || is_pageable(source)) {
        copy._work = stream.take_work();
        Work& work = *copy._work;
        work.way = to_pageable ? Work::Way::download : Work::Way::upload;
        work.bytes = bytes;
        work.destination = destination;
        work.source = source;
        work.packer = typed ? state.packer : nullptr;
        work.traced.begin(trace::Kind::copy, title_of(destination, source), bytes, on.number);
        work.start_blocks(state);
        if (work.stopped) {
            work.settle();
            work.report();
        }
        return copy;
    }

    gpu::Status status;
    if (typed) {
        std::unique_ptr<Work> work = stream.take_work();
        work->destination = destination;
        work->source = source;
        work->packer = state.packer;
        work->bytes = bytes;
        copy._work = std::move(work);
        Work& moving = *copy._work;
        // Into page-locked memory a kernel writes a short message itself. A long one is faster by the copy engine.
        const End& other = destination.typed != nullptr ? source : destination;
        if (!state.kernels_reach(on, other) || (is_host(other) && bytes > state.packer->tuning().pack_direct_bytes)) {
            moving.need_scratch(on.number, bytes);
        }
        moving.traced.begin(trace::Kind::copy, title_of(destination, source), bytes, on.number);
        status =
            stream.add([&](gpu::Runtime& runtime,
                           const gpu::StreamHandle to) { return moving.move(destination, source, bytes, runtime, to); },
                       moving.position, when != Start::together);
        if (!status.ok()) {
            moving.failure = status;
            moving.stopped = true;
            moving.settle();
            moving.report();
        }
        return copy;
    }
    if (state.kernel_may_copy(on, destination, source) && state.kernel_ready(on)) {
        copy._work = stream.start(
            [&](gpu::Runtime&, const gpu::StreamHandle to) {
                return state.launch_kernel(on, destination, source, bytes, to);
            },
            status);
        if (copy._work == nullptr) {
            state.refuse_kernel(on, status.message());
        }
    }
    if (copy._work == nullptr && when == Start::together && bytes <= kTogetherBytes) {
        const bool by_kernel = state.kernel_may_copy_in_batch(on, destination, source, bytes);
        State::CopyStream& holding = state.copy_stream(on, by_kernel ? 0 : bytes, copy_stream);
        if (by_kernel && holding.is_nearly_a_batch()) {
            static_cast<void>(state.kernel_ready(on));  // before the stream needs it
        }
        copy._work = holding.hold({destination.address, source.address, bytes}, by_kernel, status);
    }
    if (copy._work == nullptr) {
        copy._work = state.copy_stream(on, bytes, copy_stream)
                         .start(
                             [&](gpu::Runtime& runtime, const gpu::StreamHandle to) {
                                 return runtime.copy(destination.address, source.address, bytes, to);
                             },
                             status);
    }
    if (copy._work == nullptr) {
        fail_copy(bytes, on.number, status);
    }
    copy._work->bytes = bytes;
    copy._work->traced.begin(trace::Kind::copy, title_of(destination, source), bytes, on.number);
    return copy;
}

DeviceCopies::Copy DeviceCopies::give(const int device, const unsigned copy_stream, const std::size_t bytes,
                                      const Give& give) {
    State& state = *_state;
    State::Device& on = state.device(device);
    State::CopyStream& stream = state.copy_stream(on, bytes, copy_stream);
    Copy copy;
    copy._work = stream.take_work();
    Work& work = *copy._work;
    work.bytes = bytes;
    const gpu::Status status = stream.add(
        [&give](gpu::Runtime& runtime, const gpu::StreamHandle to) {
            gpu::Status given = give(runtime, to);
            if (!given.ok()) {
                (void)runtime.synchronize_stream(to).ok();  // nobody will ask about what the stream has accepted
            }
            return given;
        },
        work.position);
    if (!status.ok()) {
        work.failure = status;
        work.stopped = true;
        work.settle();
        work.report();
    }
    return copy;
}

void DeviceCopies::shut_down() noexcept {
    _state->shut_down();
}

std::string DeviceCopies::kernel_refusal() const {
    const std::scoped_lock lock(_state->mutex);
    return _state->kernel_refusal;
}

void request_copy_engine(const CopyEngine engine) noexcept {
    if (engine == CopyEngine::automatic) {
        return;
    }
    // The AMD runtime reads this when it starts. Other runtimes do not know it.
    static_cast<void>(::setenv("HSA_ENABLE_SDMA", engine == CopyEngine::engine ? "1" : "0", 0));
}

// ---- Copy -----------------------------------------------------------------------------------------------------------

DeviceCopies::Copy::Copy() = default;
DeviceCopies::Copy::Copy(Copy&& other) noexcept = default;

DeviceCopies::Copy& DeviceCopies::Copy::operator=(Copy&& other) noexcept {
    if (this != &other) {
        Work::put_away(std::move(_work));
        _work = std::move(other._work);
    }
    return *this;
}

DeviceCopies::Copy::~Copy() {
    Work::put_away(std::move(_work));
}

bool DeviceCopies::Copy::poll() {
    if (_work == nullptr) {
        return true;
    }
    if (!_work->advance()) {
        return false;
    }
    _work->report();
    return true;
}

void DeviceCopies::Copy::wait() {
    if (_work == nullptr) {
        return;
    }
    static_cast<void>(gpu::poll_until_over([this] { return _work->advance() ? 1 : 0; }, 0));
    _work->report();
}

std::size_t DeviceCopies::Copy::completed() const noexcept {
    return _work == nullptr ? 0 : _work->arrived;
}

}  // namespace awaken::transfer
