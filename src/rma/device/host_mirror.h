// SPDX-License-Identifier: Apache-2.0
// Host memory that stands for device memory in a window. The MPI reaches it, for this process and for all others.
//
// Two parties change a window's memory: the program stores to the device memory, and all others put to the host mirror.
// A baseline tells their changes apart: the bytes that both had when they were last the same. A byte that differs from
// the baseline on the device was stored by the program, and goes to the host mirror. A byte that differs from the
// baseline in the host mirror was put by others, and goes to the device. So changes to neighbouring bytes survive, no
// matter which party makes them, and when.
//
// Knows no MPI.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/gpu.h"
#include "transfer/copier.h"
#include "transfer/pinned_pool.h"

namespace awaken::rma {

/// Thread-safe. A mirror of `bytes` bytes takes twice as much host memory.
class HostMirror {
  public:
    /// What copies need. It must outlive the host mirror.
    struct Resources {
        gpu::Runtime& runtime;
        transfer::Copier& copier;
        transfer::PinnedPool& pool;
    };

    /// Makes a mirror with memory of its own, which holds what the device memory holds now, and is aligned like it.
    /// Null when there is no memory. Throws Error when the device memory cannot be read.
    [[nodiscard]] static std::unique_ptr<HostMirror> make(const Resources& resources, void* device, std::size_t bytes,
                                                          const gpu::PointerInfo& info);
    /// Makes a mirror for memory that will be there later, and whose content takes precedence over the device's: see
    /// stand_in().
    [[nodiscard]] static std::unique_ptr<HostMirror> make_for_later(const Resources& resources, void* device,
                                                                    std::size_t bytes, const gpu::PointerInfo& info);
    /// Makes this memory the host mirror from now on. Others may have stored to it already. The memory must outlive the
    /// host mirror's use.
    void stand_in(std::byte* memory) noexcept { _memory = memory; }

    [[nodiscard]] std::byte* data() const noexcept { return _memory; }
    [[nodiscard]] std::size_t size() const noexcept { return _bytes; }
    /// The host mirror's bytes for [address, address + length). Null when that is not wholly inside this mirror's
    /// device memory.
    [[nodiscard]] std::byte* of(const void* address, std::size_t length) const noexcept;

    /// Makes host mirror and device memory the same. Each gets what was stored to the other one, and nothing else of
    /// either is written. Others may store to the host mirror meanwhile; what comes too late is left for the next call.
    /// Throws Error when the GPU refuses a copy; what has been stored is not lost then.
    /// @return bytes that were copied from and to the device.
    std::size_t reconcile() { return reconcile(0, _bytes); }
    /// The same for a part of it.
    std::size_t reconcile(std::size_t begin, std::size_t end);

  private:
    /// Bytes that others have put, relative to a chunk.
    struct Run {
        std::size_t begin, length;
    };

    HostMirror(const Resources& resources, void* device, std::size_t bytes, const gpu::PointerInfo& info);
    [[nodiscard]] bool allocate_baseline() noexcept;
    void read_baseline();
    void merge(std::size_t at, std::size_t length, std::byte* device);
    void merge_word(std::size_t at, std::size_t position, std::byte* device);
    void merge_byte(std::size_t at, std::size_t position, std::byte* device);
    void note_put(std::size_t position);
    void store_puts(std::size_t at, const std::byte* device);

    const Resources _resources;
    std::byte* const _device;
    const std::size_t _bytes;
    const gpu::PointerInfo _info;
    std::unique_ptr<std::byte[]> _owned, _baseline;
    std::byte* _memory = nullptr;
    std::mutex _mutex;  ///< guards the baseline, and the list below
    std::vector<Run> _puts;
};

}  // namespace awaken::rma
