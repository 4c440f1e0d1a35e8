// A GPU runtime in memory for unit tests: it counts calls, fails on demand, and does nothing earlier than it must.
//
//  - "Device" memory cannot be touched by the CPU (its pages are PROT_NONE); tests look at it through view().
//  - Work given to a stream is done only when somebody waits for it: each query of an event or a stream carries out one
//    operation. Code that forgets to wait reads old bytes; code that frees memory too early is caught by
//    AddressSanitizer.
//  - After shut_down() every call answers kShutDown and all of the runtime's memory is gone, as with a real driver.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu.h"

namespace awaken::test {

class FakeGpu final : public gpu::Runtime {
  public:
    explicit FakeGpu(const int devices = 1) : _devices(devices) {}
    ~FakeGpu() override { shut_down(); }

    // ---- for tests --------------------------------------------------------------------------------------------------
    /// Times that the function of the interface with this name ("copy", "query_event") was called.
    [[nodiscard]] int calls(const std::string& function) const {
        const std::lock_guard lock(_mutex);
        const auto found = _calls.find(function);
        return found == _calls.end() ? 0 : found->second;
    }
    void reset_calls() {
        const std::lock_guard lock(_mutex);
        _calls.clear();
    }
    /// Lets the function fail `times` times after it has succeeded `after` more times.
    void fail(const std::string& function, const int after = 0, const int times = 1, const int code = 999) {
        const std::lock_guard lock(_mutex);
        _failures[function] = {after, times, code};
    }
    /// The driver goes away, and with it all memory, streams and work.
    void shut_down() {
        const std::lock_guard lock(_mutex);
        if (_gone) {
            return;
        }
        _gone = true;
        _streams.clear();
        for (auto& [base, allocation] : _allocations) {
            unmap(allocation);
        }
        _allocations.clear();
    }
    /// Where the CPU may read and write what lies at `pointer`, of whatever kind.
    [[nodiscard]] std::byte* view(const void* pointer) const {
        const std::lock_guard lock(_mutex);
        return alias(address_of(pointer));
    }
    /// Managed memory: the CPU may touch it.
    [[nodiscard]] void* allocate_managed(const int device, const std::size_t bytes) {
        const std::lock_guard lock(_mutex);
        return map(gpu::MemoryKind::managed, device, bytes, nullptr);
    }
    /// Allocations that touch each other, in order. Sizes are multiples of the page. Host memory among them stays with
    /// the fake but is unknown to classify().
    [[nodiscard]] std::vector<std::byte*> allocate_touching(
        const std::vector<std::pair<gpu::MemoryKind, std::size_t>>& parts) {
        const std::lock_guard lock(_mutex);
        std::size_t total = 0;
        for (const auto& part : parts) {
            total += part.second;
        }
        void* const room = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (room == MAP_FAILED) {
            throw std::runtime_error("mmap");
        }
        std::vector<std::byte*> result;
        auto* at = static_cast<std::byte*>(room);
        for (const auto& [kind, bytes] : parts) {
            result.push_back(static_cast<std::byte*>(map(kind, 0, bytes, at)));
            at += bytes;
        }
        return result;
    }
    /// Work in the legacy default stream that has not happened yet: it is done when order_after_default_stream() is
    /// asked for this allocation.
    void delay(const void* pointer, std::function<void()> work) {
        const std::lock_guard lock(_mutex);
        find(address_of(pointer))->delayed.push_back(std::move(work));
    }
    /// Operations that were still waiting when their stream was destroyed.
    [[nodiscard]] int abandoned_operations() const {
        const std::lock_guard lock(_mutex);
        return _abandoned;
    }
    [[nodiscard]] int live_streams() const {
        const std::lock_guard lock(_mutex);
        return static_cast<int>(_streams.size());
    }
    [[nodiscard]] int live_events() const {
        const std::lock_guard lock(_mutex);
        return static_cast<int>(_events.size());
    }
    [[nodiscard]] std::size_t live_bytes(const gpu::MemoryKind kind) const {
        const std::lock_guard lock(_mutex);
        std::size_t total = 0;
        for (const auto& [base, allocation] : _allocations) {
            if (allocation.kind == kind) {
                total += allocation.size;
            }
        }
        return total;
    }
    /// Bytes that copies have written, by any call.
    [[nodiscard]] std::size_t bytes_copied() const {
        const std::lock_guard lock(_mutex);
        return _bytes_copied;
    }

