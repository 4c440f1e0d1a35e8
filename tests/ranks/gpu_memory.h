// SPDX-License-Identifier: Apache-2.0
// Memory of every kind that a GPU program may hand to MPI, allocated through the GPU runtime found at run time.
//
// The declarations are our own and minimal, so the test programs build without CUDA and ROCm, and they do not use the
// library's own GPU interface: a mistake there must not hide itself.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

namespace ranks {

/// Kinds of buffers that the tests mix. `interior` is device memory whose pointer does not start its allocation.
/// `mapped` is physical memory at reserved addresses (cuMemMap), in two pieces whose border lies within the buffer.
enum class Kind { host, device, managed, pinned, registered, pool, interior, mapped };
inline constexpr int kKinds = 8;
/// Memory that windows show only by way of copies.
constexpr bool is_shadowed(Kind kind) {
    return kind == Kind::pool || kind == Kind::mapped;
}

inline const char* to_string(Kind kind) {
    switch (kind) {
        case Kind::host:
            return "host";
        case Kind::device:
            return "device";
        case Kind::managed:
            return "managed";
        case Kind::pinned:
            return "pinned";
        case Kind::registered:
            return "registered";
        case Kind::pool:
            return "pool";
        case Kind::interior:
            return "interior";
        case Kind::mapped:
            return "mapped";
    }
    return "unknown";
}

/// Whether the CPU of a machine without special hardware may load and store memory of this kind.
inline bool host_accessible(Kind kind) {
    return kind == Kind::host || kind == Kind::pinned || kind == Kind::registered;
}

/// What the tests need of a GPU runtime. Failures throw std::runtime_error: without memory there is no test.
class Gpu {
  public:
    virtual ~Gpu() = default;
    [[nodiscard]] virtual bool present() const { return true; }
    [[nodiscard]] virtual bool is_hip() const { return false; }
    [[nodiscard]] virtual int device_count() = 0;
    virtual void use_device(int device) = 0;
    /// Any kind; `interior` is allocated like `device`, and with HIP so is `mapped`.
    virtual void* allocate(Kind kind, std::size_t bytes) = 0;
    virtual void free(Kind kind, void* pointer) = 0;
    /// Complete on return.
    virtual void write(void* destination, const void* source, std::size_t bytes) = 0;
    virtual void read(void* destination, const void* source, std::size_t bytes) = 0;
    /// The same in a stream that does not synchronise with the default one: sees what is there now.
    virtual void read_beside(void* destination, const void* source, std::size_t bytes) = 0;
    /// These two look synchronous and are not: they return before the device is done.
    virtual void memset(void* destination, int value, std::size_t bytes) = 0;
    virtual void copy_on_device(void* destination, const void* source, std::size_t bytes) = 0;
    /// In the default stream, as a kernel of the program's.
    virtual void copy_in_stream(void* destination, const void* source, std::size_t bytes) = 0;
    virtual void synchronize() = 0;
    /// The calling thread's current device or context, as text.
    [[nodiscard]] virtual std::string current() = 0;
    /// Leaves the calling thread without a current context where the runtime has such a state.
    virtual void leave() = 0;
    /// Destroys the state of the current device, as programs do before they exit.
    virtual void reset() = 0;
    /// Keeps the current device busy with work that ends when what is returned goes, in a stream of its own, or in the
    /// default stream.
    [[nodiscard]] virtual std::shared_ptr<void> keep_busy(bool in_default_stream) = 0;

    /// A stream of the program's own, which synchronises with the default one or not. Copies in it, and a hold on it.
    [[nodiscard]] virtual void* make_stream(bool is_blocking) = 0;
    virtual void destroy_stream(void* stream) = 0;
    virtual void finish_stream(void* stream) = 0;
    virtual void copy_in(void* stream, void* destination, const void* source, std::size_t bytes) = 0;
    /// The stream does nothing more until what is returned goes. That does not wait for the stream.
    [[nodiscard]] virtual std::shared_ptr<void> hold(void* stream) = 0;

    /// What the stream gets from now on, in all threads, goes into a graph, which end_capture() makes ready for
    /// launch_graph().
    virtual void begin_capture(void* stream) = 0;
    [[nodiscard]] virtual void* end_capture(void* stream) = 0;
    virtual void launch_graph(void* graph, void* stream) = 0;
    virtual void destroy_graph(void* graph) = 0;

    /// `runtime`: "cuda", "hip", "none", or "auto" (what AWAKEN_EMULATE names, else whatever library can be loaded).
    static std::unique_ptr<Gpu> open(const std::string& runtime);

