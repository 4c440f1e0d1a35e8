// SPDX-License-Identifier: Apache-2.0
// A stream of the GPU that copies, and how it is known that a copy is over. Internal to transfer/device_copies.
//
// A copy stream is a stream that does its copies in order. Copies are counted: the position of a copy is the number of
// copies that the copy stream had got, with this one. A marker is an event that was recorded when the copy stream stood
// at some position. So one query of a marker answers for all copies up to there. Starting a copy records nothing. When
// somebody asks about a copy that no marker covers yet, the copy stream records one at its end. So sixty-four messages
// that start first and are asked about afterwards cost sixty-four launches and one event.
//
// Copies that start together are held back until somebody asks about one of them. Then the stream gets all of them in
// one call. A launch costs as much as 2.7 us, and one of sixty-four in a batch 0.7 us (H200, CUDA 13). A copy engine
// does the copies of a batch one after the other, a kernel does them at the same time: from a few on, one launch of a
// kernel does all. Sixty-four of 32 KiB from another GPU are over after 17 us instead of 51 (H100), and cost the CPU
// 4 us instead of 40.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "gpu/gpu.h"
#include "report/report.h"

namespace awaken::transfer {

/// The copying kernels of one GPU.
struct CopyKernels {
    enum class Stage : std::uint8_t { unknown, loading, ready, refused };

    std::atomic<Stage> stage{Stage::unknown};
    std::atomic<std::chrono::steady_clock::rep> not_before{0};  ///< the GPU was busy: no attempt before this time
    gpu::ModuleHandle module;                                   ///< this and the rest are valid in stage ready
    gpu::KernelHandle one, batch;
    unsigned largest_grid = 1;

    [[nodiscard]] bool ready() const noexcept { return stage.load(std::memory_order_acquire) == Stage::ready; }
    [[nodiscard]] gpu::Status launch(gpu::Runtime& runtime, const gpu::Copy1D& copy,
                                     gpu::StreamHandle stream) const noexcept;
    /// All of them by one kernel.
    [[nodiscard]] gpu::Status launch_batch(gpu::Runtime& runtime, std::span<const gpu::Copy1D> copies,
                                           gpu::StreamHandle stream) const noexcept;
};

/// A stream with its markers. Thread-safe.
class CopyStream {
  public:
    enum class Progress : std::uint8_t { under_way, arrived, failed };

    CopyStream(gpu::Runtime& runtime, const int device, const CopyKernels& kernels)
        : _runtime(runtime), _device(device), _kernels(kernels) {}
    CopyStream(const CopyStream&) = delete;
    CopyStream& operator=(const CopyStream&) = delete;

    [[nodiscard]] int device() const noexcept { return _device; }
    /// True once a call on the stream failed: no new copy goes here.
    [[nodiscard]] bool broken() const noexcept { return _broken.load(std::memory_order_acquire); }

    /// Between these two somebody may ask about positions, so that the stream stays.
    void begin_use() noexcept { _users.fetch_add(1, std::memory_order_relaxed); }
    void end_use() noexcept { _users.fetch_sub(1, std::memory_order_release); }

    /// Gives the stream one more operation; `give(runtime, stream)` does that. Puts a marker after it if it is
    /// `marked`, else when somebody asks.
    template <typename Give>
    gpu::Status add(const Give& give, std::uint64_t& position, const bool marked) noexcept {
        const std::scoped_lock lock(_mutex);
        gpu::Status status = give_held();
        if (status.ok()) {
            status = need_stream();
        }
        if (!status.ok()) {
            return status;
        }
        status = give(_runtime, _stream);
        if (!status.ok()) {
            retire_from_use();
            return status;
        }
        position = ++_given;
        if (marked) {
            static_cast<void>(mark(position));  // a failure shows when somebody asks for the position
        }
        return status;
    }

