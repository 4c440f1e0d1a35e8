// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "gpu/gpu.h"

namespace awaken::gpu {
namespace {

TEST(None, EveryPointerIsHostMemory) {
    int variable = 0;
    const void* const pointers[] = {&variable, nullptr, reinterpret_cast<const void*>(std::uintptr_t{64})};
    PointerInfo infos[3];
    for (PointerInfo& info : infos) {
        info.kind = MemoryKind::device;
    }
    none().classify(pointers, infos);
    for (const PointerInfo& info : infos) {
        EXPECT_EQ(info.kind, MemoryKind::host);
        EXPECT_EQ(info.device, -1);
        EXPECT_TRUE(info.host_accessible());
        EXPECT_TRUE(none().order_after_default_stream(&variable, info).ok());
    }
    EXPECT_EQ(none().vendor(), Vendor::none);
    EXPECT_FALSE(none().is_present());
    EXPECT_STREQ(none().stream_type(), "");
    EXPECT_EQ(none().device_count(), 0);
}

TEST(None, RefusesWhatNeedsADeviceAndLeavesResultsAlone) {
    Runtime& runtime = none();
    int mark = 0;
    void* const untouched = &mark;
    void* pointer = untouched;
    int device = 42;
    bool flag = true;
    DeviceInfo device_info;
    StreamHandle stream;
    EventHandle event;
    IpcMemoryHandle handle;
    std::size_t offset = 42;
    ModuleHandle module;
    KernelHandle kernel;
    std::string log;
    PointerInfo on_device;
    on_device.kind = MemoryKind::device;
    const Status all[] = {runtime.device_info(0, device_info),
                          runtime.current_device(device),
                          runtime.make_current(0),
                          runtime.can_access_peer(0, 1, flag),
                          runtime.enable_peer_access(0, 1),
                          runtime.order_after_default_stream(&mark, on_device),
                          runtime.allocate(0, 8, pointer),
                          runtime.free(&mark),
                          runtime.allocate_managed(0, 8, pointer),
                          runtime.allocate_from_pool(0, 8, pointer),
                          runtime.prefetch(&mark, 4, 0, stream),
                          runtime.allocate_pinned(8, pointer),
                          runtime.free_pinned(&mark),
                          runtime.register_host(&mark, 4),
                          runtime.unregister_host(&mark),
                          runtime.create_stream(0, true, stream),
                          runtime.destroy_stream(stream),
                          runtime.query_stream(stream, flag),
                          runtime.synchronize_stream(stream),
                          runtime.create_event(0, event),
                          runtime.destroy_event(event),
                          runtime.record_event(event, stream),
                          runtime.query_event(event, flag),
                          runtime.stream_wait_event(stream, event),
                          runtime.copy(&mark, &device, 4, stream),
                          runtime.copy_2d({}, stream),
                          runtime.fill(&mark, 1, 4, stream),
                          runtime.ipc_export(&mark, handle, offset),
                          runtime.ipc_open(handle, 0, pointer),
                          runtime.ipc_close(&mark),
                          runtime.load_kernels(0, "", "", module, log),
                          runtime.unload_kernels(module),
                          runtime.find_kernel(module, "", kernel),
                          runtime.launch(kernel, {}, {}, 0, stream, nullptr)};
    for (const Status& status : all) {
        EXPECT_EQ(status.code, kUnsupported);
        EXPECT_NE(status.message().find("there is no GPU runtime"), std::string::npos) << status.message();
    }
    EXPECT_EQ(pointer, untouched);
    EXPECT_EQ(device, 42);
    EXPECT_TRUE(flag);
    EXPECT_EQ(offset, 42U);
    EXPECT_EQ(mark, 0);
    EXPECT_TRUE(runtime.free(nullptr).ok());
    EXPECT_TRUE(runtime.free_pinned(nullptr).ok());
}

}  // namespace
}  // namespace awaken::gpu