  protected:
    /// Something that a host function waits for, which outlives the one that let it go.
    template <class Call>
    static std::shared_ptr<void> held_until_gone(const Call& call) {
        auto* const over = new std::atomic<int>(0);  // never freed: the stream comes to it at any time
        call(&wait_until_over, over);
        return {over, [](void* gone) {
                    static_cast<std::atomic<int>*>(gone)->store(1);
                    static_cast<std::atomic<int>*>(gone)->notify_all();
                }};
    }
    /// The work: a function of the host's that waits.
    static void wait_until_over(void* over) {
        auto* const word = static_cast<std::atomic<int>*>(over);
        word->wait(0);
    }
    template <class Finish>
    static std::shared_ptr<void> busy_until_gone(std::unique_ptr<std::atomic<int>> over, const Finish& finish) {
        return {over.release(), [finish](void* gone) {
                    auto* const word = static_cast<std::atomic<int>*>(gone);
                    word->store(1);
                    word->notify_all();
                    finish();
                    delete word;
                }};
    }
    /// Runs `use` where the memory is reached: only its own device reaches a pool's, unless the program lets others.
    template <class Use>
    void where_reached(const void* pointer, const Use& use) {
        const int device = device_of_pool(pointer);
        if (device < 0) {
            use();
            return;
        }
        const std::shared_ptr<void> back = enter(device);
        use();
    }
    void remember_pool(const void* pointer, std::size_t bytes, int device) {
        const std::scoped_lock lock(_pooled_mutex);
        _pooled[reinterpret_cast<std::uintptr_t>(pointer)] = {bytes, device};
    }
    void forget_pool(const void* pointer) {
        const std::scoped_lock lock(_pooled_mutex);
        _pooled.erase(reinterpret_cast<std::uintptr_t>(pointer));
    }
    /// Makes a device current until what it returns goes.
    [[nodiscard]] virtual std::shared_ptr<void> enter(int /*device*/) { return nullptr; }

    static void* host_memory(std::size_t bytes) {
        // Whole pages of its own: a registration covers pages, and must not cover a neighbour's.
        const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
        void* pointer = std::aligned_alloc(4096, rounded == 0 ? 4096 : rounded);
        if (pointer == nullptr) {
            throw std::runtime_error("out of host memory");
        }
        return pointer;
    }

    /// Copies little by way of pinned memory, from where an upload is complete on return: from pageable memory it may
    /// return early, and waiting for the device would also wait for, and so hide, what the library has left undone.
    /// False when it is too much.
    template <class Copy>
    bool write_staged(const void* source, std::size_t bytes, const Copy& copy) {
        if (bytes == 0) {
            return true;
        }
        if (bytes > kStageBytes) {
            return false;
        }
        const std::scoped_lock lock(_stage_mutex);
        if (_stage == nullptr) {
            _stage = allocate(Kind::pinned, kStageBytes);
        }
        std::memcpy(_stage, source, bytes);
        copy(static_cast<const void*>(_stage));
        return true;
    }
    /// A reset takes all memory with it.
    void drop_stage() {
        const std::scoped_lock lock(_stage_mutex);
        if (_stage != nullptr) {
            free(Kind::pinned, _stage);
        }
        _stage = nullptr;
    }

  private:
    int device_of_pool(const void* pointer) {
        const auto address = reinterpret_cast<std::uintptr_t>(pointer);
        const std::scoped_lock lock(_pooled_mutex);
        const auto after = _pooled.upper_bound(address);
        if (after == _pooled.begin()) {
            return -1;
        }
        const auto [base, memory] = *std::prev(after);
        return address - base < memory.first ? memory.second : -1;
    }

    std::mutex _pooled_mutex;
    std::map<std::uintptr_t, std::pair<std::size_t, int>> _pooled;  ///< bytes and device of what came from pools
    static constexpr std::size_t kStageBytes = 64 << 10;
    std::mutex _stage_mutex;
    void* _stage = nullptr;  ///< the driver's to free in the end
};

/// No GPU: every kind is ordinary memory.
class NoGpu : public Gpu {
  public:
    bool present() const override { return false; }
    int device_count() override { return 0; }
    void use_device(int) override {}
    void* allocate(Kind, std::size_t bytes) override { return host_memory(bytes); }
    void free(Kind, void* pointer) override { std::free(pointer); }
    void write(void* destination, const void* source, std::size_t bytes) override {
        if (bytes != 0) {
            std::memcpy(destination, source, bytes);
        }
    }
    void read(void* destination, const void* source, std::size_t bytes) override {
        if (bytes != 0) {
            std::memcpy(destination, source, bytes);
        }
    }
    void read_beside(void* destination, const void* source, std::size_t bytes) override {
        read(destination, source, bytes);
    }
    void memset(void* destination, int value, std::size_t bytes) override { std::memset(destination, value, bytes); }
    void copy_on_device(void* destination, const void* source, std::size_t bytes) override {
        std::memmove(destination, source, bytes);
    }
    void copy_in_stream(void* destination, const void* source, std::size_t bytes) override {
        copy_on_device(destination, source, bytes);
    }
    void synchronize() override {}
    std::string current() override { return "no GPU"; }
    void leave() override {}
    void reset() override {}
    std::shared_ptr<void> keep_busy(bool) override { return nullptr; }
    void* make_stream(bool) override { return nullptr; }
    void destroy_stream(void*) override {}
    void finish_stream(void*) override {}
    void copy_in(void*, void* destination, const void* source, std::size_t bytes) override {
        copy_on_device(destination, source, bytes);
    }
    std::shared_ptr<void> hold(void*) override { return nullptr; }
    void begin_capture(void*) override {}
    void* end_capture(void*) override { return nullptr; }
    void launch_graph(void*, void*) override {}
    void destroy_graph(void*) override {}
};

/// A library opened at run time, with functions found by name.
class Library {
  public:
    explicit Library(std::initializer_list<const char*> names) {
        std::string tried;
        for (const char* name : names) {
            _handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
            if (_handle != nullptr) {
                return;
            }
            tried += std::string(tried.empty() ? "" : ", ") + name;
        }
        throw std::runtime_error("no GPU runtime found, tried " + tried);
    }
    template <class Function>
    void find(Function*& function, const char* name) const {
        function = reinterpret_cast<Function*>(dlsym(_handle, name));
        if (function == nullptr) {
            throw std::runtime_error(std::string("the GPU runtime has no ") + name);
        }
    }

