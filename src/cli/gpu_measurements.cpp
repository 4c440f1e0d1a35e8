#include "gpu_measurements.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "transfer/device_copies.h"

namespace awaken::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSmallBytes = 8;
constexpr std::size_t kLeastChunk = std::size_t{64} << 10;
constexpr std::size_t kLeastCopy = 64;
/// Copies up to this size take microseconds.
constexpr std::size_t kShortCopy = std::size_t{1} << 20;
constexpr std::size_t kWarmUps = 3;

double microseconds_since(const Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

/// Memory of a GPU, or page-locked memory of the host.
class Memory {
  public:
    static Memory of_device(gpu::Runtime& runtime, const int device, const std::size_t bytes) {
        Memory memory(runtime, true);
        require(runtime.allocate(device, bytes, memory._address), "allocating device memory");
        return memory;
    }
    static Memory of_host(gpu::Runtime& runtime, const std::size_t bytes) {
        Memory memory(runtime, false);
        require(runtime.allocate_pinned(bytes, memory._address), "allocating pinned memory");
        return memory;
    }
    Memory(Memory&& other) noexcept
        : _runtime(other._runtime), _address(std::exchange(other._address, nullptr)), _on_device(other._on_device) {}
    Memory& operator=(Memory&&) = delete;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() {
        // A failure to give memory back at the end of a measurement changes no figure.
        if (_address != nullptr) {
            static_cast<void>(_on_device ? _runtime->free(_address) : _runtime->free_pinned(_address));
        }
    }

    [[nodiscard]] std::byte* at(const std::size_t offset = 0) const noexcept {
        return static_cast<std::byte*>(_address) + offset;
    }
    [[nodiscard]] gpu::PointerInfo info() const {
        gpu::PointerInfo info;
        const void* const pointer = _address;
        _runtime->classify({&pointer, 1}, &info);
        return info;
    }

  private:
    Memory(gpu::Runtime& runtime, const bool on_device) : _runtime(&runtime), _on_device(on_device) {}

    gpu::Runtime* _runtime;
    void* _address = nullptr;
    bool _on_device;
};

class Stream {
  public:
    Stream(gpu::Runtime& runtime, const int device) : _runtime(runtime) {
        // Like the layer's own streams, since those are to be tuned.
        require(runtime.create_stream(device, true, _handle), "making a stream");
    }
    ~Stream() { static_cast<void>(_runtime.destroy_stream(_handle)); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    [[nodiscard]] gpu::StreamHandle handle() const noexcept { return _handle; }
    void copy(void* const destination, const void* const source, const std::size_t bytes) {
        require(_runtime.copy(destination, source, bytes, _handle), "copying");
    }
    /// Asks until the stream has finished all its work, as the layer waits.
    void wait() {
        bool done = false;
        while (!done) {
            require(_runtime.query_stream(_handle, done), "waiting for a copy");
        }
    }

  private:
    gpu::Runtime& _runtime;
    gpu::StreamHandle _handle;
};

class Event {
  public:
    Event(gpu::Runtime& runtime, const int device) : _runtime(&runtime) {
        require(runtime.create_event(device, _handle), "making an event");
    }
    Event(Event&& other) noexcept : _runtime(std::exchange(other._runtime, nullptr)), _handle(other._handle) {}
    Event& operator=(Event&&) = delete;
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    ~Event() {
        if (_runtime != nullptr) {
            static_cast<void>(_runtime->destroy_event(_handle));
        }
    }

    void record(const Stream& stream) {
        require(_runtime->record_event(_handle, stream.handle()), "recording an event");
    }
    void wait() {
        bool done = false;
        while (!done) {
            require(_runtime->query_event(_handle, done), "waiting for a chunk");
        }
    }

  private:
    gpu::Runtime* _runtime;
    gpu::EventHandle _handle;
};

/// A pipeline through `depth` chunks of pinned memory, filled over and over. The other side lies in one piece.
class Pipeline {
  public:
    Pipeline(gpu::Runtime& runtime, const int device, const std::size_t depth, const Effort& effort)
        : _stream(runtime, device),
          _host(Memory::of_host(runtime, depth * effort.most_chunk_bytes)),
          _device(Memory::of_device(runtime, device, effort.pipeline_bytes)),
          _bytes(effort.pipeline_bytes) {
        for (std::size_t i = 0; i < depth; ++i) {
            _events.emplace_back(runtime, device);
        }
    }

    /// GB/s of one pass.
    double run(const std::size_t chunk, const bool to_host) {
        const auto start = Clock::now();
        for (std::size_t offset = 0; offset < _bytes; offset += chunk) {
            const std::size_t number = offset / chunk;
            const std::size_t slot = number % _events.size();
            if (number >= _events.size()) {
                _events[slot].wait();
            }
            std::byte* const host = _host.at(slot * chunk);
            std::byte* const device = _device.at(offset);
            const std::size_t bytes = std::min(chunk, _bytes - offset);
            _stream.copy(to_host ? host : device, to_host ? device : host, bytes);
            _events[slot].record(_stream);
        }
        _stream.wait();
        return static_cast<double>(_bytes) / (microseconds_since(start) * 1e3);
    }

  private:
    Stream _stream;
    Memory _host;
    Memory _device;
    std::vector<Event> _events;
    std::size_t _bytes;
};

}  // namespace

void require(const gpu::Status& status, const std::string& what) {
    if (!status.ok()) {
        throw Error(what + " failed (" + status.message() + ")", "see whether other programs can use the GPU");
    }
}

double Series::quantile(const double part) const {
    std::vector<double> sorted = _samples;
    const auto rank = static_cast<std::size_t>(std::ceil(part * static_cast<double>(sorted.size())));
    const std::size_t index = std::max<std::size_t>(rank, 1) - 1;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(index), sorted.end());
    return sorted[index];
}

