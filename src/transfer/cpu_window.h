// SPDX-License-Identifier: Apache-2.0
// Device memory that the CPU can load and store itself: GDRCopy's mappings on NVIDIA, a large BAR on AMD. For messages
// so small that asking the GPU to copy them takes longer than copying them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gpu/gpu.h"

namespace awaken::transfer {

/// Probes the ways when made. Off, with a reason, where neither way exists or a checked copy did not come out right.
class CpuWindow {
  public:
    /// `allowed` false turns it off, for AWAKEN_TEST_CPU_COPY=0.
    CpuWindow(gpu::Runtime& runtime, bool allowed);
    ~CpuWindow();
    CpuWindow(const CpuWindow&) = delete;
    CpuWindow& operator=(const CpuWindow&) = delete;

    /// Whether the CPU can copy this kind of memory at all.
    [[nodiscard]] bool usable() const noexcept;
    /// "GDRCopy 2.4 (libgdrapi.so.2)", "large BAR", or the reason why there is none.
    [[nodiscard]] const std::string& description() const noexcept;
    /// Copies `bytes` bytes between host memory and device memory described by `info`. The copy is complete and visible
    /// to the GPU when the call returns. Returns false, having copied nothing, when the CPU cannot reach this memory.
    /// The caller has already ordered the copy after the program's own work. Thread-safe. Keeps mappings by the
    /// allocation's identity, within a bound.
    [[nodiscard]] bool to_device(void* device, const gpu::PointerInfo& info, const void* host, std::size_t bytes);
    [[nodiscard]] bool to_host(void* host, const void* device, const gpu::PointerInfo& info, std::size_t bytes);
    void shut_down() noexcept;

  private:
    struct State;
    std::unique_ptr<State> _state;
};

}  // namespace awaken::transfer
