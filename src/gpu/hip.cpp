// SPDX-License-Identifier: Apache-2.0
// The HIP runtime (libamdhip64), versions 5, 6 and 7. This file finds out the version at run time.
//
// Devices. HIP hardly has contexts. A thread has a current device, and a resource belongs to the device that was
// current when it was made. Each call makes the device that it needs current and gives the caller's back.
//
// Errors. Up to HIP 6 hipGetLastError() returns the outcome of the thread's last call of whatever kind, and from HIP 7
// on its last failure. So we clear a failure of ours before we return. If the program had a failure pending already,
// one stays pending. Up to HIP 6 any call ends the pending failure of an earlier one, and so does any call of ours. A
// program that wants that failure must ask before it calls MPI.
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <new>
#include <string_view>

#include "gpu/dynamic_library.h"
#include "gpu/gpu.h"
#include "gpu/hip_abi.h"
#include "gpu/precompiled_kernels.h"
#include "gpu/relaxed_capture.h"
#include "gpu/runtime_compiler.h"
#include "gpu/vendor.h"

namespace awaken::gpu {
namespace {

using hip_abi::kSuccess;
using hip_abi::Result;
static_assert(sizeof(hip_abi::IpcMemHandle) == sizeof(IpcMemoryHandle));

// X(member, symbol, required, result, parameters...)
#define AWAKEN_HIP_FUNCTIONS(X)                                                                                        \
    X(init, "hipInit", true, Result, unsigned)                                                                         \
    X(runtime_version, "hipRuntimeGetVersion", true, Result, int*)                                                     \
    X(error_string, "hipGetErrorString", true, const char*, Result)                                                    \
    X(last_error, "hipGetLastError", true, Result)                                                                     \
    X(peek_error, "hipPeekAtLastError", true, Result)                                                                  \
    X(device_count, "hipGetDeviceCount", true, Result, int*)                                                           \
    X(current_device, "hipGetDevice", true, Result, int*)                                                              \
    X(set_device, "hipSetDevice", true, Result, int)                                                                   \
    X(device_synchronize, "hipDeviceSynchronize", true, Result)                                                        \
    X(stream_is_capturing, "hipStreamIsCapturing", false, Result, hip_abi::Stream, int*)                               \
    X(exchange_capture_mode, "hipThreadExchangeStreamCaptureMode", false, Result, int*)                                \
    X(capture_info, "hipStreamGetCaptureInfo_v2", false, Result, hip_abi::Stream, int*, unsigned long long*, void**,   \
      const void***, std::size_t*)                                                                                     \
    X(user_object_create, "hipUserObjectCreate", false, Result, void**, void*, void (*)(void*), unsigned, unsigned)    \
    X(user_object_release, "hipUserObjectRelease", false, Result, void*, unsigned)                                     \
    X(begin_capture, "hipStreamBeginCapture", false, Result, hip_abi::Stream, int)                                     \
    X(end_capture, "hipStreamEndCapture", false, Result, hip_abi::Stream, void**)                                      \
    X(graph_instantiate, "hipGraphInstantiateWithFlags", false, Result, void**, void*, unsigned long long)             \
    X(graph_launch, "hipGraphLaunch", false, Result, void*, hip_abi::Stream)                                           \
    X(graph_destroy, "hipGraphDestroy", false, Result, void*)                                                          \
    X(graph_exec_destroy, "hipGraphExecDestroy", false, Result, void*)                                                 \
    X(graph_retain, "hipGraphRetainUserObject", false, Result, void*, void*, unsigned, unsigned)                       \
    X(device_name, "hipDeviceGetName", true, Result, char*, int, int)                                                  \
    X(device_uuid, "hipDeviceGetUuid", false, Result, hip_abi::Uuid*, int)                                             \
    X(device_memory, "hipDeviceTotalMem", true, Result, std::size_t*, int)                                             \
    X(device_attribute, "hipDeviceGetAttribute", true, Result, int*, int, int)                                         \
    X(device_pci_bus_id, "hipDeviceGetPCIBusId", true, Result, char*, int, int)                                        \
    X(device_properties, "hipGetDeviceProperties", true, Result, void*, int)                                           \
    X(device_properties_r0600, "hipGetDevicePropertiesR0600", false, Result, void*, int)                               \
    X(device_can_access_peer, "hipDeviceCanAccessPeer", true, Result, int*, int, int)                                  \
    X(device_enable_peer, "hipDeviceEnablePeerAccess", true, Result, int, unsigned)                                    \
    X(pointer_attributes, "hipPointerGetAttributes", true, Result, hip_abi::PointerAttributes*, const void*)           \
    X(pointer_attribute, "hipPointerGetAttribute", false, Result, void*, int, void*)                                   \
    X(memory_range, "hipMemGetAddressRange", true, Result, void**, std::size_t*, void*)                                \
    X(memory_allocate, "hipMalloc", true, Result, void**, std::size_t)                                                 \
    X(memory_free, "hipFree", true, Result, void*)                                                                     \
    X(memory_allocate_managed, "hipMallocManaged", false, Result, void**, std::size_t, unsigned)                       \
    X(memory_allocate_async, "hipMallocAsync", false, Result, void**, std::size_t, hip_abi::Stream)                    \
    X(memory_prefetch, "hipMemPrefetchAsync", false, Result, const void*, std::size_t, int, hip_abi::Stream)           \
    X(host_allocate, "hipHostMalloc", true, Result, void**, std::size_t, unsigned)                                     \
    X(host_free, "hipHostFree", true, Result, void*)                                                                   \
    X(host_register, "hipHostRegister", true, Result, void*, std::size_t, unsigned)                                    \
    X(host_device_pointer, "hipHostGetDevicePointer", true, Result, void**, void*, unsigned)                           \
    X(host_unregister, "hipHostUnregister", true, Result, void*)                                                       \
    X(copy_async, "hipMemcpyAsync", true, Result, void*, const void*, std::size_t, int, hip_abi::Stream)               \
    X(copy_2d_async, "hipMemcpy2DAsync", true, Result, void*, std::size_t, const void*, std::size_t, std::size_t,      \
      std::size_t, int, hip_abi::Stream)                                                                               \
    X(fill_async, "hipMemsetAsync", true, Result, void*, int, std::size_t, hip_abi::Stream)                            \
    X(stream_priorities, "hipDeviceGetStreamPriorityRange", true, Result, int*, int*)                                  \
    X(stream_create, "hipStreamCreateWithPriority", true, Result, hip_abi::Stream*, unsigned, int)                     \
    X(stream_destroy, "hipStreamDestroy", true, Result, hip_abi::Stream)                                               \
    X(stream_query, "hipStreamQuery", true, Result, hip_abi::Stream)                                                   \
    X(stream_synchronize, "hipStreamSynchronize", true, Result, hip_abi::Stream)                                       \
    X(stream_wait_event, "hipStreamWaitEvent", true, Result, hip_abi::Stream, hip_abi::Event, unsigned)                \
    X(event_create, "hipEventCreateWithFlags", true, Result, hip_abi::Event*, unsigned)                                \
    X(event_destroy, "hipEventDestroy", true, Result, hip_abi::Event)                                                  \
    X(event_record, "hipEventRecord", true, Result, hip_abi::Event, hip_abi::Stream)                                   \
    X(event_query, "hipEventQuery", true, Result, hip_abi::Event)                                                      \
    X(ipc_get, "hipIpcGetMemHandle", true, Result, hip_abi::IpcMemHandle*, void*)                                      \
    X(ipc_open, "hipIpcOpenMemHandle", true, Result, void**, hip_abi::IpcMemHandle, unsigned)                          \
    X(ipc_close, "hipIpcCloseMemHandle", true, Result, void*)                                                          \
    X(module_load, "hipModuleLoadData", true, Result, hip_abi::Module*, const void*)                                   \
    X(module_unload, "hipModuleUnload", true, Result, hip_abi::Module)                                                 \
    X(module_function, "hipModuleGetFunction", true, Result, hip_abi::Function*, hip_abi::Module, const char*)         \
    X(launch_kernel, "hipModuleLaunchKernel", true, Result, hip_abi::Function, unsigned, unsigned, unsigned, unsigned, \
      unsigned, unsigned, unsigned, hip_abi::Stream, void**, void**)                                                   \
    /* Of libhsa-runtime64, which HIP depends on: found by way of its handle. */                                       \
    X(hsa_information, "hsa_system_get_info", false, int, int, void*)

struct Functions {
    AWAKEN_HIP_FUNCTIONS(AWAKEN_DECLARE_FUNCTION)
};

bool bind_functions(const DynamicLibrary& library, Functions& table, std::string& why_not) {
    const FunctionSlot slots[] = {AWAKEN_HIP_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
    return library.bind(slots, why_not);
}

// ---- the run-time compiler ------------------------------------------------------------------------------------------

#define AWAKEN_HIPRTC_FUNCTIONS(X)                                                                         \
    X(version, "hiprtcVersion", true, int, int*, int*)                                                     \
    X(error_string, "hiprtcGetErrorString", true, const char*, int)                                        \
    X(create, "hiprtcCreateProgram", true, int, void**, const char*, const char*, int, const char* const*, \
      const char* const*)                                                                                  \
    X(destroy, "hiprtcDestroyProgram", true, int, void**)                                                  \
    X(compile, "hiprtcCompileProgram", true, int, void*, int, const char* const*)                          \
    X(log_size, "hiprtcGetProgramLogSize", true, int, void*, std::size_t*)                                 \
    X(log, "hiprtcGetProgramLog", true, int, void*, char*)                                                 \
    X(code_size, "hiprtcGetCodeSize", true, int, void*, std::size_t*)                                      \
    X(code, "hiprtcGetCode", true, int, void*, char*)

constexpr const char* kStem = "libamdhip64";
constexpr const char* kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"};
constexpr const char* kCompilerStem = "libhiprtc";
constexpr const char* kCompilerFiles[] = {"libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"};

/// The places where a compiler may lie, best first: loaded already; in the folder of the loaded runtime; inside the
/// loaded runtime (HIP 5 up to 5.4); known to the loader.
std::vector<std::string> compiler_paths() {
    std::vector<std::string> loaded;
    std::vector<std::string> beside;
    std::vector<std::string> inside;
    for (const std::string& path : loaded_object_paths()) {
        if (is_library_named(path, kCompilerStem)) {
            loaded.push_back(path);
        }
        if (!is_library_named(path, kStem)) {
            continue;
        }
        inside.push_back(path);
        if (path.front() != '/') {
            continue;
        }
        for (const char* const file : kCompilerFiles) {
            beside.push_back(path.substr(0, path.rfind('/') + 1) + file);
        }
    }
    std::vector<std::string> paths = std::move(loaded);
    paths.insert(paths.end(), beside.begin(), beside.end());
    paths.insert(paths.end(), inside.begin(), inside.end());
    paths.insert(paths.end(), std::begin(kCompilerFiles), std::end(kCompilerFiles));
    paths.insert(paths.end(), std::begin(kNames), std::end(kNames));
    return paths;
}

std::unique_ptr<RuntimeCompiler> make_compiler(std::string& why_not) {
    std::string reasons;
    for (const std::string& path : compiler_paths()) {
        std::string reason;
        const DynamicLibrary library = DynamicLibrary::open({&path, 1}, reason);
        CompilerFunctions table;
        const FunctionSlot slots[] = {AWAKEN_HIPRTC_FUNCTIONS(AWAKEN_BIND_FUNCTION)};
        // A runtime without compiler functions is no error here: the next place may have them.
        if (library && library.bind(slots, reason)) {
            return std::make_unique<RuntimeCompiler>("HIPRTC", library.path(), table);
        }
        reasons += (reasons.empty() ? "" : "; ") + reason;
    }
    why_not = "no run-time compiler (libhiprtc) can be loaded; install ROCm's package hip-runtime-amd: " + reasons;
    return nullptr;
}

// ---- the runtime ----------------------------------------------------------------------------------------------------

class Hip final : public VendorRuntime {
  public:
    Hip(DynamicLibrary library, const Functions& functions) : _hip(functions), _library(std::move(library)) {}

    Readiness prepare(bool initialise, std::string* why_not) override {
        const auto explain = [why_not](const std::string& text) {
            if (why_not != nullptr) {
                *why_not = text;
            }
        };
        if (initialise) {
            if (const Result code = _hip.init(0); code != kSuccess) {
                explain(_library.path() + " cannot be initialised: " + outcome(code, "hipInit").message());
                static_cast<void>(_hip.last_error());
                return Readiness::no_device;
            }
        }
        if (!initialise && !is_initialised()) {
            explain(_library.path() + " is loaded, but the program has not initialised it");
            return Readiness::not_initialised;
        }
        int count = 0;
        const Result result = _hip.device_count(&count);
        int version = 0;
        const Result versioned = _hip.runtime_version(&version);
        if (result != kSuccess || versioned != kSuccess) {
            static_cast<void>(_hip.last_error());
        }
        if (result != kSuccess || count == 0) {
            explain(_library.path() + " reports no device" +
                    (result != kSuccess ? ": " + outcome(result, "hipGetDeviceCount").message() : std::string()));
            return Readiness::no_device;
        }
        constexpr int kOldestMajor = 5;
        if (versioned != kSuccess || hip_abi::major_version(version) < kOldestMajor) {
            explain(_library.path() + " is HIP " + dotted(version) + "; HIP 5.0 or newer is needed: update ROCm");
            return Readiness::no_device;
        }
        _devices = count;
        _version = version;
        _major = hip_abi::major_version(version);
        return Readiness::ready;
    }

    Vendor vendor() const noexcept override { return Vendor::hip; }
    const char* stream_type() const noexcept override { return "hipStream_t"; }
    // hipGetDevice() gives device 0 to a thread that has chosen none.
    bool threads_begin_with_a_device() const noexcept override { return true; }

    Versions versions() const override {
        Versions versions;
        versions.driver = _version;
        versions.runtime = "HIP " + dotted(_version) + " (ROCm)";
        versions.library = _library.path();
        versions.description = versions.runtime + ", " + std::to_string(_devices) +
                               (_devices == 1 ? " device, " : " devices, ") + versions.library;
        return versions;
    }

    // ---- devices ----------------------------------------------------------------------------------------------------

    int device_count() noexcept override {
        Scope scope(*this);
        int count = 0;
        return scope.end(_hip.device_count(&count), "hipGetDeviceCount").ok() ? count : 0;
    }

    Status device_info(int device, DeviceInfo& info) override {
        Scope scope(*this);
        DeviceInfo result;
        std::array<char, 256> text = {};
        if (const Result code = _hip.device_name(text.data(), static_cast<int>(text.size()), device)) {
            return scope.end(code, "hipDeviceGetName");
        }
        result.name = text.data();
        text = {};
        if (const Result code = _hip.device_pci_bus_id(text.data(), static_cast<int>(text.size()), device)) {
            return scope.end(code, "hipDeviceGetPCIBusId");
        }
        result.pci_bus_id = text.data();
        for (char& letter : result.pci_bus_id) {
            letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
        }
        if (_hip.device_uuid != nullptr) {
            hip_abi::Uuid uuid = {};
            if (const Result code = _hip.device_uuid(&uuid, device)) {
                return scope.end(code, "hipDeviceGetUuid");
            }
            std::memcpy(result.uuid, uuid.bytes, sizeof result.uuid);
        }
        if (const Result code = _hip.device_memory(&result.memory_bytes, device)) {
            return scope.end(code, "hipDeviceTotalMem");
        }
        if (const Result code =
                _hip.device_attribute(&result.multiprocessors, hip_abi::kDeviceMultiprocessorCount, device)) {
            return scope.end(code, "hipDeviceGetAttribute");
        }
        int large_bar = 0;
        if (_hip.device_attribute(&large_bar, hip_abi::kDeviceIsLargeBar, device) == kSuccess) {
            result.host_visible_memory = large_bar != 0;
        } else {
            scope.note_failure();  // unknown to this version: keep the cautious answer
        }
        std::string full_architecture;
        if (const Result code = architecture(device, full_architecture)) {
            return scope.end(code, "hipGetDeviceProperties");
        }
        // "gfx90a:sramecc+:xnack-": only the compiler needs the features after the name.
        result.architecture = full_architecture.substr(0, full_architecture.find(':'));
        info = std::move(result);
        return {};
    }

    Status current_device(int& device) noexcept override {
        Scope scope(*this);
        int current = 0;
        const Result code = _hip.current_device(&current);
        if (code == kSuccess) {
            device = current;
        }
        return scope.end(code, "hipGetDevice");
    }

    int device_to_use() noexcept override {
        // Every thread has a current device. This is the first one until the thread chooses another.
        int current = 0;
        const int seen = _device_seen.load(std::memory_order_relaxed);
        return current_device(current).ok() && current > 0 ? current : seen >= 0 ? seen : 0;
    }

    Status run_on(int device, const std::function<void()>& work) override {
        const Scope scope(*this, device);
        if (scope.status().ok()) {
            work();
        }
        return scope.status();
    }

    Status make_current(int device) noexcept override {
        Scope scope(*this);
        return scope.end(_hip.set_device(device), "hipSetDevice");
    }

    Status can_access_peer(int device, int peer, bool& can) noexcept override {
        Scope scope(*this);
        int answer = 0;
        const Result code = _hip.device_can_access_peer(&answer, device, peer);
        if (code == kSuccess) {
            can = answer != 0;
        }
        return scope.end(code, "hipDeviceCanAccessPeer");
    }

    Status enable_peer_access(int device, int peer) noexcept override {
        return on_device(device, [&](Scope& scope) -> Status {
            const Result code = _hip.device_enable_peer(peer, 0);
            if (code == hip_abi::kErrorPeerAccessAlreadyEnabled) {
                scope.note_failure();
                return {};
            }
            return scope.end(code, "hipDeviceEnablePeerAccess");
        });
    }

    // ---- pointers ---------------------------------------------------------------------------------------------------

    void classify(std::span<const void* const> pointers, PointerInfo* infos) noexcept override {
        Scope scope(*this);
        for (std::size_t i = 0; i < pointers.size(); ++i) {
            infos[i] = classify_one(pointers[i], scope);
        }
    }

    bool was_reset() noexcept override { return _was_reset.load(std::memory_order_acquire); }

    Status order_after_default_stream(const void*, const PointerInfo& info) noexcept override {
        // Synchronous calls that target host memory do not return early.
        return info.host_accessible() ? Status{} : finish_default_stream(info.device);
    }

    // ---- calls that wait for all work of a device -------------------------------------------------------------------

    bool is_idle(int device, std::chrono::microseconds patience) noexcept override {
        if (is_captured()) {
            return false;
        }
        if (device < 0) {
            for (int each = 0; each < _devices; ++each) {
                if ((_used.load(std::memory_order_relaxed) >> (each % 64) & 1) != 0 && !is_idle(each, patience)) {
                    return false;
                }
            }
            return true;
        }
        {
            Scope scope(*this, device);
            int capturing = 0;
            if (!scope.status().ok() ||
                (_hip.stream_is_capturing != nullptr &&
                 (!scope.end(_hip.stream_is_capturing(nullptr, &capturing), "hipStreamIsCapturing").ok() ||
                  capturing != hip_abi::kNotCapturing))) {
                return false;
            }
        }
        return _idle_probe.ask(
            device,
            [this, device] {
                if (_hip.set_device(device) == kSuccess) {
                    static_cast<void>(_hip.device_synchronize());
                }
            },
            patience);
    }

    // ---- memory -----------------------------------------------------------------------------------------------------

    Status allocate(int device, std::size_t bytes, void*& pointer) noexcept override {
        return on_device(device, [&](Scope& scope) -> Status {
            if (bytes == 0) {
                return {hip_abi::kErrorInvalidValue, "hipMalloc", "zero bytes"};  // HIP would "succeed" with null
            }
            void* result = nullptr;
            const Result code = _hip.memory_allocate(&result, bytes);
            if (code == kSuccess) {
                pointer = result;
            }
            return scope.end(code, "hipMalloc");
        });
    }

    Status free(void* pointer) noexcept override {
        if (pointer == nullptr) {
            return {};
        }
        Scope scope(*this);
        return scope.end(_hip.memory_free(pointer), "hipFree");
    }

    Status allocate_managed(int device, std::size_t bytes, void*& pointer) noexcept override {
        if (_hip.memory_allocate_managed == nullptr) {
            return lacking("hipMallocManaged");
        }
        return on_device(device, [&](Scope& scope) -> Status {
            if (bytes == 0) {
                return {hip_abi::kErrorInvalidValue, "hipMallocManaged", "zero bytes"};
            }
            void* result = nullptr;
            const Result code = _hip.memory_allocate_managed(&result, bytes, hip_abi::kAttachGlobal);
            if (code == kSuccess) {
                pointer = result;
            }
            return scope.end(code, "hipMallocManaged");
        });
    }

    Status allocate_from_pool(int device, std::size_t bytes, void*& pointer) noexcept override {
        if (_hip.memory_allocate_async == nullptr) {
            return lacking("hipMallocAsync");
        }
        return on_device(device, [&](Scope& scope) -> Status {
            if (bytes == 0) {
                return {hip_abi::kErrorInvalidValue, "hipMallocAsync", "zero bytes"};
            }
            void* result = nullptr;
            if (const Result code = _hip.memory_allocate_async(&result, bytes, nullptr)) {
                return scope.end(code, "hipMallocAsync");
            }
            // Other streams may use the memory only after the stream of the allocation has executed it.
            if (const Result code = _hip.stream_synchronize(nullptr)) {
                static_cast<void>(_hip.memory_free(result));
                return scope.end(code, "hipStreamSynchronize");
            }
            pointer = result;
            return {};
        });
    }

    Status prefetch(const void* pointer, std::size_t bytes, int device, StreamHandle stream) noexcept override {
        if (bytes == 0) {
            return {};
        }
        if (_hip.memory_prefetch == nullptr) {
            return lacking("hipMemPrefetchAsync");
        }
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.memory_prefetch(pointer, bytes, device, stream.value), "hipMemPrefetchAsync");
        });
    }

