// SPDX-License-Identifier: Apache-2.0
// Copies between user memory of any kind and host memory, complete when the call returns.
#pragma once

#include <cstdint>
#include <memory>

#include "gpu/gpu.h"
#include "transfer/device_copies.h"
#include "transfer/flat_type.h"
#include "transfer/layout.h"
#include "transfer/packer.h"
#include "transfer/pinned_pool.h"

namespace awaken::transfer {

/// Moves bytes between a user's buffer (device, managed, host, or a mixture) and host memory that the library owns, by
/// DeviceCopies, and waits. Thread-safe.
///
/// The GPU packs datatypes with gaps where there is a Packer that can. The head of copier.cpp describes the other
/// cases.
class Copier {
  public:
    /// @param packer  null: there is none. All outlive this object.
    Copier(gpu::Runtime& runtime, DeviceCopies& copies, PinnedPool& pool, Packer* packer = nullptr)
        : _runtime(runtime), _copies(copies), _pool(pool), _packer(packer) {}
    Copier(const Copier&) = delete;
    Copier& operator=(const Copier&) = delete;

    /// Packs the first `limit` travelling bytes of `count` elements at `buffer` into `packed` (host memory). `info`
    /// describes the buffer when all its blocks lie in one allocation. Null means that blocks may be of different kinds
    /// (MPI_BOTTOM with absolute addresses): the copier then classifies each by itself. Throws awaken::Error when the
    /// GPU runtime refuses a copy.
    void gather(const std::shared_ptr<const FlatType>& type, const void* buffer, std::int64_t count, std::int64_t limit,
                std::byte* packed, const gpu::PointerInfo* info);
    /// The reverse. Never writes a byte outside the layout.
    void scatter(const std::shared_ptr<const FlatType>& type, void* buffer, std::int64_t count, std::int64_t limit,
                 const std::byte* packed, const gpu::PointerInfo* info);
    /// As gather and scatter, but the host side has the same layout as the user's side (`mirror` stands for `buffer`).
    /// For reductions whose operator must see the datatype as it is.
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
    /// pack() moves the first `limit` bytes of typed GPU memory to consecutive bytes in memory of any kind; unpack()
    /// does the reverse. For packed buffers of the program. Returns false and does nothing where the bytes have to go
    /// through host memory.
    [[nodiscard]] bool pack(const std::shared_ptr<const FlatType>& type, const void* buffer, std::int64_t count,
                            std::int64_t limit, const gpu::PointerInfo& info, void* packed,
                            const gpu::PointerInfo& packed_info);
    [[nodiscard]] bool unpack(const std::shared_ptr<const FlatType>& type, void* buffer, std::int64_t count,
                              std::int64_t limit, const gpu::PointerInfo& info, const void* packed,
                              const gpu::PointerInfo& packed_info);
    /// Copies `bytes` consecutive bytes in either direction.
    void copy(void* destination, const void* source, std::size_t bytes, const void* device_side,
              const gpu::PointerInfo& info);

  private:
    enum class Direction : std::uint8_t { to_host, to_user };
    struct Piece;
    class Session;
    class Planner;
    class Sorter;

    /// Moves a layout by copies. `mirrored`: the host side has the same layout.
    void transfer(Direction direction, const Layout& layout, std::uintptr_t user, std::int64_t count,
                  std::int64_t limit, std::uintptr_t host, bool mirrored, const gpu::PointerInfo* info);
    /// Moves one run of bytes, or typed memory by the packer. False, with nothing done, where that is not possible.
    /// `to_host` means to the packed side, of whatever kind that is.
    [[nodiscard]] bool move(Direction direction, const std::shared_ptr<const FlatType>& type, const void* buffer,
                            std::int64_t count, std::int64_t limit, const gpu::PointerInfo& info, void* packed,
                            const gpu::PointerInfo* packed_info);

    gpu::Runtime& _runtime;
    DeviceCopies& _copies;
    PinnedPool& _pool;
    Packer* const _packer;
};

}  // namespace awaken::transfer
