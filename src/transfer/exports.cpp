// SPDX-License-Identifier: Apache-2.0
#include "transfer/exports.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/fnv1a.h"

namespace awaken::transfer {
namespace {

/// The number of exports that are remembered. A program that sends from more allocations than this in turn asks the
/// runtime again.
constexpr std::size_t kRememberedExports = 1024;
/// Drivers hand device memory out in pieces of this size. A smaller exported block would share its piece with other
/// memory.
constexpr std::size_t kSmallestExport = std::size_t{2} << 20;
/// While the GPU is busy, we ask it again after this long.
constexpr std::chrono::milliseconds kBetweenTries{100};
/// Marks identities that the pool itself gives its blocks. Runtimes count theirs from one.
constexpr std::uint64_t kOwnIdentity = std::uint64_t{1} << 63;

/// The power of two that holds `bytes`; 0 when there is none.
std::size_t export_capacity(const std::size_t bytes) noexcept {
    constexpr std::size_t kLargest = std::size_t{1} << (std::numeric_limits<std::size_t>::digits - 1);
    return bytes > kLargest ? 0 : std::bit_ceil(std::max(bytes, kSmallestExport));
}

}  // namespace

// ---- the program's allocations --------------------------------------------------------------------------------------

struct Exports::State {
    /// What one handle stands for: an allocation, or mappings side by side.
    struct Extent {
        std::uintptr_t base = 0;
        std::size_t size = 0;
        bool operator==(const Extent&) const = default;
        struct Hash {
            std::size_t operator()(const Extent& extent) const noexcept {
                return static_cast<std::size_t>(Fnv1a().add_word(extent.base).add_word(extent.size).value());
            }
        };
    };
    struct Export {
        Extent extent;
        std::uint64_t id = 0;
        bool by_descriptors = false;
        int device = -1;
        gpu::Status status;
        gpu::IpcMemoryHandle handle;
        /// Distance of the extent's first byte from the address that the other process gets when it opens the handle.
        std::size_t offset = 0;

        gpu::Status write(const void* pointer, Location& location) const noexcept {
            if (!status.ok()) {
                return status;
            }
            location.kind = Location::Kind::device;
            location.device = device;
            location.by_descriptors = by_descriptors ? 1 : 0;
            location.allocation_id = id;
            // A runtime may export more than the allocation (a block that the allocation shares with others). The other
            // process's mapping then begins before the allocation, and receivers count from there.
            location.allocation_bytes = offset + extent.size;
            location.offset = offset + (reinterpret_cast<std::uintptr_t>(pointer) - extent.base);
            // Several allocations of such a block may be exported, and must not displace each other. Neither must
            // extents that have mappings in common.
            location.address = offset == 0 && !by_descriptors ? extent.base : 0;
            location.chunk_bytes = 0;
            static_assert(sizeof(handle.bytes) == sizeof(location.handle));
            std::memcpy(location.handle.data(), handle.bytes, sizeof handle.bytes);
            return {};
        }
    };
    using List = std::list<Export>;

    State(gpu::Runtime& gpu_runtime, const std::size_t most_idle) : runtime(gpu_runtime), idle_bytes(most_idle) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        for (const Export& each : entries) {
            end(each);
        }
    }

    /// The answer for this memory if it is known, else null. Holds its handle. Call it with the lock.
    const Export* find(const Extent& extent, const std::uint64_t id) {
        List::iterator entry = entries.begin();
        if (entries.empty() || entry->extent != extent) {
            const auto found = by_extent.find(extent);
            if (found == by_extent.end()) {
                return nullptr;
            }
            entry = found->second;
        }
        if (entry->id != id || (entry->by_descriptors && entry->status.ok() && !runtime.hold_export(entry->handle))) {
            // Other memory has taken the addresses, so nobody will ask for the old one again. Or the handle is over.
            forget(entry);
            return nullptr;
        }
        entries.splice(entries.begin(), entries, entry);
        return &*entry;
    }

    void remember(const Export& answer) {
        const std::scoped_lock lock(mutex);
        if (by_extent.contains(answer.extent)) {
            return;  // another thread asked at the same time; both handles are in use
        }
        entries.push_front(answer);
        try {
            by_extent.emplace(answer.extent, entries.begin());
        } catch (...) {
            entries.pop_front();
            throw;
        }
        if (entries.size() > kRememberedExports) {
            forget(std::prev(entries.end()));
        }
    }

    void forget(const List::iterator entry) noexcept {
        end(*entry);
        by_extent.erase(entry->extent);
        entries.erase(entry);
    }

