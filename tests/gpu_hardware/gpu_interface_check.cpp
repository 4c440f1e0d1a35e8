// SPDX-License-Identifier: Apache-2.0
// Exercises the whole of gpu::Runtime on the GPUs of this machine (or on the emulated driver) and prints one line for
// each property that the rest of the library relies on, then what classifying pointers costs.
//
//   gpu_interface_check [cuda|hip]      default: whichever is there
//
// Exit status: 0 when everything passed, 1 when something failed, 77 when there is no GPU to test on.
#include <dlfcn.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../ranks/gpu_memory.h"
#include "gpu/gpu.h"
#include "gpu/kernels/texts.h"

extern char** environ;

namespace {

using namespace awaken;

// ---- the table that is printed
// ---------------------------------------------------------------------------------------

class Table {
  public:
    void section(const char* title) { std::printf("\n%s\n", title); }
    bool check(const std::string& what, bool passed, const std::string& detail = {}) {
        std::printf("  %-4s  %-66s %s\n", passed ? "PASS" : "FAIL", what.c_str(), detail.c_str());
        std::fflush(stdout);
        ++(passed ? _passed : _failed);
        return passed;
    }
    bool check(const std::string& what, const gpu::Status& status) {
        return check(what, status.ok(), status.message());
    }
    void skip(const std::string& what, const std::string& reason) {
        std::printf("  SKIP  %-66s %s\n", what.c_str(), reason.c_str());
    }
    int finish() const {
        std::printf("\n%d passed, %d failed\n", _passed, _failed);
        return _failed == 0 ? 0 : 1;
    }

  private:
    int _passed = 0;
    int _failed = 0;
};

/// The pattern of src/gpu/kernels/fill.h, computed on the host.
unsigned char pattern_byte(std::uint64_t seed, std::uint64_t position) {
    std::uint64_t word = seed + (position / 8 + 1) * 0x9e3779b97f4a7c15ULL;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ULL;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebULL;
    word ^= word >> 31;
    return static_cast<unsigned char>(word >> (8 * (position % 8)));
}

std::vector<unsigned char> pattern(std::uint64_t seed, std::size_t bytes, std::uint64_t first = 0) {
    std::vector<unsigned char> result(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
        result[i] = pattern_byte(seed, first + i);
    }
    return result;
}

void* shifted(void* pointer, std::size_t bytes) {
    return static_cast<char*>(pointer) + bytes;
}

// ---- what the program under test would do: calls that are not part of the interface
// ----------------------------------

/// Kinds of memory and default-stream operations that only a program makes.
class Program {
  public:
    explicit Program(gpu::Vendor vendor) : _cuda(vendor == gpu::Vendor::cuda) {}

    /// Chooses a device for this thread, as a program does at its start.
    bool start(int device) const {
        if (!_cuda) {
            return call("hipSetDevice", device);
        }
        void* context = nullptr;
        return call("cuDevicePrimaryCtxRetain", &context, device) && call("cuCtxSetCurrent", context);
    }
    void* allocate_managed(std::size_t bytes) const {
        std::uint64_t address = 0;
        const unsigned attach_global = 1;
        return call(_cuda ? "cuMemAllocManaged" : "hipMallocManaged", &address, bytes, attach_global) ? pointer(address)
                                                                                                      : nullptr;
    }
    /// Stream-ordered memory of the device's pool.
    void* allocate_from_pool(std::size_t bytes) const {
        std::uint64_t address = 0;
        if (!call(_cuda ? "cuMemAllocAsync" : "hipMallocAsync", &address, bytes, kDefaultStream)) {
            return nullptr;
        }
        return call(_cuda ? "cuStreamSynchronize" : "hipStreamSynchronize", kDefaultStream) ? pointer(address)
                                                                                            : nullptr;
    }
    bool free_to_pool(void* memory) const {
        return call(_cuda ? "cuMemFreeAsync" : "hipFreeAsync", number(memory), kDefaultStream);
    }
    /// Returns before the memory is set, as cudaMemset and hipMemset do.
    bool memset_by_default_stream(void* memory, unsigned char value, std::size_t bytes) const {
        return _cuda ? call("cuMemsetD8_v2", number(memory), value, bytes)
                     : call("hipMemset", memory, static_cast<int>(value), bytes);
    }
    /// Keeps the device busy, in a stream of its own, until `over` is not zero.
    bool keep_busy(std::atomic<int>& over) const {
        void* stream = nullptr;
        const unsigned non_blocking = 1;
        void (*const wait)(void*) = [](void* word) { static_cast<std::atomic<int>*>(word)->wait(0); };
        return call(_cuda ? "cuStreamCreate" : "hipStreamCreateWithFlags", &stream, non_blocking) &&
               call(_cuda ? "cuLaunchHostFunc" : "hipLaunchHostFunc", stream, wait, static_cast<void*>(&over));
    }
    /// What hipGetLastError would tell the program; 0 with CUDA's driver, which keeps no error.
    int pending_error() const {
        if (_cuda) {
            return 0;
        }
        const auto peek = reinterpret_cast<int (*)()>(dlsym(library(), "hipPeekAtLastError"));
        return peek != nullptr ? peek() : 0;
    }
    void* library() const { return handle(_cuda); }

    static void* handle(bool cuda) {
        if (cuda) {
            return dlopen("libcuda.so.1", RTLD_LAZY);
        }
        for (const char* const name : {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}) {
            if (void* const loaded = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
                return loaded;
            }
        }
        return nullptr;
    }

  private:
    static constexpr void* kDefaultStream = nullptr;

    static void* pointer(std::uint64_t address) { return reinterpret_cast<void*>(address); }
    static std::uint64_t number(const void* memory) { return reinterpret_cast<std::uint64_t>(memory); }
    template <typename... Arguments>
    bool call(const char* symbol, Arguments... arguments) const {
        const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library(), symbol));
        return function != nullptr && function(arguments...) == 0;
    }
    bool _cuda;
};

// ---- the checks
// ------------------------------------------------------------------------------------------------------

class Checks {
  public:
    Checks(gpu::Runtime& runtime, const char* program_path)
        : _gpu(runtime), _program(runtime.vendor()), _path(program_path) {}

    int run() {
        identity();
        if (!prepare()) {
            return _table.finish();
        }
        pointers();
        copies();
        streams_and_events();
        default_stream_order();
        caller_state();
        program_memory();
        current_device();
        sharing();
        sharing_by_descriptors();
        peers();
        kernels();
        busy_device();
        release();
        if (!_emulated) {
            costs();  // the emulated driver's say nothing
        }
        return _table.finish();
    }

  private:
    static constexpr std::size_t kBytes = std::size_t{4} << 20;
    static constexpr int kDevice = 0;

