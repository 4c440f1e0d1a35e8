// SPDX-License-Identifier: Apache-2.0
#include "coll/device/engine.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/fnv1a.h"
#include "base/relax.h"
#include "gpu/kernels/codes.h"
#include "gpu/kernels/texts.h"
#include "gpu/wait.h"
#include "report/totals.h"

namespace awaken::coll {

namespace {

constexpr unsigned kMostThreads = 512;
constexpr unsigned kWarp = 32;
/// Bytes of a thread, up to the size at which blocks are full: one vector, so that a small collective waits once for
/// the memory of another GPU.
constexpr std::uint64_t kBytesPerThread = 16;
/// The most blocks of a collective that nothing of the program's runs beside. MPI_Allreduce of 1, 8 and 64 MiB reaches
/// 54, 202 and 307 GB/s with 64, 51, 207 and 299 with 32, 59, 195 and 307 with 128 (H200).
constexpr unsigned kMostBlocks = 64;
/// Collectives of different communicators overlap up to this number.
constexpr unsigned kStreams = 4;
constexpr std::uint32_t kCounters = 1024;
constexpr std::size_t kWordPage = 4096;
/// Each word has a cache line of its own.
constexpr std::size_t kWordStride = 128;

// The parameters of the kernels in gpu/kernels/combine.h, whose pointers have 8 bytes.
struct Places {
    std::array<std::uint64_t, kernels::kMostPlaces> at;
};
struct Notice {
    std::uint64_t counter;
    std::uint64_t word;
    std::uint64_t value;
    std::array<std::uint64_t, kernels::kMostAwaited> awaited{};
    std::uint64_t released = 0;
    std::uint32_t awaited_count = 0;
    std::uint32_t awaited_number = 0;
};
struct Moves {
    std::array<Engine::Copy, kernels::kMostMoves> list;
};

/// Threads without work still cost time at the kernel's end.
unsigned threads_for(const std::uint64_t bytes) noexcept {
    const std::uint64_t wanted = (bytes + kBytesPerThread - 1) / kBytesPerThread;
    const std::uint64_t whole = (wanted + kWarp - 1) / kWarp * kWarp;
    return static_cast<unsigned>(std::clamp<std::uint64_t>(whole, kWarp, kMostThreads));
}

std::uint64_t hash_of(const gpu::DeviceInfo& info) noexcept {
    Fnv1a hash;
    for (const unsigned char byte : info.uuid) {
        hash.add_word(byte);
    }
    return hash.add(info.pci_bus_id).value() | 1;
}

[[noreturn]] void fail(const char* what, const gpu::Status& status) {
    throw Error(std::string(what) + " failed (" + status.message() + ")",
                "an error of an earlier kernel of the program is also reported here; run with AWAKEN_CHECK=1 to see "
                "whether a buffer was freed or is too short");
}

}  // namespace

struct Engine::Device {
    struct Loaded {
        std::uint32_t code = 0;
        bool usable = false;
        gpu::ModuleHandle module;
        gpu::KernelHandle combine, move;
    };
    int number = -1;
    unsigned most_blocks = 1;
    unsigned most_blocks_beside = 1;         ///< beside kernels of the program's
    std::vector<gpu::StreamHandle> streams;  ///< kStreams of ours, and one for the library
    unsigned next_stream = 0;
    void* counters = nullptr;
    std::vector<std::uint32_t> free_counters;
    std::vector<Loaded> loaded;

