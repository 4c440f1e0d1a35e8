// Device memory that the CPU can load and store itself, for messages so small that asking the GPU to copy them takes
// longer than copying them: GDRCopy's mappings on NVIDIA, a large BAR on AMD.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "gpu/gpu.h"

namespace awaken::transfer {

/// Probed when made: off, with a reason, where neither is there or a checked copy did not come out right.
class CpuWindow {
  public:
    /// `allowed` false: off, for AWAKEN_TEST_CPU_COPY=0.
    CpuWindow(gpu::Runtime& runtime, bool allowed);
    ~CpuWindow();
    CpuWindow(const CpuWindow&) = delete;
    CpuWindow& operator=(const CpuWindow&) = delete;

    /// Whether copies of this kind of memory can be done at all.
    [[nodiscard]] bool usable() const noexcept;
    /// "GDRCopy 2.4 (libgdrapi.so.2)", "large BAR", or why not.
    [[nodiscard]] const std::string& description() const noexcept;
    /// Copies `bytes` bytes between host memory and device memory described by `info`, complete and visible to the GPU
    /// when it returns. False when this memory cannot be reached; then nothing was copied. The caller has seen to the
    /// order after the program's own work. Thread-safe; mappings are kept by the allocation's identity, within a bound.
    [[nodiscard]] bool to_device(void* device, const gpu::PointerInfo& info, const void* host, std::size_t bytes);
    [[nodiscard]] bool to_host(void* host, const void* device, const gpu::PointerInfo& info, std::size_t bytes);
    void shut_down() noexcept;

  private:
    struct State;
    std::unique_ptr<State> _state;
};

}  // namespace awaken::transfer