    bool waited(gpu::StreamHandle stream) { return _gpu.synchronize_stream(stream).ok(); }
    bool upload(void* device, const std::vector<unsigned char>& data) {
        return _gpu.copy(device, data.data(), data.size(), _stream).ok() && waited(_stream);
    }
    std::vector<unsigned char> download(const void* device, std::size_t bytes) {
        std::vector<unsigned char> data(bytes, 0xEE);
        if (!_gpu.copy(data.data(), device, bytes, _stream).ok() || !waited(_stream)) {
            data.clear();
        }
        return data;
    }
    static std::string describe(const gpu::PointerInfo& info) {
        return std::string(to_string(info.kind)) + ", device " + std::to_string(info.device) + ", " +
               std::to_string(info.size) + " bytes, id " + std::to_string(info.id) + (info.ipc_capable ? ", IPC" : "");
    }
    gpu::PointerInfo classify(const void* pointer) {
        gpu::PointerInfo info;
        _gpu.classify({&pointer, 1}, &info);
        return info;
    }

    void identity() {
        _table.section("Runtime and devices");
        const gpu::Versions versions = _gpu.versions();
        _table.check("versions", versions.driver > 0 && !versions.library.empty(), versions.description);
        _table.check("at least one device", _gpu.device_count() > 0, std::to_string(_gpu.device_count()));
        for (int device = 0; device < _gpu.device_count(); ++device) {
            gpu::DeviceInfo info;
            const gpu::Status status = _gpu.device_info(device, info);
            const bool complete = status.ok() && !info.name.empty() && !info.pci_bus_id.empty() &&
                                  !info.architecture.empty() && info.memory_bytes > 0 && info.multiprocessors > 0;
            _table.check("device_info(" + std::to_string(device) + ")", complete,
                         status.ok() ? info.name + ", " + info.architecture + ", " + info.pci_bus_id + ", " +
                                           std::to_string(info.memory_bytes >> 20) + " MiB, " +
                                           std::to_string(info.multiprocessors) + " multiprocessors"
                                     : status.message());
        }
        gpu::DeviceInfo nothing;
        _table.check("device_info of a device that is not there fails", !_gpu.device_info(9999, nothing).ok());
        _table.check("find() with automatic choice now finds the same runtime",
                     &gpu::find(gpu::Choice::automatic) == &_gpu);
    }

    bool prepare() {
        _table.section("Memory");
        const bool ready = _table.check("create_stream, ordered after the default stream",
                                        _gpu.create_stream(kDevice, true, _stream)) &&
                           _table.check("allocate", _gpu.allocate(kDevice, kBytes, _device)) &&
                           _table.check("allocate_pinned", _gpu.allocate_pinned(kBytes, _pinned));
        void* nothing = nullptr;
        const gpu::Status refused = _gpu.allocate(kDevice, std::size_t{1} << 50, nothing);
        _table.check("allocating a pebibyte fails and leaves the pointer alone", !refused.ok() && nothing == nullptr,
                     refused.message());
        _registered = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        _table.check("register_host on shared memory", _gpu.register_host(_registered, kBytes));
        _table.check("the program chooses its device", _program.start(kDevice));
        _managed = _program.allocate_managed(kBytes);
        _pool = _program.allocate_from_pool(kBytes);
        return ready;
    }

    void pointers() {
        _table.section("Pointers");
        int on_stack = 0;
        std::vector<unsigned char> heap(4096);
        for (const auto& [what, pointer] :
             {std::pair<const char*, const void*>{"null", nullptr},
              {"the stack", &on_stack},
              {"the heap", heap.data()},
              {"an address that is not mapped", reinterpret_cast<const void*>(std::uintptr_t{4096})}}) {
            const gpu::PointerInfo info = classify(pointer);
            _table.check(std::string(what) + " is host memory",
                         info.kind == gpu::MemoryKind::host && info.device == -1 && info.base == 0 && info.size == 0);
        }
        const gpu::PointerInfo inside = classify(shifted(_device, 12345));
        _table.check("interior device pointer: device, base and size of the allocation",
                     inside.kind == gpu::MemoryKind::device && inside.device == kDevice &&
                         inside.base == reinterpret_cast<std::uintptr_t>(_device) && inside.size == kBytes &&
                         !inside.host_accessible(),
                     describe(inside));
        _table.check("device memory can be exported", inside.ipc_capable);
        if (inside.id != 0) {
            void* memory = nullptr;
            std::uint64_t before = 0;
            bool changed = _gpu.allocate(kDevice, kBytes, memory).ok();
            before = classify(memory).id;
            changed = changed && _gpu.free(memory).ok() && _gpu.allocate(kDevice, kBytes, memory).ok() &&
                      classify(memory).id != before;
            _table.check("the identity changes with a new allocation", changed && _gpu.free(memory).ok());
        } else {
            _table.skip("the identity changes with a new allocation", "this runtime gives none");
        }
        const gpu::PointerInfo freed = [this] {
            void* memory = nullptr;
            static_cast<void>(_gpu.allocate(kDevice, std::size_t{64} << 20, memory));
            static_cast<void>(_gpu.free(memory));
            return classify(memory);
        }();
        _table.check("a freed device pointer is not device memory", freed.kind == gpu::MemoryKind::host,
                     describe(freed));
        const gpu::PointerInfo pinned = classify(shifted(_pinned, 100));
        _table.check("allocated pinned memory", pinned.kind == gpu::MemoryKind::pinned && pinned.host_accessible(),
                     describe(pinned));
        const gpu::PointerInfo registered = classify(shifted(_registered, 100));
        _table.check("registered host memory", registered.kind == gpu::MemoryKind::pinned, describe(registered));
        if (_managed != nullptr) {
            const gpu::PointerInfo managed = classify(shifted(_managed, 100));
            _table.check("managed memory: not host-accessible as far as we are concerned, no IPC",
                         managed.kind == gpu::MemoryKind::managed && !managed.ipc_capable, describe(managed));
        } else {
            _table.skip("managed memory", "the program cannot allocate any here");
        }
        if (_pool != nullptr) {
            const gpu::PointerInfo pool = classify(shifted(_pool, 100));
            _table.check("pool memory: device", pool.kind == gpu::MemoryKind::device && pool.device == kDevice,
                         describe(pool));
            gpu::IpcMemoryHandle handle;
            std::size_t offset = 0;
            const gpu::Status status = _gpu.ipc_export(_pool, handle, offset);
            _table.check("pool memory: exporting it agrees with ipc_capable", status.ok() == pool.ipc_capable,
                         status.message());
        } else {
            _table.skip("pool memory", "the program cannot allocate any here");
        }
        const void* const several[] = {heap.data(), _device, _pinned, nullptr, shifted(_device, kBytes - 1)};
        gpu::PointerInfo infos[std::size(several)];
        _gpu.classify(several, infos);
        _table.check("several pointers in one call",
                     infos[0].kind == gpu::MemoryKind::host && infos[1].kind == gpu::MemoryKind::device &&
                         infos[2].kind == gpu::MemoryKind::pinned && infos[3].kind == gpu::MemoryKind::host &&
                         infos[4].kind == gpu::MemoryKind::device);
    }

