// SPDX-License-Identifier: Apache-2.0
#include "transfer/copy_stream.h"

#include <algorithm>
#include <array>
#include <new>

#include "base/round_up.h"
#include "base/step_probe.h"
#include "gpu/wait.h"
#include "report/totals.h"

namespace awaken::transfer {
namespace {

/// The most copies that are held back.
constexpr std::size_t kHeld = 64;
/// From this number of held copies on, a kernel does all where it may: 8 of 32 KiB are over after 12 us instead of 13,
/// 4 after 12.7 instead of 12.6 (H100).
constexpr std::size_t kBatch = 8;
/// Threads in a block of the copying kernel. Each thread has four vectors of 16 bytes under way.
constexpr unsigned kKernelThreads = 256;
constexpr std::size_t kVectorBytes = 16;
constexpr std::size_t kKernelBytesPerBlock = kKernelThreads * 4 * kVectorBytes;
/// Threads that a GPU starts together: blocks of fewer are no cheaper.
constexpr std::size_t kWarpThreads = 32;

// The parameter of awaken_copy_batch in gpu/kernels/copy.h, with addresses as numbers.
struct BatchedCopy {
    std::uint64_t target, source, bytes;
};
struct CopyBatch {
    std::array<BatchedCopy, kHeld> copies;
};
static_assert(sizeof(CopyBatch) == 24 * kHeld);

}  // namespace

// ---- CopyKernels ----------------------------------------------------------------------------------------------------

gpu::Status CopyKernels::launch(gpu::Runtime& runtime, const gpu::Copy1D& copy,
                                const gpu::StreamHandle stream) const noexcept {
    gpu::Copy1D parameters = copy;
    unsigned long long length = copy.bytes;
    std::array<void*, 3> arguments{static_cast<void*>(&parameters.destination), static_cast<void*>(&parameters.source),
                                   &length};
    const std::size_t blocks = (copy.bytes + kKernelBytesPerBlock - 1) / kKernelBytesPerBlock;
    gpu::Dim3 grid;
    grid.x = static_cast<unsigned>(std::min<std::size_t>(blocks, largest_grid));
    return report::counted(report::Mover::kernel, copy.bytes,
                           runtime.launch(one, grid, {kKernelThreads, 1, 1}, 0, stream, arguments.data()));
}

gpu::Status CopyKernels::launch_batch(gpu::Runtime& runtime, const std::span<const gpu::Copy1D> copies,
                                      const gpu::StreamHandle stream) const noexcept {
    CopyBatch parameter{};
    std::size_t longest = 0;
    for (std::size_t i = 0; i < copies.size(); ++i) {
        const gpu::Copy1D& copy = copies[i];
        parameter.copies[i] = {reinterpret_cast<std::uintptr_t>(copy.destination),
                               reinterpret_cast<std::uintptr_t>(copy.source), copy.bytes};
        longest = std::max(longest, copy.bytes);
    }
    auto blocks_each = static_cast<unsigned>((longest + kKernelBytesPerBlock - 1) / kKernelBytesPerBlock);
    // A thread without a vector to copy would be started for nothing.
    const std::size_t vectors = (longest + kVectorBytes - 1) / kVectorBytes;
    const auto threads = static_cast<unsigned>(std::min<std::size_t>(round_up(vectors, kWarpThreads), kKernelThreads));
    gpu::Dim3 grid;
    grid.x = static_cast<unsigned>(copies.size()) * blocks_each;
    std::array<void*, 2> arguments{static_cast<void*>(&parameter), static_cast<void*>(&blocks_each)};
    return runtime.launch(batch, grid, {threads, 1, 1}, 0, stream, arguments.data());
}

// ---- CopyStream -----------------------------------------------------------------------------------------------------

gpu::Status CopyStream::hold(const gpu::Copy1D& copy, const bool by_kernel, report::Mover& mover,
                             std::uint64_t& position) {
    const std::scoped_lock lock(_mutex);
    _held.reserve(kHeld);
    _movers.reserve(kHeld);
    _refused.reserve(_refused.size() + kHeld);
    gpu::Status status = _failure;
    if (status.ok() && _held.size() == kHeld) {
        status = give_held();
    }
    if (status.ok()) {
        _all_by_kernel = by_kernel && (_all_by_kernel || _held.empty());
        if (_held.empty()) {
            _movers.clear();
        }
        _held.push_back(copy);
        _movers.push_back(&mover);
        position = ++_given;
    }
    return status;
}

bool CopyStream::is_nearly_a_batch() noexcept {
    const std::scoped_lock lock(_mutex);
    return _held.size() + 1 == kBatch && !_kernels.ready();
}

CopyStream::Progress CopyStream::ask(const std::uint64_t position, gpu::Status& why) noexcept {
    AWAKEN_STEP("copies: ask");
    if (position <= _finished.load(std::memory_order_acquire) && !_any_refused.load(std::memory_order_acquire)) {
        return Progress::arrived;
    }
    // The thread that holds the lock asks for us as well.
    const std::unique_lock lock(_mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        return Progress::under_way;
    }
    if (position <= _finished.load(std::memory_order_relaxed)) {
        return outcome(position, why);
    }
    if (_failure.ok()) {
        if (_markers.empty() || _markers.back().covers < position) {
            if (!mark(position)) {
                return after_failure(why);
            }
        }
        const auto marker = std::lower_bound(
            _markers.begin(), _markers.end(), position,
            [](const Marker& candidate, const std::uint64_t wanted) { return candidate.covers < wanted; });
        bool done = false;
        const gpu::Status status = _runtime.query_event(marker->event, done);
        if (status.ok()) {
            if (!done) {
                return Progress::under_way;
            }
            retire(static_cast<std::size_t>(marker - _markers.begin()) + 1);
            return outcome(position, why);
        }
        break_down(status);
    }
    return after_failure(why);
}

bool CopyStream::renew() noexcept {
    const std::scoped_lock lock(_mutex);
    if (_users.load(std::memory_order_acquire) != 0) {
        return false;
    }
    close();
    _finished.store(_given, std::memory_order_release);
    _failure = {};
    _drained = false;
    _held.clear();  // what the old stream did not get any more
    _refused.clear();
    _any_refused.store(false, std::memory_order_release);
    _broken.store(false, std::memory_order_release);
    return true;
}

void CopyStream::shut_down() noexcept {
    const std::scoped_lock lock(_mutex);
    static_cast<void>(give_held());
    if (_stream.value == nullptr) {
        return;
    }
    const int over = 1;
    static_cast<void>(gpu::poll_until_over([this] { return drained() ? over : 0; }, 0));
    if (_failure.ok()) {
        _finished.store(_given, std::memory_order_release);
    }
    close();
}

// ---- with the lock --------------------------------------------------------------------------------------------------

gpu::Status CopyStream::need_stream() noexcept {
    if (_stream.value != nullptr) {
        return {};
    }
    const gpu::Status status = _runtime.create_stream(_device, true, _stream);
    if (!status.ok()) {
        _stream = {};
    }
    return status;
}

gpu::Status CopyStream::give_held() noexcept {
    AWAKEN_STEP("copies: give held");
    if (_held.empty()) {
        return _failure;
    }
    gpu::Status status = _failure;
    if (status.ok()) {
        status = need_stream();
    }
    if (!status.ok()) {
        _held.clear();
        if (_failure.ok()) {
            break_down(status);
        }
        return status;
    }
    if (launch_held()) {
        _held.clear();
        return {};
    }
    if (_held.size() > 1 && _runtime.copy_batch(_held, _stream).ok()) {
        count_held(report::Mover::engine);
    } else {
        // One bad copy makes the driver refuse a batch, though it may have begun some of it. Those copies are done
        // twice.
        for (std::size_t i = 0; i < _held.size(); ++i) {
            const gpu::Copy1D& copy = _held[i];
            status = report::counted(report::Mover::engine, copy.bytes,
                                     _runtime.copy(copy.destination, copy.source, copy.bytes, _stream));
            if (status.ok()) {
                continue;
            }
            _refused.push_back({_given - (_held.size() - 1 - i), status});
            _any_refused.store(true, std::memory_order_release);
            retire_from_use();
        }
    }
    _held.clear();
    return {};
}

bool CopyStream::launch_held() noexcept {
    if (_batch_refused || _held.size() < kBatch || !_all_by_kernel || !_kernels.ready()) {
        return false;
    }
    _batch_refused = !_kernels.launch_batch(_runtime, _held, _stream).ok();
    if (!_batch_refused) {
        count_held(report::Mover::kernel);
        for (report::Mover* const mover : _movers) {
            *mover = report::Mover::kernel;
        }
    }
    return !_batch_refused;
}

void CopyStream::count_held(const report::Mover mover) const noexcept {
    std::uint64_t bytes = 0;
    for (const gpu::Copy1D& copy : _held) {
        bytes += copy.bytes;
    }
    report::totals.add(mover, bytes, _held.size());
}

CopyStream::Progress CopyStream::outcome(const std::uint64_t position, gpu::Status& why) const noexcept {
    for (const Refused& refused : _refused) {
        if (refused.position == position) {
            why = refused.why;
            return Progress::failed;
        }
    }
    return Progress::arrived;
}

bool CopyStream::mark(const std::uint64_t position) noexcept {
    AWAKEN_STEP("copies: mark");
    if (position > _given - _held.size() && !give_held().ok()) {
        return false;
    }
    if (_spare_events.empty()) {
        try {
            // Makes room for all events in both lists, so that moving one between them never fails.
            _spare_events.reserve(_markers.size() + 1);
            _markers.reserve(_markers.size() + 1);
        } catch (const std::bad_alloc&) {
            break_down({gpu::kUnsupported, "create_event", "out of host memory"});
            return false;
        }
        gpu::EventHandle event;
        if (const gpu::Status status = _runtime.create_event(_device, event); !status.ok()) {
            break_down(status);
            return false;
        }
        _spare_events.push_back(event);
    }
    const gpu::EventHandle event = _spare_events.back();
    if (const gpu::Status status = _runtime.record_event(event, _stream); !status.ok()) {
        break_down(status);
        return false;
    }
    _spare_events.pop_back();
    _markers.push_back({event, _given - _held.size()});
    return true;
}

void CopyStream::retire(const std::size_t count) noexcept {
    _finished.store(_markers[count - 1].covers, std::memory_order_release);
    for (std::size_t i = 0; i < count; ++i) {
        _spare_events.push_back(_markers[i].event);
    }
    _markers.erase(_markers.begin(), _markers.begin() + static_cast<std::ptrdiff_t>(count));
}

void CopyStream::break_down(const gpu::Status& status) noexcept {
    _failure = status;
    // A driver that was shut down works on nothing.
    _drained = status.code == gpu::kShutDown;
    retire_from_use();
}

bool CopyStream::drained() noexcept {
    if (_drained) {
        return true;
    }
    if (_stream.value == nullptr) {
        return true;  // the stream could not be made, so it got nothing
    }
    bool done = false;
    if (const gpu::Status status = _runtime.query_stream(_stream, done); !status.ok()) {
        if (_failure.ok()) {
            break_down(status);
        }
        _drained = true;
    } else if (done && !_failure.ok()) {
        _drained = true;
    }
    return _drained || done;
}

CopyStream::Progress CopyStream::after_failure(gpu::Status& why) noexcept {
    if (!drained()) {
        return Progress::under_way;
    }
    why = _failure;
    return Progress::failed;
}

void CopyStream::close() noexcept {
    // A failure here means that the runtime is shut down and has freed everything itself.
    for (const Marker& marker : _markers) {
        (void)_runtime.destroy_event(marker.event).ok();
    }
    for (const gpu::EventHandle event : _spare_events) {
        (void)_runtime.destroy_event(event).ok();
    }
    _markers.clear();
    _spare_events.clear();
    if (_stream.value != nullptr) {
        (void)_runtime.destroy_stream(_stream).ok();
    }
    _stream = {};
}

}  // namespace awaken::transfer
