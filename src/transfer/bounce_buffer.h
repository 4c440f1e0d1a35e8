// SPDX-License-Identifier: Apache-2.0
// Host memory for a message whose size is not known yet. It is as large as the receive allows, and hardly ever used.
//
// The layer posts a receive into device memory to the MPI before it knows whether a short RTS or the message itself
// will come. Address space for the message costs nothing as long as nobody writes to it, so the receive gets that.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace awaken::transfer {

class BounceBufferPool;

class BounceBuffer {
  public:
    BounceBuffer() = default;
    BounceBuffer(BounceBuffer&& other) noexcept;
    BounceBuffer& operator=(BounceBuffer&& other) noexcept;
    BounceBuffer(const BounceBuffer&) = delete;
    BounceBuffer& operator=(const BounceBuffer&) = delete;
    ~BounceBuffer() { release(); }

    [[nodiscard]] std::byte* data() const noexcept { return _data; }
    [[nodiscard]] explicit operator bool() const noexcept { return _data != nullptr; }
    /// The MPI wrote this many bytes from the start. Their memory goes back to the system with the bounce buffer,
    /// unless it is little.
    void used(std::size_t bytes) noexcept { _used = bytes; }
    void release() noexcept;

  private:
    friend class BounceBufferPool;
    BounceBufferPool* _pool = nullptr;
    std::byte* _data = nullptr;
    std::size_t _capacity = 0;
    std::size_t _used = 0;
};

/// Thread-safe. Regions are powers of two. The pool keeps a few of each size for reuse.
class BounceBufferPool {
  public:
    BounceBufferPool() = default;
    ~BounceBufferPool();
    BounceBufferPool(const BounceBufferPool&) = delete;
    BounceBufferPool& operator=(const BounceBufferPool&) = delete;

    /// Throws awaken::Error when the address space is exhausted.
    [[nodiscard]] BounceBuffer acquire(std::size_t bytes);
    void trim() noexcept;

  private:
    friend class BounceBuffer;
    void give_back(std::byte* data, std::size_t capacity, std::size_t used) noexcept;

    std::mutex _mutex;
    std::map<std::size_t, std::vector<std::byte*>> _free;
};

}  // namespace awaken::transfer
