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

/// IPC handles of the program's allocations. Asking the runtime costs microseconds, so this class keeps handles by the
/// allocation's identity, within a bound. It asks about memory without an identity (some HIP versions) each time.
/// Thread-safe.
class Exports {
  public:
    explicit Exports(gpu::Runtime& runtime);
    ~Exports();
    Exports(const Exports&) = delete;
    Exports& operator=(const Exports&) = delete;

    /// Describes the memory at `pointer`. Not ok when the memory cannot be exported; the class remembers that for the
    /// allocation.
    [[nodiscard]] gpu::Status describe(const void* pointer, const gpu::PointerInfo& info, Location& location);

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