    void copies() {
        _table.section("Copies");
        const std::vector<unsigned char> data = pattern(1, kBytes);
        _table.check("pageable host -> device -> pageable host",
                     upload(_device, data) && download(_device, kBytes) == data);
        std::memcpy(_pinned, data.data(), kBytes);
        void* other = nullptr;
        static_cast<void>(_gpu.allocate(kDevice, kBytes, other));
        bool same = _gpu.copy(other, _pinned, kBytes, _stream).ok() && waited(_stream);
        std::memset(_pinned, 0, kBytes);
        same = same && _gpu.copy(_pinned, other, kBytes, _stream).ok() && waited(_stream);
        _table.check("pinned -> device -> pinned", same && std::memcmp(_pinned, data.data(), kBytes) == 0);
        std::memcpy(_registered, pattern(2, kBytes).data(), kBytes);
        same = _gpu.copy(other, _registered, kBytes, _stream).ok() && waited(_stream);
        _table.check("registered host -> device", same && download(other, kBytes) == pattern(2, kBytes));
        same = _gpu.copy(other, _device, kBytes, _stream).ok() && waited(_stream);
        _table.check("device -> device", same && download(other, kBytes) == data);
        if (_managed != nullptr) {
            same = _gpu.copy(_managed, _device, kBytes, _stream).ok() && waited(_stream);
            _table.check("device -> managed, read by the CPU", same && std::memcmp(_managed, data.data(), kBytes) == 0);
        }
        if (_pool != nullptr) {
            same = _gpu.copy(_pool, _device, kBytes, _stream).ok() && waited(_stream);
            _table.check("device -> pool memory", same && download(_pool, kBytes) == data);
        }
        _table.check("zero bytes", _gpu.copy(_device, nullptr, 0, _stream));
        same = _gpu.fill(shifted(other, 1), 0x5A, 1000, _stream).ok() && waited(_stream);
        std::vector<unsigned char> filled = data;
        std::fill_n(filled.begin() + 1, 1000, static_cast<unsigned char>(0x5A));
        _table.check("fill of 1000 bytes at an odd address", same && download(other, kBytes) == filled);

        // More than the driver is given at a time, some from pinned memory.
        std::vector<gpu::Copy1D> batch;
        std::vector<unsigned char> scattered = filled;
        for (std::size_t i = 0; i < 150; ++i) {
            const bool from_host = i % 3 == 0;
            batch.push_back({shifted(other, i * 128 + 1), shifted(from_host ? _pinned : _device, i * 64), 37});
            std::copy_n(from_host ? static_cast<const unsigned char*>(_pinned) + i * 64 : data.data() + i * 64, 37,
                        scattered.begin() + static_cast<std::ptrdiff_t>(i * 128 + 1));
        }
        same = _gpu.copy_batch(batch, _stream).ok() && waited(_stream);
        _table.check("a batch of 150 copies", same && download(other, kBytes) == scattered);
        const gpu::Copy1D beyond[] = {{other, _device, 8}, {_device, other, std::size_t{1} << 50}};
        const gpu::Status refused = _gpu.copy_batch(beyond, _stream);
        _table.check("a batch with a copy beyond all memory is refused", !refused.ok(), refused.message());
        same = _gpu.copy_batch(batch, _stream).ok() && waited(_stream);
        const std::vector<unsigned char> again = download(other, kBytes);
        _table.check("a batch after one that was refused",
                     same && std::equal(scattered.begin() + 1, scattered.end(), again.begin() + 1, again.end()));

        // Rows of 100 bytes, 256 apart in device memory.
        const gpu::Copy2D out{_pinned, 100, shifted(_device, 7), 256, 100, 1000};
        same = _gpu.copy_2d(out, _stream).ok() && waited(_stream);
        bool rows_right = same;
        for (std::size_t row = 0; row < 1000 && rows_right; ++row) {
            rows_right = std::memcmp(shifted(_pinned, row * 100), data.data() + 7 + row * 256, 100) == 0;
        }
        _table.check("2-D, device rows -> packed pinned", rows_right);
        std::vector<unsigned char> packed(std::size_t{100} * 1000);
        same = _gpu.copy_2d({packed.data(), 100, shifted(_device, 7), 256, 100, 1000}, _stream).ok() && waited(_stream);
        _table.check("2-D, device rows -> packed pageable",
                     same && std::memcmp(packed.data(), _pinned, packed.size()) == 0);
        std::vector<unsigned char> expected(kBytes, 0x11);
        same = _gpu.fill(other, 0x11, kBytes, _stream).ok() &&
               _gpu.copy_2d({shifted(other, 3), 333, packed.data(), 100, 100, 1000}, _stream).ok() && waited(_stream);
        for (std::size_t row = 0; row < 1000; ++row) {
            std::copy_n(packed.begin() + static_cast<std::ptrdiff_t>(row * 100), 100,
                        expected.begin() + static_cast<std::ptrdiff_t>(3 + row * 333));
        }
        _table.check("2-D, packed pageable -> device rows, gaps untouched",
                     same && download(other, kBytes) == expected);
        same = _gpu.copy_2d({shifted(other, 64), 128, _device, 512, 64, 2000}, _stream).ok() && waited(_stream);
        const std::vector<unsigned char> result = download(other, kBytes);
        rows_right = same && !result.empty();
        for (std::size_t row = 0; row < 2000 && rows_right; ++row) {
            rows_right = std::memcmp(result.data() + 64 + row * 128, data.data() + row * 512, 64) == 0;
        }
        _table.check("2-D, device rows -> device rows", rows_right);
        // Two rows 3 GiB apart: beyond the pitch that a hardware copy can express.
        void* vast = nullptr;
        constexpr std::size_t kPitch = std::size_t{3} << 30;
        if (_gpu.allocate(kDevice, kPitch + 100, vast).ok()) {
            same = _gpu.copy_2d({vast, kPitch, data.data(), 100, 100, 2}, _stream).ok() && waited(_stream);
            const std::vector<unsigned char> second = download(shifted(vast, kPitch), 100);
            _table.check("2-D with a pitch of 3 GiB",
                         same && second.size() == 100 && std::memcmp(second.data(), data.data() + 100, 100) == 0);
            static_cast<void>(_gpu.free(vast));
        } else {
            _table.skip("2-D with a pitch of 3 GiB", "the device has not so much memory");
        }
        const gpu::Status bad = _gpu.copy(_device, other, std::size_t{1} << 50, _stream);
        _table.check("a copy beyond all memory is refused", !bad.ok(), bad.message());
        static_cast<void>(_gpu.free(other));
    }