  private:
    void* _handle = nullptr;
};

/// Through the CUDA driver.
class CudaGpu : public Gpu {
  public:
    CudaGpu() : _library({"libcuda.so.1"}) {
        _library.find(_init, "cuInit");
        _library.find(_count, "cuDeviceGetCount");
        _library.find(_retain, "cuDevicePrimaryCtxRetain");
        _library.find(_reset, "cuDevicePrimaryCtxReset_v2");
        _library.find(_set_current, "cuCtxSetCurrent");
        _library.find(_get_current, "cuCtxGetCurrent");
        _library.find(_get_device, "cuCtxGetDevice");
        _library.find(_synchronize, "cuCtxSynchronize");
        _library.find(_alloc, "cuMemAlloc_v2");
        _library.find(_free, "cuMemFree_v2");
        _library.find(_alloc_managed, "cuMemAllocManaged");
        _library.find(_host_alloc, "cuMemHostAlloc");
        _library.find(_host_free, "cuMemFreeHost");
        _library.find(_register, "cuMemHostRegister_v2");
        _library.find(_unregister, "cuMemHostUnregister");
        _library.find(_alloc_async, "cuMemAllocAsync");
        _library.find(_free_async, "cuMemFreeAsync");
        _library.find(_to_device, "cuMemcpyHtoD_v2");
        _library.find(_to_host, "cuMemcpyDtoH_v2");
        _library.find(_on_device, "cuMemcpyDtoD_v2");
        _library.find(_memset, "cuMemsetD8_v2");
        _library.find(_create_stream, "cuStreamCreate");
        _library.find(_destroy_stream, "cuStreamDestroy_v2");
        _library.find(_finish_stream, "cuStreamSynchronize");
        _library.find(_to_host_async, "cuMemcpyDtoHAsync_v2");
        _library.find(_on_device_async, "cuMemcpyDtoDAsync_v2");
        _library.find(_call_host, "cuLaunchHostFunc");
        _library.find(_begin_capture, "cuStreamBeginCapture_v2");
        _library.find(_end_capture, "cuStreamEndCapture");
        _library.find(_instantiate, "cuGraphInstantiateWithFlags");
        _library.find(_launch_graph, "cuGraphLaunch");
        _library.find(_destroy_graph, "cuGraphDestroy");
        _library.find(_destroy_executable, "cuGraphExecDestroy");
        _library.find(_copy_async, "cuMemcpyAsync");
        _library.find(_reserve, "cuMemAddressReserve");
        _library.find(_free_addresses, "cuMemAddressFree");
        _library.find(_create, "cuMemCreate");
        _library.find(_release, "cuMemRelease");
        _library.find(_map, "cuMemMap");
        _library.find(_unmap, "cuMemUnmap");
        _library.find(_set_access, "cuMemSetAccess");
        check(_init(0), "cuInit");
        check(_count(&_devices), "cuDeviceGetCount");
    }
    int device_count() override { return _devices; }
    void use_device(int device) override {
        void* context = nullptr;
        check(_retain(&context, device), "cuDevicePrimaryCtxRetain");
        check(_set_current(context), "cuCtxSetCurrent");
        _device = device;
    }
    void* allocate(Kind kind, std::size_t bytes) override {
        std::uint64_t device = 0;
        int current = 0;
        void* host = nullptr;
        switch (kind) {
            case Kind::host:
                return host_memory(bytes);
            case Kind::device:
            case Kind::interior:
                check(_alloc(&device, bytes), "cuMemAlloc");
                break;
            case Kind::managed:
                check(_alloc_managed(&device, bytes, 1), "cuMemAllocManaged");
                break;
            case Kind::pool:
                check(_alloc_async(&device, bytes, nullptr), "cuMemAllocAsync");
                check(_synchronize(), "cuCtxSynchronize");
                check(_get_device(&current), "cuCtxGetDevice");
                remember_pool(reinterpret_cast<void*>(device), bytes, current);
                break;
            case Kind::mapped:
                return map(bytes);
            case Kind::pinned:
                check(_host_alloc(&host, bytes, 0), "cuMemHostAlloc");
                return host;
            case Kind::registered:
                host = host_memory(bytes);
                check(_register(host, bytes, 0), "cuMemHostRegister");
                return host;
        }
        return reinterpret_cast<void*>(device);
    }
    void free(Kind kind, void* pointer) override {
        const auto device = reinterpret_cast<std::uint64_t>(pointer);
        switch (kind) {
            case Kind::host:
                std::free(pointer);
                break;
            case Kind::device:
            case Kind::interior:
            case Kind::managed:
                check(_free(device), "cuMemFree");
                break;
            case Kind::pool:
                where_reached(pointer, [&] {
                    check(_free_async(device, nullptr), "cuMemFreeAsync");
                    check(_synchronize(), "cuCtxSynchronize");
                });
                forget_pool(pointer);
                break;
            case Kind::mapped:
                unmap(device);
                break;
            case Kind::pinned:
                check(_host_free(pointer), "cuMemFreeHost");
                break;
            case Kind::registered:
                check(_unregister(pointer), "cuMemHostUnregister");
                std::free(pointer);
                break;
        }
    }
    void write(void* destination, const void* source, std::size_t bytes) override {
        const auto device = reinterpret_cast<std::uint64_t>(destination);
        where_reached(destination, [&] {
            if (!write_staged(source, bytes,
                              [&](const void* pinned) { check(_to_device(device, pinned, bytes), "cuMemcpyHtoD"); })) {
                check(_to_device(device, source, bytes), "cuMemcpyHtoD");
                check(_synchronize(), "cuCtxSynchronize");  // the copy from pageable memory may return early
            }
        });
    }
    void read(void* destination, const void* source, std::size_t bytes) override {
        if (bytes == 0) {
            return;
        }
        where_reached(source, [&] {
            check(_to_host(destination, reinterpret_cast<std::uint64_t>(source), bytes), "cuMemcpyDtoH");
        });
    }
    void read_beside(void* destination, const void* source, std::size_t bytes) override {
        void* stream = nullptr;
        check(_create_stream(&stream, kNonBlocking), "cuStreamCreate");
        check(_to_host_async(destination, reinterpret_cast<std::uint64_t>(source), bytes, stream), "cuMemcpyDtoHAsync");
        check(_finish_stream(stream), "cuStreamSynchronize");
        check(_destroy_stream(stream), "cuStreamDestroy");
    }
    void memset(void* destination, int value, std::size_t bytes) override {
        check(_memset(reinterpret_cast<std::uint64_t>(destination), static_cast<unsigned char>(value), bytes),
              "cuMemsetD8");
    }
    void copy_on_device(void* destination, const void* source, std::size_t bytes) override {
        check(_on_device(reinterpret_cast<std::uint64_t>(destination), reinterpret_cast<std::uint64_t>(source), bytes),
              "cuMemcpyDtoD");
    }
    void copy_in_stream(void* destination, const void* source, std::size_t bytes) override {
        check(_on_device_async(reinterpret_cast<std::uint64_t>(destination), reinterpret_cast<std::uint64_t>(source),
                               bytes, nullptr),
              "cuMemcpyDtoDAsync");
    }
    void synchronize() override { check(_synchronize(), "cuCtxSynchronize"); }
    std::string current() override {
        void* context = nullptr;
        check(_get_current(&context), "cuCtxGetCurrent");
        char text[64];
        std::snprintf(text, sizeof text, "context %p", context);
        return text;
    }
    void leave() override { check(_set_current(nullptr), "cuCtxSetCurrent"); }
    void reset() override {
        drop_stage();
        check(_reset(_device), "cuDevicePrimaryCtxReset");
    }
    void* make_stream(bool is_blocking) override {
        void* stream = nullptr;
        check(_create_stream(&stream, is_blocking ? 0 : kNonBlocking), "cuStreamCreate");
        return stream;
    }
    void destroy_stream(void* stream) override { check(_destroy_stream(stream), "cuStreamDestroy"); }
    void finish_stream(void* stream) override { check(_finish_stream(stream), "cuStreamSynchronize"); }
    void copy_in(void* stream, void* destination, const void* source, std::size_t bytes) override {
        check(_copy_async(reinterpret_cast<std::uintptr_t>(destination), reinterpret_cast<std::uintptr_t>(source),
                          bytes, stream),
              "cuMemcpyAsync");
    }
    std::shared_ptr<void> hold(void* stream) override {
        return held_until_gone(
            [&](auto function, void* over) { check(_call_host(stream, function, over), "cuLaunchHostFunc"); });
    }
    void begin_capture(void* stream) override { check(_begin_capture(stream, 0), "cuStreamBeginCapture"); }
    void* end_capture(void* stream) override {
        void *graph = nullptr, *executable = nullptr;
        check(_end_capture(stream, &graph), "cuStreamEndCapture");
        check(_instantiate(&executable, graph, 0), "cuGraphInstantiate");
        check(_destroy_graph(graph), "cuGraphDestroy");
        return executable;
    }
    void launch_graph(void* graph, void* stream) override { check(_launch_graph(graph, stream), "cuGraphLaunch"); }
    void destroy_graph(void* graph) override { check(_destroy_executable(graph), "cuGraphExecDestroy"); }
    std::shared_ptr<void> keep_busy(bool in_default_stream) override {
        void* stream = nullptr;
        if (!in_default_stream) {
            check(_create_stream(&stream, kNonBlocking), "cuStreamCreate");
        }
        auto over = std::make_unique<std::atomic<int>>(0);
        check(_call_host(stream, &wait_until_over, over.get()), "cuLaunchHostFunc");
        return busy_until_gone(std::move(over), [this, stream] {
            check(_finish_stream(stream), "cuStreamSynchronize");
            if (stream != nullptr) {
                check(_destroy_stream(stream), "cuStreamDestroy");
            }
        });
    }

