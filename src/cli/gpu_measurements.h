// The measurements of `awaken tune` on a GPU. Each gives a few numbers with their spread; none is a choice yet.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::cli {

/// Samples of one quantity.
class Series {
  public:
    void add(double sample) { _samples.push_back(sample); }
    [[nodiscard]] std::size_t count() const noexcept { return _samples.size(); }
    /// The smallest sample such that this part of all samples is no larger (nearest rank). There must be a sample.
    [[nodiscard]] double quantile(double part) const;
    [[nodiscard]] double median() const { return quantile(0.5); }

  private:
    std::vector<double> _samples;
};

/// How much is measured.
struct Effort {
    std::size_t small_samples = 300;                       ///< of measurements that take microseconds
    std::size_t samples = 25;                              ///< of measurements that take milliseconds
    std::size_t step_factor = 2;                           ///< from one size to the next
    std::size_t most_copy_bytes = std::size_t{64} << 20;   ///< largest copy between buffers of GPUs
    std::size_t most_chunk_bytes = std::size_t{16} << 20;  ///< largest chunk of a pipeline
    std::size_t pipeline_bytes = std::size_t{128} << 20;   ///< of all chunks together
};

/// Microseconds from the start of a copy of 8 bytes from `device` to pinned memory until the host knows that it is
/// over.
[[nodiscard]] Series measure_small_copy(gpu::Runtime& runtime, int device, const Effort& effort);

/// Bandwidth of one stream of chunks between `device` and pinned memory.
struct ChunkBandwidth {
    std::size_t chunk_bytes = 0;
    Series to_host;    ///< GB/s (10^9 bytes)
    Series to_device;  ///< GB/s
};

/// For each size of a chunk, `depth` chunks under way at once, as a pipeline has them.
[[nodiscard]] std::vector<ChunkBandwidth> measure_chunks(gpu::Runtime& runtime, int device, std::size_t depth,
                                                         const Effort& effort);

/// Times of one size of copies into memory of `device`, by the runtime's copy and by a kernel, in turns.
struct CopyTimes {
    std::size_t bytes = 0;
    Series engine_us;
    Series kernel_us;
};

struct CopyComparison {
    std::vector<CopyTimes> sizes;
    std::string kernel_refusal;  ///< why a kernel could not copy, so that its times mean nothing; empty when it could
};

/// Copies from memory of `source_device`, which is `device` itself or a peer whose memory it may access.
[[nodiscard]] CopyComparison measure_copies(gpu::Runtime& runtime, int device, int source_device, const Effort& effort);

/// Throws Error when a call of the runtime failed; `what` names the attempt.
void require(const gpu::Status& status, const std::string& what);

}  // namespace awaken::cli
