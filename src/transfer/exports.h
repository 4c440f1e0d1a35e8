// Device memory of this process that others may map: the program's own, and the layer's for what cannot be exported.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gpu/gpu.h"
#include "transfer/location.h"

namespace awaken::transfer {

/// IPC handles of the program's allocations. Asking the runtime costs microseconds, so handles are kept by the
/// allocation's identity, within a bound; memory without an identity (some HIP versions) is asked about each time.
/// Thread-safe.
class Exports {
  public:
    explicit Exports(gpu::Runtime& runtime);
    ~Exports();
    Exports(const Exports&) = delete;
    Exports& operator=(const Exports&) = delete;

    /// Describes the memory at `pointer`. Not ok when it cannot be exported; that is remembered for the allocation.
    [[nodiscard]] gpu::Status describe(const void* pointer, const gpu::PointerInfo& info, Location& location);

  private:
    struct State;
    std::unique_ptr<State> _state;
};

/// Blocks of exportable device memory, kept for reuse: allocating takes milliseconds. Thread-safe.
class ExportedPool {
  public:
    struct Limits {
        std::size_t bytes = std::size_t{1} << 30;  ///< of all blocks of the process, lent and free
        /// Free blocks go back to the GPU after so long, which is longer than peers keep mappings of them.
        std::chrono::milliseconds idle{6000};
    };
    struct Statistics {
        std::uint64_t lent_bytes = 0, free_bytes = 0, refused = 0, allocated = 0;
    };
    ExportedPool(gpu::Runtime& runtime, Exports& exports, Limits limits);
    ~ExportedPool();
    ExportedPool(const ExportedPool&) = delete;
    ExportedPool& operator=(const ExportedPool&) = delete;

    /// On loan; gives itself back when destroyed. Also when the pool is shut down before it.
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
    /// At least `bytes` bytes on `device`; empty when the bound is reached, the card is full or refuses to export.
    [[nodiscard]] Block acquire(int device, std::size_t bytes);
    /// Gives back free blocks that were idle for long enough; whoever makes progress calls it now and then.
    void trim_idle() noexcept;
    /// The same, as of that time.
    void trim_idle(std::chrono::steady_clock::time_point now) noexcept;
    /// Gives all free blocks back; called while the runtime is still there. Safe to call twice.
    void shut_down() noexcept;
    [[nodiscard]] Statistics statistics() const;

  private:
    struct State;
    std::unique_ptr<State> _state;
};

}  // namespace awaken::transfer
