// Copies between user memory of any kind and host memory, complete when the call returns.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/gpu.h"
#include "transfer/layout.h"

namespace awaken::transfer {

/// Moves bytes between a user's buffer (device, managed, host, or a mixture) and host memory that the library owns.
///
/// Copies go on a stream per device which is ordered after the legacy default stream, so that what the program's
/// synchronous-looking calls left behind is over before we read; the wait is by querying an event. Thread-safe.
class Copier {
  public:
    explicit Copier(gpu::Runtime& runtime);
    ~Copier();
    Copier(const Copier&) = delete;
    Copier& operator=(const Copier&) = delete;

    /// Packs the first `limit` travelling bytes of `count` elements at `buffer` into `packed` (host memory).
    /// `info` describes the buffer when all its blocks lie in one allocation; null means that blocks may be of
    /// different kinds (MPI_BOTTOM with absolute addresses) and each is classified by itself. Throws awaken::Error when
    /// the GPU runtime refuses a copy.
    void gather(const Layout& layout, const void* buffer, std::int64_t count, std::int64_t limit, std::byte* packed,
                const gpu::PointerInfo* info);
    /// The reverse: never writes a byte that is not the layout's.
    void scatter(const Layout& layout, void* buffer, std::int64_t count, std::int64_t limit, const std::byte* packed,
                 const gpu::PointerInfo* info);
    /// As gather and scatter, but the host side has the same layout as the user's (`mirror` stands for `buffer`): for
    /// reductions whose operator must see the datatype as it is.
    void gather_mirror(const Layout& layout, const void* buffer, std::int64_t count, std::byte* mirror,
                       const gpu::PointerInfo* info);
    void scatter_mirror(const Layout& layout, void* buffer, std::int64_t count, const std::byte* mirror,
                        const gpu::PointerInfo* info);
    /// `bytes` consecutive bytes in either direction.
    void copy(void* destination, const void* source, std::size_t bytes, const void* device_side,
              const gpu::PointerInfo& info);
    /// Gives streams and events back; called while the runtime is still there. Safe to call twice.
    void shut_down() noexcept;

  private:
    struct Lane;
    struct State;
    std::unique_ptr<State> _state;
};

}  // namespace awaken::transfer