    void streams_and_events() {
        _table.section("Streams and events");
        gpu::StreamHandle independent;
        gpu::EventHandle event;
        bool made = _table.check("create_stream, independent", _gpu.create_stream(kDevice, false, independent));
        made = _table.check("create_event", _gpu.create_event(kDevice, event)) && made;
        if (!made) {
            return;
        }
        bool done = false;
        _table.check("an idle stream is done", _gpu.query_stream(independent, done).ok() && done);
        void* big = nullptr;
        if (!_table.check("allocate much", _gpu.allocate(kDevice, _much, big))) {
            return;
        }
        // The device works for a millisecond or so; an answer "done" right away would be wrong, or very late.
        bool ok = true;
        for (unsigned char value = 1; value <= 4; ++value) {
            ok = ok && _gpu.fill(big, value, _much, independent).ok();
        }
        ok = ok && _gpu.record_event(event, independent).ok();
        done = true;
        ok = ok && _gpu.query_event(event, done).ok();
        _table.check("an event after several large fills is not over at once", ok && !done);
        done = true;
        ok = _gpu.query_stream(independent, done).ok();
        _table.check("nor is its stream", ok && !done);
        // The other stream waits for the event, so it sees the last value.
        unsigned char* const seen = static_cast<unsigned char*>(_pinned);
        seen[0] = 0;
        ok = _gpu.stream_wait_event(_stream, event).ok() && _gpu.copy(seen, shifted(big, _much - 1), 1, _stream).ok() &&
             waited(_stream);
        _table.check("stream_wait_event orders a copy on another stream", ok && seen[0] == 4, std::to_string(seen[0]));
        ok = _gpu.query_event(event, done).ok();
        _table.check("afterwards the event is over", ok && done);
        _table.check("destroy_event", _gpu.destroy_event(event));
        _table.check("destroy_stream", _gpu.destroy_stream(independent));
        static_cast<void>(_gpu.free(big));
    }

    void default_stream_order() {
        _table.section("Order after the program's default stream");
        gpu::StreamHandle independent;
        if (!_gpu.create_stream(kDevice, false, independent).ok()) {
            return;
        }
        const auto last_byte_after_memset = [&](void* memory, std::size_t bytes, unsigned char value) -> int {
            unsigned char* const seen = static_cast<unsigned char*>(_pinned);
            seen[0] = 0;
            const gpu::PointerInfo info = classify(memory);
            if (!_program.memset_by_default_stream(memory, static_cast<unsigned char>(value - 1), bytes) ||
                !_program.memset_by_default_stream(memory, value, bytes) ||
                !_gpu.order_after_default_stream(memory, info).ok() ||
                !_gpu.copy(seen, shifted(memory, bytes - 1), 1, independent).ok() || !waited(independent)) {
                return -1;
            }
            return seen[0];
        };
        void* memory = nullptr;
        if (!_table.check("allocate much", _gpu.allocate(kDevice, _much, memory))) {
            return;
        }
        // The second and later rounds go the way of an allocation that is known already.
        for (const int value : {10, 20, 30}) {
            const int seen = last_byte_after_memset(memory, _much, static_cast<unsigned char>(value));
            _table.check("an independent stream sees a memset of device memory that returned early", seen == value,
                         std::to_string(seen));
        }
        static_cast<void>(_gpu.free(memory));
        for (const auto& [what, other] : {std::pair<const char*, void*>{"managed", _managed}, {"pool", _pool}}) {
            if (other == nullptr) {
                continue;
            }
            for (const int value : {40, 50}) {
                const int seen = last_byte_after_memset(other, kBytes, static_cast<unsigned char>(value));
                _table.check(std::string("the same for ") + what + " memory", seen == value, std::to_string(seen));
            }
        }
        const gpu::PointerInfo host;
        _table.check("host memory needs nothing", _gpu.order_after_default_stream(&host, host));
        static_cast<void>(_gpu.destroy_stream(independent));
        static_cast<void>(upload(_device, pattern(1, kBytes)));
    }

    void caller_state() {
        _table.section("The calling thread's state");
        int before = -1;
        int after = -1;
        const bool had_device = _gpu.current_device(before).ok();
        static_cast<void>(download(_device, 16));
        _table.check("the current device is as it was",
                     _gpu.current_device(after).ok() == had_device && before == after);
        bool begins_as_said = false;
        bool correct = false;
        bool unchanged = false;
        std::thread([&] {
            int device = -1;
            const bool before_any = _gpu.current_device(device).ok();
            begins_as_said = before_any == _gpu.threads_begin_with_a_device();
            const gpu::PointerInfo info = classify(_device);
            correct = info.kind == gpu::MemoryKind::device && download(_device, 16) == pattern(1, 16);
            void* memory = nullptr;
            correct = correct && _gpu.allocate_pinned(4096, memory).ok() && _gpu.free_pinned(memory).ok();
            unchanged = _gpu.current_device(device).ok() == before_any;
        }).join();
        _table.check("a thread begins with a device where the runtime says so", begins_as_said);
        _table.check("a thread without a context can classify, copy and allocate", correct);
        _table.check("and has none afterwards either", unchanged);
        if (_gpu.vendor() == gpu::Vendor::hip) {
            int on_stack = 0;
            static_cast<void>(classify(&on_stack));
            gpu::IpcMemoryHandle handle;
            void* base = nullptr;
            static_cast<void>(_gpu.ipc_open(handle, kDevice, base));
            _table.check("failing calls leave no pending error", _program.pending_error() == 0);
        }
    }

    /// Memory that programs allocate and the layer does not.
    void program_memory() {
        _table.section("Managed and pool memory from the interface");
        const std::vector<unsigned char> data = pattern(8, kBytes);
        void* memory = nullptr;
        if (const gpu::Status made = _gpu.allocate_managed(kDevice, kBytes, memory); made.code == gpu::kUnsupported) {
            _table.skip("allocate_managed", made.message());
        } else if (_table.check("allocate_managed", made)) {
            const gpu::PointerInfo info = classify(memory);
            _table.check("it is managed", info.kind == gpu::MemoryKind::managed && info.size >= kBytes, describe(info));
            std::memcpy(memory, data.data(), kBytes);
            const gpu::Status moved = _gpu.prefetch(memory, kBytes, kDevice, _stream);
            if (moved.ok()) {
                _table.check("prefetch", waited(_stream));
            } else {
                _table.skip("prefetch", moved.message());  // a GPU that cannot migrate pages on demand
            }
            _table.check("the device sees what the host wrote", download(memory, kBytes) == data);
            _table.check("free of managed memory", _gpu.free(memory));
            _table.check("it is gone", classify(memory).kind == gpu::MemoryKind::host);
        }
        memory = nullptr;
        if (const gpu::Status made = _gpu.allocate_from_pool(kDevice, kBytes, memory); made.code == gpu::kUnsupported) {
            _table.skip("allocate_from_pool", made.message());
        } else if (_table.check("allocate_from_pool", made)) {
            const gpu::PointerInfo info = classify(memory);
            _table.check("it is device memory of that device",
                         info.kind == gpu::MemoryKind::device && info.device == kDevice, describe(info));
            _table.check("it can be used in another stream", upload(memory, data) && download(memory, kBytes) == data);
            _table.check("free of pool memory", _gpu.free(memory));
        }
        void* untouched = nullptr;
        _table.check("managed and pool memory of a device that is not there fail",
                     !_gpu.allocate_managed(9999, kBytes, untouched).ok() &&
                         !_gpu.allocate_from_pool(9999, kBytes, untouched).ok() && untouched == nullptr);
    }

