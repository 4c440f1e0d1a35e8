// SPDX-License-Identifier: Apache-2.0
// The machine that all front ends of a process share: devices, contexts, memory, handles.
//
// There is one Core a process, made by the first call into any front end and never destroyed: programs, libraries and
// worker threads use a driver until the last instruction of a process, and no order of destruction suits them all.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/configuration.h"
#include "core/context.h"
#include "core/error.h"
#include "core/memory.h"

namespace awaken::emulator {

struct Device {
    int number = 0;          ///< of the machine: what IPC and the PCI address go by
    std::string name;        ///< "Awaken emulated GPU (CUDA)"
    std::string pci_bus_id;  ///< "0000:10:00.0"
    int pci_bus = 0;
    unsigned char uuid[16] = {};
    std::size_t memory_bytes = 0;
    std::shared_ptr<Pool> default_pool;
    std::shared_ptr<Pool> current_pool;
};

/// The figures that property and attribute queries answer. One model for both vendors.
struct Model {
    static constexpr int threads_per_block = 1024;
    static constexpr int threads_per_multiprocessor = 2048;
    static constexpr int blocks_per_multiprocessor = 32;
    static constexpr int multiprocessors = 2;
    static constexpr int shared_bytes_per_block = 49152;
    static constexpr int shared_bytes_per_multiprocessor = 65536;
    static constexpr int registers = 65536;
    static constexpr int constant_bytes = 65536;
    static constexpr int l2_bytes = 4 << 20;
    static constexpr int clock_khz = 1'000'000;
    static constexpr int bus_width = 1024;
    static constexpr int grid_x = 2147483647;
    static constexpr int grid_yz = 65535;
    static constexpr int pitch_alignment = 512;
    static constexpr int compute_major = 9;
    static constexpr int compute_minor = 0;
};

/// Handles that the program holds, by address; a handle that is not here is invalid, whatever it points at.
template <typename Object>
class Registry {
  public:
    Object* add(std::shared_ptr<Object> object) {
        Object* const handle = object.get();
        const std::unique_lock lock(_lock);
        _objects.emplace(handle, std::move(object));
        return handle;
    }
    [[nodiscard]] std::shared_ptr<Object> find(const void* handle) const {
        const std::shared_lock lock(_lock);
        const auto at = _objects.find(handle);
        return at == _objects.end() ? nullptr : at->second;
    }
    std::shared_ptr<Object> remove(const void* handle) {
        const std::unique_lock lock(_lock);
        const auto at = _objects.find(handle);
        if (at == _objects.end()) {
            return nullptr;
        }
        std::shared_ptr<Object> object = std::move(at->second);
        _objects.erase(at);
        return object;
    }
    void remove_if(const std::function<bool(const Object&)>& condition) {
        const std::unique_lock lock(_lock);
        std::erase_if(_objects, [&](const auto& entry) { return condition(*entry.second); });
    }

  private:
    mutable std::shared_mutex _lock;
    std::unordered_map<const void*, std::shared_ptr<Object>> _objects;
};

/// Kernels that one image made available.
struct Module;
/// One of them.
struct Function;
/// What a capture of streams gave.
struct Graph;
class UserObject;

class Core {
  public:
    Core();
    Core(const Core&) = delete;
    Core& operator=(const Core&) = delete;

    [[nodiscard]] const Configuration& configuration() const noexcept { return _configuration; }
    [[nodiscard]] Memory& memory() noexcept { return _memory; }
    [[nodiscard]] int device_count() const noexcept { return static_cast<int>(_devices.size()); }
    [[nodiscard]] bool valid_device(int device) const noexcept { return device >= 0 && device < device_count(); }
    [[nodiscard]] Device& device(int device) noexcept { return _devices[static_cast<std::size_t>(device)]; }

    /// Whether `vendor`'s library may be used: no_device when another (or none) was asked for, invalid_value after a
    /// wrong environment variable (reported once on stderr), deinitialized at exit, not_initialized in a forked child.
    /// Returns when no memory of another process is being opened.
    [[nodiscard]] Error availability(Vendor vendor);

    /// A device's primary context, whether or not it is alive.
    [[nodiscard]] Context& primary(int device) noexcept { return *_primaries[static_cast<std::size_t>(device)]; }
    void retain_primary(int device);
    /// Destroys the context when nobody retains it any more; false when nobody did.
    bool release_primary(int device);
    void reset_primary(int device);
    [[nodiscard]] Context& create_context(int device, unsigned flags);
    void destroy_context(Context& context);
    /// Null unless `handle` is a context, alive or dead.
    [[nodiscard]] Context* find_context(const void* handle);
    /// All live contexts of a device.
    [[nodiscard]] std::vector<Context*> contexts_of(int device);
    void synchronize_device(int device);

    /// The stream behind a handle: 0 and 1 are the legacy default stream, 2 the thread's own, of `context`.
    [[nodiscard]] std::shared_ptr<Stream> stream(Context& context, const void* handle);

    Registry<Stream> streams;
    Registry<Event> events;
    Registry<Pool> pools;
    Registry<Physical> physicals;
    Registry<Module> modules;
    Registry<Function> functions;
    Registry<Graph> graphs;
    Registry<Graph> executable_graphs;
    Registry<UserObject> user_objects;

    /// Held by a call that opens another process's memory: no call of any thread enters meanwhile.
    std::shared_mutex opening;

    /// True for the copy that copy-error=N chose.
    [[nodiscard]] bool copy_fails() noexcept {
        return _configuration.faults.failing_copy != 0 && ++_copies == _configuration.faults.failing_copy;
    }

    /// True for the launch that kernel-error=N chose.
    [[nodiscard]] bool kernel_fails() noexcept {
        return _configuration.faults.failing_kernel != 0 && ++_kernels == _configuration.faults.failing_kernel;
    }

  private:
    void destroy_locked(Context& context);

    const Configuration _configuration;
    Memory _memory;
    std::vector<Device> _devices;
    std::mutex _lock;
    std::vector<std::unique_ptr<Context>> _contexts;  ///< all ever made
    std::vector<Context*> _primaries;
    std::atomic<std::uint64_t> _copies{0};
    std::atomic<std::uint64_t> _kernels{0};
    std::atomic<bool> _complained{false};
};

[[nodiscard]] Core& core();
/// Whether anybody has called that: what the drivers read when they are initialised has been read.
[[nodiscard]] bool is_core_up() noexcept;

}  // namespace awaken::emulator