    // ---- devices ----------------------------------------------------------------------------------------------------
    [[nodiscard]] gpu::Vendor vendor() const noexcept override { return gpu::Vendor::cuda; }
    [[nodiscard]] gpu::Versions versions() const override {
        gpu::Versions versions;
        versions.runtime = versions.description = "fake GPU";
        return versions;
    }
    [[nodiscard]] int device_count() noexcept override { return _devices; }
    gpu::Status device_info(const int device, gpu::DeviceInfo& info) override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("device_info"); !status.ok()) {
            return status;
        }
        info = {};
        info.name = "Fake " + std::to_string(device);
        return {};
    }
    gpu::Status current_device(int& device) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("current_device"); !status.ok()) {
            return status;
        }
        device = 0;
        return {};
    }
    gpu::Status make_current(int) noexcept override { return count("make_current"); }
    gpu::Status run_on(int, const std::function<void()>& work) override {
        work();
        return count("run_on");
    }
    gpu::Status can_access_peer(int, int, bool& can) noexcept override {
        can = true;
        return {};
    }
    gpu::Status enable_peer_access(int, int) noexcept override { return {}; }

    // ---- pointers ---------------------------------------------------------------------------------------------------
    void classify(const std::span<const void* const> pointers, gpu::PointerInfo* const infos) noexcept override {
        const std::lock_guard lock(_mutex);
        ++_calls["classify"];
        for (std::size_t i = 0; i < pointers.size(); ++i) {
            infos[i] = {};
            const Allocation* const allocation = _gone ? nullptr : find(address_of(pointers[i]));
            if (allocation == nullptr || allocation->kind == gpu::MemoryKind::host) {
                continue;
            }
            infos[i].kind = allocation->kind;
            infos[i].device = allocation->kind == gpu::MemoryKind::pinned ? -1 : allocation->device;
            infos[i].base = allocation->base;
            infos[i].size = allocation->size;
            infos[i].id = allocation->id;
            infos[i].ipc_capable = allocation->kind == gpu::MemoryKind::device;
        }
    }
    gpu::Status finish_default_stream(int) noexcept override {
        const std::lock_guard lock(_mutex);
        return enter("finish_default_stream");
    }
    gpu::Status order_after_default_stream(const void* pointer, const gpu::PointerInfo&) noexcept override {
        std::vector<std::function<void()>> delayed;
        {
            const std::lock_guard lock(_mutex);
            if (const gpu::Status status = enter("order_after_default_stream"); !status.ok()) {
                return status;
            }
            if (Allocation* const allocation = find(address_of(pointer))) {
                delayed.swap(allocation->delayed);
            }
        }
        for (const auto& work : delayed) {
            work();  // without the lock: it may use the fake
        }
        return {};
    }

    // ---- memory -----------------------------------------------------------------------------------------------------
    gpu::Status allocate(const int device, const std::size_t bytes, void*& pointer) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("allocate"); !status.ok()) {
            return status;
        }
        pointer = map(gpu::MemoryKind::device, device, bytes, nullptr);
        return {};
    }
    gpu::Status free(void* pointer) noexcept override { return release("free", pointer); }
    gpu::Status allocate_managed(const int device, const std::size_t bytes, void*& pointer) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("allocate_managed"); !status.ok()) {
            return status;
        }
        pointer = map(gpu::MemoryKind::managed, device, bytes, nullptr);
        return {};
    }
    gpu::Status allocate_from_pool(int, std::size_t, void*&) noexcept override {
        return unsupported("allocate_from_pool");
    }
    gpu::Status prefetch(const void*, std::size_t, int, gpu::StreamHandle) noexcept override {
        return count("prefetch");
    }
    gpu::Status allocate_pinned(const std::size_t bytes, void*& pointer) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("allocate_pinned"); !status.ok()) {
            return status;
        }
        pointer = map(gpu::MemoryKind::pinned, -1, bytes, nullptr);
        return {};
    }
    gpu::Status free_pinned(void* pointer) noexcept override { return release("free_pinned", pointer); }
    gpu::Status register_host(void*, std::size_t) noexcept override { return count("register_host"); }
    gpu::Status unregister_host(void*) noexcept override { return count("unregister_host"); }

    // ---- streams and events -----------------------------------------------------------------------------------------
    gpu::Status create_stream(const int device, bool, gpu::StreamHandle& stream) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("create_stream"); !status.ok()) {
            return status;
        }
        auto made = std::make_unique<Stream>();
        stream = {made.get(), device};
        _streams[made.get()] = std::move(made);
        return {};
    }
    gpu::Status destroy_stream(const gpu::StreamHandle stream) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("destroy_stream"); !status.ok()) {
            return status;
        }
        _abandoned += static_cast<int>(queue(stream).operations.size());
        _streams.erase(static_cast<Stream*>(stream.value));
        return {};
    }
    gpu::Status query_stream(const gpu::StreamHandle stream, bool& done) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("query_stream"); !status.ok()) {
            return status;
        }
        done = queue(stream).operations.empty();
        step(queue(stream));
        return {};
    }
    gpu::Status synchronize_stream(const gpu::StreamHandle stream) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("synchronize_stream"); !status.ok()) {
            return status;
        }
        while (step(queue(stream))) {
        }
        return {};
    }
    gpu::Status create_event(const int device, gpu::EventHandle& event) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("create_event"); !status.ok()) {
            return status;
        }
        auto made = std::make_unique<Event>();
        event = {made.get(), device};
        _events[made.get()] = std::move(made);
        return {};
    }
    gpu::Status destroy_event(const gpu::EventHandle event) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("destroy_event"); !status.ok()) {
            return status;
        }
        _events.erase(static_cast<Event*>(event.value));
        return {};
    }
    gpu::Status record_event(const gpu::EventHandle event, const gpu::StreamHandle stream) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("record_event"); !status.ok()) {
            return status;
        }
        Event& recorded = *static_cast<Event*>(event.value);
        recorded.stream = &queue(stream);
        recorded.position = recorded.stream->given;
        return {};
    }
    gpu::Status query_event(const gpu::EventHandle event, bool& done) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("query_event"); !status.ok()) {
            return status;
        }
        Event& recorded = *static_cast<Event*>(event.value);
        done = recorded.stream == nullptr || recorded.stream->finished >= recorded.position;
        if (!done) {
            step(*recorded.stream);
        }
        return {};
    }
    gpu::Status stream_wait_event(gpu::StreamHandle, gpu::EventHandle) noexcept override {
        return unsupported("stream_wait_event");
    }

    // ---- copies -----------------------------------------------------------------------------------------------------
    gpu::Status copy(void* destination, const void* source, const std::size_t bytes,
                     const gpu::StreamHandle stream) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("copy"); !status.ok()) {
            return status;
        }
        give(stream, [this, destination, source, bytes] { move(destination, source, bytes); });
        return {};
    }
    gpu::Status copy_batch(const std::span<const gpu::Copy1D> copies,
                           const gpu::StreamHandle stream) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("copy_batch"); !status.ok()) {
            return status;
        }
        const std::vector<gpu::Copy1D> all(copies.begin(), copies.end());
        give(stream, [this, all] {
            for (const gpu::Copy1D& each : all) {
                move(each.destination, each.source, each.bytes);
            }
        });
        return {};
    }
    gpu::Status copy_2d(const gpu::Copy2D& rows, const gpu::StreamHandle stream) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("copy_2d"); !status.ok()) {
            return status;
        }
        if (rows.destination_pitch < rows.width || rows.source_pitch < rows.width) {
            return {1, "copy_2d", "invalid argument"};
        }
        give(stream, [this, rows] {
            for (std::size_t row = 0; row < rows.rows; ++row) {
                move(static_cast<std::byte*>(rows.destination) + row * rows.destination_pitch,
                     static_cast<const std::byte*>(rows.source) + row * rows.source_pitch, rows.width);
            }
        });
        return {};
    }
    gpu::Status fill(void* destination, const unsigned char value, const std::size_t bytes,
                     const gpu::StreamHandle stream) noexcept override {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter("fill"); !status.ok()) {
            return status;
        }
        give(stream, [this, destination, value, bytes] { std::memset(alias(address_of(destination)), value, bytes); });
        return {};
    }

    // ---- sharing between processes and kernels: not in this fake ----------------------------------------------------
    gpu::Status ipc_export(const void*, gpu::IpcMemoryHandle&, std::size_t&) noexcept override {
        return unsupported("ipc_export");
    }
    gpu::Status ipc_open(const gpu::IpcMemoryHandle&, int, void*&) noexcept override { return unsupported("ipc_open"); }
    gpu::Status ipc_close(void*) noexcept override { return unsupported("ipc_close"); }
    gpu::Status load_kernels(int, const char*, const char*, gpu::ModuleHandle&, std::string&) override {
        return unsupported("load_kernels");
    }
    gpu::Status unload_kernels(gpu::ModuleHandle) noexcept override { return unsupported("unload_kernels"); }
    gpu::Status find_kernel(gpu::ModuleHandle, const char*, gpu::KernelHandle&) noexcept override {
        return unsupported("find_kernel");
    }
    gpu::Status launch(gpu::KernelHandle, gpu::Dim3, gpu::Dim3, unsigned, gpu::StreamHandle, void**) noexcept override {
        return unsupported("launch");
    }

  private:
    struct Allocation {
        gpu::MemoryKind kind = gpu::MemoryKind::host;
        int device = -1;
        std::uintptr_t base = 0;
        std::size_t size = 0;    ///< as asked for
        std::size_t mapped = 0;  ///< whole pages
        std::byte* alias = nullptr;
        std::uint64_t id = 0;
        std::vector<std::function<void()>> delayed;
    };
    struct Stream {
        std::deque<std::function<void()>> operations;
        std::uint64_t given = 0, finished = 0;
    };
    struct Event {
        Stream* stream = nullptr;
        std::uint64_t position = 0;
    };
    struct Failure {
        int after = 0, times = 0, code = 0;
    };

    static std::uintptr_t address_of(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

    gpu::Status enter(const std::string& function) {
        ++_calls[function];
        if (_gone) {
            return {gpu::kShutDown, "fake", "the driver is shut down"};
        }
        const auto failure = _failures.find(function);
        if (failure == _failures.end() || failure->second.times == 0) {
            return {};
        }
        if (failure->second.after > 0) {
            --failure->second.after;
            return {};
        }
        --failure->second.times;
        return {failure->second.code, "fake", "injected fault"};
    }
    gpu::Status count(const std::string& function) {
        const std::lock_guard lock(_mutex);
        return enter(function);
    }
    static gpu::Status unsupported(const char* function) {
        return {gpu::kUnsupported, function, "not supported by the fake"};
    }

    Allocation* find(const std::uintptr_t address) const {
        auto next = _allocations.upper_bound(address);
        if (next == _allocations.begin()) {
            return nullptr;
        }
        --next;
        Allocation& allocation = const_cast<Allocation&>(next->second);
        return address < allocation.base + allocation.size ? &allocation : nullptr;
    }
    std::byte* alias(const std::uintptr_t address) const {
        const Allocation* const allocation = find(address);
        return allocation == nullptr ? reinterpret_cast<std::byte*>(address)
                                     : allocation->alias + (address - allocation->base);
    }
    void move(void* destination, const void* source, const std::size_t bytes) {
        // A copy past the end of an allocation is an error of the code under test and must not pass unseen.
        for (const void* const side : {static_cast<const void*>(destination), source}) {
            const Allocation* const allocation = find(address_of(side));
            if (allocation != nullptr && address_of(side) + bytes > allocation->base + allocation->size) {
                throw std::out_of_range(
                    "copy leaves its allocation");  // out of a noexcept function: ends the test loudly
            }
        }
        std::memmove(alias(address_of(destination)), alias(address_of(source)), bytes);
        _bytes_copied += bytes;
    }
    Stream& queue(const gpu::StreamHandle stream) { return *static_cast<Stream*>(stream.value); }
    void give(const gpu::StreamHandle stream, std::function<void()> operation) {
        Stream& to = queue(stream);
        to.operations.push_back(std::move(operation));
        ++to.given;
    }
    static bool step(Stream& stream) {
        if (stream.operations.empty()) {
            return false;
        }
        stream.operations.front()();
        stream.operations.pop_front();
        ++stream.finished;
        return true;
    }

    void* map(const gpu::MemoryKind kind, const int device, const std::size_t bytes, void* const fixed) {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        Allocation allocation;
        allocation.kind = kind;
        allocation.device = device;
        allocation.size = bytes;
        allocation.mapped = (bytes + page - 1) / page * page;
        allocation.id = ++_last_id;
        const int file = memfd_create("awaken-fake-gpu", MFD_CLOEXEC);
        if (file < 0 || ftruncate(file, static_cast<off_t>(allocation.mapped)) != 0) {
            throw std::runtime_error("memfd");
        }
        const int access = kind == gpu::MemoryKind::device ? PROT_NONE : PROT_READ | PROT_WRITE;
        void* const address =
            mmap(fixed, allocation.mapped, access, MAP_SHARED | (fixed != nullptr ? MAP_FIXED : 0), file, 0);
        void* const other = mmap(nullptr, allocation.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (address == MAP_FAILED || other == MAP_FAILED) {
            throw std::runtime_error("mmap");
        }
        allocation.base = address_of(address);
        allocation.alias = static_cast<std::byte*>(other);
        _allocations[allocation.base] = allocation;
        return address;
    }
    static void unmap(const Allocation& allocation) {
        munmap(reinterpret_cast<void*>(allocation.base), allocation.mapped);
        munmap(allocation.alias, allocation.mapped);
    }
    gpu::Status release(const std::string& function, void* pointer) {
        const std::lock_guard lock(_mutex);
        if (const gpu::Status status = enter(function); !status.ok()) {
            return status;
        }
        const auto found = _allocations.find(address_of(pointer));
        if (found == _allocations.end()) {
            return {1, "fake", "not an allocation"};
        }
        unmap(found->second);
        _allocations.erase(found);
        return {};
    }

    const int _devices;
    mutable std::mutex _mutex;
    bool _gone = false;
    std::map<std::string, int> _calls;
    std::map<std::string, Failure> _failures;
    std::map<std::uintptr_t, Allocation> _allocations;
    std::map<Stream*, std::unique_ptr<Stream>> _streams;
    std::map<Event*, std::unique_ptr<Event>> _events;
    std::uint64_t _last_id = 0;
    int _abandoned = 0;
    std::size_t _bytes_copied = 0;
};

}  // namespace awaken::test