  protected:
    std::shared_ptr<void> enter(int device) override {
        void* before = nullptr;
        void* context = nullptr;
        check(_get_current(&before), "cuCtxGetCurrent");
        check(_retain(&context, device), "cuDevicePrimaryCtxRetain");
        check(_set_current(context), "cuCtxSetCurrent");
        return {this, [this, before](void*) { check(_set_current(before), "cuCtxSetCurrent"); }};
    }

  private:
    static void check(int code, const char* call) {
        if (code != 0) {
            throw std::runtime_error(std::string(call) + " failed with code " + std::to_string(code));
        }
    }

    /// CUmemAllocationProp and CUmemAccessDesc.
    struct Properties {
        int type = 1;          // pinned, which means "stays where it is"
        int handle_types = 1;  // may be exported by file descriptors
        int location_type = 1;
        int device;
        void* security = nullptr;
        unsigned char flags[8] = {};
    };
    struct Access {
        int location_type = 1;
        int device;
        int flags = 3;  // read and write
    };

    /// Two pieces of the same size, whose border lies in the middle of the buffer.
    void* map(std::size_t bytes) {
        const std::size_t half = (bytes / 2 + kAlignment - 1) / kAlignment * kAlignment;
        const std::size_t piece = (half / kGranularity + 1) * kGranularity;
        const int device = _device;
        const Properties properties{.device = device};
        std::uint64_t base = 0;
        check(_reserve(&base, 2 * piece, 0, 0, 0), "cuMemAddressReserve");
        for (const std::uint64_t at : {base, base + piece}) {
            unsigned long long handle = 0;
            check(_create(&handle, piece, &properties, 0), "cuMemCreate");
            check(_map(at, piece, 0, handle, 0), "cuMemMap");
            check(_release(handle), "cuMemRelease");
        }
        for (int each = 0; each < _devices; ++each) {
            // Programs use one device's memory while another is current. Not every device reaches every other.
            const Access access{.device = each};
            const int code = _set_access(base, 2 * piece, &access, 1);
            check(each == device ? code : 0, "cuMemSetAccess");
        }
        const std::uint64_t buffer = base + piece - half;
        const std::scoped_lock lock(_mapped_mutex);
        _mapped[buffer] = {base, piece};
        return reinterpret_cast<void*>(buffer);
    }
    void unmap(std::uint64_t buffer) {
        std::pair<std::uint64_t, std::size_t> pieces;
        {
            const std::scoped_lock lock(_mapped_mutex);
            pieces = _mapped.at(buffer);
            _mapped.erase(buffer);
        }
        const auto [base, piece] = pieces;
        check(_synchronize(), "cuCtxSynchronize");  // work of the program may use the memory
        check(_unmap(base, piece), "cuMemUnmap");
        check(_unmap(base + piece, piece), "cuMemUnmap");
        check(_free_addresses(base, 2 * piece), "cuMemAddressFree");
    }

