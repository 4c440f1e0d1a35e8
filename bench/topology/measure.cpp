// SPDX-License-Identifier: Apache-2.0
#include "topology/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "gpu/kernels/texts.h"

namespace awaken::topology {
namespace {

using Clock = std::chrono::steady_clock;

/// Enough threads under way to keep a link busy; as many as fit on a multiprocessor several times over.
constexpr unsigned kThreadsPerBlock = 512;
constexpr unsigned kBlocksPerMultiprocessor = 4;
constexpr std::size_t kSmallBytes = 8;
constexpr int kWarmUps = 1;
/// Parts of a buffer begin at multiples of this.
constexpr std::size_t kPartUnit = 256;

/// Period of the contents. A prime, so that a piece which arrives in another's place does not look right.
constexpr std::size_t kPeriod = 1048573;
constexpr unsigned char kBlank = 0xEE;

void check(const gpu::Status& status, const std::string& what) {
    if (!status.ok()) {
        throw Error(what + " failed: " + status.message(), "see that the GPUs are free and work");
    }
}

double microseconds_since(const Clock::time_point start) {
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

class Stream {
  public:
    Stream(gpu::Runtime& runtime, const int device) : _runtime(runtime) {
        check(runtime.create_stream(device, false, _handle), "making a stream");
    }
    ~Stream() { static_cast<void>(_runtime.destroy_stream(_handle)); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    [[nodiscard]] gpu::StreamHandle handle() const noexcept { return _handle; }
    /// By asking again and again, as a program that waits for a message does.
    void wait() {
        bool done = false;
        while (!done) {
            check(_runtime.query_stream(_handle, done), "a copy");
        }
    }

  private:
    gpu::Runtime& _runtime;
    gpu::StreamHandle _handle;
};

/// One place of memory: what others read from, and what they write to.
class Place {
  public:
    Place(gpu::Runtime& runtime, const int device, const std::size_t bytes)
        : _runtime(runtime), _device(device), _bytes(bytes) {
        try {
            for (void** const side : {&_source, &_target}) {
                check(device == kHost ? runtime.allocate_pinned(bytes, *side) : runtime.allocate(device, bytes, *side),
                      "allocating " + std::to_string(bytes) + " bytes " +
                          (device == kHost ? std::string("of the host") : "on GPU " + std::to_string(device)));
            }
        } catch (const Error& error) {
            give_back();
            throw Error(error.cause(), "use smaller copies (--bytes 64M)");
        }
    }
    ~Place() { give_back(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    [[nodiscard]] int device() const noexcept { return _device; }
    [[nodiscard]] std::byte* source() const noexcept { return static_cast<std::byte*>(_source); }
    [[nodiscard]] std::byte* target() const noexcept { return static_cast<std::byte*>(_target); }

    /// Fills the source with bytes that are this place's alone. `tile` is page-locked, of kPeriod bytes.
    void fill_source(Stream& stream, std::byte* const tile) const {
        for (std::size_t i = 0; i < kPeriod; ++i) {
            tile[i] = content(i);
        }
        for (std::size_t at = 0; at < _bytes; at += kPeriod) {
            check(_runtime.copy(source() + at, tile, std::min(kPeriod, _bytes - at), stream.handle()), "filling");
        }
        stream.wait();
    }

    void blank_target(Stream& stream) const {
        if (_device == kHost) {
            std::memset(_target, kBlank, _bytes);
            return;
        }
        check(_runtime.fill(_target, kBlank, _bytes, stream.handle()), "filling");
        stream.wait();
    }

    /// Whether the target holds what `other`'s source does, from `first` up to `end`.
    [[nodiscard]] bool holds_source_of(const Place& other, Stream& stream, std::byte* const tile,
                                       const std::size_t first, const std::size_t end) const {
        for (std::size_t at = first; at < end; at += kPeriod) {
            const std::size_t length = std::min(kPeriod, end - at);
            check(_runtime.copy(tile, target() + at, length, stream.handle()), "reading back");
            stream.wait();
            for (std::size_t i = 0; i < length; ++i) {
                if (tile[i] != other.content((at + i) % kPeriod)) {
                    return false;
                }
            }
        }
        return true;
    }

  private:
    [[nodiscard]] std::byte content(const std::size_t index) const noexcept {
        const std::size_t seed = static_cast<std::size_t>(_device + 2) * 101;
        return static_cast<std::byte>((index * 31 + (index >> 8) * 17 + seed) & 0xFF);
    }

    void give_back() noexcept {
        // Failing to give memory back at the end of a measurement changes no figure.
        for (void* const side : {_source, _target}) {
            if (side != nullptr) {
                static_cast<void>(_device == kHost ? _runtime.free_pinned(side) : _runtime.free(side));
            }
        }
    }

    gpu::Runtime& _runtime;
    int _device;
    std::size_t _bytes;
    void* _source = nullptr;
    void* _target = nullptr;
};

/// The copy kernel, loaded for a device.
class CopyKernel {
  public:
    CopyKernel(gpu::Runtime& runtime, const int device) : _runtime(runtime) {
        std::string log;
        gpu::DeviceInfo info;
        gpu::Status status = runtime.load_kernels(device, "copy.h", gpu::kernels::copy_source, _module, log);
        if (status.ok()) {
            status = runtime.find_kernel(_module, "awaken_copy", _kernel);
        }
        if (status.ok()) {
            status = runtime.device_info(device, info);
        }
        if (!status.ok()) {
            _refusal = "no kernel can be made: " + status.message();
        }
        _largest_grid = static_cast<unsigned>(std::max(info.multiprocessors, 1)) * kBlocksPerMultiprocessor;
    }
    ~CopyKernel() {
        if (_refusal.empty()) {
            static_cast<void>(_runtime.unload_kernels(_module));
        }
    }
    CopyKernel(const CopyKernel&) = delete;
    CopyKernel& operator=(const CopyKernel&) = delete;

    /// Why there is none; empty when there is.
    [[nodiscard]] const std::string& refusal() const noexcept { return _refusal; }

    void start(void* target, const void* source, const std::size_t bytes, const gpu::StreamHandle stream) {
        unsigned long long length = bytes;
        std::array<void*, 3> arguments{static_cast<void*>(&target), static_cast<void*>(&source), &length};
        constexpr std::size_t kBytesPerBlock = std::size_t{kThreadsPerBlock} * 4 * 16;
        const std::size_t blocks = (bytes + kBytesPerBlock - 1) / kBytesPerBlock;
        gpu::Dim3 grid;
        grid.x = static_cast<unsigned>(std::min<std::size_t>(blocks, _largest_grid));
        check(_runtime.launch(_kernel, grid, {kThreadsPerBlock, 1, 1}, 0, stream, arguments.data()),
              "starting a kernel");
    }

  private:
    gpu::Runtime& _runtime;
    gpu::ModuleHandle _module;
    gpu::KernelHandle _kernel;
    std::string _refusal;
    unsigned _largest_grid = 1;
};

/// One copy as a measurement repeats it.
struct Copy {
    std::byte* target;
    const std::byte* source;
    Stream* stream;
    CopyKernel* kernel;  ///< null: the runtime's copy
};

class Bench {
  public:
    Bench(gpu::Runtime& runtime, const std::vector<int>& devices, const Effort& effort)
        : _runtime(runtime), _devices(devices), _effort(effort), _staging(runtime, kHost, kPeriod) {
        for (const int device : devices) {
            _streams[device] = std::make_unique<Stream>(runtime, device);
            _second_streams[device] = std::make_unique<Stream>(runtime, device);
            _kernels[device] = std::make_unique<CopyKernel>(runtime, device);
            _places[device] = std::make_unique<Place>(runtime, device, effort.bytes);
            _places[device]->fill_source(*_streams[device], _tile);
        }
        _places[kHost] = std::make_unique<Place>(runtime, kHost, effort.bytes);
        _places[kHost]->fill_source(*_streams[devices.front()], _tile);
    }

    PairResult measure(const int device, const int peer, const Method method) {
        PairResult result;
        result.device = device;
        result.peer = peer;
        result.method = method;
        result.skipped = obstacle(device, peer, method);
        if (!result.skipped.empty()) {
            return result;
        }
        try {
            const Place& own = *_places[device];
            const Place& others = *_places[peer];
            const Copy read = copy_between(others, own, device, method, *_streams[device]);
            const Copy write = copy_between(own, others, device, method, *_streams[device]);
            const Copy back = peer == kHost ? copy_between(own, others, device, method, *_second_streams[device])
                                            : copy_between(own, others, peer, method, *_streams[peer]);
            bool right = true;
            result.read = bandwidth({read}, [&] { right = right && arrived(own, others); }, own, others);
            result.write = bandwidth({write}, [&] { right = right && arrived(others, own); }, own, others);
            result.both = bandwidth(
                {read, back}, [&] { right = right && arrived(own, others) && arrived(others, own); }, own, others);
            result.verified = _effort.verify && right;
            if (!right) {
                result.failed = "what arrived is not what was sent";
            }
            result.latency_us = latency(read);
        } catch (const Error& error) {
            result.failed = error.cause();
        }
        return result;
    }

    TogetherResult measure_together(const int from, const Method method) {
        TogetherResult result;
        result.from = from;
        result.method = method;
        const std::size_t part = _effort.bytes / (_devices.size() - 1) / kPartUnit * kPartUnit;
        if (part == 0) {
            result.skipped = "the parts of each GPU have less than " + std::to_string(kPartUnit) + " bytes (--bytes)";
            return result;
        }
        for (const int device : _devices) {
            for (const int peer : _devices) {
                if (device != peer && result.skipped.empty()) {
                    result.skipped = obstacle(device, peer, method);
                }
            }
        }
        if (!result.skipped.empty()) {
            return result;
        }
        try {
            // A stream for each copy, so that nothing but the hardware puts them in an order.
            std::vector<std::unique_ptr<Stream>> streams;
            std::vector<Copy> copies;
            const auto each_part = [&](const auto& act) {
                for (const int reader : _devices) {
                    std::size_t at = 0;
                    for (const int source : _devices) {
                        if (reader == source || reader == from || (from != kAll && source != from)) {
                            continue;
                        }
                        act(*_places[source], *_places[reader], at);
                        at += part;
                    }
                }
            };
            each_part([&](const Place& source, const Place& reader, const std::size_t at) {
                const int worker = from == kAll ? reader.device() : from;
                streams.push_back(std::make_unique<Stream>(_runtime, worker));
                reader.blank_target(*_streams[reader.device()]);
                copies.push_back({reader.target() + at, source.source() + at, streams.back().get(),
                                  method == Method::kernel ? _kernels[worker].get() : nullptr});
            });
            result.copies = static_cast<int>(copies.size());
            result.together = timed(copies, part);
            if (_effort.verify) {
                result.verified = true;
                each_part([&](const Place& source, const Place& reader, const std::size_t at) {
                    result.verified = result.verified &&
                                      reader.holds_source_of(source, *_streams[reader.device()], _tile, at, at + part);
                });
                if (!result.verified) {
                    result.failed = "what arrived is not what was sent";
                }
            }
        } catch (const Error& error) {
            result.failed = error.cause();
        }
        return result;
    }

  private:
    /// Why a pair cannot be measured; empty when it can.
    std::string obstacle(const int device, const int peer, const Method method) {
        if (method == Method::engine) {
            // Without peer access the runtime copies through the host, which is a figure worth having.
            if (peer != kHost) {
                static_cast<void>(reaches(device, peer));
            }
            return "";
        }
        if (!_kernels[device]->refusal().empty()) {
            return _kernels[device]->refusal();
        }
        if (peer == kHost) {
            return "";
        }
        for (const auto& [from, to] : {std::pair{device, peer}, std::pair{peer, device}}) {
            if (!reaches(from, to)) {
                return "GPU " + std::to_string(from) + " cannot access the memory of GPU " + std::to_string(to);
            }
        }
        return _kernels[peer]->refusal();
    }

    bool reaches(const int device, const int peer) {
        bool can = false;
        return _runtime.can_access_peer(device, peer, can).ok() && can &&
               _runtime.enable_peer_access(device, peer).ok();
    }

    Copy copy_between(const Place& from, const Place& to, const int worker, const Method method, Stream& stream) {
        return {to.target(), from.source(), &stream, method == Method::kernel ? _kernels[worker].get() : nullptr};
    }

    void start(const Copy& copy, const std::size_t bytes) {
        if (copy.kernel != nullptr) {
            copy.kernel->start(copy.target, copy.source, bytes, copy.stream->handle());
        } else {
            check(_runtime.copy(copy.target, copy.source, bytes, copy.stream->handle()), "a copy");
        }
    }

    Bandwidth bandwidth(const std::vector<Copy>& copies, const auto& verify, const Place& own, const Place& others) {
        own.blank_target(*_streams[own.device()]);
        // By a GPU that surely reaches it: its own, where it is a GPU's memory.
        others.blank_target(*_streams[others.device() != kHost ? others.device() : own.device()]);
        const Bandwidth found = timed(copies, _effort.bytes);
        if (_effort.verify) {
            verify();
        }
        return found;
    }

    Bandwidth timed(const std::vector<Copy>& copies, const std::size_t bytes_each) {
        std::vector<double> rates;
        for (int sample = 0; sample < kWarmUps + _effort.samples; ++sample) {
            const auto begin = Clock::now();
            for (int i = 0; i < _effort.copies_per_sample; ++i) {
                for (const Copy& copy : copies) {
                    start(copy, bytes_each);
                }
            }
            for (const Copy& copy : copies) {
                copy.stream->wait();
            }
            const double bytes =
                static_cast<double>(bytes_each) * _effort.copies_per_sample * static_cast<double>(copies.size());
            if (sample >= kWarmUps) {
                rates.push_back(bytes / (microseconds_since(begin) * 1e3));
            }
        }
        return {median(rates), *std::min_element(rates.begin(), rates.end()),
                *std::max_element(rates.begin(), rates.end()), static_cast<int>(rates.size())};
    }

    bool arrived(const Place& at, const Place& from) {
        const int worker = at.device() != kHost ? at.device() : from.device();
        return at.holds_source_of(from, *_streams[worker], _tile, 0, _effort.bytes);
    }

    double latency(const Copy& copy) {
        std::vector<double> times;
        for (int i = 0; i < kWarmUps + _effort.latency_samples; ++i) {
            const auto begin = Clock::now();
            start(copy, std::min(kSmallBytes, _effort.bytes));
            copy.stream->wait();
            if (i >= kWarmUps) {
                times.push_back(microseconds_since(begin));
            }
        }
        return median(times);
    }

    gpu::Runtime& _runtime;
    std::vector<int> _devices;
    Effort _effort;
    Place _staging;
    std::byte* _tile = _staging.target();  ///< page-locked, of kPeriod bytes
    std::map<int, std::unique_ptr<Stream>> _streams;
    std::map<int, std::unique_ptr<Stream>> _second_streams;
    std::map<int, std::unique_ptr<CopyKernel>> _kernels;
    std::map<int, std::unique_ptr<Place>> _places;
};

}  // namespace

RawResults measure_all(gpu::Runtime& runtime, const std::vector<int>& devices, const Effort& effort,
                       const std::function<void(std::size_t, std::size_t)>& progress) {
    Bench bench(runtime, devices, effort);
    RawResults found;
    std::vector<PairResult>& results = found.pairs;
    const bool several = devices.size() > 2;
    const std::size_t all = 2 * (devices.size() * devices.size() + (several ? devices.size() + 1 : 0));
    for (const Method method : {Method::engine, Method::kernel}) {
        for (const int device : devices) {
            progress(results.size(), all);
            results.push_back(bench.measure(device, kHost, method));
            for (const int peer : devices) {
                if (peer == device) {
                    continue;
                }
                progress(results.size(), all);
                results.push_back(bench.measure(device, peer, method));
            }
        }
    }
    if (several) {
        std::vector<int> sources{kAll};
        sources.insert(sources.end(), devices.begin(), devices.end());
        for (const Method method : {Method::engine, Method::kernel}) {
            for (const int from : sources) {
                progress(results.size() + found.together.size(), all);
                found.together.push_back(bench.measure_together(from, method));
            }
        }
    }
    return found;
}

}  // namespace awaken::topology
