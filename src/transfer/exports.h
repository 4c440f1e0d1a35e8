// SPDX-License-Identifier: Apache-2.0
// Device memory of this process that others may map: memory of the program, and blocks of the layer for memory that
// cannot be exported.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gpu/gpu.h"
#include "transfer/location.h"

namespace awaken::transfer {

/// Handles of the program's memory. Asking the runtime costs microseconds, so this class keeps handles by the memory's
/// identity, within a bound. It asks about memory without an identity (some HIP versions) each time.
///
/// Legacy IPC exports whole allocations. Of virtual-memory-managed memory, file descriptors export the mappings that
/// hold the bytes in question. Thread-safe.
class Exports {
  public:
    /// @param idle_bytes  the most memory that descriptors keep from being freed while no message needs them
    explicit Exports(gpu::Runtime& runtime, std::size_t idle_bytes = std::size_t{1} << 30);
    ~Exports();
    Exports(const Exports&) = delete;
    Exports& operator=(const Exports&) = delete;

    /// Keeps others able to map what a Location with descriptors describes. Must not outlive the runtime.
    class Hold {
      public:
        Hold(gpu::Runtime& runtime, const gpu::IpcMemoryHandle& handle, const std::size_t idle_bytes) noexcept
            : _runtime(runtime), _handle(handle), _idle_bytes(idle_bytes) {}
        ~Hold() { _runtime.release_export(_handle, _idle_bytes); }
        Hold(const Hold&) = delete;
        Hold& operator=(const Hold&) = delete;

      private:
        gpu::Runtime& _runtime;
        const gpu::IpcMemoryHandle _handle;
        const std::size_t _idle_bytes;
    };

    /// Describes the allocation at `pointer`. Not ok when legacy IPC cannot export it; the class remembers that for the
    /// allocation.
    [[nodiscard]] gpu::Status describe(const void* pointer, const gpu::PointerInfo& info, Location& location);
    /// The same for `bytes` bytes, which descriptors may export. Then the location holds as long as `hold`, which is
    /// null otherwise.
    [[nodiscard]] gpu::Status describe(const void* pointer, std::size_t bytes, const gpu::PointerInfo& info,
                                       Location& location, std::unique_ptr<Hold>& hold);

  private:
    struct State;
    std::unique_ptr<State> _state;
};

/// Blocks of exportable device memory. The pool keeps them for reuse, since allocating takes milliseconds. Thread-safe.
class ExportedPool {
  public:
    struct Limits {
        std::size_t bytes = std::size_t{1} << 30;  ///< of all blocks of the process, lent and free
        /// Free blocks go back to the GPU after this long. Peers keep mappings of them for less time.
        std::chrono::milliseconds idle{6000};
    };
    struct Statistics {
        std::uint64_t lent_bytes = 0, free_bytes = 0, refused = 0, allocated = 0;
    };
    ExportedPool(gpu::Runtime& runtime, Exports& exports, Limits limits);
    ~ExportedPool();
    ExportedPool(const ExportedPool&) = delete;
    ExportedPool& operator=(const ExportedPool&) = delete;

    /// On loan. Its destructor gives it back, even if the pool was shut down before.
    class Block {
      public:
        Block() = default;
        Block(Block&& other) noexcept;
        Block& operator=(Block&& other) noexcept;
        Block(const Block&) = delete;
        Block& operator=(const Block&) = delete;
        ~Block() { release(); }
        [[nodiscard]] explicit operator bool() const noexcept { return _data != nullptr; }
        [[nodiscard]] std::byte* data() const noexcept { return _data; }
        [[nodiscard]] const Location& location() const noexcept { return _location; }
        void release() noexcept;

      private:
        friend class ExportedPool;
        ExportedPool* _pool = nullptr;
        std::byte* _data = nullptr;
        std::size_t _capacity = 0;
        int _device = -1;
        Location _location;
    };
    /// At least `bytes` bytes on `device`. Empty when the pool reaches its bound, or the card is full or refuses to
    /// export.
    [[nodiscard]] Block acquire(int device, std::size_t bytes);
    /// Gives back free blocks that were idle for long enough. Code that makes progress calls it now and then.
    void trim_idle() noexcept;
    /// The same, with the given time as the present.
    void trim_idle(std::chrono::steady_clock::time_point now) noexcept;
    /// Gives all free blocks back. The caller calls it while the runtime is still there. Safe to call twice.
    void shut_down() noexcept;
    [[nodiscard]] Statistics statistics() const;

  private:
    struct State;
    std::unique_ptr<State> _state;
};

}  // namespace awaken::transfer