    static constexpr std::size_t kGranularity = std::size_t{2} << 20, kAlignment = 256;
    std::mutex _mapped_mutex;
    std::map<std::uint64_t, std::pair<std::uint64_t, std::size_t>> _mapped;  ///< buffers: first piece, bytes of each
    Library _library;
    int _devices = 0;
    std::atomic<int> _device{0};  // several threads may make the device current
    int (*_init)(unsigned) = nullptr;
    int (*_count)(int*) = nullptr;
    int (*_retain)(void**, int) = nullptr;
    int (*_reset)(int) = nullptr;
    int (*_set_current)(void*) = nullptr;
    int (*_get_current)(void**) = nullptr;
    int (*_get_device)(int*) = nullptr;
    int (*_synchronize)() = nullptr;
    int (*_alloc)(std::uint64_t*, std::size_t) = nullptr;
    int (*_free)(std::uint64_t) = nullptr;
    int (*_alloc_managed)(std::uint64_t*, std::size_t, unsigned) = nullptr;
    int (*_host_alloc)(void**, std::size_t, unsigned) = nullptr;
    int (*_host_free)(void*) = nullptr;
    int (*_register)(void*, std::size_t, unsigned) = nullptr;
    int (*_unregister)(void*) = nullptr;
    int (*_alloc_async)(std::uint64_t*, std::size_t, void*) = nullptr;
    int (*_free_async)(std::uint64_t, void*) = nullptr;
    int (*_to_device)(std::uint64_t, const void*, std::size_t) = nullptr;
    int (*_to_host)(void*, std::uint64_t, std::size_t) = nullptr;
    int (*_on_device)(std::uint64_t, std::uint64_t, std::size_t) = nullptr;
    int (*_memset)(std::uint64_t, unsigned char, std::size_t) = nullptr;
    int (*_reserve)(std::uint64_t*, std::size_t, std::size_t, std::uint64_t, unsigned long long) = nullptr;
    int (*_free_addresses)(std::uint64_t, std::size_t) = nullptr;
    int (*_create)(unsigned long long*, std::size_t, const Properties*, unsigned long long) = nullptr;
    int (*_release)(unsigned long long) = nullptr;
    int (*_map)(std::uint64_t, std::size_t, std::size_t, unsigned long long, unsigned long long) = nullptr;
    int (*_unmap)(std::uint64_t, std::size_t) = nullptr;
    int (*_set_access)(std::uint64_t, std::size_t, const Access*, std::size_t) = nullptr;
    static constexpr unsigned kNonBlocking = 1;
    int (*_create_stream)(void**, unsigned) = nullptr;
    int (*_copy_async)(std::uint64_t, std::uint64_t, std::size_t, void*) = nullptr;
    int (*_destroy_stream)(void*) = nullptr;
    int (*_finish_stream)(void*) = nullptr;
    int (*_to_host_async)(void*, std::uint64_t, std::size_t, void*) = nullptr;
    int (*_on_device_async)(std::uint64_t, std::uint64_t, std::size_t, void*) = nullptr;
    int (*_call_host)(void*, void (*)(void*), void*) = nullptr;
    int (*_begin_capture)(void*, int) = nullptr;
    int (*_end_capture)(void*, void**) = nullptr;
    int (*_instantiate)(void**, void*, unsigned long long) = nullptr;
    int (*_launch_graph)(void*, void*) = nullptr;
    int (*_destroy_graph)(void*) = nullptr;
    int (*_destroy_executable)(void*) = nullptr;
};

/// Through the HIP runtime of ROCm 5, 6 or 7.
class HipGpu : public Gpu {
  public:
    explicit HipGpu(std::initializer_list<const char*> names) : _library(names) {
        _library.find(_count, "hipGetDeviceCount");
        _library.find(_set_device, "hipSetDevice");
        _library.find(_get_device, "hipGetDevice");
        _library.find(_reset, "hipDeviceReset");
        _library.find(_synchronize, "hipDeviceSynchronize");
        _library.find(_malloc, "hipMalloc");
        _library.find(_free, "hipFree");
        _library.find(_malloc_managed, "hipMallocManaged");
        _library.find(_host_malloc, "hipHostMalloc");
        _library.find(_host_free, "hipHostFree");
        _library.find(_register, "hipHostRegister");
        _library.find(_unregister, "hipHostUnregister");
        _library.find(_malloc_async, "hipMallocAsync");
        _library.find(_free_async, "hipFreeAsync");
        _library.find(_memcpy, "hipMemcpy");
        _library.find(_memset, "hipMemset");
        _library.find(_create_stream, "hipStreamCreateWithFlags");
        _library.find(_destroy_stream, "hipStreamDestroy");
        _library.find(_finish_stream, "hipStreamSynchronize");
        _library.find(_memcpy_async, "hipMemcpyAsync");
        _library.find(_call_host, "hipLaunchHostFunc");
        _library.find(_begin_capture, "hipStreamBeginCapture");
        _library.find(_end_capture, "hipStreamEndCapture");
        _library.find(_instantiate, "hipGraphInstantiateWithFlags");
        _library.find(_launch_graph, "hipGraphLaunch");
        _library.find(_destroy_graph, "hipGraphDestroy");
        _library.find(_destroy_executable, "hipGraphExecDestroy");
        check(_count(&_devices), "hipGetDeviceCount");
    }
    bool is_hip() const override { return true; }
    int device_count() override { return _devices; }
    void use_device(int device) override { check(_set_device(device), "hipSetDevice"); }
    void* allocate(Kind kind, std::size_t bytes) override {
        void* pointer = nullptr;
        int device = 0;
        switch (kind) {
            case Kind::host:
                return host_memory(bytes);
            case Kind::device:
            case Kind::interior:
            case Kind::mapped:
                check(_malloc(&pointer, bytes), "hipMalloc");
                break;
            case Kind::managed:
                check(_malloc_managed(&pointer, bytes, 1), "hipMallocManaged");
                break;
            case Kind::pool:
                check(_malloc_async(&pointer, bytes, nullptr), "hipMallocAsync");
                check(_synchronize(), "hipDeviceSynchronize");
                check(_get_device(&device), "hipGetDevice");
                remember_pool(pointer, bytes, device);
                break;
            case Kind::pinned:
                check(_host_malloc(&pointer, bytes, 0), "hipHostMalloc");
                break;
            case Kind::registered:
                pointer = host_memory(bytes);
                check(_register(pointer, bytes, 0), "hipHostRegister");
                break;
        }
        return pointer;
    }
    void free(Kind kind, void* pointer) override {
        switch (kind) {
            case Kind::host:
                std::free(pointer);
                break;
            case Kind::device:
            case Kind::interior:
            case Kind::managed:
            case Kind::mapped:
                check(_free(pointer), "hipFree");
                break;
            case Kind::pool:
                where_reached(pointer, [&] {
                    check(_free_async(pointer, nullptr), "hipFreeAsync");
                    check(_synchronize(), "hipDeviceSynchronize");
                });
                forget_pool(pointer);
                break;
            case Kind::pinned:
                check(_host_free(pointer), "hipHostFree");
                break;
            case Kind::registered:
                check(_unregister(pointer), "hipHostUnregister");
                std::free(pointer);
                break;
        }
    }
    void write(void* destination, const void* source, std::size_t bytes) override {
        where_reached(destination, [&] {
            if (!write_staged(source, bytes, [&](const void* pinned) {
                    check(_memcpy(destination, pinned, bytes, kHostToDevice), "hipMemcpy");
                })) {
                check(_memcpy(destination, source, bytes, kHostToDevice), "hipMemcpy");
                check(_synchronize(), "hipDeviceSynchronize");  // the copy from pageable memory may return early
            }
        });
    }
    void read(void* destination, const void* source, std::size_t bytes) override {
        if (bytes != 0) {
            where_reached(source, [&] { check(_memcpy(destination, source, bytes, kDeviceToHost), "hipMemcpy"); });
        }
    }
    void read_beside(void* destination, const void* source, std::size_t bytes) override {
        void* stream = nullptr;
        check(_create_stream(&stream, kNonBlocking), "hipStreamCreateWithFlags");
        check(_memcpy_async(destination, source, bytes, kDeviceToHost, stream), "hipMemcpyAsync");
        check(_finish_stream(stream), "hipStreamSynchronize");
        check(_destroy_stream(stream), "hipStreamDestroy");
    }
    void memset(void* destination, int value, std::size_t bytes) override {
        check(_memset(destination, value, bytes), "hipMemset");
    }
    void copy_on_device(void* destination, const void* source, std::size_t bytes) override {
        check(_memcpy(destination, source, bytes, kDeviceToDevice), "hipMemcpy");
    }
    void copy_in_stream(void* destination, const void* source, std::size_t bytes) override {
        check(_memcpy_async(destination, source, bytes, kDeviceToDevice, nullptr), "hipMemcpyAsync");
    }
    void synchronize() override { check(_synchronize(), "hipDeviceSynchronize"); }
    std::string current() override {
        int device = -1;
        check(_get_device(&device), "hipGetDevice");
        return "device " + std::to_string(device);
    }
    void leave() override {}
    void reset() override {
        drop_stage();
        check(_reset(), "hipDeviceReset");
    }
    void* make_stream(bool is_blocking) override {
        void* stream = nullptr;
        check(_create_stream(&stream, is_blocking ? 0 : kNonBlocking), "hipStreamCreateWithFlags");
        return stream;
    }
    void destroy_stream(void* stream) override { check(_destroy_stream(stream), "hipStreamDestroy"); }
    void finish_stream(void* stream) override { check(_finish_stream(stream), "hipStreamSynchronize"); }
    void copy_in(void* stream, void* destination, const void* source, std::size_t bytes) override {
        constexpr int kFromTheAddresses = 4;
        check(_memcpy_async(destination, source, bytes, kFromTheAddresses, stream), "hipMemcpyAsync");
    }
    std::shared_ptr<void> hold(void* stream) override {
        return held_until_gone(
            [&](auto function, void* over) { check(_call_host(stream, function, over), "hipLaunchHostFunc"); });
    }
    void begin_capture(void* stream) override { check(_begin_capture(stream, 0), "hipStreamBeginCapture"); }
    void* end_capture(void* stream) override {
        void *graph = nullptr, *executable = nullptr;
        check(_end_capture(stream, &graph), "hipStreamEndCapture");
        check(_instantiate(&executable, graph, 0), "hipGraphInstantiate");
        check(_destroy_graph(graph), "hipGraphDestroy");
        return executable;
    }
    void launch_graph(void* graph, void* stream) override { check(_launch_graph(graph, stream), "hipGraphLaunch"); }
    void destroy_graph(void* graph) override { check(_destroy_executable(graph), "hipGraphExecDestroy"); }
    std::shared_ptr<void> keep_busy(bool in_default_stream) override {
        void* stream = nullptr;
        if (!in_default_stream) {
            check(_create_stream(&stream, kNonBlocking), "hipStreamCreateWithFlags");
        }
        auto over = std::make_unique<std::atomic<int>>(0);
        check(_call_host(stream, &wait_until_over, over.get()), "hipLaunchHostFunc");
        return busy_until_gone(std::move(over), [this, stream] {
            check(_finish_stream(stream), "hipStreamSynchronize");
            if (stream != nullptr) {
                check(_destroy_stream(stream), "hipStreamDestroy");
            }
        });
    }