    Status allocate_pinned(std::size_t bytes, void*& pointer) noexcept override {
        Scope scope(*this);
        if (bytes == 0) {
            return {hip_abi::kErrorInvalidValue, "hipHostMalloc", "zero bytes"};
        }
        void* result = nullptr;
        const Result code =
            _hip.host_allocate(&result, bytes, hip_abi::kHostMallocPortable | hip_abi::kHostMallocMapped);
        if (code == kSuccess) {
            pointer = result;
        }
        return scope.end(code, "hipHostMalloc");
    }

    Status free_pinned(void* pointer) noexcept override {
        if (pointer == nullptr) {
            return {};
        }
        Scope scope(*this);
        return scope.end(_hip.host_free(pointer), "hipHostFree");
    }

    Status register_host(void* pointer, std::size_t bytes) noexcept override {
        Scope scope(*this);
        if (const Result code =
                _hip.host_register(pointer, bytes, hip_abi::kHostRegisterPortable | hip_abi::kHostRegisterMapped)) {
            return scope.end(code, "hipHostRegister");
        }
        // Without shared virtual memory the GPU sees registered memory at an address of its own. Our kernels do not get
        // that address.
        void* for_kernels = nullptr;
        const Result code = _hip.host_device_pointer(&for_kernels, pointer, 0);
        if (code == kSuccess && for_kernels == pointer) {
            return {};
        }
        static_cast<void>(_hip.host_unregister(pointer));
        static_cast<void>(scope.end(code, "hipHostGetDevicePointer"));
        return {kUnsupported, "hipHostGetDevicePointer", "the GPU has registered memory at another address"};
    }

