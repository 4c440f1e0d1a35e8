// SPDX-License-Identifier: Apache-2.0
// Copies that the GPU does while the CPU goes on. This class starts them, and tells later whether they are over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
/// memory) and tells when they are over. Thread-safe. Never waits by a blocking call of the runtime.
///
/// Small copies of a device share a stream, so that many of them cost one launch each and one question altogether.
/// Large copies go on the streams that `copy_stream` chooses, so that copies from different peers overlap. All streams
/// are ordered after the legacy default stream of their device.
class DeviceCopies {
  public:
    /// @param packer  for typed memory; outlives this object. Null: there is none.
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

        void* address = nullptr;  ///< of typed memory: the address of any of its bytes
        /// The kind of memory. Null for memory of the layer's own that the GPU reaches (mapped by IPC, pinned or
        /// registered): the copy then need not wait for work of the program. Ordinary host memory (kind host) is
        /// allowed too; its copy passes through pinned memory, block by block.
        const gpu::PointerInfo* info = nullptr;
        /// The memory is seen through a datatype, from the position `at` on. Kept until the copy is over. Never
        /// ordinary host memory.
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
    /// Whether typed memory may be one end of a copy on `device`.
    [[nodiscard]] bool can_move(int device, const TypedMemory& memory);
    /// Whether both ends of a copy may be typed memory.
    [[nodiscard]] bool has_kernels(int device);

    /// When the GPU gets a copy.
    enum class Start : std::uint8_t {
        now,
        together  ///< with other copies that start meanwhile, as soon as somebody asks about one of them: fit for short
                  ///< copies
    };

    class Copy;
    /// Starts copying `bytes` bytes on `device`. `copy_stream` keeps large copies of different peers apart (any
    /// number). Throws awaken::Error when the runtime refuses. At most one end is a list of pieces. Where both ends are
    /// typed, the device reaches both.
    [[nodiscard]] Copy start(int device, unsigned copy_stream, const End& destination, const End& source,
                             std::size_t bytes, Start when = Start::now);

    /// `copy_stream` for copies between a GPU and this process's host memory that the caller waits for: they have
    /// streams of their own, one for each direction.
    static constexpr unsigned kToHost = 0x80000000, kFromHost = 0x80000001;

    /// Gives a stream of the device operations of the caller's, which move `bytes` bytes in all. The copy is over when
    /// they are. Throws awaken::Error when `give` fails; what the stream had accepted is over then.
    using Give = std::function<gpu::Status(gpu::Runtime&, gpu::StreamHandle)>;
    [[nodiscard]] Copy give(int device, unsigned copy_stream, std::size_t bytes, const Give& give);

    /// Waits for all work that the GPU was given, and gives streams, events and kernels back. A later copy makes new
    /// ones. The caller calls it while the runtime is still there. Safe to call twice, also while copies are alive.
    /// Those copies must be gone before this object is.
    void shut_down() noexcept;

    /// Why the runtime did copies that the user wanted a kernel to do (CopyEngine::kernel), in one line. Empty while
    /// that did not happen.
    [[nodiscard]] std::string kernel_refusal() const;

  private:
    struct State;
    struct Work;
    std::unique_ptr<State> _state;
};

/// Asks the GPU runtime itself for the engine, where the runtime has a switch for that. On AMD the switch says whether
/// the SDMA engines or kernels of the runtime copy between GPUs. The call has an effect only before the runtime starts
/// and before the program has threads. A value that the user has set stays.
void request_copy_engine(CopyEngine engine) noexcept;

/// A copy under way. The destructor waits until the GPU no longer uses either side.
class DeviceCopies::Copy {
  public:
    Copy();
    Copy(Copy&& other) noexcept;
    Copy& operator=(Copy&& other) noexcept;
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    ~Copy();

    /// True when the copy is over (also for a copy that was never started). Does the CPU's part where one side is
    /// ordinary host memory. Throws awaken::Error when the copy failed; a failed copy is over, too.
    [[nodiscard]] bool poll();
    /// Polls until the copy is over.
    void wait();
    /// Bytes from the first on that have certainly reached the destination. For pipelines that pass on what is there.
    [[nodiscard]] std::size_t completed() const noexcept;

  private:
    friend class DeviceCopies;
    explicit Copy(std::unique_ptr<Work> work) noexcept;
    std::unique_ptr<Work> _work;
};

}  // namespace awaken::transfer
