// Images of GPU buffers in pinned host memory, for staging by hand: allocated once, copied on one stream.
//
// Compiled once per MPI ABI.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/memory.h"
#include "gpu/gpu.h"

namespace awaken::bench {

class HostImages {
  public:
    /// `device`: whose stream copies; -1 where there is no GPU, and no buffer that needs an image.
    HostImages(gpu::Runtime& gpu, int device);
    ~HostImages();
    HostImages(const HostImages&) = delete;
    HostImages& operator=(const HostImages&) = delete;

    /// Allocates images of those of the buffers that an MPI cannot touch, or that the GPU has, in place of all earlier
    /// ones. Throws Error when pinned memory runs out.
    void prepare(std::span<const Buffer* const> buffers);

    /// Where the MPI finds what a program has at `data`: itself when that is host memory.
    [[nodiscard]] void* image_of(const void* data) const noexcept;

    /// Starts a copy; synchronize() waits for all that were started.
    void queue(void* destination, const void* source, std::size_t bytes);
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
    gpu::StreamHandle _stream;
    std::vector<Image> _images;
};

}  // namespace awaken::bench