    Status unregister_host(void* pointer) noexcept override {
        Scope scope(*this);
        return scope.end(_hip.host_unregister(pointer), "hipHostUnregister");
    }

    // ---- streams and events -----------------------------------------------------------------------------------------

    Status create_stream(int device, bool ordered_after_default, StreamHandle& stream) noexcept override {
        return on_device(device, [&](Scope& scope) -> Status {
            int least = 0;
            int greatest = 0;
            if (const Result code = _hip.stream_priorities(&least, &greatest); code != kSuccess) {
                return scope.end(code, "hipDeviceGetStreamPriorityRange");
            }
            hip_abi::Stream result = nullptr;
            const unsigned flags = ordered_after_default ? hip_abi::kStreamDefault : hip_abi::kStreamNonBlocking;
            const Result code = _hip.stream_create(&result, flags, greatest);
            if (code == kSuccess) {
                stream = {result, device};
            }
            return scope.end(code, "hipStreamCreateWithPriority");
        });
    }

    Status destroy_stream(StreamHandle stream) noexcept override {
        if (stream.value == nullptr) {
            return {};
        }
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.stream_destroy(stream.value), "hipStreamDestroy");
        });
    }

    Status query_stream(StreamHandle stream, bool& done) noexcept override {
        Scope scope(*this);
        return scope.answer(_hip.stream_query(stream.value), "hipStreamQuery", done);
    }

    Status synchronize_stream(StreamHandle stream) noexcept override {
        Scope scope(*this);
        return scope.end(_hip.stream_synchronize(stream.value), "hipStreamSynchronize");
    }

    Status capture_of(StreamHandle stream, std::uint64_t& capture) noexcept override {
        capture = 0;
        if (_hip.stream_is_capturing == nullptr) {
            return {};
        }
        Scope scope(*this);
        int state = hip_abi::kNotCapturing;
        const Result code = _hip.stream_is_capturing(stream.value, &state);
        if (code == hip_abi::kErrorInvalidHandle) {
            // The handle is the program's: it says nothing about the layer's own.
            scope.note_failure();
            return {code, "hipStreamIsCapturing", "no such stream"};
        }
        const Status status = scope.end(code, "hipStreamIsCapturing");
        unsigned long long identity = 1;
        if (status.ok() && state != hip_abi::kNotCapturing && _hip.capture_info != nullptr) {
            static_cast<void>(_hip.capture_info(stream.value, &state, &identity, nullptr, nullptr, nullptr));
        }
        capture = status.ok() && state != hip_abi::kNotCapturing ? identity : 0;
        return status;
    }

    Status capture_point(StreamHandle stream, std::uint64_t& point) noexcept override {
        if (_hip.capture_info == nullptr) {
            return {kUnsupported, "hipStreamGetCaptureInfo", "this ROCm has no such function"};
        }
        Scope scope(*this);
        int state = hip_abi::kNotCapturing;
        unsigned long long identity = 0;
        void* graph = nullptr;
        const void** nodes = nullptr;
        std::size_t count = 0;
        const Result code = _hip.capture_info(stream.value, &state, &identity, &graph, &nodes, &count);
        point = code == kSuccess ? point_of(nodes, count) : 0;
        return scope.end(code, "hipStreamGetCaptureInfo");
    }

    Status when_graph_is_gone(StreamHandle stream, void (*gone)(void*), void* argument) noexcept override {
        if (_hip.capture_info == nullptr || _hip.user_object_create == nullptr || _hip.user_object_release == nullptr ||
            _hip.graph_retain == nullptr) {
            return {kUnsupported, "hipGraphRetainUserObject", "this ROCm has no such function"};
        }
        Scope scope(*this);
        int state = hip_abi::kNotCapturing;
        unsigned long long identity = 0;
        void *graph = nullptr, *object = nullptr;
        const void** dependencies = nullptr;
        std::size_t count = 0;
        if (const Result code = _hip.capture_info(stream.value, &state, &identity, &graph, &dependencies, &count)) {
            return scope.end(code, "hipStreamGetCaptureInfo");
        }
        if (graph == nullptr) {
            return {kUnsupported, "hipStreamGetCaptureInfo", "the stream is not captured"};
        }
        if (const Result code = _hip.user_object_create(&object, argument, gone, 1, hip_abi::kNoDestructorSync)) {
            return scope.end(code, "hipUserObjectCreate");
        }
        if (_hip.graph_retain(graph, object, 1, hip_abi::kUserObjectMove) != kSuccess) {
            static_cast<void>(_hip.user_object_release(object, 1));  // which calls `gone`
        }
        return {};
    }

    Status begin_capture(StreamHandle stream) noexcept override {
        if (_hip.begin_capture == nullptr || _hip.end_capture == nullptr || _hip.graph_instantiate == nullptr ||
            _hip.graph_launch == nullptr || _hip.graph_destroy == nullptr || _hip.graph_exec_destroy == nullptr) {
            return lacking("hipGraphInstantiateWithFlags");
        }
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.begin_capture(stream.value, hip_abi::kCaptureModeGlobal), "hipStreamBeginCapture");
        });
    }

    Status end_capture(StreamHandle stream, GraphHandle& graph) noexcept override {
        return on_device(stream.device, [&](Scope& scope) -> Status {
            void* made = nullptr;
            if (const Result code = _hip.end_capture(stream.value, &made)) {
                return scope.end(code, "hipStreamEndCapture");
            }
            graph = {nullptr, stream.device};
            const Result code = _hip.graph_instantiate(&graph.value, made, 0);
            static_cast<void>(_hip.graph_destroy(made));
            return scope.end(code, "hipGraphInstantiate");
        });
    }

    Status launch_graph(GraphHandle graph, StreamHandle stream) noexcept override {
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.graph_launch(graph.value, stream.value), "hipGraphLaunch");
        });
    }

    Status destroy_graph(GraphHandle graph) noexcept override {
        return on_device(graph.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.graph_exec_destroy(graph.value), "hipGraphExecDestroy");
        });
    }

    Status create_event(int device, EventHandle& event) noexcept override {
        return on_device(device, [&](Scope& scope) -> Status {
            hip_abi::Event result = nullptr;
            const Result code = _hip.event_create(&result, hip_abi::kEventDisableTiming);
            if (code == kSuccess) {
                event = {result, device};
            }
            return scope.end(code, "hipEventCreateWithFlags");
        });
    }

    Status destroy_event(EventHandle event) noexcept override {
        if (event.value == nullptr) {
            return {};
        }
        return on_device(event.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.event_destroy(event.value), "hipEventDestroy");
        });
    }

    Status record_event(EventHandle event, StreamHandle stream) noexcept override {
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.event_record(event.value, stream.value), "hipEventRecord");
        });
    }

    Status query_event(EventHandle event, bool& done) noexcept override {
        Scope scope(*this);
        return scope.answer(_hip.event_query(event.value), "hipEventQuery", done);
    }

    Status stream_wait_event(StreamHandle stream, EventHandle event) noexcept override {
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.stream_wait_event(stream.value, event.value, 0), "hipStreamWaitEvent");
        });
    }

    // ---- copies -----------------------------------------------------------------------------------------------------

    Status copy(void* destination, const void* source, std::size_t bytes, StreamHandle stream) noexcept override {
        if (bytes == 0) {
            return {};
        }
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.copy_async(destination, source, bytes, hip_abi::kCopyDefault, stream.value),
                             "hipMemcpyAsync");
        });
    }

    Status copy_2d(const Copy2D& copy, StreamHandle stream) noexcept override {
        if (copy.width == 0 || copy.rows == 0) {
            return {};
        }
        const bool dense = copy.source_pitch == copy.width && copy.destination_pitch == copy.width;
        if (dense || copy.rows == 1) {
            return this->copy(copy.destination, copy.source, copy.width * copy.rows, stream);
        }
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(
                _hip.copy_2d_async(copy.destination, copy.destination_pitch, copy.source, copy.source_pitch, copy.width,
                                   copy.rows, hip_abi::kCopyDefault, stream.value),
                "hipMemcpy2DAsync");
        });
    }

    Status fill(void* destination, unsigned char value, std::size_t bytes, StreamHandle stream) noexcept override {
        if (bytes == 0) {
            return {};
        }
        return on_device(stream.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.fill_async(destination, value, bytes, stream.value), "hipMemsetAsync");
        });
    }

    // ---- sharing between processes ----------------------------------------------------------------------------------

    Status ipc_export(const void* pointer, IpcMemoryHandle& handle, std::size_t& offset) noexcept override {
        hip_abi::PointerAttributes attributes = {};
        {
            Scope scope(*this);
            const Status status = scope.end(_hip.pointer_attributes(&attributes, pointer), "hipPointerGetAttributes");
            if (!status.ok()) {
                return status;
            }
        }
        return on_device(attributes.device, [&](Scope& scope) -> Status {
            void* base = nullptr;
            std::size_t size = 0;
            if (const Result code = _hip.memory_range(&base, &size, const_cast<void*>(pointer))) {
                return scope.end(code, "hipMemGetAddressRange");
            }
            // Always exports the base. Some versions drop the offset of an interior pointer, others apply it in the
            // other process.
            hip_abi::IpcMemHandle result = {};
            if (const Result code = _hip.ipc_get(&result, base)) {
                return scope.end(code, "hipIpcGetMemHandle");
            }
            std::memcpy(handle.bytes, result.bytes, sizeof handle.bytes);
            offset = static_cast<std::size_t>(static_cast<const char*>(pointer) - static_cast<const char*>(base));
            return {};
        });
    }

    Status ipc_open(const IpcMemoryHandle& handle, int device, void*& base) noexcept override {
        return on_device(device, [&](Scope& scope) -> Status {
            hip_abi::IpcMemHandle request = {};
            std::memcpy(request.bytes, handle.bytes, sizeof request.bytes);
            void* result = nullptr;
            Result code = _hip.ipc_open(&result, request, hip_abi::kIpcLazyEnablePeerAccess);
            if (code == hip_abi::kErrorInvalidValue && _major == 5) {
                scope.note_failure();
                code = _hip.ipc_open(&result, request, hip_abi::kIpcLazyEnablePeerAccessEarly);
            }
            if (code == kSuccess) {
                base = result;
            }
            return scope.end(code, "hipIpcOpenMemHandle");
        });
    }

    Status ipc_close(void* base) noexcept override {
        if (base == nullptr) {
            return {};
        }
        Scope scope(*this);
        return scope.end(_hip.ipc_close(base), "hipIpcCloseMemHandle");
    }

    // ---- kernels ----------------------------------------------------------------------------------------------------

    Status load_kernels(int device, const char* name, const char* source, ModuleHandle& module,
                        std::string& log) override {
        try {
            return compile_and_load(device, name, source, module, log);
        } catch (const std::bad_alloc&) {
            return {kUnsupported, "load_kernels", "out of host memory"};
        }
    }

    Status unload_kernels(ModuleHandle module) noexcept override {
        if (module.value == nullptr) {
            return {};
        }
        return on_device(module.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.module_unload(module.value), "hipModuleUnload");
        });
    }

    Status find_kernel(ModuleHandle module, const char* name, KernelHandle& kernel) noexcept override {
        return on_device(module.device, [&](Scope& scope) -> Status {
            hip_abi::Function function = nullptr;
            const Result code = _hip.module_function(&function, module.value, name);
            if (code == kSuccess) {
                kernel = {function, module.device};
            }
            return scope.end(code, "hipModuleGetFunction");
        });
    }

    Status launch(KernelHandle kernel, Dim3 grid, Dim3 block, unsigned shared_bytes, StreamHandle stream,
                  void** arguments) noexcept override {
        return on_device(kernel.device, [&](Scope& scope) -> Status {
            return scope.end(_hip.launch_kernel(kernel.value, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                shared_bytes, stream.value, arguments, nullptr),
                             "hipModuleLaunchKernel");
        });
    }

  private:
    /// The surroundings of one call. When it ends, the caller has its current device and pending error back.
    class Scope {
      public:
        explicit Scope(const Hip& hip) noexcept : _hip(hip) {
            // Up to HIP 6 a pending failure cannot outlive any call, so there is nothing to look at.
            if (hip._major >= kFirstMajorWithStickyErrors) {
                _pending = hip._hip.peek_error() != kSuccess;
            }
            _failed = !_capture.begin(hip._hip.exchange_capture_mode);
        }
        Scope(const Hip& hip, int device) noexcept : Scope(hip) {
            if (device < 0 || device >= hip._devices) {
                _status = {hip_abi::kErrorInvalidDevice, "hipSetDevice", "no such device"};
                return;
            }
            hip._used.fetch_or(std::uint64_t{1} << (static_cast<unsigned>(device) % 64), std::memory_order_relaxed);
            if (hip._was_reset.load(std::memory_order_relaxed)) {
                _status = {kShutDown, "hipSetDevice", kReset};
                return;
            }
            int current = 0;
            if (const Result code = hip._hip.current_device(&current)) {
                _status = end(code, "hipGetDevice");
                return;
            }
            if (current == device) {
                return;
            }
            _status = end(hip._hip.set_device(device), "hipSetDevice");
            if (_status.ok()) {
                _caller_device = current;
            }
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;
        ~Scope() {
            if (_caller_device >= 0 && _hip._hip.set_device(_caller_device) != kSuccess) {
                _failed = true;
            }
            if (_failed && !_pending) {
                static_cast<void>(_hip._hip.last_error());
            }
        }

        [[nodiscard]] const Status& status() const noexcept { return _status; }
        /// A call failed, as expected.
        void note_failure() noexcept { _failed = true; }
        Status end(Result code, const char* call) noexcept {
            if (code != kSuccess) {
                _failed = true;
            }
            return _hip.outcome(code, call);
        }
        /// For queries: "not ready" is an answer.
        Status answer(Result code, const char* call, bool& done) noexcept {
            // A capture by the program keeps the runtime from looking. That says nothing about our work.
            if (code == hip_abi::kErrorNotReady || code == hip_abi::kErrorCaptureUnsupported ||
                code == hip_abi::kErrorCaptureImplicit) {
                _failed = true;
                done = false;
                return {};
            }
            if (code == kSuccess) {
                done = true;
            }
            return end(code, call);
        }

      private:
        static constexpr int kFirstMajorWithStickyErrors = 7;

        const Hip& _hip;
        Status _status;
        int _caller_device = -1;
        RelaxedCapture<decltype(Functions::exchange_capture_mode)> _capture;
        bool _pending = false;
        bool _failed = false;
    };

    /// What `work` says while the device is current; what kept it from being so, where it could not be made that.
    template <class Work>
    [[nodiscard]] Status on_device(const int device, const Work& work) const noexcept {
        Scope scope(*this, device);
        return scope.status().ok() ? work(scope) : scope.status();
    }

    /// HIP reports a reset only by no longer knowing the streams and events of before. All those that HIP gets here are
    /// ours.
    Status outcome(Result code, const char* call) const noexcept {
        if (code == kSuccess) {
            return {};
        }
        const bool handle_of_ours = call != std::string_view("hipIpcOpenMemHandle");
        if (code == hip_abi::kErrorContextIsDestroyed || (code == hip_abi::kErrorInvalidHandle && handle_of_ours)) {
            _was_reset.store(true, std::memory_order_release);
            return {kShutDown, call, kReset};
        }
        const char* text = _hip.error_string(code);
        if (text == nullptr) {
            text = "unknown HIP error";
        }
        return {code == hip_abi::kErrorDeinitialized ? kShutDown : code, call, text};
    }

    static Status lacking(const char* call) noexcept {
        return {kUnsupported, call, "this HIP runtime has no such function; update ROCm"};
    }

    static std::string dotted(int version) {
        return std::to_string(hip_abi::major_version(version)) + "." + std::to_string(hip_abi::minor_version(version));
    }

    /// The kind of the pointer's memory, in this version's numbers. False for memory that the runtime does not know.
    bool decode(const hip_abi::PointerAttributes& attributes, MemoryKind& kind) const noexcept {
        if (attributes.is_managed != 0) {
            kind = MemoryKind::managed;
            return true;
        }
        if (_major >= 6) {
            using Type = hip_abi::MemoryType6;
            switch (attributes.type) {
                case Type::kHost:
                    kind = MemoryKind::pinned;
                    return true;
                case Type::kDevice:
                case Type::kArray:
                    kind = MemoryKind::device;
                    return true;
                case Type::kManaged:
                case Type::kUnified:
                    kind = MemoryKind::managed;
                    return true;
                default:
                    return false;
            }
        }
        using Type = hip_abi::MemoryType5;
        switch (attributes.type) {
            case Type::kHost:
                kind = MemoryKind::pinned;
                return true;
            case Type::kDevice:
            case Type::kArray:
                kind = MemoryKind::device;
                return true;
            case Type::kUnified:
                kind = MemoryKind::managed;
                return true;
            default:
                return false;
        }
    }

    PointerInfo classify_one(const void* pointer, Scope& scope) const noexcept {
        PointerInfo info;
        if (pointer == nullptr) {
            return info;
        }
        hip_abi::PointerAttributes attributes = {};
        attributes.device = -1;
        if (_hip.pointer_attributes(&attributes, pointer) != kSuccess) {
            scope.note_failure();  // HIP 5 reports memory that it does not know in this way
            return info;
        }
        MemoryKind kind = MemoryKind::host;
        if (!decode(attributes, kind)) {
            return info;
        }
        // Registered memory that kernels see at another address counts as ordinary memory, see register_host().
        if (kind == MemoryKind::pinned && attributes.device_pointer != nullptr &&
            attributes.device_pointer != pointer) {
            return info;
        }
        info.kind = kind;

        void* base = nullptr;
        std::size_t size = 0;
        if (_hip.memory_range(&base, &size, const_cast<void*>(pointer)) == kSuccess) {
            info.base = reinterpret_cast<std::uintptr_t>(base);
            info.size = size;
        } else {
            scope.note_failure();
        }
        if (kind == MemoryKind::pinned) {
            return info;
        }
        info.device = attributes.device;
        if (info.device >= 0 && _device_seen.load(std::memory_order_relaxed) < 0) {
            _device_seen.store(info.device, std::memory_order_relaxed);
        }
        // An identity has 32 or 64 bits, depending on the version. On a little-endian machine a zeroed word reads both.
        std::uint64_t id = 0;
        if (pointer_attribute(&id, hip_abi::kPointerBufferId, pointer, scope)) {
            info.id = id;
        }
        info.ipc_capable = kind == MemoryKind::device && ipc_capable(pointer, scope);
        return info;
    }

    /// Whether the program has used HIP. Any call of HIP initialises it, and then HIP reads the variables that say
    /// which devices are visible. A program may set these after it has asked MPI for its rank. HIP initialises HSA
    /// first. HSA tells whether it is initialised, and the question does not change that. (Whether /dev/kfd is open
    /// would tell as well, but takes a look through all open files at each MPI call.) A HIP without HSA of its own
    /// counts as initialised.
    [[nodiscard]] bool is_initialised() const noexcept {
        if (_hip.hsa_information == nullptr) {
            return true;
        }
        std::uint16_t major = 0;
        return _hip.hsa_information(hip_abi::kHsaSystemInfoVersionMajor, &major) != hip_abi::kHsaErrorNotInitialised;
    }

    bool pointer_attribute(void* value, int attribute, const void* pointer, Scope& scope) const noexcept {
        if (_hip.pointer_attribute == nullptr) {
            return false;
        }
        if (_hip.pointer_attribute(value, attribute, const_cast<void*>(pointer)) == kSuccess) {
            return true;
        }
        scope.note_failure();
        return false;
    }

    /// No version of HIP up to 7.0 answers this attribute, so device memory counts as capable until exporting it fails.
    bool ipc_capable(const void* pointer, Scope& scope) const noexcept {
        if (!_knows_ipc_capable.load(std::memory_order_relaxed)) {
            return true;
        }
        unsigned capable = 0;
        if (pointer_attribute(&capable, hip_abi::kPointerIsLegacyIpcCapable, pointer, scope)) {
            return capable != 0;
        }
        _knows_ipc_capable.store(false, std::memory_order_relaxed);
        return true;
    }

    /// gcnArchName, with features: "gfx90a:sramecc+:xnack-".
    Result architecture(int device, std::string& text) const {
        // The structure has grown before. Leave room for more.
        constexpr std::size_t kRoom = 4 * hip_abi::DevicePropertiesR0600::kSize;
        static_assert(kRoom > hip_abi::DeviceProperties::kSize);
        alignas(std::max_align_t) std::array<char, kRoom> properties = {};
        const bool newer = _hip.device_properties_r0600 != nullptr;
        const Result code = (newer ? _hip.device_properties_r0600 : _hip.device_properties)(properties.data(), device);
        if (code != kSuccess) {
            return code;
        }
        const char* const name = properties.data() + (newer ? hip_abi::DevicePropertiesR0600::kArchitectureOffset
                                                            : hip_abi::DeviceProperties::kArchitectureOffset);
        text.assign(name, ::strnlen(name, hip_abi::kArchitectureLength));
        return kSuccess;
    }

    const RuntimeCompiler* compiler(std::string& why_not) {
        const std::scoped_lock lock(_compiler_mutex);
        if (_compiler == nullptr) {
            _compiler = make_compiler(why_not);
        }
        return _compiler.get();
    }

    Status load_module(int device, const std::string& code, ModuleHandle& module) noexcept {
        return on_device(device, [&](Scope& scope) -> Status {
            hip_abi::Module handle = nullptr;
            const Result result = _hip.module_load(&handle, code.data());
            if (result == kSuccess) {
                module = {handle, device};
            }
            return scope.end(result, "hipModuleLoadData");
        });
    }

    Status compile_and_load(int device, const char* name, const char* source, ModuleHandle& module, std::string& log) {
        std::string machine;
        {
            Scope scope(*this);
            const Status status = scope.end(architecture(device, machine), "hipGetDeviceProperties");
            if (!status.ok()) {
                return status;
            }
        }
        // The GPU rounds as the CPU does. Otherwise it may fuse a product into the sum behind it, which differs in the
        // last digit.
        static constexpr std::string_view kOptions[] = {"-std=c++17", "-O3", "-ffp-contract=off"};
        for (const std::string& code : precompiled_kernels().code_for(source, kOptions, machine)) {
            if (const Status status = load_module(device, code, module); status.ok()) {
                return status;
            }
        }
        std::string why_not;
        const RuntimeCompiler* const compiler_in_use = compiler(why_not);
        if (compiler_in_use == nullptr) {
            log += why_not;
            return {kUnsupported, "hiprtcCreateProgram", "there is no run-time compiler (libhiprtc)"};
        }
        const std::string options[] = {"--offload-arch=" + machine, std::string(kOptions[0]), std::string(kOptions[1]),
                                       std::string(kOptions[2])};
        const std::string_view parts[] = {source,     options[0], options[1],
                                          options[2], options[3], compiler_in_use->identity()};
        const std::string key = KernelCache::key(parts);
        std::string code;
        if (_cache.load(key, code)) {
            if (const Status status = load_module(device, code, module); status.ok()) {
                return status;
            }
        }
        const RuntimeCompiler::Result compiled =
            compiler_in_use->compile(name, source, options, RuntimeCompiler::Output::machine_code, code, log);
        if (!compiled.ok()) {
            return {compiled.code, "hiprtcCompileProgram", compiled.description};
        }
        const Status status = load_module(device, code, module);
        if (status.ok()) {
            _cache.store(key, code);
        }
        return status;
    }

    static constexpr const char* kReset = "the program has reset the device (hipDeviceReset)";

    const Functions _hip;
    const DynamicLibrary _library;
    mutable std::atomic<bool> _was_reset{false};
    int _devices = 0;
    int _version = 0;
    int _major = 0;
    mutable std::atomic<bool> _knows_ipc_capable{true};
    mutable std::atomic<std::uint64_t> _used{0};  ///< devices that the layer has worked on, as bits
    mutable std::atomic<int> _device_seen{-1};    ///< the device that memory of the program was first seen on

    std::mutex _compiler_mutex;
    std::unique_ptr<RuntimeCompiler> _compiler;
    const KernelCache _cache;
};

std::unique_ptr<VendorRuntime> make(DynamicLibrary library, std::string& why_not) {
    Functions functions;
    if (!bind_functions(library, functions, why_not)) {
        return nullptr;
    }
    return std::make_unique<Hip>(std::move(library), functions);
}

}  // namespace

const VendorLibrary& hip_library() noexcept {
    static const VendorLibrary library = {Vendor::hip, "HIP runtime", kStem, kNames, &make, &make_compiler};
    return library;
}

}  // namespace awaken::gpu