    void end(const Export& each) noexcept {
        if (each.by_descriptors && each.status.ok()) {
            runtime.end_export(each.handle);
        }
    }

    /// Describes the memory of that extent. `ask` asks the runtime for the handle, and for its offset.
    template <class Ask>
    Export answer_for(Export answer, const Ask& ask) {
        if (answer.id != 0) {
            const std::scoped_lock lock(mutex);
            if (const Export* const known = find(answer.extent, answer.id)) {
                return *known;
            }
        }
        answer.status = ask(answer);
        if (answer.id != 0 && answer.status.code != gpu::kBusy) {
            try {
                remember(answer);
            } catch (const std::bad_alloc&) {
                // The next call asks the runtime again.
            }
        }
        return answer;
    }

    gpu::Runtime& runtime;
    const std::size_t idle_bytes;
    std::mutex mutex;
    List entries;  ///< most recently used first
    std::unordered_map<Extent, List::iterator, Extent::Hash> by_extent;
};

Exports::Exports(gpu::Runtime& runtime, const std::size_t idle_bytes)
    : _state(std::make_unique<State>(runtime, idle_bytes)) {}

Exports::~Exports() = default;

gpu::Status Exports::describe(const void* pointer, const gpu::PointerInfo& info, Location& location) {
    if (!info.ipc_capable) {
        return {gpu::kUnsupported, "ipc_export", "memory of this kind cannot be exported to other processes"};
    }
    State::Export asked;
    asked.extent = {info.base, info.size};
    asked.id = info.id;
    asked.device = info.device;
    // The handle stands for the whole allocation, and versions of HIP treat an interior pointer's offset differently.
    // So we export the base, and describe the pointer's place in it ourselves.
    return _state
        ->answer_for(asked,
                     [&](State::Export& made) {
                         const auto* const base = reinterpret_cast<const void*>(info.base);
                         return _state->runtime.ipc_export(base, made.handle, made.offset);
                     })
        .write(pointer, location);
}

gpu::Status Exports::describe(const void* pointer, const std::size_t bytes, const gpu::PointerInfo& info,
                              Location& location, std::unique_ptr<Hold>& hold) {
    hold.reset();
    if (info.ipc_capable || !info.descriptor_capable) {
        return describe(pointer, info, location);
    }
    gpu::MappedRun run;
    if (const gpu::Status status = _state->runtime.find_run(info.device, pointer, bytes, run); !status.ok()) {
        return status;
    }
    State::Export asked;
    asked.extent = {run.base, run.size};
    asked.id = run.id;
    asked.device = info.device;
    asked.by_descriptors = true;
    const State::Export answer = _state->answer_for(
        asked, [&](State::Export& made) { return _state->runtime.export_run(info.device, run, made.handle); });
    if (answer.status.ok()) {
        hold.reset(new (std::nothrow) Hold(_state->runtime, answer.handle, _state->idle_bytes));
        if (hold == nullptr) {
            _state->runtime.release_export(answer.handle, _state->idle_bytes);
            return {gpu::kUnsupported, "export_run", "out of host memory"};
        }
    }
    return answer.write(pointer, location);
}

// ---- the layer's own blocks -----------------------------------------------------------------------------------------
//
// The pool keeps free blocks for a while. One reason is that allocating is slow. The other is that a peer may still
// have a block mapped. Meanwhile giving the block back frees nothing on some drivers and is undefined on others. So
// Limits::idle is longer than peers keep mappings that they do not use (Mappings::Limits::idle).
//
// The pool calls the runtime without the lock: allocating and freeing device memory take milliseconds, and freeing
// waits for the device.

struct ExportedPool::State {
    using Clock = std::chrono::steady_clock;
    struct FreeBlock {
        std::byte* data = nullptr;
        Location location;
        Clock::time_point since;
    };
    struct Kind {
        int device;
        std::size_t capacity;
        auto operator<=>(const Kind&) const = default;
    };
    using FreeBlocks = std::map<Kind, std::deque<FreeBlock>>;

    State(gpu::Runtime& gpu_runtime, Exports& all_exports, const Limits all_limits)
        : runtime(gpu_runtime), exports(all_exports), limits(all_limits) {}

    /// The most recently freed block of this kind, so that the others can be idle for long enough.
    bool take_free(const Kind kind, FreeBlock& block) {
        const auto blocks = free_blocks.find(kind);
        if (blocks == free_blocks.end() || blocks->second.empty()) {
            return false;
        }
        block = blocks->second.back();
        blocks->second.pop_back();
        free_bytes -= kind.capacity;
        lent_bytes += kind.capacity;
        return true;
    }

