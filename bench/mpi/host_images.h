// SPDX-License-Identifier: Apache-2.0
// Images of GPU buffers in host memory, for staging by hand: allocated once, copied on one stream.
//
// Compiled once per MPI ABI.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/memory.h"
#include "gpu/gpu.h"

namespace awaken::bench {

/// A copy between a buffer and its image.
struct ImageCopy {
    void* destination = nullptr;
    const void* source = nullptr;
    std::size_t bytes = 0;
};

class HostImages {
  public:
    enum class Memory : std::uint8_t { pinned, pageable };

    /// `device`: whose stream copies; -1 where there is no GPU, and no buffer that needs an image.
    HostImages(gpu::Runtime& gpu, int device, Memory memory = Memory::pinned);
    ~HostImages();
    HostImages(const HostImages&) = delete;
    HostImages& operator=(const HostImages&) = delete;

    /// Allocates images of those of the buffers that an MPI cannot touch, or that the GPU has, in place of all earlier
    /// ones. Throws Error when memory runs out.
    void prepare(std::span<const Buffer* const> buffers);

    /// Where the MPI finds what a program has at `data`: itself when that is host memory.
    [[nodiscard]] void* image_of(const void* data) const noexcept;

    /// Starts a copy; synchronize() waits for all that were started. False when there is nothing to be copied.
    bool queue(const ImageCopy& copy);
    void synchronize();

    /// Copies from a GPU buffer into its image, and waits. The answer is the image. Nothing to be done for host memory.
    void* fetch(const void* data, std::size_t bytes);
    /// Copies back from the image.
    void deliver(void* data, const void* image, std::size_t bytes);

  private:
    struct Image {
        std::byte* device;
        std::size_t bytes;
        std::byte* host;
    };

    void release() noexcept;

    gpu::Runtime& _gpu;
    const int _device;
    const Memory _memory;
    gpu::StreamHandle _stream;
    std::vector<Image> _images;
};

}  // namespace awaken::bench
