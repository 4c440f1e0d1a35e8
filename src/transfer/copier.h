// Copies between user memory of any kind and host memory, complete when the call returns.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/gpu.h"
#include "transfer/flat_type.h"
#include "transfer/layout.h"
#include "transfer/packer.h"

namespace awaken::transfer {

/// Moves bytes between a user's buffer (device, managed, host, or a mixture) and host memory that the library owns.
///
/// Copies go on a stream per device which is ordered after the legacy default stream, so that what the program's
/// synchronous-looking calls left behind is over before we read; the wait is by querying an event. Thread-safe.
///
/// Datatypes with gaps are packed by the GPU where there is a Packer that can; else see the head of copier.cpp.
class Copier {
  public:
    /// @param packer  outlives this; null: there is none.
    explicit Copier(gpu::Runtime& runtime, Packer* packer = nullptr);
    ~Copier();
    Copier(const Copier&) = delete;
    Copier& operator=(const Copier&) = delete;

    /// Packs the first `limit` travelling bytes of `count` elements at `buffer` into `packed` (host memory).
    /// `info` describes the buffer when all its blocks lie in one allocation; null means that blocks may be of
    /// different kinds (MPI_BOTTOM with absolute addresses) and each is classified by itself. Throws awaken::Error when
    /// the GPU runtime refuses a copy.
    void gather(const std::shared_ptr<const FlatType>& type, const void* buffer, std::int64_t count, std::int64_t limit,
                std::byte* packed, const gpu::PointerInfo* info);
    /// The reverse: never writes a byte that is not the layout's.
    void scatter(const std::shared_ptr<const FlatType>& type, void* buffer, std::int64_t count, std::int64_t limit,
                 const std::byte* packed, const gpu::PointerInfo* info);
    /// As gather and scatter, but the host side has the same layout as the user's (`mirror` stands for `buffer`): for
    /// reductions whose operator must see the datatype as it is.
    void gather_mirror(const std::shared_ptr<const FlatType>& type, const void* buffer, std::int64_t count,
                       std::byte* mirror, const gpu::PointerInfo* info);
    void scatter_mirror(const std::shared_ptr<const FlatType>& type, void* buffer, std::int64_t count,
                        const std::byte* mirror, const gpu::PointerInfo* info);
    /// Without datatypes, by copies only.
    void gather(const Layout& layout, const void* buffer, std::int64_t count, std::int64_t limit, std::byte* packed,
                const gpu::PointerInfo* info);
    void scatter(const Layout& layout, void* buffer, std::int64_t count, std::int64_t limit, const std::byte* packed,
                 const gpu::PointerInfo* info);
    void gather_mirror(const Layout& layout, const void* buffer, std::int64_t count, std::byte* mirror,
                       const gpu::PointerInfo* info);
    void scatter_mirror(const Layout& layout, void* buffer, std::int64_t count, const std::byte* mirror,
                        const gpu::PointerInfo* info);
    /// The first `limit` bytes of typed GPU memory to consecutive bytes in memory of any kind, and the reverse: for
    /// packed buffers of the program's own. False, with nothing done, where they have to go through host memory.
    [[nodiscard]] bool pack(const std::shared_ptr<const FlatType>& type, const void* buffer, std::int64_t count,
                            std::int64_t limit, const gpu::PointerInfo& info, void* packed,
                            const gpu::PointerInfo& packed_info);
    [[nodiscard]] bool unpack(const std::shared_ptr<const FlatType>& type, void* buffer, std::int64_t count,
                              std::int64_t limit, const gpu::PointerInfo& info, const void* packed,
                              const gpu::PointerInfo& packed_info);
    /// `bytes` consecutive bytes in either direction.
    void copy(void* destination, const void* source, std::size_t bytes, const void* device_side,
              const gpu::PointerInfo& info);
    /// Gives streams and events back; called while the runtime is still there. Safe to call twice.
    void shut_down() noexcept;

  private:
    struct CopyStream;
    struct State;
    std::unique_ptr<State> _state;
};

}  // namespace awaken::transfer