  protected:
    std::shared_ptr<void> enter(int device) override {
        int before = 0;
        check(_get_device(&before), "hipGetDevice");
        check(_set_device(device), "hipSetDevice");
        return {this, [this, before](void*) { check(_set_device(before), "hipSetDevice"); }};
    }

  private:
    static constexpr int kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3;
    static void check(int code, const char* call) {
        if (code != 0) {
            throw std::runtime_error(std::string(call) + " failed with code " + std::to_string(code));
        }
    }
    Library _library;
    int _devices = 0;
    int (*_count)(int*) = nullptr;
    int (*_set_device)(int) = nullptr;
    int (*_get_device)(int*) = nullptr;
    int (*_reset)() = nullptr;
    int (*_synchronize)() = nullptr;
    int (*_malloc)(void**, std::size_t) = nullptr;
    int (*_free)(void*) = nullptr;
    int (*_malloc_managed)(void**, std::size_t, unsigned) = nullptr;
    int (*_host_malloc)(void**, std::size_t, unsigned) = nullptr;
    int (*_host_free)(void*) = nullptr;
    int (*_register)(void*, std::size_t, unsigned) = nullptr;
    int (*_unregister)(void*) = nullptr;
    int (*_malloc_async)(void**, std::size_t, void*) = nullptr;
    int (*_free_async)(void*, void*) = nullptr;
    int (*_memcpy)(void*, const void*, std::size_t, int) = nullptr;
    int (*_memset)(void*, int, std::size_t) = nullptr;
    static constexpr unsigned kNonBlocking = 1;
    int (*_create_stream)(void**, unsigned) = nullptr;
    int (*_destroy_stream)(void*) = nullptr;
    int (*_finish_stream)(void*) = nullptr;
    int (*_memcpy_async)(void*, const void*, std::size_t, int, void*) = nullptr;
    int (*_call_host)(void*, void (*)(void*), void*) = nullptr;
    int (*_begin_capture)(void*, int) = nullptr;
    int (*_end_capture)(void*, void**) = nullptr;
    int (*_instantiate)(void**, void*, unsigned long long) = nullptr;
    int (*_launch_graph)(void*, void*) = nullptr;
    int (*_destroy_graph)(void*) = nullptr;
    int (*_destroy_executable)(void*) = nullptr;
};

inline std::unique_ptr<Gpu> Gpu::open(const std::string& runtime) {
    const char* emulate = std::getenv("AWAKEN_EMULATE");
    const std::string emulated = emulate == nullptr ? "" : std::string(emulate);
    if (runtime == "none") {
        return std::make_unique<NoGpu>();
    }
    if (runtime == "cuda") {
        return std::make_unique<CudaGpu>();
    }
    if (runtime == "hip") {
        if (emulated.rfind("hip5", 0) == 0) {
            return std::make_unique<HipGpu>(std::initializer_list<const char*>{"libamdhip64.so.5"});
        }
        return std::make_unique<HipGpu>(
            std::initializer_list<const char*>{"libamdhip64.so.6", "libamdhip64.so.7", "libamdhip64.so.5"});
    }
    if (runtime != "auto") {
        throw std::runtime_error("--gpu=" + runtime + " is not one of auto, cuda, hip, none");
    }
    if (emulated.rfind("cuda", 0) == 0) {
        return open("cuda");
    }
    if (emulated.rfind("hip", 0) == 0) {
        return open("hip");
    }
    try {
        return open("cuda");
    } catch (const std::runtime_error&) {
    }
    try {
        return open("hip");
    } catch (const std::runtime_error&) {
        return open("none");
    }
}

}  // namespace ranks
