// SPDX-License-Identifier: Apache-2.0
// Memory that was mapped at reserved addresses (cuMemMap), for which there is no legacy IPC: other processes map it by
// file descriptors. See Runtime::find_run().
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "gpu/cuda_abi.h"
#include "gpu/gpu.h"
#include "gpu/shared_descriptors.h"

namespace awaken::gpu {

/// Thread-safe. Calls that take addresses are made with a context of their device current.
class CudaRuns {
  public:
    explicit CudaRuns(const cuda_abi::Functions& driver) noexcept : _driver(driver) {}

    Status find(const void* pointer, std::size_t bytes, MappedRun& run) const noexcept;
    Status share(const MappedRun& run, IpcMemoryHandle& handle) noexcept;
    /// What this process has shared.
    [[nodiscard]] SharedDescriptors& shared() noexcept { return _shared; }

    /// Maps what another process has shared, all parts at one range of addresses.
    Status open(const IpcMemoryHandle& handle, int device, void*& base) noexcept;
    /// What open() has mapped at `base`, once. None, where that was not open().
    struct Opened {
        std::size_t bytes = 0;
        std::vector<std::size_t> parts;  ///< bytes of each
    };
    [[nodiscard]] std::optional<Opened> take(const void* base) noexcept;
    void unmap(void* base, const Opened& run) const noexcept;

  private:
    Status share_mapping(const void* address, SharedPart& part) const noexcept;
    Status map_parts(std::byte* base, const std::vector<SharedPart>& parts, Opened& run) const noexcept;

    const cuda_abi::Functions& _driver;
    SharedDescriptors _shared;
    std::mutex _mutex;
    std::map<const void*, Opened> _opened;
};

}  // namespace awaken::gpu
