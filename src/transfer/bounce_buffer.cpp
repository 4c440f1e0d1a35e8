// SPDX-License-Identifier: Apache-2.0
#include "transfer/bounce_buffer.h"

#include <sys/mman.h>

#include <bit>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"

namespace awaken::transfer {

namespace {

constexpr std::size_t kSmallestBounceBuffer = std::size_t{64} << 10;
constexpr std::size_t kLargestBounceBuffer = ~(~std::size_t{0} >> 1);  // power of two
/// Written memory up to this size stays with a free region.
constexpr std::size_t kKept = std::size_t{256} << 10;
/// The most free regions of one size that are kept: as many as a program has under way that posts its receives in
/// windows.
constexpr std::size_t kKeptRegions = 256;

}  // namespace

BounceBuffer::BounceBuffer(BounceBuffer&& other) noexcept
    : _pool(std::exchange(other._pool, nullptr)),
      _data(std::exchange(other._data, nullptr)),
      _capacity(other._capacity),
      _used(other._used) {}

BounceBuffer& BounceBuffer::operator=(BounceBuffer&& other) noexcept {
    if (this != &other) {
        release();
        _pool = std::exchange(other._pool, nullptr);
        _data = std::exchange(other._data, nullptr);
        _capacity = other._capacity;
        _used = other._used;
    }
    return *this;
}

void BounceBuffer::release() noexcept {
    if (_data != nullptr) {
        std::exchange(_pool, nullptr)->give_back(std::exchange(_data, nullptr), _capacity, _used);
    }
}

BounceBufferPool::~BounceBufferPool() {
    trim();
}

BounceBuffer BounceBufferPool::acquire(const std::size_t bytes) {
    // The system refuses a size that no power of two holds, like any other size that is too large.
    const std::size_t capacity = bytes > kLargestBounceBuffer
                                     ? bytes
                                     : std::bit_ceil(bytes < kSmallestBounceBuffer ? kSmallestBounceBuffer : bytes);
    BounceBuffer bounce_buffer;
    bounce_buffer._capacity = capacity;
    {
        const std::scoped_lock lock(_mutex);
        if (const auto found = _free.find(capacity); found != _free.end() && !found->second.empty()) {
            bounce_buffer._data = found->second.back();
            found->second.pop_back();
            bounce_buffer._pool = this;
            return bounce_buffer;
        }
    }
    void* const data =
        mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
        throw Error("no address space for a receive of " + std::to_string(bytes) + " bytes",
                    "raise the limit on address space (ulimit -v)");
    }
    bounce_buffer._data = static_cast<std::byte*>(data);
    bounce_buffer._pool = this;
    return bounce_buffer;
}

void BounceBufferPool::give_back(std::byte* const data, const std::size_t capacity, const std::size_t used) noexcept {
    if (used > kKept) {
        madvise(data, capacity, MADV_DONTNEED);
    }
    {
        const std::scoped_lock lock(_mutex);
        try {
            std::vector<std::byte*>& regions = _free[capacity];
            if (regions.size() < kKeptRegions) {
                regions.push_back(data);
                return;
            }
        } catch (const std::bad_alloc&) {
            // There is no room to remember the region, so it is unmapped below.
        }
    }
    munmap(data, capacity);
}

void BounceBufferPool::trim() noexcept {
    const std::scoped_lock lock(_mutex);
    for (const auto& [capacity, regions] : _free) {
        for (std::byte* const data : regions) {
            munmap(data, capacity);
        }
    }
    _free.clear();
}

}  // namespace awaken::transfer