    [[nodiscard]] const Loaded* find(const std::uint32_t code) const noexcept {
        const auto found =
            std::find_if(loaded.begin(), loaded.end(), [&](const Loaded& one) { return one.code == code; });
        return found != loaded.end() ? &*found : nullptr;
    }
    /// The kernel for a code that was prepared.
    [[nodiscard]] gpu::KernelHandle combine_for(const std::uint32_t code) const {
        const Loaded* const one = find(code);
        if (one == nullptr || !one->usable) {
            throw Error("a kernel is launched that was never prepared", "this is a bug in Awaken: please report it");
        }
        return one->combine;
    }
    /// Every module has the kernel that moves.
    [[nodiscard]] gpu::KernelHandle move() const {
        const auto one = std::find_if(loaded.begin(), loaded.end(), [](const Loaded& each) { return each.usable; });
        if (one == loaded.end()) {
            throw Error("a kernel is launched that was never prepared", "this is a bug in Awaken: please report it");
        }
        return one->move;
    }
};

Engine::Engine(gpu::Runtime& runtime, transfer::Exports& exports, transfer::ExportedPool& exported,
               transfer::Mappings& mappings, transfer::DeviceCopies& copies, const transfer::Tuning& tuning, Note note)
    : _runtime(runtime),
      _exports(exports),
      _exported(exported),
      _mappings(mappings),
      _copies(copies),
      _tuning(tuning),
      _note(std::move(note)) {}

Engine::~Engine() {
    shut_down();
}

void Engine::order_by(stream::Ordering* const ordering) noexcept {
    _ordering = ordering;
    if (ordering != nullptr) {
        ordering->watch(this);
    }
}

void Engine::keep(std::unique_ptr<Remains> remains) {
    const std::scoped_lock lock(_kept_mutex);
    _kept.push_back(std::move(remains));
    _keeps.store(true, std::memory_order_release);
}

void Engine::sweep() noexcept {
    if (!_keeps.load(std::memory_order_acquire)) {
        return;
    }
    const std::unique_lock lock(_kept_mutex, std::try_to_lock);
    if (lock.owns_lock()) {
        std::erase_if(_kept, [](const std::unique_ptr<Remains>& each) { return each->look(); });
        _keeps.store(!_kept.empty(), std::memory_order_release);
    }
}

void Engine::let_go() noexcept {
    const std::scoped_lock lock(_kept_mutex);
    for (const std::unique_ptr<Remains>& each : _kept) {
        each->let_go();
    }
}

void Engine::note_once(const std::string& reason) {
    {
        const std::scoped_lock lock(_mutex);
        if (std::find(_noted.begin(), _noted.end(), reason) != _noted.end()) {
            return;
        }
        _noted.push_back(reason);
    }
    _note(reason);
}

Engine::Device& Engine::device_of(const int device) {
    for (const std::unique_ptr<Device>& known : _devices) {
        if (known->number == device) {
            return *known;
        }
    }
    auto made = std::make_unique<Device>();
    made->number = device;
    gpu::DeviceInfo info;
    if (const gpu::Status status = _runtime.device_info(device, info); !status.ok()) {
        fail("asking what a GPU is", status);
    }
    const auto processors = static_cast<unsigned>(std::max(info.multiprocessors, 1));
    made->most_blocks = std::min(processors, kMostBlocks);
    made->most_blocks_beside = std::min(processors, static_cast<unsigned>(_tuning.collective_overlap_blocks));
    gpu::StreamHandle stream;
    for (unsigned i = 0; i < kStreams + 1; ++i) {
        if (const gpu::Status status = _runtime.create_stream(device, false, stream); !status.ok()) {
            fail("creating a stream", status);
        }
        made->streams.push_back(stream);
    }
    constexpr std::size_t kBytes = kCounters * sizeof(std::uint32_t);
    gpu::Status status = _runtime.allocate(device, kBytes, made->counters);
    if (status.ok()) {
        status = _runtime.fill(made->counters, 0, kBytes, made->streams.front());
    }
    if (status.ok()) {
        status = _runtime.synchronize_stream(made->streams.front());
    }
    if (!status.ok()) {
        fail("setting up GPU memory for collectives", status);
    }
    for (std::uint32_t i = kCounters; i > 0; --i) {
        made->free_counters.push_back(i - 1);
    }
    _devices.push_back(std::move(made));
    return *_devices.back();
}

Engine::Kernels Engine::prepare(const int device, const std::uint32_t code) {
    std::string reason;
    {
        const std::scoped_lock lock(_mutex);
        if (_shut_down) {
            return Kernels::none;
        }
        Device& on = device_of(device);
        if (const Device::Loaded* const known = on.find(code)) {
            return known->usable ? Kernels::usable : Kernels::none;
        }
        Device::Loaded loaded;
        loaded.code = code;
        // Compiled for this code alone: the source has a case for every type and operation, and compiling all takes
        // seconds.
        const std::string text = "#define AWAKEN_ONLY_CODE " + std::to_string(kernels::same_kernel(code)) + "\n" +
                                 gpu::kernels::combine_source;
        std::string log;
        gpu::Status status = _runtime.load_kernels(device, "combine.h", text.c_str(), loaded.module, log);
        if (status.ok()) {
            status = _runtime.find_kernel(loaded.module, "awaken_combine", loaded.combine);
        }
        if (status.ok()) {
            status = _runtime.find_kernel(loaded.module, "awaken_move", loaded.move);
        }
        loaded.usable = status.ok();
        if (status.code == gpu::kBusy) {
            return Kernels::not_yet;
        }
        if (!status.ok()) {
            reason = "no kernels for collectives on GPU " + std::to_string(device) + ": " + status.message();
        }
        on.loaded.push_back(loaded);
        if (loaded.usable) {
            return Kernels::usable;
        }
    }
    note_once(reason);
    return Kernels::none;
}

unsigned Engine::blocks_for(const unsigned most, const std::uint64_t bytes) const noexcept {
    const std::uint64_t wanted = (bytes + _tuning.collective_block_bytes - 1) / _tuning.collective_block_bytes;
    return static_cast<unsigned>(std::clamp<std::uint64_t>(wanted, 1, most));
}

Engine::Work Engine::reserve(Device& device, const gpu::StreamHandle stream) {
    if (device.free_counters.empty()) {
        throw Error("more than " + std::to_string(kCounters) + " collectives are in progress on one GPU",
                    "complete some before starting more");
    }
    Work work;
    work._engine = this;
    work._device = device.number;
    work._stream = stream;
    work._counter = device.free_counters.back();
    device.free_counters.pop_back();
    return work;
}

void Engine::run(const int device, const Fold& fold) {
    std::atomic<std::uint64_t>* const word = take_word();
    if (word == nullptr) {
        throw Error("no page-locked memory for a kernel's flag",
                    "free host memory, or raise the limit of locked memory");
    }
    struct GiveBack {
        Engine& engine;
        std::atomic<std::uint64_t>* word;
        ~GiveBack() { engine.give_back_word(word); }
    } const give_back{*this, word};
    const std::uint64_t value = word->load(std::memory_order_relaxed) + 1;
    Work work = start(device, {fold}, {}, *word, value);
    constexpr std::chrono::microseconds kBetweenQueries{200};
    auto asked = std::chrono::steady_clock::now();
    for (unsigned turn = 1; word->load(std::memory_order_acquire) != value; ++turn) {
        relax();
        if (turn % 64 != 0) {
            continue;
        }
        sched_yield();
        if (const auto now = std::chrono::steady_clock::now(); now - asked > kBetweenQueries) {
            asked = now;
            static_cast<void>(work.query());  // throws if the kernel failed
        }
    }
    work.finished();
}

Engine::Work Engine::start(const int device, const std::function<void(gpu::StreamHandle)>& issue,
                           std::atomic<std::uint64_t>& word, const std::uint64_t value) {
    gpu::StreamHandle stream;
    gpu::KernelHandle notify;
    Work work;
    {
        const std::scoped_lock lock(_mutex);
        Device& on = device_of(device);
        notify = on.move();
        stream = on.streams[kStreams];
        work = reserve(on, stream);
    }
    work._traced.begin(trace::Kind::kernel, "NCCL or RCCL", 0, device);
    // Not under the lock: a library may take long for what it does first.
    if (const gpu::Status status = _runtime.run_on(device, [&] { issue(stream); }); !status.ok()) {
        fail("making a GPU current", status);
    }
    Moves none{};
    std::uint32_t count = 0;
    Notice notice{0, reinterpret_cast<std::uint64_t>(&word), value};
    std::array<void*, 3> arguments{&none, &count, &notice};
    if (const gpu::Status status = _runtime.launch(notify, {1, 1, 1}, {kWarp, 1, 1}, 0, stream, arguments.data());
        !status.ok()) {
        fail("launching a kernel", status);
    }
    return work;
}

std::uint64_t Engine::identity_of(const int device) {
    const std::scoped_lock lock(_mutex);
    const auto known =
        std::find_if(_identities.begin(), _identities.end(), [&](const auto& one) { return one.first == device; });
    if (known != _identities.end()) {
        return known->second;
    }
    gpu::DeviceInfo info;
    if (const gpu::Status status = _runtime.device_info(device, info); !status.ok()) {
        fail("asking what a GPU is", status);
    }
    _identities.emplace_back(device, hash_of(info));
    return _identities.back().second;
}

bool Engine::use_library(const LibraryUse use) noexcept {
    int now = _library_uses.load(std::memory_order_relaxed);
    do {
        if (now < 0 || (use == LibraryUse::alone && now != 0)) {
            return false;
        }
    } while (!_library_uses.compare_exchange_weak(now, use == LibraryUse::alone ? -1 : now + 1));
    return true;
}

void Engine::end_use_of_library(const LibraryUse use) noexcept {
    if (use == LibraryUse::alone) {
        _library_uses.store(0);
    } else {
        _library_uses.fetch_sub(1);
    }
}

const ccl::Library* Engine::ccl() {
    std::string why_not;
    {
        const std::scoped_lock lock(_mutex);
        if (_ccl_tried) {
            return _ccl;
        }
        _ccl_tried = true;
        _ccl = ccl::find(_runtime.vendor(), &why_not);
        if (_ccl != nullptr) {
            return _ccl;
        }
    }
    note_once(why_not);
    return nullptr;
}

/// Bytes that the kernels for these write.
std::uint64_t Engine::bytes_of(const std::vector<Fold>& folds, const std::vector<Copy>& copies) noexcept {
    std::uint64_t bytes = 0;
    for (const Fold& fold : folds) {
        bytes += fold.elements * kernels::element_bytes(kernels::type_of(fold.code)) * fold.targets.size();
    }
    for (const Copy& copy : copies) {
        bytes += copy.bytes;
    }
    return bytes;
}

Engine::Work Engine::start(const int device, const std::vector<Fold>& folds, const std::vector<Copy>& copies,
                           std::atomic<std::uint64_t>& word, const std::uint64_t value, const Beside beside,
                           const InOrder* const in_order) {
    const std::scoped_lock lock(_mutex);
    Device& on = device_of(device);
    const unsigned most_blocks = beside == Beside::kernels ? on.most_blocks_beside : on.most_blocks;
    // Looks first for what may be missing: work that is given up under the lock could not give its counter back.
    std::vector<gpu::KernelHandle> combines;
    for (const Fold& fold : folds) {
        combines.push_back(on.combine_for(fold.code));
    }
    const gpu::KernelHandle move = on.move();
    Work work =
        reserve(on, in_order != nullptr ? gpu::StreamHandle{nullptr, device} : on.streams[on.next_stream++ % kStreams]);
    const std::uint64_t moved = bytes_of(folds, copies);
    work._traced.begin(trace::Kind::kernel, folds.empty() ? "copy kernel" : "reduction kernel", moved, device);
    report::totals.add(report::Mover::kernel, moved);
    const std::size_t copy_launches = (copies.size() + kernels::kMostMoves - 1) / kernels::kMostMoves;
    std::size_t left = folds.size() + copy_launches;
    const auto launch = [&](const gpu::KernelHandle kernel, const gpu::Dim3 grid, const unsigned threads,
                            void** const arguments, Notice& notice) {
        // Kernels of one stream follow each other, so the last one speaks for all.
        notice = {reinterpret_cast<std::uint64_t>(static_cast<std::uint32_t*>(on.counters) + work._counter),
                  --left == 0 ? reinterpret_cast<std::uint64_t>(&word) : 0, value};
        if (in_order != nullptr) {
            std::copy(in_order->words.begin(), in_order->words.end(), notice.awaited.begin());
            notice.released = in_order->released;
            notice.awaited_count = static_cast<std::uint32_t>(in_order->words.size());
            notice.awaited_number = in_order->number;
        }
        const gpu::Status status = _runtime.launch(kernel, grid, {threads, 1, 1}, 0, work._stream, arguments);
        if (!status.ok()) {
            // Kernels that were started before go on; no other work gets the counter until they end.
            if (in_order == nullptr) {
                static_cast<void>(_runtime.synchronize_stream(work._stream));
                on.free_counters.push_back(work._counter);
            }
            work._engine = nullptr;
            fail("launching a kernel", status);
        }
    };
    for (std::size_t i = 0; i < folds.size(); ++i) {
        const Fold& fold = folds[i];
        Places sources{}, targets{};
        std::copy(fold.sources.begin(), fold.sources.end(), sources.at.begin());
        std::copy(fold.targets.begin(), fold.targets.end(), targets.at.begin());
        auto source_count = static_cast<std::uint32_t>(fold.sources.size());
        auto target_count = static_cast<std::uint32_t>(fold.targets.size());
        std::uint64_t elements = fold.elements;
        std::uint32_t code = fold.code;
        Notice notice{};
        std::array<void*, 7> arguments{&sources, &source_count, &targets, &target_count, &elements, &code, &notice};
        const std::uint64_t bytes = elements * kernels::element_bytes(kernels::type_of(code));
        launch(combines[i], {blocks_for(most_blocks, bytes), 1, 1}, threads_for(bytes), arguments.data(), notice);
    }
    for (std::size_t begin = 0; begin < copies.size(); begin += kernels::kMostMoves) {
        const std::size_t count = std::min<std::size_t>(kernels::kMostMoves, copies.size() - begin);
        Moves moves{};
        std::uint64_t most = 0;
        for (std::size_t i = 0; i < count; ++i) {
            moves.list[i] = copies[begin + i];
            most = std::max(most, moves.list[i].bytes);
        }
        auto moves_count = static_cast<std::uint32_t>(count);
        Notice notice{};
        std::array<void*, 3> arguments{&moves, &moves_count, &notice};
        const unsigned per_move =
            std::max(1U, std::min(blocks_for(most_blocks, most), most_blocks / std::max(1U, moves_count)));
        launch(move, {per_move, moves_count, 1}, threads_for(most), arguments.data(), notice);
    }
    return work;
}

Engine::Work::Work(Work&& other) noexcept
    : _engine(std::exchange(other._engine, nullptr)),
      _device(other._device),
      _stream(other._stream),
      _counter(other._counter),
      _traced(std::move(other._traced)) {}

Engine::Work& Engine::Work::operator=(Work&& other) noexcept {
    if (this != &other) {
        end();
        _engine = std::exchange(other._engine, nullptr);
        _device = other._device;
        _stream = other._stream;
        _counter = other._counter;
        _traced = std::move(other._traced);
    }
    return *this;
}

Engine::Work::~Work() {
    end();
}

void Engine::Work::end() noexcept {
    if (_engine != nullptr && _stream.value == nullptr) {
        _traced.end();
        _engine = nullptr;
    }
    if (_engine != nullptr) {
        gpu::Runtime& runtime = _engine->_runtime;
        gpu::poll_until_over(
            [&] {
                bool done = false;
                return !runtime.query_stream(_stream, done).ok() || done ? 1 : 0;
            },
            0);
        finished();
    }
}

bool Engine::Work::query() {
    bool done = false;
    if (const gpu::Status status = _engine->_runtime.query_stream(_stream, done); !status.ok()) {
        finished();
        fail("a kernel of a collective", status);
    }
    return done;
}

void Engine::Work::finished() noexcept {
    _traced.end();
    if (Engine* const engine = std::exchange(_engine, nullptr)) {
        const std::scoped_lock lock(engine->_mutex);
        for (const std::unique_ptr<Device>& device : engine->_devices) {
            if (device->number == _device) {
                device->free_counters.push_back(_counter);
            }
        }
    }
}

std::atomic<std::uint64_t>* Engine::take_word() {
    const std::scoped_lock lock(_mutex);
    if (_free_words.empty()) {
        void* page = nullptr;
        if (!_runtime.allocate_pinned(kWordPage, page).ok()) {
            return nullptr;
        }
        std::memset(page, 0, kWordPage);
        _word_pages.push_back(page);
        for (std::size_t at = 0; at < kWordPage; at += kWordStride) {
            _free_words.push_back(reinterpret_cast<std::atomic<std::uint64_t>*>(static_cast<std::byte*>(page) + at));
        }
    }
    std::atomic<std::uint64_t>* const word = _free_words.back();
    _free_words.pop_back();
    return word;
}

void Engine::give_back_word(std::atomic<std::uint64_t>* const word) noexcept {
    if (word != nullptr) {
        const std::scoped_lock lock(_mutex);
        _free_words.push_back(word);
    }
}

bool Engine::register_memory(const std::span<std::byte> memory) {
    const std::scoped_lock lock(_mutex);
    give_up_retired();
    if (_shut_down || !_runtime.register_host(memory.data(), memory.size()).ok()) {
        return false;
    }
    _registered.push_back(memory.data());
    return true;
}

void Engine::retire(std::unique_ptr<ControlBlock> control_block) noexcept {
    const std::scoped_lock lock(_mutex);
    if (_shut_down) {
        return;
    }
    // The thread that frees a node communicator last may be one of ours, which must not unregister memory. The next
    // node communicator does that.
    _retired.push_back(std::move(control_block));
}

void Engine::give_up_retired(const std::chrono::microseconds patience) noexcept {
    if (_retired.empty() || !_runtime.is_idle(-1, patience)) {
        return;
    }
    for (const std::unique_ptr<ControlBlock>& control_block : _retired) {
        for (int member = 0; member < control_block->members(); ++member) {
            void* const memory = control_block->memory_of(member).data();
            if (memory != nullptr && std::erase(_registered, memory) != 0) {
                static_cast<void>(_runtime.unregister_host(memory));
            }
        }
    }
    _retired.clear();
}

void Engine::shut_down() noexcept {
    if (_ordering != nullptr && !_shut_down) {
        if (_keeps.load()) {
            _ordering->finish();
            sweep();
        }
        _ordering->watch(nullptr);
        let_go();
        const std::scoped_lock lock(_kept_mutex);
        _kept.clear();
    }
    const std::scoped_lock lock(_mutex);
    if (std::exchange(_shut_down, true)) {
        return;
    }
    // When the runtime is gone already, all calls fail, and there is nothing to give back.
    for (const std::unique_ptr<Device>& device : _devices) {
        for (const gpu::StreamHandle stream : device->streams) {
            static_cast<void>(_runtime.synchronize_stream(stream));
            static_cast<void>(_runtime.destroy_stream(stream));
        }
        for (const Device::Loaded& loaded : device->loaded) {
            _runtime.unload_when_idle(loaded.module);
        }
        _runtime.free_when_idle(device->counters, device->number);
    }
    _devices.clear();
    give_up_retired(gpu::kPatience);
    for (std::unique_ptr<ControlBlock>& control_block : _retired) {
        // Registered memory stays mapped until the process ends.
        [[maybe_unused]] ControlBlock* const kept = control_block.release();
    }
    _retired.clear();
    for (void* const memory : _registered) {
        if (_runtime.is_idle(-1)) {
            static_cast<void>(_runtime.unregister_host(memory));
        }
    }
    _registered.clear();
    for (void* const page : _word_pages) {
        _runtime.free_pinned_when_idle(page);
    }
    _word_pages.clear();
    _free_words.clear();
}

}  // namespace awaken::coll