Series measure_small_copy(gpu::Runtime& runtime, const int device, const Effort& effort) {
    Stream stream(runtime, device);
    const Memory source = Memory::of_device(runtime, device, kSmallBytes);
    const Memory destination = Memory::of_host(runtime, kSmallBytes);
    Series series;
    const std::size_t warm_ups = effort.small_samples / 10 + kWarmUps;
    for (std::size_t i = 0; i < warm_ups + effort.small_samples; ++i) {
        const auto start = Clock::now();
        stream.copy(destination.at(), source.at(), kSmallBytes);
        stream.wait();
        const double elapsed = microseconds_since(start);
        if (i >= warm_ups) {
            series.add(elapsed);
        }
    }
    return series;
}

std::vector<ChunkBandwidth> measure_chunks(gpu::Runtime& runtime, const int device, const std::size_t depth,
                                           const Effort& effort) {
    Pipeline pipeline(runtime, device, depth, effort);
    std::vector<ChunkBandwidth> results;
    for (std::size_t chunk = kLeastChunk; chunk <= effort.most_chunk_bytes; chunk *= effort.step_factor) {
        results.push_back({chunk, {}, {}});
    }
    // Each round goes over all sizes, so that a passing disturbance of the machine affects all of them alike.
    for (std::size_t round = 0; round < kWarmUps + effort.samples; ++round) {
        for (ChunkBandwidth& result : results) {
            const double to_host = pipeline.run(result.chunk_bytes, true);
            const double to_device = pipeline.run(result.chunk_bytes, false);
            if (round >= kWarmUps) {
                result.to_host.add(to_host);
                result.to_device.add(to_device);
            }
        }
    }
    return results;
}

CopyComparison measure_copies(gpu::Runtime& runtime, const int device, const int source_device, const Effort& effort) {
    using transfer::CopyEngine;
    using transfer::DeviceCopies;

    const Memory destination = Memory::of_device(runtime, device, effort.most_copy_bytes);
    const Memory source = Memory::of_device(runtime, source_device, effort.most_copy_bytes);
    const gpu::PointerInfo destination_info = destination.info();
    transfer::PinnedPool pool(std::size_t{1} << 20);
    const transfer::Tuning tuning;
    DeviceCopies by_engine(runtime, pool, tuning, CopyEngine::engine);
    DeviceCopies by_kernel(runtime, pool, tuning, CopyEngine::kernel);
    // The source counts as memory mapped from another process: the copy assumes that peer access is on.
    const auto time = [&](DeviceCopies& copies, const std::size_t bytes) {
        const auto start = Clock::now();
        DeviceCopies::Copy copy =
            copies.start(device, 0, {destination.at(), &destination_info}, {source.at(), nullptr}, bytes);
        copy.wait();
        return microseconds_since(start);
    };
    CopyComparison comparison;
    for (std::size_t bytes = kLeastCopy; bytes <= effort.most_copy_bytes;
         bytes *= effort.step_factor * effort.step_factor) {
        CopyTimes result{bytes, {}, {}};
        const std::size_t samples = bytes <= kShortCopy ? effort.small_samples / 3 : effort.samples;
        for (std::size_t i = 0; i < kWarmUps + samples; ++i) {
            const double engine_us = time(by_engine, bytes);
            const double kernel_us = time(by_kernel, bytes);
            if (i >= kWarmUps) {
                result.engine_us.add(engine_us);
                result.kernel_us.add(kernel_us);
            }
        }
        comparison.sizes.push_back(std::move(result));
    }
    comparison.kernel_refusal = by_kernel.kernel_refusal();
    by_engine.shut_down();
    by_kernel.shut_down();
    return comparison;
}

}  // namespace awaken::cli
