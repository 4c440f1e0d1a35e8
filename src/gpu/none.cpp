// SPDX-License-Identifier: Apache-2.0
// No GPU: every pointer is host memory, and each call that needs a device fails and says so.
#include "gpu/gpu.h"

namespace awaken::gpu {
namespace {

constexpr const char* kNoRuntime = "there is no GPU runtime in this process";

Status unsupported(const char* call) noexcept {
    return {kUnsupported, call, kNoRuntime};
}

class None final : public Runtime {
  public:
    Vendor vendor() const noexcept override { return Vendor::none; }
    Versions versions() const override {
        Versions versions;
        versions.runtime = "none";
        versions.description = "no GPU runtime";
        return versions;
    }

    int device_count() noexcept override { return 0; }
    Status device_info(int, DeviceInfo&) override { return unsupported("device_info"); }
    Status current_device(int&) noexcept override { return unsupported("current_device"); }
    Status make_current(int) noexcept override { return unsupported("make_current"); }
    Status run_on(int, const std::function<void()>&) override { return unsupported("run_on"); }
    Status can_access_peer(int, int, bool&) noexcept override { return unsupported("can_access_peer"); }
    Status enable_peer_access(int, int) noexcept override { return unsupported("enable_peer_access"); }

    void classify(std::span<const void* const> pointers, PointerInfo* infos) noexcept override {
        for (std::size_t i = 0; i < pointers.size(); ++i) {
            infos[i] = PointerInfo{};
        }
    }
    Status order_after_default_stream(const void*, const PointerInfo& info) noexcept override {
        // Host memory has no default stream to wait for.
        return info.kind == MemoryKind::host ? Status{} : unsupported("order_after_default_stream");
    }

    Status finish_default_stream(int) noexcept override { return unsupported("finish_default_stream"); }

    Status allocate(int, std::size_t, void*&) noexcept override { return unsupported("allocate"); }
    Status free(void* pointer) noexcept override { return pointer == nullptr ? Status{} : unsupported("free"); }
    Status allocate_managed(int, std::size_t, void*&) noexcept override { return unsupported("allocate_managed"); }
    Status allocate_from_pool(int, std::size_t, void*&) noexcept override { return unsupported("allocate_from_pool"); }
    Status prefetch(const void*, std::size_t, int, StreamHandle) noexcept override { return unsupported("prefetch"); }
    Status allocate_pinned(std::size_t, void*&) noexcept override { return unsupported("allocate_pinned"); }
    Status free_pinned(void* pointer) noexcept override {
        return pointer == nullptr ? Status{} : unsupported("free_pinned");
    }
    Status register_host(void*, std::size_t) noexcept override { return unsupported("register_host"); }
    Status unregister_host(void*) noexcept override { return unsupported("unregister_host"); }

    Status create_stream(int, bool, StreamHandle&) noexcept override { return unsupported("create_stream"); }
    Status destroy_stream(StreamHandle) noexcept override { return unsupported("destroy_stream"); }
    Status query_stream(StreamHandle, bool&) noexcept override { return unsupported("query_stream"); }
    Status synchronize_stream(StreamHandle) noexcept override { return unsupported("synchronize_stream"); }
    Status create_event(int, EventHandle&) noexcept override { return unsupported("create_event"); }
    Status destroy_event(EventHandle) noexcept override { return unsupported("destroy_event"); }
    Status record_event(EventHandle, StreamHandle) noexcept override { return unsupported("record_event"); }
    Status query_event(EventHandle, bool&) noexcept override { return unsupported("query_event"); }
    Status stream_wait_event(StreamHandle, EventHandle) noexcept override { return unsupported("stream_wait_event"); }

    Status copy(void*, const void*, std::size_t, StreamHandle) noexcept override { return unsupported("copy"); }
    Status copy_2d(const Copy2D&, StreamHandle) noexcept override { return unsupported("copy_2d"); }
    Status fill(void*, unsigned char, std::size_t, StreamHandle) noexcept override { return unsupported("fill"); }

    Status ipc_export(const void*, IpcMemoryHandle&, std::size_t&) noexcept override {
        return unsupported("ipc_export");
    }
    Status ipc_open(const IpcMemoryHandle&, int, void*&) noexcept override { return unsupported("ipc_open"); }
    Status ipc_close(void*) noexcept override { return unsupported("ipc_close"); }

    Status load_kernels(int, const char*, const char*, ModuleHandle&, std::string&) override {
        return unsupported("load_kernels");
    }
    Status unload_kernels(ModuleHandle) noexcept override { return unsupported("unload_kernels"); }
    Status find_kernel(ModuleHandle, const char*, KernelHandle&) noexcept override {
        return unsupported("find_kernel");
    }
    Status launch(KernelHandle, Dim3, Dim3, unsigned, StreamHandle, void**) noexcept override {
        return unsupported("launch");
    }
};

}  // namespace

Runtime& none() noexcept {
    // Leaked, as every runtime: other static objects may use it while they are destroyed.
    static None* const runtime = new None;
    return *runtime;
}

}  // namespace awaken::gpu
