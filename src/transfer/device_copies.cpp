// SPDX-License-Identifier: Apache-2.0
#include "transfer/device_copies.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/recycled.h"
#include "base/step_probe.h"
#include "gpu/kernels/texts.h"
#include "gpu/wait.h"
#include "report/totals.h"
#include "trace/trace.h"
#include "transfer/copy_stream.h"

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
/// How long after a refusal for a busy GPU the kernels are asked for again: each question costs 20 us.
constexpr std::chrono::milliseconds kBetweenLoads{20};

[[noreturn]] void fail_on_gpu(const std::string& doing, const gpu::Status& status) {
    throw Error(doing + " failed (" + status.message() + ")",
                "an error of an earlier kernel of the program is also reported here; run with AWAKEN_CHECK=1 to see "
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

struct DeviceCopies::State {
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
    [[nodiscard]] bool kernels_reach(const Device& on, const End& end);
    void start_through_blocks(const Device& on, Work& work);
    void start_typed(const Device& on, Work& work, Start when);
    /// A copy without a datatype between memory that the GPU reaches.
    [[nodiscard]] std::unique_ptr<Work> start_plain(Device& on, unsigned copy_stream, const End& destination,
                                                    const End& source, std::size_t bytes, Start when);
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

/// One copy.
struct DeviceCopies::Work final : Recycled<DeviceCopies::Work> {
    using Progress = CopyStream::Progress;
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

    /// @param stream  null where the CPU copies.
    Work(CopyStream* const stream, const End& to, const End& from, const std::size_t length)
        : copy_stream(stream), bytes(length), destination(to), source(from) {
        if (copy_stream != nullptr) {
            copy_stream->begin_use();
        }
    }
    /// Waits until the GPU no longer uses either side.
    ~Work() {
        settle();
        if (copy_stream != nullptr) {
            copy_stream->end_use();
        }
    }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    void start_blocks(State& state);
    /// Gets memory of the device for parts of up to `most` bytes. Throws when there is none.
    void need_scratch(int device, std::size_t most);
    /// One copy of typed memory, through `scratch` where there is some.
    [[nodiscard]] gpu::Status move(const End& to, const End& from, std::size_t count, gpu::Runtime& runtime,
                                   gpu::StreamHandle stream) const noexcept;
    /// Throws when the stream did not take an operation, once those before it are over.
    void settle_if_refused(const gpu::Status& status);
    /// Does the work that is possible now. True when the copy is over, well or not.
    bool advance() noexcept;
    /// Starts nothing more, and waits for the work that the GPU was given.
    void settle() noexcept;
    /// Throws once if the copy failed.
    void report();

    CopyStream* const copy_stream;
    const std::size_t bytes;
    Way way = Way::direct;
    bool over = false;
    bool stopped = false;        ///< the GPU refused a part: the copy starts nothing more
    std::uint64_t position = 0;  ///< of the last of its copies in the copy stream
    std::size_t arrived = 0;     ///< bytes
    gpu::Status failure;
    trace::Stretch traced;
    report::Mover mover = report::Mover::engine;  ///< what the trace says

    const End destination, source;
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

/// The state of one GPU.
struct DeviceCopies::State::Device {
    explicit Device(const int device_number) : number(device_number) {}

    const int number;
    Device* next = nullptr;
    /// The small copy stream, the large ones, and those for host memory.
    std::array<std::atomic<CopyStream*>, 1 + kLargeStreams + kHostStreams> current{};
    std::vector<std::unique_ptr<CopyStream>> copy_streams;  ///< these and broken ones; under State::mutex
    CopyKernels kernels;
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

CopyStream& DeviceCopies::State::copy_stream(Device& on, const std::size_t bytes, const unsigned number) {
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
    using Stage = CopyKernels::Stage;
    CopyKernels& kernels = on.kernels;
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
    on.kernels.stage.store(CopyKernels::Stage::refused, std::memory_order_release);
}

void DeviceCopies::State::start_through_blocks(const Device& on, Work& work) {
    work.way = is_pageable(work.destination) ? Work::Way::download : Work::Way::upload;
    work.traced.begin(trace::Kind::copy, title_of(work.destination, work.source), work.bytes, on.number);
    work.start_blocks(*this);
    if (work.stopped) {
        work.settle();
        work.report();
    }
}

void DeviceCopies::State::start_typed(const Device& on, Work& work, const Start when) {
    // Into page-locked memory a kernel writes a short message itself. A long one is faster by the copy engine.
    const End& other = work.destination.typed != nullptr ? work.source : work.destination;
    if (!kernels_reach(on, other) || (is_host(other) && work.bytes > packer->tuning().pack_direct_bytes)) {
        work.need_scratch(on.number, work.bytes);
    }
    work.traced.begin(trace::Kind::copy, title_of(work.destination, work.source), work.bytes, on.number);
    work.settle_if_refused(work.copy_stream->add(
        [&](gpu::Runtime&, const gpu::StreamHandle to) {
            return work.move(work.destination, work.source, work.bytes, runtime, to);
        },
        work.position, when != Start::together));
}

std::unique_ptr<DeviceCopies::Work> DeviceCopies::State::start_plain(Device& on, const unsigned copy_stream,
                                                                     const End& destination, const End& source,
                                                                     const std::size_t bytes, const Start when) {
    const gpu::Copy1D copy{destination.address, source.address, bytes};
    std::unique_ptr<Work> work;
    gpu::Status status;
    // A refused copy must not keep its stream in use, which may then be renewed for the next way.
    const auto attempt = [&](CopyStream& stream, const auto& give) {
        work = std::make_unique<Work>(&stream, End{}, End{}, bytes);
        status = give(*work);
        if (!status.ok()) {
            work.reset();
        }
    };
    if (kernel_may_copy(on, destination, source) && kernel_ready(on)) {
        attempt(this->copy_stream(on, bytes, copy_stream), [&](Work& by_kernel) {
            by_kernel.mover = report::Mover::kernel;
            return by_kernel.copy_stream->add(
                [&](gpu::Runtime&, const gpu::StreamHandle to) { return on.kernels.launch(runtime, copy, to); },
                by_kernel.position, false);
        });
        if (work == nullptr) {
            refuse_kernel(on, status.message());
        }
    }
    if (work == nullptr && when == Start::together && bytes <= kTogetherBytes) {
        const bool by_kernel = kernel_may_copy_in_batch(on, destination, source, bytes);
        CopyStream& stream = this->copy_stream(on, by_kernel ? 0 : bytes, copy_stream);
        if (by_kernel && stream.is_nearly_a_batch()) {
            static_cast<void>(kernel_ready(on));  // before the stream needs it
        }
        attempt(stream, [&](Work& held) { return held.copy_stream->hold(copy, by_kernel, held.mover, held.position); });
    }
    if (work == nullptr) {
        attempt(this->copy_stream(on, bytes, copy_stream), [&](Work& single) {
            return single.copy_stream->add(
                [&](gpu::Runtime&, const gpu::StreamHandle to) {
                    return report::counted(report::Mover::engine, bytes,
                                           runtime.copy(copy.destination, copy.source, bytes, to));
                },
                single.position, false);
        });
    }
    if (work == nullptr) {
        fail_copy(bytes, on.number, status);
    }
    work->traced.begin(trace::Kind::copy, title_of(destination, source), bytes, on.number);
    return work;
}

void DeviceCopies::State::shut_down() noexcept {
    const std::scoped_lock lock(mutex);
    for (Device* item = devices.load(); item != nullptr; item = item->next) {
        for (const std::unique_ptr<CopyStream>& copy_stream : item->copy_streams) {
            copy_stream->shut_down();
        }
        if (item->kernels.stage.exchange(CopyKernels::Stage::unknown) != CopyKernels::Stage::ready) {
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

void DeviceCopies::Work::settle_if_refused(const gpu::Status& status) {
    if (!status.ok()) {
        failure = status;
        settle();
        report();
    }
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
                                     : report::counted(report::Mover::engine, block.bytes,
                                                       runtime.copy(to.address, from.address, block.bytes, stream));
        },
        block.position, true);
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
        traced.by(static_cast<std::uint8_t>(mover));
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
    if (bytes == 0) {
        return {};
    }
    State& state = *_state;
    if (state.cpu_reaches_both(destination, source)) {
        auto work = std::make_unique<Work>(nullptr, destination, source, bytes);
        work->way = Work::Way::cpu;
        static_cast<void>(work->advance());
        return Copy(std::move(work));
    }
    state.order(destination);
    state.order(source);
    State::Device& on = state.device(device);
    const bool typed = destination.typed != nullptr || source.typed != nullptr;
    if (typed && state.packer == nullptr) {
        throw Error("no method is available to move a datatype with gaps", "this is a bug in Awaken: please report it");
    }
    if (!typed && !is_pageable(destination) && !is_pageable(source)) {
        return Copy(state.start_plain(on, copy_stream, destination, source, bytes, when));
    }
    auto work = std::make_unique<Work>(&state.copy_stream(on, bytes, copy_stream), destination, source, bytes);
    if (typed) {
        work->packer = state.packer;
        if (trace::sink() != nullptr) {
            work->mover = state.packer->mover(on.number, destination.typed.get(), source.typed.get());
        }
    }
    if (is_pageable(destination) || is_pageable(source)) {
        state.start_through_blocks(on, *work);
    } else {
        state.start_typed(on, *work, when);
    }
    return Copy(std::move(work));
}

DeviceCopies::Copy DeviceCopies::give(const int device, const unsigned copy_stream, const std::size_t bytes,
                                      const Give& give) {
    State& state = *_state;
    CopyStream& stream = state.copy_stream(state.device(device), bytes, copy_stream);
    auto work = std::make_unique<Work>(&stream, End{}, End{}, bytes);
    work->settle_if_refused(stream.add(
        [&give](gpu::Runtime& runtime, const gpu::StreamHandle to) {
            gpu::Status given = give(runtime, to);
            if (!given.ok()) {
                (void)runtime.synchronize_stream(to).ok();  // nobody will ask about what the stream has accepted
            }
            return given;
        },
        work->position, true));
    return Copy(std::move(work));
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

DeviceCopies::Copy& DeviceCopies::Copy::operator=(Copy&& other) noexcept = default;
DeviceCopies::Copy::Copy(std::unique_ptr<Work> work) noexcept : _work(std::move(work)) {}
DeviceCopies::Copy::~Copy() = default;

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
