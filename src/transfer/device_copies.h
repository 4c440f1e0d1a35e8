// Copies that the GPU does while the CPU goes on: started here, asked about later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "gpu/gpu.h"
#include "transfer/flat_type.h"
#include "transfer/packer.h"
#include "transfer/pinned_pool.h"
#include "transfer/tuning.h"

namespace awaken::transfer {

/// Starts copies between any two places (device memory of any GPU, memory mapped by IPC, pinned or ordinary host
/// memory) and tells when they are over. Thread-safe; never waits by a blocking call of the runtime.
///
/// Small copies of a device share a stream, so that many of them cost one launch each and one question altogether;
/// large ones go on streams by `copy_stream`, so that copies from different peers overlap. All streams are ordered
/// after the legacy default stream of their device.
class DeviceCopies {
  public:
    /// @param packer  for typed memory; outlives this. Null: there is none.
    DeviceCopies(gpu::Runtime& runtime, PinnedPool& pool, const Tuning& tuning, CopyEngine engine,
                 Packer* packer = nullptr);
    ~DeviceCopies();
    DeviceCopies(const DeviceCopies&) = delete;
    DeviceCopies& operator=(const DeviceCopies&) = delete;

    /// One side of a copy.
    struct End {
        End() = default;
        End(void* where, const gpu::PointerInfo* what, std::shared_ptr<const TypedMemory> through = nullptr,
            const std::int64_t position = 0)
            : address(where), info(what), typed(std::move(through)), at(position) {}

        void* address = nullptr;  ///< of typed memory: of any byte of it
        /// What the memory is. Null for memory of the layer's own that the GPU may reach (mapped by IPC, pinned or
        /// registered): then nothing of the program's has to be waited for. Ordinary host memory (kind host) may be
        /// given too; its copy passes through pinned memory, chunk by chunk.
        const gpu::PointerInfo* info = nullptr;
        /// Seen through a datatype, from the position `at` on; kept until the copy is over. Never ordinary host memory.
        std::shared_ptr<const TypedMemory> typed;
        std::int64_t at = 0;

        /// The same memory from `bytes` bytes further on.
        [[nodiscard]] End from(const std::size_t bytes) const {
            if (typed != nullptr) {
                return {address, info, typed, at + static_cast<std::int64_t>(bytes)};
            }
            return {static_cast<std::byte*>(address) + bytes, info};
        }
    };
    /// Whether typed memory may be an end of a copy on `device`.
    [[nodiscard]] bool can_move(int device, const TypedMemory& memory);
    /// Whether both ends may be.
    [[nodiscard]] bool has_kernels(int device);

    /// When the GPU is given a copy.
    enum class Start : std::uint8_t {
        now,
        together  ///< with others that are started meanwhile, when somebody asks about one of them: fit for short ones
    };

    class Copy;
    /// Starts copying `bytes` bytes on `device`. `copy_stream` keeps large copies of different peers apart (any
    /// number). Throws awaken::Error when the runtime refuses. At most one end is a list of pieces, and where both are
    /// typed the device reaches both.
    [[nodiscard]] Copy start(int device, unsigned copy_stream, const End& destination, const End& source,
                             std::size_t bytes, Start when = Start::now);

    /// Waits for what the GPU was given, and gives streams, events and kernels back; called while the runtime is still
    /// there, and while no copy is being started. Safe to call twice, and with copies alive; these must be gone before
    /// this object is.
    void shut_down() noexcept;

    /// Why copies that a kernel was asked for (CopyEngine::kernel) were left to the runtime, in one line. Empty while
    /// that did not happen.
    [[nodiscard]] std::string kernel_refusal() const;

  private:
    struct State;
    struct Work;
    std::unique_ptr<State> _state;
};

/// Asks the GPU runtime itself for the engine, where it has a switch of its own for that: on AMD, whether copies
/// between GPUs use the SDMA engines or kernels of the runtime. Has an effect only when it is called before the runtime
/// starts and before the program has threads; what the user has set stays.
void request_copy_engine(CopyEngine engine) noexcept;

/// A copy under way. Destroying it waits until the GPU is done with both sides.
class DeviceCopies::Copy {
  public:
    Copy();
    Copy(Copy&& other) noexcept;
    Copy& operator=(Copy&& other) noexcept;
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    ~Copy();

    /// True when the copy is over (also for one that was never started). Does the CPU's part where one side is
    /// ordinary host memory. Throws awaken::Error when it failed; it is over then, too.
    [[nodiscard]] bool poll();
    /// Polls until it is over.
    void wait();
    /// Bytes from the first on that have arrived for certain: for pipelines that hand on what is there.
    [[nodiscard]] std::size_t completed() const noexcept;

  private:
    friend class DeviceCopies;
    std::unique_ptr<Work> _work;
};

}  // namespace awaken::transfer