    void current_device() {
        _table.section("Choosing the current device");
        const int last = _gpu.device_count() - 1;
        bool chosen = false;
        bool refused = false;
        std::thread([&] {
            int device = -1;
            chosen = _gpu.make_current(last).ok() && _gpu.current_device(device).ok() && device == last;
            refused = !_gpu.make_current(9999).ok() && _gpu.current_device(device).ok() && device == last;
        }).join();
        int device = -1;
        _table.check("make_current, on another thread", chosen);
        _table.check("of a device that is not there fails and changes nothing", refused);
        _table.check("this thread's stays as it was", _gpu.current_device(device).ok() && device == kDevice);
    }

    /// Another process opens the handle, and finds pattern(1) at the offset. It writes pattern(3) there.
    bool another_process_uses(const gpu::IpcMemoryHandle& handle, const std::size_t offset) {
        std::string hex;
        for (const unsigned char byte : handle.bytes) {
            char digits[3];
            std::snprintf(digits, sizeof digits, "%02x", byte);
            hex += digits;
        }
        const std::string vendor = to_string(_gpu.vendor());
        const std::string offset_text = std::to_string(offset);
        char option[] = "--ipc-child";
        char* arguments[] = {const_cast<char*>(_path),
                             option,
                             const_cast<char*>(vendor.c_str()),
                             hex.data(),
                             const_cast<char*>(offset_text.c_str()),
                             nullptr};
        pid_t child = 0;
        int status = -1;
        return posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environ) == 0 &&
               waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }

    void sharing() {
        _table.section("Sharing between processes");
        gpu::IpcMemoryHandle handle;
        std::size_t offset = 0;
        const std::size_t at = 4321;
        const gpu::Status exported = _gpu.ipc_export(shifted(_device, at), handle, offset);
        if (!_table.check("ipc_export of an interior pointer gives its offset", exported.ok() && offset == at,
                          exported.message())) {
            return;
        }
        void* base = nullptr;
        const gpu::Status own = _gpu.ipc_open(handle, kDevice, base);
        _table.check("ipc_open in the exporting process fails", !own.ok() && base == nullptr, own.message());

        static_cast<void>(upload(_device, pattern(1, kBytes)));
        _table.check("another process opens it, reads the right bytes, writes and closes it",
                     another_process_uses(handle, offset));
        _table.check("what it wrote is here", download(shifted(_device, at), 1000) == pattern(3, 1000));

        void* small[2] = {};
        bool right = _gpu.allocate(kDevice, 512, small[0]).ok() && _gpu.allocate(kDevice, 512, small[1]).ok() &&
                     _gpu.ipc_export(shifted(small[1], 8), handle, offset).ok();
        const gpu::PointerInfo info = classify(small[1]);
        right = right && offset == reinterpret_cast<std::uintptr_t>(small[1]) + 8 - info.base;
        _table.check("offset of a small allocation that shares a block", right, std::to_string(offset));
        for (void* const memory : small) {
            static_cast<void>(_gpu.free(memory));
        }
        if (_managed != nullptr) {
            const gpu::Status refused = _gpu.ipc_export(_managed, handle, offset);
            _table.check("ipc_export refuses managed memory", !refused.ok(), refused.message());
        }
        int on_host = 0;
        const gpu::Status refused = _gpu.ipc_export(&on_host, handle, offset);
        _table.check("ipc_export refuses host memory", !refused.ok(), refused.message());
    }

    /// Two mappings at reserved addresses, whose border lies in the middle of the bytes.
    void sharing_by_descriptors() {
        _table.section("Sharing memory that is mapped at reserved addresses");
        if (_gpu.vendor() != gpu::Vendor::cuda) {
            _table.skip("sharing by descriptors", "CUDA only");
            return;
        }
        constexpr std::size_t kLength = 1000;
        const auto program = ranks::Gpu::open("cuda");
        program->use_device(kDevice);
        void* const memory = program->allocate(ranks::Kind::mapped, kLength);
        const gpu::PointerInfo info = classify(memory);
        _table.check("descriptors export it, legacy IPC does not", info.descriptor_capable && !info.ipc_capable,
                     describe(info));
        gpu::MappedRun run;
        const gpu::Status found = _gpu.find_run(kDevice, memory, kLength, run);
        const auto address = reinterpret_cast<std::uintptr_t>(memory);
        const std::size_t offset = address - run.base;
        _table.check("its mappings are found", found.ok() && run.id != 0 && offset + kLength <= run.size,
                     found.message());
        gpu::MappedRun first;
        _table.check("those of the first bytes alone are fewer", _gpu.find_run(kDevice, memory, 1, first).ok() &&
                                                                     first.base == run.base && first.size < run.size &&
                                                                     first.id != run.id);
        gpu::MappedRun beyond;
        _table.check("bytes that are not mapped are refused",
                     !_gpu.find_run(kDevice, memory, 2 * run.size, beyond).ok() && beyond.size == 0);
        gpu::IpcMemoryHandle handle;
        const gpu::Status exported = _gpu.export_run(kDevice, run, handle);
        if (!_table.check("export_run", exported.ok() && _gpu.hold_export(handle), exported.message())) {
            return;
        }
        static_cast<void>(upload(memory, pattern(1, kLength, offset)));
        _table.check("another process maps it, reads the right bytes, writes and unmaps it",
                     another_process_uses(handle, offset));
        _table.check("what it wrote is here", download(memory, kLength) == pattern(3, kLength));
        _gpu.end_export(handle);
        _table.check("a handle that was ended is not held again", !_gpu.hold_export(handle));
        _gpu.release_export(handle, kLength);
        _gpu.release_export(handle, kLength);
        void* base = nullptr;
        const gpu::Status over = _gpu.ipc_open(handle, kDevice, base);
        _table.check("a handle that was ended opens nothing", over.code == gpu::kExpired && base == nullptr,
                     over.message());
        program->free(ranks::Kind::mapped, memory);
    }

    void peers() {
        _table.section("Peers");
        if (_gpu.device_count() < 2) {
            _table.skip("peer access", "there is one device only");
            return;
        }
        bool can = false;
        _table.check("can_access_peer", _gpu.can_access_peer(0, 1, can));
        if (can) {
            _table.check("enable_peer_access", _gpu.enable_peer_access(0, 1));
            _table.check("enable_peer_access twice", _gpu.enable_peer_access(0, 1));
        }
        void* other = nullptr;
        const std::vector<unsigned char> data = pattern(1, 1000);
        const bool copied = upload(_device, data) && _gpu.allocate(1, 1000, other).ok() &&
                            _gpu.copy(other, _device, 1000, _stream).ok() && waited(_stream);
        _table.check("a copy between devices", copied && download(other, 1000) == data && classify(other).device == 1);
        _table.check("free on the other device", _gpu.free(other));
    }

    void busy_device() {
        _table.section("While the device is busy");
        constexpr std::chrono::seconds kPatience{30};
        _table.check("an idle device is idle", _gpu.is_idle(kDevice, kPatience) && _gpu.is_idle(-1, kPatience));
        void* memory = nullptr;
        static std::atomic<int> over{0};
        if (!_table.check("allocate", _gpu.allocate(kDevice, kBytes, memory)) ||
            !_table.check("a stream of the program's is busy", _program.keep_busy(over))) {
            return;
        }
        _table.check("a busy one is not", !_gpu.is_idle(kDevice) && !_gpu.is_idle(-1));
        _gpu.free_when_idle(memory, kDevice);
        _gpu.do_deferred(std::chrono::milliseconds(1));
        _table.check("memory is not freed yet", classify(memory).kind == gpu::MemoryKind::device);
        if (_gpu.vendor() == gpu::Vendor::cuda) {
            gpu::ModuleHandle module;
            std::string log;
            const gpu::Status status = _gpu.load_kernels(kDevice, "fill.h", gpu::kernels::fill_source, module, log);
            _table.check("load_kernels does not wait", status.code == gpu::kBusy || status.code == gpu::kUnsupported,
                         status.message());
        }
        const std::vector<unsigned char> data = pattern(4, kBytes);
        _table.check("copies go on", upload(_device, data) && download(_device, kBytes) == data);
        over = 1;
        over.notify_all();
        _table.check("it is idle again", _gpu.is_idle(kDevice, kPatience));
        _gpu.do_deferred(kPatience);
        _table.check("the memory is freed", classify(memory).kind == gpu::MemoryKind::host);
    }

    bool launched(gpu::KernelHandle kernel, gpu::Dim3 grid, std::vector<void*> arguments) {
        return _gpu.launch(kernel, grid, {128, 1, 1}, 0, _stream, arguments.data()).ok() && waited(_stream);
    }

    void kernels() {
        _table.section("Kernels");
        gpu::ModuleHandle fill;
        gpu::ModuleHandle pack;
        std::string log;
        const auto started = std::chrono::steady_clock::now();
        const gpu::Status loaded = _gpu.load_kernels(kDevice, "fill.h", gpu::kernels::fill_source, fill, log);
        const auto milliseconds =
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started).count();
        if (loaded.code == gpu::kUnsupported) {
            _table.skip("kernels from text", log);
            return;
        }
        if (!_table.check("load_kernels(fill.h)", loaded.ok(),
                          loaded.ok() ? std::to_string(milliseconds) + " ms" : loaded.message() + " " + log) ||
            !_table.check("load_kernels(pack.h)",
                          _gpu.load_kernels(kDevice, "pack.h", gpu::kernels::pack_source, pack, log))) {
            return;
        }
        gpu::KernelHandle fill_pattern;
        gpu::KernelHandle pack_shape;
        gpu::KernelHandle unpack_shape;
        gpu::KernelHandle reshape;
        gpu::KernelHandle pack_list;
        gpu::KernelHandle unpack_list;
        const bool found = _gpu.find_kernel(fill, "awaken_fill_pattern", fill_pattern).ok() &&
                           _gpu.find_kernel(pack, "awaken_pack_shape", pack_shape).ok() &&
                           _gpu.find_kernel(pack, "awaken_unpack_shape", unpack_shape).ok() &&
                           _gpu.find_kernel(pack, "awaken_reshape", reshape).ok() &&
                           _gpu.find_kernel(pack, "awaken_pack_list", pack_list).ok() &&
                           _gpu.find_kernel(pack, "awaken_unpack_list", unpack_list).ok();
        if (!_table.check("find_kernel", found)) {
            return;
        }
        gpu::KernelHandle missing;
        const gpu::Status absent = _gpu.find_kernel(pack, "awaken_no_such_kernel", missing);
        _table.check("find_kernel of a name that is not there fails", !absent.ok(), absent.message());

        unsigned long long bytes = kBytes;
        unsigned long long seed = 7;
        unsigned long long first = 5;
        _table.check("fill_pattern", launched(fill_pattern, {64, 1, 1}, {&_device, &bytes, &seed, &first}) &&
                                         download(_device, kBytes) == pattern(7, kBytes, 5));

        void* packed = nullptr;
        if (!_gpu.allocate(kDevice, kBytes, packed).ok()) {
            return;
        }
        // As in gpu/kernels/pack.h.
        struct Shape {
            unsigned long long base, width, counts[4];
            long long strides[4];
        };
        const auto number = [](const void* pointer) {
            return static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(pointer));
        };
        const std::vector<unsigned char> source = pattern(7, kBytes, 5);
        struct Rows {
            std::size_t at;
            long long pitch;
            unsigned long long width, rows;
        };
        for (const Rows& rows : {Rows{0, 256, 64, 4096}, Rows{8, 40, 24, 5000}, Rows{3, 101, 7, 3000},
                                 Rows{4096, -16, 4, 256}, Rows{0, 4096, 4096, 1000}, Rows{2, 6, 2, 1}}) {
            Shape user{number(shifted(_device, rows.at)), rows.width, {rows.rows, 1, 1, 1}, {rows.pitch, 0, 0, 0}};
            unsigned long long start = 0;
            unsigned long long length = rows.width * rows.rows;
            const long long pitch = rows.pitch;
            const unsigned long long width = rows.width;
            const unsigned long long count = rows.rows;
            std::vector<unsigned char> expected;
            for (unsigned long long row = 0; row < count; ++row) {
                const auto begin = static_cast<long long>(rows.at) + static_cast<long long>(row) * pitch;
                expected.insert(expected.end(), source.begin() + begin,
                                source.begin() + begin + static_cast<long long>(width));
            }
            const std::string shape = std::to_string(count) + " rows of " + std::to_string(width) + " bytes, pitch " +
                                      std::to_string(pitch) + ", at +" + std::to_string(rows.at);
            _table.check("pack_shape: " + shape, launched(pack_shape, {32, 1, 1}, {&packed, &user, &start, &length}) &&
                                                     download(packed, expected.size()) == expected);
            // Back into a cleared buffer: only the rows may change.
            std::vector<unsigned char> scattered(kBytes, 0);
            for (unsigned long long row = 0; row < count; ++row) {
                const auto begin = static_cast<long long>(rows.at) + static_cast<long long>(row) * pitch;
                std::copy_n(source.begin() + begin, width, scattered.begin() + begin);
            }
            void* cleared = nullptr;
            static_cast<void>(_gpu.allocate(kDevice, kBytes, cleared));
            Shape other = user;
            other.base = number(shifted(cleared, rows.at));
            _table.check("unpack_shape: the same",
                         _gpu.fill(cleared, 0, kBytes, _stream).ok() &&
                             launched(unpack_shape, {32, 1, 1}, {&other, &start, &packed, &length}) &&
                             download(cleared, kBytes) == scattered);
            _table.check("reshape: the same",
                         _gpu.fill(cleared, 0, kBytes, _stream).ok() &&
                             launched(reshape, {32, 1, 1}, {&other, &start, &user, &start, &length}) &&
                             download(cleared, kBytes) == scattered);
            static_cast<void>(_gpu.free(cleared));
        }

        // As in gpu/kernels/pack.h.
        struct Entry {
            long long offset, pitch;
            unsigned long long position;
            unsigned width, rows;
        };
        struct EntryList {
            unsigned long long base;
            long long extent;
            unsigned long long size, entries, entries_per_element;
        };
        std::vector<Entry> entries;
        std::vector<unsigned char> expected;
        std::vector<unsigned char> scattered(kBytes, 0);
        for (std::size_t i = 0, at = 1; i < 700; ++i) {
            // Lengths and gaps of all residues, every third with two rows; one long entry.
            const std::size_t length = i == 350 ? 100000 : 1 + (i * 37) % 129;
            const std::size_t rows = i % 3 == 0 && i != 350 ? 2 : 1;
            const std::size_t pitch = length + 3;
            entries.push_back({static_cast<long long>(at), rows == 1 ? 0 : static_cast<long long>(pitch),
                               expected.size(), static_cast<unsigned>(length), static_cast<unsigned>(rows)});
            for (std::size_t row = 0; row < rows; ++row) {
                const auto from = static_cast<long>(at + row * pitch);
                expected.insert(expected.end(), source.begin() + from,
                                source.begin() + from + static_cast<long>(length));
                std::copy_n(source.begin() + from, length, scattered.begin() + from);
            }
            at += rows * pitch + i % 19;
        }
        void* list = nullptr;
        static_cast<void>(_gpu.allocate(kDevice, entries.size() * sizeof(Entry), list));
        first = 0;
        unsigned long long last = entries.size();
        unsigned long long start = 0;
        unsigned long long length = expected.size();
        unsigned team_bits = 4;
        EntryList described{number(_device), 0, length, number(list), last};
        Shape line{number(packed), 1ULL << 62, {1, 1, 1, 1}, {0, 0, 0, 0}};
        bool right =
            _gpu.copy(list, entries.data(), entries.size() * sizeof(Entry), _stream).ok() &&
            launched(pack_list, {50, 1, 1}, {&line, &start, &described, &first, &last, &start, &length, &team_bits});
        _table.check("pack_list: 700 irregular entries", right && download(packed, expected.size()) == expected);
        line.base = number(_pinned);
        std::memset(_pinned, 0, kBytes);
        right =
            launched(pack_list, {50, 1, 1}, {&line, &start, &described, &first, &last, &start, &length, &team_bits});
        _table.check("pack_list into pinned host memory",
                     right && std::memcmp(_pinned, expected.data(), expected.size()) == 0);
        right =
            _gpu.fill(_device, 0, kBytes, _stream).ok() &&
            launched(unpack_list, {50, 1, 1}, {&described, &first, &last, &start, &line, &start, &length, &team_bits});
        _table.check("unpack_list from pinned host memory", right && download(_device, kBytes) == scattered);
        static_cast<void>(_gpu.free(list));
        static_cast<void>(_gpu.free(packed));

        gpu::ModuleHandle broken;
        log.clear();
        const gpu::Status syntax = _gpu.load_kernels(
            kDevice, "broken.h", "extern \"C\" __global__ void broken() { unknown_name(); }", broken, log);
        _table.check("a kernel with an error fails and the log says why",
                     !syntax.ok() && broken.value == nullptr && !log.empty(), syntax.message());
        const auto again = std::chrono::steady_clock::now();
        gpu::ModuleHandle cached;
        const bool ok = _gpu.load_kernels(kDevice, "pack.h", gpu::kernels::pack_source, cached, log).ok();
        _table.check("load_kernels again (cached on disk if there is a home)", ok,
                     std::to_string(
                         std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - again)
                             .count()) +
                         " us");
        _table.check("unload_kernels", _gpu.unload_kernels(cached).ok() && _gpu.unload_kernels(pack).ok() &&
                                           _gpu.unload_kernels(fill).ok());
    }

    void release() {
        _table.section("Release");
        _table.check("unregister_host", _gpu.unregister_host(_registered));
        _table.check("unregistered memory is host memory again", classify(_registered).kind == gpu::MemoryKind::host);
        if (_managed != nullptr) {
            _table.check("free of managed memory", _gpu.free(_managed));
        }
        if (_pool != nullptr) {
            _table.check("pool memory given back", _program.free_to_pool(_pool));
        }
        _table.check("free of null", _gpu.free(nullptr));
    }

    /// Nanoseconds of one call: the median of several series.
    static double nanoseconds(const std::function<void()>& call, int calls) {
        std::vector<double> series;
        for (int repeat = 0; repeat < 9; ++repeat) {
            const auto start = std::chrono::steady_clock::now();
            for (int i = 0; i < calls; ++i) {
                call();
            }
            const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
            series.push_back(spent.count() / calls);
        }
        std::sort(series.begin(), series.end());
        return series[series.size() / 2];
    }

    void costs() {
        _table.section("Costs, ns per call");
        std::vector<unsigned char> heap(4096);
        int on_stack = 0;
        constexpr int kCalls = 20000;
        const auto report = [](const char* what, double value) { std::printf("        %-66s %10.1f\n", what, value); };
        for (const auto& [what, pointer] : {std::pair<const char*, const void*>{"classify: heap", heap.data()},
                                            {"classify: stack", &on_stack},
                                            {"classify: pinned", _pinned},
                                            {"classify: device", shifted(_device, 64)}}) {
            report(what, nanoseconds([this, p = pointer] { static_cast<void>(classify(p)); }, kCalls));
        }
        const gpu::PointerInfo info = classify(_device);
        report("order_after_default_stream: known allocation",
               nanoseconds([&] { static_cast<void>(_gpu.order_after_default_stream(_device, info)); }, kCalls / 10));
        report("find(), automatic",
               nanoseconds([] { static_cast<void>(gpu::find(gpu::Choice::automatic).vendor()); }, kCalls));
        const auto small_copy = [this] {
            static_cast<void>(_gpu.copy(_device, _pinned, 8, _stream));
            static_cast<void>(_gpu.synchronize_stream(_stream));
        };
        report("copy of 8 bytes, pinned to device, with synchronize_stream", nanoseconds(small_copy, 1000));
        if (_gpu.vendor() == gpu::Vendor::cuda) {
            attribute_costs(heap.data());
        }
    }

    /// What the single attributes cost: the choice of those that classify() asks for rests on this.
    void attribute_costs(const void* heap) {
        const auto query = reinterpret_cast<int (*)(unsigned, const int*, void**, std::uint64_t)>(
            dlsym(_program.library(), "cuPointerGetAttributes"));
        if (query == nullptr) {
            return;
        }
        const std::pair<const char*, std::vector<int>> sets[] = {
            {"TYPE", {2}},
            {"TYPE, MANAGED", {2, 8}},
            {"TYPE, MANAGED, ORDINAL", {2, 8, 9}},
            {"TYPE, MANAGED, ORDINAL, BUFFER_ID", {2, 8, 9, 7}},
            {"TYPE, MANAGED, ORDINAL, BUFFER_ID, RANGE", {2, 8, 9, 7, 11, 12}},
            {"TYPE, MANAGED, ORDINAL, BUFFER_ID, RANGE, LEGACY_IPC", {2, 8, 9, 7, 11, 12, 10}},
            {"BUFFER_ID, RANGE, LEGACY_IPC", {7, 11, 12, 10}},
            {"CONTEXT, ORDINAL", {1, 9}},
        };
        for (const auto& set : sets) {
            const std::vector<int>& attributes = set.second;
            std::vector<std::uint64_t> values(attributes.size());
            std::vector<void*> addresses;
            for (std::uint64_t& value : values) {
                addresses.push_back(&value);
            }
            const auto cost = [&](const void* pointer) {
                return nanoseconds(
                    [&] {
                        static_cast<void>(query(static_cast<unsigned>(attributes.size()), attributes.data(),
                                                addresses.data(), reinterpret_cast<std::uint64_t>(pointer)));
                    },
                    20000);
            };
            std::printf("        cuPointerGetAttributes %-52s heap %6.1f   pinned %6.1f   device %6.1f\n", set.first,
                        cost(heap), cost(_pinned), cost(_device));
        }
    }

    Table _table;
    gpu::Runtime& _gpu;
    Program _program;
    const char* _path;
    const bool _emulated = std::getenv("AWAKEN_EMULATE") != nullptr;
    /// Takes the device long enough to be seen at work; the emulated one is slower.
    const std::size_t _much = _emulated ? std::size_t{32} << 20 : std::size_t{1} << 30;
    gpu::StreamHandle _stream;
    void* _device = nullptr;
    void* _pinned = nullptr;
    void* _registered = nullptr;
    void* _managed = nullptr;
    void* _pool = nullptr;
};

