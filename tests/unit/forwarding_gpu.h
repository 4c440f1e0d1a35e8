// SPDX-License-Identifier: Apache-2.0
// A GPU runtime that hands every call on to another one: tests derive from it and change what they look at.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "gpu/gpu.h"

namespace awaken::test {

class ForwardingGpu : public gpu::Runtime {
  public:
    explicit ForwardingGpu(gpu::Runtime& other) : _other(other) {}

    [[nodiscard]] gpu::Vendor vendor() const noexcept override { return _other.vendor(); }
    [[nodiscard]] gpu::Versions versions() const override { return _other.versions(); }
    [[nodiscard]] const char* stream_type() const noexcept override { return _other.stream_type(); }
    [[nodiscard]] bool threads_begin_with_a_device() const noexcept override {
        return _other.threads_begin_with_a_device();
    }
    [[nodiscard]] bool works_with_gdrcopy() const noexcept override { return _other.works_with_gdrcopy(); }
    [[nodiscard]] int device_count() noexcept override { return _other.device_count(); }
    gpu::Status device_info(int device, gpu::DeviceInfo& info) override { return _other.device_info(device, info); }
    gpu::Status current_device(int& device) noexcept override { return _other.current_device(device); }
    gpu::Status make_current(int device) noexcept override { return _other.make_current(device); }
    gpu::Status run_on(int device, const std::function<void()>& work) override { return _other.run_on(device, work); }
    gpu::Status can_access_peer(int device, int peer, bool& can) noexcept override {
        return _other.can_access_peer(device, peer, can);
    }
    gpu::Status enable_peer_access(int device, int peer) noexcept override {
        return _other.enable_peer_access(device, peer);
    }
    void classify(std::span<const void* const> pointers, gpu::PointerInfo* infos) noexcept override {
        _other.classify(pointers, infos);
    }
    gpu::Status order_after_default_stream(const void* pointer, const gpu::PointerInfo& info) noexcept override {
        return _other.order_after_default_stream(pointer, info);
    }
    gpu::Status finish_default_stream(int device) noexcept override { return _other.finish_default_stream(device); }
    gpu::Status mark_default_stream(int device, gpu::EventHandle& mark) noexcept override {
        return _other.mark_default_stream(device, mark);
    }
    gpu::Status query_default_stream(gpu::EventHandle& mark, bool& over) noexcept override {
        return _other.query_default_stream(mark, over);
    }
    void drop_default_stream(gpu::EventHandle& mark) noexcept override { _other.drop_default_stream(mark); }
    [[nodiscard]] bool was_reset() noexcept override { return _other.was_reset(); }
    gpu::Status allocate(int device, std::size_t bytes, void*& pointer) noexcept override {
        return _other.allocate(device, bytes, pointer);
    }
    gpu::Status free(void* pointer) noexcept override { return _other.free(pointer); }
    gpu::Status allocate_managed(int device, std::size_t bytes, void*& pointer) noexcept override {
        return _other.allocate_managed(device, bytes, pointer);
    }
    gpu::Status allocate_from_pool(int device, std::size_t bytes, void*& pointer) noexcept override {
        return _other.allocate_from_pool(device, bytes, pointer);
    }
    gpu::Status prefetch(const void* pointer, std::size_t bytes, int device,
                         gpu::StreamHandle stream) noexcept override {
        return _other.prefetch(pointer, bytes, device, stream);
    }
    gpu::Status allocate_pinned(std::size_t bytes, void*& pointer) noexcept override {
        return _other.allocate_pinned(bytes, pointer);
    }
    gpu::Status free_pinned(void* pointer) noexcept override { return _other.free_pinned(pointer); }
    gpu::Status register_host(void* pointer, std::size_t bytes) noexcept override {
        return _other.register_host(pointer, bytes);
    }
    gpu::Status unregister_host(void* pointer) noexcept override { return _other.unregister_host(pointer); }
    gpu::Status create_stream(int device, bool ordered_after_default, gpu::StreamHandle& stream) noexcept override {
        return _other.create_stream(device, ordered_after_default, stream);
    }
    gpu::Status destroy_stream(gpu::StreamHandle stream) noexcept override { return _other.destroy_stream(stream); }
    gpu::Status query_stream(gpu::StreamHandle stream, bool& done) noexcept override {
        return _other.query_stream(stream, done);
    }
    gpu::Status synchronize_stream(gpu::StreamHandle stream) noexcept override {
        return _other.synchronize_stream(stream);
    }
    gpu::Status create_event(int device, gpu::EventHandle& event) noexcept override {
        return _other.create_event(device, event);
    }
    gpu::Status destroy_event(gpu::EventHandle event) noexcept override { return _other.destroy_event(event); }
    gpu::Status record_event(gpu::EventHandle event, gpu::StreamHandle stream) noexcept override {
        return _other.record_event(event, stream);
    }
    gpu::Status query_event(gpu::EventHandle event, bool& done) noexcept override {
        return _other.query_event(event, done);
    }
    gpu::Status stream_wait_event(gpu::StreamHandle stream, gpu::EventHandle event) noexcept override {
        return _other.stream_wait_event(stream, event);
    }
    gpu::Status copy(void* destination, const void* source, std::size_t bytes,
                     gpu::StreamHandle stream) noexcept override {
        return _other.copy(destination, source, bytes, stream);
    }
    gpu::Status copy_2d(const gpu::Copy2D& copy, gpu::StreamHandle stream) noexcept override {
        return _other.copy_2d(copy, stream);
    }
    gpu::Status fill(void* destination, unsigned char value, std::size_t bytes,
                     gpu::StreamHandle stream) noexcept override {
        return _other.fill(destination, value, bytes, stream);
    }
    gpu::Status ipc_export(const void* pointer, gpu::IpcMemoryHandle& handle, std::size_t& offset) noexcept override {
        return _other.ipc_export(pointer, handle, offset);
    }
    gpu::Status ipc_open(const gpu::IpcMemoryHandle& handle, int device, void*& base) noexcept override {
        return _other.ipc_open(handle, device, base);
    }
    gpu::Status ipc_close(void* base) noexcept override { return _other.ipc_close(base); }
    gpu::Status load_kernels(int device, const char* name, const char* source, gpu::ModuleHandle& module,
                             std::string& log) override {
        return _other.load_kernels(device, name, source, module, log);
    }
    gpu::Status unload_kernels(gpu::ModuleHandle module) noexcept override { return _other.unload_kernels(module); }
    gpu::Status find_kernel(gpu::ModuleHandle module, const char* name, gpu::KernelHandle& kernel) noexcept override {
        return _other.find_kernel(module, name, kernel);
    }
    gpu::Status launch(gpu::KernelHandle kernel, gpu::Dim3 grid, gpu::Dim3 block, unsigned shared_bytes,
                       gpu::StreamHandle stream, void** arguments) noexcept override {
        return _other.launch(kernel, grid, block, shared_bytes, stream, arguments);
    }

  private:
    gpu::Runtime& _other;
};

}  // namespace awaken::test