    /// The kind whose oldest free block has been free for longest. End when there is none. `device` -1: of any device.
    FreeBlocks::iterator oldest(const int device = -1) noexcept {
        auto result = free_blocks.end();
        for (auto blocks = free_blocks.begin(); blocks != free_blocks.end(); ++blocks) {
            if (blocks->second.empty() || (device != -1 && blocks->first.device != device)) {
                continue;
            }
            if (result == free_blocks.end() || blocks->second.front().since < result->second.front().since) {
                result = blocks;
            }
        }
        return result;
    }

    /// Gives the oldest free block of that kind back to the GPU, which is idle. The block counts until it is really
    /// gone.
    void give_to_gpu(std::unique_lock<std::mutex>& lock, const FreeBlocks::iterator blocks) noexcept {
        const std::size_t capacity = blocks->first.capacity;
        std::byte* const data = blocks->second.front().data;
        blocks->second.pop_front();
        free_bytes -= capacity;
        leaving_bytes += capacity;
        lock.unlock();
        // Fails only when the driver has shut down and taken the memory with it.
        static_cast<void>(runtime.free(data).ok());
        lock.lock();
        leaving_bytes -= capacity;
    }

    /// Gives all free blocks back. False when there was none, or the device is busy.
    bool give_all_to_gpu(std::unique_lock<std::mutex>& lock, const int device) noexcept {
        if (oldest(device) == free_blocks.end() || !runtime.is_soon_idle(device)) {
            return false;
        }
        for (auto blocks = oldest(device); blocks != free_blocks.end(); blocks = oldest(device)) {
            give_to_gpu(lock, blocks);
        }
        return true;
    }

    /// A borrower gives a block back.
    void give_back(const Kind kind, std::byte* data, const Location& location) noexcept {
        std::unique_lock lock(mutex);
        lent_bytes -= kind.capacity;
        if (!closed) {
            try {
                const Clock::time_point now = Clock::now();
                free_blocks[kind].push_back({data, location, now});
                free_bytes += kind.capacity;
                if (next_due.load(std::memory_order_relaxed) == kNever) {
                    set_next_due(now + limits.idle);
                }
                return;
            } catch (const std::bad_alloc&) {
                // There is no room to remember the block, so it goes back to the GPU at once.
            }
        }
        lock.unlock();
        runtime.free_when_idle(data, kind.device);
    }

    void set_next_due(const Clock::time_point due) noexcept {
        next_due.store(due.time_since_epoch().count(), std::memory_order_relaxed);
    }

    /// Describes a new block to other processes.
    bool describe(const void* data, Location& location) {
        gpu::PointerInfo info;
        runtime.classify({&data, 1}, &info);
        if (!exports.describe(data, info, location).ok()) {
            return false;
        }
        // By the identity receivers see that an address holds other memory than before. Where the runtime gives none,
        // the pool does: it knows when it allocated the block.
        if (location.allocation_id == 0) {
            location.allocation_id = kOwnIdentity | identities.fetch_add(1, std::memory_order_relaxed);
        }
        return true;
    }

    static constexpr Clock::rep kNever = std::numeric_limits<Clock::rep>::max();

    gpu::Runtime& runtime;
    Exports& exports;
    const Limits limits;
    std::atomic<std::uint64_t> identities{1};
    /// No free block is due earlier than this. trim_idle() looks at it before it takes the lock.
    std::atomic<Clock::rep> next_due{kNever};

    std::mutex mutex;
    FreeBlocks free_blocks;
    std::set<int> unexportable;     ///< devices whose memory could not be exported; that does not change
    std::size_t lent_bytes = 0;     ///< also counts blocks that are being allocated
    std::size_t free_bytes = 0;     ///< of free_blocks
    std::size_t leaving_bytes = 0;  ///< of blocks on their way back to the GPU
    std::uint64_t refused = 0;
    std::uint64_t allocated = 0;
    bool closed = false;
};

ExportedPool::ExportedPool(gpu::Runtime& runtime, Exports& exports, const Limits limits)
    : _state(std::make_unique<State>(runtime, exports, limits)) {}

ExportedPool::~ExportedPool() {
    shut_down();
}

ExportedPool::Block::Block(Block&& other) noexcept {
    *this = std::move(other);
}

