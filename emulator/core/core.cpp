// SPDX-License-Identifier: Apache-2.0
#include "core/core.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/kernel.h"

namespace awaken::emulator {
namespace {

std::atomic<bool> exiting{false};
std::atomic<bool> forked{false};
std::atomic<bool> up{false};

/// The same for all processes of one running system, different on another: the base of the devices' identities.
std::uint64_t machine_identity() {
    char text[64] = {};
    const Descriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    [[maybe_unused]] const ssize_t length = read(file.number(), text, sizeof text - 1);
    return std::hash<std::string>()(text);
}

}  // namespace

Core::Core() : _configuration(read_configuration()), _memory(_configuration) {
    const std::uint64_t machine = machine_identity();
    const bool cuda = _configuration.vendor == Vendor::cuda;
    for (const int number : _configuration.visible) {
        Device device;
        device.number = number;
        device.name = cuda ? "Awaken emulated GPU (CUDA)" : "Awaken emulated GPU (HIP)";
        device.pci_bus = 0x10 + number;
        char text[32];
        std::snprintf(text, sizeof text, "0000:%02x:00.0", static_cast<unsigned>(device.pci_bus));
        device.pci_bus_id = text;
        // ROCm's identities are hexadecimal text, CUDA's are bytes; both are unique over machines.
        std::memcpy(device.uuid, &machine, sizeof machine);
        std::memcpy(device.uuid + 8, "emulate", 7);
        device.uuid[15] = static_cast<unsigned char>(number);
        device.memory_bytes = _configuration.memory_bytes;
        device.default_pool = std::make_shared<Pool>();
        device.default_pool->device = static_cast<int>(_devices.size());
        device.current_pool = device.default_pool;
        pools.add(device.default_pool);
        _devices.push_back(std::move(device));
    }
    for (int device = 0; device < device_count(); ++device) {
        _contexts.push_back(std::make_unique<Context>(device, true));
        _primaries.push_back(_contexts.back().get());
    }
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
    if (_configuration.faults.shutdown) {
        std::atexit([] { exiting.store(true); });
    }
    up.store(true);
}

Error Core::availability(Vendor vendor) {
    if (!_configuration.problem.empty()) {
        if (!_complained.exchange(true)) {
            std::fprintf(stderr, "awaken emulator: %s\n", _configuration.problem.c_str());
        }
        return Error::invalid_value;
    }
    if (_configuration.vendor != vendor || _devices.empty()) {
        return Error::no_device;
    }
    if (exiting.load(std::memory_order_relaxed)) {
        return Error::deinitialized;
    }
    // As with real drivers, a child has neither the threads nor the mappings of its parent's GPU.
    if (forked.load(std::memory_order_relaxed)) {
        return Error::not_initialized;
    }
    if (!_memory.ready()) {
        if (!_complained.exchange(true)) {
            std::fprintf(
                stderr,
                "awaken emulator: cannot reserve addresses for device memory; lower AWAKEN_EMULATE_MEMORY or raise "
                "the limit on the address space (ulimit -v)\n");
        }
        return Error::out_of_memory;
    }
    await_release(opening);
    return Error::success;
}

void Core::retain_primary(int device) {
    const std::scoped_lock lock(_lock);
    Context& context = primary(device);
    ++context.references;
    context.alive = true;
}

bool Core::release_primary(int device) {
    const std::scoped_lock lock(_lock);
    Context& context = primary(device);
    if (context.references == 0) {
        return false;
    }
    if (--context.references == 0) {
        destroy_locked(context);
    }
    return true;
}

void Core::reset_primary(int device) {
    const std::scoped_lock lock(_lock);
    Context& context = primary(device);
    if (!context.alive) {
        return;
    }
    destroy_locked(context);
    // Those who retained it hold a fresh context under the same handle.
    context.identity = next_context_identity();
    context.alive = context.references > 0;
}

Context& Core::create_context(int device, unsigned flags) {
    const std::scoped_lock lock(_lock);
    _contexts.push_back(std::make_unique<Context>(device, false));
    Context& context = *_contexts.back();
    context.flags = flags;
    context.alive = true;
    return context;
}

void Core::destroy_context(Context& context) {
    const std::scoped_lock lock(_lock);
    destroy_locked(context);
}

void Core::destroy_locked(Context& context) {
    context.ending = true;
    context.synchronize();
    context.ending = false;
    context.gave_up = false;
    context.alive = false;
    context.sticky = Error::success;
    streams.remove_if([&](const Stream& stream) { return &stream.context() == &context; });
    events.remove_if([&](const Event& event) { return &event.context() == &context; });
    functions.remove_if([&](const Function& function) { return function.context == &context; });
    modules.remove_if([&](const Module& module) { return module.context == &context; });
    _memory.free_all(context);
    for (const auto& stream : context.all_streams()) {
        if (stream->role() == Stream::Role::created) {
            stream->close();
        }
    }
    const std::scoped_lock peers(context.peers_lock);
    context.peers.clear();
}

Context* Core::find_context(const void* handle) {
    const std::scoped_lock lock(_lock);
    for (const auto& context : _contexts) {
        if (context.get() == handle) {
            return context.get();
        }
    }
    return nullptr;
}

std::vector<Context*> Core::contexts_of(int device) {
    std::vector<Context*> found;
    const std::scoped_lock lock(_lock);
    for (const auto& context : _contexts) {
        if (context->device == device && context->alive) {
            found.push_back(context.get());
        }
    }
    return found;
}

void Core::synchronize_device(int device) {
    for (Context* context : contexts_of(device)) {
        context->synchronize();
    }
}

std::shared_ptr<Stream> Core::stream(Context& context, const void* handle) {
    switch (reinterpret_cast<std::uintptr_t>(handle)) {
        case 0:
        case 1:
            return context.legacy;
        case 2:
            return context.per_thread_stream();
        default:
            return streams.find(handle);
    }
}

Core& core() {
    static Core* const instance = new Core;
    return *instance;
}

bool is_core_up() noexcept {
    return up.load();
}

}  // namespace awaken::emulator
