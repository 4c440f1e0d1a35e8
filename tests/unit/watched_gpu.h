// SPDX-License-Identifier: Apache-2.0
// The emulated GPU's runtime, watched: tests count its calls, let them fail, hold answers back, and see what is left.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>

#include "emulator_support.h"
#include "forwarding_gpu.h"
#include "gpu/gpu.h"

namespace awaken::emulator_test {

/// The emulated runtime; the test program ends when there is none. Operations in streams are late at random, unless the
/// test says otherwise, so that code which forgets to wait reads old bytes.
[[nodiscard]] inline gpu::Runtime& emulated() {
    static const int late = setenv("AWAKEN_TEST_DELAYS", "1:100", 0);
    static_cast<void>(late);
#if defined(AWAKEN_TEST_HIP) && AWAKEN_TEST_HIP
    static const Library driver("libamdhip64.so.6"), compiler("libhiprtc.so.6");
    constexpr gpu::Choice kChoice = gpu::Choice::hip;
#else
    static const Library driver("libcuda.so.1"), compiler("libnvrtc.so.12");
    constexpr gpu::Choice kChoice = gpu::Choice::cuda;
#endif
    std::string why_not;
    gpu::Runtime& runtime = gpu::find(kChoice, &why_not);
    if (!runtime.is_present()) {
        std::fprintf(stderr, "%s\n", why_not.c_str());
        std::abort();
    }
    return runtime;
}

/// Where the CPU reaches what lies at `pointer`, which may be device memory of the emulated GPU.
[[nodiscard]] inline std::byte* view(const void* const pointer) {
    struct Range {
        std::uintptr_t base;
        std::size_t length;
        std::ptrdiff_t distance;
    };
    static const Range* const range = [] {
        Range* found = nullptr;
        Library("libawaken-emulator.so").bind(found, "_ZN6awaken7kernels4host12device_rangeE");
        return found;
    }();
    const auto address = reinterpret_cast<std::uintptr_t>(pointer);
    const bool on_device = address - range->base < range->length;
    return reinterpret_cast<std::byte*>(on_device ? address + static_cast<std::uintptr_t>(range->distance) : address);
}

[[nodiscard]] inline gpu::PointerInfo info_of(gpu::Runtime& runtime, const void* const pointer) {
    gpu::PointerInfo info;
    runtime.classify({&pointer, 1}, &info);
    return info;
}

// A call that the test may let fail.
#define AWAKEN_WATCH(function, parameters, arguments)                      \
    gpu::Status function parameters noexcept override {                    \
        const gpu::Status refusal = enter(#function);                      \
        return refusal.ok() ? ForwardingGpu::function arguments : refusal; \
    }

/// Passes calls on. What the test leaves, it frees itself.
class WatchedGpu : public test::ForwardingGpu {
  public:
    explicit WatchedGpu(gpu::Runtime& watched = emulated()) : ForwardingGpu(watched), _watched(watched) {}
    ~WatchedGpu() override {
        for (void* const stream : _streams) {
            static_cast<void>(_watched.destroy_stream({stream, 0}).ok());
        }
        for (void* const event : _events) {
            static_cast<void>(_watched.destroy_event({event, 0}).ok());
        }
        for (const auto& [pointer, memory] : _memory) {
            const bool pinned = memory.kind == gpu::MemoryKind::pinned;
            static_cast<void>((pinned ? _watched.free_pinned(pointer) : _watched.free(pointer)).ok());
        }
    }

    // ---- for tests --------------------------------------------------------------------------------------------------
    /// Times that the function of the interface with this name ("copy", "query_event") was called.
    [[nodiscard]] int calls(const std::string& function) const {
        const std::scoped_lock lock(_mutex);
        const auto found = _calls.find(function);
        return found == _calls.end() ? 0 : found->second;
    }
    void reset_calls() {
        const std::scoped_lock lock(_mutex);
        _calls.clear();
    }
    /// Lets the function fail `times` times after it has succeeded `after` more times.
    void fail(const std::string& function, const int after = 0, const int times = 1, const int code = 999) {
        const std::scoped_lock lock(_mutex);
        _failures[function] = {after, times, code};
    }
    /// From now on each call answers kShutDown, and no pointer is known.
    void shut_down() {
        const std::scoped_lock lock(_mutex);
        _gone = true;
    }
    /// While it says yes, questions about events and streams are answered with "not over".
    std::function<bool()> held;
    static bool always() { return true; }

    /// Streams that were destroyed before their work was over.
    [[nodiscard]] int abandoned_streams() const { return get(_abandoned); }
    [[nodiscard]] int live_streams() const { return static_cast<int>(get(_streams).size()); }
    [[nodiscard]] int live_events() const { return static_cast<int>(get(_events).size()); }
    [[nodiscard]] std::size_t live_bytes(const gpu::MemoryKind kind) const {
        std::size_t total = 0;
        for (const auto& [pointer, memory] : get(_memory)) {
            total += memory.kind == kind ? memory.bytes : 0;
        }
        return total;
    }

    // ---- the interface ----------------------------------------------------------------------------------------------
    void classify(const std::span<const void* const> pointers, gpu::PointerInfo* const infos) noexcept override {
        if (enter("classify").ok()) {
            ForwardingGpu::classify(pointers, infos);
        } else {
            std::fill_n(infos, pointers.size(), gpu::PointerInfo{});
        }
    }
    AWAKEN_WATCH(order_after_default_stream, (const void* pointer, const gpu::PointerInfo& info), (pointer, info))
    [[nodiscard]] bool is_idle(const int device, const std::chrono::microseconds patience) noexcept override {
        return !enter("is_idle").ok() || _watched.is_idle(device, patience);
    }
    gpu::Status allocate(const int device, const std::size_t bytes, void*& pointer) noexcept override {
        return allocated("allocate", gpu::MemoryKind::device, bytes, pointer,
                         [&] { return ForwardingGpu::allocate(device, bytes, pointer); });
    }
    gpu::Status allocate_managed(const int device, const std::size_t bytes, void*& pointer) noexcept override {
        return allocated("allocate_managed", gpu::MemoryKind::managed, bytes, pointer,
                         [&] { return ForwardingGpu::allocate_managed(device, bytes, pointer); });
    }
    gpu::Status allocate_pinned(const std::size_t bytes, void*& pointer) noexcept override {
        return allocated("allocate_pinned", gpu::MemoryKind::pinned, bytes, pointer,
                         [&] { return ForwardingGpu::allocate_pinned(bytes, pointer); });
    }
    gpu::Status free(void* const pointer) noexcept override {
        return ended("free", _memory, pointer, [&] { return ForwardingGpu::free(pointer); });
    }
    gpu::Status free_pinned(void* const pointer) noexcept override {
        return ended("free_pinned", _memory, pointer, [&] { return ForwardingGpu::free_pinned(pointer); });
    }
    gpu::Status create_stream(const int device, const bool ordered, gpu::StreamHandle& stream) noexcept override {
        return made(
            "create_stream", [&] { return ForwardingGpu::create_stream(device, ordered, stream); },
            [&] { _streams.insert(stream.value); });
    }
    gpu::Status destroy_stream(const gpu::StreamHandle stream) noexcept override {
        return ended("destroy_stream", _streams, stream.value, [&] {
            bool done = false;
            if (_watched.query_stream(stream, done).ok() && !done) {
                const std::scoped_lock lock(_mutex);
                ++_abandoned;
            }
            return ForwardingGpu::destroy_stream(stream);
        });
    }
    gpu::Status create_event(const int device, gpu::EventHandle& event) noexcept override {
        return made(
            "create_event", [&] { return ForwardingGpu::create_event(device, event); },
            [&] { _events.insert(event.value); });
    }
    gpu::Status destroy_event(const gpu::EventHandle event) noexcept override {
        return ended("destroy_event", _events, event.value, [&] { return ForwardingGpu::destroy_event(event); });
    }
    AWAKEN_WATCH(record_event, (gpu::EventHandle event, gpu::StreamHandle stream), (event, stream))
    AWAKEN_WATCH(synchronize_stream, (gpu::StreamHandle stream), (stream))
    gpu::Status query_event(const gpu::EventHandle event, bool& done) noexcept override {
        return answer("query_event", done, [&] { return ForwardingGpu::query_event(event, done); });
    }
    gpu::Status query_stream(const gpu::StreamHandle stream, bool& done) noexcept override {
        return answer("query_stream", done, [&] { return ForwardingGpu::query_stream(stream, done); });
    }
    AWAKEN_WATCH(copy, (void* destination, const void* source, std::size_t bytes, gpu::StreamHandle stream),
                 (destination, source, bytes, stream))
    gpu::Status copy_batch(const std::span<const gpu::Copy1D> copies,
                           const gpu::StreamHandle stream) noexcept override {
        const gpu::Status refusal = enter("copy_batch");
        return refusal.ok() ? _watched.copy_batch(copies, stream) : refusal;
    }
    AWAKEN_WATCH(copy_2d, (const gpu::Copy2D& rows, gpu::StreamHandle stream), (rows, stream))
    AWAKEN_WATCH(ipc_export, (const void* pointer, gpu::IpcMemoryHandle& handle, std::size_t& offset),
                 (pointer, handle, offset))
    gpu::Status load_kernels(const int device, const char* name, const char* source, gpu::ModuleHandle& module,
                             std::string& log) override {
        const gpu::Status refusal = enter("load_kernels");
        return refusal.ok() ? ForwardingGpu::load_kernels(device, name, source, module, log) : refusal;
    }
    AWAKEN_WATCH(launch,
                 (gpu::KernelHandle kernel, gpu::Dim3 grid, gpu::Dim3 block, unsigned shared_bytes,
                  gpu::StreamHandle stream, void** arguments),
                 (kernel, grid, block, shared_bytes, stream, arguments))

  private:
    struct Memory {
        gpu::MemoryKind kind = gpu::MemoryKind::host;
        std::size_t bytes = 0;
    };
    struct Failure {
        int after = 0, times = 0, code = 0;
    };

    template <typename Value>
    [[nodiscard]] Value get(const Value& value) const {
        const std::scoped_lock lock(_mutex);
        return value;
    }
    /// Counts a call; not "ok" when it is to fail.
    gpu::Status enter(const char* const function) {
        const std::scoped_lock lock(_mutex);
        ++_calls[function];
        if (_gone) {
            return {gpu::kShutDown, function, "the driver is shut down"};
        }
        Failure& failure = _failures[function];
        if (failure.times == 0 || failure.after-- > 0) {
            return {};
        }
        --failure.times;
        failure.after = 0;
        return {failure.code, function, "injected fault"};
    }
    /// A call that makes something, which `list` then adds to what is live.
    template <typename Call, typename List>
    gpu::Status made(const char* const function, const Call& call, const List& list) {
        gpu::Status status = enter(function);
        if (status.ok()) {
            status = call();
        }
        if (status.ok()) {
            const std::scoped_lock lock(_mutex);
            list();
        }
        return status;
    }
    template <typename Call>
    gpu::Status allocated(const char* const function, const gpu::MemoryKind kind, const std::size_t bytes,
                          void*& pointer, const Call& call) {
        return made(function, call, [&] { _memory[pointer] = {kind, bytes}; });
    }
    /// A call that ends something. Whether it is live ends before it does: its address may be given to another thread.
    template <typename Live, typename Call>
    gpu::Status ended(const char* const function, Live& live, void* const handle, const Call& call) {
        if (const gpu::Status refusal = enter(function); !refusal.ok()) {
            return refusal;
        }
        {
            const std::scoped_lock lock(_mutex);
            live.erase(handle);
        }
        return call();
    }
    template <typename Call>
    gpu::Status answer(const char* const function, bool& done, const Call& call) {
        const gpu::Status refusal = enter(function);
        if (refusal.ok() && held && held()) {
            done = false;
            return {};
        }
        return refusal.ok() ? call() : refusal;
    }

    gpu::Runtime& _watched;
    mutable std::mutex _mutex;
    bool _gone = false;
    std::map<std::string, int> _calls;
    std::map<std::string, Failure> _failures;
    std::set<void*> _streams, _events;
    std::map<void*, Memory> _memory;
    int _abandoned = 0;
};

#undef AWAKEN_WATCH

}  // namespace awaken::emulator_test