ExportedPool::Block& ExportedPool::Block::operator=(Block&& other) noexcept {
    if (this == &other) {
        return *this;
    }
    release();
    _pool = std::exchange(other._pool, nullptr);
    _data = std::exchange(other._data, nullptr);
    _capacity = std::exchange(other._capacity, 0);
    _device = std::exchange(other._device, -1);
    _location = std::exchange(other._location, {});
    return *this;
}

void ExportedPool::Block::release() noexcept {
    if (_pool == nullptr) {
        return;
    }
    _pool->_state->give_back({_device, _capacity}, _data, _location);
    _pool = nullptr;
    _data = nullptr;
    _capacity = 0;
    _device = -1;
    _location = {};
}

ExportedPool::Block ExportedPool::acquire(const int device, const std::size_t bytes) {
    State& state = *_state;
    const State::Kind kind = {device, export_capacity(bytes)};
    const std::size_t limit = state.limits.bytes;
    const auto lend = [&](std::byte* const data, const Location& location) {
        Block block;
        block._pool = this;
        block._data = data;
        block._capacity = kind.capacity;
        block._device = device;
        block._location = location;
        return block;
    };

    std::unique_lock lock(state.mutex);
    for (;;) {
        if (state.closed || kind.capacity == 0 || kind.capacity > limit || state.unexportable.contains(device)) {
            ++state.refused;
            return {};
        }
        State::FreeBlock block;
        if (state.take_free(kind, block)) {
            return lend(block.data, block.location);
        }
        const std::size_t taken = state.lent_bytes + state.leaving_bytes;
        if (limit - taken < kind.capacity) {
            ++state.refused;
            return {};
        }
        if (limit - taken - state.free_bytes >= kind.capacity) {
            break;
        }
        const auto blocks = state.oldest();
        if (!state.runtime.is_soon_idle(blocks->first.device)) {
            ++state.refused;
            return {};
        }
        state.give_to_gpu(lock, blocks);
    }
    state.lent_bytes += kind.capacity;  // reserved before the lock is given up
    lock.unlock();

    void* memory = nullptr;
    gpu::Status status = state.runtime.allocate(device, kind.capacity, memory);
    if (!status.ok()) {
        // The card is full, and a part of that is our idle blocks.
        lock.lock();
        const bool made_room = state.give_all_to_gpu(lock, device);
        lock.unlock();
        if (made_room) {
            status = state.runtime.allocate(device, kind.capacity, memory);
        }
    }
    Location location;
    const bool exported = status.ok() && state.describe(memory, location);

    lock.lock();
    if (exported && !state.closed) {
        ++state.allocated;
        return lend(static_cast<std::byte*>(memory), location);
    }
    ++state.refused;
    if (!status.ok()) {
        state.lent_bytes -= kind.capacity;
        return {};
    }
    lock.unlock();
    state.runtime.free_when_idle(memory, device);
    lock.lock();
    state.lent_bytes -= kind.capacity;
    // Allocating once more each time, only to be refused, would slow down every message.
    if (!exported) {
        state.unexportable.insert(device);
    }
    return {};
}

void ExportedPool::trim_idle() noexcept {
    if (_state->next_due.load(std::memory_order_relaxed) != State::kNever) {
        trim_idle(State::Clock::now());
    }
}

void ExportedPool::trim_idle(const std::chrono::steady_clock::time_point now) noexcept {
    State& state = *_state;
    if (now.time_since_epoch().count() < state.next_due.load(std::memory_order_relaxed)) {
        return;
    }
    std::unique_lock lock(state.mutex);
    for (;;) {
        const auto blocks = state.oldest();
        if (blocks == state.free_blocks.end()) {
            state.next_due.store(State::kNever, std::memory_order_relaxed);
            return;
        }
        const State::Clock::time_point goes = blocks->second.front().since + state.limits.idle;
        if (goes > now) {
            state.set_next_due(goes);
            return;
        }
        if (!state.runtime.is_idle(blocks->first.device)) {
            state.set_next_due(now + kBetweenTries);
            return;
        }
        state.give_to_gpu(lock, blocks);
    }
}

void ExportedPool::shut_down() noexcept {
    std::unique_lock lock(_state->mutex);
    _state->closed = true;
    for (const auto& [kind, blocks] : std::exchange(_state->free_blocks, {})) {
        for (const State::FreeBlock& block : blocks) {
            _state->runtime.free_when_idle(block.data, kind.device);
        }
    }
    _state->free_bytes = 0;
}

ExportedPool::Statistics ExportedPool::statistics() const {
    const std::scoped_lock lock(_state->mutex);
    return {_state->lent_bytes, _state->free_bytes, _state->refused, _state->allocated};
}

}  // namespace awaken::transfer