    /// Holds a copy back until somebody asks about a copy of this copy stream. `by_kernel`: a kernel may do it; then
    /// `mover` says so, which must be there until the copy is over.
    gpu::Status hold(const gpu::Copy1D& copy, bool by_kernel, report::Mover& mover, std::uint64_t& position);
    /// True when the next held copy makes a batch for a kernel.
    [[nodiscard]] bool is_nearly_a_batch() noexcept;

    /// The state of the operation that was submitted as `position`. When it failed, `why` receives the reason, and the
    /// GPU no longer works on anything in the copy stream.
    [[nodiscard]] Progress ask(std::uint64_t position, gpu::Status& why) noexcept;

    /// Makes a broken copy stream usable again, with another stream. False while somebody still uses it.
    [[nodiscard]] bool renew() noexcept;
    /// Waits until the stream is idle, and destroys it. The next copy makes another.
    void shut_down() noexcept;

  private:
    struct Refused {
        std::uint64_t position;
        gpu::Status why;
    };
    struct Marker {
        gpu::EventHandle event;
        std::uint64_t covers = 0;  ///< the last position before it
    };

    /// A call for this copy stream failed at once. Its earlier operations may be sound.
    void retire_from_use() noexcept { _broken.store(true, std::memory_order_release); }

    // ---- all below need the lock ------------------------------------------------------------------------------------

    [[nodiscard]] gpu::Status need_stream() noexcept;
    /// Gives the stream the held copies. Their positions were given out already, so each refused copy is remembered by
    /// its position. A failure of all of them is a failure of the copy stream.
    [[nodiscard]] gpu::Status give_held() noexcept;
    /// Gives all held copies to one kernel, if they are many enough. False where the runtime has to do them.
    [[nodiscard]] bool launch_held() noexcept;
    void count_held(report::Mover mover) const noexcept;
    /// The outcome of a copy that the stream is through with.
    [[nodiscard]] Progress outcome(std::uint64_t position, gpu::Status& why) const noexcept;
    /// Puts a marker after all operations that the stream has. Gives it the held copies first if this position is one
    /// of them: a question about an older copy leaves them held. False when that failed.
    [[nodiscard]] bool mark(std::uint64_t position) noexcept;
    /// The stream has reached the first `count` markers.
    void retire(std::size_t count) noexcept;
    /// From now on events say nothing certain.
    void break_down(const gpu::Status& status) noexcept;
    /// Whether the stream is idle. When the stream gives no answer, the device has stopped working on it, or the driver
    /// is gone.
    [[nodiscard]] bool drained() noexcept;
    /// Copies that were accepted may still be running although a call failed. The caller keeps its memory until they
    /// are over.
    [[nodiscard]] Progress after_failure(gpu::Status& why) noexcept;
    void close() noexcept;

    gpu::Runtime& _runtime;
    const int _device;
    const CopyKernels& _kernels;
    std::mutex _mutex;
    gpu::StreamHandle _stream;  ///< made by the first copy
    std::uint64_t _given = 0;   ///< operations that the stream got, held ones included
    std::vector<gpu::Copy1D> _held;
    std::vector<report::Mover*> _movers;  ///< of the held copies
    bool _all_by_kernel = false;          ///< of the held copies
    bool _batch_refused = false;          ///< the runtime has refused the kernel: it does the copies from then on
    std::vector<Refused> _refused;  ///< positions of refused copies among the held ones; the copy stream then takes no
                                    ///< new ones
    std::atomic<bool> _any_refused{false};
    std::atomic<std::uint64_t> _finished{0};
    std::vector<Marker> _markers;  ///< not yet reached as far as we know; oldest first
    std::vector<gpu::EventHandle> _spare_events;
    gpu::Status _failure;   ///< of the stream itself: every unfinished copy has failed
    bool _drained = false;  ///< after a failure: the GPU is through with the stream
    std::atomic<bool> _broken{false};
    std::atomic<int> _users{0};
};

}  // namespace awaken::transfer
