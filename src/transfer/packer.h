// SPDX-License-Identifier: Apache-2.0
// Packing by the GPU: puts operations into a stream that move bytes between typed memory and other memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gpu/gpu.h"
#include "report/report.h"
#include "transfer/flat_type.h"
#include "transfer/tuning.h"

namespace awaken::transfer {

/// Uses kernels (gpu/kernels/pack.h) where the runtime has a compiler. Uses 2-D copies for few long rows, and where
/// there is no compiler. Owns the copies of lists on the GPUs. Thread-safe; one for a process.
class Packer {
    struct State;

  public:
    /// Hears why kernels do not do something.
    using Note = std::function<void(const std::string& reason)>;
    Packer(gpu::Runtime& runtime, const Tuning& tuning, Note note = {});
    ~Packer();
    Packer(const Packer&) = delete;
    Packer& operator=(const Packer&) = delete;

    /// Whether move() works for this memory on `device`, in a few operations whatever the size. Compiles the kernels at
    /// first use, which takes up to a second, once on a machine.
    [[nodiscard]] bool can_move(int device, const TypedMemory& memory);
    /// Whether there are kernels on `device` for movements from one strided type to another.
    [[nodiscard]] bool has_kernels(int device);
    /// Loads all kernels now: while a stream is captured, that is not possible.
    void prepare(int device);

    /// One side of a movement: positions from `at` on of typed memory, or consecutive bytes from `address` on (null
    /// `typed`). Kernels on the device must be able to reach both sides.
    struct Side {
        void* address = nullptr;
        const TypedMemory* typed = nullptr;
        std::int64_t at = 0;
    };
    /// Gives the stream the operations that move `bytes` bytes. At least one side is typed. If both are, at least one
    /// is strided and both need kernels. Only for memory for which can_move() has answered yes. The operations need the
    /// memory of lists until the stream is through, so the caller keeps `typed` until then.
    [[nodiscard]] gpu::Status move(const Side& to, const Side& from, std::int64_t bytes, gpu::StreamHandle stream);

    /// A little device memory on loan.
    class Memory {
      public:
        Memory() = default;
        Memory(Memory&& other) noexcept;
        Memory& operator=(Memory&& other) noexcept;
        Memory(const Memory&) = delete;
        Memory& operator=(const Memory&) = delete;
        ~Memory() { release(); }
        [[nodiscard]] explicit operator bool() const noexcept { return _data != nullptr; }
        [[nodiscard]] std::byte* data() const noexcept { return _data; }
        [[nodiscard]] std::size_t size() const noexcept { return _size; }
        void release() noexcept;

      private:
        friend struct Packer::State;
        std::shared_ptr<State> _owner;  ///< keeps the state that the memory goes back to
        std::byte* _data = nullptr;
        std::size_t _size = 0;
        int _device = -1;
    };
    /// What move() of these two sides does it by, of which one is typed at least.
    [[nodiscard]] report::Mover mover(int device, const TypedMemory* to, const TypedMemory* from);
    /// At least `bytes` bytes; empty when the device has none.
    [[nodiscard]] Memory acquire(int device, std::size_t bytes);

    /// The largest part of a movement that goes through acquired memory at a time, where kernels do not reach one side.
    static constexpr std::size_t kScratchBytes = std::size_t{4} << 20;
    /// As move(), for a side that is not typed and that copies reach but kernels may not. The bytes pass through
    /// `scratch`, which stays on loan until the stream is through.
    [[nodiscard]] gpu::Status move_through(const Memory& scratch, const Side& to, const Side& from, std::int64_t bytes,
                                           gpu::StreamHandle stream);

    [[nodiscard]] const Tuning& tuning() const noexcept;
    /// Gives everything back, while the runtime is still there and nothing is under way. Safe to call twice.
    void shut_down() noexcept;

  private:
    std::shared_ptr<State> _state;
};

}  // namespace awaken::transfer
