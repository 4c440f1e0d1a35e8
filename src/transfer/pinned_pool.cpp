// SPDX-License-Identifier: Apache-2.0
#include "transfer/pinned_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"

namespace awaken::transfer {
namespace {

/// The bookkeeping of a smaller block would outweigh it, and the driver pins whole pages anyway.
constexpr std::size_t kSmallestBlock = 4096;
/// From this size on transparent huge pages save more faults than they cost.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

/// The power of two that holds `bytes`; 0 when there is none.
std::size_t block_capacity(const std::size_t bytes) noexcept {
    constexpr std::size_t kLargest = std::size_t{1} << (std::numeric_limits<std::size_t>::digits - 1);
    if (bytes > kLargest) {
        return 0;
    }
    return std::bit_ceil(std::max(bytes, kSmallestBlock));
}

std::size_t page_bytes() noexcept {
    const long size = sysconf(_SC_PAGESIZE);
    return size > 0 ? static_cast<std::size_t>(size) : kSmallestBlock;
}

/// Rounded up to whole pages; 0 when that overflows.
std::size_t mapped_capacity(const std::size_t bytes) noexcept {
    const std::size_t page = page_bytes();
    const std::size_t wanted = std::max<std::size_t>(bytes, 1);
    if (wanted > std::numeric_limits<std::size_t>::max() - (page - 1)) {
        return 0;
    }
    return (wanted + page - 1) / page * page;
}

}  // namespace

StagingBlock::StagingBlock(StagingBlock&& other) noexcept {
    *this = std::move(other);
}

StagingBlock& StagingBlock::operator=(StagingBlock&& other) noexcept {
    if (this == &other) {
        return *this;
    }
    release();
    _pool = std::exchange(other._pool, nullptr);
    _data = std::exchange(other._data, nullptr);
    _size = std::exchange(other._size, 0);
    _capacity = std::exchange(other._capacity, 0);
    _pinned = std::exchange(other._pinned, false);
    return *this;
}

void StagingBlock::release() noexcept {
    if (_pool == nullptr) {
        return;
    }
    _pool->give_back(*this);
    _pool = nullptr;
    _data = nullptr;
    _size = _capacity = 0;
    _pinned = false;
}

PinnedPool::~PinnedPool() {
    trim();
}

StagingBlock PinnedPool::acquire(gpu::Runtime& runtime, const std::size_t bytes, const bool beyond_limit) {
    StagingBlock block;
    block._size = bytes;

    const std::size_t wanted = block_capacity(bytes);
    const std::size_t capacity = beyond_limit && wanted > _limit ? mapped_capacity(bytes) : wanted;
    if (capacity != 0 && (capacity <= _limit || beyond_limit) && runtime.is_present()) {
        bool may_pin = false;
        {
            const std::scoped_lock lock(_mutex);
            if (runtime.was_reset()) {
                // The pinned blocks are gone with the device.
                _free.clear();
                _free_pinned_bytes = 0;
                _runtime = nullptr;
            } else if (_runtime != &runtime) {
                // Pinned blocks go back to the runtime that made them. While some blocks of another runtime are on loan
                // (the program uses two vendors), the pool serves this runtime from ordinary memory.
                free_unused(std::numeric_limits<std::size_t>::max());
                if (_statistics.pinned_bytes == 0) {
                    _runtime = &runtime;
                }
            }
            if (_runtime == &runtime) {
                const auto free_blocks = _free.find(capacity);
                if (free_blocks != _free.end() && !free_blocks->second.empty()) {
                    block._data = free_blocks->second.back();
                    free_blocks->second.pop_back();
                    _free_pinned_bytes -= capacity;
                } else {
                    const std::size_t room = _limit - std::min(_limit, capacity);
                    const std::size_t pinned = static_cast<std::size_t>(_statistics.pinned_bytes);
                    if (pinned > room) {
                        free_unused(pinned - room);
                    }
                    may_pin = beyond_limit || static_cast<std::size_t>(_statistics.pinned_bytes) + capacity <= _limit;
                    // Reserves the bytes before it gives the lock up: pinning takes milliseconds, and others need not
                    // wait for it.
                    if (may_pin) {
                        _statistics.pinned_bytes += capacity;
                    }
                }
            }
        }
        if (may_pin) {
            void* pointer = nullptr;
            const bool pinned = runtime.allocate_pinned(capacity, pointer).ok() && pointer != nullptr;
            const std::scoped_lock lock(_mutex);
            if (pinned) {
                block._data = static_cast<std::byte*>(pointer);
                _statistics.pinned_peak_bytes = std::max(_statistics.pinned_peak_bytes, _statistics.pinned_bytes);
            } else {
                _statistics.pinned_bytes -= capacity;
            }
        }
        if (block._data != nullptr) {
            block._pool = this;
            block._capacity = capacity;
            block._pinned = true;
            return block;
        }
    }

    return acquire_ordinary(bytes);
}

StagingBlock PinnedPool::acquire_ordinary(const std::size_t bytes) {
    StagingBlock block;
    block._size = bytes;
    const std::size_t mapped = mapped_capacity(bytes);
    void* pointer = take_ordinary(mapped);
    if (pointer == nullptr && mapped != 0) {
        pointer = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (pointer == nullptr || pointer == MAP_FAILED) {
        throw Error(
            "no host memory for a staging buffer of " + std::to_string(bytes) + " bytes",
            "send less at a time, raise the memory limit of the process (ulimit -v, the batch system's), or run "
            "fewer ranks on this node");
    }
    if (mapped >= kHugePageBytes) {
        (void)madvise(pointer, mapped, MADV_HUGEPAGE);  // a wish; both answers are fine
    }
    block._pool = this;
    block._data = static_cast<std::byte*>(pointer);
    block._capacity = mapped;
    const std::scoped_lock lock(_mutex);
    ++_statistics.overflow_blocks;
    _statistics.overflow_bytes += bytes;
    _overflow_now += mapped;
    _statistics.overflow_peak_bytes = std::max(_statistics.overflow_peak_bytes, _overflow_now);
    return block;
}

void* PinnedPool::take_ordinary(const std::size_t capacity) noexcept {
    const std::scoped_lock lock(_mutex);
    const auto found = _free_ordinary.find(capacity);
    if (found == _free_ordinary.end() || found->second.empty()) {
        return nullptr;
    }
    void* const pointer = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) {
        _free_ordinary.erase(found);
    }
    _free_ordinary_bytes -= capacity;
    return pointer;
}

std::size_t PinnedPool::spare_bytes() const {
    const std::scoped_lock lock(_mutex);
    return _limit - std::min(_limit, static_cast<std::size_t>(_statistics.pinned_bytes - _free_pinned_bytes));
}

PinnedPool::Statistics PinnedPool::statistics() const {
    const std::scoped_lock lock(_mutex);
    return _statistics;
}

void PinnedPool::trim() {
    const std::scoped_lock lock(_mutex);
    free_unused(std::numeric_limits<std::size_t>::max());
    for (const auto& [capacity, blocks] : std::exchange(_free_ordinary, {})) {
        for (std::byte* const block : blocks) {
            munmap(block, capacity);
        }
    }
    _free_ordinary_bytes = 0;
}

void PinnedPool::free_unused(const std::size_t wanted) noexcept {
    if (_runtime == nullptr || _runtime->was_reset()) {
        _free.clear();  // the blocks belong to nobody any more
        _free_pinned_bytes = 0;
        return;
    }
    const bool at_the_end = wanted == std::numeric_limits<std::size_t>::max();
    if (!(at_the_end ? _runtime->is_idle(-1, gpu::kPatience) : _runtime->is_soon_idle(-1))) {
        return;
    }
    std::size_t freed = 0;
    // The largest first: each call into the driver costs about the same for any size.
    while (freed < wanted && !_free.empty()) {
        const auto largest = std::prev(_free.end());
        while (freed < wanted && !largest->second.empty()) {
            // A failure means that the runtime is shut down and has freed the block itself, or that it is beyond help.
            (void)_runtime->free_pinned(largest->second.back()).ok();
            largest->second.pop_back();
            _statistics.pinned_bytes -= largest->first;
            _free_pinned_bytes -= largest->first;
            freed += largest->first;
        }
        if (largest->second.empty()) {
            _free.erase(largest);
        }
    }
}

bool PinnedPool::keep_ordinary(const StagingBlock& block) noexcept {
    const std::scoped_lock lock(_mutex);
    _overflow_now -= block._capacity;
    if (block._capacity > _limit - std::min(_limit, _free_ordinary_bytes)) {
        return false;
    }
    try {
        _free_ordinary[block._capacity].push_back(block._data);
    } catch (const std::bad_alloc&) {
        return false;
    }
    _free_ordinary_bytes += block._capacity;
    return true;
}

void PinnedPool::give_back(StagingBlock& block) noexcept {
    if (!block._pinned) {
        if (!keep_ordinary(block)) {
            munmap(block._data, block._capacity);
        }
        return;
    }
    const std::scoped_lock lock(_mutex);
    try {
        _free[block._capacity].push_back(block._data);
        _free_pinned_bytes += block._capacity;
    } catch (const std::bad_alloc&) {
        if (_runtime != nullptr) {
            _runtime->free_pinned_when_idle(block._data);
        }
        _statistics.pinned_bytes -= block._capacity;
    }
}

}  // namespace awaken::transfer
