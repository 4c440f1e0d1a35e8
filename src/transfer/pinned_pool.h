// SPDX-License-Identifier: Apache-2.0
// Host memory that device data passes through: a bounded pool of pinned blocks, and ordinary memory beyond that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::transfer {

class PinnedPool;

/// A piece of host memory on loan. Its destructor gives it back.
class StagingBlock {
  public:
    StagingBlock() = default;
    StagingBlock(StagingBlock&& other) noexcept;
    StagingBlock& operator=(StagingBlock&& other) noexcept;
    StagingBlock(const StagingBlock&) = delete;
    StagingBlock& operator=(const StagingBlock&) = delete;
    ~StagingBlock() { release(); }

    [[nodiscard]] std::byte* data() const noexcept { return _data; }
    [[nodiscard]] std::size_t size() const noexcept { return _size; }
    /// False when the pool was full and the block is ordinary memory.
    [[nodiscard]] bool pinned() const noexcept { return _pinned; }
    void release() noexcept;

  private:
    friend class PinnedPool;
    PinnedPool* _pool = nullptr;
    std::byte* _data = nullptr;
    std::size_t _size = 0;      ///< usable bytes that the caller asked for
    std::size_t _capacity = 0;  ///< bytes of the underlying block
    bool _pinned = false;
};

/// Thread-safe. Blocks are powers of two from 4 KiB. The pool keeps free blocks for reuse while the sum of all pinned
/// blocks, lent and free, stays within the limit. For a request that does not fit, the pool first gives free blocks of
/// other sizes back to the system. If that does not help, the request gets mapped memory. The pool keeps as much of
/// that as the limit for reuse, because fresh pages cost more than the copy into them. The rest goes back to the system
/// on release.
class PinnedPool {
  public:
    struct Statistics {
        std::uint64_t pinned_bytes = 0;  ///< pinned now, lent or free
        std::uint64_t pinned_peak_bytes = 0;
        std::uint64_t overflow_blocks = 0;  ///< requests served from ordinary memory
        std::uint64_t overflow_bytes = 0;
        std::uint64_t overflow_peak_bytes = 0;  ///< most ordinary memory on loan at one time
    };

    explicit PinnedPool(std::size_t limit_bytes) : _limit(limit_bytes) {}
    ~PinnedPool();
    PinnedPool(const PinnedPool&) = delete;
    PinnedPool& operator=(const PinnedPool&) = delete;

    /// At least `bytes` bytes, aligned to 64. Throws awaken::Error when the system has no memory at all. With a runtime
    /// that cannot pin (none, shut down) the memory is ordinary.
    /// @param beyond_limit pins more than the limit where nothing less will do; what is over goes back when it is free
    [[nodiscard]] StagingBlock acquire(gpu::Runtime& runtime, std::size_t bytes, bool beyond_limit = false);
    /// Ordinary memory, even if pinned memory is left. Throws as acquire() does.
    [[nodiscard]] StagingBlock acquire_ordinary(std::size_t bytes);
    [[nodiscard]] std::size_t limit_bytes() const noexcept { return _limit; }
    /// Pinned memory that could still be lent.
    [[nodiscard]] std::size_t spare_bytes() const;
    [[nodiscard]] Statistics statistics() const;
    /// Gives free blocks back to the runtime. The caller calls it before the runtime goes away. Safe to call twice.
    void trim();

  private:
    friend class StagingBlock;
    void give_back(StagingBlock& block) noexcept;
    /// Returns free blocks to the runtime until it has returned `wanted` bytes or no block is left. Needs the lock.
    void free_unused(std::size_t wanted) noexcept;
    /// A free block of ordinary memory; null when there is none of that capacity.
    [[nodiscard]] void* take_ordinary(std::size_t capacity) noexcept;
    [[nodiscard]] bool keep_ordinary(const StagingBlock& block) noexcept;

    const std::size_t _limit;
    mutable std::mutex _mutex;
    gpu::Runtime* _runtime = nullptr;
    std::map<std::size_t, std::vector<std::byte*>> _free;  ///< capacity -> blocks
    Statistics _statistics;
    std::uint64_t _overflow_now = 0;
    std::uint64_t _free_pinned_bytes = 0;
    std::map<std::size_t, std::vector<std::byte*>> _free_ordinary;  ///< capacity -> blocks
    std::size_t _free_ordinary_bytes = 0;
};

}  // namespace awaken::transfer