/// The other process of the IPC check: reads pattern 1 at the exported place and replaces it with pattern 3.
int ipc_child(const std::string& vendor, const std::string& hex, const std::string& offset_text) {
    gpu::Runtime& runtime = gpu::find(vendor == "cuda" ? gpu::Choice::cuda : gpu::Choice::hip);
    gpu::IpcMemoryHandle handle;
    if (hex.size() != 2 * sizeof handle.bytes) {
        return 2;
    }
    for (std::size_t i = 0; i < sizeof handle.bytes; ++i) {
        handle.bytes[i] = static_cast<unsigned char>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
    }
    const std::size_t offset = std::stoull(offset_text);
    const auto fail = [](const char* what, const gpu::Status& status) {
        std::fprintf(stderr, "child: %s: %s\n", what, status.message().c_str());
        return 3;
    };
    gpu::StreamHandle stream;
    if (const auto status = runtime.create_stream(0, false, stream); !status.ok()) {
        return fail("stream", status);
    }
    void* base = nullptr;
    if (const auto status = runtime.ipc_open(handle, 0, base); !status.ok()) {
        return fail("open", status);
    }
    const void* const mapped = shifted(base, offset);
    gpu::PointerInfo info;
    runtime.classify({&mapped, 1}, &info);
    std::vector<unsigned char> seen(1000);
    if (const auto status = runtime.copy(seen.data(), mapped, seen.size(), stream); !status.ok()) {
        return fail("copy", status);
    }
    if (const auto status = runtime.synchronize_stream(stream); !status.ok()) {
        return fail("wait", status);
    }
    const bool right = seen == pattern(1, seen.size(), offset) && info.kind == gpu::MemoryKind::device;
    const std::vector<unsigned char> reply = pattern(3, seen.size());
    if (const auto status = runtime.copy(shifted(base, offset), reply.data(), reply.size(), stream); !status.ok()) {
        return fail("write", status);
    }
    if (const auto status = runtime.synchronize_stream(stream); !status.ok()) {
        return fail("wait", status);
    }
    if (const auto status = runtime.ipc_close(base); !status.ok()) {
        return fail("close", status);
    }
    runtime.classify({&mapped, 1}, &info);
    if (info.kind == gpu::MemoryKind::device) {
        std::fprintf(stderr, "child: the mapping is still there after ipc_close\n");
        return 4;
    }
    if (!right) {
        std::fprintf(stderr, "child: wrong bytes\n");
    }
    return right ? 0 : 5;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 5 && std::strcmp(argv[1], "--ipc-child") == 0) {
        return ipc_child(argv[2], argv[3], argv[4]);
    }
    const std::string wanted = argc > 1 ? argv[1] : "";
    if (argc > 2 || (!wanted.empty() && wanted != "cuda" && wanted != "hip")) {
        std::fprintf(stderr, "usage: %s [cuda|hip]\n", argv[0]);
        return 2;
    }
    std::string reasons;
    for (const gpu::Choice choice : {gpu::Choice::cuda, gpu::Choice::hip}) {
        if (!wanted.empty() && (wanted == "cuda") != (choice == gpu::Choice::cuda)) {
            continue;
        }
        std::string why_not;
        gpu::Runtime& runtime = gpu::find(choice, &why_not);
        if (runtime.is_present()) {
            return Checks(runtime, argv[0]).run();
        }
        reasons += (reasons.empty() ? "" : "\n") + why_not;
    }
    std::fprintf(stderr, "no GPU to test on: %s\n", reasons.c_str());
    return 77;
}
