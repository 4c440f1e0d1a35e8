// SPDX-License-Identifier: Apache-2.0
#include "stream/steps.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "base/step_probe.h"
#include "gpu/kernels/texts.h"
#include "report/totals.h"

namespace awaken::stream {

namespace {

// The parameters of gpu/kernels/steps.h, whose pointers have 8 bytes.
constexpr std::size_t kFewSteps = 4;
struct KernelStep {
    std::uint64_t awaited, released, target, source, bytes, told, told_host, told_host_number, counter, replays,
        entries, found, channel, opening;
    std::uint32_t number, told_number, blocks, delay;
};
static_assert(StepKernel::kMostSteps * sizeof(KernelStep) <= 4000, "a launch takes no more");

constexpr std::size_t kFewestThreads = 64, kMostThreads = 512;
/// What one of a few threads copies.
constexpr std::size_t kBytesPerThread = 64;
/// A step has one block for each so many bytes. A block that waits keeps others out, so there are few.
constexpr std::size_t kBytesPerBlock = std::size_t{32} << 10;
constexpr unsigned kMostBlocks = 16;

std::uint64_t number_of(const volatile void* const pointer) noexcept {
    return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace

gpu::Status StepKernel::load(const int device) {
    std::string log;
    gpu::Status status = _runtime.load_kernels(device, "steps.h", gpu::kernels::steps_source, _module, log);
    if (!status.ok()) {
        return status;
    }
    status = _runtime.find_kernel(_module, "awaken_few_steps", _few);
    if (status.ok()) {
        status = _runtime.find_kernel(_module, "awaken_steps", _many);
    }
    void* counters = nullptr;
    if (status.ok()) {
        status = _runtime.allocate(device, kMostSteps * sizeof(std::uint32_t), counters);
    }
    if (status.ok()) {
        _counters = static_cast<std::uint32_t*>(counters);
        status = _runtime.fill(counters, 0, kMostSteps * sizeof(std::uint32_t), {nullptr, device});
    }
    if (!status.ok()) {
        if (counters != nullptr) {
            _runtime.free_when_idle(counters, device);
        }
        _runtime.unload_when_idle(_module);
        return status;
    }
    _device = device;
    return status;
}

void StepKernel::unload() noexcept {
    if (const int device = std::exchange(_device, -1); device >= 0) {
        _runtime.free_when_idle(std::exchange(_counters, nullptr), device);
        _runtime.unload_when_idle(_module);
    }
}

gpu::Status StepKernel::launch(const gpu::StreamHandle stream, const std::span<const Step> steps,
                               std::uint32_t* counters) noexcept {
    if (counters == nullptr) {
        counters = _counters;
    }
    std::array<KernelStep, kMostSteps> list;
    unsigned all = 0;
    std::size_t longest = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const Step& step = steps[i];
        const auto blocks =
            static_cast<std::uint32_t>(std::clamp<std::size_t>(step.bytes / kBytesPerBlock, 1, kMostBlocks));
        list[i] = {number_of(step.awaited),
                   number_of(step.released),
                   number_of(step.target),
                   number_of(step.source),
                   step.bytes,
                   number_of(step.told),
                   number_of(step.told_host),
                   step.told_host_number,
                   number_of(step.counter != nullptr ? step.counter : counters + i),
                   number_of(step.replays),
                   number_of(step.entries),
                   number_of(step.found),
                   number_of(step.channel),
                   number_of(step.opening),
                   step.number,
                   step.told_number,
                   blocks,
                   step.delay};
        all += blocks;
        longest = std::max(longest, step.bytes);
    }
    // All blocks of a launch have as many threads, a power of two.
    const auto threads =
        static_cast<unsigned>(std::bit_ceil(std::clamp(longest / kBytesPerThread, kFewestThreads, kMostThreads)));
    void* arguments[] = {list.data()};
    const gpu::Status status =
        _runtime.launch(steps.size() <= kFewSteps ? _few : _many, {all, 1, 1}, {threads, 1, 1}, 0, stream, arguments);
    for (const Step& step : steps) {
        if (status.ok() && step.bytes != 0) {
            report::totals.add(report::Mover::kernel, step.bytes);
        }
    }
    return status;
}

bool Steps::prepare(const int device) {
    if (const int loaded = _device.load(std::memory_order_acquire); loaded >= 0) {
        return loaded == device;
    }
    const std::scoped_lock lock(_mutex);
    if (_refused || _device.load(std::memory_order_relaxed) >= 0) {
        return _device.load(std::memory_order_relaxed) == device;
    }
    if (const gpu::Status status = _kernel.load(device); !status.ok()) {
        _refused = status.code != gpu::kBusy;
        return false;
    }
    _device.store(device, std::memory_order_release);
    return true;
}

void Steps::add(const Step& step, std::shared_ptr<Receipt> receipt, std::atomic<std::uint32_t>* const noted,
                const bool soon) {
    const std::scoped_lock lock(_mutex);
    _added.push_back({step, std::move(receipt), noted});
    _soon = _soon || soon;
    if (_added.size() == 1) {
        _since = Clock::now();
        _any.store(true, std::memory_order_release);
    }
}

bool Steps::is_late(const std::chrono::microseconds limit) noexcept {
    if (!any()) {
        return false;
    }
    const std::scoped_lock lock(_mutex);
    return !_added.empty() && (_soon || Clock::now() - _since > limit);
}

void Steps::flush() noexcept {
    if (!any()) {
        return;
    }
    AWAKEN_STEP("queue steps");
    const std::scoped_lock lock(_mutex);
    std::stable_partition(_added.begin(), _added.end(), [](const Added& each) { return each.step.awaited == nullptr; });
    for (std::size_t first = 0; first < _added.size(); first += StepKernel::kMostSteps) {
        const std::size_t count = std::min(StepKernel::kMostSteps, _added.size() - first);
        _together.clear();
        for (std::size_t i = first; i < first + count; ++i) {
            _together.push_back(_added[i].step);
        }
        const gpu::Status status = _kernel.launch({nullptr, _device.load(std::memory_order_relaxed)}, _together);
        if (!status.ok()) {
            _failure = status;
        }
        for (std::size_t i = first; i < first + count; ++i) {
            if (status.ok() && _added[i].noted != nullptr) {
                _added[i].noted->store(_added[i].step.number, std::memory_order_release);
            }
            if (_added[i].receipt != nullptr) {
                _added[i].receipt->store(status.ok() ? Outcome::queued : Outcome::failed, std::memory_order_release);
            }
        }
    }
    _added.clear();
    _soon = false;
    _any.store(false, std::memory_order_release);
}

gpu::Status Steps::failure() const {
    const std::scoped_lock lock(_mutex);
    return _failure;
}

void Steps::shut_down() noexcept {
    const std::scoped_lock lock(_mutex);
    _device.store(-1);
    _kernel.unload();
}

}  // namespace awaken::stream
