// SPDX-License-Identifier: Apache-2.0
// Buffers of a benchmark: of every kind, with guard bytes before and behind, and proof of where they are.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/options.h"
#include "gpu/gpu.h"

namespace awaken::bench {

/// One buffer. Its bytes are read and written through `read` and `write` whatever memory it is.
class Buffer {
  public:
    /// Allocates, and asks the GPU runtime where the memory really is; throws Error when it is not what was asked for.
    /// `offset` bytes are left free between the front guard's end (256-byte aligned) and data().
    Buffer(gpu::Runtime& gpu, int device, BufferChoice choice, std::size_t bytes, std::size_t offset = 0);
    /// In `memory`, which somebody else has allocated, capacity_for(bytes, offset) bytes that outlive the buffer.
    /// Throws Error when it is not of the kind.
    Buffer(gpu::Runtime& gpu, int device, BufferChoice choice, std::size_t bytes, std::size_t offset, void* memory);
    ~Buffer();
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    /// Bytes that a buffer takes with its guards.
    [[nodiscard]] static std::size_t capacity_for(std::size_t bytes, std::size_t offset) noexcept;

    [[nodiscard]] void* data() const noexcept;
    [[nodiscard]] std::size_t size() const noexcept;
    [[nodiscard]] BufferKind kind() const noexcept;
    [[nodiscard]] int device() const noexcept;

    /// Synchronous: the bytes have arrived when it returns.
    void write(std::span<const std::byte> bytes, std::size_t offset = 0);
    void read(std::span<std::byte> bytes, std::size_t offset = 0) const;
    /// Sets every byte, and the guards anew.
    void fill(std::byte value);
    /// Number of guard bytes that were overwritten.
    [[nodiscard]] std::size_t damaged_guard_bytes() const;
    /// Changes the first byte, as a faulty transfer would: to show that this is found.
    void damage_data();
    /// Overwrites the byte behind the last, as a faulty transfer would: to show that this is found. fill() mends it.
    void damage_guard() const;

  private:
    struct Implementation;
    std::unique_ptr<Implementation> _implementation;
};

}  // namespace awaken::bench
